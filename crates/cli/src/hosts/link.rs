//! The measured way to a host, for people and for programs.

use evener_cluster::Link;
use evener_device::remote::RemoteHost;
use serde::Serialize;

use crate::table::{Heading, table};

/// A host that answers.
#[derive(Debug, Serialize)]
pub(crate) struct HostLink {
    host: String,
    /// The version of Evener there.
    version: String,
    devices: Vec<String>,
    round_trip_s: Option<f64>,
    upload_bytes_per_s: Option<f64>,
    download_bytes_per_s: Option<f64>,
    /// The error of measuring the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl HostLink {
    /// Measures the link to a host.
    pub(crate) fn measure(host: &RemoteHost) -> HostLink {
        let link = Link::measure(host);
        let measured = link.as_ref().ok();
        HostLink {
            host: host.name().to_owned(),
            version: host.version().to_owned(),
            devices: host.devices().iter().map(|device| device.id().to_string()).collect(),
            round_trip_s: measured.map(|link| link.round_trip.as_secs_f64()),
            upload_bytes_per_s: measured.map(|link| link.upload_bytes_per_s),
            download_bytes_per_s: measured.map(|link| link.download_bytes_per_s),
            error: link.err().map(|error| error.to_string()),
        }
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }
}

/// Returns a table of hosts.
pub(crate) fn links_table(links: &[HostLink]) -> String {
    let headings = [
        Heading::text("HOST"),
        Heading::text("EVENER"),
        Heading::number("DEVICES"),
        Heading::number("ROUND TRIP ms"),
        Heading::number("UP MB/s"),
        Heading::number("DOWN MB/s"),
    ];
    let known = |value: Option<f64>, scale: f64, decimals: usize| {
        value.map_or("?".into(), |value| format!("{:.decimals$}", value * scale))
    };
    let row = |link: &HostLink| {
        vec![
            link.host.clone(),
            link.version.clone(),
            link.devices.len().to_string(),
            known(link.round_trip_s, 1e3, 2),
            known(link.upload_bytes_per_s, 1e-6, 1),
            known(link.download_bytes_per_s, 1e-6, 1),
        ]
    };
    table(&headings, &links.iter().map(row).collect::<Vec<_>>())
}
