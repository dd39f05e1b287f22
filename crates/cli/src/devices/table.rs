//! The devices for people.

use comfy_table::{CellAlignment, Table, presets};
use evener_device::{Absent, Kind, Rates};

use super::Entry;
use crate::{
    escape,
    output::{GAP, heading},
};

const GIB: f64 = (1u64 << 30) as f64;

/// A column: its heading, whether it holds numbers, and what it shows of a device.
struct Column {
    heading: &'static str,
    is_number: bool,
    show: fn(&Entry) -> String,
}

const fn words(heading: &'static str, show: fn(&Entry) -> String) -> Column {
    Column { heading, is_number: false, show }
}

const fn number(heading: &'static str, show: fn(&Entry) -> String) -> Column {
    Column { heading, is_number: true, show }
}

const ID: Column = words("ID", |entry| entry.device.id().to_string());

const FACTS: [Column; 10] = [
    words("NAME", |entry| entry.device.describe().name.clone()),
    words("KIND", |entry| entry.device.describe().kind.to_string()),
    words("API", |entry| entry.device.describe().api.to_string()),
    number("FREE / MEMORY", memory),
    number("UNITS", |entry| known(entry.device.describe().compute_units, |units| units.to_string())),
    number("SCORE", score),
    number("USE", |entry| known(entry.telemetry.utilization, |busy| format!("{:.0} %", busy * 100.0))),
    number("TEMP", |entry| known(entry.telemetry.temperature_celsius, |celsius| format!("{celsius:.0} °C"))),
    words("PCI", pci),
    words("DRIVER", |entry| {
        Some(&entry.device.describe().driver)
            .filter(|text| !text.is_empty())
            .map_or("?".into(), String::clone)
    }),
];

const RATES: [Column; 6] = [
    number("INT32 MUL G/s", |entry| rate(entry, |rates| rates.int32_multiplies_per_s / 1e9)),
    number("F32 FMA G/s", |entry| rate(entry, |rates| rates.f32_multiply_adds_per_s / 1e9)),
    number("MEMORY GB/s", |entry| rate(entry, |rates| rates.memory_bytes_per_s / 1e9)),
    number("UP GB/s", |entry| rate(entry, |rates| rates.upload_bytes_per_s / 1e9)),
    number("DOWN GB/s", |entry| rate(entry, |rates| rates.download_bytes_per_s / 1e9)),
    number("LAUNCH µs", |entry| rate(entry, |rates| rates.launch_latency.as_secs_f64() * 1e6)),
];

/// The tables, notes on single devices, and why other devices are absent.
pub(super) fn text(entries: &[Entry], absent: &[Absent]) -> String {
    // The terminal's width; `None` where the output is no terminal, and a line is a device however long.
    // Some terminals do not know their width and say 0.
    let width = Table::new().width().filter(|&width| width > 0);
    let mut paragraphs = tables(&FACTS, entries, width);
    if entries.iter().any(|entry| entry.rates.is_some()) {
        paragraphs.extend(tables(&RATES, entries, width));
    }
    let notes = entries.iter().flat_map(notes).collect::<Vec<_>>();
    let absent = absent.iter().map(Absent::to_string);
    let absent = absent.map(|line| escape::name(&line).into_owned()).collect::<Vec<_>>();
    paragraphs
        .extend([notes, absent].into_iter().filter(|lines| !lines.is_empty()).map(|lines| lines.join("\n")));
    paragraphs.join("\n\n") + "\n"
}

/// A table of these columns beside the ids; or several, where one would be wider than the terminal.
fn tables(columns: &[Column], entries: &[Entry], width: Option<u16>) -> Vec<String> {
    let refs: Vec<&Column> = std::iter::once(&ID).chain(columns).collect();
    let widths = table(&refs, entries).column_max_content_widths();
    let (Some((&id_width, widths)), Some(width)) = (widths.split_first(), width) else {
        return vec![table(&refs, entries).trim_fmt()];
    };
    let (mut tables, mut chosen, mut used) = (Vec::new(), vec![&ID], id_width);
    for (column, &needs) in columns.iter().zip(widths) {
        let with = used.saturating_add(GAP).saturating_add(needs);
        if with > width && chosen.len() > 1 {
            tables.push(table(&chosen, entries).trim_fmt());
            chosen.truncate(1);
            used = id_width;
        }
        chosen.push(column);
        used = used.saturating_add(GAP).saturating_add(needs);
    }
    tables.push(table(&chosen, entries).trim_fmt());
    tables
}

fn table(columns: &[&Column], entries: &[Entry]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| heading(column.heading)));
    for entry in entries {
        // Names and versions are whatever a driver says.
        table.add_row(columns.iter().map(|column| escape::name(&(column.show)(entry)).into_owned()));
    }
    let last = columns.len().saturating_sub(1);
    for (index, column) in columns.iter().enumerate() {
        if let Some(cells) = table.column_mut(index) {
            cells.set_padding((0, if index == last { 0 } else { GAP }));
            cells.set_cell_alignment(if column.is_number {
                CellAlignment::Right
            } else {
                CellAlignment::Left
            });
        }
    }
    table
}

fn known<T>(fact: Option<T>, show: impl Fn(T) -> String) -> String {
    fact.map_or_else(|| "?".into(), show)
}

fn memory(entry: &Entry) -> String {
    let gib = |bytes: u64| format!("{:.1}", bytes as f64 / GIB);
    let total = known(entry.device.describe().memory_bytes, gib);
    let free = known(entry.telemetry.memory_free_bytes, gib);
    if free == "?" && total == "?" { "?".into() } else { format!("{free} / {total} GiB") }
}

fn score(entry: &Entry) -> String {
    format!("{}{:.1}", if entry.score.estimate { "~" } else { "" }, entry.score.points)
}

/// Processors, and what they compute, are on no bus.
fn pci(entry: &Entry) -> String {
    let device = entry.device.describe();
    let is_on_no_bus = matches!(device.kind, Kind::Cpu | Kind::Software);
    device.pci.clone().unwrap_or_else(|| if is_on_no_bus { "-" } else { "?" }.into())
}

fn rate(entry: &Entry, value: impl Fn(&Rates) -> f64) -> String {
    known(entry.rates.as_ref(), |rates| {
        let value = value(rates);
        // Three digits that mean something.
        let decimals = if value < 10.0 {
            2
        } else if value < 100.0 {
            1
        } else {
            0
        };
        format!("{value:.decimals$}")
    })
}

/// What does not fit a column.
fn notes(entry: &Entry) -> Vec<String> {
    let device = entry.device.describe();
    let mut notes = Vec::new();
    if let (Some(asked), Some(given)) = (device.rounded_from, device.compute_units) {
        notes.push(format!("{}: {asked} asked for, {given} given: the hardware splits in steps", device.id));
    }
    if device.kind == Kind::Software {
        notes.push(format!("{}: computed by the processor's cores, so only used where asked for", device.id));
    }
    if let Some(error) = &entry.keep_error {
        notes.push(format!("{}: its rates are not kept: {}", entry.device.id(), escape::name(error)));
    }
    if let Some(error) = &entry.measure_error {
        notes.push(format!(
            "{}: not measured: {}",
            device.id,
            escape::name(error.trim_start_matches(&format!("{}: ", device.id)))
        ));
    }
    notes
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use evener_device::{Device, ScoreTable, Telemetry};

    use super::*;

    fn entry() -> Entry {
        let device = Device::cpu();
        Entry {
            score: ScoreTable::default().score(device.describe()),
            telemetry: Telemetry::default(),
            rates: None,
            measure_error: None,
            keep_error: None,
            device,
        }
    }

    #[test]
    fn a_wide_table_becomes_several_that_fit() {
        let one = tables(&FACTS, &[entry()], None);
        assert_eq!(one.len(), 1);
        let narrow = tables(&FACTS, &[entry()], Some(60));
        assert!(narrow.len() > 1);
        for table in &narrow {
            assert!(table.starts_with("ID"), "{table}");
            assert!(table.lines().all(|line| line.chars().count() <= 60), "{table}");
        }
        let words = |text: &str| text.split_whitespace().filter(|word| *word != "ID").count();
        let headings: usize = narrow.iter().map(|table| words(table.lines().next().unwrap())).sum();
        assert_eq!(headings, words(one[0].lines().next().unwrap()));
    }

    #[test]
    fn an_impossibly_narrow_terminal_still_shows_every_column() {
        assert_eq!(tables(&FACTS, &[entry()], Some(1)).len(), FACTS.len());
    }

    #[test]
    fn what_nothing_measures_is_a_question_mark() {
        let text = text(&[entry()], &[]);
        assert!(text.lines().nth(1).unwrap().contains("   ?"), "{text}");
        assert!(!text.contains("INT32"), "{text}");
    }

    #[test]
    fn rates_are_shown_where_they_are_known() {
        let rates = Rates {
            int32_multiplies_per_s: 1.234e12,
            f32_multiply_adds_per_s: 5.678e10,
            memory_bytes_per_s: 9.012e9,
            upload_bytes_per_s: 5.5e10,
            download_bytes_per_s: 5.25e10,
            launch_latency: Duration::from_nanos(4_560),
        };
        let text = text(&[Entry { rates: Some(rates), ..entry() }, entry()], &[]);
        for number in ["1234", "56.8", "9.01", "55.0", "52.5", "4.56"] {
            assert!(text.contains(number), "{number}: {text}");
        }
    }

    #[test]
    fn a_failed_measurement_is_noted_without_saying_the_device_twice() {
        let text = text(&[Entry { measure_error: Some("cpu: lost".into()), ..entry() }], &[]);
        assert!(text.ends_with("\ncpu: not measured: lost\n"), "{text}");
    }

    #[test]
    fn a_terminal_acts_on_nothing_that_a_driver_says() {
        let nasty = "\u{1b}]0;owned\u{7}\u{202e}\n";
        let driver = words("DRIVER", |_| "\u{1b}]0;owned\u{7}\u{202e}\n".into());
        let table = table(&[&ID, &driver], &[entry()]).trim_fmt();
        let absent = Absent { back_end: "cuda".into(), reason: nasty.into() };
        let text = text(&[Entry { measure_error: Some(nasty.into()), ..entry() }], &[absent]);
        for text in [table, text] {
            assert!(text.contains(r"\u{1b}]0;owned\u{7}\u{202e}\n"), "{text:?}");
            assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{text:?}");
        }
    }

    #[test]
    fn absent_back_ends_come_last() {
        let absent =
            Absent { back_end: "cuda".into(), reason: "no driver library found (libcuda.so.1)".into() };
        let text = text(&[entry()], &[absent]);
        assert!(text.ends_with("\n\ncuda: no driver library found (libcuda.so.1)\n"), "{text}");
    }
}
