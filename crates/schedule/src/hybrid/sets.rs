//! Which set of devices to use, by one rule.
//!
//! Runs of about the same number of items are of one size class. In it, a set of devices has a time: what its runs took,
//! start-up taken out, else what is predicted. What devices do alone does not say all of what they do together, since
//! threads have to be woken, and memory and the bus are shared: so what was measured counts before what is predicted. A
//! set also has an entry cost: what its first run takes longer than the next ones, because devices have to be made ready
//! or were not used for a while.
//!
//! The fastest set whose devices are ready is the current one. Another is tried as soon as the trial is paid for:
//!
//! ```text
//! entry cost + expected loss  ≤  purse + time missed + expected gain
//! ```
//!
//! - The *purse* earns 2 % of the time of the current set's runs, and pays for trials. The most promising set is tried
//!   first, and each one becomes more promising while others are tried, so all have their turn.
//! - *Time missed* is what runs have lost, by what is known, because a faster set was not ready. No more than twice the
//!   least possible is lost so, however many runs follow.
//! - The *gain* is that of the runs of the trial, at best: a set that was never measured may be faster than predicted.

use serde::{Deserialize, Serialize};

use super::{
    Candidate, Measurements,
    joint::{self, Joint, Line},
};

/// The part of the time that trials may cost.
const EARNED: f64 = 0.02;
/// The purse of a new size class, in runs.
const CAPITAL: f64 = 4.0;
/// A trial is of so many runs, or of runs for so many seconds.
const TRIAL: (f64, f64) = (8.0, 0.02);
/// What each run of a trial is taken to cost at least, as a part of one with the current set: devices that were not used for
/// a while are slow.
const WAKING: f64 = 0.25;
/// Runs shorter than this, in seconds, are mostly overhead, which is hard to predict and cheap to try.
const SHORT: f64 = 5e-3;
/// With each trial of another set, one that is not tried looks faster by this factor.
const FADING: f64 = 0.93;
/// Whenever a set does not do as well again as it once did, that counts for so much less.
const UNCONFIRMED: f64 = 1.05;
/// What was used last stays until something else is faster by more than chance.
const STEADY: f64 = 1.01;
/// Several devices are only worth it if they are faster than one by more than runs differ from each other anyway.
const COMPANY: f64 = 1.05;
/// So many of a set's last reports are remembered, and so many sets.
const REMEMBERED: usize = 5;
const MOST_SETS: usize = 24;

/// The size class of a run: those whose numbers of items differ by less than a fifth are alike.
pub(crate) fn size_class(items: u64) -> u32 {
    ((items.max(1) as f64).log2() * 4.0).round() as u32
}

/// What is known of runs of one size class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SizeClass {
    /// The number of items that times are kept for.
    pub(super) items: u64,
    sets: Vec<Set>,
    /// The devices that were last used because they were fastest.
    current: Vec<String>,
    /// The seconds that trials may cost.
    purse: f64,
    /// How many trials there were.
    trials: u32,
    /// Runs since the last decision.
    #[serde(skip)]
    runs: u32,
}

/// What is known of runs with the same devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Set {
    devices: Vec<String>,
    /// How long its last runs took, the last ones last.
    times: Vec<f64>,
    /// The best that it has shown, in seconds. With each report that does not confirm it, it counts for less.
    best: f64,
    /// Whether some of the devices had nothing to do.
    has_idle: bool,
    /// How many trials there were when it was last used.
    used: u32,
    /// The seconds that runs have lost because it was not ready.
    #[serde(skip)]
    missed: f64,
    /// How often it was made ready on account of that.
    #[serde(skip)]
    entered: i32,
}

impl Set {
    fn new(devices: Vec<String>, used: u32) -> Self {
        Set { devices, times: Vec::new(), best: f64::MAX, has_idle: false, used, missed: 0.0, entered: 0 }
    }

    /// The second best of the last times: whatever disturbs a run only ever makes it longer, but one of them may have been
    /// lucky. Of several devices the median, since what they take together varies of itself.
    fn seconds(&self) -> Option<f64> {
        let mut sorted = self.times.clone();
        sorted.sort_by(f64::total_cmp);
        let index = if self.devices.len() > 1 { sorted.len() / 2 } else { usize::from(sorted.len() > 2) };
        sorted.get(index).copied()
    }

    fn add(&mut self, seconds: f64) {
        // Several devices have to be faster than one.
        let seconds = seconds * if self.devices.len() > 1 { COMPANY } else { 1.0 };
        self.best = seconds.min(self.best * UNCONFIRMED);
        self.times.push(seconds);
        if self.times.len() > REMEMBERED {
            self.times.remove(0);
        }
    }
}

/// How many times as fast as it seems to be a set may be that so many reports tell of.
fn doubt(seconds: f64, reports: usize) -> f64 {
    match (reports, seconds < SHORT) {
        (0, true) => 4.0,
        (0, false) | (1, true) => 1.5,
        (2, true) => 1.2,
        _ => 1.0,
    }
}

/// A set that could be used.
struct Contender {
    /// Which candidates it has, in order.
    members: Vec<usize>,
    /// Their names, sorted.
    devices: Vec<String>,
    is_measured: bool,
    /// What a run takes once all are ready; what the next one will take, if it is as the last one was; and at best.
    seconds: f64,
    likely: f64,
    at_best: f64,
    /// What the first one takes longer.
    entry: f64,
    /// Trials of other sets since it was used.
    age: u32,
    missed: f64,
    has_idle: bool,
}

impl Contender {
    /// What a trial costs beyond what it is expected to gain and what was missed, where the current set is another.
    fn price(&self, current: &Contender) -> f64 {
        let runs = (TRIAL.1 / self.seconds).clamp(1.0, TRIAL.0);
        let waking = WAKING * current.seconds;
        let loss = (self.likely - current.seconds).max(0.0);
        // Those who do all the work gain nothing by company.
        let gain = if self.has_idle { 0.0 } else { (current.seconds - self.at_best).max(0.0) };
        // Devices that are not ready make up for it in one run: nobody knows whether others follow.
        let gaining = if self.entry > 0.0 { 1.0 } else { runs };
        (self.entry - current.entry).max(0.0) + runs * (waking + loss) - gaining * gain - self.missed
    }

    /// How long a run may take, considering how long it was not looked at.
    fn promise(&self) -> f64 {
        self.at_best * FADING.powf(f64::from(self.age))
    }
}

/// What was decided.
#[derive(Debug)]
pub(super) struct Decided {
    /// How long the run should take, and which candidates do how much.
    pub(super) joint: Joint,
    /// Whether something else may be faster, so that it should not be kept for long.
    pub(super) explores: bool,
    /// Whether it is only to find out how fast it is.
    pub(super) is_trial: bool,
}

/// What is expected of candidates, each in its place.
pub(super) struct Lines {
    /// As they are, with the benefit of the doubt for one that would do far more than it ever did.
    pub(super) now: Vec<Line>,
    /// The same without it.
    pub(super) sober: Vec<Line>,
    /// The same, with it, once all are ready.
    pub(super) ready: Vec<Line>,
}

impl SizeClass {
    pub(super) fn new(items: u64) -> Self {
        let (sets, current) = (Vec::new(), Vec::new());
        SizeClass { items, sets, current, purse: 0.0, trials: 0, runs: 0 }
    }

    /// Learns from runs that took so many seconds for the number of items that times are kept for.
    pub(super) fn report(&mut self, measurements: Measurements, seconds: f64) {
        let Measurements { mut devices, mut worked, runs, .. } = measurements;
        devices.sort();
        worked.sort();
        if self.sets.is_empty() {
            self.purse = CAPITAL * seconds;
        }
        let has_idle = !worked.is_empty() && worked != devices;
        if has_idle {
            // Those who did all the work take no longer without the others.
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
            // One that was disturbed earns no more than others.
            let usual = set.seconds().unwrap_or(seconds).min(seconds);
            self.purse += EARNED * usual * f64::from(runs);
            self.runs = self.runs.saturating_add(runs);
        }
    }

    /// What is known of a set of devices.
    fn set(&mut self, devices: Vec<String>) -> &mut Set {
        let index = self.sets.iter().position(|set| set.devices == devices).unwrap_or_else(|| {
            if self.sets.len() >= MOST_SETS {
                let others = (0..self.sets.len()).filter(|&index| self.sets[index].devices != self.current);
                let oldest = others.min_by_key(|&index| self.sets[index].used);
                oldest.map(|oldest| self.sets.remove(oldest));
            }
            self.sets.push(Set::new(devices, self.trials));
            self.sets.len() - 1
        });
        &mut self.sets[index]
    }

    /// The set of devices to use for a run of so many items.
    pub(super) fn decide(&mut self, items: u64, candidates: &[Candidate], lines: &Lines) -> Decided {
        let mut contenders = self.contenders(items, candidates, lines);
        let cost = |it: &Contender| if it.has_idle { f64::INFINITY } else { it.seconds + it.entry };
        let least = contenders.iter().map(cost).fold(f64::INFINITY, f64::min);
        let stays = |it: &Contender| it.devices == self.current && cost(it) <= least * STEADY;
        let settled = contenders.iter().position(stays);
        // The first of equals, in spite of rounding.
        let fastest = || contenders.iter().position(|it| cost(it) <= least * (1.0 + 1e-9));
        let Some(current) = settled.or_else(fastest) else {
            let joint = joint::fastest(&lines.now, items);
            return Decided { joint, explores: true, is_trial: false };
        };
        self.miss(&mut contenders, current);
        if settled.is_none() {
            // What it did a while ago is no reason to go on with it.
            let set = self.set(contenders[current].devices.clone());
            set.times.drain(..set.times.len().saturating_sub(1));
            self.current.clone_from(&contenders[current].devices);
        }
        let price = |index: &usize| contenders[*index].price(&contenders[current]);
        let others = || (0..contenders.len()).filter(|&index| index != current);
        let promise = |&a: &usize, &b: &usize| contenders[a].promise().total_cmp(&contenders[b].promise());
        let promising = others().min_by(promise);
        // It saves for the next trial, and no more.
        let saved = promising.as_ref().map_or(0.0, price).max(CAPITAL * contenders[current].seconds);
        self.purse = self.purse.min(saved);
        let free = || others().filter(|index| price(index) <= 0.0).min_by(promise);
        let paid = || promising.filter(|index| price(index) <= self.purse);
        // Nothing can be compared with a set that has not shown anything.
        let tried = if contenders[current].is_measured { free().or_else(paid) } else { None };
        if let Some(tried) = tried {
            self.purse -= price(&tried).max(0.0);
            self.trials = self.trials.wrapping_add(1);
            let trials = self.trials;
            let set = self.set(contenders[tried].devices.clone());
            (set.used, set.missed) = (trials, 0.0);
            set.entered += i32::from(contenders[tried].entry > 0.0);
        }
        let chosen = &contenders[tried.unwrap_or(current)];
        let joint =
            Joint { seconds: chosen.seconds + chosen.entry, ..only(items, &lines.now, &chosen.members) };
        Decided { joint, explores: tried.is_some() || settled.is_none(), is_trial: tried.is_some() }
    }

    /// Counts what the runs since the last decision have lost because a faster set was not ready. A set that was made
    /// ready for it before and is not ready any more has to be missed for twice as long.
    fn miss(&mut self, contenders: &mut [Contender], current: usize) {
        let runs = f64::from(std::mem::take(&mut self.runs));
        let (seconds, entry) = (contenders[current].seconds, contenders[current].entry);
        // Only of the fastest one, so that there is one account of it however many devices there are.
        let missed = contenders.iter_mut().filter(|it| it.entry > entry && it.seconds < seconds);
        if let Some(contender) = missed.min_by(|a, b| a.seconds.total_cmp(&b.seconds)) {
            let set = self.set(contender.devices.clone());
            set.missed += (seconds - contender.seconds) * runs;
            contender.missed = set.missed * 0.5f64.powi(set.entered);
        }
    }

    /// The sets that may be worth using: the best by prediction, the same without those who would do least, each device
    /// alone, and what was used before.
    fn contenders(&self, items: u64, candidates: &[Candidate], lines: &Lines) -> Vec<Contender> {
        let sober = joint::fastest(&lines.sober, items);
        let best = joint::fastest(&lines.now, items);
        let ready = joint::fastest(&lines.ready, items);
        // Times are kept for another number of items.
        let scale = if items == self.items {
            1.0
        } else {
            ready.seconds / joint::fastest(&lines.ready, self.items).seconds.max(f64::MIN_POSITIVE)
        };
        // Hope is a reason to use a device, and none to do without another.
        let all = || 0..candidates.len();
        let mut members: Vec<Vec<usize>> =
            vec![all().filter(|&it| best.items[it] > 0.0 || sober.items[it] > 0.0).collect()];
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
            let is_cold = members.iter().any(|&it| candidates[it].cold);
            let entry = if is_cold { only(items, &lines.now, &members).seconds - predicted() } else { 0.0 };
            let measured = set.and_then(|set| Some(set.seconds()? * scale));
            let seconds = measured.unwrap_or_else(predicted).max(1e-12);
            let last = set.and_then(|set| set.times.last()).map_or(seconds, |last| last * scale);
            let shown = set.map_or(f64::MAX, |set| set.best * scale);
            Contender {
                is_measured: measured.is_some(),
                seconds,
                likely: last.min(seconds),
                at_best: shown.min(seconds) / doubt(seconds, set.map_or(0, |set| set.times.len())),
                entry: entry.max(0.0),
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

/// What some of the candidates would do without the others.
pub(super) fn only(items: u64, lines: &[Line], members: &[usize]) -> Joint {
    let own: Vec<Line> = members.iter().map(|&member| lines[member]).collect();
    let Joint { seconds, items: counts } = joint::fastest(&own, items);
    let mut all = vec![0.0; lines.len()];
    for (&member, count) in members.iter().zip(counts) {
        // Each member takes part: how much it gets is seen when it runs.
        all[member] = count.max(f64::MIN_POSITIVE);
    }
    Joint { seconds, items: all }
}

#[cfg(test)]
mod test {
    use std::{cell::Cell, time::Duration};

    use super::*;

    const NAMES: [&str; 3] = ["a", "b", "c"];
    const ITEMS: u64 = 1000;

    fn candidates(count: usize) -> Vec<Candidate> {
        let candidate = |name: &&str| Candidate { device: (*name).to_owned(), score: 1.0, cold: false };
        NAMES.iter().take(count).map(candidate).collect()
    }

    fn used(joint: &Joint) -> Vec<usize> {
        (0..joint.items.len()).filter(|&index| joint.items[index] > 0.0).collect()
    }

    /// A run with these devices, of which some worked.
    fn ran(class: &mut SizeClass, set: &[usize], worked: &[usize], seconds: f64) {
        let named = |set: &[usize]| set.iter().map(|&index| NAMES[index].to_owned()).collect();
        let wall = Duration::from_secs_f64(seconds);
        class.report(Measurements { worked: named(worked), devices: named(set), wall, runs: 1 }, seconds);
    }

    fn decide(class: &mut SizeClass, lines: &[Line], candidates: &[Candidate]) -> Vec<usize> {
        let lines = Lines { now: lines.to_vec(), sober: lines.to_vec(), ready: lines.to_vec() };
        used(&class.decide(ITEMS, candidates, &lines).joint)
    }

    /// Decides and runs so often, where the sets really take what `truth` says. Gives what was used.
    fn live(
        class: &mut SizeClass,
        lines: &[Line],
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
    fn what_is_best_on_paper_stays_only_if_it_is() {
        let lines = [Line::new(0.0, 1e-6), Line::new(0.0, 1e-6), Line::new(0.0, 2e-6)];
        // Together they get into each other's way.
        let truth = |set: &[usize]| if set.len() > 1 { 5e-3 } else { 1e-3 * (1.0 + set[0] as f64 / 10.0) };
        let history = live(&mut SizeClass::new(ITEMS), &lines, 200, truth);
        let best = history[50..].iter().filter(|set| **set == [0]).count();
        assert!(best >= 145, "{best} of 150");
        // And where they do not, they stay together.
        let truth = |set: &[usize]| 1e-3 / set.len() as f64;
        let history = live(&mut SizeClass::new(ITEMS), &lines, 200, truth);
        assert!(history[50..].iter().filter(|set| set.len() == 3).count() >= 145);
    }

    #[test]
    fn one_disturbed_run_does_not_count_and_a_change_is_noticed() {
        let lines = [Line::new(0.0, 1e-6), Line::new(0.0, 1.2e-6)];
        let mut class = SizeClass::new(ITEMS);
        let first = |set: &[usize]| if set == [0] { 1e-3 } else { 1.9e-3 };
        live(&mut class, &lines, 40, first);
        ran(&mut class, &[0], &[0], 1.0);
        let history = live(&mut class, &lines, 20, first);
        assert!(history.iter().filter(|set| **set == [0]).count() >= 19);
        // The other has become faster: nobody tells, but it is tried now and then.
        let second = |set: &[usize]| if set == [1] { 0.5e-3 } else { 1e-3 };
        let history = live(&mut class, &lines, 1500, second);
        assert!(history[1400..].iter().filter(|set| **set == [1]).count() >= 95);
    }

    #[test]
    fn what_was_not_used_for_long_is_not_thought_to_have_become_ever_faster() {
        let lines = [Line::new(0.0, 1e-6), Line::new(0.0, 1e-6)];
        let turn = Cell::new(0u32);
        // The one that is used gets slower at a stroke and faster bit by bit, over and over; the other never changes.
        let truth = |set: &[usize]| {
            turn.set(turn.get() + 1);
            let sawtooth = 1.2 - 0.02 * f64::from(turn.get() % 10);
            if set == [0] { 1e-3 * sawtooth } else { 1.5e-3 }
        };
        let history = live(&mut SizeClass::new(ITEMS), &lines, 600, truth);
        let best = history[100..].iter().filter(|set| **set == [0]).count();
        assert!(best >= 480, "{best} of 500");
    }

    #[test]
    fn of_equals_the_same_one_stays() {
        let lines = [Line::new(1e-4, 1e-9); 2];
        let noise = Cell::new(0u32);
        // Whoever it is, a run takes as long, to a hundredth.
        let truth = |_: &[usize]| {
            noise.set(noise.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            1e-4 * (1.0 + f64::from(noise.get() >> 24) / 25_600.0)
        };
        let history = live(&mut SizeClass::new(ITEMS), &lines, 400, truth);
        let changes = history[64..].windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes <= 20, "{changes}");
    }

    #[test]
    fn who_is_there_in_vain_is_done_without() {
        let lines = [Line::new(0.0, 1e-6), Line::new(0.0, 1e-6), Line::new(0.0, 2e-6)];
        let mut class = SizeClass::new(ITEMS);
        live(&mut class, &lines, 40, |set| if set == [0] { 2e-3 } else { 5e-3 });
        // It was slow for a while; now it is not, and does all the work before others are awake.
        ran(&mut class, &[0, 1, 2], &[0], 1e-3);
        let history = live(&mut class, &lines, 40, |_| 0.9e-3);
        assert!(history.iter().filter(|set| **set == [0]).count() >= 38, "{history:?}");
    }

    /// So many programs of so many runs, in each of which one device is ready at once and a faster one after a second: it
    /// is made ready beside the other, or the run waits for it. Gives the seconds that all took, and how often the faster
    /// one was made ready.
    fn programs(count: usize, runs: usize) -> (f64, usize) {
        let mut class = SizeClass::new(ITEMS);
        for _ in 0..3 {
            ran(&mut class, &[0], &[0], 10e-3);
            ran(&mut class, &[1], &[1], 1e-3);
        }
        let ready = [Line::new(0.0, 10e-6), Line::new(0.0, 1e-6)];
        let now = [ready[0], Line::new(1.0, 1e-6)];
        let (mut total, mut made_ready) = (0.0, 0);
        for _ in 0..count {
            let (mut clock, mut ready_at) = (0.0f64, f64::INFINITY);
            for _ in 0..runs {
                let mut candidates = candidates(2);
                candidates[1].cold = clock < ready_at;
                let lines = if candidates[1].cold { now.to_vec() } else { ready.to_vec() };
                let lines = Lines { now: lines.clone(), sober: lines, ready: ready.to_vec() };
                let set = used(&class.decide(ITEMS, &candidates, &lines).joint);
                if candidates[1].cold && set.contains(&1) {
                    made_ready += 1;
                    ready_at = ready_at.min(clock + 1.0);
                }
                let (worked, seconds) = match set[..] {
                    [0] => (vec![0], 10e-3),
                    [1] => (vec![1], 1e-3),
                    _ if candidates[1].cold => (vec![0], 10e-3),
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
    fn no_more_than_twice_the_least_possible_is_lost_by_making_a_device_ready_or_not() {
        for runs in [1, 10, 80, 120, 150, 400, 4000] {
            let least = (10e-3 * runs as f64).min(1.0 + 1e-3 * runs as f64);
            let (took, made_ready) = programs(1, runs);
            assert!(took <= 2.05 * least, "{runs} runs: {took} s, and {least} s was possible");
            assert!(made_ready <= 12, "{made_ready}");
        }
    }

    #[test]
    fn a_set_that_is_missed_is_made_ready_however_many_devices_are_not() {
        const CARDS: usize = 30;
        let ready: Vec<Line> =
            (0..=CARDS).map(|it| Line::new(0.0, if it == 0 { 10e-6 } else { 1e-6 })).collect();
        let now: Vec<Line> =
            (0..=CARDS).map(|it| if it == 0 { ready[0] } else { Line::new(1.0, 1e-6) }).collect();
        let lines = Lines { now: now.clone(), sober: now, ready };
        let mut candidates = candidates(CARDS + 1);
        candidates[1..].iter_mut().for_each(|card| card.cold = true);
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
        assert_eq!(class.sets.len(), MOST_SETS);
    }
}
