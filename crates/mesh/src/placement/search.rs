//! The search for an assignment of devices to ranks: exhaustive if there are few, otherwise local search from good
//! starts.

use std::cmp::Reverse;

use super::{
    planner::SearchMethod,
    predict::{Arrangement, DeviceProperties, StepPrediction, predict},
    workload::{PrefixSums, Workload},
};

/// Maximum number of assignments for an exhaustive search.
const MAX_EXHAUSTIVE: f64 = 5040.0;

/// The search's budget, in steps of splitting layers: about a second of one core.
const STEP_BUDGET: f64 = 3e8;

/// Fixed distances to shuffle by, so that plans are reproducible.
const SHUFFLES: [usize; 4] = [7, 31, 101, 1009];

/// Predictions that differ by less than this fraction are equal.
const TOLERANCE: f64 = 1e-9;

/// An arrangement with its prediction, and how it was found.
#[derive(Debug, Clone)]
pub(super) struct ScoredArrangement {
    pub(super) arrangement: Arrangement,
    pub(super) prediction: StepPrediction,
    pub(super) search: SearchMethod,
}

impl ScoredArrangement {
    /// Returns whether this is better: faster, or as fast with faster links, `tp` first.
    pub(super) fn is_better_than(&self, other: &ScoredArrangement) -> bool {
        let (own, others) = (&self.prediction, &other.prediction);
        if (own.step_s - others.step_s).abs() > TOLERANCE * others.step_s {
            return own.step_s < others.step_s;
        }
        own.links.partial_cmp(&others.links).is_some_and(|order| order.is_gt())
    }
}

pub(super) struct Searcher<'a> {
    properties: &'a DeviceProperties,
    workload: &'a Workload,
    sums: &'a PrefixSums,
    /// Equivalence classes: devices that could be swapped without any difference have the same number.
    classes: Vec<usize>,
    /// Orders of devices to start with, the listed one first.
    starting_orders: Vec<Vec<usize>>,
}

impl<'a> Searcher<'a> {
    /// Devices with the same number in `machines` are in one machine.
    pub(super) fn new(
        properties: &'a DeviceProperties,
        workload: &'a Workload,
        sums: &'a PrefixSums,
        machines: &[usize],
    ) -> Self {
        let listed: Vec<usize> = (0..properties.rates.len()).collect();
        let by_rate = |order: &mut Vec<usize>| {
            order.sort_by(|&one, &other| properties.rates[other].total_cmp(&properties.rates[one]));
        };
        let mut fastest_first = listed.clone();
        by_rate(&mut fastest_first);
        let mut by_machine = fastest_first.clone();
        by_machine.sort_by_key(|&device| machines[device]);
        let mut by_memory = fastest_first.clone();
        by_memory.sort_by_key(|&device| Reverse(properties.memory[device].unwrap_or(u64::MAX)));
        let slowest_first = fastest_first.iter().rev().copied().collect();
        let mut starting_orders = vec![listed, fastest_first, by_machine, by_memory, slowest_first];
        let shuffled =
            SHUFFLES.iter().map(|&step| shuffle(starting_orders[0].clone(), step)).collect::<Vec<_>>();
        starting_orders.extend(shuffled);
        Searcher { classes: classes(properties), starting_orders, properties, workload, sums }
    }

    pub(super) fn as_listed(&self, [tp, pp, dp]: [usize; 3]) -> Option<ScoredArrangement> {
        let arrangement = Arrangement { tp, pp, dp, order: self.starting_orders[0].clone() };
        self.candidate(arrangement, SearchMethod::AsListed)
    }

    /// Returns the best of all assignments if there are few, or else of some good starts.
    pub(super) fn begin(&self, sizes: [usize; 3]) -> Option<ScoredArrangement> {
        if self.is_exhaustive(sizes) { self.exhaustive(sizes) } else { self.best_start(sizes) }
    }

    pub(super) fn is_exhaustive(&self, [_, pp, _]: [usize; 3]) -> bool {
        let permutations = self.permutations();
        permutations <= MAX_EXHAUSTIVE && permutations * self.effort(pp) <= STEP_BUDGET
    }

    fn best_start(&self, sizes: [usize; 3]) -> Option<ScoredArrangement> {
        best(self.arrangements(sizes).filter_map(|it| self.candidate(it, SearchMethod::LocalSearch)))
    }

    /// Returns the orders to start with, assigned replica by replica and stage by stage.
    fn arrangements(&self, [tp, pp, dp]: [usize; 3]) -> impl Iterator<Item = Arrangement> + '_ {
        self.starting_orders.iter().flat_map(move |order| {
            let replica_by_replica = Arrangement { tp, pp, dp, order: order.clone() };
            let mut stage_by_stage = replica_by_replica.clone();
            for (index, &device) in order.iter().enumerate() {
                let (stage, replica, shard) = (index / (dp * tp), index / tp % dp, index % tp);
                let rank = replica_by_replica.rank(replica, stage, shard);
                stage_by_stage.order[rank] = device;
            }
            [replica_by_replica, stage_by_stage]
        })
    }

    /// Swaps devices as long as that helps and the budget lasts, from every start, because one may get stuck where
    /// another does not.
    pub(super) fn improve(&self, start: ScoredArrangement) -> ScoredArrangement {
        if start.search != SearchMethod::LocalSearch {
            return start;
        }
        let Arrangement { tp, pp, dp, .. } = start.arrangement;
        let mut budget = STEP_BUDGET;
        let mut all: Vec<ScoredArrangement> = self
            .arrangements([tp, pp, dp])
            .filter_map(|it| self.candidate(it, SearchMethod::LocalSearch))
            .collect();
        all.sort_by(|one, other| one.prediction.step_s.total_cmp(&other.prediction.step_s));
        all.into_iter().fold(start, |best, candidate| {
            let candidate = self.hill_climb(candidate, &mut budget);
            if candidate.is_better_than(&best) { candidate } else { best }
        })
    }

    fn hill_climb(&self, mut best: ScoredArrangement, budget: &mut f64) -> ScoredArrangement {
        loop {
            let mut helped = false;
            for step in swaps(&best.arrangement) {
                let Some(arrangement) = self.apply(&step, &best.arrangement) else { continue };
                *budget -= self.effort(arrangement.pp);
                if *budget < 0.0 {
                    return best;
                }
                if let Some(candidate) = self.candidate(arrangement, SearchMethod::LocalSearch)
                    && candidate.is_better_than(&best)
                {
                    best = candidate;
                    helped = true;
                }
            }
            if !helped {
                return best;
            }
        }
    }

    /// Runs the local search even if an exhaustive search were possible.
    #[cfg(test)]
    pub(super) fn without_exhaustive(&self, sizes: [usize; 3]) -> Option<ScoredArrangement> {
        Some(self.improve(self.best_start(sizes)?))
    }

    fn candidate(&self, arrangement: Arrangement, search: SearchMethod) -> Option<ScoredArrangement> {
        let prediction = predict(self.properties, self.workload, self.sums, &arrangement)?;
        Some(ScoredArrangement { arrangement, prediction, search })
    }

    fn exhaustive(&self, [tp, pp, dp]: [usize; 3]) -> Option<ScoredArrangement> {
        let listed = Arrangement { tp, pp, dp, order: self.starting_orders[0].clone() };
        let mut sequence = self.classes.clone();
        sequence.sort_unstable();
        let mut next = Some(sequence);
        let permutations = std::iter::from_fn(|| {
            let sequence = next.take()?;
            let order = self.devices_of(&sequence);
            next = next_permutation(sequence);
            Some(Arrangement { tp, pp, dp, order })
        });
        best(
            std::iter::once(listed)
                .chain(permutations)
                .filter_map(|it| self.candidate(it, SearchMethod::Exhaustive)),
        )
    }

    /// Returns devices of these classes, in listed order within a class.
    fn devices_of(&self, sequence: &[usize]) -> Vec<usize> {
        let mut next = vec![0; self.classes.len()];
        let device = |class: usize| {
            let from = next[class];
            let found = (from..self.classes.len()).find(|&device| self.classes[device] == class);
            let device = found.unwrap_or(from);
            next[class] = device + 1;
            device
        };
        sequence.iter().copied().map(device).collect()
    }

    /// Returns the number of assignments, devices of one class not told apart.
    fn permutations(&self) -> f64 {
        let mut seen = vec![0.0; self.classes.len()];
        let permutations = self.classes.iter().enumerate().fold(1.0, |permutations, (index, &class)| {
            seen[class] += 1.0;
            permutations * (index + 1) as f64 / seen[class]
        });
        f64::round(permutations)
    }

    /// Returns the maximum number of splitting steps in one prediction.
    fn effort(&self, pp: usize) -> f64 {
        (pp * self.workload.layers.len().pow(2)) as f64
    }

    /// Returns the arrangement after some swaps, or `None` if they only swap devices of one class.
    fn apply(&self, step: &[(usize, usize)], arrangement: &Arrangement) -> Option<Arrangement> {
        let order = &arrangement.order;
        let changes = |&(one, other): &(usize, usize)| self.classes[order[one]] != self.classes[order[other]];
        step.iter().any(changes).then(|| {
            let mut changed = arrangement.clone();
            for &(one, other) in step {
                changed.order.swap(one, other);
            }
            changed
        })
    }
}

/// Returns the first of the best candidates.
pub(super) fn best(candidates: impl Iterator<Item = ScoredArrangement>) -> Option<ScoredArrangement> {
    candidates.fold(None, |best, candidate| match best {
        Some(best) if !candidate.is_better_than(&best) => Some(best),
        _ => Some(candidate),
    })
}

/// Returns all moves: pairs of ranks to swap, for two devices, two tensor-parallel groups or two stages.
fn swaps(arrangement: &Arrangement) -> Vec<Vec<(usize, usize)>> {
    let &Arrangement { tp, pp, dp, .. } = arrangement;
    let groups = pp * dp;
    let pairs =
        |count: usize| (0..count).flat_map(move |one| (one + 1..count).map(move |other| (one, other)));
    let stages = pairs(pp).map(|(one, other)| {
        let shards = (0..dp).flat_map(|replica| (0..tp).map(move |shard| (replica, shard)));
        let rank = |stage, (replica, shard)| arrangement.rank(replica, stage, shard);
        shards.map(|index| (rank(one, index), rank(other, index))).collect()
    });
    let whole_groups = pairs(groups)
        .map(|(one, other)| (0..tp).map(|shard| (one * tp + shard, other * tp + shard)).collect());
    let devices = pairs(groups * tp).filter(|(one, other)| one / tp != other / tp).map(|pair| vec![pair]);
    // A stage with one group is that group, and a group with one device that device.
    let mut steps = Vec::new();
    if dp > 1 {
        steps.extend(stages);
    }
    if tp > 1 {
        steps.extend(whole_groups);
    }
    steps.extend(devices);
    steps
}

/// Returns each device's equivalence class: devices with equal numbers and equal links.
fn classes(properties: &DeviceProperties) -> Vec<usize> {
    let count = properties.rates.len();
    let alike = |one: usize, other: usize| {
        properties.rates[one] == properties.rates[other]
            && properties.memory[one] == properties.memory[other]
            && (0..count)
                .filter(|&third| third != one && third != other)
                .all(|third| properties.bandwidth[one][third] == properties.bandwidth[other][third])
    };
    let (mut sequence, mut firsts): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for device in 0..count {
        let class = firsts.iter().position(|&first| alike(first, device)).unwrap_or(firsts.len());
        if class == firsts.len() {
            firsts.push(device);
        }
        sequence.push(class);
    }
    sequence
}

/// Takes devices out at a distance until none is left.
fn shuffle(mut devices: Vec<usize>, distance: usize) -> Vec<usize> {
    let mut shuffled = Vec::with_capacity(devices.len());
    let mut index = 0;
    while !devices.is_empty() {
        index = (index + distance) % devices.len();
        shuffled.push(devices.remove(index));
    }
    shuffled
}

/// Returns the next permutation of numbers, or `None` after the last.
fn next_permutation(mut sequence: Vec<usize>) -> Option<Vec<usize>> {
    let pivot = sequence.windows(2).rposition(|pair| pair[0] < pair[1])?;
    let larger = sequence.iter().rposition(|&class| class > sequence[pivot])?;
    sequence.swap(pivot, larger);
    sequence[pivot + 1..].reverse();
    Some(sequence)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_permutation_comes_once() {
        let mut permutations = vec![vec![0, 0, 1, 2]];
        while let Some(next) = next_permutation(permutations.last().unwrap().clone()) {
            permutations.push(next);
        }
        assert_eq!(permutations.len(), 12);
        assert!(permutations.is_sorted());
        permutations.dedup();
        assert_eq!(permutations.len(), 12);
        assert_eq!(next_permutation(vec![]), None);
    }

    #[test]
    fn only_devices_that_nothing_tells_apart_are_alike() {
        let bandwidth = |links: &[(usize, usize)]| {
            let mut all = vec![vec![Some(1.0); 4]; 4];
            for &(one, other) in links {
                all[one][other] = Some(2.0);
                all[other][one] = Some(2.0);
            }
            all
        };
        let mut properties = DeviceProperties {
            rates: vec![1.0, 2.0, 1.0, 1.0],
            memory: vec![None; 4],
            bandwidth: bandwidth(&[]),
        };
        assert_eq!(classes(&properties), [0, 1, 0, 0]);
        properties.bandwidth = bandwidth(&[(0, 2)]);
        assert_eq!(classes(&properties), [0, 1, 0, 2], "0 and 2 share a link that 3 has no part in");
        properties.bandwidth = bandwidth(&[(0, 1), (2, 1), (3, 1)]);
        assert_eq!(classes(&properties), [0, 1, 0, 0]);
        properties.memory[2] = Some(5);
        assert_eq!(classes(&properties), [0, 1, 2, 0]);
    }
}
