//! The JSON output of `evener devices`.

use evener_device::{Absent, Description, Rates, Telemetry};
use serde::Serialize;

use super::ListedDevice;
use crate::hosts::link::HostLink;

#[derive(Serialize)]
struct Devices<'a> {
    devices: Vec<DeviceObject<'a>>,
    /// The hosts that were named and answer.
    hosts: &'a [HostLink],
    /// Back ends and hosts that are not available, and why.
    absent: Vec<String>,
}

#[derive(Serialize)]
struct DeviceObject<'a> {
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

impl<'a> From<&'a ListedDevice> for DeviceObject<'a> {
    fn from(entry: &'a ListedDevice) -> Self {
        DeviceObject {
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

/// Returns the object that is printed.
pub(super) fn object<'a>(
    entries: &'a [ListedDevice],
    hosts: &'a [HostLink],
    absent: &[Absent],
) -> impl Serialize + use<'a> {
    Devices {
        hosts,
        devices: entries.iter().map(DeviceObject::from).collect(),
        absent: absent.iter().map(Absent::to_string).collect(),
    }
}
