//! A report as text that fits 80 columns.

use std::fmt;

use super::{Calibrated, DeviceReport, LeftOut, Report, Speedup};

const WIDTH: usize = 80;
/// Maximum number of devices in the table. The others are added up.
const MAX_ROWS: usize = 20;
/// Maximum length of a device's id in the table, and in a sentence.
const MAX_ID: usize = 22;
const MAX_ID_IN_TEXT: usize = 50;
const ID_HEADER: &str = "device";
/// Minimum length to which long ids are shortened in the table.
const MIN_ID: usize = 8;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (listed, others) = self.devices.split_at(self.devices.len().min(MAX_ROWS));
        f.write_str(&table(listed, self.items))?;
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
    let became = match (device.state.as_str(), device.failures.is_empty()) {
        ("healthy", true) => return None,
        ("healthy", false) => "went on after a failure",
        ("retired", _) if device.items == 0 => "was not used",
        ("quarantined", _) => "was in quarantine at the end",
        _ => "was retired",
    };
    let id = shortened(&device.id, MAX_ID_IN_TEXT);
    let Some(error) = device.failures.last() else { return Some(format!("{id} {became}")) };
    let of_device = format!("{}: ", device.id);
    let error = error.strip_prefix(&of_device).unwrap_or(error);
    let rest = if error.chars().count() > LONGEST { "…" } else { "" };
    let error: String = error.chars().take(LONGEST).collect();
    Some(format!("{id} {became}: {error}{rest}"))
}

/// A count of events that most runs have none of: a column of the table or, if not all of them fit, words in a line of the
/// device.
struct EventCount {
    header: &'static str,
    count: fn(&DeviceReport) -> u64,
    /// The event and its plural, after the count.
    words: [&'static str; 2],
}

const EVENTS: [EventCount; 6] = [
    EventCount { header: "failed", count: |it| it.retries, words: ["failed chunk", "failed chunks"] },
    EventCount {
        header: "speculative",
        count: |it| it.speculative,
        words: ["speculative copy", "speculative copies"],
    },
    EventCount { header: "steals", count: |it| it.steals, words: ["steal", "steals"] },
    EventCount { header: "dropped", count: |it| it.dropped, words: ["dropped chunk", "dropped chunks"] },
    EventCount { header: "hangs", count: |it| it.hangs, words: ["hang", "hangs"] },
    EventCount { header: "quarantines", count: |it| it.quarantines, words: ["quarantine", "quarantines"] },
];

/// The events of a device in words: `cuda:0: 2 hangs, 1 quarantine`. `None` if it had none.
fn event_line(device: &DeviceReport) -> Option<String> {
    let events = EVENTS.iter().filter_map(|event| match (event.count)(device) {
        0 => None,
        1 => Some(format!("1 {}", event.words[0])),
        count => Some(format!("{} {}", grouped(count), event.words[1])),
    });
    let events: Vec<String> = events.collect();
    (!events.is_empty()).then(|| format!("{}: {}", shortened(&device.id, MAX_ID_IN_TEXT), events.join(", ")))
}

/// A column of the table: a header, and a cell per device.
struct ReportColumn {
    header: &'static str,
    cells: Vec<String>,
}

impl ReportColumn {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.chars().count());
        cells.max().unwrap_or(0).max(self.header.len())
    }
}

/// What each device did: one table that fits the width, and a line for each device whose events are not in the table.
/// Columns that are zero for all devices are left out. Ids get the width that the other columns leave. Empty without
/// devices.
fn table(devices: &[DeviceReport], all_items: u64) -> String {
    if devices.is_empty() {
        return String::new();
    }
    let column = |header, cell: &dyn Fn(&DeviceReport) -> String| {
        let cells: Vec<String> = devices.iter().map(cell).collect();
        cells.iter().any(|cell| cell != "0").then_some(ReportColumn { header, cells })
    };
    let width_of = |columns: &[ReportColumn]| columns.iter().map(|column| 2 + column.width()).sum::<usize>();
    let share = |items: u64| format!("{:.1}%", 100.0 * items as f64 / all_items.max(1) as f64);
    let items = ReportColumn { header: "items", cells: devices.iter().map(|it| grouped(it.items)).collect() };
    let others = [
        column("share", &|it| share(it.items)),
        column("chunks", &|it| grouped(it.chunks)),
        column("busy", &|it| time(it.busy_s)),
        column("copy", &|it| time(it.copy_s)),
        column("idle", &|it| time(it.idle_s)),
    ];
    let mut columns: Vec<ReportColumn> = [Some(items)].into_iter().chain(others).flatten().collect();
    let events = EVENTS.iter().filter_map(|event| column(event.header, &|it| grouped((event.count)(it))));
    let events: Vec<ReportColumn> = events.collect();
    let longest_id = devices.iter().map(|it| it.id.chars().count()).max().unwrap_or(0);
    let longest_id = longest_id.clamp(ID_HEADER.len(), MAX_ID);
    let events_fit = longest_id + width_of(&columns) + width_of(&events) <= WIDTH;
    if events_fit {
        columns.extend(events);
    }
    let max_id = WIDTH.saturating_sub(width_of(&columns)).clamp(MIN_ID, MAX_ID);
    let ids = ReportColumn {
        header: ID_HEADER,
        cells: devices.iter().map(|it| shortened(&it.id, max_id)).collect(),
    };
    let line = |id: &str, cell: &dyn Fn(&ReportColumn) -> String| {
        let mut line = format!("{id:0$}", ids.width());
        for column in &columns {
            line.push_str(&format!("  {:>1$}", cell(column), column.width()));
        }
        line + "\n"
    };
    let mut text = line(ids.header, &|column| column.header.into());
    for (row, id) in ids.cells.iter().enumerate() {
        text.push_str(&line(id, &|column| column.cells[row].clone()));
    }
    if !events_fit {
        for event_line in devices.iter().filter_map(event_line) {
            text.push_str(&wrapped(event_line.split(' ')));
            text.push('\n');
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

    /// Asserts that no line is longer than 80 columns, and that there is one table.
    fn assert_fits(text: &str) {
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("device ")).count(), 1, "{text}");
    }

    const LONG_ID: &str = "cuda:GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9/partition-of-40";

    #[test]
    fn a_report_of_everything_that_can_happen_is_one_table_within_80_columns() {
        let failing = DeviceReport {
            chunks: 1_234_567,
            busy_s: 12_345.0,
            copy_s: 12_345.0,
            idle_s: 12_345.0,
            retries: 1_234,
            speculative: 1,
            steals: 6,
            dropped: 7,
            quarantines: 1_000_000,
            hangs: 9,
            state: "retired".into(),
            failures: vec![format!("{LONG_ID}: the device was lost")],
            ..device(LONG_ID, 1_000_000_000)
        };
        let stopped =
            DeviceReport { hangs: 1, quarantines: 1, state: "quarantined".into(), ..device("cuda:1", 0) };
        let reason = "it would take longer than the others together, ".repeat(4);
        let left_out = vec![LeftOut { id: LONG_ID.into(), reason }];
        let devices = vec![failing, stopped, device("cpu", 1_000_000_000)];
        let text = Report { left_out, ..report(devices) }.to_string();
        assert_fits(&text);
        // Lines are broken between words.
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let id = shortened(LONG_ID, MAX_ID_IN_TEXT);
        for part in [
            &format!(
                "{id}: 1,234 failed chunks, 1 speculative copy, 6 steals, 7 dropped chunks, 9 hangs, \
                 1,000,000 quarantines cuda:1: 1 hang, 1 quarantine {id} was retired: the device was lost"
            ),
            "cuda:1 was in quarantine at the end",
            "1,000,000,000 50.0% 1,234,567 12,345 s 12,345 s 12,345 s",
        ] {
            assert!(words.contains(part), "{part}\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("cpu ")).count(), 1, "{text}");
    }

    #[test]
    fn events_are_columns_if_all_of_them_fit() {
        let failing = DeviceReport { retries: 3, hangs: 1, quarantines: 2, ..device("cuda:0", 50) };
        let text = report(vec![failing, device("cpu", 50)]).to_string();
        let expected = "\
device  items  share  chunks     busy    idle  failed  hangs  quarantines
cuda:0     50  50.0%      12  64.5 ms  320 µs       3      1            2
cpu        50  50.0%      12  64.5 ms  320 µs       0      0            0
100 of 100 items";
        assert!(text.starts_with(expected), "{text}");
        assert_fits(&text);
    }

    #[test]
    fn a_device_that_is_not_healthy_at_the_end_has_a_line_that_says_so() {
        let mut report = report(vec![device("cuda:0", 50)]);
        let mut with = |state: &str, items, failures: &[&str]| {
            report.devices[0].state = state.into();
            report.devices[0].items = items;
            report.devices[0].failures = failures.iter().map(|&error| error.into()).collect();
            report.to_string()
        };
        for (text, line) in [
            (with("healthy", 50, &["cuda:0: lost"]), "\ncuda:0 went on after a failure: lost\n"),
            (with("quarantined", 50, &[]), "\ncuda:0 was in quarantine at the end\n"),
            (with("quarantined", 0, &["lost"]), "\ncuda:0 was in quarantine at the end: lost\n"),
            (with("retired", 50, &["lost"]), "\ncuda:0 was retired: lost\n"),
            (with("retired", 0, &["lost"]), "\ncuda:0 was not used: lost\n"),
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!with("healthy", 50, &[]).contains("cuda:0 w"));
    }

    #[test]
    fn a_report_without_devices_has_no_table() {
        let none = Report { devices: Vec::new(), ..report(vec![device("cpu", 0)]) };
        assert!(none.to_string().starts_with("0 of 0 items in 64.8 ms"), "{none}");
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
