//! Chooses which devices are worth using at all for a task and a number of items.
//!
//! A device alone takes its startup + items × its time an item, transfers included. Both are learned from the runs of
//! each task on each device and kept on disk. Together, devices take the time after which as many items are done as
//! there are, and a device that would not finish a single item by then is left out: see `joint`. Whole runs are timed
//! too, by the set of devices that took part, and one rule decides which set is used and which is tried: see `sets`.
//!
//! A model that never tries what it does not expect to help cannot find out that it was wrong. So a device that was
//! never seen is taken to be ready at once and as fast as its score says, one whose runs were too small to tell its
//! speed is given the benefit of the doubt, and trials of other sets may cost 2 % of the time.

mod fit;
#[cfg(test)]
mod fuzz;
mod joint;
#[cfg(test)]
mod live;
mod sets;
mod store;
#[cfg(test)]
mod test;

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use fit::{Fit, Sample};
use joint::Line;
pub(crate) use sets::size_class;
use sets::{Decided, Lines, SizeClass};

/// A device that could take part in a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// What tells it from every other device, from run to run.
    pub device: String,
    /// Its strength until it has been measured, compared with the other candidates'. What is not a positive number
    /// counts as 1.
    pub score: f64,
    /// Whether it has to be made ready first: kernels compiled, memory taken.
    pub cold: bool,
}

impl Candidate {
    fn strength(&self) -> f64 {
        if self.score.is_normal() && self.score > 0.0 { self.score } else { 1.0 }
    }
}

/// What one device did in a run that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The device, as in [`Candidate::device`].
    pub device: String,
    /// Items it did.
    pub items: u64,
    /// The time it took for them, transfers included; or that it worked in vain, where the run ended before its first
    /// item was done.
    pub busy: Duration,
    /// The time from the start of the run until it was ready for its first item.
    pub startup: Duration,
    /// Whether it had to be made ready first.
    pub cold: bool,
}

/// Runs of as many items with the same devices. The time that devices needed to get ready is taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurements {
    /// The devices, as in [`Candidate::device`].
    pub devices: Vec<String>,
    /// Those of them that did something in some run. The others were there in vain.
    pub worked: Vec<String>,
    /// How long a run took.
    pub wall: Duration,
    /// How many there were.
    pub runs: u32,
}

/// How long something was expected to take, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// Nothing where nothing was known.
    pub predicted: Option<Duration>,
    /// As measured.
    pub actual: Duration,
}

impl Prediction {
    /// By what part of the prediction it took longer: 0.5 for 3 seconds instead of 2, negative where it was faster.
    /// Nothing where nothing was predicted, or no time at all.
    pub fn error(&self) -> Option<f64> {
        let predicted = self.predicted.filter(|predicted| !predicted.is_zero())?.as_secs_f64();
        Some(self.actual.as_secs_f64() / predicted - 1.0)
    }
}

/// Which devices to use.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Those that take part, in the order in which they were given.
    pub used: Vec<Used>,
    /// Those that do not, with the reason for the report.
    pub left_out: Vec<(String, Reason)>,
    /// How long the run should take, at best where a device was seen with too few items to tell its speed. Nothing
    /// where no device has been measured with this task.
    pub predicted: Option<Duration>,
    /// Whether it is also to find something out, and something else may be faster: it should not be kept for long.
    pub explores: bool,
}

/// A device that takes part.
#[derive(Clone, Debug, PartialEq)]
pub struct Used {
    /// As in [`Candidate::device`].
    pub device: String,
    /// The part of the items that it should come to do. The shares of a choice sum to 1.
    pub share: f64,
    /// Why it takes part.
    pub basis: Basis,
}

/// Why a device takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Basis {
    /// It makes the run faster, by what it has shown.
    Measured,
    /// It was never seen with this task; its score is all there is to go by.
    Guessed,
    /// It is one of a set that is tried, to find out how fast it is: others may be faster.
    Tried,
}

/// Why a device is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The others are done before it has even started.
    StartsTooLate {
        /// When it would be ready.
        ready: Duration,
        /// When the others are done.
        others: Duration,
    },
    /// It would start in time, but the others are done before its first item is.
    TooSlow {
        /// When its first item would be done.
        first_item: Duration,
        /// When the others are done.
        others: Duration,
    },
    /// There are fewer items than devices, and the others are as fast; or runs without it were faster.
    NotWorthIt,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::StartsTooLate { ready, others } => {
                write!(f, "ready after {ready:.1?}, and the others are done in {others:.1?}")
            }
            Reason::TooSlow { first_item, others } => {
                write!(f, "first item done after {first_item:.1?}, and the others are done in {others:.1?}")
            }
            Reason::NotWorthIt => f.write_str("the run is no slower without it"),
        }
    }
}

/// What is known of every task on every device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    tasks: BTreeMap<String, History>,
    /// How often it was used.
    uses: u64,
}

/// What is known of so many tasks is kept, here and on disk.
const MOST_TASKS: usize = 256;

/// So many size classes of a task are remembered.
const MOST_SIZES: usize = 64;

/// What is known of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct History {
    devices: BTreeMap<String, Record>,
    /// What is known of whole runs, by their size class.
    sizes: BTreeMap<u32, SizeClass>,
    /// When it was last saved, in seconds since 1970.
    saved_s: u64,
    /// Whether it has changed since.
    #[serde(skip)]
    changed: bool,
    /// How often the model had been used when it was last.
    #[serde(skip)]
    used: u64,
}

/// What is known of one task on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    samples: Vec<Sample>,
    last: Option<Prediction>,
}

impl Model {
    /// What is known of a task. Where it is new and there are too many, the one that was not used for longest is forgotten.
    fn history(&mut self, task: &str) -> &mut History {
        if self.tasks.len() >= MOST_TASKS && !self.tasks.contains_key(task) {
            let oldest = self.tasks.iter().min_by_key(|(_, history)| history.used);
            let oldest = oldest.map(|(task, _)| task.clone()).unwrap_or_default();
            self.tasks.remove(&oldest);
        }
        self.uses += 1;
        let history = self.tasks.entry(task.to_owned()).or_default();
        history.used = self.uses;
        history
    }

    /// Which of the candidates to use for a run that is about to begin. A run without items uses nobody.
    pub fn choose(&mut self, task: &str, items: u64, candidates: &[Candidate]) -> Choice {
        let history = self.history(task);
        let (lines, measured) = history.lines(items, candidates);
        let mut unknown = SizeClass::new(items);
        let class = history.sizes.get_mut(&size_class(items)).unwrap_or(&mut unknown);
        let Decided { joint, explores, is_trial } = if items > 0 {
            class.decide(items, candidates, &lines)
        } else {
            Decided { joint: joint::fastest(&lines.now, 0), explores: false, is_trial: false }
        };
        let predicted = (measured.contains(&true) || items == 0).then(|| duration(joint.seconds));
        let mut choice = Choice { used: Vec::new(), left_out: Vec::new(), predicted, explores };
        let total: f64 = joint.items.iter().sum();
        for (index, candidate) in candidates.iter().enumerate() {
            let (device, share) = (candidate.device.clone(), joint.items[index] / total);
            if joint.items[index] > 0.0 {
                let basis = match measured[index] {
                    false => Basis::Guessed,
                    true if is_trial => Basis::Tried,
                    true => Basis::Measured,
                };
                choice.used.push(Used { device, share, basis });
            } else {
                choice.left_out.push((device, reason(lines.now[index], joint.seconds)));
            }
        }
        choice
    }

    /// Learns from what a device did, and says how well that was foreseen. A device that did no item still tells
    /// how long it was not ready.
    pub fn observe(&mut self, task: &str, observation: &Observation) -> Prediction {
        let Observation { device, items, busy, startup, cold } = observation;
        let history = self.history(task);
        history.changed = true;
        let record = history.devices.entry(device.clone()).or_default();
        let fit = Fit::of(&record.samples, *cold).filter(|_| *items > 0);
        let predicted = fit.map(|fit| duration(fit.likely().seconds(*items)));
        let prediction = Prediction { predicted, actual: startup.saturating_add(*busy) };
        record.last = Some(prediction);
        let sample = Sample { items: *items, busy: *busy, startup: *startup, cold: *cold };
        fit::remember(&mut record.samples, sample);
        prediction
    }

    /// Learns from how long whole runs of so many items took.
    pub fn ended(&mut self, task: &str, items: u64, measurements: Measurements) {
        if items > 0 && !measurements.devices.is_empty() {
            self.history(task).report(items, measurements);
        }
    }

    /// How the last run of a task on a device was foreseen, and how it went.
    pub fn last(&self, task: &str, device: &str) -> Option<Prediction> {
        self.tasks.get(task)?.devices.get(device)?.last
    }
}

impl History {
    /// Learns from how long whole runs of so many items took.
    fn report(&mut self, items: u64, measurements: Measurements) {
        self.changed = true;
        let size = size_class(items);
        let known = self.sizes.get(&size).map_or(items, |class| class.items);
        let mut seconds = measurements.wall.as_secs_f64();
        if known != items {
            // As much shorter or longer as these devices would be with as many items as times are kept for.
            let candidate = |device: &String| Candidate { device: device.clone(), score: 1.0, cold: false };
            let candidates: Vec<Candidate> = measurements.devices.iter().map(candidate).collect();
            let predicted = |items| joint::fastest(&self.lines(items, &candidates).0.sober, items).seconds;
            seconds *= predicted(known) / predicted(items).max(f64::MIN_POSITIVE);
        }
        if !self.sizes.contains_key(&size) && self.sizes.len() >= MOST_SIZES {
            self.sizes.pop_first();
        }
        self.sizes.entry(size).or_insert_with(|| SizeClass::new(items)).report(measurements, seconds);
    }

    /// A line for each candidate, and whether runs say so.
    fn lines(&self, items: u64, candidates: &[Candidate]) -> (Lines, Vec<bool>) {
        let samples = |candidate: &Candidate| {
            self.devices.get(&candidate.device).map_or(&[][..], |record| &record.samples)
        };
        let fit = |candidate: &Candidate| Fit::of(samples(candidate), candidate.cold);
        let fits: Vec<Option<Fit>> = candidates.iter().map(fit).collect();
        // Seconds an item of a device with score 1, by the device that makes the others look fastest.
        let unit = |per_item: fn(&Fit) -> Option<f64>| {
            let known = |(candidate, fit): (&Candidate, &Option<Fit>)| {
                fit.as_ref().and_then(per_item).map(|seconds| seconds * candidate.strength())
            };
            candidates.iter().zip(&fits).filter_map(known).reduce(f64::min)
        };
        let trusted = unit(Fit::trusted_per_item);
        // Where nobody is known, only how the scores compare matters.
        let any = trusted.or_else(|| unit(Fit::per_item)).unwrap_or(1e-6);
        let line = |(candidate, fit): (&Candidate, &Option<Fit>)| match fit {
            Some(fit) => fit.near(),
            None => {
                let startup = fit::without_an_item(samples(candidate), candidate.cold);
                Line::new(startup, any / candidate.strength())
            }
        };
        let sober: Vec<Line> = candidates.iter().zip(&fits).map(line).collect();
        let mut now = sober.clone();
        // A device that would do far more than it ever did gets the benefit of the doubt.
        let joint = joint::fastest(&sober, items);
        for (index, fit) in fits.iter().enumerate() {
            if let Some(fit) = fit.filter(|fit| fit.is_beyond(joint.items[index])) {
                now[index] = fit.beyond(trusted.map(|seconds| seconds / candidates[index].strength()));
            }
        }
        // What it takes to be ready goes; what else it takes stays.
        let ready = |(candidate, line): (&Candidate, &Line)| {
            let startup = |cold| fit::startup(samples(candidate), cold);
            let saved = if candidate.cold { startup(true) - startup(false) } else { 0.0 };
            Line::new((line.startup - saved.max(0.0)).max(0.0), line.per_item)
        };
        let ready = candidates.iter().zip(&now).map(ready).collect();
        (Lines { now, sober, ready }, fits.iter().map(Option::is_some).collect())
    }
}

/// Why a device with no items at that time has none.
fn reason(line: Line, seconds: f64) -> Reason {
    let others = duration(seconds);
    if line.startup >= seconds && line.startup > 0.0 {
        Reason::StartsTooLate { ready: duration(line.startup), others }
    } else if line.seconds(1) > seconds * (1.0 + 1e-9) && seconds > 0.0 {
        Reason::TooSlow { first_item: duration(line.seconds(1)), others }
    } else {
        Reason::NotWorthIt
    }
}

/// Seconds as a time; the longest there is for those beyond it.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(if seconds > 0.0 { Duration::MAX } else { Duration::ZERO })
}
