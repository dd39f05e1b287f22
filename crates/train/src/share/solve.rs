//! The batch of each device, so that all end together.

use serde::{Deserialize, Serialize};

use super::model::SpeedModel;

/// The exchange of gradients, as far as it overlaps with compute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Part of the compute time that has passed when the first bucket is ready to be exchanged: 0 to 1.
    pub first_bucket: f64,
    /// Seconds for all buckets but the last, which overlap with compute.
    pub overlapped_s: f64,
    /// Seconds for the last bucket, which nothing hides.
    pub last_s: f64,
}

impl Exchange {
    /// No exchange at all.
    pub const NONE: Exchange = Exchange { first_bucket: 1.0, overlapped_s: 0.0, last_s: 0.0 };
}

/// A device, as the solver sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its predicted time.
    pub model: SpeedModel,
    /// Largest batch.
    pub most: u64,
    /// Smallest batch if it takes part: 2 for a model with batch norm, which has no variance of one sample.
    pub least: u64,
}

impl Candidate {
    /// Returns the seconds until a batch and the overlapped exchange have ended: φ. An empty batch takes no time.
    pub fn busy_s(&self, samples: u64, exchange: &Exchange) -> f64 {
        if samples == 0 {
            return 0.0;
        }
        let compute = self.model.seconds(samples);
        compute.max(exchange.first_bucket * compute + exchange.overlapped_s)
    }

    /// Returns the largest batch that ends within `limit_s`, and at least the smallest batch.
    fn within(&self, limit_s: f64, exchange: &Exchange) -> u64 {
        let (mut fits, mut too_many) = (self.least, self.most.saturating_add(1));
        while too_many.saturating_sub(fits) > 1 {
            let middle = fits + (too_many - fits) / 2;
            if self.busy_s(middle, exchange) <= limit_s { fits = middle } else { too_many = middle }
        }
        fits
    }
}

/// Returns the batches that minimise the longest [`busy_s`](Candidate::busy_s), or `None` if the devices cannot take
/// exactly `batch` samples within their limits. The result is exact, also with micro-batches and limits.
pub fn solve(candidates: &[Candidate], batch: u64, exchange: &Exchange) -> Option<Vec<u64>> {
    let least = candidates.iter().fold(0u64, |sum, it| sum.saturating_add(it.least));
    let most = candidates.iter().fold(0u64, |sum, it| sum.saturating_add(it.most));
    if least > batch || most < batch || candidates.iter().any(|it| it.least > it.most) {
        return None;
    }
    let total = |limit_s: f64| {
        candidates.iter().fold(0u64, |sum, it| sum.saturating_add(it.within(limit_s, exchange)))
    };
    let (mut low, mut high) = (0.0, 0.0f64);
    for candidate in candidates {
        high = high.max(candidate.busy_s(candidate.most.min(batch), exchange));
    }
    // Fewer samples than the batch fit within `low`, unless the smallest batches alone make it up.
    for _ in 0..64 {
        let middle = low + (high - low) / 2.0;
        if total(middle) < batch { low = middle } else { high = middle }
    }
    let mut batches: Vec<u64> = candidates.iter().map(|it| it.within(low, exchange)).collect();
    if batches.iter().fold(0u64, |sum, it| sum.saturating_add(*it)) > batch {
        batches = candidates.iter().map(|it| it.least).collect();
    }
    // The device that would end soonest takes the next sample. While samples are left, some device has not reached its batch of
    // the optimum, so none of these steps goes beyond the optimum: the result is exact wherever the bisection stopped.
    let mut left = batch - batches.iter().sum::<u64>();
    while left > 0 {
        let next = (0..candidates.len())
            .filter(|&index| batches[index] < candidates[index].most)
            .map(|index| (candidates[index].busy_s(batches[index] + 1, exchange), index))
            .min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)))?;
        batches[next.1] += 1;
        left -= 1;
    }
    Some(batches)
}
