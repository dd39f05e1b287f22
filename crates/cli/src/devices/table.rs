//! The text output of `evener devices`.

use evener_device::{Absent, DeviceKind, Rates};

use super::ListedDevice;
use crate::{
    escape,
    hosts::link::{HostLink, links_table},
    table::{Heading, table},
};

const GIB: f64 = (1u64 << 30) as f64;

/// A column: its heading, and its cell for a device.
type DeviceColumn = (Heading<'static>, fn(&ListedDevice) -> String);

const ID: DeviceColumn = (Heading::text("ID"), |entry| entry.device.id().to_string());

const DESCRIPTION: [DeviceColumn; 11] = [
    ID,
    (Heading::text("NAME"), |entry| entry.device.describe().name.clone()),
    (Heading::text("KIND"), |entry| entry.device.describe().kind.to_string()),
    (Heading::text("API"), |entry| entry.device.describe().api.to_string()),
    (Heading::number("FREE / MEMORY").optional(), memory),
    (Heading::number("UNITS").optional(), |entry| {
        known(entry.device.describe().compute_units, |units| units.to_string())
    }),
    (Heading::number("SCORE"), score),
    (Heading::number("USE"), |entry| {
        known(entry.telemetry.utilization, |busy| format!("{:.0} %", busy * 100.0))
    }),
    (Heading::number("TEMP").optional(), |entry| {
        known(entry.telemetry.temperature_celsius, |celsius| format!("{celsius:.0} °C"))
    }),
    (Heading::text("PCI").optional(), pci),
    (Heading::text("DRIVER").optional(), |entry| {
        Some(&entry.device.describe().driver)
            .filter(|text| !text.is_empty())
            .map_or("?".into(), String::clone)
    }),
];

const RATES: [DeviceColumn; 7] = [
    ID,
    (Heading::number("INT32 MUL G/s"), |entry| rate(entry, |rates| rates.int32_multiplies_per_s / 1e9)),
    (Heading::number("F32 FMA G/s"), |entry| rate(entry, |rates| rates.f32_multiply_adds_per_s / 1e9)),
    (Heading::number("MEMORY GB/s"), |entry| rate(entry, |rates| rates.memory_bytes_per_s / 1e9)),
    (Heading::number("UP GB/s"), |entry| rate(entry, |rates| rates.upload_bytes_per_s / 1e9)),
    (Heading::number("DOWN GB/s"), |entry| rate(entry, |rates| rates.download_bytes_per_s / 1e9)),
    (Heading::number("LAUNCH µs"), |entry| rate(entry, |rates| rates.launch_latency.as_secs_f64() * 1e6)),
];

/// Returns the tables, notes about single devices, and why back ends are absent.
pub(super) fn text(entries: &[ListedDevice], links: &[HostLink], absent: &[Absent]) -> String {
    let mut paragraphs = vec![table_of(&DESCRIPTION, entries)];
    if !links.is_empty() {
        paragraphs.push(links_table(links));
    }
    if entries.iter().any(|entry| entry.rates.is_some()) {
        paragraphs.push(table_of(&RATES, entries));
    }
    let notes = entries.iter().flat_map(notes).collect::<Vec<_>>();
    let absent = absent.iter().map(Absent::to_string);
    let absent = absent.map(|line| escape::single_line(&line).into_owned()).collect::<Vec<_>>();
    paragraphs
        .extend([notes, absent].into_iter().filter(|lines| !lines.is_empty()).map(|lines| lines.join("\n")));
    paragraphs.join("\n\n") + "\n"
}

fn table_of(columns: &[DeviceColumn], entries: &[ListedDevice]) -> String {
    let headings: Vec<Heading<'_>> = columns.iter().map(|column| column.0).collect();
    let row = |entry: &ListedDevice| columns.iter().map(|column| (column.1)(entry)).collect();
    table(&headings, &entries.iter().map(row).collect::<Vec<_>>())
}

fn known<T>(fact: Option<T>, show: impl Fn(T) -> String) -> String {
    fact.map_or_else(|| "?".into(), show)
}

fn memory(entry: &ListedDevice) -> String {
    let gib = |bytes: u64| format!("{:.1}", bytes as f64 / GIB);
    let total = known(entry.device.describe().memory_bytes, gib);
    let free = known(entry.telemetry.memory_free_bytes, gib);
    if free == "?" && total == "?" { "?".into() } else { format!("{free} / {total} GiB") }
}

fn score(entry: &ListedDevice) -> String {
    format!("{}{:.1}", if entry.score.estimate { "~" } else { "" }, entry.score.points)
}

/// Returns the PCI address. The CPU and software devices have none.
fn pci(entry: &ListedDevice) -> String {
    let device = entry.device.describe();
    let has_no_bus = matches!(device.kind, DeviceKind::Cpu | DeviceKind::Software);
    device.pci.clone().unwrap_or_else(|| if has_no_bus { "-" } else { "?" }.into())
}

fn rate(entry: &ListedDevice, value: impl Fn(&Rates) -> f64) -> String {
    known(entry.rates.as_ref(), |rates| {
        let value = value(rates);
        // Three significant digits.
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

/// Returns notes about a device that fit no column.
fn notes(entry: &ListedDevice) -> Vec<String> {
    let device = entry.device.describe();
    let mut notes = Vec::new();
    if let (Some(asked), Some(given)) = (device.rounded_from, device.compute_units) {
        notes.push(format!(
            "{}: has {given} compute units instead of {asked}: the hardware splits in steps",
            device.id
        ));
    }
    if device.kind == DeviceKind::Software {
        notes.push(format!("{}: runs on the CPU's cores, so it is used only if selected", device.id));
    }
    if let Some(error) = &entry.keep_error {
        notes.push(format!(
            "{}: the rates could not be kept: {}",
            entry.device.id(),
            escape::single_line(error)
        ));
    }
    if let Some(error) = &entry.measure_error {
        notes.push(format!(
            "{}: not measured: {}",
            device.id,
            escape::single_line(error.trim_start_matches(&format!("{}: ", device.id)))
        ));
    }
    notes
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use evener_device::{Device, ScoreTable, Telemetry};

    use super::*;

    fn entry() -> ListedDevice {
        let device = Device::cpu();
        ListedDevice {
            score: ScoreTable::default().score(device.describe()),
            telemetry: Telemetry::default(),
            rates: None,
            measure_error: None,
            keep_error: None,
            device,
        }
    }

    #[test]
    fn unknown_facts_are_a_question_mark_or_left_out() {
        let text = text(&[entry()], &[], &[]);
        let (headings, row) = (text.lines().next().unwrap(), text.lines().nth(1).unwrap());
        assert!(headings.ends_with("USE") || row.contains(" ?"), "{text}");
        assert!(!text.contains("INT32") && !headings.contains("TEMP") && !headings.contains("PCI"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
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
        let text = text(&[ListedDevice { rates: Some(rates), ..entry() }, entry()], &[], &[]);
        for number in ["1234", "56.8", "9.01", "55.0", "52.5", "4.56"] {
            assert!(text.contains(number), "{number}: {text}");
        }
    }

    #[test]
    fn a_failed_measurement_is_noted_without_saying_the_device_twice() {
        let text = text(&[ListedDevice { measure_error: Some("cpu: lost".into()), ..entry() }], &[], &[]);
        assert!(text.ends_with("\ncpu: not measured: lost\n"), "{text}");
    }

    #[test]
    fn a_terminal_acts_on_nothing_that_a_driver_says() {
        let nasty = "\u{1b}]0;owned\u{7}\u{202e}\n";
        let driver: DeviceColumn = (Heading::text("DRIVER"), |_| "\u{1b}]0;owned\u{7}\u{202e}\n".into());
        let table = table_of(&[ID, driver], &[entry()]);
        let absent = Absent { back_end: "cuda".into(), reason: nasty.into() };
        let text = text(&[ListedDevice { measure_error: Some(nasty.into()), ..entry() }], &[], &[absent]);
        for text in [table, text] {
            assert!(text.contains(r"\u{1b}]0;owned\u{7}\u{202e}\n"), "{text:?}");
            assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{text:?}");
        }
    }

    #[test]
    fn absent_back_ends_come_last() {
        let absent =
            Absent { back_end: "cuda".into(), reason: "no driver library found (libcuda.so.1)".into() };
        let text = text(&[entry()], &[], &[absent]);
        assert!(text.ends_with("\n\ncuda: no driver library found (libcuda.so.1)\n"), "{text}");
    }
}
