//! The state of `top` between two frames: a state machine of keys and scenes, without a terminal, a clock or a socket.

use evener_schedule::events::RunKind;

use super::{
    draw::Layout,
    rows::{Row, RowKey, Selection, Sort},
    scene::Scene,
};
use crate::state::{DeviceView, Program, RunView};

/// A key, as far as `top` has a use for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Ctrl(char),
    F(u8),
    Enter,
    Escape,
    Backspace,
    Tab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

/// What is to be done after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// Stop this process, as Ctrl-Z does.
    Suspend,
    /// Ask a program to cancel a run. The user has confirmed it.
    Cancel(Target),
}

/// A run to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) run: u64,
}

/// What is in front of the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overlay {
    None,
    Help,
    /// The user types the filter.
    Filter,
    /// The user chooses by what to sort.
    Sort {
        chosen: usize,
    },
    /// All about a run, a device or a lane.
    Details(RowKey),
    /// All about a device of the machine, by its index.
    Hardware(usize),
    /// The user is asked whether to cancel a run.
    Confirm(Target),
}

/// The list that the arrow keys move in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Panel {
    Runs,
    Hardware,
}

/// Maximum characters of a filter.
const MAX_FILTER: usize = 64;

/// The state of `top`.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) scene: Scene,
    /// What has come while the view is paused.
    behind: Option<Scene>,
    pub(super) is_paused: bool,
    size: (u16, u16),
    pub(super) selection: Selection,
    pub(super) rows: Vec<Row>,
    pub(super) selected: Option<RowKey>,
    /// The first row that is shown.
    pub(super) first_row: usize,
    pub(super) panel: Panel,
    pub(super) hardware_selected: usize,
    pub(super) overlay: Overlay,
    /// Lines of the overlay above the first that is shown.
    pub(super) scrolled: usize,
    /// What happened last, until the next key.
    pub(super) message: Option<String>,
}

impl Model {
    pub(super) fn new(size: (u16, u16)) -> Model {
        Model {
            scene: Scene::default(),
            behind: None,
            is_paused: false,
            size,
            selection: Selection::default(),
            rows: Vec::new(),
            selected: None,
            first_row: 0,
            panel: Panel::Runs,
            hardware_selected: 0,
            overlay: Overlay::None,
            scrolled: 0,
            message: None,
        }
    }

    /// Takes over what is to be shown. A paused view keeps it for later.
    pub(super) fn show(&mut self, scene: Scene) {
        if self.is_paused {
            self.behind = Some(scene);
            return;
        }
        self.scene = scene;
        self.arrange();
        // What the overlay is about may be gone.
        let is_there = match self.overlay {
            Overlay::Details(key) => self.find(key).is_some(),
            Overlay::Hardware(index) => index < self.scene.devices.len(),
            Overlay::Confirm(target) => self.is_cancellable(target),
            _ => true,
        };
        if !is_there {
            if let Overlay::Confirm(target) = self.overlay {
                self.message = Some(format!("run {} has ended", target.run));
            }
            self.close();
        }
    }

    pub(super) fn resize(&mut self, size: (u16, u16)) {
        self.size = size;
        self.arrange();
    }

    pub(super) fn say(&mut self, message: String) {
        self.message = Some(message);
    }

    /// A program, run and device that a row is about.
    pub(super) fn find(&self, key: RowKey) -> Option<(&Program, Option<&RunView>, Option<&DeviceView>)> {
        let program = self.scene.programs.iter().find(|program| program.pid == key.pid)?;
        let Some(run) = key.run else { return Some((program, None, None)) };
        let run = program.run(run)?;
        let Some(device) = key.device else { return Some((program, Some(run), None)) };
        Some((program, Some(run), Some(run.devices.get(device)?)))
    }

    fn is_cancellable(&self, target: Target) -> bool {
        let key = RowKey { pid: target.pid, run: Some(target.run), device: None, lane: None };
        let run = self.find(key).and_then(|(_, run, _)| run);
        run.is_some_and(|run| run.summary.ended.is_none() && run.summary.kind != RunKind::Queue)
    }

    /// Computes the rows, and keeps the selected one selected and in sight.
    fn arrange(&mut self) {
        // A row that was opened or closed and is gone does not come back.
        let known: std::collections::HashSet<u32> = self.scene.programs.iter().map(|it| it.pid).collect();
        self.selection.opened.retain(|key, _| known.contains(&key.pid));
        let before = self.position();
        self.rows = self.selection.rows(&self.scene);
        if self.position().is_none() {
            // Whatever is now where the selected row was.
            self.selected = before
                .and_then(|at| self.nearest(at))
                .or_else(|| self.rows.iter().find_map(|row| row.key(&self.scene)));
        }
        self.hardware_selected = self.hardware_selected.min(self.hardware_count().saturating_sub(1));
        self.keep_in_sight();
    }

    fn hardware_count(&self) -> usize {
        self.scene.devices.len()
    }

    fn nearest(&self, at: usize) -> Option<RowKey> {
        let at = at.min(self.rows.len());
        let below = self.rows[at..].iter().find_map(|row| row.key(&self.scene));
        below.or_else(|| self.rows[..at].iter().rev().find_map(|row| row.key(&self.scene)))
    }

    /// The index of the selected row.
    pub(super) fn position(&self) -> Option<usize> {
        let selected = self.selected?;
        self.rows.iter().position(|row| row.key(&self.scene) == Some(selected))
    }

    fn keep_in_sight(&mut self) {
        let page = self.page();
        self.first_row = self.first_row.min(self.rows.len().saturating_sub(page));
        if let Some(at) = self.position() {
            self.first_row = self.first_row.min(at).max((at + 1).saturating_sub(page));
        }
    }

    /// Number of rows that fit.
    fn page(&self) -> usize {
        usize::from(Layout::new(self, self.size.0, self.size.1).runs.height).max(1)
    }

    /// Moves the selection over rows that can be selected.
    fn go(&mut self, rows: isize) {
        if self.panel == Panel::Hardware {
            let last = self.hardware_count().saturating_sub(1);
            self.hardware_selected = self.hardware_selected.saturating_add_signed(rows).min(last);
            return;
        }
        let keys: Vec<RowKey> = self.rows.iter().filter_map(|row| row.key(&self.scene)).collect();
        let at = self.selected.and_then(|selected| keys.iter().position(|&key| key == selected));
        let to = match at {
            Some(at) => at.saturating_add_signed(rows).min(keys.len().saturating_sub(1)),
            None => 0,
        };
        self.selected = keys.get(to).copied();
        self.keep_in_sight();
        // The headings of a run above its first device, and notes at the end, are not selectable: show them, too.
        if to == 0 {
            self.first_row = 0;
        } else if to + 1 == keys.len() {
            let (page, last) = (self.page(), self.rows.len());
            let at = self.position().unwrap_or(0);
            self.first_row = last.saturating_sub(page).min(at).max(self.first_row);
        }
    }

    fn close(&mut self) {
        (self.overlay, self.scrolled) = (Overlay::None, 0);
    }

    fn open(&mut self, overlay: Overlay) {
        (self.overlay, self.scrolled) = (overlay, 0);
    }

    /// Does what a key asks for.
    pub(super) fn press(&mut self, key: Key) -> Action {
        self.message = None;
        match key {
            Key::Ctrl('c') | Key::F(10) => return Action::Quit,
            Key::Ctrl('z') => return Action::Suspend,
            _ => {}
        }
        match self.overlay {
            Overlay::None => return self.press_in_lists(key),
            Overlay::Filter => self.press_in_filter(key),
            Overlay::Sort { chosen } => self.press_in_sort(key, chosen),
            Overlay::Confirm(target) => {
                // Anything but yes is no: the key may have been meant for something else.
                self.close();
                if matches!(key, Key::Char('y' | 'Y')) {
                    self.message =
                        Some(format!("asking process {} to cancel run {}", target.pid, target.run));
                    return Action::Cancel(target);
                }
                self.message = Some("not cancelled".into());
            }
            Overlay::Help | Overlay::Details(_) | Overlay::Hardware(_) => match key {
                Key::Down | Key::Char('j') => self.scrolled = (self.scrolled + 1).min(10_000),
                Key::PageDown => self.scrolled = (self.scrolled + self.page()).min(10_000),
                Key::Up => self.scrolled = self.scrolled.saturating_sub(1),
                Key::PageUp => self.scrolled = self.scrolled.saturating_sub(self.page()),
                Key::Home => self.scrolled = 0,
                Key::F(9) | Key::Char('k') if matches!(self.overlay, Overlay::Details(_)) => {
                    self.ask_to_cancel()
                }
                Key::Char(' ' | 'p') => self.pause(),
                Key::Escape | Key::Enter | Key::F(1) | Key::Left | Key::Char('q' | '?' | 'h') => self.close(),
                _ => {}
            },
        }
        Action::None
    }

    fn press_in_lists(&mut self, key: Key) -> Action {
        let page = isize::try_from(self.page()).unwrap_or(isize::MAX);
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Up => self.go(-1),
            Key::Down | Key::Char('j') => self.go(1),
            Key::PageUp => self.go(-page),
            Key::PageDown => self.go(page),
            Key::Home | Key::Char('g') => self.go(-(self.rows.len().max(self.hardware_count()) as isize)),
            Key::End | Key::Char('G') => self.go(self.rows.len().max(self.hardware_count()) as isize),
            Key::Tab => {
                self.panel = match self.panel {
                    Panel::Runs => Panel::Hardware,
                    Panel::Hardware => Panel::Runs,
                };
                self.keep_in_sight();
            }
            Key::Left | Key::Char('-') => self.fold(false),
            Key::Right | Key::Char('+') => self.fold(true),
            Key::Enter => match (self.panel, self.selected) {
                (Panel::Hardware, _) if self.hardware_count() > 0 => {
                    self.open(Overlay::Hardware(self.hardware_selected))
                }
                (Panel::Runs, Some(key)) => self.open(Overlay::Details(RowKey { lane: None, ..key })),
                _ => {}
            },
            Key::F(1) | Key::Char('?' | 'h') => self.open(Overlay::Help),
            Key::F(4) | Key::Char('/' | '\\') => self.open(Overlay::Filter),
            Key::F(6) | Key::Char('s' | '>') => {
                let chosen = Sort::ALL.iter().position(|&it| it == self.selection.sort).unwrap_or(0);
                self.open(Overlay::Sort { chosen });
            }
            Key::Char('I') => {
                self.selection.is_inverted = !self.selection.is_inverted;
                self.arrange();
            }
            Key::Char(' ' | 'p') => self.pause(),
            Key::F(9) | Key::Char('k') => self.ask_to_cancel(),
            Key::Escape => {
                self.selection.filter.clear();
                self.arrange();
            }
            _ => {}
        }
        Action::None
    }

    fn press_in_filter(&mut self, key: Key) {
        match key {
            Key::Char(char) if self.selection.filter.chars().count() < MAX_FILTER => {
                self.selection.filter.push(char)
            }
            Key::Backspace => drop(self.selection.filter.pop()),
            Key::Ctrl('u') => self.selection.filter.clear(),
            Key::Enter => self.close(),
            Key::Escape => {
                self.selection.filter.clear();
                self.close();
            }
            _ => {}
        }
        self.arrange();
    }

    fn press_in_sort(&mut self, key: Key, chosen: usize) {
        let last = Sort::ALL.len() - 1;
        match key {
            Key::Up => self.overlay = Overlay::Sort { chosen: chosen.saturating_sub(1) },
            Key::Down | Key::Char('j') => self.overlay = Overlay::Sort { chosen: (chosen + 1).min(last) },
            Key::Home => self.overlay = Overlay::Sort { chosen: 0 },
            Key::End => self.overlay = Overlay::Sort { chosen: last },
            Key::Enter => {
                self.selection.sort = Sort::ALL[chosen.min(last)];
                self.close();
                self.arrange();
            }
            Key::Escape | Key::Char('q') | Key::F(6) => self.close(),
            _ => {}
        }
    }

    fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        if let (false, Some(scene)) = (self.is_paused, self.behind.take()) {
            self.show(scene);
        }
    }

    /// Shows or hides the rows below the selected one. Hiding those of a row without any selects the row above it.
    fn fold(&mut self, open: bool) {
        if self.panel == Panel::Hardware {
            return;
        }
        let Some(key) = self.selected.filter(|key| key.run.is_some()) else { return };
        let Some((program, Some(run), _)) = self.find(key) else { return };
        let is_open = key.lane.is_none() && self.selection.is_open(key, program, run);
        match (open, is_open, key.parent()) {
            (false, false, Some(parent)) => self.selected = Some(parent),
            (true, _, _) if key.lane.is_some() => {}
            _ => drop(self.selection.opened.insert(key, open)),
        }
        self.arrange();
    }

    /// Asks whether to cancel the run that the overlay or the selected row is about.
    fn ask_to_cancel(&mut self) {
        let key = match self.overlay {
            Overlay::Details(key) => Some(key),
            _ => self.selected.filter(|_| self.panel == Panel::Runs),
        };
        let found = key.and_then(|key| Some((key.pid, self.find(key)?.1?)));
        let Some((pid, run)) = found else {
            self.message = Some("select a run to cancel".into());
            return;
        };
        let target = Target { pid, run: run.summary.id };
        match (run.summary.ended.is_some(), run.summary.kind) {
            (true, _) => self.message = Some(format!("run {} has ended", target.run)),
            (false, RunKind::Queue) => self.message = Some("a queue cannot be cancelled".into()),
            (false, _) => self.open(Overlay::Confirm(target)),
        }
    }
}
