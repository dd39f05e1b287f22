//! What ranges of items cost, and random numbers that are the same every time.

use std::ops::Range;

use super::scenario::Cost;

/// A small generator of random numbers: SplitMix64, whose whole state is a counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to 1, without 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What items cost, in items of mean cost.
#[derive(Debug)]
pub(super) enum Costs {
    Constant(u64),
    /// What the items before each cost together.
    Sums(Vec<f64>),
}

impl Costs {
    pub(super) fn new(items: u64, cost: Cost, seed: u64) -> Self {
        let mut random = Random(seed);
        let one = |index: u64, random: &mut Random| match cost {
            Cost::Constant => 1.0,
            Cost::Uniform => 2.0 * random.unit(),
            Cost::HeavyTail { exponent } => {
                (1.0 - random.unit()).powf(-1.0 / exponent) * (exponent - 1.0) / exponent
            }
            Cost::Ascending => 2.0 * (index as f64 + 0.5) / items as f64,
            Cost::Descending => 2.0 * ((items - 1 - index) as f64 + 0.5) / items as f64,
            Cost::Clustered { part, factor, at } => {
                let dear = (items as f64 * part).ceil();
                let first = ((items as f64 - dear) * at).floor();
                let is_dear = (index as f64) >= first && (index as f64) < first + dear;
                let mean = (items as f64 + dear * (factor - 1.0)) / items as f64;
                if is_dear { factor / mean } else { 1.0 / mean }
            }
        };
        if cost == Cost::Constant {
            return Costs::Constant(items);
        }
        let mut sums = Vec::with_capacity(items as usize + 1);
        let mut sum = 0.0;
        sums.push(sum);
        for index in 0..items {
            sum += one(index, &mut random);
            sums.push(sum);
        }
        Costs::Sums(sums)
    }

    pub(super) fn of(&self, items: &Range<u64>) -> f64 {
        match self {
            Costs::Constant(_) => (items.end - items.start) as f64,
            Costs::Sums(sums) => sums[items.end as usize] - sums[items.start as usize],
        }
    }

    /// The first item of a range that is not begun once so much of its cost is done, working through it in order.
    pub(super) fn reached(&self, items: &Range<u64>, done: f64) -> u64 {
        match self {
            Costs::Constant(_) => (items.start + done.max(0.0) as u64 + 1).min(items.end),
            Costs::Sums(sums) => {
                let until = sums[items.start as usize] + done.max(0.0);
                let within = &sums[items.start as usize..=items.end as usize];
                (items.start + within.partition_point(|&sum| sum <= until) as u64).min(items.end)
            }
        }
    }

    pub(super) fn all(&self) -> f64 {
        match self {
            Costs::Constant(items) => *items as f64,
            Costs::Sums(sums) => sums.last().copied().unwrap_or(0.0),
        }
    }
}
