//! The rule that chooses which set of devices to use.
//!
//! Runs of about the same number of items form a size class. In it, a set of devices has a time: of its runs, without
//! startup, or predicted if it has none. The devices' times alone do not tell all about their time together, because
//! threads have to be woken, and memory and the bus are shared: so measurements count before predictions. A set also
//! has an entry cost: the extra time of its first run, because devices have to be prepared or were not used for a
//! while.
//!
//! The fastest set whose devices are ready is the current one. Another is tried as soon as the trial is paid for:
//!
//! ```text
//! entry cost + expected loss  ≤  budget + missed time + expected gain
//! ```
//!
//! - The *exploration budget* grows by 2 % of the time of the current set's runs, and pays for trials. The most
//!   promising set is tried first, and each one becomes more promising while others are tried, so all have their turn.
//! - *Missed time* is what runs have lost, as far as is known, because a faster set was not ready. This loses at most
//!   twice the least possible time, however many runs follow.
//! - The *gain* is that of the trial's runs, at best: a set without measurements may be faster than predicted.

use serde::{Deserialize, Serialize};

use super::{
    Candidate, Measurements,
    joint::{self, CostLine, JointPlan},
};

/// The fraction of the time that trials may cost.
const EXPLORATION_SHARE: f64 = 0.02;
/// The budget of a new size class, in runs.
const INITIAL_BUDGET_RUNS: f64 = 4.0;
/// A trial has this many runs, or fewer that take this many seconds.
const TRIAL_RUNS: f64 = 8.0;
const TRIAL_SECONDS: f64 = 0.02;
/// Minimum cost of each run of a trial, as a fraction of a run with the current set: devices that were not used for a
/// while are slow.
const MIN_TRIAL_COST: f64 = 0.25;
/// Runs shorter than this, in seconds, are mostly overhead, which is hard to predict and cheap to try.
const SHORT_RUN: f64 = 5e-3;
/// Each trial of another set makes an untried one look faster by this factor.
const AGE_FACTOR: f64 = 0.93;
/// Each report that does not confirm a set's best time makes that time longer by this factor.
const UNCONFIRMED_FACTOR: f64 = 1.05;
/// Hysteresis: the current set stays until another is faster by more than this.
const HYSTERESIS: f64 = 1.01;
/// Several devices must be faster than one by this factor, more than the usual variation of runs.
const MULTI_DEVICE_MARGIN: f64 = 1.05;
/// Maximum number of remembered times of a set, and of sets.
const MAX_TIMES: usize = 5;
const MAX_SETS: usize = 24;

/// The size class of a run: numbers of items that differ by less than a fifth are in one class.
pub(crate) fn size_class(items: u64) -> u32 {
    ((items.max(1) as f64).log2() * 4.0).round() as u32
}

/// The measurements of runs of one size class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SizeClass {
    /// The number of items to which times are scaled.
    pub(super) items: u64,
    sets: Vec<DeviceSet>,
    /// The current set: the last one used because it was fastest.
    current: Vec<String>,
    /// The exploration budget, in seconds.
    budget: f64,
    /// Number of trials.
    trials: u32,
    /// Runs since the last decision.
    #[serde(skip)]
    runs: u32,
}

/// The measurements of runs with the same devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct DeviceSet {
    devices: Vec<String>,
    /// Times of the last runs, in order.
    times: Vec<f64>,
    /// The best time, in seconds. Each report that does not confirm it makes it longer.
    best: f64,
    /// Whether some of the devices did no item.
    has_idle: bool,
    /// Number of trials at its last use.
    used: u32,
    /// The seconds that runs have lost because it was not ready.
    #[serde(skip)]
    missed: f64,
    /// Number of times that it was prepared because of that.
    #[serde(skip)]
    entered: i32,
}

impl DeviceSet {
    fn new(devices: Vec<String>, used: u32) -> Self {
        DeviceSet {
            devices,
            times: Vec::new(),
            best: f64::MAX,
            has_idle: false,
            used,
            missed: 0.0,
            entered: 0,
        }
    }

    /// The second best of the last times: disturbances only make a run longer, but one run may have been lucky. For
    /// several devices the median, because their time together varies.
    fn seconds(&self) -> Option<f64> {
        let mut sorted = self.times.clone();
        sorted.sort_by(f64::total_cmp);
        let index = if self.devices.len() > 1 { sorted.len() / 2 } else { usize::from(sorted.len() > 2) };
        sorted.get(index).copied()
    }

    fn add(&mut self, seconds: f64) {
        // Several devices have to be faster than one.
        let seconds = seconds * if self.devices.len() > 1 { MULTI_DEVICE_MARGIN } else { 1.0 };
        self.best = seconds.min(self.best * UNCONFIRMED_FACTOR);
        self.times.push(seconds);
        if self.times.len() > MAX_TIMES {
            self.times.remove(0);
        }
    }
}

/// The factor by which a set with this many reports may be faster than it seems.
fn uncertainty(seconds: f64, reports: usize) -> f64 {
    match (reports, seconds < SHORT_RUN) {
        (0, true) => 4.0,
        (0, false) | (1, true) => 1.5,
        (2, true) => 1.2,
        _ => 1.0,
    }
}

/// A set of devices that could be used.
struct CandidateSet {
    /// The indices of its candidates, in order.
    members: Vec<usize>,
    /// Their names, sorted.
    devices: Vec<String>,
    is_measured: bool,
    /// Seconds of a run once all are ready; of the next run, if it is like the last; and at best.
    seconds: f64,
    likely: f64,
    at_best: f64,
    /// Extra seconds of the first run.
    entry_cost: f64,
    /// Trials of other sets since it was used.
    age: u32,
    missed: f64,
    has_idle: bool,
}

impl CandidateSet {
    /// The cost of a trial minus its expected gain and the missed time, compared with the current set.
    fn trial_cost(&self, current: &CandidateSet) -> f64 {
        let runs = (TRIAL_SECONDS / self.seconds).clamp(1.0, TRIAL_RUNS);
        let waking = MIN_TRIAL_COST * current.seconds;
        let loss = (self.likely - current.seconds).max(0.0);
        // Devices without work bring no gain.
        let gain = if self.has_idle { 0.0 } else { (current.seconds - self.at_best).max(0.0) };
        // Unprepared devices must pay off in one run: it is not known whether others follow.
        let gaining = if self.entry_cost > 0.0 { 1.0 } else { runs };
        (self.entry_cost - current.entry_cost).max(0.0) + runs * (waking + loss)
            - gaining * gain
            - self.missed
    }

    /// The best time of a run, lowered by the set's age.
    fn aged_best(&self) -> f64 {
        self.at_best * AGE_FACTOR.powf(f64::from(self.age))
    }
}

/// A decision.
#[derive(Debug)]
pub(super) struct Decision {
    /// The predicted time of the run, and the items of each candidate.
    pub(super) joint: JointPlan,
    /// Whether another set may be faster, so that the decision should not be kept for long.
    pub(super) is_provisional: bool,
    /// Whether it is a trial.
    pub(super) is_trial: bool,
}

/// The cost lines of the candidates, in order.
pub(super) struct CostLines {
    /// As they are now, with an optimistic estimate for a device that would do far more than it ever did.
    pub(super) optimistic: Vec<CostLine>,
    /// As they are now, without the optimistic estimate.
    pub(super) fitted: Vec<CostLine>,
    /// With the optimistic estimate, once all are ready.
    pub(super) ready: Vec<CostLine>,
}

impl SizeClass {
    pub(super) fn new(items: u64) -> Self {
        let (sets, current) = (Vec::new(), Vec::new());
        SizeClass { items, sets, current, budget: 0.0, trials: 0, runs: 0 }
    }

    /// Learns from runs that took this many seconds, scaled to the number of items of this class.
    pub(super) fn report(&mut self, measurements: Measurements, seconds: f64) {
        let Measurements { mut devices, mut worked, runs, .. } = measurements;
        devices.sort();
        worked.sort();
        if self.sets.is_empty() {
            self.budget = INITIAL_BUDGET_RUNS * seconds;
        }
        let has_idle = !worked.is_empty() && worked != devices;
        if has_idle {
            // The devices that did all the work take no longer without the others.
            let set = self.set(worked);
            if set.seconds().is_none_or(|known| seconds < known) {
                set.add(seconds);
            }
        }
        let (is_current, trials) = (devices == self.current, self.trials);
        let set = self.set(devices);
        set.add(seconds);
        (set.used, set.has_idle) = (trials, has_idle);
        if is_current {
            // A disturbed run earns no more than others.
            let usual = set.seconds().unwrap_or(seconds).min(seconds);
            self.budget += EXPLORATION_SHARE * usual * f64::from(runs);
            self.runs = self.runs.saturating_add(runs);
        }
    }

    /// Returns the measurements of a set.
    fn set(&mut self, devices: Vec<String>) -> &mut DeviceSet {
        let index = self.sets.iter().position(|set| set.devices == devices).unwrap_or_else(|| {
            if self.sets.len() >= MAX_SETS {
                let others = (0..self.sets.len()).filter(|&index| self.sets[index].devices != self.current);
                let oldest = others.min_by_key(|&index| self.sets[index].used);
                oldest.map(|oldest| self.sets.remove(oldest));
            }
            self.sets.push(DeviceSet::new(devices, self.trials));
            self.sets.len() - 1
        });
        &mut self.sets[index]
    }

    /// Decides which set to use for a run of this many items.
    pub(super) fn decide(&mut self, items: u64, candidates: &[Candidate], lines: &CostLines) -> Decision {
        let mut contenders = self.contenders(items, candidates, lines);
        let cost = |it: &CandidateSet| if it.has_idle { f64::INFINITY } else { it.seconds + it.entry_cost };
        let least = contenders.iter().map(cost).fold(f64::INFINITY, f64::min);
        let stays = |it: &CandidateSet| it.devices == self.current && cost(it) <= least * HYSTERESIS;
        let settled = contenders.iter().position(stays);
        // The first of equal ones, in spite of rounding.
        let fastest = || contenders.iter().position(|it| cost(it) <= least * (1.0 + 1e-9));
        let Some(current) = settled.or_else(fastest) else {
            let joint = joint::fastest(&lines.optimistic, items);
            return Decision { joint, is_provisional: true, is_trial: false };
        };
        self.count_missed(&mut contenders, current);
        if settled.is_none() {
            // Its old times are no reason to keep it.
            let set = self.set(contenders[current].devices.clone());
            set.times.drain(..set.times.len().saturating_sub(1));
            self.current.clone_from(&contenders[current].devices);
        }
        let trial_cost = |index: &usize| contenders[*index].trial_cost(&contenders[current]);
        let others = || (0..contenders.len()).filter(|&index| index != current);
        let aged_best =
            |&a: &usize, &b: &usize| contenders[a].aged_best().total_cmp(&contenders[b].aged_best());
        let most_promising = others().min_by(aged_best);
        // The budget grows only up to the cost of the next trial.
        let saved = most_promising
            .as_ref()
            .map_or(0.0, trial_cost)
            .max(INITIAL_BUDGET_RUNS * contenders[current].seconds);
        self.budget = self.budget.min(saved);
        let free = || others().filter(|index| trial_cost(index) <= 0.0).min_by(aged_best);
        let paid = || most_promising.filter(|index| trial_cost(index) <= self.budget);
        // Nothing can be compared with a set without measurements.
        let tried = if contenders[current].is_measured { free().or_else(paid) } else { None };
        if let Some(tried) = tried {
            self.budget -= trial_cost(&tried).max(0.0);
            self.trials = self.trials.wrapping_add(1);
            let trials = self.trials;
            let set = self.set(contenders[tried].devices.clone());
            (set.used, set.missed) = (trials, 0.0);
            set.entered += i32::from(contenders[tried].entry_cost > 0.0);
        }
        let chosen = &contenders[tried.unwrap_or(current)];
        let joint = JointPlan {
            seconds: chosen.seconds + chosen.entry_cost,
            ..only(items, &lines.optimistic, &chosen.members)
        };
        Decision { joint, is_provisional: tried.is_some() || settled.is_none(), is_trial: tried.is_some() }
    }

    /// Adds the time that the runs since the last decision have lost because a faster set was not ready. A set that was
    /// prepared for it before, and is not ready any more, has to be missed for twice as long.
    fn count_missed(&mut self, contenders: &mut [CandidateSet], current: usize) {
        let runs = f64::from(std::mem::take(&mut self.runs));
        let (seconds, entry_cost) = (contenders[current].seconds, contenders[current].entry_cost);
        // Only for the fastest set, so that the time counts once however many devices there are.
        let missed = contenders.iter_mut().filter(|it| it.entry_cost > entry_cost && it.seconds < seconds);
        if let Some(contender) = missed.min_by(|a, b| a.seconds.total_cmp(&b.seconds)) {
            let set = self.set(contender.devices.clone());
            set.missed += (seconds - contender.seconds) * runs;
            contender.missed = set.missed * 0.5f64.powi(set.entered);
        }
    }

    /// The sets that may be worth using: the best by prediction, the same without the devices that would do least, each
    /// device alone, and all sets used before.
    fn contenders(&self, items: u64, candidates: &[Candidate], lines: &CostLines) -> Vec<CandidateSet> {
        let fitted = joint::fastest(&lines.fitted, items);
        let best = joint::fastest(&lines.optimistic, items);
        let ready = joint::fastest(&lines.ready, items);
        // Times are scaled to another number of items.
        let scale = if items == self.items {
            1.0
        } else {
            ready.seconds / joint::fastest(&lines.ready, self.items).seconds.max(f64::MIN_POSITIVE)
        };
        // An optimistic estimate is a reason to use a device, but not to leave out another.
        let all = || 0..candidates.len();
        let mut members: Vec<Vec<usize>> =
            vec![all().filter(|&it| best.items[it] > 0.0 || fitted.items[it] > 0.0).collect()];
        let mut order: Vec<usize> = all().filter(|&it| ready.items[it] > 0.0).collect();
        order.sort_by(|&a, &b| ready.items[b].total_cmp(&ready.items[a]).then(a.cmp(&b)));
        members.extend((2..=order.len()).rev().map(|count| order[..count].to_vec()));
        members.extend(all().map(|alone| vec![alone]));
        let place = |device: &String| candidates.iter().position(|it| it.device == *device);
        members.extend(self.sets.iter().filter_map(|set| set.devices.iter().map(place).collect()));
        members.iter_mut().for_each(|members| members.sort_unstable());
        let is_new = |index: &usize| !members[..*index].contains(&members[*index]);
        let distinct = (0..members.len()).filter(is_new).map(|index| members[index].clone());
        let contender = |members: Vec<usize>| {
            let mut devices: Vec<String> = members.iter().map(|&it| candidates[it].device.clone()).collect();
            devices.sort();
            let set = self.sets.iter().find(|set| set.devices == devices);
            let predicted = || only(items, &lines.ready, &members).seconds;
            let is_cold = members.iter().any(|&it| candidates[it].needs_preparation);
            let entry_cost =
                if is_cold { only(items, &lines.optimistic, &members).seconds - predicted() } else { 0.0 };
            let measured = set.and_then(|set| Some(set.seconds()? * scale));
            let seconds = measured.unwrap_or_else(predicted).max(1e-12);
            let last = set.and_then(|set| set.times.last()).map_or(seconds, |last| last * scale);
            let shown = set.map_or(f64::MAX, |set| set.best * scale);
            CandidateSet {
                is_measured: measured.is_some(),
                seconds,
                likely: last.min(seconds),
                at_best: shown.min(seconds) / uncertainty(seconds, set.map_or(0, |set| set.times.len())),
                entry_cost: entry_cost.max(0.0),
                age: self.trials.wrapping_sub(set.map_or(0, |set| set.used)),
                missed: 0.0,
                has_idle: set.is_some_and(|set| set.has_idle),
                members,
                devices,
            }
        };
        distinct.filter(|members| !members.is_empty()).map(contender).collect()
    }
}

/// The plan of some of the candidates without the others.
pub(super) fn only(items: u64, lines: &[CostLine], members: &[usize]) -> JointPlan {
    let own: Vec<CostLine> = members.iter().map(|&member| lines[member]).collect();
    let JointPlan { seconds, items: counts } = joint::fastest(&own, items);
    let mut all = vec![0.0; lines.len()];
    for (&member, count) in members.iter().zip(counts) {
        // Each member takes part, with however few items.
        all[member] = count.max(f64::MIN_POSITIVE);
    }
    JointPlan { seconds, items: all }
}

#[cfg(test)]
mod test {
    use std::{cell::Cell, time::Duration};

    use super::*;

    const NAMES: [&str; 3] = ["a", "b", "c"];
    const ITEMS: u64 = 1000;

    fn candidates(count: usize) -> Vec<Candidate> {
        let candidate =
            |name: &&str| Candidate { device: (*name).to_owned(), score: 1.0, needs_preparation: false };
        NAMES.iter().take(count).map(candidate).collect()
    }

    fn used(joint: &JointPlan) -> Vec<usize> {
        (0..joint.items.len()).filter(|&index| joint.items[index] > 0.0).collect()
    }

    /// Reports a run with these devices, of which some worked.
    fn ran(class: &mut SizeClass, set: &[usize], worked: &[usize], seconds: f64) {
        let named = |set: &[usize]| set.iter().map(|&index| NAMES[index].to_owned()).collect();
        let wall = Duration::from_secs_f64(seconds);
        class.report(Measurements { worked: named(worked), devices: named(set), wall, runs: 1 }, seconds);
    }

    fn decide(class: &mut SizeClass, lines: &[CostLine], candidates: &[Candidate]) -> Vec<usize> {
        let lines = CostLines { optimistic: lines.to_vec(), fitted: lines.to_vec(), ready: lines.to_vec() };
        used(&class.decide(ITEMS, candidates, &lines).joint)
    }

    /// Decides and runs `times` times, where the sets really take what `truth` says. Returns the sets used.
    fn simulate(
        class: &mut SizeClass,
        lines: &[CostLine],
        times: usize,
        truth: impl Fn(&[usize]) -> f64,
    ) -> Vec<Vec<usize>> {
        let mut history = Vec::new();
        for _ in 0..times {
            let set = decide(class, lines, &candidates(lines.len()));
            ran(class, &set, &set, truth(&set));
            history.push(set);
        }
        history
    }

    #[test]
    fn the_best_predicted_set_stays_only_if_it_is_fastest() {
        let lines = [CostLine::new(0.0, 1e-6), CostLine::new(0.0, 1e-6), CostLine::new(0.0, 2e-6)];
        // Together they get into each other's way.
        let truth = |set: &[usize]| if set.len() > 1 { 5e-3 } else { 1e-3 * (1.0 + set[0] as f64 / 10.0) };
        let history = simulate(&mut SizeClass::new(ITEMS), &lines, 200, truth);
        let best = history[50..].iter().filter(|set| **set == [0]).count();
        assert!(best >= 145, "{best} of 150");
        // And where they do not, they stay together.
        let truth = |set: &[usize]| 1e-3 / set.len() as f64;
        let history = simulate(&mut SizeClass::new(ITEMS), &lines, 200, truth);
        assert!(history[50..].iter().filter(|set| set.len() == 3).count() >= 145);
    }

    #[test]
    fn one_disturbed_run_does_not_count_and_a_change_is_noticed() {
        let lines = [CostLine::new(0.0, 1e-6), CostLine::new(0.0, 1.2e-6)];
        let mut class = SizeClass::new(ITEMS);
        let first = |set: &[usize]| if set == [0] { 1e-3 } else { 1.9e-3 };
        simulate(&mut class, &lines, 40, first);
        ran(&mut class, &[0], &[0], 1.0);
        let history = simulate(&mut class, &lines, 20, first);
        assert!(history.iter().filter(|set| **set == [0]).count() >= 19);
        // The other has become faster, which only a trial can show.
        let second = |set: &[usize]| if set == [1] { 0.5e-3 } else { 1e-3 };
        let history = simulate(&mut class, &lines, 1500, second);
        assert!(history[1400..].iter().filter(|set| **set == [1]).count() >= 95);
    }

    #[test]
    fn a_set_that_is_not_used_does_not_look_faster_without_end() {
        let lines = [CostLine::new(0.0, 1e-6), CostLine::new(0.0, 1e-6)];
        let turn = Cell::new(0u32);
        // The one that is used gets slower at a stroke and faster bit by bit, over and over; the other never changes.
        let truth = |set: &[usize]| {
            turn.set(turn.get() + 1);
            let sawtooth = 1.2 - 0.02 * f64::from(turn.get() % 10);
            if set == [0] { 1e-3 * sawtooth } else { 1.5e-3 }
        };
        let history = simulate(&mut SizeClass::new(ITEMS), &lines, 600, truth);
        let best = history[100..].iter().filter(|set| **set == [0]).count();
        assert!(best >= 480, "{best} of 500");
    }

    #[test]
    fn of_equal_sets_the_current_one_stays() {
        let lines = [CostLine::new(1e-4, 1e-9); 2];
        let noise = Cell::new(0u32);
        // All sets take the same time, to a hundredth.
        let truth = |_: &[usize]| {
            noise.set(noise.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            1e-4 * (1.0 + f64::from(noise.get() >> 24) / 25_600.0)
        };
        let history = simulate(&mut SizeClass::new(ITEMS), &lines, 400, truth);
        let changes = history[64..].windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes <= 20, "{changes}");
    }

    #[test]
    fn devices_without_work_are_left_out() {
        let lines = [CostLine::new(0.0, 1e-6), CostLine::new(0.0, 1e-6), CostLine::new(0.0, 2e-6)];
        let mut class = SizeClass::new(ITEMS);
        simulate(&mut class, &lines, 40, |set| if set == [0] { 2e-3 } else { 5e-3 });
        // Device 0 was slow for a while. Now it is fast, and does all the work before the others have started.
        ran(&mut class, &[0, 1, 2], &[0], 1e-3);
        let history = simulate(&mut class, &lines, 40, |_| 0.9e-3);
        assert!(history.iter().filter(|set| **set == [0]).count() >= 38, "{history:?}");
    }

    /// Simulates `count` programs of `runs` runs each. In each program one device is ready at once, and a faster device
    /// after a second: it is prepared beside the other, or the run waits for it. Returns the seconds of all programs, and
    /// how often the faster device was prepared.
    fn programs(count: usize, runs: usize) -> (f64, usize) {
        let mut class = SizeClass::new(ITEMS);
        for _ in 0..3 {
            ran(&mut class, &[0], &[0], 10e-3);
            ran(&mut class, &[1], &[1], 1e-3);
        }
        let ready = [CostLine::new(0.0, 10e-6), CostLine::new(0.0, 1e-6)];
        let now = [ready[0], CostLine::new(1.0, 1e-6)];
        let (mut total, mut made_ready) = (0.0, 0);
        for _ in 0..count {
            let (mut clock, mut ready_at) = (0.0f64, f64::INFINITY);
            for _ in 0..runs {
                let mut candidates = candidates(2);
                candidates[1].needs_preparation = clock < ready_at;
                let lines = if candidates[1].needs_preparation { now.to_vec() } else { ready.to_vec() };
                let lines = CostLines { optimistic: lines.clone(), fitted: lines, ready: ready.to_vec() };
                let set = used(&class.decide(ITEMS, &candidates, &lines).joint);
                if candidates[1].needs_preparation && set.contains(&1) {
                    made_ready += 1;
                    ready_at = ready_at.min(clock + 1.0);
                }
                let (worked, seconds) = match set[..] {
                    [0] => (vec![0], 10e-3),
                    [1] => (vec![1], 1e-3),
                    _ if candidates[1].needs_preparation => (vec![0], 10e-3),
                    _ => (vec![0, 1], 1e-3),
                };
                ran(&mut class, &set, &worked, seconds);
                clock = if worked == [1] { clock.max(ready_at) + seconds } else { clock + seconds };
            }
            total += clock;
        }
        (total, made_ready)
    }

    #[test]
    fn no_more_than_twice_the_least_possible_is_lost_by_preparing_a_device_or_not() {
        for runs in [1, 10, 80, 120, 150, 400, 4000] {
            let least = (10e-3 * runs as f64).min(1.0 + 1e-3 * runs as f64);
            let (took, made_ready) = programs(1, runs);
            assert!(took <= 2.05 * least, "{runs} runs: {took} s, and {least} s was possible");
            assert!(made_ready <= 12, "{made_ready}");
        }
    }

    #[test]
    fn a_missed_set_is_prepared_however_many_devices_are_not_ready() {
        const CARDS: usize = 30;
        let ready: Vec<CostLine> =
            (0..=CARDS).map(|it| CostLine::new(0.0, if it == 0 { 10e-6 } else { 1e-6 })).collect();
        let fitted: Vec<CostLine> =
            (0..=CARDS).map(|it| if it == 0 { ready[0] } else { CostLine::new(1.0, 1e-6) }).collect();
        let lines = CostLines { optimistic: fitted.clone(), fitted, ready };
        let mut candidates = candidates(CARDS + 1);
        candidates[1..].iter_mut().for_each(|card| card.needs_preparation = true);
        let mut class = SizeClass::new(ITEMS);
        // A run with the processor alone takes 10 ms, one with all others far less, once they are ready after a second.
        let runs = (0..1000).take_while(|_| {
            let set = used(&class.decide(ITEMS, &candidates, &lines).joint);
            ran(&mut class, &[0], &[0], 10e-3);
            set == [0]
        });
        assert!(runs.count() < 250, "they are not made ready");
    }

    #[test]
    fn a_device_that_never_stays_ready_costs_next_to_nothing() {
        let (took, made_ready) = programs(2000, 20);
        assert!(took <= 400.0 * 1.03, "{took} s instead of 400 s");
        assert!(made_ready <= 60, "{made_ready}");
    }

    #[test]
    fn the_number_of_sets_that_are_remembered_is_bounded() {
        let mut class = SizeClass::new(ITEMS);
        for number in 0..200 {
            let devices = vec![number.to_string()];
            class.report(
                Measurements { worked: devices.clone(), devices, wall: Duration::from_millis(1), runs: 1 },
                1e-3,
            );
        }
        assert_eq!(class.sets.len(), MAX_SETS);
    }
}
