//! A scenario to simulate: devices, items and events, from a small TOML file.

mod check;
#[cfg(test)]
mod test;

use std::time::Duration;

use serde::Deserialize;

/// A run to simulate.
///
/// Every number has a range, which its field's documentation states; [`Scenario::check`] refuses numbers outside. Within the
/// ranges, no time that the simulator computes overflows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What the scenario shows, for people.
    #[serde(default)]
    pub about: String,
    /// The number of items: 1 to 1,000,000,000 of constant cost, or 1 to 100,000,000 of any other, since the simulator
    /// keeps those costs in memory.
    pub items: u64,
    /// The costs of the items.
    #[serde(default)]
    pub cost: Cost,
    /// Bytes per item that are copied to a device: 0 to 1,000,000,000.
    #[serde(default)]
    pub bytes_per_item: u64,
    /// Maximum items of a chunk: 1 or more. Without it, only the scheduler decides.
    #[serde(default)]
    pub max_items: Option<u64>,
    /// The seed of random numbers: the same seed gives the same run.
    #[serde(default)]
    pub seed: u64,
    /// The devices: 1 to 100,000, all with different names.
    #[serde(rename = "device")]
    pub devices: Vec<DeviceSpec>,
    /// Events during the run: at most 100,000.
    #[serde(default, rename = "event")]
    pub events: Vec<ScenarioEvent>,
}

/// The distribution of the items' costs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(try_from = "CostToml")]
pub enum Cost {
    /// Every item costs the same: `constant`.
    #[default]
    Constant,
    /// From zero to twice the mean, at random: `uniform`.
    Uniform,
    /// A few items cost very much more than the others, by a Pareto distribution: `heavy-tail`.
    HeavyTail {
        /// The exponent; a smaller one gives a heavier tail: 1.01 to 1000.
        exponent: f64,
    },
    /// From zero to twice the mean, the most expensive last (`ascending`): the worst order for a scheduler that hands out
    /// large chunks first.
    Ascending,
    /// From twice the mean to zero, the most expensive first: `descending`.
    Descending,
    /// Some consecutive items cost many times as much as the others: `clustered`.
    Clustered {
        /// The fraction of expensive items: 0 to 1.
        part: f64,
        /// The cost of an expensive item relative to another: 1 to 1e9.
        factor: f64,
        /// The position of the expensive items: 0 is the beginning, 1 the end.
        at: f64,
    },
}

/// A cost as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CostToml {
    kind: String,
    exponent: Option<f64>,
    part: Option<f64>,
    factor: Option<f64>,
    at: Option<f64>,
}

impl TryFrom<CostToml> for Cost {
    type Error = String;

    fn try_from(written: CostToml) -> Result<Self, String> {
        let CostToml { kind, exponent, part, factor, at } = written;
        match (kind.as_str(), exponent, part, factor, at) {
            ("constant", None, None, None, None) => Ok(Cost::Constant),
            ("uniform", None, None, None, None) => Ok(Cost::Uniform),
            ("heavy-tail", Some(exponent), None, None, None) => Ok(Cost::HeavyTail { exponent }),
            ("ascending", None, None, None, None) => Ok(Cost::Ascending),
            ("descending", None, None, None, None) => Ok(Cost::Descending),
            ("clustered", None, Some(part), Some(factor), Some(at)) => {
                Ok(Cost::Clustered { part, factor, at })
            }
            _ => Err(format!(
                "cost `{kind}`: the kinds are `heavy-tail` with an `exponent`, `clustered` with `part`, `factor` and \
                 `at`, and `constant`, `uniform`, `ascending` and `descending` without any of these"
            )),
        }
    }
}

/// The link to a device of another machine. Each device has its own.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Delay in seconds, each way: 0 to 1000.
    pub delay_s: f64,
    /// Bytes per second to the device: 1e3 to 1e15.
    pub bytes_per_s: f64,
}

/// A virtual device, or several of a kind.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Its name, 1 to 100 bytes without control characters. Several of a kind are called `id-0`, `id-1` and so on.
    pub id: String,
    /// The number of such devices: 1 to 100,000.
    #[serde(default = "one")]
    pub count: usize,
    /// Items of mean cost per second: 1e-6 to 1e15.
    pub rate: f64,
    /// If set, each device's rate is drawn from `rate` to this, evenly on a logarithmic scale: `rate` to 1e15.
    #[serde(default)]
    pub rate_up_to: Option<f64>,
    /// Its utilization when the run begins, which the dynamic strategy uses: 0 to 1.
    #[serde(default)]
    pub utilization: f64,
    /// Overhead of a chunk in seconds: 0 to 1e6.
    #[serde(default)]
    pub launch_s: f64,
    /// Bytes per second from the host: 1e3 to 1e15. Without it, copies take no time.
    #[serde(default)]
    pub copy_bytes_per_s: Option<f64>,
    /// The link to it, if it is a device of another machine.
    #[serde(default)]
    pub link: Option<LinkSpec>,
    /// Relative variation of a chunk's time: 0 to 0.99. 0.05 is five percent up or down.
    #[serde(default)]
    pub jitter: f64,
    /// Maximum items of a chunk that fit its memory: 1 or more.
    #[serde(default)]
    pub memory_items: Option<u64>,
    /// Maximum number of chunks in flight: 1 to 1000.
    #[serde(default = "two")]
    pub depth: usize,
    /// Whether it works item by item, as plain code does, so that other devices can take over items that it has not
    /// begun.
    #[serde(default)]
    pub divisible: bool,
}

fn one() -> usize {
    1
}

fn two() -> usize {
    2
}

/// An event that happens to a device.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "EventToml")]
pub struct ScenarioEvent {
    /// The time in seconds: 0 to 1e9.
    pub at_s: f64,
    /// The device's name.
    pub device: String,
    /// What happens to it.
    pub kind: EventKind,
}

/// An event as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventToml {
    at_s: f64,
    device: String,
    what: String,
    factor: Option<f64>,
    items: Option<u64>,
}

impl TryFrom<EventToml> for ScenarioEvent {
    type Error = String;

    fn try_from(written: EventToml) -> Result<Self, String> {
        let EventToml { at_s, device, what, factor, items } = written;
        let kind = match (what.as_str(), factor, items) {
            ("slow", Some(factor), None) => EventKind::Slow { factor },
            ("hang", None, None) => EventKind::Hang,
            ("die", None, None) => EventKind::Die,
            ("lose-memory", None, Some(items)) => EventKind::LoseMemory { items },
            ("return", None, None) => EventKind::Return,
            _ => {
                return Err(format!(
                    "event `{what}`: the kinds are `slow` with a `factor`, `lose-memory` with `items`, and `hang`, \
                     `die` and `return` with neither"
                ));
            }
        };
        Ok(ScenarioEvent { at_s, device, kind })
    }
}

/// What happens to a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EventKind {
    /// It becomes slower: a chunk takes this many times as long as at its own speed.
    Slow {
        /// 1 is its own speed; 1e-6 to 1e6.
        factor: f64,
    },
    /// It hangs: its chunks never end.
    Hang,
    /// It dies: its chunks fail.
    Die,
    /// It loses memory: only chunks of this many items fit.
    LoseMemory {
        /// Maximum items of a chunk: 1 or more.
        items: u64,
    },
    /// It works again, at its own speed.
    Return,
}

impl Scenario {
    /// Parses a scenario. The error says what is wrong, where, and what is allowed.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let scenario: Scenario = toml::from_str(text).map_err(|error| error.to_string())?;
        scenario.check()?;
        Ok(scenario)
    }

    /// The names of all devices.
    pub(super) fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.devices.iter().flat_map(|device| {
            (0..device.count).map(|index| match device.count {
                1 => device.id.clone(),
                _ => format!("{}-{index}", device.id),
            })
        })
    }
}

impl ScenarioEvent {
    pub(super) fn at(&self) -> Duration {
        Duration::from_secs_f64(self.at_s)
    }
}
