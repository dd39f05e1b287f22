//! The costs of simulated items, and reproducible random numbers.

use std::ops::Range;

use super::scenario::Cost;

/// A random number generator: SplitMix64, whose whole state is a counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number in 0..1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The costs of items, as multiples of the mean.
#[derive(Debug)]
pub(super) enum ItemCosts {
    Constant(u64),
    /// Prefix sums of the costs.
    Sums(Vec<f64>),
}

impl ItemCosts {
    pub(super) fn new(items: u64, cost: Cost, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let one = |index: u64, rng: &mut Rng| match cost {
            Cost::Constant => 1.0,
            Cost::Uniform => 2.0 * rng.unit(),
            Cost::HeavyTail { exponent } => {
                (1.0 - rng.unit()).powf(-1.0 / exponent) * (exponent - 1.0) / exponent
            }
            Cost::Ascending => 2.0 * (index as f64 + 0.5) / items as f64,
            Cost::Descending => 2.0 * ((items - 1 - index) as f64 + 0.5) / items as f64,
            Cost::Clustered { part, factor, at } => {
                let expensive = (items as f64 * part).ceil();
                let first = ((items as f64 - expensive) * at).floor();
                let is_expensive = (index as f64) >= first && (index as f64) < first + expensive;
                let mean = (items as f64 + expensive * (factor - 1.0)) / items as f64;
                if is_expensive { factor / mean } else { 1.0 / mean }
            }
        };
        if cost == Cost::Constant {
            return ItemCosts::Constant(items);
        }
        let mut sums = Vec::with_capacity(items as usize + 1);
        let mut sum = 0.0;
        sums.push(sum);
        for index in 0..items {
            sum += one(index, &mut rng);
            sums.push(sum);
        }
        ItemCosts::Sums(sums)
    }

    pub(super) fn of(&self, items: &Range<u64>) -> f64 {
        match self {
            ItemCosts::Constant(_) => (items.end - items.start) as f64,
            ItemCosts::Sums(sums) => sums[items.end as usize] - sums[items.start as usize],
        }
    }

    /// The first item of a range that is not begun when this much of the range's cost is done, in order.
    pub(super) fn reached(&self, items: &Range<u64>, done: f64) -> u64 {
        match self {
            ItemCosts::Constant(_) => (items.start + done.max(0.0) as u64 + 1).min(items.end),
            ItemCosts::Sums(sums) => {
                let until = sums[items.start as usize] + done.max(0.0);
                let within = &sums[items.start as usize..=items.end as usize];
                (items.start + within.partition_point(|&sum| sum <= until) as u64).min(items.end)
            }
        }
    }

    pub(super) fn all(&self) -> f64 {
        match self {
            ItemCosts::Constant(items) => *items as f64,
            ItemCosts::Sums(sums) => sums.last().copied().unwrap_or(0.0),
        }
    }
}
