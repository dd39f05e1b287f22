//! A training to simulate: devices and events, from a small TOML file.

use serde::Deserialize;

use crate::share::SpeedModel;

/// A training to simulate. Every number has a range, which its field's documentation states.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingScenario {
    /// What the scenario shows, for people.
    #[serde(default)]
    pub about: String,
    /// The seed of random numbers: the same seed gives the same run.
    #[serde(default)]
    pub seed: u64,
    /// What is trained.
    pub training: TrainingSpec,
    /// The devices: 1 to 1,000, all with different names.
    #[serde(rename = "device")]
    pub devices: Vec<TrainingDevice>,
    /// Events during the run: at most 100,000.
    #[serde(default, rename = "event")]
    pub events: Vec<TrainingEvent>,
}

/// What is trained.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingSpec {
    /// Samples in an epoch: 1 to 10,000,000.
    pub samples: u64,
    /// Samples per step over all devices: 1 to 1,000,000.
    pub batch: u64,
    /// Epochs: 1 to 1,000.
    #[serde(default = "one")]
    pub epochs: u64,
    /// Seconds of the exchange that nothing hides: 0 to 1000.
    #[serde(default)]
    pub exchange_s: f64,
    /// Seconds of the exchange that overlaps with compute: 0 to 1000.
    #[serde(default)]
    pub overlapped_s: f64,
    /// Part of the compute time after which the overlapped exchange begins: 0 to 1.
    #[serde(default = "whole")]
    pub first_bucket: f64,
    /// Seconds until a dead device is noticed: 0 to 1000.
    #[serde(default)]
    pub timeout_s: f64,
}

/// A virtual device.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingDevice {
    /// Its name.
    pub id: String,
    /// Seconds per sample: 1e-12 to 1e6.
    pub per_sample_s: f64,
    /// Seconds per micro-batch: 0 to 1e6.
    #[serde(default)]
    pub per_launch_s: f64,
    /// Samples that fit its memory at once: 1 or more.
    #[serde(default)]
    pub micro_batch: Option<u64>,
    /// Largest number of samples per step: 1 or more.
    #[serde(default)]
    pub most: Option<u64>,
    /// Relative variation of a step's time: 0 to 0.99.
    #[serde(default)]
    pub jitter: f64,
}

/// An event that happens to a device.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "EventToml")]
pub struct TrainingEvent {
    /// The time in seconds: 0 to 1e9.
    pub at_s: f64,
    /// The device's name.
    pub device: String,
    /// What happens to it.
    pub kind: TrainingEventKind,
}

/// What happens to a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TrainingEventKind {
    /// A step takes this many times as long as at its own speed: 1e-3 to 1e3.
    Slow {
        /// 1 is its own speed.
        factor: f64,
    },
    /// It dies.
    Die,
    /// It is there again, at its own speed.
    Return,
}

/// An event as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventToml {
    at_s: f64,
    device: String,
    what: String,
    factor: Option<f64>,
}

impl TryFrom<EventToml> for TrainingEvent {
    type Error = String;

    fn try_from(EventToml { at_s, device, what, factor }: EventToml) -> Result<Self, String> {
        let kind = match (what.as_str(), factor) {
            ("slow", Some(factor)) => TrainingEventKind::Slow { factor },
            ("die", None) => TrainingEventKind::Die,
            ("return", None) => TrainingEventKind::Return,
            _ => {
                return Err(format!(
                    "event `{what}`: the kinds are `slow` with a `factor`, and `die` and `return` without"
                ));
            }
        };
        Ok(TrainingEvent { at_s, device, kind })
    }
}

fn one() -> u64 {
    1
}

fn whole() -> f64 {
    1.0
}

impl TrainingDevice {
    pub(super) fn model(&self) -> SpeedModel {
        SpeedModel {
            per_sample_s: self.per_sample_s,
            per_launch_s: self.per_launch_s,
            micro_batch: self.micro_batch.unwrap_or(u64::MAX),
            drift: 1.0,
        }
    }
}

/// Refuses a number that is out of its range.
fn check(what: &str, value: f64, least: f64, most: f64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("{what} is {value}; allowed is {least} to {most}"))
}

impl TrainingScenario {
    /// Returns whether a text has a table `[training]`, and so is a training scenario.
    pub fn is_training(text: &str) -> bool {
        text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("training"))
    }

    /// Parses a scenario. The error says what is wrong, where, and what is allowed.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let scenario: TrainingScenario = toml::from_str(text).map_err(|error| error.to_string())?;
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&self) -> Result<(), String> {
        let training = &self.training;
        check("`samples`", training.samples as f64, 1.0, 1e7)?;
        check("`batch`", training.batch as f64, 1.0, 1e6)?;
        check("`epochs`", training.epochs as f64, 1.0, 1e3)?;
        check("`exchange_s`", training.exchange_s, 0.0, 1e3)?;
        check("`overlapped_s`", training.overlapped_s, 0.0, 1e3)?;
        check("`first_bucket`", training.first_bucket, 0.0, 1.0)?;
        check("`timeout_s`", training.timeout_s, 0.0, 1e3)?;
        check("the number of devices", self.devices.len() as f64, 1.0, 1e3)?;
        check("the number of events", self.events.len() as f64, 0.0, 1e5)?;
        for (index, device) in self.devices.iter().enumerate() {
            let name = |field: &str| format!("device `{}`: `{field}`", device.id);
            check(&name("per_sample_s"), device.per_sample_s, 1e-12, 1e6)?;
            check(&name("per_launch_s"), device.per_launch_s, 0.0, 1e6)?;
            check(&name("jitter"), device.jitter, 0.0, 0.99)?;
            check(&name("micro_batch"), device.micro_batch.unwrap_or(1) as f64, 1.0, f64::MAX)?;
            check(&name("most"), device.most.unwrap_or(1) as f64, 1.0, f64::MAX)?;
            if self.devices[..index].iter().any(|other| other.id == device.id) {
                return Err(format!("two devices are called `{}`", device.id));
            }
        }
        for event in &self.events {
            check(&format!("event of `{}`: `at_s`", event.device), event.at_s, 0.0, 1e9)?;
            if let TrainingEventKind::Slow { factor } = event.kind {
                check(&format!("event of `{}`: `factor`", event.device), factor, 1e-3, 1e3)?;
            }
            if !self.devices.iter().any(|device| device.id == event.device) {
                return Err(format!("an event is about `{}`, which is no device", event.device));
            }
        }
        Ok(())
    }
}
