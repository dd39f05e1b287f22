//! One look as plain text, for a file, a pipe or a terminal that cannot show a whole screen.

use ratatui::{buffer::Buffer, layout::Rect};

use super::{
    draw::{Pen, hardware_headings, hardware_row, log_lines, row, run_headings, title},
    format::clean,
    look::Look,
    model::Model,
    scene::Scene,
};

/// Lines of the log at the end.
const LOG_LINES: usize = 8;

/// A scene as lines of text, without colors. Nothing is left out for want of height.
pub fn text(scene: Scene, unicode: bool, width: u16) -> String {
    let look = Look { unicode, colors: false };
    let mut model = Model::new((width, u16::MAX));
    model.show(scene);
    let mut lines = vec![line(look, width, |pen, area| title(&model, pen, area)), String::new()];
    let devices = model.scene.devices.len() + model.scene.absent.len();
    if devices > 0 {
        lines.push(line(look, width, hardware_headings));
        let device = |index| line(look, width, |pen, area| hardware_row(&model, pen, area, index));
        lines.extend((0..devices).map(device));
        lines.push(String::new());
    }
    if model.rows.is_empty() {
        lines.push("No Evener program can be seen: start one with EVENER_VIEW=1.".into());
    } else {
        let headings = Rect { x: 0, y: 0, width, height: 2 };
        let mut buffer = Buffer::empty(headings);
        run_headings(&mut Pen::new(&mut buffer, look), headings);
        lines.extend((0..2).map(|y| text_of(&buffer, y)));
        lines.extend(model.rows.iter().map(|&it| line(look, width, |pen, area| row(&model, pen, area, it))));
    }
    let log = log_lines(&model, LOG_LINES);
    if !log.is_empty() {
        lines.push(String::new());
        lines.extend(log.iter().map(|(age, text, _)| look.ascii_text(format!("{age:>10}  {text}"))));
    }
    lines.extend(model.scene.problems.iter().map(|problem| look.ascii_text(clean(problem).into_owned())));
    lines.join("\n") + "\n"
}

/// One line, drawn in a buffer of its own.
fn line(look: Look, width: u16, draw: impl FnOnce(&mut Pen<'_>, Rect)) -> String {
    let area = Rect { x: 0, y: 0, width, height: 1 };
    let mut buffer = Buffer::empty(area);
    draw(&mut Pen::new(&mut buffer, look), area);
    look.make_ascii(&mut buffer);
    text_of(&buffer, 0)
}

/// The text of a line, without blanks at its end.
pub(super) fn text_of(buffer: &Buffer, y: u16) -> String {
    let (mut text, mut x) = (String::new(), 0);
    while x < buffer.area.width {
        let symbol = buffer[(x, y)].symbol();
        text += symbol;
        // A wide character has a second cell.
        x += u16::try_from(super::format::width(symbol)).unwrap_or(1).max(1);
    }
    text.truncate(text.trim_end().len());
    text
}
