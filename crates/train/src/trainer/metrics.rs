//! How training goes, after every round.

use std::time::Duration;

/// How training goes, as of the last round.
#[derive(Debug, Clone, PartialEq)]
pub struct Metrics {
    /// The epoch that the next step belongs to, from 0.
    pub epoch: u64,
    /// Committed steps.
    pub step: u64,
    /// Mean loss of the round.
    pub loss: f64,
    /// Mean loss of the epoch that the round has completed.
    pub epoch_loss: Option<f64>,
    /// Samples per step.
    pub batch: u64,
    /// Local steps of the round: 1 in lockstep.
    pub local_steps: u64,
    /// Samples per second since the start.
    pub samples_per_s: f64,
    /// Estimated time to the end.
    pub remaining: Option<Duration>,
    /// Noise scale of the gradients, once known.
    pub noise_scale: Option<f64>,
    /// Factor of the learning rate.
    pub learning_rate_gain: f64,
    /// Each worker's part.
    pub workers: Vec<RankMetrics>,
}

/// One worker's part in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankMetrics {
    /// The worker.
    pub rank: usize,
    /// Samples per step.
    pub batch: u64,
    /// Its compute time.
    pub compute: Duration,
    /// The time that it spent in the exchange before, waiting included.
    pub waited: Duration,
    /// Whether it is a member.
    pub present: bool,
}
