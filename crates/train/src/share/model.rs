//! A device's predicted time for a batch.

use serde::{Deserialize, Serialize};

/// Largest allowed ratio between the speeds of two devices after probing. A clock that returns a nanosecond for a batch
/// would otherwise give one device the whole batch.
pub const MAX_SPEED_RATIO: f64 = 64.0;

/// Largest part of the shortest probe that may be launch cost. The rest is cost per sample, which so stays above 0.
const MAX_LAUNCH_PART: f64 = 0.9;

/// The predicted time of a batch on one device: `drift · (per_sample_s · b + per_launch_s · ⌈b / micro_batch⌉)` seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SpeedModel {
    /// Seconds per sample. Above 0.
    pub per_sample_s: f64,
    /// Seconds per micro-batch, whatever its size. At least 0.
    pub per_launch_s: f64,
    /// Largest number of samples that fit the device's memory at once. At least 1.
    pub micro_batch: u64,
    /// Factor that follows the device's speed during the run: 2 is half as fast as when it was probed.
    pub drift: f64,
}

/// One timed batch of a probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// Samples in the batch.
    pub samples: u64,
    /// Compute time in seconds, as measured: may be NaN, infinite, zero or negative.
    pub seconds: f64,
}

impl SpeedModel {
    /// Creates a model without launch cost. Bounds a time that is not finite or not above 0 to one second per sample.
    pub fn proportional(per_sample_s: f64) -> Self {
        let per_sample_s = if per_sample_s.is_finite() && per_sample_s > 0.0 { per_sample_s } else { 1.0 };
        SpeedModel { per_sample_s, per_launch_s: 0.0, micro_batch: u64::MAX, drift: 1.0 }
    }

    /// Returns the predicted seconds for a batch, and 0 for an empty one.
    pub fn seconds(&self, samples: u64) -> f64 {
        if samples == 0 {
            return 0.0;
        }
        let launches = samples.div_ceil(self.micro_batch.max(1));
        self.drift * (self.per_sample_s * samples as f64 + self.per_launch_s * launches as f64)
    }

    /// Fits a model to probes by least squares. Ignores times that are not finite or not above 0. Returns `None` if no
    /// probe is left.
    pub fn fit(probes: &[Probe], micro_batch: u64) -> Option<Self> {
        let micro_batch = micro_batch.max(1);
        let rows: Vec<(f64, f64, f64)> = probes
            .iter()
            .filter(|probe| probe.samples > 0 && probe.seconds.is_finite() && probe.seconds > 0.0)
            .map(|probe| (probe.samples as f64, probe.samples.div_ceil(micro_batch) as f64, probe.seconds))
            .collect();
        if rows.is_empty() {
            return None;
        }
        let sum = |term: fn(&(f64, f64, f64)) -> f64| rows.iter().map(term).sum::<f64>();
        let (bb, kk, bk) = (sum(|row| row.0 * row.0), sum(|row| row.1 * row.1), sum(|row| row.0 * row.1));
        let (bt, kt) = (sum(|row| row.0 * row.2), sum(|row| row.1 * row.2));
        let determinant = bb * kk - bk * bk;
        // Sizes that are all multiples of the micro-batch do not tell the two costs apart.
        let launch = if determinant > 1e-9 * bb * kk { (bb * kt - bk * bt) / determinant } else { 0.0 };
        let most = rows.iter().map(|row| row.2 / row.1).fold(f64::INFINITY, f64::min) * MAX_LAUNCH_PART;
        let per_launch_s = if launch.is_finite() { launch.clamp(0.0, most) } else { 0.0 };
        // With the launch cost bounded, every row leaves at least a tenth of its time for the samples.
        let per_sample_s = (bt - per_launch_s * bk) / bb;
        let model = SpeedModel { per_sample_s, per_launch_s, micro_batch, drift: 1.0 };
        (per_sample_s.is_finite() && per_sample_s > 0.0).then_some(model)
    }

    /// Bounds the speeds of all devices to [`MAX_SPEED_RATIO`] of the slowest, at this batch size: the implausibly fast
    /// ones are slowed. A device that really is that much faster is found by its drift within a few windows.
    pub fn bound_ratios(models: &mut [SpeedModel], samples: u64) {
        let samples = samples.max(1);
        let slowest = models.iter().map(|model| model.seconds(samples)).fold(0.0, f64::max);
        for model in models {
            let least = slowest / MAX_SPEED_RATIO;
            let seconds = model.seconds(samples);
            if seconds < least {
                let factor = least / seconds;
                model.per_sample_s *= factor;
                model.per_launch_s *= factor;
            }
        }
    }
}
