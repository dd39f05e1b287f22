//! Writes text into the cells of a buffer. What does not fit is cut, with a sign that says so.

use ratatui::{buffer::Buffer, layout::Rect, style::Style};

use crate::top::{
    format::{fit, width},
    look::Look,
};

/// Writes into a buffer.
pub(in crate::top) struct Pen<'a> {
    buffer: &'a mut Buffer,
    look: Look,
}

/// A column of a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) width: usize,
    pub(super) is_number: bool,
}

/// A cell of a list.
pub(super) type Cell = (String, Style);

impl<'a> Pen<'a> {
    pub(in crate::top) fn new(buffer: &'a mut Buffer, look: Look) -> Pen<'a> {
        Pen { buffer, look }
    }

    pub(super) fn look(&self) -> Look {
        self.look
    }

    pub(super) fn area(&self) -> Rect {
        self.buffer.area
    }

    /// Writes a text at the start of an area's first line.
    pub(super) fn text(&mut self, area: Rect, text: &str, style: Style) {
        let area = area.intersection(self.buffer.area);
        if area.is_empty() {
            return;
        }
        let text = fit(text, usize::from(area.width), self.look);
        self.buffer.set_stringn(area.x, area.y, text, usize::from(area.width), style);
    }

    /// Writes a text at the end of an area's first line.
    pub(super) fn right(&mut self, area: Rect, text: &str, style: Style) {
        let taken = u16::try_from(width(text)).unwrap_or(u16::MAX).min(area.width);
        self.text(Rect { x: area.x + area.width - taken, width: taken, ..area }, text, style);
    }

    /// Writes a line in the style of headings.
    pub(super) fn heading(&mut self, area: Rect, text: &str) {
        self.style(area, self.look.heading());
        self.text(area, text, self.look.heading());
    }

    pub(super) fn style(&mut self, area: Rect, style: Style) {
        self.buffer.set_style(area.intersection(self.buffer.area), style);
    }

    /// Writes cells into columns, from `indent` on. A column that does not fit any more is left out.
    pub(super) fn cells(
        &mut self,
        line: Rect,
        indent: u16,
        columns: &[Column],
        cells: impl IntoIterator<Item = Cell>,
    ) {
        let (mut x, end) = (line.x + indent, line.right());
        for (column, (text, style)) in columns.iter().zip(cells) {
            let columns = u16::try_from(column.width).unwrap_or(u16::MAX);
            if x >= end || (x.saturating_add(columns) > end && column.is_number) {
                return;
            }
            let area = Rect { x, y: line.y, width: columns.min(end - x), height: 1 };
            match column.is_number {
                true => self.right(area, &text, style),
                false => self.text(area, &text, style),
            }
            x = x.saturating_add(columns + 1);
        }
    }

    /// Writes the titles of columns.
    pub(super) fn titles(&mut self, line: Rect, indent: u16, columns: &[Column], style: Style) {
        self.style(line, style);
        self.cells(line, indent, columns, columns.iter().map(|column| (column.title.into(), style)));
    }

    /// Fills an area with lines, from one of them on.
    pub(super) fn page(&mut self, area: Rect, lines: &[Cell], first: usize) {
        self.clear(area);
        let height = usize::from(area.height);
        // The last page is full.
        let first = first.min(lines.len().saturating_sub(height));
        for (y, (text, style)) in (area.y..area.bottom()).zip(&lines[first..]) {
            self.text(Rect { y, height: 1, ..area }, text, *style);
        }
        if first + height < lines.len() && height > 1 {
            let line = Rect { y: area.bottom() - 1, height: 1, ..area };
            self.clear(line);
            let more = format!("  {} more lines: Down", lines.len() - first - height + 1);
            self.text(line, &more, self.look.quiet());
        }
    }

    /// Draws a box with lines in the middle of the screen.
    pub(super) fn dialog(&mut self, title: &str, lines: &[Cell]) {
        let screen = self.buffer.area;
        let wanted = lines.iter().map(|(text, _)| width(text)).chain([width(title)]).max().unwrap_or(0) + 4;
        let columns = u16::try_from(wanted).unwrap_or(u16::MAX).min(screen.width);
        let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(screen.height);
        let (x, y) = ((screen.width - columns) / 2, (screen.height - height) / 2);
        let area = Rect { x, y, width: columns, height };
        self.clear(area);
        let [corners, across, down] = match self.look.unicode {
            true => ["┌┐└┘", "─", "│"],
            false => ["++++", "-", "|"],
        };
        let corner = |index: usize| corners.chars().nth(index).unwrap_or('+');
        let inner = usize::from(columns.saturating_sub(2));
        let style = self.look.strong();
        let edge = |left: usize| format!("{}{}{}", corner(left), across.repeat(inner), corner(left + 1));
        for row in 0..height {
            let line = Rect { y: y + row, height: 1, ..area };
            if row == 0 || row + 1 == height {
                self.text(line, &edge(if row == 0 { 0 } else { 2 }), style);
                continue;
            }
            self.text(line, down, style);
            self.right(line, down, style);
            if let Some((text, style)) = lines.get(usize::from(row) - 1) {
                self.text(Rect { x: x + 2, width: columns.saturating_sub(4), ..line }, text, *style);
            }
        }
        let line = Rect { x: x + 2, width: columns.saturating_sub(4), y, height: 1 };
        self.text(line, &format!(" {title} "), style);
    }

    fn clear(&mut self, area: Rect) {
        let area = area.intersection(self.buffer.area);
        for y in area.y..area.bottom() {
            for x in area.x..area.right() {
                self.buffer[(x, y)].reset();
            }
        }
    }
}
