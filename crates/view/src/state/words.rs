//! Decisions in words.

use std::time::Duration;

use evener_schedule::{
    LeftOut,
    decide::{LaneState, Time},
    events::{RunEnd, RunKind, RunStatus},
};

/// Maximum length of a text from a program, in characters: a compiler's log may be long.
const MAX_TEXT: usize = 400;

/// A text, cut if it is long.
pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A run that begins.
pub(super) fn began(status: &RunStatus) -> String {
    const MAX_NAMED: usize = 8;
    let named = status.devices.iter().take(MAX_NAMED).map(|device| device.id.as_str());
    let mut devices = named.collect::<Vec<_>>().join(", ");
    if status.devices.len() > MAX_NAMED {
        devices += &format!(" and {} more", status.devices.len() - MAX_NAMED);
    }
    let what = match (status.kind, status.items) {
        (RunKind::Queue, _) => format!("queue of {}", status.task),
        (_, Some(items)) => format!("{} over {items} items", status.task),
        (_, None) => format!("{} over a stream", status.task),
    };
    format!("{what}, on {devices}")
}

pub(super) fn left_out(LeftOut { id, reason }: &LeftOut) -> String {
    format!("{id} left out: {reason}")
}

pub(super) fn joined(device: &str) -> String {
    format!("{device} joins: the other devices have failed or do not respond")
}

/// An error of a device. Errors of devices begin with the device's id themselves; those of tasks do not.
pub(super) fn failed(device: &str, reason: &str) -> String {
    match reason.strip_prefix(device) {
        Some(rest) if rest.starts_with(':') => reason.to_owned(),
        _ => format!("{device}: {reason}"),
    }
}

/// A lane's new state.
pub(super) fn state(device: &str, state: LaneState, now: Time) -> String {
    match state {
        LaneState::Healthy => format!("{device} is back"),
        LaneState::Quarantined { until } => {
            format!("{device} quarantined for {}", time(until.saturating_sub(now)))
        }
        LaneState::Retired => format!("{device} retired: it gets no more work in this run"),
    }
}

pub(super) fn speculative(device: &str, first: u64, items: u64) -> String {
    let end = first.saturating_add(items);
    format!("{device} runs a speculative copy of items {first}..{end}, which another lane has in flight")
}

pub(super) fn ended(task: &str, end: &RunEnd, took: Time) -> String {
    let took = time(took);
    let report = end.report.as_ref();
    match (&end.error, report.and_then(|report| report.efficiency), report.and_then(|report| report.bound)) {
        (Some(error), ..) => format!("{task} ended after {took}: {error}"),
        (None, Some(efficiency), Some(bound)) => {
            format!("{task} done in {took}, efficiency {efficiency:.2} (guaranteed ≥ {bound:.2})")
        }
        (None, Some(efficiency), None) => format!("{task} done in {took}, efficiency {efficiency:.2}"),
        (None, None, _) => format!("{task} ended after {took}"),
    }
}

/// A time in the unit that suits it.
fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}
