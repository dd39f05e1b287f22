//! What a worker does when an exchange has failed: find out who is left, and go on with them.

use std::time::Duration;

use evener_mesh::comm::{CommError, GroupSpec};

use super::{
    engine::{Engine, Fault},
    rendezvous::Admission,
    state::blames,
};
use crate::{
    error::{Result, TrainError},
    replica::{Computed, Replica},
    share::{ProbePlan, SpeedModel},
};

/// Attempts to go on after failures in a row, per rank, before training ends.
const ATTEMPTS: usize = 3;

/// Timeouts that a worker waits to be taken back.
const PATIENCE: u32 = 20;

impl<R: Replica> Engine<R> {
    /// Goes on from the last commit with the ranks that are left, or comes back if this rank was too late.
    pub(super) fn recover(&mut self, mut error: CommError) -> Result<()> {
        // The failed groups stay alive until the end: a rank that dropped one would look as if it had left.
        let mut failed = vec![self.group.clone()];
        for _ in 0..ATTEMPTS * self.around.world.size() {
            let next = if self.outside || blames(&error, self.around.rank) {
                self.come_back(error)
            } else {
                self.go_on(error)
            };
            failed.push(self.group.clone());
            match next {
                Ok(()) => return Ok(()),
                Err(Fault::Fatal(fatal)) => return Err(fatal),
                Err(Fault::Comm(next)) => {
                    tracing::warn!("worker {}: {next}", self.around.rank);
                    error = next;
                }
            }
        }
        Err(TrainError::Comm(error))
    }

    /// Forms a group of the ranks that answer, and agrees with them on a state.
    fn go_on(&mut self, error: CommError) -> Result<(), Fault> {
        let me = self.around.rank;
        let members = self.machines.membership.members();
        let alive = self.ping(&members, &error);
        let dead: Vec<_> =
            members.iter().copied().filter(|rank| *rank != me && !alive.contains(rank)).collect();
        if dead.is_empty() && error.ranks().is_empty() {
            // Nobody is gone and nobody is to blame: the same would happen again.
            return Err(TrainError::Comm(error).into());
        }
        let batch = self.machines.ledger.batch();
        let fits = self.machines.died(&dead, &error.to_string()).map_err(TrainError::from)?;
        let members = self.machines.membership.members();
        if !fits {
            return Err(TrainError::BatchTooLarge { batch, ranks: members.len() }.into());
        }
        tracing::warn!("worker {me}: goes on from step {} with workers {members:?}", self.machines.step());
        self.group = self.around.group(self.machines.membership.generation(), &members)?;
        self.restore()?;
        self.agree()
    }

    /// Returns the other members that answer.
    ///
    /// Errors of one failure may name different ranks on different ranks, for example if two died at once. Members that
    /// went on with different groups would wait for one another in vain. So each pair of members meets in a group of its
    /// own: a meeting takes place for both or for neither, and it cannot take place with a dead rank.
    fn ping(&self, members: &[usize], error: &CommError) -> Vec<usize> {
        let me = self.around.rank;
        // A rank that has said that it leaves is not waited for.
        let left = if let CommError::Left { rank, .. } = error { Some(*rank) } else { None };
        let generation = self.machines.membership.generation();
        let timeout = self.around.settings.timeout / 2;
        let meetings: Vec<_> = members
            .iter()
            .copied()
            .filter(|&other| other != me && Some(other) != left)
            .filter_map(|other| {
                let name = format!("ping-{}-{generation}", self.around.run);
                let spec = GroupSpec::new(name, [me.min(other), me.max(other)]).timeout(timeout);
                let pair = self.around.world.new_group(spec).ok()?;
                let meeting = pair.start_barrier();
                Some((other, pair, meeting))
            })
            .collect();
        // All meetings are started before the first is waited for.
        meetings
            .into_iter()
            .filter_map(|(other, _pair, meeting)| meeting.wait().ok().map(|()| other))
            .collect()
    }

    /// Asks to be a member again, and takes the others' state.
    fn come_back(&mut self, error: CommError) -> Result<(), Fault> {
        self.outside = true;
        let rank = self.around.rank;
        let patience = self.around.settings.timeout.saturating_mul(PATIENCE);
        let Some(Admission { generation, members }) = self.around.rendezvous.ask(rank, patience) else {
            return Err(TrainError::LeftBehind { rank, error }.into());
        };
        self.has_state = false;
        self.group = self.around.group(generation, &members)?;
        self.agree()?;
        self.outside = false;
        Ok(())
    }

    /// Makes a rank a member again. All members call this after the same commit.
    pub(super) fn take_back(&mut self, rank: usize) -> Result<(), Fault> {
        if !self.machines.returned(rank) {
            return Ok(());
        }
        let (generation, members) =
            (self.machines.membership.generation(), self.machines.membership.members());
        tracing::info!(
            "worker {}: takes worker {rank} back at step {}",
            self.around.rank,
            self.machines.step()
        );
        self.group = self.around.group(generation, &members)?;
        // The leader may be the returned rank from now on: the rank that saw the request answers it.
        if members.iter().find(|member| **member != rank) == Some(&self.around.rank) {
            self.around.rendezvous.admit(rank, Admission { generation, members });
        }
        self.agree()
    }

    /// Computes one batch that is not timed, because the first one compiles kernels and fills caches.
    pub(super) fn warm_up(&mut self) -> Result<(), Fault> {
        let share = self.machines.planner.plan().batches[self.around.rank];
        if share > 0 {
            self.probe_batch(share)?;
        }
        self.warm = true;
        self.restore()?;
        Ok(())
    }

    fn probe_batch(&mut self, samples: u64) -> Result<Computed> {
        let ledger = &self.machines.ledger;
        let samples = ledger.at(0..samples.min(ledger.samples())).to_vec();
        self.accumulate(&samples)
    }

    /// Finds the speeds of all members, which compute side by side. Trains on nothing.
    pub(super) fn probe(&mut self) -> Result<(), Fault> {
        let members = self.machines.membership.members();
        let least = self.replica.least_share();
        let share = self.machines.ledger.batch().div_ceil(members.len() as u64).max(least * 4);
        let mut plan = ProbePlan::new(share, self.replica.micro_batch());
        while let Some(step) = plan.next_step() {
            self.group.barrier()?;
            let computed = self.probe_batch(step.samples)?;
            plan.record(computed.compute.as_secs_f64());
        }
        let micro_batch = self.replica.micro_batch();
        let model = plan.model(micro_batch);
        let mine = model.map_or([0.0; 3], |model| [1.0, model.per_sample_s, model.per_launch_s]);
        let mut found = vec![0.0f64; 3 * members.len()];
        self.group.all_gather(&mine, &mut found)?;
        let mut micro_batches = vec![0u64; members.len()];
        self.group.all_gather(&[micro_batch], &mut micro_batches)?;
        let known: Vec<&[f64]> = found.chunks_exact(3).filter(|model| model[0] == 1.0).collect();
        let mean = |index: usize| known.iter().map(|model| model[index]).sum::<f64>() / known.len() as f64;
        let usual = SpeedModel::proportional(if known.is_empty() { 1e-3 } else { mean(1) });
        let mut models: Vec<SpeedModel> = found
            .chunks_exact(3)
            .zip(micro_batches)
            .map(|(model, micro_batch)| match model {
                [1.0, per_sample_s, per_launch_s] => {
                    let (per_sample_s, per_launch_s) = (*per_sample_s, *per_launch_s);
                    SpeedModel { per_sample_s, per_launch_s, micro_batch, drift: 1.0 }
                }
                _ => SpeedModel { micro_batch, ..usual },
            })
            .collect();
        SpeedModel::bound_ratios(&mut models, share);
        let mut all = vec![usual; self.around.world.size()];
        members.iter().zip(models).for_each(|(&rank, model)| all[rank] = model);
        let too_large =
            TrainError::BatchTooLarge { batch: self.machines.ledger.batch(), ranks: members.len() };
        self.machines.planner.set_models(all).ok_or(too_large)?;
        if self.around.settings.measure_alone {
            self.measure_alone(&members, share)?;
        }
        (self.probed, self.warm) = (true, true);
        self.restore()?;
        if self.is_leader() {
            let plan = self.machines.planner.plan();
            tracing::info!("shares {:?}, predicted {:.2} ms a step", plan.batches, plan.predicted_s * 1e3);
            plan.left_out.iter().for_each(|left_out| tracing::warn!("{left_out}"));
        }
        Ok(())
    }

    /// Measures each worker while the others wait, for the report.
    fn measure_alone(&mut self, members: &[usize], share: u64) -> Result<(), Fault> {
        let mut mine = 0.0;
        for &rank in members {
            self.group.barrier()?;
            if rank == self.around.rank {
                let mut best = Duration::MAX;
                for _ in 0..3 {
                    best = best.min(self.probe_batch(share)?.compute);
                }
                mine = if best.is_zero() { 0.0 } else { share as f64 / best.as_secs_f64() };
            }
        }
        let mut rates = vec![0.0f64; members.len()];
        self.group.all_gather(&[mine], &mut rates)?;
        self.alone = vec![0.0; self.around.world.size()];
        members.iter().zip(rates).for_each(|(&rank, rate)| self.alone[rank] = rate);
        Ok(())
    }
}
