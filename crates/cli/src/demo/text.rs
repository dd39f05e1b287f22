//! The demo for people.

use evener_device::{Device, Kind};
use evener_merkle::Digest;
use evener_schedule::Report;

use super::{
    Check, LEAF_BYTES, Rate, Story,
    cast::{Cast, Found},
    compare::{Comparison, REPEATS, Row, Timing},
};
use crate::{
    escape,
    output::{count, rate, shown, table, time},
};

/// Who is here, and who takes part.
pub(super) fn found(cast: &Cast) -> String {
    let line = |found: &Found| {
        let Found { id, name, kind, compute_units, is_used } = found;
        let units = compute_units.map_or(String::new(), |units| format!(", {units} compute units"));
        let use_of_it = match (is_used, kind) {
            (true, _) => "used",
            (false, Kind::Software) => "not used: the processor's own cores compute it",
            (false, _) => "not used",
        };
        format!("  {id:<10} {} ({kind}{units}): {use_of_it}", escape::name(name))
    };
    let mut lines = vec!["Found on this machine:".to_owned()];
    lines.extend(cast.found.iter().map(line));
    lines.extend(cast.absent.iter().map(|absent| format!("  {}", escape::name(absent))));
    if cast.was_split {
        lines.push(format!(
            "There is no GPU to share with, so the processor is split in two devices, {}.",
            cast.devices.iter().map(part).collect::<Vec<_>>().join(" and ")
        ));
    }
    lines.join("\n") + "\n\n"
}

fn part(device: &Device) -> String {
    match device.describe().compute_units {
        Some(1) => format!("{} (1 core)", device.id()),
        Some(cores) => format!("{} ({cores} cores)", device.id()),
        None => device.id().to_string(),
    }
}

/// How fast the devices are alone.
pub(super) fn rates(rates: &[Rate]) -> String {
    let row = |it: &Rate| {
        vec![it.id.to_string(), it.leaves_per_s.map_or("failed".into(), |each| rate(each).trim().into())]
    };
    let table = table(&[("DEVICE", false), ("LEAVES/s", true)], rates.iter().map(row).collect());
    format!("Measured, each device alone at this very task:\n{table}\n\n")
}

/// What is about to be done.
pub(super) fn task(leaves: u64) -> String {
    let gib = (leaves * LEAF_BYTES as u64) as f64 / (1u64 << 30) as f64;
    format!(
        "A Merkle tree over {} leaves of {LEAF_BYTES} bytes ({gib:.2} GiB), SHA-256, RFC 6962:\n",
        count(leaves)
    )
}

/// What came of it.
pub(super) fn built(root: &Digest, report: &Report, leaves: u64) -> String {
    format!("{report}\nan item is a block of {} leaves\nroot {root}\n\n", count(leaves / report.items.max(1)))
}

pub(super) fn checked(check: &Check) -> String {
    let threads = if check.threads == 1 { "1 thread".into() } else { format!("{} threads", check.threads) };
    format!(
        "Checked: a plain loop over the crate `sha2` on {threads}, without Evener, took {} and gives the same root.\n\n",
        time(check.wall_s)
    )
}

/// How the ways to share work out compare.
pub(super) fn compared(comparison: &Comparison) -> String {
    let Comparison { leaves, rows, neighbour_on } = comparison;
    let mut headings = vec![("", false), ("TIME", true), ("LEAVES/s", true), ("EFFICIENCY", true)];
    if neighbour_on.is_some() {
        headings.extend([("DISTURBED: TIME", true), ("LEAVES/s", true), ("EFFICIENCY", true)]);
    }
    let columns = |timing: &Timing| {
        let each = rate(timing.leaves_per_s);
        [time(timing.wall_s), each.trim().into(), format!("{:.3}", timing.efficiency)]
    };
    let row = |row: &Row| {
        let mut cells = vec![row.way.clone()];
        match (&row.timing, row.not_tried_s) {
            (Some(timing), _) => cells.extend(columns(timing)),
            (None, Some(seconds)) => cells.push(format!("not tried: {seconds:.0} s")),
            (None, None) => {}
        }
        cells.extend(row.with_neighbour.iter().flat_map(columns));
        cells
    };
    let disturbed = neighbour_on
        .as_ref()
        .map_or(String::new(), |id| format!("; disturbed: while another program keeps {id} busy"));
    format!(
        "The same over {} leaves in every way to share it out, the best of {REPEATS} each, turn by turn{disturbed}:\n{}\n",
        count(*leaves),
        table(&headings, rows.iter().map(row).collect())
    )
}

/// Where to look, and what just happened.
pub(super) fn end(story: &Story) -> String {
    let trace = story.trace.as_ref().map_or(String::new(), |trace| {
        format!("\nTrace: {} (open it at https://ui.perfetto.dev)\n\n", shown(trace))
    });
    trace + &what_happened(story)
}

/// Two sentences.
fn what_happened(story: &Story) -> String {
    let Story { report, leaves, total_s, .. } = story;
    let used = report.devices.iter().filter(|device| device.items > 0).count();
    let took = time(report.wall_s);
    let leaves = count(*leaves);
    let first = match (&story.comparison, used) {
        (Some(comparison), 2..) => format!(
            "{used} devices pulled {leaves} leaves from one queue, each as fast as it could, and had the root of their tree \
             after {took}{}: {:.1} % of what they could ideally do at the speeds that they showed.",
            against_alone(comparison, report, story.leaves),
            100.0 * report.efficiency.unwrap_or(0.0)
        ),
        _ => format!("One device hashed {leaves} leaves to the root of their tree in {took}."),
    };
    let second = match story.comparison.as_ref().and_then(disturbed) {
        Some((adaptive, equal, id)) => format!(
            "The root is right, as a plain loop shows; and where another program took its share of {id}, devices that pull what \
             they can took {} and an equal split {}.",
            time(adaptive),
            time(equal)
        ),
        None => {
            "The root is right: a plain loop that has nothing to do with Evener came to the same 32 bytes."
                .into()
        }
    };
    format!("What just happened: {first} {second}\n(All of it took {total_s:.1} s.)\n")
}

fn against_alone(comparison: &Comparison, report: &Report, leaves: u64) -> String {
    let Some((alone, timing)) = comparison.alone().and_then(|alone| Some((alone, alone.timing?))) else {
        return String::new();
    };
    let times = leaves as f64 / report.wall_s.max(1e-9) / timing.leaves_per_s.max(1e-9);
    let device = alone.way.trim_end_matches(" alone");
    format!(", {times:.2} times as fast as {device}, the fastest of them, alone")
}

/// How long adaptive and equal took while a device was disturbed.
fn disturbed(comparison: &Comparison) -> Option<(f64, f64, &str)> {
    let time = |way: &str| Some(comparison.row(way)?.with_neighbour.as_ref()?.wall_s);
    Some((time("adaptive")?, time("equal")?, comparison.neighbour_on.as_ref()?.as_str()))
}
