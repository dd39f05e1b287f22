//! Chooses which devices are worth using at all for a task and a number of items.
//!
//! A device alone takes its startup + items × its time an item, transfers included. Both are learned from the runs of
//! each task on each device and kept on disk. Together, devices take the time after which as many items are done as
//! there are, and a device that would not finish a single item by then is left out: see `joint`.
//!
//! A model that never tries what it does not expect to help cannot find out that it was wrong. So a device that was
//! never seen is taken to be ready at once and as fast as its score says, one whose runs were too small to tell its
//! speed is given the benefit of the doubt, and one that is left out comes back now and then to be measured again.

mod fit;
mod joint;
#[cfg(test)]
mod live;
mod missed;
mod store;
#[cfg(test)]
mod test;
mod trials;

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use fit::{Fit, Sample};
use joint::Line;
use missed::Missed;
use trials::Trials;
pub(crate) use trials::size_of_run;

/// At most so many runs without a device until it is measured again.
const LONGEST_WAIT: u32 = 64;
/// A device that has to be made ready first is used if the run then takes at most this part of the time.
const WORTH_STARTING: f64 = 0.9;
/// What a device that is only measured again gets of the items.
const RETRY_SHARE: f64 = 0.01;

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

/// Runs of as many items with the same devices, all of which were ready when they began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experience {
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
    /// It was left out for a while, and is measured again. It is not expected to help, so a run that can should not
    /// wait for it: that it was not ready in time is worth knowing too.
    Retried,
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
}

/// What is known of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct History {
    devices: BTreeMap<String, Record>,
    trials: Trials,
    /// When it was last saved, in seconds since 1970.
    saved_s: u64,
    /// Whether it has changed since.
    #[serde(skip)]
    changed: bool,
    /// How many runs there have been since the last choice.
    #[serde(skip)]
    runs: u32,
    #[serde(skip)]
    missed: Missed,
}

/// What is known of one task on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    samples: Vec<Sample>,
    last: Option<Prediction>,
    /// Runs in a row that it was left out of.
    left_out: u32,
    /// How often it has been measured again since it was last worth using.
    retries: u32,
}

impl Record {
    /// Whether it has been left out long enough: for one run at first, then two, four and so on.
    fn is_due(&self) -> bool {
        let wait = 1u32.checked_shl(self.retries).unwrap_or(LONGEST_WAIT);
        self.left_out >= wait.min(LONGEST_WAIT)
    }
}

impl Model {
    /// Which of the candidates to use for a run that is about to begin. It counts as a run for the devices that are
    /// left out. A run without items uses nobody.
    pub fn choose(&mut self, task: &str, items: u64, candidates: &[Candidate]) -> Choice {
        let history = self.tasks.entry(task.to_owned()).or_default();
        let Lines { hopeful: lines, sober, measured } = history.lines(items, candidates);
        let mut joint = joint::fastest(&lines, items);
        // Hope is a reason to use a device, and none to do without another.
        let sober = joint::fastest(&sober, items);
        for (hoped, sober) in joint.items.iter_mut().zip(&sober.items) {
            *hoped = hoped.max(sober.min(1.0));
        }
        let (mut explores, mut tries) = (true, false);
        let some_are_ready = items > 0 && candidates.iter().any(|candidate| !candidate.cold);
        let History { devices: records, trials, runs, missed, .. } = history;
        if some_are_ready && !trials.is_empty() {
            let decided = trials.decide(items, candidates, &lines);
            // Whoever is not ready yet has to be worth the wait, in this run or over all that were made without.
            let waits = candidates.iter().zip(&joint.items).any(|(it, &count)| it.cold && count > 0.0);
            let better = trials.fastest(items, candidates).filter(|(_, seconds)| *seconds < decided.seconds);
            let better = better.filter(|(members, seconds)| {
                let lost = (decided.seconds - seconds) * f64::from((*runs).max(1));
                let cold = members.iter().filter(|&&member| candidates[member].cold);
                missed.worth_starting(cold.map(|&it| (&candidates[it], lines[it].startup)), lost)
            });
            if let Some((members, _)) = better {
                joint = trials::only(items, &lines, &members);
            } else if !waits || joint.seconds > decided.joint.seconds * WORTH_STARTING {
                (joint, explores, tries) = (decided.joint, decided.explores, decided.tries);
            }
        }
        let predicted = (measured.contains(&true) || items == 0).then(|| duration(joint.seconds));
        let mut choice = Choice { used: Vec::new(), left_out: Vec::new(), predicted, explores };
        for (index, candidate) in candidates.iter().enumerate() {
            let device = candidate.device.clone();
            let record = records.entry(device.clone()).or_default();
            let share = joint.items[index];
            if share > 0.0 {
                // Who is only tried has not shown that it is worth using.
                if !tries {
                    (record.left_out, record.retries) = (0, 0);
                }
                let basis = if measured[index] { Basis::Measured } else { Basis::Guessed };
                choice.used.push(Used { device, share, basis });
            } else if items > 0 && !tries && record.is_due() {
                record.left_out = 0;
                record.retries = record.retries.saturating_add(1);
                choice.used.push(Used { device, share, basis: Basis::Retried });
                choice.explores = true;
            } else {
                record.left_out = record.left_out.saturating_add(u32::from(items > 0));
                choice.left_out.push((device, reason(lines[index], joint.seconds)));
            }
        }
        share_out(&mut choice.used);
        choice
    }

    /// Learns from what a device did, and says how well that was foreseen. A device that did no item still tells
    /// how long it was not ready.
    pub fn observe(&mut self, task: &str, observation: &Observation) -> Prediction {
        let Observation { device, items, busy, startup, cold } = observation;
        let history = self.tasks.entry(task.to_owned()).or_default();
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
    pub fn ended(&mut self, task: &str, items: u64, experience: Experience) {
        if items > 0 && !experience.devices.is_empty() {
            let history = self.tasks.entry(task.to_owned()).or_default();
            (history.changed, history.runs) = (true, experience.runs);
            history.trials.add(items, experience);
        }
    }

    /// How the last run of a task on a device was foreseen, and how it went.
    pub fn last(&self, task: &str, device: &str) -> Option<Prediction> {
        self.tasks.get(task)?.devices.get(device)?.last
    }
}

impl History {
    /// A line for each candidate.
    fn lines(&self, items: u64, candidates: &[Candidate]) -> Lines {
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
        let mut lines: Vec<Line> = candidates.iter().zip(&fits).map(line).collect();
        let sober = lines.clone();
        // Whoever would do far more than it ever did gets the benefit of the doubt.
        let joint = joint::fastest(&lines, items);
        for (index, fit) in fits.iter().enumerate() {
            if let Some(fit) = fit.filter(|fit| fit.is_beyond(joint.items[index])) {
                lines[index] = fit.beyond(trusted.map(|seconds| seconds / candidates[index].strength()));
            }
        }
        Lines { hopeful: lines, sober, measured: fits.iter().map(Option::is_some).collect() }
    }
}

/// What is expected of the candidates, each in its place.
struct Lines {
    /// With the benefit of the doubt for whoever would do far more than it ever did.
    hopeful: Vec<Line>,
    /// Without it.
    sober: Vec<Line>,
    /// Whether runs say so.
    measured: Vec<bool>,
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

/// Turns items into parts of the whole, with a little for each device that is only measured again.
fn share_out(used: &mut [Used]) {
    let total: f64 = used.iter().map(|device| device.share).sum();
    let retried = used.iter().filter(|device| device.basis == Basis::Retried).count() as f64;
    for device in used {
        let share = if device.basis == Basis::Retried { RETRY_SHARE } else { device.share / total };
        device.share = share / (1.0 + RETRY_SHARE * retried);
    }
}

/// Seconds as a time; the longest there is for those beyond it.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(if seconds > 0.0 { Duration::MAX } else { Duration::ZERO })
}
