//! The settings of a trainer.

use std::{path::PathBuf, time::Duration};

use crate::{
    cadence::OuterStep,
    error::{Result, TrainError},
    machines::BatchGrowth,
};

/// When ranks exchange what they have learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Gradients, after every step: exactly the training of one device with the whole batch.
    #[default]
    Lockstep,
    /// Changes of parameters, after several local steps whose number follows the cost of the exchange: for slow links.
    /// Not the same as training on one device.
    Cadence,
}

/// The settings, as the builder has gathered them.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) samples: u64,
    pub(crate) batch: u64,
    pub(crate) seed: u64,
    pub(crate) epochs: u64,
    pub(crate) timeout: Duration,
    pub(crate) policy: Policy,
    pub(crate) outer: OuterStep,
    pub(crate) overhead_target: f64,
    pub(crate) max_lead: u64,
    pub(crate) max_grad_norm: Option<f64>,
    pub(crate) speed_hint: Option<Vec<f64>>,
    pub(crate) shares: Option<Vec<u64>>,
    pub(crate) most: Option<Vec<u64>>,
    pub(crate) growth: Option<BatchGrowth>,
    pub(crate) checkpoint: Option<PathBuf>,
    pub(crate) checkpoint_every: u64,
    pub(crate) restarts: u32,
    pub(crate) measure_alone: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            samples: 0,
            batch: 32,
            seed: 0,
            epochs: 1,
            timeout: Duration::from_secs(60),
            policy: Policy::Lockstep,
            outer: OuterStep::Identity,
            overhead_target: 0.1,
            max_lead: 64,
            max_grad_norm: None,
            speed_hint: None,
            shares: None,
            most: None,
            growth: None,
            checkpoint: None,
            checkpoint_every: 100,
            restarts: 0,
            measure_alone: false,
        }
    }
}

impl Settings {
    /// Checks the settings for this many workers.
    pub(crate) fn check(&self, workers: usize) -> Result<()> {
        let wrong = |setting, detail: String| Err(TrainError::Setting { setting, detail });
        if workers == 0 {
            return wrong("workers", "there is none: ask for at least one".into());
        }
        if self.samples == 0 {
            return wrong("data", "there is no sample: pass a data set, or its length".into());
        }
        if self.batch == 0 {
            return wrong("batch", "0 samples per step: ask for at least one".into());
        }
        if self.timeout < Duration::from_millis(10) {
            return wrong("timeout", format!("{:?} is less than 10 ms", self.timeout));
        }
        if !(self.overhead_target > 0.0 && self.overhead_target <= 1.0) {
            return wrong(
                "overhead_target",
                format!("{} is not above 0 and at most 1", self.overhead_target),
            );
        }
        if self.max_lead == 0 || self.checkpoint_every == 0 {
            return wrong("max_lead, checkpoint_every", "0 steps: ask for at least one".into());
        }
        if let Some(norm) = self.max_grad_norm
            && !(norm.is_finite() && norm > 0.0)
        {
            return wrong("max_grad_norm", format!("{norm} is not above 0"));
        }
        if let Some(hints) = &self.speed_hint
            && (hints.len() != workers || hints.iter().any(|hint| !(hint.is_finite() && *hint > 0.0)))
        {
            return wrong(
                "speed_hint",
                format!("{hints:?}: pass a speed above 0 for each of {workers} workers"),
            );
        }
        if let Some(shares) = &self.shares
            && (shares.len() != workers || shares.iter().sum::<u64>() != self.batch)
        {
            let detail =
                format!("{shares:?}: pass one share for each of {workers} workers, {} in all", self.batch);
            return wrong("shares", detail);
        }
        if let Some(most) = &self.most
            && (most.len() != workers
                || most.iter().fold(0u64, |sum, it| sum.saturating_add(*it)) < self.batch)
        {
            let detail = format!(
                "{most:?}: pass one limit for each of {workers} workers, at least {} in all",
                self.batch
            );
            return wrong("most_per_worker", detail);
        }
        Ok(())
    }
}
