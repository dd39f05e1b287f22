//! The cost model's prediction for an arrangement.

use std::ops::Range;

use serde::Serialize;

use super::{
    split::{LayerSplit, split_by},
    workload::{PrefixSums, Workload},
};

/// One stage of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StagePlan {
    /// Its layers.
    pub layers: Range<usize>,
    /// Their total cost.
    pub cost: f64,
    /// The bytes that each of its devices needs.
    pub memory_bytes: u64,
    /// The least known memory of its devices, in bytes.
    pub capacity_bytes: Option<u64>,
    /// The time of a micro-batch, over all replicas together.
    pub seconds: f64,
}

/// One replica of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplicaPlan {
    /// Its number of micro-batches in a step.
    pub micro_batches: u64,
    /// The time of one micro-batch in each stage.
    pub stage_s: Vec<f64>,
    /// The time of all of them, including filling the pipeline.
    pub seconds: f64,
}

/// The devices' numbers, by their index in the given list.
#[derive(Debug)]
pub(super) struct DeviceProperties {
    pub(super) rates: Vec<f64>,
    pub(super) memory: Vec<Option<u64>>,
    /// Bytes per second between each two; `None` if unknown, and then there is no traffic.
    pub(super) bandwidth: Vec<Vec<Option<f64>>>,
}

/// An assignment of devices to ranks, `tp` innermost and `dp` outermost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrangement {
    pub(super) tp: usize,
    pub(super) pp: usize,
    pub(super) dp: usize,
    pub(super) order: Vec<usize>,
}

/// The predicted times of an arrangement.
#[derive(Debug, Clone)]
pub(super) struct StepPrediction {
    pub(super) stages: Vec<StagePlan>,
    pub(super) replicas: Vec<ReplicaPlan>,
    pub(super) gradients_s: f64,
    pub(super) step_s: f64,
    pub(super) ideal_s: f64,
    pub(super) balance: f64,
    /// The slowest link within tensor-parallel groups, between stages, and within data-parallel groups.
    pub(super) links: [f64; 3],
}

/// The seconds of a tensor-parallel group per unit of work, per byte reduced and per byte passed on.
#[derive(Debug, Clone, Copy, PartialEq)]
struct UnitTimes {
    per_cost: f64,
    per_tensor_byte: f64,
    per_output_byte: f64,
}

impl Arrangement {
    pub(super) fn rank(&self, replica: usize, stage: usize, shard: usize) -> usize {
        (replica * self.pp + stage) * self.tp + shard
    }

    fn device(&self, replica: usize, stage: usize, shard: usize) -> usize {
        self.order[self.rank(replica, stage, shard)]
    }

    fn group(&self, replica: usize, stage: usize) -> &[usize] {
        let first = self.rank(replica, stage, 0);
        &self.order[first..first + self.tp]
    }

    fn stage(&self, stage: usize) -> impl Iterator<Item = usize> + Clone + '_ {
        (0..self.dp).flat_map(move |replica| self.group(replica, stage).iter().copied())
    }
}

impl DeviceProperties {
    /// Returns the slowest link within a group; infinite for one device.
    fn slowest_within(&self, group: impl Iterator<Item = usize> + Clone) -> f64 {
        let pairs = group.clone().flat_map(|one| group.clone().map(move |other| (one, other)));
        pairs
            .filter(|(one, other)| one < other)
            .map(|(one, other)| self.link(one, other))
            .fold(f64::INFINITY, f64::min)
    }

    /// Treats an unknown link as the worst: it only counts if all else is equal.
    fn link(&self, one: usize, other: usize) -> f64 {
        self.bandwidth[one][other].unwrap_or(0.0)
    }

    /// Returns the slowest link from a stage to the next, over a replica's shards.
    fn slowest_onwards(&self, arrangement: &Arrangement, replica: usize, stage: usize) -> f64 {
        (0..arrangement.tp)
            .map(|shard| {
                let from = arrangement.device(replica, stage, shard);
                self.link(from, arrangement.device(replica, stage + 1, shard))
            })
            .fold(f64::INFINITY, f64::min)
    }

    /// Returns the least known memory of a stage's devices.
    pub(super) fn capacity(&self, arrangement: &Arrangement, stage: usize) -> Option<u64> {
        arrangement.stage(stage).filter_map(|device| self.memory[device]).min()
    }

    fn unit_time(&self, arrangement: &Arrangement, replica: usize, stage: usize) -> UnitTimes {
        let group = arrangement.group(replica, stage);
        let slowest = group.iter().map(|&device| self.rates[device]).fold(f64::INFINITY, f64::min);
        let last = stage + 1 == arrangement.pp;
        UnitTimes {
            per_cost: 1.0 / (slowest * arrangement.tp as f64),
            per_tensor_byte: reduce(arrangement.tp) / self.slowest_within(group.iter().copied()),
            per_output_byte: if last { 0.0 } else { 1.0 / self.slowest_onwards(arrangement, replica, stage) },
        }
    }
}

/// Returns the bytes that each member sends per byte reduced, in a ring all-reduce.
fn reduce(members: usize) -> f64 {
    2.0 * (members - 1) as f64 / members as f64
}

/// Returns the time of sending bytes; 0 for none, even if the bandwidth is unknown.
fn sending(bytes: f64, per_byte: f64) -> f64 {
    if bytes > 0.0 { bytes * per_byte } else { 0.0 }
}

/// Predicts an arrangement with its best split. Returns `None` if no split fits its memory.
pub(super) fn predict(
    properties: &DeviceProperties,
    workload: &Workload,
    sums: &PrefixSums,
    arrangement: &Arrangement,
) -> Option<StepPrediction> {
    let &Arrangement { tp, pp, dp, .. } = arrangement;
    let layers = &workload.layers;
    let unit_times: Vec<Vec<UnitTimes>> = (0..dp)
        .map(|replica| (0..pp).map(|stage| properties.unit_time(arrangement, replica, stage)).collect())
        .collect();
    let time = |unit_time: UnitTimes, from: usize, until: usize| {
        sums.cost(from, until) * unit_time.per_cost
            + sending(sums.tensor(from, until), unit_time.per_tensor_byte)
            + sending(layers[until - 1].output_bytes as f64, unit_time.per_output_byte)
    };
    // Replicas with equal times are counted, not evaluated one by one.
    let counted: Vec<Vec<(UnitTimes, f64)>> =
        (0..pp).map(|stage| count(unit_times.iter().map(|replica| replica[stage]))).collect();
    let together = |stage: usize, from: usize, until: usize| match counted[stage][..] {
        [(unit_time, _)] => time(unit_time, from, until),
        ref unit_times => {
            dp as f64
                / unit_times
                    .iter()
                    .map(|&(unit_time, count)| count / time(unit_time, from, until))
                    .sum::<f64>()
        }
    };
    let capacities: Vec<Option<u64>> = (0..pp).map(|stage| properties.capacity(arrangement, stage)).collect();
    let needs = |from: usize, until: usize| sums.memory(from, until).div_ceil(tp as u128);
    let fits = |stage: usize, from: usize, until: usize| {
        capacities[stage].is_none_or(|capacity| needs(from, until) <= u128::from(capacity))
    };
    let LayerSplit { stages: split, .. } = split_by(layers.len(), pp, together, fits)?;

    let stage_s: Vec<Vec<f64>> = unit_times
        .iter()
        .map(|unit_times| {
            unit_times
                .iter()
                .zip(&split)
                .map(|(&unit_time, range)| time(unit_time, range.start, range.end))
                .collect()
        })
        .collect();
    let replicas = share(&stage_s, workload.micro_batches);
    let gradients_s = (0..pp)
        .map(|stage| {
            let bytes = sums.gradient(split[stage].start, split[stage].end) / tp as f64;
            sending(bytes, reduce(dp) / slowest_between_replicas(properties, arrangement, stage))
        })
        .fold(0.0, f64::max);
    let slowest = replicas.iter().map(|replica| replica.seconds).fold(0.0, f64::max);
    let work = sums.cost(0, layers.len()) * workload.micro_batches as f64;
    let stages = split.iter().enumerate().map(|(stage, range)| StagePlan {
        layers: range.clone(),
        cost: sums.cost(range.start, range.end),
        memory_bytes: needs(range.start, range.end).try_into().unwrap_or(u64::MAX),
        capacity_bytes: capacities[stage],
        seconds: together(stage, range.start, range.end),
    });
    Some(StepPrediction {
        balance: balance(properties, arrangement, sums, &split, &replicas, &unit_times),
        stages: stages.collect(),
        replicas,
        gradients_s,
        step_s: slowest + gradients_s,
        ideal_s: work / properties.rates.iter().sum::<f64>(),
        links: slowest_links(properties, arrangement),
    })
}

fn count(unit_times: impl Iterator<Item = UnitTimes>) -> Vec<(UnitTimes, f64)> {
    let mut counted: Vec<(UnitTimes, f64)> = Vec::new();
    for unit_time in unit_times {
        match counted.iter_mut().find(|(known, _)| *known == unit_time) {
            Some((_, count)) => *count += 1.0,
            None => counted.push((unit_time, 1.0)),
        }
    }
    counted
}

/// Assigns each micro-batch to the replica that would complete it first, which is optimal.
fn share(stage_s: &[Vec<f64>], micro_batches: u64) -> Vec<ReplicaPlan> {
    let fill: Vec<f64> = stage_s.iter().map(|stages| stages.iter().sum()).collect();
    let each: Vec<f64> = stage_s.iter().map(|stages| stages.iter().copied().fold(0.0, f64::max)).collect();
    let mut shares = vec![0u64; stage_s.len()];
    for _ in 0..micro_batches {
        let done = |replica: usize| fill[replica] + shares[replica] as f64 * each[replica];
        let first = (0..shares.len()).min_by(|&one, &other| done(one).total_cmp(&done(other)));
        shares[first.unwrap_or(0)] += 1;
    }
    let plans = stage_s.iter().zip(&shares).enumerate().map(|(replica, (stage_s, &micro_batches))| {
        let more = micro_batches.saturating_sub(1) as f64;
        let seconds = if micro_batches == 0 { 0.0 } else { fill[replica] + more * each[replica] };
        ReplicaPlan { micro_batches, stage_s: stage_s.clone(), seconds }
    });
    plans.collect()
}

fn slowest_between_replicas(properties: &DeviceProperties, arrangement: &Arrangement, stage: usize) -> f64 {
    (0..arrangement.tp)
        .map(|shard| {
            let group = (0..arrangement.dp).map(move |replica| arrangement.device(replica, stage, shard));
            properties.slowest_within(group)
        })
        .fold(f64::INFINITY, f64::min)
}

fn slowest_links(properties: &DeviceProperties, arrangement: &Arrangement) -> [f64; 3] {
    let &Arrangement { pp, dp, .. } = arrangement;
    let least = |links: &mut dyn Iterator<Item = f64>| links.fold(f64::INFINITY, f64::min);
    let positions = || (0..dp).flat_map(|replica| (0..pp).map(move |stage| (replica, stage)));
    [
        least(&mut positions().map(|(replica, stage)| {
            properties.slowest_within(arrangement.group(replica, stage).iter().copied())
        })),
        least(
            &mut positions()
                .filter(|(_, stage)| stage + 1 < pp)
                .map(|(replica, stage)| properties.slowest_onwards(arrangement, replica, stage)),
        ),
        least(&mut (0..pp).map(|stage| slowest_between_replicas(properties, arrangement, stage))),
    ]
}

/// Returns how evenly devices are busy in a step: the mean over the maximum. A device is busy while it computes its own
/// part and while it sends, not while it waits for a slower one.
fn balance(
    properties: &DeviceProperties,
    arrangement: &Arrangement,
    sums: &PrefixSums,
    split: &[Range<usize>],
    replicas: &[ReplicaPlan],
    unit_times: &[Vec<UnitTimes>],
) -> f64 {
    let (mut all, mut most) = (0.0, 0.0f64);
    for (replica, plan) in replicas.iter().enumerate() {
        for (stage, range) in split.iter().enumerate() {
            let cost = sums.cost(range.start, range.end);
            let sent = plan.stage_s[stage] - cost * unit_times[replica][stage].per_cost;
            for &device in arrangement.group(replica, stage) {
                let own = cost / (properties.rates[device] * arrangement.tp as f64);
                let busy = plan.micro_batches as f64 * (own + sent);
                all += busy;
                most = most.max(busy);
            }
        }
    }
    all / (most * arrangement.order.len() as f64)
}
