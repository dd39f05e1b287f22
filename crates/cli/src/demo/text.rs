//! The text output of the demo.

use evener_device::{Device, DeviceKind};
use evener_merkle::Digest;
use evener_schedule::Report;

use super::{
    Check, DemoReport, LEAF_BYTES, Rate,
    compare::{Comparison, Row, Timing},
    cpu_use::OtherPrograms,
    participants::{FoundDevice, Participants},
};
use crate::{
    escape,
    output::{display_path, format_bytes, format_count, format_rate, format_time},
    table::{Heading, table},
};

/// Returns the devices that are present, and which of them take part.
pub(super) fn found(participants: &Participants) -> String {
    let line = |found: &FoundDevice| {
        let FoundDevice { id, name, kind, compute_units, is_used } = found;
        let units = compute_units.map_or(String::new(), |units| format!(", {units} compute units"));
        let state = match (is_used, kind) {
            (true, _) => "used",
            (false, DeviceKind::Software) => "not used, runs on the CPU",
            (false, _) => "not used",
        };
        format!("  {id:<10} {} ({kind}{units}): {state}", escape::single_line(name))
    };
    let mut lines = vec!["Devices of this machine:".to_owned()];
    lines.extend(participants.found.iter().map(line));
    lines.extend(participants.absent.iter().map(|absent| format!("  {}", escape::single_line(absent))));
    if participants.cpu_was_split {
        lines.push(format!(
            "There is no GPU, so the CPU is split in two: {}.",
            participants.devices.iter().map(partition).collect::<Vec<_>>().join(" and ")
        ));
    }
    lines.join("\n") + "\n\n"
}

fn partition(device: &Device) -> String {
    match device.describe().compute_units {
        Some(1) => format!("{} (1 core)", device.id()),
        Some(cores) => format!("{} ({cores} cores)", device.id()),
        None => device.id().to_string(),
    }
}

/// Returns the rates of the devices alone, and a warning if other programs keep the CPU busy.
pub(super) fn rates(rates: &[Rate], busy: Option<OtherPrograms>) -> String {
    let row = |it: &Rate| vec![it.id.to_string(), it.leaves_per_s.map_or("failed".into(), format_rate)];
    let headings = [Heading::text("DEVICE"), Heading::number("LEAVES/s")];
    let table = table(&headings, &rates.iter().map(row).collect::<Vec<_>>());
    let warning = busy.map_or(String::new(), |OtherPrograms { used_cores, cores }| {
        format!(
            "This machine is busy: other programs use {used_cores:.1} of its {cores} cores.\n\
             Times are longer and vary more than on an idle machine.\n\n"
        )
    });
    format!("{warning}Rate of each device alone:\n{table}\n\n")
}

/// Returns the title of the build.
pub(super) fn task(leaves: u64) -> String {
    format!(
        "Merkle tree of {} leaves of {LEAF_BYTES} bytes ({}), SHA-256, RFC 6962:\n",
        format_count(leaves),
        format_bytes(leaves * LEAF_BYTES as u64)
    )
}

/// Returns the report of the build.
pub(super) fn built(root: &Digest, report: &Report, leaves_per_item: u64) -> String {
    format!("{report}\nan item is a block of {} leaves\nroot {root}\n\n", format_count(leaves_per_item))
}

/// Returns the result of the reference loop.
pub(super) fn checked(check: &Check) -> String {
    let threads = if check.threads == 1 { "1 thread".into() } else { format!("{} threads", check.threads) };
    format!(
        "Checked: a plain loop over the crate `sha2` on {threads}, without Evener, gives the\nsame root in {}.\n\n",
        format_time(check.wall_s)
    )
}

/// Returns the comparison, or the reason for leaving it out.
pub(super) fn compared(comparison: Option<&Comparison>, left_out: Option<&str>) -> String {
    let Some(Comparison { leaves, rounds, noise, rows, loaded_device }) = comparison else {
        return format!(
            "The comparison of strategies is left out, because\n{}.\nRun `evener demo` again on an idle machine.\n",
            left_out.unwrap_or("there is only one device")
        );
    };
    let headings = [
        Heading::text("STRATEGY"),
        Heading::number("TIME"),
        Heading::number("LEAVES/s"),
        Heading::number("EFFICIENCY"),
        Heading::number("UNDER LOAD").optional(),
        Heading::number("EFFICIENCY").optional(),
    ];
    let row = |row: &Row| {
        let mut cells = vec![row.configuration.clone()];
        match (&row.timing, row.not_run_predicted_s) {
            (Some(Timing { wall_s, leaves_per_s, efficiency }), _) => {
                cells.extend([format_time(*wall_s), format_rate(*leaves_per_s), format!("{efficiency:.3}")]);
            }
            (None, Some(seconds)) => {
                cells.extend([format!("not run: {seconds:.0} s"), String::new(), String::new()])
            }
            (None, None) => cells.extend([String::new(), String::new(), String::new()]),
        }
        if let Some(Timing { wall_s, efficiency, .. }) = &row.under_load {
            cells.extend([format_time(*wall_s), format!("{efficiency:.3}")]);
        }
        cells
    };
    let load = loaded_device
        .as_ref()
        .map_or(String::new(), |id| format!("Under load: while another program keeps {id} busy.\n"));
    format!(
        "The strategies on {} leaves, the best of {rounds} builds each (noise {:.1} %):\n{}\n{load}",
        format_count(*leaves),
        100.0 * noise,
        table(&headings, &rows.iter().map(row).collect::<Vec<_>>())
    )
}

/// Returns the path of the trace and the summary.
pub(super) fn end(demo: &DemoReport) -> String {
    let trace = demo.trace.as_ref().map_or(String::new(), |trace| {
        let path = display_path(trace);
        format!("\nTrace: {path}\n(`evener report {path}` explains it; https://ui.perfetto.dev shows it)\n")
    });
    format!("{trace}\n{}\n(The demo took {:.1} s.)\n", summary(demo), demo.total_s)
}

fn summary(demo: &DemoReport) -> String {
    let DemoReport { report, leaves, .. } = demo;
    let used = report.devices.iter().filter(|device| device.items > 0).count();
    let devices = if used == 1 { "1 device".into() } else { format!("{used} devices together") };
    let mut lines = vec![format!(
        "Summary: {devices} built the tree of {} leaves in {}, and the root is correct.",
        format_count(*leaves),
        format_time(report.wall_s)
    )];
    if let (Some(efficiency), 2..) = (report.efficiency, used) {
        lines.push(format!("Their efficiency was {efficiency:.3} (1 if no device ever waits)."));
    }
    if let Some(comparison) = &demo.comparison {
        lines.extend(against_alone(comparison));
        lines.extend(under_load(comparison));
    }
    lines.join("\n")
}

/// Returns the speedup of the adaptive strategy over the fastest device alone, from the same rounds.
fn against_alone(comparison: &Comparison) -> Option<String> {
    let (alone, adaptive) = (comparison.alone()?, comparison.row("adaptive")?);
    let speedup = alone.timing?.wall_s / adaptive.timing?.wall_s.max(1e-9);
    let device = alone.configuration.trim_end_matches(" alone");
    Some(format!("Together they are {speedup:.2} times as fast as {device}, the fastest of them, alone."))
}

/// Returns the times of the adaptive and the equal split under load, if they differ by more than the noise.
fn under_load(comparison: &Comparison) -> Option<String> {
    let time = |configuration: &str| Some(comparison.row(configuration)?.under_load.as_ref()?.wall_s);
    let (adaptive, equal, id) = (time("adaptive")?, time("equal")?, comparison.loaded_device.as_ref()?);
    (adaptive * (1.0 + comparison.noise) < equal).then(|| {
        let (adaptive, equal) = (format_time(adaptive), format_time(equal));
        format!("While another program kept {id} busy, adaptive took {adaptive} and an equal split {equal}.")
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_small_tree_is_not_zero_gib_large() {
        assert!(task(65_536).contains(" (2 MiB), "), "{}", task(65_536));
        assert!(task(31 << 20).contains(" (992 MiB), "), "{}", task(31 << 20));
    }
}
