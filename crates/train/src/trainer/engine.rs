//! One worker: computes its share, exchanges, decides as all others do, and goes on when another worker is gone.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::Sender,
    },
    time::{Duration, Instant},
};

use evener_mesh::comm::{CommError, Communicator, GroupSpec, World};

use super::{
    metrics::{Metrics, RankMetrics},
    rendezvous::Rendezvous,
    settings::{Policy, Settings},
    state::Snapshot,
};
use crate::{
    cadence::Cadence,
    checkpoint::Checkpoint,
    error::{Result, TrainError},
    ledger::Ledger,
    machines::{LocalStep, Machines, RankRound},
    replica::{Computed, Layout, Part, Replica, Scalar, Step, scale},
    share::{Exchange, PlanSettings, Planner, SpeedModel},
};

/// What a worker needs from its surroundings.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) rank: usize,
    pub(super) world: Arc<World>,
    /// Number of this run in the process, so that groups of several runs never match.
    pub(super) run: u64,
    pub(super) settings: Arc<Settings>,
    pub(super) rendezvous: Arc<dyn Rendezvous>,
    pub(super) cancel: Arc<AtomicBool>,
    /// `None` is the end.
    pub(super) metrics: Sender<Option<Metrics>>,
}

impl Surroundings {
    /// Creates the group of a generation.
    pub(super) fn group(&self, generation: u64, members: &[usize]) -> Result<Communicator, CommError> {
        let spec = GroupSpec::new(format!("train-{}-{generation}", self.run), members);
        self.world.new_group(spec.timeout(self.settings.timeout / 2))
    }
}

/// Why a round did not succeed.
pub(super) enum Fault {
    /// The exchange failed: the others may go on without the ranks that caused it.
    Comm(CommError),
    /// This worker cannot go on.
    Fatal(TrainError),
}

impl From<CommError> for Fault {
    fn from(error: CommError) -> Self {
        Fault::Comm(error)
    }
}

impl From<TrainError> for Fault {
    fn from(error: TrainError) -> Self {
        Fault::Fatal(error)
    }
}

/// How a worker ended.
pub(super) struct Finished<R> {
    pub(super) replica: R,
    pub(super) machines: Machines,
    pub(super) cancelled: bool,
    pub(super) wall: Duration,
    pub(super) resumed_from: Option<u64>,
    /// Samples per second of each worker alone, if that was measured.
    pub(super) alone: Vec<f64>,
    /// Samples of each worker that were committed before this run.
    pub(super) before: Vec<f64>,
    /// Why the last checkpoint could not be written.
    pub(super) checkpoint_error: Option<String>,
}

/// Elements that each rank appends to the exchange: weight, samples, compute time, squared norm, loss, time of the
/// previous exchange, flags, digest of its decisions.
const STATISTICS: usize = 8;

/// Flag of a rank that was asked to cancel. Higher bits are the rank that the leader takes back, plus one.
const CANCEL: u64 = 1;

/// One worker of a run.
pub(super) struct Engine<R: Replica> {
    pub(super) around: Surroundings,
    pub(super) replica: R,
    pub(super) layout: Layout,
    pub(super) machines: Machines,
    pub(super) group: Communicator,
    /// Whether this worker has the state of the run, and not that of a new replica.
    pub(super) has_state: bool,
    /// Whether the speeds of all workers are known.
    pub(super) probed: bool,
    /// Whether this worker has computed a batch, so that nothing is compiled any more.
    pub(super) warm: bool,
    /// Whether the others have gone on without this worker.
    pub(super) outside: bool,
    pub(super) committed: Snapshot<R::Element>,
    /// What is exchanged: gradient or change, buffers, statistics.
    flat: Vec<R::Element>,
    scratch: Vec<R::Element>,
    previous_exchange_s: f64,
    begun: Instant,
    /// Samples of each rank that were committed before this run.
    before: Vec<f64>,
    pub(super) checkpoint_error: Option<String>,
    /// Why the checkpoint to continue from cannot be used.
    pub(super) load_error: Option<TrainError>,
    /// Optimizer states of all ranks from a checkpoint, which are still to be handed out.
    pub(super) optimizers: Option<Vec<Vec<R::Element>>>,
    pub(super) resumed_from: Option<u64>,
    pub(super) alone: Vec<f64>,
}

impl<R: Replica> Engine<R> {
    /// Creates a worker that is a member of this group.
    pub(super) fn new(around: Surroundings, replica: R, group: Communicator) -> Result<Self> {
        let (layout, settings) = (replica.layout(), &around.settings);
        let ranks = around.world.size();
        let exchange = Exchange::NONE;
        let least = replica.least_share();
        let plan = PlanSettings { batch: settings.batch, least, exchange, fixed: settings.shares.clone() };
        let models = match &settings.speed_hint {
            Some(hints) => hints.iter().map(|hint| SpeedModel::proportional(1.0 / hint)).collect(),
            None => vec![SpeedModel::proportional(1e-3); ranks],
        };
        let most = settings.most.clone().unwrap_or_else(|| vec![u64::MAX; ranks]);
        let too_large = TrainError::BatchTooLarge { batch: settings.batch, ranks };
        let planner = Planner::new(plan, models, most).ok_or(too_large)?;
        let cadence = (settings.policy == Policy::Cadence)
            .then(|| Cadence::new(settings.overhead_target, settings.max_lead));
        let ledger = Ledger::new(settings.samples, settings.batch, settings.seed);
        let machines = Machines::new(planner, ledger, cadence, settings.growth);
        let elements = layout.len(Part::Parameters) + layout.len(Part::Buffers) + STATISTICS * ranks;
        Ok(Engine {
            probed: settings.speed_hint.is_some() || settings.shares.is_some(),
            committed: Snapshot::new(&layout, settings.policy, settings.outer),
            flat: vec![R::Element::default(); elements],
            scratch: vec![R::Element::default(); layout.len(Part::Parameters)],
            around,
            replica,
            layout,
            machines,
            group,
            has_state: false,
            warm: false,
            outside: false,
            previous_exchange_s: 0.0,
            begun: Instant::now(),
            before: Vec::new(),
            checkpoint_error: None,
            load_error: None,
            optimizers: None,
            resumed_from: None,
            alone: Vec::new(),
        })
    }

    /// Trains to the end.
    pub(super) fn run(mut self) -> Result<Finished<R>> {
        let mut step = self.begin();
        loop {
            step = match step {
                Ok(ControlFlow::Continue(())) => self.advance(),
                Ok(ControlFlow::Break(cancelled)) => {
                    self.around.rendezvous.close();
                    return Ok(Finished {
                        replica: self.replica,
                        machines: self.machines,
                        cancelled,
                        wall: self.begun.elapsed(),
                        resumed_from: self.resumed_from,
                        alone: self.alone,
                        before: self.before,
                        checkpoint_error: self.checkpoint_error,
                    });
                }
                Err(Fault::Comm(error)) => {
                    tracing::warn!("worker {}: {error}", self.around.rank);
                    self.recover(error)?;
                    Ok(ControlFlow::Continue(()))
                }
                Err(Fault::Fatal(error)) => return Err(error),
            }
        }
    }

    /// Agrees on the state to start from.
    fn begin(&mut self) -> Result<ControlFlow<bool>, Fault> {
        // The others must not begin anew where this worker cannot continue: they learn of the error first.
        self.load_error = self.load_checkpoint().err();
        self.agree()?;
        self.begun = Instant::now();
        self.before = self.machines.totals.iter().map(|totals| totals.samples).collect();
        Ok(ControlFlow::Continue(()))
    }

    /// Makes a round: local steps, exchange, commit.
    fn advance(&mut self) -> Result<ControlFlow<bool>, Fault> {
        let settings = self.around.settings.clone();
        if self.machines.ledger.epoch() >= settings.epochs {
            self.save_checkpoint(true)?;
            return Ok(ControlFlow::Break(false));
        }
        let members = self.machines.membership.members();
        let too_large = TrainError::BatchTooLarge { batch: settings.batch, ranks: members.len() };
        let round = self.machines.round().ok_or(too_large)?;
        let mut mine = match settings.policy {
            Policy::Lockstep => self.gradient(&round)?,
            Policy::Cadence => self.local_steps(&round)?,
        };
        mine.exchange_s = self.previous_exchange_s;
        let begun = Instant::now();
        let (ranks, flags) = self.exchange(mine, &members)?;
        self.previous_exchange_s = begun.elapsed().as_secs_f64();
        let (mean_norm_squared, applied) = self.apply(&ranks, &round)?;
        let done = self.machines.commit(&round, &ranks, mean_norm_squared, applied);
        if done.plan.is_some() && self.is_leader() {
            tracing::info!(
                "step {}: shares {:?}",
                self.machines.step(),
                self.machines.planner.plan().batches
            );
        }
        self.commit()?;
        self.tell(&ranks, &round, done.epoch_loss);
        if flags & CANCEL != 0 {
            self.save_checkpoint(true)?;
            return Ok(ControlFlow::Break(true));
        }
        self.save_checkpoint(false)?;
        if flags > CANCEL {
            self.take_back((flags >> 1) as usize - 1)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    pub(super) fn is_leader(&self) -> bool {
        self.machines.membership.leader() == Some(self.around.rank)
    }

    pub(super) fn failed(&self, error: crate::ReplicaError) -> TrainError {
        TrainError::Replica { rank: self.around.rank, error }
    }

    /// Computes the gradient of these samples into `flat`, in micro-batches that are averaged by their weights.
    pub(super) fn accumulate(&mut self, samples: &[u64]) -> Result<Computed> {
        let parameters = self.scratch.len();
        let micro = usize::try_from(self.replica.micro_batch().max(1)).unwrap_or(usize::MAX);
        let mut total = Computed { weight: 0.0, loss: 0.0, compute: Duration::ZERO };
        if samples.len() <= micro {
            let computed = self.replica.gradients(samples, &mut self.flat[..parameters]);
            return self.checked(computed);
        }
        self.flat[..parameters].fill(R::Element::default());
        for piece in samples.chunks(micro) {
            let computed = self.replica.gradients(piece, &mut self.scratch);
            let computed = self.checked(computed)?;
            total.weight += computed.weight;
            total.loss += computed.weight * computed.loss;
            total.compute += computed.compute;
            for (sum, value) in self.flat[..parameters].iter_mut().zip(&self.scratch) {
                *sum = R::Element::from_f64(sum.to_f64() + computed.weight * value.to_f64());
            }
        }
        if total.weight > 0.0 {
            total.loss /= total.weight;
            scale(&mut self.flat[..parameters], 1.0 / total.weight);
        }
        Ok(total)
    }

    fn checked(&self, computed: std::result::Result<Computed, crate::ReplicaError>) -> Result<Computed> {
        let computed = computed.map_err(|error| self.failed(error))?;
        if computed.weight.is_finite() && computed.weight >= 0.0 {
            return Ok(computed);
        }
        let detail =
            format!("the weight of a batch is {}: it must be finite and at least 0", computed.weight);
        Err(self.failed(detail.into()))
    }

    /// Returns this worker's samples of a step.
    fn samples(&self, step: &LocalStep) -> Vec<u64> {
        self.machines.ledger.at(step.pieces[self.around.rank].clone()).to_vec()
    }

    /// Lockstep: leaves the weighted gradient in `flat`.
    fn gradient(&mut self, round: &[LocalStep]) -> Result<RankRound, Fault> {
        let samples = round.first().map_or(Vec::new(), |step| self.samples(step));
        let parameters = self.scratch.len();
        if samples.is_empty() {
            self.flat[..parameters].fill(R::Element::default());
            return Ok(RankRound::default());
        }
        let Computed { weight, loss, compute } = self.accumulate(&samples)?;
        // The squared norm of the weighted gradient, so that one pass over it is enough.
        let weighted = scale(&mut self.flat[..parameters], weight);
        let norm_squared = if weight > 0.0 { weighted / (weight * weight) } else { 0.0 };
        let compute_s = compute.as_secs_f64();
        Ok(RankRound {
            weight,
            samples: samples.len() as f64,
            compute_s,
            norm_squared,
            loss,
            exchange_s: 0.0,
        })
    }

    /// Cadence: makes local steps, and leaves the weighted change of parameters in `flat`.
    fn local_steps(&mut self, round: &[LocalStep]) -> Result<RankRound, Fault> {
        let parameters = self.scratch.len();
        let mut mine = RankRound::default();
        for (index, step) in round.iter().enumerate() {
            let samples = self.samples(step);
            if samples.is_empty() {
                continue;
            }
            let computed = self.accumulate(&samples)?;
            let mut gradient = std::mem::take(&mut self.flat);
            let norm_squared = scale(&mut gradient[..parameters], 1.0);
            if norm_squared.is_finite() {
                self.clip(&mut gradient[..parameters], norm_squared);
                let number = self.machines.step() + index as u64;
                let step = Step { number, learning_rate_gain: self.machines.learning_rate_gain() };
                self.replica.apply(&gradient[..parameters], step).map_err(|error| self.failed(error))?;
            }
            self.flat = gradient;
            mine.weight += computed.weight;
            mine.samples += samples.len() as f64;
            mine.loss += computed.weight * computed.loss;
            mine.compute_s += computed.compute.as_secs_f64();
        }
        if mine.weight > 0.0 {
            mine.loss /= mine.weight;
        }
        self.replica
            .read(Part::Parameters, &mut self.flat[..parameters])
            .map_err(|error| self.failed(error))?;
        for (now, before) in self.flat[..parameters].iter_mut().zip(&self.committed.parameters) {
            *now = R::Element::from_f64(now.to_f64() - before.to_f64());
        }
        let weighted = scale(&mut self.flat[..parameters], mine.weight);
        mine.norm_squared = if mine.weight > 0.0 { weighted / (mine.weight * mine.weight) } else { 0.0 };
        Ok(mine)
    }

    /// Limits the norm of a gradient.
    fn clip(&self, gradient: &mut [R::Element], norm_squared: f64) {
        if let Some(most) = self.around.settings.max_grad_norm {
            let norm = norm_squared.sqrt();
            if norm > most {
                scale(gradient, most / norm);
            }
        }
    }

    /// The one collective of a round: sums gradients and buffers, and tells every rank what each did. Returns that, by
    /// world rank, and the flags of all.
    fn exchange(&mut self, mine: RankRound, members: &[usize]) -> Result<(Vec<RankRound>, u64), Fault> {
        let (parameters, buffers) = (self.scratch.len(), self.layout.len(Part::Buffers));
        let end = parameters + buffers + STATISTICS * members.len();
        let mut flat = std::mem::take(&mut self.flat);
        self.replica
            .read(Part::Buffers, &mut flat[parameters..parameters + buffers])
            .map_err(|error| self.failed(error))?;
        scale(&mut flat[parameters..parameters + buffers], mine.weight);
        let statistics = &mut flat[parameters + buffers..end];
        statistics.fill(R::Element::default());
        let index = members.iter().position(|&member| member == self.around.rank).unwrap_or(0);
        let RankRound { weight, samples, compute_s, norm_squared, loss, exchange_s } = mine;
        let (flags, digest) = (self.flags(members) as f64, self.machines.digest() as f64);
        let words = [weight, samples, compute_s, norm_squared, loss, exchange_s, flags, digest];
        for (slot, word) in statistics[index * STATISTICS..].iter_mut().zip(words) {
            *slot = R::Element::from_f64(word);
        }
        let done = self.group.all_reduce(&mut flat[..end], evener_mesh::comm::ReduceOp::Sum);
        self.flat = flat;
        done?;
        let mut ranks = vec![RankRound::default(); self.around.world.size()];
        let mut all_flags = 0;
        for (words, &rank) in self.flat[parameters + buffers..end].chunks_exact(STATISTICS).zip(members) {
            let word = |index: usize| words[index].to_f64();
            ranks[rank] = RankRound {
                weight: word(0),
                samples: word(1),
                compute_s: word(2),
                norm_squared: word(3),
                loss: word(4),
                exchange_s: word(5),
            };
            all_flags |= word(6) as u64;
            if word(7) != digest {
                return Err(TrainError::Diverged { step: self.machines.step() }.into());
            }
        }
        Ok((ranks, all_flags))
    }

    /// Returns this rank's flags: whether to cancel, and as the leader who comes back.
    fn flags(&self, members: &[usize]) -> u64 {
        let cancel = if self.around.cancel.load(SeqCst) { CANCEL } else { 0 };
        if !self.is_leader() || members.len() == self.around.world.size() {
            return cancel;
        }
        let gone: Vec<_> = (0..self.around.world.size()).filter(|rank| !members.contains(rank)).collect();
        let back = self.around.rendezvous.asking(&gone).map_or(0, |rank| rank as u64 + 1);
        cancel | back << 1
    }

    /// Applies what was exchanged. Returns the squared norm of the mean, and whether it was applied: a number that is not
    /// finite, on any rank, skips the step on all.
    fn apply(&mut self, ranks: &[RankRound], round: &[LocalStep]) -> Result<(f64, bool), Fault> {
        let (parameters, buffers) = (self.scratch.len(), self.layout.len(Part::Buffers));
        let weight: f64 = ranks.iter().map(|rank| rank.weight).sum();
        if weight <= 0.0 {
            self.restore()?;
            return Ok((0.0, false));
        }
        let mut flat = std::mem::take(&mut self.flat);
        let norm_squared = scale(&mut flat[..parameters], 1.0 / weight);
        let finite = norm_squared.is_finite() && ranks.iter().all(|rank| rank.norm_squared.is_finite());
        let done = if finite {
            let number = self.machines.step() + round.len() as u64 - 1;
            let step = Step { number, learning_rate_gain: self.machines.learning_rate_gain() };
            let changed = &mut flat[..parameters];
            let applied = match self.around.settings.policy {
                Policy::Lockstep => {
                    self.clip(changed, norm_squared);
                    self.replica.apply(changed, step)
                }
                Policy::Cadence => {
                    self.committed.outer_step(self.around.settings.outer, changed);
                    self.replica.write(Part::Parameters, changed)
                }
            };
            scale(&mut flat[parameters..parameters + buffers], 1.0 / weight);
            applied.and_then(|()| self.replica.write(Part::Buffers, &flat[parameters..parameters + buffers]))
        } else {
            Ok(())
        };
        self.flat = flat;
        done.map_err(|error| self.failed(error))?;
        if !finite {
            self.restore()?;
        }
        Ok((norm_squared, finite))
    }

    /// The leader tells how training goes.
    fn tell(&self, ranks: &[RankRound], round: &[LocalStep], epoch_loss: Option<f64>) {
        if !self.is_leader() {
            return;
        }
        let machines = &self.machines;
        let weight: f64 = ranks.iter().map(|rank| rank.weight).sum();
        let loss = ranks.iter().map(|rank| rank.weight * rank.loss).sum::<f64>() / weight;
        let ledger = &machines.ledger;
        let total = ledger.samples() as f64 * self.around.settings.epochs as f64;
        let done = ledger.samples() as f64 * ledger.epoch() as f64 + ledger.cursor() as f64;
        let wall = self.begun.elapsed().as_secs_f64();
        let since_begin = machines.totals.iter().map(|totals| totals.samples).sum::<f64>()
            - self.before.iter().sum::<f64>();
        let samples_per_s = since_begin / wall.max(1e-9);
        let workers = (0..ranks.len())
            .map(|rank| RankMetrics {
                rank,
                batch: round.first().map_or(0, |step| step.batches[rank]),
                compute: Duration::try_from_secs_f64(ranks[rank].compute_s).unwrap_or_default(),
                waited: Duration::try_from_secs_f64(ranks[rank].exchange_s).unwrap_or_default(),
                present: machines.membership.is_member(rank),
            })
            .collect();
        let metrics = Metrics {
            epoch: ledger.epoch(),
            step: machines.step(),
            loss,
            epoch_loss,
            batch: ledger.batch(),
            local_steps: round.len() as u64,
            samples_per_s,
            remaining: Duration::try_from_secs_f64((total - done) / samples_per_s).ok(),
            noise_scale: machines.noise.scale(),
            learning_rate_gain: machines.learning_rate_gain(),
            workers,
        };
        // Nobody may listen.
        let _ = self.around.metrics.send(Some(metrics));
    }

    /// Continues from a checkpoint. Every rank reads it, so that the run continues also if the first rank is gone by then; a rank that
    /// does not see the folder gets the state from the others.
    fn load_checkpoint(&mut self) -> Result<()> {
        let Some(folder) = self.around.settings.checkpoint.clone() else { return Ok(()) };
        if let Some(checkpoint) = Checkpoint::latest(&folder)? {
            self.resume(checkpoint)?;
        }
        Ok(())
    }
}
