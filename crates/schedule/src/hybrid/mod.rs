//! Chooses the devices that are worth using for a task and a number of items.
//!
//! A device alone takes its startup + items × its time per item, transfers included. Both are learned from the runs of
//! each task on each device and kept on disk. Several devices together take the time after which they have done all
//! items, and a device that would not finish one item by then is left out: see `joint`. Whole runs are timed too, by
//! their set of devices, and one rule decides which set is used and which is tried: see `sets`.
//!
//! A model that never tries other devices cannot find out that it was wrong. So a device without runs counts as ready
//! at once and as fast as its score says, a device whose runs were too small to tell its speed gets an optimistic
//! estimate, and trials of other sets may cost 2 % of the time.

mod fit;
#[cfg(test)]
mod fuzz;
mod joint;
mod sets;
#[cfg(test)]
mod simulation;
mod store;
#[cfg(test)]
mod test;

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use fit::{Fit, Sample};
use joint::CostLine;
pub(crate) use sets::size_class;
use sets::{CostLines, Decision, SizeClass};

/// A device that could take part in a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// A unique name of the device, the same in every run.
    pub device: String,
    /// Its speed relative to the other candidates, until it has been measured. A value that is not a positive number
    /// counts as 1.
    pub score: f64,
    /// Whether it has to be prepared first: kernels compiled, memory allocated.
    pub needs_preparation: bool,
}

impl Candidate {
    fn strength(&self) -> f64 {
        if self.score.is_normal() && self.score > 0.0 { self.score } else { 1.0 }
    }
}

/// The work of one device in a finished run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The device, as in [`Candidate::device`].
    pub device: String,
    /// Number of items that it did.
    pub items: u64,
    /// The time that the items took, transfers included. Without items, the time that it worked before the run ended.
    pub busy: Duration,
    /// Time from the start of the run until it was ready for its first item.
    pub startup: Duration,
    /// Whether it had to be prepared first.
    pub needed_preparation: bool,
}

/// Measurements of runs of equal size with the same devices. The time to prepare devices is taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurements {
    /// The devices, as in [`Candidate::device`].
    pub devices: Vec<String>,
    /// The devices that did at least one item.
    pub worked: Vec<String>,
    /// The time of a run.
    pub wall: Duration,
    /// Number of runs.
    pub runs: u32,
}

/// A predicted and a measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// `None` if nothing was known.
    pub predicted: Option<Duration>,
    /// The measured time.
    pub actual: Duration,
}

impl Prediction {
    /// Relative error: 0.5 for 3 seconds instead of 2, negative if it was faster. `None` if nothing, or no time, was
    /// predicted.
    pub fn error(&self) -> Option<f64> {
        let predicted = self.predicted.filter(|predicted| !predicted.is_zero())?.as_secs_f64();
        Some(self.actual.as_secs_f64() / predicted - 1.0)
    }
}

/// The devices to use.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The devices that take part, in the order of the candidates.
    pub used: Vec<Used>,
    /// The devices that do not, with the reason.
    pub left_out: Vec<(String, Reason)>,
    /// Predicted time of the run, a lower bound if a device's runs were too small to tell its speed. `None` if no
    /// device has been measured with this task.
    pub predicted: Option<Duration>,
    /// Whether the choice should not be kept for long: it is a trial, or another choice may be faster.
    pub is_provisional: bool,
}

/// A device that takes part.
#[derive(Clone, Debug, PartialEq)]
pub struct Used {
    /// As in [`Candidate::device`].
    pub device: String,
    /// The fraction of the items that it should do. The shares of a choice sum to 1.
    pub share: f64,
    /// Why the device takes part.
    pub basis: Basis,
}

/// Why a device takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Basis {
    /// Its measured speed makes the run faster.
    Measured,
    /// It has no runs of this task; the choice is based on its score.
    Guessed,
    /// It belongs to a set on trial. Other sets may be faster.
    Tried,
}

/// Why a device is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The others end before it is ready.
    StartsTooLate {
        /// When the device would be ready.
        ready: Duration,
        /// When the others are done.
        others: Duration,
    },
    /// It would be ready in time, but the others end before its first item does.
    TooSlow {
        /// When its first item would be done.
        first_item: Duration,
        /// When the others are done.
        others: Duration,
    },
    /// There are fewer items than devices and the others are as fast, or runs without it were faster.
    NotWorthIt,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::StartsTooLate { ready, others } => {
                write!(f, "ready only after {ready:.1?}, when the others are done ({others:.1?})")
            }
            Reason::TooSlow { first_item, others } => {
                write!(
                    f,
                    "first item done only after {first_item:.1?}, when the others are done ({others:.1?})"
                )
            }
            Reason::NotWorthIt => f.write_str("the run is no slower without it"),
        }
    }
}

/// The learned times of every task on every device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    tasks: BTreeMap<String, TaskHistory>,
    /// Number of uses so far.
    uses: u64,
}

/// Maximum number of tasks, in memory and on disk.
const MAX_TASKS: usize = 256;

/// Maximum number of size classes per task.
const MAX_SIZES: usize = 64;

/// The learned times of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct TaskHistory {
    devices: BTreeMap<String, DeviceRecord>,
    /// Times of whole runs, by size class.
    sizes: BTreeMap<u32, SizeClass>,
    /// When it was last saved, in seconds since 1970.
    saved_s: u64,
    /// Whether it has changed since it was last saved.
    #[serde(skip)]
    changed: bool,
    /// The model's number of uses at the last use of this task.
    #[serde(skip)]
    used: u64,
}

/// The samples of one task on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct DeviceRecord {
    samples: Vec<Sample>,
    last: Option<Prediction>,
}

impl Model {
    /// Returns a task's history. If the task is new and there are too many, the least recently used one is dropped.
    fn history(&mut self, task: &str) -> &mut TaskHistory {
        if self.tasks.len() >= MAX_TASKS && !self.tasks.contains_key(task) {
            let oldest = self.tasks.iter().min_by_key(|(_, history)| history.used);
            let oldest = oldest.map(|(task, _)| task.clone()).unwrap_or_default();
            self.tasks.remove(&oldest);
        }
        self.uses += 1;
        let history = self.tasks.entry(task.to_owned()).or_default();
        history.used = self.uses;
        history
    }

    /// Chooses among the candidates for a run that is about to begin. A run without items uses no device.
    pub fn choose(&mut self, task: &str, items: u64, candidates: &[Candidate]) -> Choice {
        let history = self.history(task);
        let (lines, measured) = history.lines(items, candidates);
        let mut unknown = SizeClass::new(items);
        let class = history.sizes.get_mut(&size_class(items)).unwrap_or(&mut unknown);
        let Decision { joint, is_provisional, is_trial } = if items > 0 {
            class.decide(items, candidates, &lines)
        } else {
            Decision { joint: joint::fastest(&lines.optimistic, 0), is_provisional: false, is_trial: false }
        };
        let predicted = (measured.contains(&true) || items == 0).then(|| duration(joint.seconds));
        let mut choice = Choice { used: Vec::new(), left_out: Vec::new(), predicted, is_provisional };
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
                choice.left_out.push((device, reason(lines.optimistic[index], joint.seconds)));
            }
        }
        choice
    }

    /// Learns from a device's work, and returns how well it was predicted. A device without items still shows its
    /// startup time.
    pub fn observe(&mut self, task: &str, observation: &Observation) -> Prediction {
        let Observation { device, items, busy, startup, needed_preparation } = observation;
        let history = self.history(task);
        history.changed = true;
        let record = history.devices.entry(device.clone()).or_default();
        let fit = Fit::of(&record.samples, *needed_preparation).filter(|_| *items > 0);
        let predicted = fit.map(|fit| duration(fit.likely().seconds(*items)));
        let prediction = Prediction { predicted, actual: startup.saturating_add(*busy) };
        record.last = Some(prediction);
        let sample = Sample { items: *items, busy: *busy, startup: *startup, cold: *needed_preparation };
        fit::remember(&mut record.samples, sample);
        prediction
    }

    /// Learns from the times of whole runs of this many items.
    pub fn record_runs(&mut self, task: &str, items: u64, measurements: Measurements) {
        if items > 0 && !measurements.devices.is_empty() {
            self.history(task).report(items, measurements);
        }
    }

    /// The prediction and the time of the last run of a task on a device.
    pub fn last_prediction(&self, task: &str, device: &str) -> Option<Prediction> {
        self.tasks.get(task)?.devices.get(device)?.last
    }
}

impl TaskHistory {
    /// Learns from the times of whole runs of this many items.
    fn report(&mut self, items: u64, measurements: Measurements) {
        self.changed = true;
        let size = size_class(items);
        let known = self.sizes.get(&size).map_or(items, |class| class.items);
        let mut seconds = measurements.wall.as_secs_f64();
        if known != items {
            // Scaled to the number of items of the size class, by the predicted times of these devices.
            let candidate =
                |device: &String| Candidate { device: device.clone(), score: 1.0, needs_preparation: false };
            let candidates: Vec<Candidate> = measurements.devices.iter().map(candidate).collect();
            let predicted = |items| joint::fastest(&self.lines(items, &candidates).0.fitted, items).seconds;
            seconds *= predicted(known) / predicted(items).max(f64::MIN_POSITIVE);
        }
        if !self.sizes.contains_key(&size) && self.sizes.len() >= MAX_SIZES {
            self.sizes.pop_first();
        }
        self.sizes.entry(size).or_insert_with(|| SizeClass::new(items)).report(measurements, seconds);
    }

    /// Cost lines of each candidate, and whether the candidate was measured.
    fn lines(&self, items: u64, candidates: &[Candidate]) -> (CostLines, Vec<bool>) {
        let samples = |candidate: &Candidate| {
            self.devices.get(&candidate.device).map_or(&[][..], |record| &record.samples)
        };
        let fit = |candidate: &Candidate| Fit::of(samples(candidate), candidate.needs_preparation);
        let fits: Vec<Option<Fit>> = candidates.iter().map(fit).collect();
        // Seconds per item of a device with score 1, by the device with the lowest value.
        let unit = |per_item: fn(&Fit) -> Option<f64>| {
            let known = |(candidate, fit): (&Candidate, &Option<Fit>)| {
                fit.as_ref().and_then(per_item).map(|seconds| seconds * candidate.strength())
            };
            candidates.iter().zip(&fits).filter_map(known).reduce(f64::min)
        };
        let trusted = unit(Fit::trusted_per_item);
        // Without measurements, only the ratios of the scores matter.
        let any = trusted.or_else(|| unit(Fit::per_item)).unwrap_or(1e-6);
        let line = |(candidate, fit): (&Candidate, &Option<Fit>)| match fit {
            Some(fit) => fit.in_range(),
            None => {
                let startup = fit::startup_without_items(samples(candidate), candidate.needs_preparation);
                CostLine::new(startup, any / candidate.strength())
            }
        };
        let fitted: Vec<CostLine> = candidates.iter().zip(&fits).map(line).collect();
        let mut optimistic = fitted.clone();
        // A device that would do far more items than in any run gets an optimistic estimate.
        let joint = joint::fastest(&fitted, items);
        for (index, fit) in fits.iter().enumerate() {
            if let Some(fit) = fit.filter(|fit| fit.is_beyond(joint.items[index])) {
                optimistic[index] =
                    fit.extrapolated(trusted.map(|seconds| seconds / candidates[index].strength()));
            }
        }
        // Without the time to prepare; the other overhead stays.
        let ready = |(candidate, line): (&Candidate, &CostLine)| {
            let startup = |cold| fit::startup(samples(candidate), cold);
            let saved = if candidate.needs_preparation { startup(true) - startup(false) } else { 0.0 };
            CostLine::new((line.startup - saved.max(0.0)).max(0.0), line.per_item)
        };
        let ready = candidates.iter().zip(&optimistic).map(ready).collect();
        (CostLines { optimistic, fitted, ready }, fits.iter().map(Option::is_some).collect())
    }
}

/// The reason why a device has no items.
fn reason(line: CostLine, seconds: f64) -> Reason {
    let others = duration(seconds);
    if line.startup >= seconds && line.startup > 0.0 {
        Reason::StartsTooLate { ready: duration(line.startup), others }
    } else if line.seconds(1) > seconds * (1.0 + 1e-9) && seconds > 0.0 {
        Reason::TooSlow { first_item: duration(line.seconds(1)), others }
    } else {
        Reason::NotWorthIt
    }
}

/// Converts seconds to a duration, with the largest one as the limit.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(if seconds > 0.0 { Duration::MAX } else { Duration::ZERO })
}
