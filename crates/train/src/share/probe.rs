//! The steps of a probe.

use super::model::{Probe, SpeedModel};

/// Runs of each size that are not timed: the first ones compile kernels and warm caches.
const DISCARDED: usize = 2;
/// Runs of each size that are timed. The shortest counts.
const TIMED: usize = 3;

/// The batches that every device computes to find its speed. All devices compute at the same time, because devices of
/// one machine slow one another down (shared memory, heat, power), and the plan is for devices that work side by side.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbePlan {
    sizes: Vec<u64>,
    best: Vec<f64>,
    run: usize,
}

/// One step of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeStep {
    /// Samples to compute.
    pub samples: u64,
    /// Whether the time counts.
    pub timed: bool,
}

impl ProbePlan {
    /// Plans probes of a quarter, a half and all of a device's first share. If all of these are multiples of the
    /// micro-batch, which would not tell the cost of a launch from that of its samples, the second is half a micro-batch
    /// larger.
    pub fn new(first_share: u64, micro_batch: u64) -> Self {
        let mut sizes: Vec<u64> = [4, 2, 1].map(|part| first_share.div_ceil(part).max(1)).to_vec();
        if sizes.iter().all(|size| size.is_multiple_of(micro_batch.max(1))) {
            sizes[1] += micro_batch / 2;
        }
        sizes.dedup();
        ProbePlan { best: vec![f64::INFINITY; sizes.len()], sizes, run: 0 }
    }

    /// Returns the next step, or `None` once all sizes have been timed.
    pub fn next_step(&self) -> Option<ProbeStep> {
        let (size, run) = (self.run / (DISCARDED + TIMED), self.run % (DISCARDED + TIMED));
        self.sizes.get(size).map(|&samples| ProbeStep { samples, timed: run >= DISCARDED })
    }

    /// Records the time of the step that [`next_step`](ProbePlan::next_step) returned. Ignores a time that is not finite
    /// or not above 0.
    pub fn record(&mut self, seconds: f64) {
        let Some(step) = self.next_step() else { return };
        let best = &mut self.best[self.run / (DISCARDED + TIMED)];
        if step.timed && seconds.is_finite() && seconds > 0.0 {
            *best = best.min(seconds);
        }
        self.run += 1;
    }

    /// Returns the shortest time of each size. A size without a valid time has an infinite one.
    pub fn probes(&self) -> Vec<Probe> {
        self.sizes.iter().zip(&self.best).map(|(&samples, &seconds)| Probe { samples, seconds }).collect()
    }

    /// Returns the model of the device, or `None` if no time was valid.
    pub fn model(&self, micro_batch: u64) -> Option<SpeedModel> {
        SpeedModel::fit(&self.probes(), micro_batch)
    }
}
