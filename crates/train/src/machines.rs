//! All decisions of a training run, in one place that every rank has a copy of.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    cadence::{Cadence, Round},
    ledger::Ledger,
    membership::{Membership, NobodyLeft},
    noise::{GainRule, NoiseScale, RankGradient},
    share::{PlanChange, Planner},
};

/// How a batch grows with the noise of the gradients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BatchGrowth {
    /// Largest number of samples per step.
    pub most: u64,
    /// How the learning rate follows.
    pub rule: GainRule,
}

/// What one rank did in a round, as every rank learns it from the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RankRound {
    /// Samples, or tokens, that its gradient is the mean of.
    pub weight: f64,
    /// Samples that it computed.
    pub samples: f64,
    /// Its compute time in seconds.
    pub compute_s: f64,
    /// The squared norm of its gradient, or of its change of parameters.
    pub norm_squared: f64,
    /// Its mean loss.
    pub loss: f64,
    /// Seconds that it spent in the previous exchange, waiting included.
    pub exchange_s: f64,
}

/// The totals of a rank, for the report.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RankTotals {
    /// Samples that it computed and that were committed.
    pub samples: f64,
    /// Its compute time in seconds.
    pub compute_s: f64,
    /// Seconds that it waited for other ranks.
    pub wait_s: f64,
}

/// The state machines of a training run. They know no thread, clock, device or random source: ranks that feed them the
/// same rounds decide the same, bit for bit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machines {
    /// Who takes how many samples.
    pub planner: Planner,
    /// Which samples come next.
    pub ledger: Ledger,
    /// Who is there.
    pub membership: Membership,
    /// How noisy the gradients are.
    pub noise: NoiseScale,
    /// How many local steps a round has. `None` in lockstep.
    pub cadence: Option<Cadence>,
    /// How the batch grows.
    pub growth: Option<BatchGrowth>,
    /// Samples per step at the start.
    pub first_batch: u64,
    /// Steps that were skipped because a gradient was not finite.
    pub skipped: u64,
    /// By world rank.
    pub totals: Vec<RankTotals>,
    /// Seconds of exchange that nothing hid.
    pub exchange_s: f64,
    /// Committed steps at the last checkpoint.
    pub checkpointed: u64,
    /// Mean losses of the completed epochs.
    pub epoch_losses: Vec<f64>,
    /// Sum of weighted losses, and of weights, in the current epoch.
    loss_sum: (f64, f64),
}

/// The samples of one local step, cut among the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalStep {
    /// Samples of each rank, by world rank.
    pub batches: Vec<u64>,
    /// Positions in the epoch's order of each rank, by world rank.
    pub pieces: Vec<Range<u64>>,
}

/// What a commit has changed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Committed {
    /// Whether the plan has changed.
    pub plan: Option<PlanChange>,
    /// The mean loss of the epoch that the round has completed.
    pub epoch_loss: Option<f64>,
}

impl Machines {
    /// Creates the machines of a run.
    pub fn new(
        planner: Planner,
        ledger: Ledger,
        cadence: Option<Cadence>,
        growth: Option<BatchGrowth>,
    ) -> Self {
        let ranks = planner.models().len();
        Machines {
            first_batch: planner.settings().batch,
            planner,
            ledger,
            membership: Membership::new(ranks),
            noise: NoiseScale::default(),
            cadence,
            growth,
            skipped: 0,
            totals: vec![RankTotals::default(); ranks],
            exchange_s: 0.0,
            checkpointed: 0,
            epoch_losses: Vec::new(),
            loss_sum: (0.0, 0.0),
        }
    }

    /// Continues where a run with any number of ranks was. All ranks of this run are members, at the speeds that they
    /// have in this run.
    pub fn continue_from(&mut self, saved: Machines) {
        let batch = self.ledger.batch();
        self.membership.commit(saved.step());
        self.ledger = saved.ledger;
        self.ledger.restore();
        if saved.growth.is_some()
            && self.growth.is_some()
            && self.planner.set_batch(self.ledger.batch()).is_some()
        {
            self.first_batch = saved.first_batch;
        } else {
            self.ledger.set_batch(batch);
        }
        self.noise = saved.noise;
        if self.cadence.is_some() && saved.cadence.is_some() {
            self.cadence = saved.cadence;
        }
        self.skipped = saved.skipped;
        self.checkpointed = saved.checkpointed;
        self.epoch_losses = saved.epoch_losses;
        self.loss_sum = saved.loss_sum;
    }

    /// Makes all ranks members again, as at the start of a run that continues with the same ranks.
    pub fn all_present(&mut self) {
        let step = self.step();
        let was = self.membership.present();
        self.membership = Membership::new(was.len());
        self.membership.commit(step);
        if was.contains(&false) {
            self.planner.set_present(&self.membership.present());
        }
    }

    /// Returns the number of committed steps.
    pub fn step(&self) -> u64 {
        self.membership.step()
    }

    /// Returns the local steps of the next round, each cut among the members. Returns `None` if the members cannot take
    /// a step's samples.
    pub fn round(&self) -> Option<Vec<LocalStep>> {
        let steps = self.cadence.as_ref().map_or(1, Cadence::steps);
        let all = self.ledger.pending(steps);
        let mut start = all.start;
        let mut round = Vec::new();
        while start < all.end {
            let range = start..(start + self.ledger.batch()).min(all.end);
            start = range.end;
            let batches = self.planner.batches(range.end - range.start)?;
            let pieces = Ledger::cut(range, &batches).ok()?;
            round.push(LocalStep { batches, pieces });
        }
        Some(round)
    }

    /// Returns the factor for the learning rate.
    pub fn learning_rate_gain(&self) -> f64 {
        self.growth.map_or(1.0, |growth| {
            self.noise.learning_rate_gain(self.first_batch, self.ledger.batch(), growth.rule)
        })
    }

    /// Commits a round. `ranks` is by world rank, and 0 for ranks that are no members; `mean_norm_squared` is that of the
    /// averaged gradient or change. `applied` is false if the round was skipped because a number was not finite.
    pub fn commit(
        &mut self,
        round: &[LocalStep],
        ranks: &[RankRound],
        mean_norm_squared: f64,
        applied: bool,
    ) -> Committed {
        let mut done = Committed::default();
        self.account(ranks);
        if applied {
            let gradients: Vec<_> = ranks
                .iter()
                .map(|it| RankGradient { weight: it.weight, norm_squared: it.norm_squared })
                .collect();
            match &mut self.cadence {
                None => self.noise.add(&gradients, mean_norm_squared),
                Some(cadence) => {
                    let weight: f64 = ranks.iter().map(|it| it.weight).sum();
                    let each: f64 = ranks.iter().map(|it| it.weight / weight * it.norm_squared).sum();
                    cadence.observe(&Round {
                        exchange_s: exchange(ranks).unwrap_or(0.0),
                        compute_s: ranks.iter().map(|it| it.compute_s).fold(0.0, f64::max),
                        spread: ((each - mean_norm_squared).max(0.0) / mean_norm_squared).sqrt(),
                    });
                }
            }
        } else {
            self.skipped += 1;
        }
        // A round with a short last step says nothing about the plan.
        if let [first, rest @ ..] = round
            && rest.iter().all(|step| step.batches == first.batches)
        {
            let compute: Vec<f64> = ranks.iter().map(|it| it.compute_s / round.len() as f64).collect();
            done.plan = self.planner.observe(&first.batches, &compute);
        }
        self.membership.commit(round.len() as u64);
        let epoch = self.ledger.epoch();
        let end = round.iter().flat_map(|step| &step.pieces).map(|piece| piece.end).max();
        self.ledger.commit(end.unwrap_or(self.ledger.samples()));
        if self.ledger.epoch() != epoch {
            let (sum, weight) = std::mem::take(&mut self.loss_sum);
            let loss = if weight > 0.0 { sum / weight } else { 0.0 };
            self.epoch_losses.push(loss);
            done.epoch_loss = Some(loss);
            self.grow();
        }
        done
    }

    /// Adds a round to the totals.
    fn account(&mut self, ranks: &[RankRound]) {
        let exchange = exchange(ranks);
        self.exchange_s += exchange.unwrap_or(0.0);
        for (totals, rank) in self.totals.iter_mut().zip(ranks) {
            totals.samples += rank.samples;
            totals.compute_s += finite(rank.compute_s);
            totals.wait_s += (finite(rank.exchange_s) - exchange.unwrap_or(0.0)).max(0.0);
            if rank.weight > 0.0 && rank.loss.is_finite() {
                self.loss_sum.0 += rank.weight * rank.loss;
                self.loss_sum.1 += rank.weight;
            }
        }
    }

    /// Grows the batch at the end of an epoch, if it is to grow and the members can take it.
    fn grow(&mut self) {
        let Some(growth) = self.growth else { return };
        let batch = self.noise.grown_batch(self.ledger.batch(), growth.most);
        if batch > self.ledger.batch() && self.planner.set_batch(batch).is_some() {
            self.ledger.set_batch(batch);
        }
    }

    /// Takes note that ranks are gone. The samples of the round that they died in are cut again. Fails if no rank is
    /// left. Returns whether the members can take the batch.
    pub fn died(&mut self, ranks: &[usize], why: &str) -> Result<bool, NobodyLeft> {
        self.membership.died(ranks, why)?;
        Ok(self.planner.set_present(&self.membership.present()).is_some())
    }

    /// Takes a rank back, right after a commit. It starts at its last known speed.
    pub fn returned(&mut self, rank: usize) -> bool {
        self.membership.returned(rank) && self.planner.set_present(&self.membership.present()).is_some()
    }

    /// Returns 24 bits that differ, almost surely, if two ranks have decided differently. A float of any size carries
    /// them exactly.
    pub fn digest(&self) -> u32 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |number: u64| {
            for byte in number.to_le_bytes() {
                hash = (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3);
            }
        };
        self.planner.plan().batches.iter().for_each(|batch| add(*batch));
        self.planner.models().iter().for_each(|model| add(model.seconds(1000).to_bits()));
        [self.ledger.epoch(), self.ledger.cursor(), self.ledger.batch()].into_iter().for_each(&mut add);
        [self.step(), self.membership.generation(), self.skipped].into_iter().for_each(&mut add);
        add(self.noise.scale().unwrap_or(0.0).to_bits());
        add(self.cadence.as_ref().map_or(0, Cadence::steps));
        ((hash >> 40) ^ hash) as u32 & 0xff_ffff
    }
}

fn finite(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 0.0 }
}

/// Returns the seconds of an exchange without waiting: what the rank that arrived last spent in it.
fn exchange(ranks: &[RankRound]) -> Option<f64> {
    ranks.iter().map(|it| it.exchange_s).filter(|it| it.is_finite() && *it > 0.0).reduce(f64::min)
}
