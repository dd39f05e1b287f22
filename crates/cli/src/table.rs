//! Tables that fit the terminal.

use comfy_table::{Attribute, Cell, CellAlignment, Table, presets};

use crate::{color, escape};

/// The space between columns.
const GAP: usize = 2;

/// The width of tables if the output is not a terminal, or the terminal does not know its width.
const DEFAULT_WIDTH: usize = 80;

/// The heading of a column, and how the column is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heading<'a> {
    text: &'a str,
    is_number: bool,
    is_optional: bool,
}

impl<'a> Heading<'a> {
    /// Creates the heading of a left-aligned column.
    pub(crate) const fn text(text: &'a str) -> Self {
        Heading { text, is_number: false, is_optional: false }
    }

    /// Creates the heading of a right-aligned column.
    pub(crate) const fn number(text: &'a str) -> Self {
        Heading { text, is_number: true, is_optional: false }
    }

    /// Leaves the column out if all of its cells are zero or unknown.
    pub(crate) const fn optional(self) -> Self {
        Heading { is_optional: true, ..self }
    }
}

/// Formats a table that fits the terminal, or 80 columns: a wider one becomes several tables, which repeat the first column.
pub(crate) fn table(headings: &[Heading<'_>], rows: &[Vec<String>]) -> String {
    let width = Table::new().width().map(usize::from).filter(|&width| width > 0);
    tables(headings, rows, width.unwrap_or(DEFAULT_WIDTH)).join("\n\n")
}

fn tables(headings: &[Heading<'_>], rows: &[Vec<String>], width: usize) -> Vec<String> {
    let cell = |row: &Vec<String>, column: usize| {
        row.get(column).map_or(String::new(), |cell| escape::single_line(cell).into_owned())
    };
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| (0..headings.len()).map(|column| cell(row, column)).collect()).collect();
    let is_empty = |column: usize| rows.iter().all(|row| is_zero_or_unknown(&row[column]));
    let mut shown = (0..headings.len()).filter(|&column| !(headings[column].is_optional && is_empty(column)));
    let Some(first) = shown.next() else { return Vec::new() };
    let column_width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].as_str());
        cells.chain([headings[column].text]).map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let (mut tables, mut columns, mut used) = (Vec::new(), vec![first], column_width(first));
    for column in shown {
        let with_column = used + GAP + column_width(column);
        if with_column > width && columns.len() > 1 {
            tables.push(format_columns(headings, &rows, &columns));
            columns.truncate(1);
            used = column_width(first);
        }
        columns.push(column);
        used += GAP + column_width(column);
    }
    tables.push(format_columns(headings, &rows, &columns));
    tables
}

fn format_columns(headings: &[Heading<'_>], rows: &[Vec<String>], columns: &[usize]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let is_bold = color::is_enabled(&std::io::stdout());
    if is_bold {
        table.enforce_styling();
    }
    table.set_header(columns.iter().map(|&column| {
        let cell = Cell::new(escape::single_line(headings[column].text));
        if is_bold { cell.add_attribute(Attribute::Bold) } else { cell }
    }));
    for row in rows {
        table.add_row(columns.iter().map(|&column| row[column].as_str()));
    }
    for (index, &column) in columns.iter().enumerate() {
        if let Some(cells) = table.column_mut(index) {
            cells.set_padding((0, if index + 1 == columns.len() { 0 } else { GAP as u16 }));
            let is_number = headings[column].is_number;
            cells.set_cell_alignment(if is_number { CellAlignment::Right } else { CellAlignment::Left });
        }
    }
    table.trim_fmt()
}

fn is_zero_or_unknown(cell: &str) -> bool {
    let number = cell.trim_end_matches(|char: char| !char.is_ascii_digit());
    matches!(cell, "" | "?" | "-") || number.parse::<f64>().is_ok_and(|number| number == 0.0)
}

#[cfg(test)]
mod test {
    use super::*;

    const HEADINGS: [Heading<'_>; 4] = [
        Heading::text("ID"),
        Heading::text("NAME"),
        Heading::number("TEMP").optional(),
        Heading::number("USE"),
    ];

    fn row(cells: [&str; 4]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn a_wide_table_becomes_several_that_fit() {
        let rows = [row(["cpu", "a processor", "31 °C", "5 %"])];
        assert_eq!(
            tables(&HEADINGS, &rows, 80),
            ["ID   NAME          TEMP  USE\ncpu  a processor  31 °C  5 %"]
        );
        let narrow = tables(&HEADINGS, &rows, 18);
        assert_eq!(narrow.len(), 2, "{narrow:?}");
        for table in &narrow {
            assert!(
                table.starts_with("ID") && table.lines().all(|line| line.chars().count() <= 18),
                "{table}"
            );
        }
        assert_eq!(tables(&HEADINGS, &rows, 1).len(), 3, "every column is shown in any case");
    }

    #[test]
    fn optional_columns_without_information_are_left_out() {
        for unknown in ["?", "-", "0", "0.0 %", "0 °C", ""] {
            let rows = [row(["cpu", "", unknown, "0 %"])];
            assert_eq!(tables(&HEADINGS, &rows, 80), ["ID   NAME  USE\ncpu        0 %"], "{unknown}");
        }
        let rows = [row(["cpu", "", "?", "0 %"]), row(["gpu", "", "31 °C", "0 %"])];
        assert!(tables(&HEADINGS, &rows, 80)[0].contains("   ?"));
    }
}
