//! What is simulated: devices, items and events, as a small TOML file says them.

mod check;
#[cfg(test)]
mod test;

use std::time::Duration;

use serde::Deserialize;

/// A run to simulate.
///
/// Every number has a range, which its field's documentation states; [`Scenario::check`] refuses whatever is outside.
/// Inside, no time that the simulator computes overflows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows, for people.
    #[serde(default)]
    pub about: String,
    /// The number of items: 1 to 1,000,000,000 of constant cost, or 1 to 100,000,000 of any other, since the simulator
    /// keeps those costs in memory.
    pub items: u64,
    /// What they cost.
    #[serde(default)]
    pub cost: Cost,
    /// Bytes that have to be copied to a device for each item: 0 to 1,000,000,000.
    #[serde(default)]
    pub bytes_per_item: u64,
    /// What random numbers begin with: the same seed gives the same run.
    #[serde(default)]
    pub seed: u64,
    /// The devices: 1 to 100,000, each with a name of its own.
    #[serde(rename = "device")]
    pub devices: Vec<Device>,
    /// What happens to them: at most 100,000 events.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
}

/// What items cost, as a multiple of the mean.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(try_from = "WrittenCost")]
pub enum Cost {
    /// All the same: `constant`.
    #[default]
    Constant,
    /// Anything from nothing to twice the mean: `uniform`.
    Uniform,
    /// A few cost very much more than the others, in a Pareto distribution with this exponent: `heavy-tail`.
    HeavyTail {
        /// The smaller, the heavier: 1.01 to 1000.
        exponent: f64,
    },
    /// From nothing to twice the mean, the dearest last (`ascending`): the worst order for a scheduler that hands out
    /// large chunks first.
    Ascending,
    /// From twice the mean to nothing, the dearest first: `descending`.
    Descending,
    /// Some items next to each other cost many times what the others cost: `clustered`.
    Clustered {
        /// Which part of all items is dear: 0 to 1.
        part: f64,
        /// How many times as much a dear item costs: 1 to 1e9.
        factor: f64,
        /// Where the dear items lie: 0 is the beginning, 1 the end.
        at: f64,
    },
}

/// A cost as it stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCost {
    kind: String,
    exponent: Option<f64>,
    part: Option<f64>,
    factor: Option<f64>,
    at: Option<f64>,
}

impl TryFrom<WrittenCost> for Cost {
    type Error = String;

    fn try_from(written: WrittenCost) -> Result<Self, String> {
        let WrittenCost { kind, exponent, part, factor, at } = written;
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

/// One device, or several of a kind.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its name, 1 to 100 bytes without control characters. Several of a kind are called `id-0`, `id-1` and so on.
    pub id: String,
    /// How many of it there are: 1 to 100,000.
    #[serde(default = "one")]
    pub count: usize,
    /// Items of mean cost a second: 1e-6 to 1e15.
    pub rate: f64,
    /// Where given, each device's rate is drawn from `rate` to this, evenly on a logarithmic scale: `rate` to 1e15.
    #[serde(default)]
    pub rate_up_to: Option<f64>,
    /// How busy it is said to be when the run begins, from 0 to 1: the dynamic strategy goes by it.
    #[serde(default)]
    pub utilization: f64,
    /// Seconds that each chunk costs beside its items: 0 to 1e6.
    #[serde(default)]
    pub launch_s: f64,
    /// Bytes a second from the host, 1e3 to 1e15; nothing given means that copies take no time.
    #[serde(default)]
    pub copy_bytes_per_s: Option<f64>,
    /// How much a chunk's time varies, from 0 to 0.99: 0.05 is five percent up or down.
    #[serde(default)]
    pub jitter: f64,
    /// The most items of a chunk that fit its memory: 1 or more.
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

/// Something that happens to a device.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Event {
    /// When, in seconds: 0 to 1e9.
    pub at_s: f64,
    /// To which device, by its name.
    pub device: String,
    /// What.
    pub what: What,
}

/// An event as it stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    at_s: f64,
    device: String,
    what: String,
    factor: Option<f64>,
    items: Option<u64>,
}

impl TryFrom<Written> for Event {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written { at_s, device, what, factor, items } = written;
        let what = match (what.as_str(), factor, items) {
            ("slow", Some(factor), None) => What::Slow { factor },
            ("hang", None, None) => What::Hang,
            ("die", None, None) => What::Die,
            ("lose-memory", None, Some(items)) => What::LoseMemory { items },
            ("return", None, None) => What::Return,
            _ => {
                return Err(format!(
                    "event `{what}`: there are `slow` with a `factor`, `lose-memory` with `items`, and `hang`, `die` \
                     and `return` with neither"
                ));
            }
        };
        Ok(Event { at_s, device, what })
    }
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// From now on it takes so many times as long as at first.
    Slow {
        /// 1 is its own speed; 1e-6 to 1e6.
        factor: f64,
    },
    /// It answers no more.
    Hang,
    /// It is gone, and says so.
    Die,
    /// From now on only chunks of so many items fit.
    LoseMemory {
        /// The most items of a chunk: 1 or more.
        items: u64,
    },
    /// It is back, at its own speed.
    Return,
}

impl Scenario {
    /// Reads a scenario. The error says what is wrong and where, and what is allowed.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let scenario: Scenario = toml::from_str(text).map_err(|why| why.to_string())?;
        scenario.check()?;
        Ok(scenario)
    }

    /// The devices' names, one each.
    pub(super) fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.devices.iter().flat_map(|device| {
            (0..device.count).map(|index| match device.count {
                1 => device.id.clone(),
                _ => format!("{}-{index}", device.id),
            })
        })
    }
}

impl Event {
    pub(super) fn at(&self) -> Duration {
        Duration::from_secs_f64(self.at_s)
    }
}
