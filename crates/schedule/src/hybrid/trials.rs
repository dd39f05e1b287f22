//! How long runs really took, by the devices that took part.
//!
//! What devices do alone does not say all of what they do together: threads have to be woken, memory and the bus are
//! shared. So the whole run is timed too. For a number of items, what was measured counts before what was reckoned: a
//! set of devices that looks best on paper is tried, and stays only if it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Candidate, Experience,
    joint::{self, Joint, Line},
};

/// A set counts as measured after so many runs of this length; until then it is tried while it may be the best.
fn enough(least: f64) -> usize {
    if least < SHORT { 3 } else { 1 }
}
/// Runs shorter than this, in seconds, are mostly overhead, which is hard to reckon and cheap to try.
const SHORT: f64 = 5e-3;
/// So many of a set's last runs are remembered.
const REMEMBERED: usize = 5;
/// A set that was never tried is, if by reckoning it takes at most so many times as long as the best.
fn worth_trying(least: f64) -> f64 {
    if least < SHORT { 4.0 } else { 1.5 }
}
/// Now and then a set is measured again that is not in use, as often as that costs at most this part of the time: mostly
/// the one that has shown most, and once in so many times the one that was not looked at for longest.
const SPARE: f64 = 0.02;
const OLDEST: u32 = 4;
/// Then it is used for about so many runs, or for so many seconds.
const LOOKING: (f64, f64) = (8.0, 0.02);
/// Each of them takes so much longer than the best at least, as parts of that: who was not used for a while is slow.
const WAKING: f64 = 0.25;
/// A change is worth looking twice whether it was right.
const CHANGE: f64 = 2.0 * LOOKING.0 * WAKING;
/// It is one that took at most so many times as long as the best, or as is worth trying.
const WORTH_LOOKING: f64 = 2.0;
/// Whenever a set does not do as well again as it once did, that counts for so much less.
const FADING: f64 = 1.05;

/// What was used last stays until something else is faster by more than chance.
const STEADY: f64 = 1.01;
/// Where what is used becomes slower or faster by at most this part, so has the whole machine, and the others are taken
/// to have changed as much: what they did a while ago could otherwise not be compared. They are not taken to have changed
/// by more than this without having been seen.
const DRIFT: f64 = 0.1;
/// Several devices are only worth it if they are faster than one by more than runs differ from each other anyway.
const COMPANY: f64 = 1.05;

/// What is known of one task's runs as a whole, by about how many items they had.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Trials {
    sizes: BTreeMap<u32, Size>,
}

/// Runs of about the same number of items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Size {
    sets: Vec<Trial>,
    decisions: u32,
    /// The seconds that may be lost by looking what others do.
    spare: f64,
    /// How often that was done.
    looks: u32,
    /// The devices that were last used because they were fastest.
    settled: Vec<String>,
    /// How many times as slow the machine has become since the first run, as far as what is used tells.
    drift: f64,
}

/// Runs with the same devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Trial {
    devices: Vec<String>,
    /// Those that did something when it was last used.
    worked: Vec<String>,
    /// The last ones last.
    runs: Vec<Timed>,
    /// The best that it has shown, in seconds an item. It fades.
    best: f64,
    /// The decision that it was last used in.
    last: u32,
}

/// How long runs took once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Timed {
    seconds_per_item: f64,
    /// How slow the machine was then.
    drift: f64,
}

impl Trial {
    /// The second best of the last runs, on the machine as it is now: whatever disturbs a run only ever makes it longer,
    /// and the first ones with some devices are those in which they are got to know; but one of them may have been lucky.
    /// Of several devices the median, since what they take together varies of itself.
    fn seconds_per_item(&self, drift: f64) -> f64 {
        let now = |timed: &Timed| {
            timed.seconds_per_item * (drift / timed.drift).clamp(1.0 / (1.0 + DRIFT), 1.0 + DRIFT)
        };
        let mut sorted: Vec<f64> = self.runs.iter().map(now).collect();
        sorted.sort_by(f64::total_cmp);
        let company = self.devices.len() > 1;
        let index = if company { sorted.len() / 2 } else { usize::from(sorted.len() > 2) };
        sorted.get(index).copied().unwrap_or(f64::INFINITY) * if company { COMPANY } else { 1.0 }
    }
}

/// What was decided.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) joint: Joint,
    /// How long that should take: as measured, or as reckoned where it was not.
    pub(super) seconds: f64,
    /// Whether something else may be faster, so that it should not be kept for long.
    pub(super) explores: bool,
    /// Whether it is only to find out how fast it is.
    pub(super) tries: bool,
}

/// Some of the candidates, and what they would do together.
struct Set {
    members: Vec<usize>,
    reckoned: Joint,
}

impl Trials {
    pub(super) fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Keeps what runs of so many items were like.
    pub(super) fn add(&mut self, items: u64, experience: Experience) {
        let Experience { mut devices, mut worked, wall, runs } = experience;
        let seconds = wall.as_secs_f64();
        devices.sort();
        worked.sort();
        let size = self.sizes.entry(size_of_run(items)).or_default();
        let last = size.decisions;
        let index = size.sets.iter().position(|trial| trial.devices == devices).unwrap_or_else(|| {
            size.sets.push(Trial { devices, worked: Vec::new(), runs: Vec::new(), best: f64::MAX, last });
            size.sets.len() - 1
        });
        let trial = &mut size.sets[index];
        let before = trial.seconds_per_item(size.drift);
        (trial.last, trial.worked) = (last, worked);
        let timed = Timed { seconds_per_item: seconds / items.max(1) as f64, drift: size.drift };
        trial.best = timed.seconds_per_item.min(trial.best * FADING);
        trial.runs.push(timed);
        if trial.runs.len() > REMEMBERED {
            trial.runs.remove(0);
        }
        if trial.devices == size.settled {
            size.spare += SPARE * seconds * f64::from(runs);
            let change = trial.seconds_per_item(size.drift) / before;
            if (change - 1.0).abs() <= DRIFT {
                size.drift *= change;
            }
            // What is in use shows itself how slow it is now.
            trial.runs.iter_mut().for_each(|timed| timed.drift = size.drift);
        }
    }

    /// The set of devices to use of those that are ready, at least one: before a device is, what it did when it was says
    /// nothing.
    pub(super) fn decide(&mut self, items: u64, candidates: &[Candidate], lines: &[Line]) -> Decided {
        let ready: Vec<usize> = (0..candidates.len()).filter(|&index| !candidates[index].cold).collect();
        let names: Vec<&str> = ready.iter().map(|&index| candidates[index].device.as_str()).collect();
        let own: Vec<Line> = ready.iter().map(|&index| lines[index]).collect();
        let mut decided = self.of_ready(items, &names, &own);
        let mut all = vec![0.0; lines.len()];
        ready.iter().zip(decided.joint.items).for_each(|(&index, count)| all[index] = count);
        decided.joint.items = all;
        decided
    }

    /// The candidates that took least together, where that was measured well enough, and how long. Whether they are
    /// ready makes no difference.
    pub(super) fn fastest(&self, items: u64, candidates: &[Candidate]) -> Option<(Vec<usize>, f64)> {
        let names: Vec<&str> = candidates.iter().map(|candidate| candidate.device.as_str()).collect();
        let size = self.sizes.get(&size_of_run(items))?;
        let seconds = |members: Vec<usize>| {
            let trial = size.find(&members, &names)?;
            let seconds = trial.seconds_per_item(size.drift) * items as f64;
            (trial.runs.len() >= enough(seconds)).then_some((members, seconds))
        };
        size.known(&names).into_iter().filter_map(seconds).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn of_ready(&mut self, items: u64, names: &[&str], lines: &[Line]) -> Decided {
        let best = joint::fastest(lines, items);
        let Some(size) = self.sizes.get_mut(&size_of_run(items)) else {
            return Decided { seconds: best.seconds, joint: best, explores: true, tries: false };
        };
        size.decisions = size.decisions.wrapping_add(1);
        let mut sets = sets(items, lines, best, size.known(names));
        let trials: Vec<Option<&Trial>> = sets.iter().map(|set| size.find(&set.members, names)).collect();
        let measured = |trial: &Trial| trial.seconds_per_item(size.drift) * items as f64;
        let known = sets.iter().zip(&trials);
        let known: Vec<f64> =
            known.map(|(set, trial)| trial.map_or(set.reckoned.seconds, measured)).collect();
        let seconds = without_idle(&sets, names, &trials, &known);
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let enough = enough(least);
        let is_measured = |index: usize| trials[index].is_some_and(|it| it.runs.len() >= enough);
        // A device that never did such a run is seen once, however slow it should be, if that costs little.
        let is_new = |index: usize| sets[index].members.len() == 1 && trials[index].is_none();
        let untried = |&index: &usize| {
            let promising = !is_measured(index) && seconds[index] <= least * worth_trying(least);
            promising || is_new(index) && seconds[index] < SHORT
        };
        let unused = |index: &usize| trials[*index].map_or(0, |trial| trial.last);
        let shown = |index: usize| trials[index].map_or(seconds[index], |trial| trial.best * items as f64);
        let named = |index: usize| sorted_names(&sets[index].members, names);
        let settled =
            (0..sets.len()).find(|&index| seconds[index] <= least * STEADY && named(index) == size.settled);
        let fastest = || (0..sets.len()).min_by(|&a, &b| seconds[a].total_cmp(&seconds[b]));
        let at_most = least * WORTH_LOOKING.min(worth_trying(least));
        let others = || (0..sets.len()).filter(|&it| Some(it) != settled);
        let other = || {
            if size.looks % OLDEST == OLDEST - 1 {
                others().filter(|&it| seconds[it] <= at_most).min_by_key(unused)
            } else {
                others().filter(|&it| shown(it) <= at_most).min_by(|&a, &b| shown(a).total_cmp(&shown(b)))
            }
        };
        let price = |index: usize| {
            let runs = (LOOKING.1 / least).clamp(1.0, LOOKING.0);
            runs * (known[index] - least).max(WAKING * least)
        };
        let untried = (0..sets.len()).find(untried);
        let looked_at = if untried.is_none() { other().filter(|&it| price(it) <= size.spare) } else { None };
        let (explored, price) = (untried.or(looked_at), looked_at.map(price));
        let Some(chosen) = explored.or(settled).or_else(fastest) else {
            let joint = joint::fastest(lines, items);
            return Decided { seconds: joint.seconds, joint, explores: true, tries: false };
        };
        // Whoever takes the place of another has to show soon that it is faster.
        let explores = explored.or(settled) != settled || settled.is_none();
        if explored.is_none() && settled.is_none() {
            size.settle(named(chosen).into_iter().map(str::to_owned).collect());
            size.spare = CHANGE * least;
        }
        if let Some(price) = price {
            size.spare = (size.spare - price).min(CHANGE * least);
            size.looks = size.looks.wrapping_add(1);
        }
        let (seconds, tries) = (seconds[chosen], explored.is_some());
        Decided { joint: sets.swap_remove(chosen).reckoned, seconds, explores, tries }
    }
}

impl Default for Size {
    fn default() -> Self {
        Size { sets: Vec::new(), decisions: 0, spare: 0.0, looks: 0, settled: Vec::new(), drift: 1.0 }
    }
}

impl Size {
    /// The sets that were tried and whose members are all there.
    fn known(&self, names: &[&str]) -> Vec<Vec<usize>> {
        let place = |device: &String| names.iter().position(|name| name == device);
        let members = |trial: &Trial| trial.devices.iter().map(place).collect();
        self.sets.iter().filter_map(members).collect()
    }

    /// These are used from now on. What they did a while ago is no reason to go on with them.
    fn settle(&mut self, devices: Vec<String>) {
        if let Some(trial) = self.sets.iter_mut().find(|trial| trial.devices == devices) {
            trial.runs.drain(..trial.runs.len().saturating_sub(1));
        }
        self.settled = devices;
    }

    fn find(&self, members: &[usize], names: &[&str]) -> Option<&Trial> {
        let devices = sorted_names(members, names);
        self.sets.iter().find(|trial| trial.devices == devices)
    }
}

/// What the sets take, where none that had members in vain counts: those who did all the work take no longer without
/// them.
fn without_idle(sets: &[Set], names: &[&str], trials: &[Option<&Trial>], known: &[f64]) -> Vec<f64> {
    let mut seconds = known.to_vec();
    for (index, trial) in trials.iter().enumerate() {
        let Some(trial) = trial else { continue };
        let workers = |other: &Set| sorted_names(&other.members, names) == trial.worked;
        if let Some(workers) = sets.iter().position(workers).filter(|&workers| workers != index) {
            seconds[workers] = seconds[workers].min(known[index]);
            seconds[index] = f64::INFINITY;
        }
    }
    seconds
}

fn sorted_names<'n>(members: &[usize], names: &[&'n str]) -> Vec<&'n str> {
    let mut devices: Vec<&str> = members.iter().map(|&member| names[member]).collect();
    devices.sort_unstable();
    devices
}

/// The size class of a run: those whose numbers of items differ by less than a fifth are alike.
pub(crate) fn size_of_run(items: u64) -> u32 {
    ((items.max(1) as f64).log2() * 4.0).round() as u32
}

/// The sets that may be worth using: the best by reckoning, the same without those who would do least, each device
/// alone, and what was tried before.
fn sets(items: u64, lines: &[Line], best: Joint, known: Vec<Vec<usize>>) -> Vec<Set> {
    let mut order: Vec<usize> = (0..lines.len()).filter(|&index| best.items[index] > 0.0).collect();
    order.sort_by(|&a, &b| best.items[b].total_cmp(&best.items[a]).then(a.cmp(&b)));
    let mut members: Vec<Vec<usize>> = (2..=order.len()).rev().map(|count| order[..count].to_vec()).collect();
    members.extend((0..lines.len()).map(|alone| vec![alone]));
    let alike = |a: &[usize], b: &[usize]| a.len() == b.len() && a.iter().all(|member| b.contains(member));
    for known in known {
        if !members.iter().any(|set| alike(set, &known)) {
            members.push(known);
        }
    }
    let whole = order.len();
    let set = |members: Vec<usize>| {
        let reckoned = if members.len() == whole && members == order {
            best.clone()
        } else {
            only(items, lines, &members)
        };
        Set { members, reckoned }
    };
    members.into_iter().map(set).collect()
}

/// What some of the candidates would do without the others.
pub(super) fn only(items: u64, lines: &[Line], members: &[usize]) -> Joint {
    let own: Vec<Line> = members.iter().map(|&member| lines[member]).collect();
    let Joint { seconds, items: counts } = joint::fastest(&own, items);
    let mut all = vec![0.0; lines.len()];
    for (&member, count) in members.iter().zip(counts) {
        // Whoever is a member takes part: how much it gets is seen when it runs.
        all[member] = count.max(f64::MIN_POSITIVE);
    }
    Joint { seconds, items: all }
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use super::*;

    const NAMES: [&str; 3] = ["a", "b", "c"];

    fn candidates(count: usize) -> Vec<Candidate> {
        let candidate = |name: &&str| Candidate { device: (*name).to_owned(), score: 1.0, cold: false };
        NAMES.iter().take(count).map(candidate).collect()
    }

    fn used(joint: &Joint) -> Vec<usize> {
        (0..joint.items.len()).filter(|&index| joint.items[index] > 0.0).collect()
    }

    /// A run with these devices, all of which worked.
    fn ran(set: &[usize], seconds: f64) -> Experience {
        let devices: Vec<String> = set.iter().map(|&index| NAMES[index].to_owned()).collect();
        let wall = Duration::from_secs_f64(seconds);
        Experience { worked: devices.clone(), devices, wall, runs: 1 }
    }

    /// Decides and runs so often, where the sets really take what `truth` says. Gives what was used.
    fn live(
        trials: &mut Trials,
        lines: &[Line],
        times: usize,
        truth: impl Fn(&[usize]) -> f64,
    ) -> Vec<Vec<usize>> {
        let mut history = Vec::new();
        for _ in 0..times {
            let set = used(&trials.decide(1000, &candidates(lines.len()), lines).joint);
            trials.add(1000, ran(&set, truth(&set)));
            history.push(set);
        }
        history
    }

    #[test]
    fn what_is_best_on_paper_stays_only_if_it_is() {
        let lines = [Line::new(0.0, 1e-6), Line::new(0.0, 1e-6), Line::new(0.0, 2e-6)];
        // Together they get into each other's way.
        let truth = |set: &[usize]| if set.len() > 1 { 5e-3 } else { 1e-3 * (1.0 + set[0] as f64 / 10.0) };
        let history = live(&mut Trials::default(), &lines, 200, truth);
        let best = history[50..].iter().filter(|set| **set == [0]).count();
        assert!(best >= 145, "{best} of 150");
        // And where they do not, they stay together.
        let truth = |set: &[usize]| 1e-3 / set.len() as f64;
        let history = live(&mut Trials::default(), &lines, 200, truth);
        assert!(history[50..].iter().filter(|set| set.len() == 3).count() >= 145);
    }

    #[test]
    fn one_disturbed_run_does_not_count_and_a_change_is_noticed() {
        let lines = [Line::new(0.0, 1e-6), Line::new(0.0, 1.2e-6)];
        let mut trials = Trials::default();
        let first = |set: &[usize]| if set == [0] { 1e-3 } else { 1.9e-3 };
        live(&mut trials, &lines, 40, first);
        trials.add(1000, ran(&[0], 1.0));
        let history = live(&mut trials, &lines, 20, first);
        assert!(history.iter().filter(|set| **set == [0]).count() >= 19);
        // The other has become faster: nobody tells, but it is looked at now and then.
        let second = |set: &[usize]| if set == [1] { 0.5e-3 } else { 1e-3 };
        let history = live(&mut trials, &lines, 1500, second);
        assert!(history[1400..].iter().filter(|set| **set == [1]).count() >= 95);
    }

    #[test]
    fn what_was_not_used_for_long_is_not_thought_to_have_become_ever_faster() {
        let lines = [Line::new(0.0, 1e-6), Line::new(0.0, 1e-6)];
        let mut trials = Trials::default();
        let turn = std::cell::Cell::new(0u32);
        // The one that is used gets slower at a stroke and faster bit by bit, over and over; the other never changes.
        let truth = |set: &[usize]| {
            turn.set(turn.get() + 1);
            let sawtooth = 1.2 - 0.02 * f64::from(turn.get() % 10);
            if set == [0] { 1e-3 * sawtooth } else { 1.5e-3 }
        };
        let history = live(&mut trials, &lines, 600, truth);
        let best = history[100..].iter().filter(|set| **set == [0]).count();
        assert!(best >= 480, "{best} of 500");
    }

    #[test]
    fn of_equals_the_same_one_stays() {
        let lines = [Line::new(1e-4, 1e-9); 2];
        let noise = std::cell::Cell::new(0u32);
        // Whoever it is, a run takes as long, to a hundredth.
        let truth = |_: &[usize]| {
            noise.set(noise.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            1e-4 * (1.0 + f64::from(noise.get() >> 24) / 25_600.0)
        };
        let history = live(&mut Trials::default(), &lines, 400, truth);
        let changes = history[64..].windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes <= 20, "{changes}");
    }

    #[test]
    fn who_is_there_in_vain_is_done_without() {
        let lines = [Line::new(0.0, 1e-6), Line::new(0.0, 1e-6), Line::new(0.0, 2e-6)];
        let mut trials = Trials::default();
        live(&mut trials, &lines, 40, |set| if set == [0] { 2e-3 } else { 5e-3 });
        // It was slow for a while; now it is not, and does all the work before others are awake.
        let all = Experience { worked: vec!["a".into()], ..ran(&[0, 1, 2], 1e-3) };
        trials.add(1000, all);
        let history = live(&mut trials, &lines, 4, |_| 0.9e-3);
        assert_eq!(history, vec![vec![0]; 4]);
    }

    #[test]
    fn sizes_are_learned_apart() {
        let lines = [Line::new(0.0, 1e-6), Line::new(0.0, 1.1e-6)];
        let mut trials = Trials::default();
        live(&mut trials, &lines, 40, |set| if set == [1] { 1e-3 } else { 2e-3 });
        assert_eq!(used(&trials.decide(1_000_000, &candidates(2), &lines).joint), [0, 1]);
    }

    #[test]
    fn only_those_that_are_ready_are_decided_about() {
        let lines = [Line::new(0.0, 1e-6), Line::new(0.0, 1e-6)];
        let mut candidates = candidates(2);
        candidates[0].cold = true;
        assert_eq!(used(&Trials::default().decide(1000, &candidates, &lines).joint), [1]);
    }
}
