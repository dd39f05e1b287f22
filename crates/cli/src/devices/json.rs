//! The devices for programs.

use evener_device::{Description, Rates, Telemetry};
use serde::Serialize;

use super::Entry;

#[derive(Serialize)]
struct Object<'a> {
    #[serde(flatten)]
    description: &'a Description,
    #[serde(flatten)]
    telemetry: &'a Telemetry,
    score: f64,
    score_is_estimate: bool,
    rates: Option<Rates>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measure_error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_error: Option<&'a str>,
}

impl<'a> Object<'a> {
    fn of(entry: &'a Entry) -> Self {
        Object {
            description: entry.device.describe(),
            telemetry: &entry.telemetry,
            score: entry.score.points,
            score_is_estimate: entry.score.estimate,
            rates: entry.rates,
            measure_error: entry.measure_error.as_deref(),
            keep_error: entry.keep_error.as_deref(),
        }
    }
}

/// An array with an object for each device.
pub(super) fn objects(entries: &[Entry]) -> impl Serialize {
    entries.iter().map(Object::of).collect::<Vec<_>>()
}
