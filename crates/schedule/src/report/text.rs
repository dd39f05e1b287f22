//! A report as text that fits 80 columns.

use std::fmt;

use super::{Calibrated, DeviceReport, LeftOut, Report, Speedup};

const WIDTH: usize = 80;
/// Maximum number of devices in the table. The others are added up.
const MAX_ROWS: usize = 20;
/// Maximum length of a device's id in the table, and in a sentence.
const MAX_ID: usize = 22;
const MAX_ID_IN_TEXT: usize = 50;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (listed, others) = self.devices.split_at(self.devices.len().min(MAX_ROWS));
        f.write_str(&tables(listed, self.items))?;
        if !others.is_empty() {
            let items: u64 = others.iter().map(|device| device.items).sum();
            let devices = count_of(others.len() as u64, "more device");
            writeln!(f, "and {devices}: {}", count_of(items, "item"))?;
        }
        for device in listed {
            if let Some(line) = failure_line(device) {
                writeln!(f, "{}", wrapped(line.split_whitespace()))?;
            }
        }
        for LeftOut { id, reason } in &self.left_out {
            let id = format!("not used: {}:", shortened(id, MAX_ID_IN_TEXT));
            writeln!(f, "{}", wrapped([id.as_str()].into_iter().chain(reason.split(' '))))?;
        }
        let mut parts = vec![format!(
            "{} of {} in {}",
            grouped(self.done),
            count_of(self.items, "item"),
            time(self.wall_s)
        )];
        let mut add = |separator: &str, part: String| {
            parts.last_mut().into_iter().for_each(|last| last.push_str(separator));
            parts.push(part);
        };
        if let Some(efficiency) = self.efficiency {
            // Rounded down, since it is a guarantee.
            let guaranteed = |bound: f64| format!(" (guaranteed ≥ {:.3})", (bound * 1e3).floor() / 1e3);
            add(":", format!("efficiency {efficiency:.3}{}", self.bound.map(guaranteed).unwrap_or_default()));
        }
        if let Some(predicted) = self.predicted_s {
            add(",", format!("predicted {}", time(predicted)));
        }
        f.write_str(&wrapped(parts.iter().map(String::as_str)))?;
        if let Some(Speedup { device, times, .. }) = self.speedup.as_ref().filter(|_| self.devices.len() > 1)
        {
            let device = shortened(device, MAX_ID_IN_TEXT);
            let compared = match *times {
                same if (same - 1.0).abs() < 0.005 => format!("as fast as {device} alone"),
                slower if slower < 1.0 => {
                    format!("{:.2} times slower than {device} alone would be", slower.recip())
                }
                faster => format!("{faster:.2} times as fast as {device} alone"),
            };
            write!(f, "\n{}", wrapped([compared.as_str(), "(at the rate it had in this run)"].into_iter()))?;
        }
        if let Some(Calibrated { ideal_s, efficiency }) = self.calibrated {
            let ideal = time(ideal_s);
            write!(
                f,
                "\nefficiency {efficiency:.3} at the rates that the devices have alone (ideal {ideal})"
            )?;
        }
        Ok(())
    }
}

/// What became of a device that failed, and its last error without the compiler's whole log.
fn failure_line(device: &DeviceReport) -> Option<String> {
    const LONGEST: usize = 300;
    let error = device.failures.last()?;
    let became = match device.state.as_str() {
        "retired" if device.items == 0 => "was not used",
        "retired" => "was retired",
        "quarantined" => "was in quarantine at the end",
        _ => "went on after a failure",
    };
    let of_device = format!("{}: ", device.id);
    let error = error.strip_prefix(&of_device).unwrap_or(error);
    let rest = if error.chars().count() > LONGEST { "…" } else { "" };
    let error: String = error.chars().take(LONGEST).collect();
    Some(format!("{} {became}: {error}{rest}", shortened(&device.id, MAX_ID_IN_TEXT)))
}

/// A column of the table: a header, and a cell per device.
struct Column {
    header: &'static str,
    cells: Vec<String>,
    /// The cell that carries no information: `0`, or `healthy`.
    blank: &'static str,
}

impl Column {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.chars().count());
        cells.max().unwrap_or(0).max(self.header.len())
    }

    fn is_blank(&self, row: usize) -> bool {
        self.cells[row] == self.blank
    }
}

/// What each device did, in as many tables as needed to fit the width. Columns without information are left out, and so
/// are rows without information of tables after the first.
fn tables(devices: &[DeviceReport], all_items: u64) -> String {
    let column = |header, blank, cell: &dyn Fn(&DeviceReport) -> String| {
        let cells = devices.iter().map(cell).collect();
        Column { header, cells, blank }
    };
    let share = |items: u64| format!("{:.1}%", 100.0 * items as f64 / all_items.max(1) as f64);
    let ids = column("device", "", &|it| shortened(&it.id, MAX_ID));
    let columns = [
        column("items", "", &|it| grouped(it.items)),
        column("share", "", &|it| share(it.items)),
        column("chunks", "0", &|it| grouped(it.chunks)),
        column("busy", "0", &|it| time(it.busy_s)),
        column("copy", "0", &|it| time(it.copy_s)),
        column("idle", "0", &|it| time(it.idle_s)),
        column("failed", "0", &|it| grouped(it.retries)),
        column("speculative", "0", &|it| grouped(it.speculative)),
        column("steals", "0", &|it| grouped(it.steals)),
        column("dropped", "0", &|it| grouped(it.dropped)),
        column("hangs", "0", &|it| grouped(it.hangs)),
        column("quarantines", "0", &|it| grouped(it.quarantines)),
        column("state", "healthy", &|it| it.state.clone()),
    ];
    let rows = 0..devices.len();
    let mut tables: Vec<Vec<&Column>> = Vec::new();
    let mut width = usize::MAX;
    for column in columns.iter().filter(|column| rows.clone().any(|row| !column.is_blank(row))) {
        width = width.saturating_add(2 + column.width());
        match tables.last_mut() {
            Some(table) if width <= WIDTH => table.push(column),
            _ => {
                width = ids.width() + 2 + column.width();
                tables.push(vec![column]);
            }
        }
    }
    let mut text = String::new();
    for (index, table) in tables.iter().enumerate() {
        let mut push_line = |id: &str, cell: &dyn Fn(&Column) -> String| {
            let mut line = format!("{id:0$}", ids.width());
            for column in table {
                line.push_str(&format!("  {:>1$}", cell(column), column.width()));
            }
            text.push_str(&line);
            text.push('\n');
        };
        push_line(ids.header, &|column| column.header.into());
        for row in rows.clone() {
            if index == 0 || table.iter().any(|column| !column.is_blank(row)) {
                push_line(&ids.cells[row], &|column| column.cells[row].clone());
            }
        }
    }
    text
}

/// Joins parts by spaces, with a new line and two spaces where the next part does not fit.
fn wrapped<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let (mut text, mut width) = (String::new(), 0);
    for part in parts {
        let length = part.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            text.push_str("\n  ");
            width = 2;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(part);
        width += length;
    }
    text
}

/// Leaves out the middle of an id that is too long: both its beginning and its end tell devices apart.
fn shortened(id: &str, max: usize) -> String {
    let characters: Vec<char> = id.chars().collect();
    if characters.len() <= max {
        return id.into();
    }
    let (begin, end) = ((max - 1) / 2, characters.len() - max / 2);
    characters[..begin].iter().chain(&['…']).chain(&characters[end..]).collect()
}

/// A number with commas: `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things: `1 item`, `1,234 items`.
pub(crate) fn count_of(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A time with three significant digits, in the unit that suits it.
fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        0.0 => return "0".into(),
        _ if seconds < 1e-3 => (seconds * 1e6, "µs"),
        _ if seconds < 1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    match value {
        _ if value >= 1e3 => format!("{} {unit}", grouped(value as u64)),
        _ if value >= 100.0 => format!("{value:.0} {unit}"),
        _ if value >= 10.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn device(id: &str, items: u64) -> DeviceReport {
        DeviceReport {
            id: id.into(),
            items,
            chunks: 12,
            busy_s: 0.0645,
            copy_s: 0.0,
            idle_s: 3.2e-4,
            startup_s: 0.0,
            quarantined_s: 0.0,
            rate: None,
            retries: 0,
            speculative: 0,
            steals: 0,
            dropped: 0,
            quarantines: 0,
            hangs: 0,
            state: "healthy".into(),
            failures: Vec::new(),
        }
    }

    fn report(devices: Vec<DeviceReport>) -> Report {
        let items = devices.iter().map(|device| device.items).sum();
        let speedup = Speedup { device: devices[0].id.clone(), alone_s: 0.1, times: 2.4 };
        Report {
            task: None,
            strategy: None,
            items,
            done: items,
            wall_s: 0.06482,
            ideal_s: 0.0643,
            efficiency: Some(0.992),
            bound: Some(0.95999),
            speedup: Some(speedup),
            calibrated: None,
            predicted_s: Some(0.0373),
            devices,
            left_out: Vec::new(),
        }
    }

    #[test]
    fn a_report_says_in_plain_words_what_each_device_did() {
        let expected = "\
device    items  share  chunks     busy    idle
cuda:0/c  1,000  80.0%      12  64.5 ms  320 µs
cpu         250  20.0%      12  64.5 ms  320 µs
1,250 of 1,250 items in 64.8 ms: efficiency 0.992 (guaranteed ≥ 0.959),
  predicted 37.3 ms
2.40 times as fast as cuda:0/c alone (at the rate it had in this run)";
        assert_eq!(report(vec![device("cuda:0/c", 1_000), device("cpu", 250)]).to_string(), expected);
    }

    #[test]
    fn a_run_that_one_device_would_have_done_sooner_alone_says_so() {
        let mut report = report(vec![device("vulkan:0", 1), device("cpu", 0)]);
        report.speedup = report.speedup.map(|speedup| Speedup { times: 0.21, ..speedup });
        let text = report.to_string();
        assert!(text.contains("\n1 of 1 item in 64.8 ms"), "{text}");
        let end = "\n4.76 times slower than vulkan:0 alone would be (at the rate it had in this run)";
        assert!(text.ends_with(end), "{text}");
        report.speedup = report.speedup.map(|speedup| Speedup { times: 0.998, ..speedup });
        let text = report.to_string();
        assert!(text.ends_with("\nas fast as vulkan:0 alone (at the rate it had in this run)"), "{text}");
    }

    #[test]
    fn a_report_with_every_column_and_long_names_fits_80_columns() {
        let id = "cuda:GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9/partition-of-40";
        let busy = DeviceReport {
            copy_s: 0.0123,
            retries: 1_234,
            speculative: 5,
            steals: 6,
            dropped: 7,
            quarantines: 8,
            hangs: 9,
            state: "quarantined".into(),
            ..device(id, 1_000_000_000)
        };
        let reason = "it would take longer than the others together, ".repeat(4);
        let left_out = vec![LeftOut { id: id.into(), reason }];
        let devices = vec![busy, device("cpu", 1_000_000_000)];
        let text = Report { left_out, ..report(devices) }.to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}\n{text}");
        }
        for word in ["speculative", "1,234", "hangs", "quarantined", "…", "of-40"] {
            assert!(text.contains(word), "{word}\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("cpu ")).count(), 1, "{text}");
    }

    #[test]
    fn devices_beyond_the_first_ones_are_added_up() {
        let devices = (0..25).map(|index| device(&format!("d{index}"), 400)).collect();
        assert!(report(devices).to_string().contains("\nand 5 more devices: 2,000 items\n"));
    }

    #[test]
    fn times_have_three_digits_and_numbers_commas() {
        let times = [1.234e-6, 99.96e-6, 0.5, 12.345, 12_345.0].map(time);
        assert_eq!(times, ["1.23 µs", "100.0 µs", "500 ms", "12.3 s", "12,345 s"]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
