//! Who takes part, with which batch, and when that changes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    drift::{DriftWindow, WINDOW, lower_quartile},
    model::SpeedModel,
    solve::{Candidate, Exchange, solve},
};

/// Predicted gain below which a plan is kept: changing costs caches, compiled shapes and measured windows.
const LEAST_GAIN: f64 = 0.02;

/// Measured loss above which a changed plan is taken back.
const MOST_LOSS: f64 = 0.01;

/// Limit of the pause after changes that were taken back: 64 windows.
const MOST_REFUSALS: u32 = 6;

/// What a planner needs to know, apart from the devices' speeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanSettings {
    /// Samples per step over all ranks.
    pub batch: u64,
    /// Smallest batch of a rank that takes part.
    pub least: u64,
    /// The exchange that follows each step.
    pub exchange: Exchange,
    /// Fixed batches, one per rank, which are never changed while all ranks are there.
    pub fixed: Option<Vec<u64>>,
}

/// The batches of all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Samples per step of each rank, by world rank. 0 for a rank that is absent or left out.
    pub batches: Vec<u64>,
    /// Predicted seconds per step.
    pub predicted_s: f64,
    /// The ranks that are there and get nothing.
    pub left_out: Vec<LeftOut>,
}

/// A rank that gets no samples although it is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The rank.
    pub rank: usize,
    /// Predicted seconds per step with this rank, or `None` if the batch is too small to share with it.
    pub with_s: Option<f64>,
    /// Predicted seconds per step without it.
    pub without_s: f64,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftOut { rank, with_s, without_s } = self;
        if let Some(with_s) = with_s {
            let (with, without) = (with_s * 1e3, without_s * 1e3);
            write!(
                f,
                "rank {rank} is left out: a step would take {with:.2} ms with it and takes {without:.2} ms without"
            )
        } else {
            write!(f, "rank {rank} is left out: the batch is too small to share with it")
        }
    }
}

/// What a planner has changed after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanChange {
    /// The predicted gain was large enough for new batches.
    Replanned,
    /// The last change made steps slower than before, and was taken back.
    WentBack,
}

/// A change of plan that has not yet proved itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Trial {
    before: Plan,
    /// The measured step before the change, in seconds.
    before_s: f64,
}

/// Decides the batches. All ranks run an equal planner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Planner {
    settings: PlanSettings,
    /// By world rank. Those of absent ranks are kept: a rank that returns starts at its last known speed.
    models: Vec<SpeedModel>,
    caps: Vec<u64>,
    windows: Vec<DriftWindow>,
    present: Vec<bool>,
    plan: Plan,
    /// Longest compute time of each step since the last decision.
    steps: Vec<f64>,
    trial: Option<Trial>,
    refused: Option<Refusal>,
    /// Changes in a row that were taken back.
    refusals: u32,
}

/// A change that was taken back. Another one is tried when some windows have passed and a speed has moved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Refusal {
    drifts: Vec<f64>,
    /// Windows to let pass. Doubles with every change in a row that is taken back: a device whose speed no model
    /// describes would otherwise be tried again and again.
    windows: u32,
}

impl Planner {
    /// Creates a planner. `caps` are the largest batches, by world rank. Returns `None` if the ranks cannot take the
    /// batch within their caps.
    pub fn new(settings: PlanSettings, models: Vec<SpeedModel>, caps: Vec<u64>) -> Option<Self> {
        let ranks = models.len();
        let plan = Plan { batches: vec![0; ranks], predicted_s: 0.0, left_out: Vec::new() };
        let mut planner = Planner {
            settings,
            models,
            caps,
            windows: vec![DriftWindow::default(); ranks],
            present: vec![true; ranks],
            plan,
            steps: Vec::new(),
            trial: None,
            refused: None,
            refusals: 0,
        };
        if planner.caps.len() != ranks {
            return None;
        }
        planner.plan = planner.best(planner.settings.batch)?;
        Some(planner)
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the models, by world rank.
    pub fn models(&self) -> &[SpeedModel] {
        &self.models
    }

    /// Returns the settings.
    pub fn settings(&self) -> &PlanSettings {
        &self.settings
    }

    /// Returns the batches of a step with this many samples, by world rank: the plan, or a plan of its own for the last
    /// step of an epoch. Returns `None` if the present ranks cannot take them.
    pub fn batches(&self, samples: u64) -> Option<Vec<u64>> {
        if samples == self.settings.batch {
            return Some(self.plan.batches.clone());
        }
        self.best(samples).map(|plan| plan.batches)
    }

    /// Replaces the models, for example after a probe. Returns `None`, and changes nothing, if the ranks cannot take
    /// the batch.
    pub fn set_models(&mut self, models: Vec<SpeedModel>) -> Option<()> {
        let before = std::mem::replace(&mut self.models, models);
        if self.models.len() != before.len() {
            self.models = before;
            return None;
        }
        self.replan()
    }

    /// Says which ranks are there. Returns `None`, and changes nothing but the presence, if these cannot take the batch.
    pub fn set_present(&mut self, present: &[bool]) -> Option<()> {
        self.present = present.to_vec();
        self.replan()
    }

    /// Changes the samples per step. Returns `None`, and changes nothing, if the ranks cannot take them.
    pub fn set_batch(&mut self, batch: u64) -> Option<()> {
        let before = std::mem::replace(&mut self.settings.batch, batch);
        let done = self.replan();
        if done.is_none() {
            self.settings.batch = before;
        }
        done
    }

    fn replan(&mut self) -> Option<()> {
        let plan = self.best(self.settings.batch)?;
        self.adopt(plan);
        self.trial = None;
        self.refused = None;
        self.refusals = 0;
        Some(())
    }

    fn adopt(&mut self, plan: Plan) {
        self.plan = plan;
        self.steps.clear();
        self.windows.iter_mut().for_each(DriftWindow::restart);
    }

    /// Takes the compute times of a step, by world rank, in seconds. `batches` are the ones that were computed. A step of
    /// other batches than the plan's moves no window. Ignores times that are not finite or not above 0.
    pub fn observe(&mut self, batches: &[u64], compute_s: &[f64]) -> Option<PlanChange> {
        if batches != self.plan.batches {
            return None;
        }
        let mut longest: f64 = 0.0;
        for rank in 0..self.models.len().min(compute_s.len()) {
            let seconds = compute_s[rank];
            if batches[rank] == 0 || !(seconds.is_finite() && seconds > 0.0) {
                continue;
            }
            longest = longest.max(seconds);
            let predicted = self.models[rank].seconds(batches[rank]);
            if let Some(factor) = self.windows[rank].add(seconds, predicted) {
                self.models[rank].drift = (self.models[rank].drift * factor).clamp(1e-6, 1e6);
            }
        }
        if longest > 0.0 {
            self.steps.push(longest);
        }
        if self.steps.len() < WINDOW {
            return None;
        }
        let measured = lower_quartile(&mut self.steps);
        self.steps.clear();
        self.decide(measured)
    }

    /// Decides at the end of a window whose steps took `measured_s`.
    fn decide(&mut self, measured_s: f64) -> Option<PlanChange> {
        if let Some(Trial { before, before_s }) = self.trial.take() {
            if measured_s > before_s * (1.0 + MOST_LOSS) {
                let drifts = self.models.iter().map(|model| model.drift).collect();
                self.refusals = (self.refusals + 1).min(MOST_REFUSALS);
                self.refused = Some(Refusal { drifts, windows: 1 << self.refusals });
                self.adopt(before);
                return Some(PlanChange::WentBack);
            }
            self.refusals = 0;
        }
        if let Some(refused) = &mut self.refused {
            refused.windows = refused.windows.saturating_sub(1);
            let moved = |(model, drift): (&SpeedModel, &f64)| (model.drift / drift - 1.0).abs() > LEAST_GAIN;
            if refused.windows > 0 || !self.models.iter().zip(&refused.drifts).any(moved) {
                return None;
            }
            self.refused = None;
        }
        let now = self.predict(&self.plan.batches)?;
        let best = self.best(self.settings.batch)?;
        if best.batches == self.plan.batches || best.predicted_s >= now * (1.0 - LEAST_GAIN) {
            self.plan.predicted_s = now;
            return None;
        }
        let before = self.plan.clone();
        self.adopt(best);
        self.trial = Some(Trial { before, before_s: measured_s });
        Some(PlanChange::Replanned)
    }

    fn candidate(&self, rank: usize, least: u64) -> Candidate {
        Candidate { model: self.models[rank], most: self.caps[rank], least }
    }

    /// Returns the predicted seconds of a step with these batches.
    fn predict(&self, batches: &[u64]) -> Option<f64> {
        let exchange = &self.settings.exchange;
        let busy = |(rank, &batch): (usize, &u64)| self.candidate(rank, 0).busy_s(batch, exchange);
        batches.iter().enumerate().map(busy).reduce(f64::max).map(|longest| longest + exchange.last_s)
    }

    /// Evaluates the k fastest of the present ranks for every k, and returns the best plan.
    fn best(&self, samples: u64) -> Option<Plan> {
        let ranks = self.models.len();
        let mut order: Vec<usize> = (0..ranks).filter(|&rank| self.present[rank]).collect();
        if let Some(fixed) = &self.settings.fixed
            && order.len() == ranks
            && fixed.len() == ranks
            && fixed.iter().sum::<u64>() == samples
        {
            let predicted_s = self.predict(fixed)?;
            return Some(Plan { batches: fixed.clone(), predicted_s, left_out: Vec::new() });
        }
        let share = samples.div_ceil(order.len().max(1) as u64).max(1);
        let pace = |rank: usize| self.models[rank].seconds(share);
        order.sort_by(|&one, &other| pace(one).total_cmp(&pace(other)).then(one.cmp(&other)));
        let mut evaluated: Vec<Option<(f64, Vec<u64>)>> = Vec::new();
        for count in 1..=order.len() {
            // One rank alone may compute a batch that is smaller than the smallest share.
            let least = if count == 1 { self.settings.least.min(samples) } else { self.settings.least };
            let chosen: Vec<Candidate> =
                order[..count].iter().map(|&rank| self.candidate(rank, least)).collect();
            let solved = solve(&chosen, samples, &self.settings.exchange).and_then(|solved| {
                let mut batches = vec![0; ranks];
                order[..count].iter().zip(solved).for_each(|(&rank, batch)| batches[rank] = batch);
                self.predict(&batches).map(|predicted| (predicted, batches))
            });
            evaluated.push(solved);
        }
        let best = evaluated
            .iter()
            .enumerate()
            .filter_map(|(index, plan)| plan.as_ref().map(|plan| (plan.0, index)))
            .min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)))?
            .1;
        let (predicted_s, batches) = evaluated[best].clone()?;
        let with = |rank: usize| {
            let position = order.iter().position(|&it| it == rank).unwrap_or(0);
            evaluated[position].as_ref().map(|plan| plan.0)
        };
        let left_out = (0..ranks)
            .filter(|&rank| self.present[rank] && batches[rank] == 0)
            .map(|rank| LeftOut { rank, with_s: with(rank), without_s: predicted_s })
            .collect();
        Some(Plan { batches, predicted_s, left_out })
    }
}
