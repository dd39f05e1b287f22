//! What is simulated: devices, items and events, as a small TOML file says them.

use std::time::Duration;

use serde::Deserialize;

/// A run to simulate.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows, for people.
    #[serde(default)]
    pub about: String,
    /// How many items there are.
    pub items: u64,
    /// What they cost.
    #[serde(default)]
    pub cost: Cost,
    /// What has to be copied to a device for each.
    #[serde(default)]
    pub bytes_per_item: u64,
    /// What random numbers begin with: the same seed gives the same run.
    #[serde(default)]
    pub seed: u64,
    /// The devices.
    #[serde(rename = "device")]
    pub devices: Vec<Device>,
    /// What happens to them.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
}

/// What items cost, as a multiple of the mean.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Cost {
    /// All the same.
    #[default]
    Constant,
    /// Anything from nothing to twice the mean.
    Uniform,
    /// A few cost very much more than the others: a Pareto distribution with this exponent.
    HeavyTail {
        /// The smaller, the heavier; above 1.
        exponent: f64,
    },
    /// From nothing to twice the mean, the dearest last: the worst order for a scheduler that hands out large chunks
    /// first.
    Ascending,
    /// From twice the mean to nothing, the dearest first.
    Descending,
    /// Some items next to each other cost many times what the others cost.
    Clustered {
        /// Which part of all items is dear, from 0 to 1.
        part: f64,
        /// How many times as much a dear item costs.
        factor: f64,
        /// Where the dear items lie: 0 is the beginning, 1 the end.
        at: f64,
    },
}

/// One device, or several of a kind.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its name; of several, the name is followed by a number.
    pub id: String,
    /// How many of it there are.
    #[serde(default = "one")]
    pub count: usize,
    /// Items of mean cost a second.
    pub rate: f64,
    /// Where given, each device's rate is drawn from `rate` to this, evenly on a logarithmic scale.
    #[serde(default)]
    pub rate_up_to: Option<f64>,
    /// How busy it is said to be when the run begins, from 0 to 1: the dynamic strategy goes by it.
    #[serde(default)]
    pub utilization: f64,
    /// Seconds that each chunk costs beside its items.
    #[serde(default)]
    pub launch_s: f64,
    /// Bytes a second from the host; nothing given means that copies take no time.
    #[serde(default)]
    pub copy_bytes_per_s: Option<f64>,
    /// How much a chunk's time varies: 0.05 is five percent up or down.
    #[serde(default)]
    pub jitter: f64,
    /// The most items of a chunk that fit its memory.
    #[serde(default)]
    pub memory_items: Option<u64>,
    /// Chunks in hand at once.
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
    /// When, in seconds.
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
        /// 1 is its own speed.
        factor: f64,
    },
    /// It answers no more.
    Hang,
    /// It is gone, and says so.
    Die,
    /// From now on only chunks of so many items fit.
    LoseMemory {
        /// The most items of a chunk.
        items: u64,
    },
    /// It is back, at its own speed.
    Return,
}

impl Scenario {
    /// Reads a scenario. The error says what is wrong and where.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let scenario: Scenario = toml::from_str(text).map_err(|why| why.to_string())?;
        let wrong = |number: f64| !number.is_finite() || number < 0.0;
        for device in &scenario.devices {
            let rates = [device.rate, device.rate_up_to.unwrap_or(device.rate)];
            if rates.iter().any(|&rate| wrong(rate) || rate == 0.0) {
                return Err(format!("device {}: a rate must be more than nothing", device.id));
            }
            let copies = device.copy_bytes_per_s.unwrap_or(1.0);
            if wrong(device.launch_s)
                || wrong(device.jitter)
                || device.jitter >= 1.0
                || wrong(device.utilization)
                || device.utilization > 1.0
                || wrong(copies)
                || copies == 0.0
            {
                return Err(format!(
                    "device {}: times and bandwidths must be positive, jitter and utilization under 1",
                    device.id
                ));
            }
        }
        for event in &scenario.events {
            if wrong(event.at_s) || !scenario.names().any(|name| name == event.device) {
                return Err(format!("event at {} s: there is no device `{}`", event.at_s, event.device));
            }
            if let What::Slow { factor } = event.what
                && (wrong(factor) || factor == 0.0)
            {
                return Err(format!("event at {} s: a factor must be more than nothing", event.at_s));
            }
        }
        if let Cost::HeavyTail { exponent } = scenario.cost
            && (!exponent.is_finite() || exponent <= 1.0)
        {
            return Err("a heavy tail's exponent must be above 1".into());
        }
        if let Cost::Clustered { part, factor, at } = scenario.cost
            && !((0.0..=1.0).contains(&part) && (0.0..=1.0).contains(&at) && (1.0..=1e9).contains(&factor))
        {
            return Err("a cluster's `part` and `at` must be from 0 to 1, and its `factor` from 1 to 1e9".into());
        }
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
