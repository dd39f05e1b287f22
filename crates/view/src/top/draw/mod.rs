//! Draws the [`Model`] into a buffer of cells: a pure function, so that screens can be tested without a terminal.

mod details;
mod list;
mod overlay;
mod pen;

use ratatui::{buffer::Buffer, layout::Rect};

pub(super) use self::{
    list::{hardware_headings, hardware_row, log_lines, row, run_headings, title},
    pen::Pen,
};
use super::{
    format::{counted, fit},
    look::Look,
    model::{Model, Overlay, Panel},
};

/// Where the parts of the screen are. A part without room has no height.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    title: Rect,
    hardware_headings: Rect,
    hardware: Rect,
    headings: Rect,
    /// The rows of runs and devices.
    pub(super) runs: Rect,
    log: Rect,
    footer: Rect,
}

impl Layout {
    pub(super) fn new(model: &Model, width: u16, height: u16) -> Layout {
        let (mut y, mut left) = (0, height);
        let mut take = |wanted: u16| {
            let taken = wanted.min(left);
            let part = Rect { x: 0, y, width, height: taken };
            (y, left) = (y + taken, left - taken);
            part
        };
        let footer = u16::from(height >= 5);
        let title = take(u16::from(height >= 3));
        let devices = model.scene.devices.len() + model.scene.absent.len();
        let devices = u16::try_from(devices).unwrap_or(u16::MAX);
        // The focused list has the larger part.
        let most = if model.panel == Panel::Hardware { height / 2 } else { (height / 5).min(8) };
        let shown = if height >= 10 { devices.min(most) } else { 0 };
        let hardware_headings = take(u16::from(shown > 0));
        let hardware = take(shown);
        let headings = take(if height >= 8 { 2 } else { 0 });
        let has_log = model.scene.programs.iter().any(|program| !program.log.is_empty());
        let log = match height {
            _ if !has_log => 0,
            50.. => 9,
            30.. => 6,
            22.. => 4,
            _ => 0,
        };
        let rest = height.saturating_sub(title.height + hardware_headings.height + hardware.height);
        let runs = take(rest.saturating_sub(headings.height + log + footer));
        let log = take(log);
        Layout { title, hardware_headings, hardware, headings, runs, log, footer: take(footer) }
    }
}

/// Draws the whole screen.
pub(super) fn draw(model: &Model, look: Look, buffer: &mut Buffer) {
    let layout = Layout::new(model, buffer.area.width, buffer.area.height);
    let mut pen = Pen::new(buffer, look);
    title(model, &mut pen, layout.title);
    hardware(model, &mut pen, &layout);
    runs(model, &mut pen, &layout);
    log(model, &mut pen, layout.log);
    overlay::footer(model, &mut pen, layout.footer);
    let under_title = Rect {
        y: layout.title.height,
        height: pen.area().height.saturating_sub(layout.title.height + layout.footer.height),
        ..pen.area()
    };
    match model.overlay {
        Overlay::None | Overlay::Filter => {}
        Overlay::Help => pen.page(under_title, &overlay::help(look), model.scrolled),
        Overlay::Details(key) => {
            let lines = details::of_row(model, key, look, usize::from(under_title.width));
            pen.page(under_title, &lines, model.scrolled);
        }
        Overlay::Hardware(device) => {
            pen.page(under_title, &details::of_hardware(model, device, look), model.scrolled)
        }
        Overlay::Sort { chosen } => overlay::sort(model, &mut pen, chosen),
        Overlay::Confirm(target) => overlay::confirm(model, &mut pen, target),
    }
    look.make_ascii(buffer);
}

fn hardware(model: &Model, pen: &mut Pen<'_>, layout: &Layout) {
    if layout.hardware.height == 0 {
        return;
    }
    hardware_headings(pen, layout.hardware_headings);
    let (shown, all) =
        (usize::from(layout.hardware.height), model.scene.devices.len() + model.scene.absent.len());
    let is_focused = model.panel == Panel::Hardware;
    let first = match is_focused {
        true => (model.hardware_selected + 1).saturating_sub(shown),
        false => 0,
    };
    for (y, device) in (layout.hardware.y..).zip(first..all.min(first + shown)) {
        let line = Rect { y, height: 1, ..layout.hardware };
        // The last line says what is not shown, if the list cannot be scrolled.
        if !is_focused && device + 1 == shown && all > shown {
            let more = format!("  {} more: Tab", counted(all - shown + 1, "device", "devices"));
            pen.text(line, &more, pen.look().quiet());
            break;
        }
        hardware_row(model, pen, line, device);
        if is_focused && device == model.hardware_selected {
            pen.style(line, pen.look().selected());
        }
    }
}

fn runs(model: &Model, pen: &mut Pen<'_>, layout: &Layout) {
    run_headings(pen, layout.headings);
    if model.rows.is_empty() {
        let lines = if model.scene.programs.is_empty() || model.selection.filter.is_empty() {
            overlay::empty(model)
        } else {
            let filter = &model.selection.filter;
            vec![String::new(), format!("  nothing matches {filter:?}: Esc clears the filter")]
        };
        for (y, text) in (layout.runs.y..layout.runs.bottom()).zip(lines) {
            let text = fit(&text, usize::from(layout.runs.width), pen.look()).into_owned();
            pen.text(Rect { y, height: 1, ..layout.runs }, &text, pen.look().plain());
        }
        return;
    }
    let visible = model.rows.iter().skip(model.first_row);
    for (y, &it) in (layout.runs.y..layout.runs.bottom()).zip(visible) {
        let line = Rect { y, height: 1, ..layout.runs };
        row(model, pen, line, it);
        if model.panel == Panel::Runs && model.selected.is_some() && it.key(&model.scene) == model.selected {
            pen.style(line, pen.look().selected());
        }
    }
}

fn log(model: &Model, pen: &mut Pen<'_>, area: Rect) {
    if area.height < 2 {
        return;
    }
    pen.heading(Rect { height: 1, ..area }, " LOG");
    let lines = log_lines(model, usize::from(area.height) - 1);
    for (y, (age, text, is_failure)) in (area.y + 1..).zip(lines) {
        let look = pen.look();
        let style = if is_failure { look.bad() } else { look.plain() };
        pen.right(Rect { y, width: area.width.min(10), height: 1, ..area }, &age, look.quiet());
        let rest = Rect { x: 12, y, width: area.width.saturating_sub(12), height: 1 };
        pen.text(rest, &text, style);
    }
}
