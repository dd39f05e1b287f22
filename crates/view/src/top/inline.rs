//! A view of some lines on standard error, below what the command has written: `--view`.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ratatui::{
    buffer::Buffer,
    crossterm::terminal,
    layout::Rect,
    style::{Color, Modifier, Style},
};

use super::{
    draw::{Pen, row, run_headings},
    look::Look,
    model::Model,
    rows::Row,
    scene::{Scene, without_bars},
    snapshot::text_of,
};
use crate::{Live, state::Program};

/// Time between two frames.
const FRAME: Duration = Duration::from_millis(200);
/// Maximum lines, and least lines of the terminal above the view.
const MAX_LINES: usize = 16;
const KEPT_ABOVE: usize = 4;

/// The view of this process's runs on standard error, until it is dropped.
///
/// It reads no keys and changes no settings of the terminal, so that whatever ends the process leaves the terminal usable. The
/// cursor is on the line below the view.
#[derive(Debug)]
pub struct Inline {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    look: Look,
    has_ended: AtomicBool,
    /// The number of lines that the view has on the screen.
    painted: Mutex<usize>,
}

impl Inline {
    /// Begins the view. Standard error must be a terminal.
    pub fn begin(look: Look) -> io::Result<Inline> {
        let live = Live::of_process()?;
        let shared = Arc::new(Shared { look, has_ended: AtomicBool::new(false), painted: Mutex::new(0) });
        let painting = shared.clone();
        let paint = move || painting.follow(&live);
        let thread = thread::Builder::new().name("evener-inline".into()).spawn(paint)?;
        Ok(Inline { shared, thread: Some(thread) })
    }

    /// Removes the view while something else is written to the terminal. It comes back below that.
    pub fn pause<R>(&self, write: impl FnOnce() -> R) -> R {
        let mut painted = self.shared.painted();
        erase(&mut painted);
        write()
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            drop(thread.join());
        }
        erase(&mut self.shared.painted());
    }
}

impl Shared {
    fn painted(&self) -> MutexGuard<'_, usize> {
        self.painted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Paints the program whenever it has changed.
    fn follow(&self, live: &Live) {
        let mut version = None;
        let mut program: Option<Box<Program>> = None;
        while !self.has_ended.load(SeqCst) {
            if let Some(update) = live.update_since(version) {
                version = Some(update.version());
                match (&mut program, update) {
                    (_, crate::state::Update::Snapshot(it)) => program = Some(it),
                    (Some(program), delta) => {
                        if !program.apply(delta) {
                            version = None;
                        }
                    }
                    (None, _) => version = None,
                }
                if let Some(program) = &program {
                    self.paint(program);
                }
            }
            thread::park_timeout(FRAME);
        }
    }

    fn paint(&self, program: &Program) {
        // A terminal that does not tell its size has the usual one.
        let (width, height) = terminal::size().ok().filter(|&(width, _)| width > 0).unwrap_or((80, 24));
        let height = usize::from(height).saturating_sub(KEPT_ABOVE).clamp(1, MAX_LINES);
        // A line of the full width would make some terminals begin another one.
        let lines = lines(program, self.look, width.saturating_sub(1), height);
        let mut painted = self.painted();
        let mut frame = up(*painted);
        for line in &lines {
            frame += &format!("\r{line}\u{1b}[K\n");
        }
        frame += "\u{1b}[J";
        // If nobody sees it, the run goes on.
        let mut stderr = io::stderr().lock();
        if stderr.write_all(frame.as_bytes()).and_then(|()| stderr.flush()).is_ok() {
            *painted = lines.len();
        }
    }
}

fn up(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\u{1b}[{lines}A") }
}

/// Removes the lines of the view.
fn erase(painted: &mut usize) {
    if *painted > 0 {
        let text = format!("{}\r\u{1b}[J", up(*painted));
        drop(io::stderr().lock().write_all(text.as_bytes()));
        *painted = 0;
    }
}

/// The lines of a program: headings, and its runs of now with their devices. The last line says how many do not fit.
fn lines(program: &Program, look: Look, width: u16, height: usize) -> Vec<String> {
    let mut shown = without_bars(program);
    let last = shown.runs.pop();
    shown.runs.retain(|run| run.summary.ended.is_none());
    shown.runs.extend(last.filter(|last| last.summary.ended.is_none() || shown.runs.is_empty()));
    if shown.runs.is_empty() || width == 0 {
        return Vec::new();
    }
    let mut model = Model::new((width, u16::MAX));
    model.show(Scene { programs: vec![shown], ..Scene::default() });
    let mut rows: Vec<Row> = model.rows.clone();
    let headings = if height >= 4 { 2 } else { 0 };
    let room = height.saturating_sub(headings).max(1);
    let hidden = if rows.len() > room { rows.len() - (room - 1) } else { 0 };
    if hidden > 0 {
        rows.truncate(room - 1);
    }
    let count = u16::try_from(headings + rows.len()).unwrap_or(u16::MAX);
    let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width, height: count });
    let mut pen = Pen::new(&mut buffer, look);
    run_headings(&mut pen, Rect { x: 0, y: 0, width, height: headings as u16 });
    for (y, &it) in (headings as u16..).zip(&rows) {
        row(&model, &mut pen, Rect { x: 0, y, width, height: 1 }, it);
    }
    look.make_ascii(&mut buffer);
    let mut lines: Vec<String> = (0..count).map(|y| styled(&buffer, y, look)).collect();
    if hidden > 0 {
        lines.push(format!("    {hidden} more rows"));
    }
    lines
}

/// A line with escape sequences for its styles, which are those of [`Look`].
fn styled(buffer: &Buffer, y: u16, look: Look) -> String {
    let has_style =
        |style: Style| style.add_modifier.intersects(Modifier::BOLD | Modifier::REVERSED) || look.colors;
    let (mut line, mut now, mut x) = (String::new(), Style::new(), 0);
    let used = u16::try_from(super::format::width(&text_of(buffer, y))).unwrap_or(u16::MAX);
    while x < used.min(buffer.area.width) {
        let cell = &buffer[(x, y)];
        let style = Style { underline_color: None, ..cell.style() };
        if style != now && (has_style(style) || has_style(now)) {
            line += &sequence(style);
        }
        now = style;
        line += cell.symbol();
        x += u16::try_from(super::format::width(cell.symbol())).unwrap_or(1).max(1);
    }
    line + "\u{1b}[0m"
}

fn sequence(style: Style) -> String {
    let color = |color: Option<Color>, base: u8| match color {
        Some(Color::Black) => Some(base),
        Some(Color::Red) => Some(base + 1),
        Some(Color::Green) => Some(base + 2),
        Some(Color::Yellow) => Some(base + 3),
        Some(Color::Cyan) => Some(base + 6),
        Some(Color::DarkGray) => Some(base + 60),
        _ => None,
    };
    let mut codes = vec!["0".to_owned()];
    codes.extend(style.add_modifier.contains(Modifier::BOLD).then(|| "1".into()));
    codes.extend(style.add_modifier.contains(Modifier::REVERSED).then(|| "7".into()));
    codes.extend(color(style.fg, 30).map(|code| code.to_string()));
    codes.extend(color(style.bg, 40).map(|code| code.to_string()));
    format!("\u{1b}[{}m", codes.join(";"))
}
