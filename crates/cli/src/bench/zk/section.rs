//! Measurements of one kind and size, as text and as JSON.

use std::time::Duration;

use anyhow::Result;
use evener_device::{Api, Device};
use serde::Serialize;

use crate::{
    output::{format_rate, format_time},
    table::{Heading, table},
};

/// This project's name as an implementation.
pub(super) const EVENER: &str = "evener";

/// The measurements of one kind and size.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    pub(super) name: &'static str,
    /// The size as an exponent of two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) log: Option<u32>,
    #[serde(skip)]
    pub(super) title: String,
    pub(super) rows: Vec<Row>,
    /// The times through other APIs over those through CUDA, for the same hardware.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ratios: Vec<ApiRatio>,
    /// What else is to be said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
}

/// The measurement of one implementation on one device.
#[derive(Debug, Default, Serialize)]
pub(super) struct Row {
    /// The implementation.
    pub(super) by: String,
    /// The device, or the number of threads.
    pub(super) on: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) median_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) per_s: Option<f64>,
    /// The time of the first one in this process, with everything that is done once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first_s: Option<f64>,
    /// The share of the ceiling, at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling_share: Option<f64>,
    /// The time of each operation by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) operations: Vec<Operation>,
    /// Why there is no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_measured: Option<String>,
    /// Whether the device failed, or gave a wrong result.
    #[serde(skip)]
    is_failure: bool,
    /// The name of the hardware and the API, if the row is compared with those of other APIs.
    #[serde(skip)]
    hardware: Option<(String, Api)>,
    /// The variant of the measurement, if there are several on a device.
    #[serde(skip)]
    variant: Option<&'static str>,
}

/// The time on a device over that on the same hardware through CUDA.
#[derive(Debug, Serialize)]
struct ApiRatio {
    on: String,
    over: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<&'static str>,
    times_as_long: f64,
}

/// The time of one operation of a proof.
#[derive(Debug, Serialize)]
pub(super) struct Operation {
    pub(super) name: &'static str,
    pub(super) median_s: f64,
}

impl Row {
    /// A measurement of this project's code.
    pub(super) fn of(device: &Device) -> Row {
        let it = device.describe();
        let hardware = Some((it.name.clone(), it.api));
        Row { by: EVENER.into(), on: device.id().to_string(), hardware, ..Row::default() }
    }

    /// One of several variants of a measurement on a device.
    pub(super) fn variant(self, variant: &'static str) -> Row {
        Row { by: format!("{}, {variant}", self.by), variant: Some(variant), ..self }
    }

    /// A measurement that is not compared with those of other APIs.
    pub(super) fn not_compared(self) -> Row {
        Row { hardware: None, ..self }
    }

    /// A measurement of this project's code on all devices together.
    pub(super) fn of_all() -> Row {
        Row { by: format!("{EVENER}, shared"), on: "all devices".into(), ..Row::default() }
    }

    /// A measurement of another implementation on all cores.
    pub(super) fn of_peer(name: &str) -> Row {
        let on = format!("{} threads", rayon::current_num_threads());
        Row { by: name.into(), on, ..Row::default() }
    }

    /// A device that failed, or gave a wrong result.
    pub(super) fn failed(device: &Device, error: &anyhow::Error) -> Row {
        Row { not_measured: Some(format!("{error:#}")), is_failure: true, ..Row::of(device) }
    }

    pub(super) fn median(self, time: Duration) -> Row {
        Row { median_s: Some(time.as_secs_f64()), ..self }
    }

    fn is_peer(&self) -> bool {
        !self.by.starts_with(EVENER)
    }

    /// How fast it is, in any unit that is greater for a faster one.
    fn speed(&self) -> Option<f64> {
        self.per_s.or(self.median_s.map(|time| 1.0 / time))
    }
}

impl Section {
    pub(super) fn new(name: &'static str, log: Option<u32>, title: String) -> Section {
        Section { name, log, title, rows: Vec::new(), ratios: Vec::new(), notes: Vec::new() }
    }

    /// Compares each measurement through another API with that of the same hardware through CUDA.
    pub(super) fn compare_apis(&mut self) {
        let measured = |row: &Row| Some((row.hardware.clone()?, row.speed()?));
        let through_cuda = |name: &str, variant| {
            let mut rows = self.rows.iter().filter(|row| row.variant == variant);
            rows.find_map(|row| match measured(row)? {
                ((its_name, Api::Cuda), speed) if its_name == name => Some((row, speed)),
                _ => None,
            })
        };
        let ratio = |row: &Row| {
            let ((name, api), speed) = measured(row)?;
            let (cuda, speed_of_cuda) = through_cuda(&name, row.variant).filter(|_| api != Api::Cuda)?;
            let (on, over) = (row.on.clone(), cuda.on.clone());
            Some(ApiRatio { on, over, variant: row.variant, times_as_long: speed_of_cuda / speed })
        };
        self.ratios = self.rows.iter().filter_map(ratio).collect();
    }

    /// Adds what was measured on a device.
    pub(super) fn add(&mut self, device: &Device, measured: Result<Vec<Row>>) {
        match measured {
            Ok(mut rows) => self.rows.append(&mut rows),
            Err(error) => self.rows.push(Row::failed(device, &error)),
        }
    }

    /// Returns a message for each device that failed.
    pub(super) fn failures(&self) -> Vec<String> {
        let failed = self.rows.iter().filter(|row| row.is_failure);
        failed
            .map(|row| {
                format!("{} on {}: {}", self.name, row.on, row.not_measured.as_deref().unwrap_or_default())
            })
            .collect()
    }

    /// The fastest implementation of others.
    fn best_peer(&self) -> Option<&Row> {
        let peers = self.rows.iter().filter(|row| row.is_peer() && row.speed().is_some());
        peers
            .max_by(|one, other| one.speed().partial_cmp(&other.speed()).unwrap_or(std::cmp::Ordering::Equal))
    }

    pub(super) fn text(&self) -> String {
        let headings = [
            Heading::text("BY"),
            Heading::text("ON"),
            Heading::number("MEDIAN").optional(),
            Heading::number("PER SECOND").optional(),
            Heading::number("FIRST").optional(),
            Heading::number("OF CEILING").optional(),
            Heading::number("SPEED-UP").optional(),
        ];
        let best = self.best_peer();
        let cells = |row: &Row| {
            let time = |seconds: Option<f64>| seconds.map_or(String::new(), format_time);
            let speed_up = match (best.and_then(Row::speed), row.speed()) {
                (Some(peer), Some(own)) if !row.is_peer() => format!("{:.2}", own / peer),
                _ => String::new(),
            };
            vec![
                row.by.clone(),
                row.on.clone(),
                time(row.median_s),
                row.per_s.map_or(String::new(), format_rate),
                time(row.first_s),
                row.ceiling_share.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share)),
                speed_up,
            ]
        };
        let table = table(&headings, &self.rows.iter().map(cells).collect::<Vec<_>>());
        let mut lines = vec![format!("\n{}:", self.title), table];
        for row in &self.rows {
            if let Some(reason) = &row.not_measured {
                lines.push(format!("{} on {}: not measured: {reason}", row.by, row.on));
            }
            if !row.operations.is_empty() {
                let time = |it: &Operation| format!("{} {}", it.name, format_time(it.median_s));
                let times: Vec<String> = row.operations.iter().map(time).collect();
                lines.push(format!("{}, each operation by itself: {}", row.on, times.join(", ")));
            }
        }
        if let (Some(best), true) = (best, self.rows.iter().any(|row| !row.is_peer())) {
            lines.push(format!("speed-up: over {} on {}", best.by, best.on));
        }
        for ApiRatio { on, over, variant, times_as_long } in &self.ratios {
            let variant = variant.map_or(String::new(), |variant| format!(" ({variant})"));
            lines.push(format!("{on} takes {times_as_long:.2} times as long as {over}{variant}"));
        }
        lines.extend(self.notes.iter().cloned());
        lines.join("\n") + "\n"
    }

    /// Returns a line for each measurement, for programs.
    pub(super) fn lines(&self) -> String {
        let size = self.log.map_or("-".into(), |log| log.to_string());
        let line = |row: &Row| {
            let value = row.median_s.or(row.per_s)?;
            let word = |text: &str| text.replace(' ', "_");
            Some(format!("{} {size} {} {} {value:e}\n", self.name, word(&row.by), word(&row.on)))
        };
        self.rows.iter().filter_map(line).collect()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn row(by: &str, seconds: Option<f64>) -> Row {
        Row { by: by.into(), on: "here".into(), median_s: seconds, ..Row::default() }
    }

    #[test]
    fn the_speed_up_is_over_the_fastest_other_implementation() {
        let mut section = Section::new("proof", Some(4), "Proofs".into());
        section.rows = vec![
            row(EVENER, Some(0.5)),
            row("slow", Some(4.0)),
            row("fast", Some(2.0)),
            Row { not_measured: Some("no result in 3 s".into()), ..row("none", None) },
        ];
        let text = section.text();
        assert!(text.contains("4.00\n"), "{text}");
        assert!(text.contains("none on here: not measured: no result in 3 s\n"), "{text}");
        assert!(text.ends_with("speed-up: over fast on here\n"), "{text}");
        assert_eq!(section.lines().lines().count(), 3);
        assert!(section.lines().starts_with("proof 4 evener here 5e-1\n"), "{}", section.lines());
    }

    #[test]
    fn each_measurement_is_compared_with_that_of_the_same_hardware_through_cuda() {
        let of = |on: &str, name: &str, api, variant, seconds| Row {
            on: on.into(),
            hardware: Some((name.into(), api)),
            variant: Some(variant),
            ..row(EVENER, seconds)
        };
        let mut section = Section::new("ntt", Some(4), "NTT".into());
        section.rows = vec![
            of("cuda:0", "card", Api::Cuda, "one", Some(1.0)),
            of("cuda:0", "card", Api::Cuda, "two", Some(2.0)),
            of("vulkan:0", "card", Api::Vulkan, "one", Some(1.5)),
            of("vulkan:0", "card", Api::Vulkan, "two", Some(3.5)),
            of("vulkan:1", "other card", Api::Vulkan, "one", Some(3.0)),
            of("vulkan:2", "card", Api::Vulkan, "one", None),
            of("vulkan:3", "card", Api::Vulkan, "one", Some(3.0)).not_compared(),
            row("peer", Some(8.0)),
        ];
        section.compare_apis();
        let text = section.text();
        let ratios: Vec<&str> = text.lines().filter(|line| line.contains("times as long")).collect();
        let expected = [
            "vulkan:0 takes 1.50 times as long as cuda:0 (one)",
            "vulkan:0 takes 1.75 times as long as cuda:0 (two)",
        ];
        assert_eq!(ratios, expected);
        // A greater rate is a shorter time.
        section.rows.truncate(4);
        for row in &mut section.rows {
            row.per_s = row.median_s.take().map(f64::recip);
        }
        section.compare_apis();
        assert!(section.text().contains(expected[1]), "{}", section.text());
    }

    #[test]
    fn a_rate_is_faster_if_it_is_greater() {
        let rate = |by: &str, per_s| Row { per_s: Some(per_s), ..row(by, None) };
        let mut section = Section::new("products", None, "Products".into());
        section.rows = vec![rate(EVENER, 30.0), rate("one", 10.0), rate("other", 5.0)];
        assert!(section.text().contains("3.00"), "{}", section.text());
        assert!(section.text().ends_with("over one on here\n"), "{}", section.text());
    }
}
