//! What a run has done.

use std::{fmt, time::Duration};

use serde::Serialize;

use crate::{
    machines::Machines,
    membership::{MembershipChange, MembershipEvent},
    share::LeftOut,
};

/// What a run has done, and who did how much.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Committed steps, those of earlier runs included.
    pub steps: u64,
    /// Completed epochs.
    pub epochs: u64,
    /// Samples that this run has committed.
    pub samples: u64,
    /// Mean loss of every completed epoch.
    pub epoch_losses: Vec<f64>,
    /// Wall-clock time of this run, without probing.
    #[serde(rename = "wall_s", serialize_with = "as_seconds")]
    pub wall: Duration,
    /// Steps that were skipped because a gradient was not finite.
    pub skipped: u64,
    /// Samples per step at the end.
    pub batch: u64,
    /// Time that the workers would have needed side by side without any exchange or waiting, divided by the wall-clock
    /// time.
    pub efficiency_side_by_side: Option<f64>,
    /// The same with the speeds that the workers have alone, if these were measured.
    pub efficiency_additive: Option<f64>,
    /// Exchange time that nothing hid, in seconds.
    pub exchange_s: f64,
    /// Exchange time that overlapped with compute, in seconds. Layer 1 exchanges after the last gradient, and hides
    /// nothing.
    pub exchange_hidden_s: f64,
    /// Whether the run was cancelled.
    pub cancelled: bool,
    /// The step of the checkpoint that the run continued from.
    pub resumed_from: Option<u64>,
    /// Why the last checkpoint could not be written.
    pub checkpoint_error: Option<String>,
    /// Workers that get nothing, and why.
    pub left_out: Vec<LeftOut>,
    /// Deaths and returns.
    pub events: Vec<MembershipEvent>,
    /// Failures of workers that training went on without.
    pub failures: Vec<WorkerFailure>,
    /// Each worker's part.
    pub workers: Vec<WorkerReport>,
}

/// One worker's part of a run.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerReport {
    /// The worker.
    pub rank: usize,
    /// Its device, or `thread` or `process`.
    pub device: String,
    /// Samples that it computed and that were committed.
    pub samples: u64,
    /// Samples per step at the end.
    pub batch: u64,
    /// Its compute time in seconds.
    pub compute_s: f64,
    /// Seconds that it waited for others.
    pub wait_s: f64,
    /// Samples per second of compute.
    pub samples_per_s: f64,
}

/// A worker that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerFailure {
    /// The worker.
    pub rank: usize,
    /// Why.
    pub why: String,
}

fn as_seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

impl Report {
    pub(super) fn new(
        machines: &Machines,
        before: &[f64],
        wall: Duration,
        alone: &[f64],
        devices: &[String],
    ) -> Self {
        let workers: Vec<WorkerReport> = machines
            .totals
            .iter()
            .enumerate()
            .map(|(rank, totals)| WorkerReport {
                rank,
                device: devices.get(rank).cloned().unwrap_or_default(),
                samples: totals.samples as u64,
                batch: machines.planner.plan().batches[rank],
                compute_s: totals.compute_s,
                wait_s: totals.wait_s,
                samples_per_s: if totals.compute_s > 0.0 { totals.samples / totals.compute_s } else { 0.0 },
            })
            .collect();
        let samples: f64 =
            machines.totals.iter().map(|totals| totals.samples).sum::<f64>() - before.iter().sum::<f64>();
        let efficiency = |rates: f64| {
            (rates > 0.0 && !wall.is_zero() && samples > 0.0).then(|| samples / rates / wall.as_secs_f64())
        };
        Report {
            steps: machines.step(),
            epochs: machines.ledger.epoch(),
            samples: samples as u64,
            epoch_losses: machines.epoch_losses.clone(),
            wall,
            skipped: machines.skipped,
            batch: machines.ledger.batch(),
            efficiency_side_by_side: efficiency(workers.iter().map(|worker| worker.samples_per_s).sum()),
            efficiency_additive: efficiency(alone.iter().sum()),
            exchange_s: machines.exchange_s,
            exchange_hidden_s: 0.0,
            cancelled: false,
            resumed_from: None,
            checkpoint_error: None,
            left_out: machines.planner.plan().left_out.clone(),
            events: machines.membership.events().to_vec(),
            failures: Vec::new(),
            workers,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { samples, steps, epochs, wall, .. } = self;
        let rate = *samples as f64 / wall.as_secs_f64().max(1e-9);
        writeln!(f, "{samples} samples, {steps} steps, {epochs} epochs in {wall:.2?}: {rate:.0} samples/s")?;
        if let Some(loss) = self.epoch_losses.last() {
            writeln!(f, "loss of the last epoch {loss:.6}")?;
        }
        let known =
            |efficiency: Option<f64>| efficiency.map_or("not measured".into(), |it| format!("{it:.3}"));
        writeln!(
            f,
            "efficiency {} against side by side, {} against additive",
            known(self.efficiency_side_by_side),
            known(self.efficiency_additive)
        )?;
        writeln!(f, "exchange {:.3} s not hidden, {:.3} s hidden", self.exchange_s, self.exchange_hidden_s)?;
        writeln!(f, "worker  device        samples  share  batch  compute s   wait s  samples/s")?;
        let total: u64 = self.workers.iter().map(|worker| worker.samples).sum();
        for WorkerReport { rank, device, samples, batch, compute_s, wait_s, samples_per_s } in &self.workers {
            let share = 100.0 * *samples as f64 / total.max(1) as f64;
            writeln!(
                f,
                "{rank:>6}  {device:<12}{samples:>9}  {share:>4.1}%  {batch:>5}  {compute_s:>9.3}  {wait_s:>7.3}  {samples_per_s:>9.0}"
            )?;
        }
        self.left_out.iter().try_for_each(|left_out| writeln!(f, "{left_out}"))?;
        for MembershipEvent { step, rank, what } in &self.events {
            match what {
                MembershipChange::Died(why) => writeln!(f, "step {step}: worker {rank} was lost: {why}")?,
                MembershipChange::Returned => writeln!(f, "step {step}: worker {rank} returned")?,
            }
        }
        for WorkerFailure { rank, why } in &self.failures {
            writeln!(f, "worker {rank} failed: {why}")?;
        }
        if self.skipped > 0 {
            writeln!(f, "{} steps were skipped: a gradient was not finite", self.skipped)?;
        }
        if let Some(error) = &self.checkpoint_error {
            writeln!(f, "the last checkpoint was not written: {error}")?;
        }
        if self.cancelled {
            writeln!(f, "cancelled")?;
        }
        Ok(())
    }
}
