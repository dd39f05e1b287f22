//! Which device takes which rank: every way where there are few, and steps that help from good beginnings where there
//! are many.

use std::cmp::Reverse;

use super::{
    planner::Search,
    predict::{Arrangement, Figures, Prediction, predict},
    workload::{Sums, Workload},
};

/// So many ways to put devices on ranks are all tried.
const ALL_WAYS: f64 = 5040.0;

/// Time to decide, in steps of cutting layers: about a second of one core.
const PATIENCE: f64 = 3e8;

/// Numbers to shuffle by: always the same, so that a plan is.
const SHUFFLES: [usize; 4] = [7, 31, 101, 1009];

/// Predictions that differ by less than this part are alike.
const ALIKE: f64 = 1e-9;

/// An arrangement, and what it would take.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) arrangement: Arrangement,
    pub(super) prediction: Prediction,
    pub(super) search: Search,
}

impl Found {
    /// Whether this is better: faster, or as fast with faster links where they are needed most.
    pub(super) fn is_better_than(&self, other: &Found) -> bool {
        let (own, others) = (&self.prediction, &other.prediction);
        if (own.step_s - others.step_s).abs() > ALIKE * others.step_s {
            return own.step_s < others.step_s;
        }
        own.links.partial_cmp(&others.links).is_some_and(|order| order.is_gt())
    }
}

pub(super) struct Searcher<'a> {
    figures: &'a Figures,
    workload: &'a Workload,
    sums: &'a Sums,
    /// Devices that could change places without any difference have the same number.
    likeness: Vec<usize>,
    /// Orders of devices to begin with, the listed one first.
    beginnings: Vec<Vec<usize>>,
}

impl<'a> Searcher<'a> {
    /// `machines` says which devices are in one machine, by a number each.
    pub(super) fn new(
        figures: &'a Figures,
        workload: &'a Workload,
        sums: &'a Sums,
        machines: &[usize],
    ) -> Self {
        let listed: Vec<usize> = (0..figures.rates.len()).collect();
        let by_rate = |order: &mut Vec<usize>| {
            order.sort_by(|&one, &other| figures.rates[other].total_cmp(&figures.rates[one]));
        };
        let mut fastest_first = listed.clone();
        by_rate(&mut fastest_first);
        let mut by_machine = fastest_first.clone();
        by_machine.sort_by_key(|&device| machines[device]);
        let mut by_memory = fastest_first.clone();
        by_memory.sort_by_key(|&device| Reverse(figures.memory[device].unwrap_or(u64::MAX)));
        let slowest_first = fastest_first.iter().rev().copied().collect();
        let mut beginnings = vec![listed, fastest_first, by_machine, by_memory, slowest_first];
        let shuffled = SHUFFLES.iter().map(|&step| shuffle(beginnings[0].clone(), step)).collect::<Vec<_>>();
        beginnings.extend(shuffled);
        Searcher { likeness: likeness(figures), beginnings, figures, workload, sums }
    }

    /// The devices on the ranks as they are listed.
    pub(super) fn as_listed(&self, [tp, pp, dp]: [usize; 3]) -> Option<Found> {
        let arrangement = Arrangement { tp, pp, dp, order: self.beginnings[0].clone() };
        self.found(arrangement, Search::AsListed)
    }

    /// The best of all ways where they are few, or else of some good beginnings.
    pub(super) fn begin(&self, sizes: [usize; 3]) -> Option<Found> {
        if self.tries_everything(sizes) { self.every_way(sizes) } else { self.good_beginning(sizes) }
    }

    /// Whether there are few enough ways to try all.
    pub(super) fn tries_everything(&self, [_, pp, _]: [usize; 3]) -> bool {
        let ways = self.ways();
        ways <= ALL_WAYS && ways * self.effort(pp) <= PATIENCE
    }

    /// The best of some orders.
    fn good_beginning(&self, sizes: [usize; 3]) -> Option<Found> {
        best(self.arrangements(sizes).filter_map(|it| self.found(it, Search::Improved)))
    }

    /// The orders to begin with, filled in replica by replica and stage by stage.
    fn arrangements(&self, [tp, pp, dp]: [usize; 3]) -> impl Iterator<Item = Arrangement> + '_ {
        self.beginnings.iter().flat_map(move |order| {
            let replica_by_replica = Arrangement { tp, pp, dp, order: order.clone() };
            let mut stage_by_stage = replica_by_replica.clone();
            for (place, &device) in order.iter().enumerate() {
                let (stage, replica, shard) = (place / (dp * tp), place / tp % dp, place % tp);
                let rank = replica_by_replica.rank(replica, stage, shard);
                stage_by_stage.order[rank] = device;
            }
            [replica_by_replica, stage_by_stage]
        })
    }

    /// Changes places for as long as that helps and there is time; from every beginning, because where one gets stuck
    /// another may not.
    pub(super) fn improve(&self, begun: Found) -> Found {
        if begun.search != Search::Improved {
            return begun;
        }
        let Arrangement { tp, pp, dp, .. } = begun.arrangement;
        let mut patience = PATIENCE;
        let mut all: Vec<Found> =
            self.arrangements([tp, pp, dp]).filter_map(|it| self.found(it, Search::Improved)).collect();
        all.sort_by(|one, other| one.prediction.step_s.total_cmp(&other.prediction.step_s));
        all.into_iter().fold(begun, |best, found| {
            let found = self.climb(found, &mut patience);
            if found.is_better_than(&best) { found } else { best }
        })
    }

    fn climb(&self, mut best: Found, patience: &mut f64) -> Found {
        loop {
            let mut helped = false;
            for step in steps(&best.arrangement) {
                let Some(arrangement) = self.take(&step, &best.arrangement) else { continue };
                *patience -= self.effort(arrangement.pp);
                if *patience < 0.0 {
                    return best;
                }
                if let Some(found) = self.found(arrangement, Search::Improved)
                    && found.is_better_than(&best)
                {
                    best = found;
                    helped = true;
                }
            }
            if !helped {
                return best;
            }
        }
    }

    /// As for devices too many to try every way.
    #[cfg(test)]
    pub(super) fn without_every_way(&self, sizes: [usize; 3]) -> Option<Found> {
        Some(self.improve(self.good_beginning(sizes)?))
    }

    fn found(&self, arrangement: Arrangement, search: Search) -> Option<Found> {
        let prediction = predict(self.figures, self.workload, self.sums, &arrangement)?;
        Some(Found { arrangement, prediction, search })
    }

    fn every_way(&self, [tp, pp, dp]: [usize; 3]) -> Option<Found> {
        let listed = Arrangement { tp, pp, dp, order: self.beginnings[0].clone() };
        let mut kinds = self.likeness.clone();
        kinds.sort_unstable();
        let mut next = Some(kinds);
        let ways = std::iter::from_fn(|| {
            let kinds = next.take()?;
            let order = self.in_turn(&kinds);
            next = next_way(kinds);
            Some(Arrangement { tp, pp, dp, order })
        });
        best(std::iter::once(listed).chain(ways).filter_map(|it| self.found(it, Search::Everything)))
    }

    /// Devices of these kinds, those of a kind in the order that they are listed.
    fn in_turn(&self, kinds: &[usize]) -> Vec<usize> {
        let mut taken = vec![0; self.likeness.len()];
        let device = |kind: usize| {
            let from = taken[kind];
            let found = (from..self.likeness.len()).find(|&device| self.likeness[device] == kind);
            let device = found.unwrap_or(from);
            taken[kind] = device + 1;
            device
        };
        kinds.iter().copied().map(device).collect()
    }

    /// In how many ways devices can be put on ranks, alike ones not told apart.
    fn ways(&self) -> f64 {
        let mut seen = vec![0.0; self.likeness.len()];
        let ways = self.likeness.iter().enumerate().fold(1.0, |ways, (index, &kind)| {
            seen[kind] += 1.0;
            ways * (index + 1) as f64 / seen[kind]
        });
        f64::round(ways)
    }

    /// Steps of cutting in one prediction, at most.
    fn effort(&self, pp: usize) -> f64 {
        (pp * self.workload.layers.len().pow(2)) as f64
    }

    /// The arrangement after a step; nothing where only alike devices would change places.
    fn take(&self, step: &[(usize, usize)], arrangement: &Arrangement) -> Option<Arrangement> {
        let order = &arrangement.order;
        let changes =
            |&(one, other): &(usize, usize)| self.likeness[order[one]] != self.likeness[order[other]];
        step.iter().any(changes).then(|| {
            let mut changed = arrangement.clone();
            for &(one, other) in step {
                changed.order.swap(one, other);
            }
            changed
        })
    }
}

/// The first of the best.
pub(super) fn best(found: impl Iterator<Item = Found>) -> Option<Found> {
    found.fold(None, |best, found| match best {
        Some(best) if !found.is_better_than(&best) => Some(best),
        _ => Some(found),
    })
}

/// Everything that can be tried: pairs of ranks that change places, for two devices, two tensor-parallel groups and two
/// stages.
fn steps(arrangement: &Arrangement) -> Vec<Vec<(usize, usize)>> {
    let &Arrangement { tp, pp, dp, .. } = arrangement;
    let groups = pp * dp;
    let pairs =
        |count: usize| (0..count).flat_map(move |one| (one + 1..count).map(move |other| (one, other)));
    let stages = pairs(pp).map(|(one, other)| {
        let places = (0..dp).flat_map(|replica| (0..tp).map(move |shard| (replica, shard)));
        let rank = |stage, (replica, shard)| arrangement.rank(replica, stage, shard);
        places.map(|place| (rank(one, place), rank(other, place))).collect()
    });
    let whole_groups = pairs(groups)
        .map(|(one, other)| (0..tp).map(|shard| (one * tp + shard, other * tp + shard)).collect());
    let devices = pairs(groups * tp).filter(|(one, other)| one / tp != other / tp).map(|pair| vec![pair]);
    // A stage of one group is that group, and a group of one device that device.
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

/// A number for each device, the same for devices that no link and no figure tells apart.
fn likeness(figures: &Figures) -> Vec<usize> {
    let count = figures.rates.len();
    let alike = |one: usize, other: usize| {
        figures.rates[one] == figures.rates[other]
            && figures.memory[one] == figures.memory[other]
            && (0..count)
                .filter(|&third| third != one && third != other)
                .all(|third| figures.bandwidth[one][third] == figures.bandwidth[other][third])
    };
    let (mut kinds, mut firsts): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for device in 0..count {
        let kind = firsts.iter().position(|&first| alike(first, device)).unwrap_or(firsts.len());
        if kind == firsts.len() {
            firsts.push(device);
        }
        kinds.push(kind);
    }
    kinds
}

/// Takes devices out at distances of so many, until none is left.
fn shuffle(mut devices: Vec<usize>, distance: usize) -> Vec<usize> {
    let mut shuffled = Vec::with_capacity(devices.len());
    let mut place = 0;
    while !devices.is_empty() {
        place = (place + distance) % devices.len();
        shuffled.push(devices.remove(place));
    }
    shuffled
}

/// The next order of numbers of which some are equal; nothing after the last.
fn next_way(mut kinds: Vec<usize>) -> Option<Vec<usize>> {
    let pivot = kinds.windows(2).rposition(|pair| pair[0] < pair[1])?;
    let larger = kinds.iter().rposition(|&kind| kind > kinds[pivot])?;
    kinds.swap(pivot, larger);
    kinds[pivot + 1..].reverse();
    Some(kinds)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_way_comes_once() {
        let mut ways = vec![vec![0, 0, 1, 2]];
        while let Some(next) = next_way(ways.last().unwrap().clone()) {
            ways.push(next);
        }
        assert_eq!(ways.len(), 12);
        assert!(ways.is_sorted());
        ways.dedup();
        assert_eq!(ways.len(), 12);
        assert_eq!(next_way(vec![]), None);
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
        let mut figures =
            Figures { rates: vec![1.0, 2.0, 1.0, 1.0], memory: vec![None; 4], bandwidth: bandwidth(&[]) };
        assert_eq!(likeness(&figures), [0, 1, 0, 0]);
        figures.bandwidth = bandwidth(&[(0, 2)]);
        assert_eq!(likeness(&figures), [0, 1, 0, 2], "0 and 2 share a link that 3 has no part in");
        figures.bandwidth = bandwidth(&[(0, 1), (2, 1), (3, 1)]);
        assert_eq!(likeness(&figures), [0, 1, 0, 0]);
        figures.memory[2] = Some(5);
        assert_eq!(likeness(&figures), [0, 1, 2, 0]);
    }
}
