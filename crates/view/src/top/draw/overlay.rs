//! What is in front of the lists: help, questions, the line of keys, and what is shown where there is nothing.

use ratatui::layout::Rect;

use super::pen::{Cell, Pen};
use crate::top::{
    format::{clean, width},
    look::Look,
    model::{Model, Overlay, Panel, Target},
    rows::{RowKey, Sort},
};

/// What the keys do.
const HELP: [(&str, &str); 13] = [
    ("Up, Down, PgUp, PgDn", "move; Home and End go to the first and last row"),
    ("Left, Right, -, +", "hide or show a run's devices, or a device's lanes"),
    ("Enter", "show all about the selected run or device"),
    ("Tab", "move in the list of this machine's devices, or of runs"),
    ("F4, /", "show only tasks, programs or devices with this text"),
    ("Esc", "clear the filter; close what is in front"),
    ("F6, s", "sort by name, share, rate, state, retries or time left"),
    ("I", "invert the order"),
    ("Space, p", "pause, or go on with what has come since"),
    ("F9, k", "cancel the selected run, after a question"),
    ("F1, ?", "show this help"),
    ("F10, q, Ctrl-C", "quit"),
    ("Ctrl-Z", "suspend"),
];

const COLUMNS: [(&str, &str); 7] = [
    ("EFF", "efficiency: the rate over the sum of the devices'"),
    ("SHARE", "part of the items that are done"),
    ("HAND", "items that the device has in hand"),
    ("RETRY", "chunks that failed on the device and were done again"),
    ("RESCUE", "chunks taken over from slower or failed devices"),
    ("TREND", "throughput each half second, the newest at the right"),
    ("STATE", "quarantined: failed, and tried again after this time"),
];

pub(super) fn help(look: Look) -> Vec<Cell> {
    let line = |(key, what): &(&str, &str)| (format!("   {key:<21} {what}"), look.plain());
    let mut lines = vec![(" Keys".into(), look.strong())];
    lines.extend(HELP.iter().map(line));
    lines.extend([(String::new(), look.plain()), (" Columns".into(), look.strong())]);
    lines.extend(COLUMNS.iter().map(line));
    lines
}

/// What is shown if there is no program.
pub(super) fn empty(model: &Model) -> Vec<String> {
    let mut lines: Vec<String> = [
        "",
        "  No Evener program can be seen.",
        "",
        "  Programs are shown that are started with EVENER_VIEW=1:",
        "",
        "    EVENER_VIEW=1 evener merkle --leaves 100000000",
        "",
        "  A program of your own calls evener_view::socket::open_if_asked() at its",
        "  start for this, or evener_view::socket::Server::open() to be seen always.",
    ]
    .map(str::to_owned)
    .into();
    if !model.scene.problems.is_empty() {
        lines.push(String::new());
        lines.extend(model.scene.problems.iter().map(|problem| format!("  {}", clean(problem))));
    }
    lines
}

/// Draws the last line: the keys, the filter that is typed, or what happened last.
pub(super) fn footer(model: &Model, pen: &mut Pen<'_>, line: Rect) {
    let look = pen.look();
    if line.height == 0 {
        return;
    }
    if model.overlay == Overlay::Filter {
        let text = format!(" Filter: {}_   Enter keeps it, Esc clears it", clean(&model.selection.filter));
        return pen.text(line, &text, look.strong());
    }
    if let Some(message) = &model.message {
        return pen.text(line, &format!(" {}", clean(message)), look.warning());
    }
    let keys: &[(&str, &str)] = match (model.overlay, model.panel) {
        (Overlay::Details(_), _) => {
            &[("Esc", "Back"), ("Space", "Pause"), ("F9", "Cancel run"), ("F10", "Quit")]
        }
        (Overlay::Help | Overlay::Hardware(_), _) => &[("Esc", "Back"), ("F10", "Quit")],
        (Overlay::Sort { .. }, _) => &[("Enter", "Sort"), ("Esc", "Back")],
        (Overlay::Confirm(_), _) => &[("y", "Yes"), ("any other key", "No")],
        (_, Panel::Hardware) => {
            &[("F1", "Help"), ("Tab", "Runs"), ("Enter", "Details"), ("Space", "Pause"), ("F10", "Quit")]
        }
        (_, Panel::Runs) => &[
            ("F1", "Help"),
            ("F4", "Filter"),
            ("F6", "Sort"),
            ("Space", "Pause"),
            ("Enter", "Details"),
            ("F9", "Cancel"),
            ("F10", "Quit"),
            ("Tab", "Devices"),
        ],
    };
    let mut x = 1;
    for (key, what) in keys {
        let [key_width, what_width] =
            [*key, *what].map(|text| u16::try_from(width(text)).unwrap_or(u16::MAX));
        if x + key_width + 1 + what_width > line.width {
            return;
        }
        pen.text(Rect { x, width: key_width, ..line }, key, look.strong());
        let label = Rect { x: x + key_width + 1, width: what_width, ..line };
        pen.text(label, what, look.plain());
        x += key_width + what_width + 3;
    }
}

pub(super) fn sort(model: &Model, pen: &mut Pen<'_>, chosen: usize) {
    let look = pen.look();
    let line = |(index, sort): (usize, Sort)| {
        let now = if sort == model.selection.sort { "*" } else { " " };
        let style = if index == chosen { look.selected() } else { look.plain() };
        (format!("{now} {:<20}", sort.name()), style)
    };
    let lines: Vec<Cell> = Sort::ALL.into_iter().enumerate().map(line).collect();
    pen.dialog("Sort by", &lines);
}

pub(super) fn confirm(model: &Model, pen: &mut Pen<'_>, target: Target) {
    let look = pen.look();
    let key = RowKey { pid: target.pid, run: Some(target.run), device: None, lane: None };
    let what = match model.find(key) {
        Some((program, Some(run), _)) => format!(
            "run {} ({}) of {}, process {}",
            target.run,
            clean(&run.summary.task),
            clean(&program.name),
            target.pid
        ),
        _ => format!("run {} of process {}", target.run, target.pid),
    };
    let lines = [
        (format!("Cancel {what}?"), look.plain()),
        (String::new(), look.plain()),
        ("y: cancel it    any other key: do not".into(), look.strong()),
    ];
    pen.dialog("Cancel a run", &lines);
}
