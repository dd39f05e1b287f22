//! Simulates training on virtual devices in virtual time, with the machines that real training uses.

mod scenario;

use std::fmt;

use serde::Serialize;

pub use self::scenario::{TrainingDevice, TrainingEvent, TrainingEventKind, TrainingScenario, TrainingSpec};
use crate::{
    ledger::{Ledger, SplitMix},
    machines::{Machines, RankRound},
    membership::MembershipEvent,
    share::{Candidate, Exchange, PlanSettings, Planner, ProbePlan, SpeedModel, solve},
};

/// The outcome of a simulated training.
#[derive(Debug, Clone, Serialize)]
pub struct TrainingSimulation {
    /// What the scenario shows.
    pub about: String,
    /// Committed steps.
    pub steps: u64,
    /// Samples that were committed.
    pub samples: u64,
    /// Virtual time without probing, in seconds.
    pub wall_s: f64,
    /// Virtual time of the same steps with the best shares at every moment, and nothing lost at a death, in seconds.
    pub ideal_s: f64,
    /// `ideal_s / wall_s`.
    pub efficiency: f64,
    /// `wall_s` of equal shares among the devices that are there, divided by `wall_s`.
    pub gain_over_equal: f64,
    /// The shares, whenever they changed.
    pub shares: Vec<SharesAt>,
    /// Deaths and returns.
    pub events: Vec<MembershipEvent>,
    /// Each device's part.
    pub devices: Vec<SimulatedDevice>,
}

/// Shares from a step on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SharesAt {
    /// The step.
    pub step: u64,
    /// Virtual time in seconds.
    pub at_s: f64,
    /// Samples per step of each device.
    pub batches: Vec<u64>,
}

/// One device's part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SimulatedDevice {
    /// Its name.
    pub id: String,
    /// Samples that it computed and that were committed.
    pub samples: u64,
    /// Seconds that it computed.
    pub busy_s: f64,
}

/// A device during the simulation.
struct Virtual {
    model: SpeedModel,
    slow: f64,
    jitter: f64,
    alive: bool,
}

impl Virtual {
    fn seconds(&self, samples: u64, random: &mut SplitMix) -> f64 {
        let noise = 1.0 + self.jitter * (random.unit() * 2.0 - 1.0);
        self.model.seconds(samples) * self.slow * noise
    }
}

/// Simulates a scenario. Fails if all devices are dead at once and none returns, or if they cannot take the batch.
pub fn simulate_training(scenario: &TrainingScenario) -> Result<TrainingSimulation, String> {
    Simulation::new(scenario)?.run()
}

struct Simulation<'a> {
    scenario: &'a TrainingScenario,
    machines: Machines,
    devices: Vec<Virtual>,
    random: SplitMix,
    now_s: f64,
    ideal_s: f64,
    equal_s: f64,
    events: std::iter::Peekable<std::vec::IntoIter<TrainingEvent>>,
    shares: Vec<SharesAt>,
    /// Devices that have returned and are taken back at the next commit.
    returning: Vec<usize>,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a TrainingScenario) -> Result<Self, String> {
        let devices: Vec<Virtual> = scenario
            .devices
            .iter()
            .map(|device| Virtual { model: device.model(), slow: 1.0, jitter: device.jitter, alive: true })
            .collect();
        let mut random = SplitMix(scenario.seed);
        let training = &scenario.training;
        let share = training.batch.div_ceil(devices.len() as u64);
        let mut models = Vec::new();
        for device in &devices {
            let mut plan = ProbePlan::new(share, device.model.micro_batch);
            while let Some(step) = plan.next_step() {
                plan.record(device.seconds(step.samples, &mut random));
            }
            models.push(plan.model(device.model.micro_batch).ok_or("a device has no speed")?);
        }
        SpeedModel::bound_ratios(&mut models, share);
        let exchange = Exchange {
            first_bucket: training.first_bucket,
            overlapped_s: training.overlapped_s,
            last_s: training.exchange_s,
        };
        let settings = PlanSettings { batch: training.batch, least: 1, exchange, fixed: None };
        let most = scenario.devices.iter().map(|device| device.most.unwrap_or(u64::MAX)).collect();
        let planner = Planner::new(settings, models, most)
            .ok_or_else(|| format!("the devices cannot take a batch of {}", training.batch))?;
        let ledger = Ledger::new(training.samples, training.batch, scenario.seed);
        let mut events = scenario.events.clone();
        events.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        Ok(Simulation {
            scenario,
            machines: Machines::new(planner, ledger, None, None),
            devices,
            random,
            now_s: 0.0,
            ideal_s: 0.0,
            equal_s: 0.0,
            events: events.into_iter().peekable(),
            shares: Vec::new(),
            returning: Vec::new(),
        })
    }

    fn run(mut self) -> Result<TrainingSimulation, String> {
        while self.machines.ledger.epoch() < self.scenario.training.epochs {
            self.step()?;
        }
        let totals = &self.machines.totals;
        let devices = self.scenario.devices.iter().zip(totals);
        let devices = devices.map(|(device, totals)| SimulatedDevice {
            id: device.id.clone(),
            samples: totals.samples as u64,
            busy_s: totals.compute_s,
        });
        Ok(TrainingSimulation {
            about: self.scenario.about.clone(),
            steps: self.machines.step(),
            samples: totals.iter().map(|totals| totals.samples as u64).sum(),
            wall_s: self.now_s,
            ideal_s: self.ideal_s,
            efficiency: self.ideal_s / self.now_s,
            gain_over_equal: self.equal_s / self.now_s,
            shares: self.shares,
            events: self.machines.membership.events().to_vec(),
            devices: devices.collect(),
        })
    }

    /// Lets everything happen that is due.
    fn happen(&mut self, until_s: f64) {
        while let Some(event) = self.events.next_if(|event| event.at_s <= until_s) {
            let Some(rank) = self.scenario.devices.iter().position(|device| device.id == event.device) else {
                continue;
            };
            let device = &mut self.devices[rank];
            match event.kind {
                TrainingEventKind::Slow { factor } => device.slow = factor,
                TrainingEventKind::Die => device.alive = false,
                TrainingEventKind::Return => {
                    device.alive = true;
                    device.slow = 1.0;
                    if !self.machines.membership.is_member(rank) {
                        self.returning.push(rank);
                    }
                }
            }
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.happen(self.now_s);
        let ranks = self.devices.len();
        let too_large = || "the devices that are left cannot take the batch".to_owned();
        let round = self.machines.round().ok_or_else(too_large)?;
        let batches = round.first().map_or(vec![0; ranks], |step| step.batches.clone());
        if self.shares.last().is_none_or(|last| last.batches != batches)
            && batches.iter().sum::<u64>() == self.scenario.training.batch
        {
            self.shares.push(SharesAt {
                step: self.machines.step(),
                at_s: self.now_s,
                batches: batches.clone(),
            });
        }
        let seconds: Vec<f64> =
            (0..ranks).map(|rank| self.devices[rank].seconds(batches[rank], &mut self.random)).collect();
        let exchange = self.machines.planner.settings().exchange;
        let busy = seconds.iter().map(|&compute| match compute {
            0.0 => 0.0,
            _ => compute.max(exchange.first_bucket * compute + exchange.overlapped_s),
        });
        let end_s = self.now_s + busy.fold(0.0, f64::max) + exchange.last_s;
        self.happen(end_s);
        let members = self.machines.membership.members();
        let dead: Vec<usize> = members.into_iter().filter(|&rank| !self.devices[rank].alive).collect();
        if !dead.is_empty() {
            // The others notice when the exchange does not end in time, and compute the same samples again.
            self.now_s = end_s + self.scenario.training.timeout_s;
            return match self.machines.died(&dead, "died") {
                Ok(true) => Ok(()),
                Ok(false) => Err(too_large()),
                Err(nobody) => Err(nobody.to_string()),
            };
        }
        self.now_s = end_s;
        self.ideal_s += self.best_step(batches.iter().sum())?;
        self.equal_s += self.equal_step(batches.iter().sum());
        let done: Vec<RankRound> = (0..ranks)
            .map(|rank| RankRound {
                weight: batches[rank] as f64,
                samples: batches[rank] as f64,
                compute_s: seconds[rank],
                exchange_s: exchange.last_s,
                ..RankRound::default()
            })
            .collect();
        self.machines.commit(&round, &done, 0.0, true);
        for rank in std::mem::take(&mut self.returning) {
            if self.devices[rank].alive {
                self.machines.returned(rank);
            }
        }
        Ok(())
    }

    /// Returns the time of a step with the best shares for the true speeds, over all numbers of devices.
    fn best_step(&self, samples: u64) -> Result<f64, String> {
        let exchange = self.machines.planner.settings().exchange;
        let mut candidates: Vec<Candidate> = self
            .devices
            .iter()
            .zip(&self.scenario.devices)
            .filter(|(device, _)| device.alive)
            .map(|(device, spec)| {
                let model = SpeedModel { drift: device.slow, ..device.model };
                Candidate { model, most: spec.most.unwrap_or(u64::MAX), least: 0 }
            })
            .collect();
        let share = samples.div_ceil(candidates.len().max(1) as u64);
        candidates.sort_by(|one, other| one.model.seconds(share).total_cmp(&other.model.seconds(share)));
        let best = (1..=candidates.len()).filter_map(|count| {
            let batches = solve(&candidates[..count], samples, &exchange)?;
            let busy = batches.iter().zip(&candidates).map(|(batch, it)| it.busy_s(*batch, &exchange));
            Some(busy.fold(0.0, f64::max) + exchange.last_s)
        });
        best.min_by(f64::total_cmp).ok_or_else(|| "no device is left".to_owned())
    }

    /// Returns the time of a step with equal shares.
    fn equal_step(&self, samples: u64) -> f64 {
        let exchange = self.machines.planner.settings().exchange;
        let alive: Vec<&Virtual> = self.devices.iter().filter(|device| device.alive).collect();
        let count = alive.len().max(1) as u64;
        let busy = alive.iter().enumerate().map(|(index, device)| {
            let share = samples / count + u64::from((index as u64) < samples % count);
            let model = SpeedModel { drift: device.slow, ..device.model };
            Candidate { model, most: u64::MAX, least: 0 }.busy_s(share, &exchange)
        });
        busy.fold(0.0, f64::max) + exchange.last_s
    }
}

impl fmt::Display for TrainingSimulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrainingSimulation { steps, samples, wall_s, ideal_s, efficiency, gain_over_equal, .. } = self;
        writeln!(f, "{samples} samples in {steps} steps, {wall_s:.3} s (ideal {ideal_s:.3} s)")?;
        writeln!(f, "efficiency {efficiency:.4}, {gain_over_equal:.2} times equal shares")?;
        writeln!(f, "\nshares:")?;
        for SharesAt { step, at_s, batches } in &self.shares {
            writeln!(f, "  from step {step:>6} ({at_s:>9.3} s): {batches:?}")?;
        }
        writeln!(f, "\ndevice          samples  share   busy")?;
        for SimulatedDevice { id, samples, busy_s } in &self.devices {
            let share = 100.0 * *samples as f64 / self.samples.max(1) as f64;
            let busy = 100.0 * busy_s / wall_s;
            writeln!(f, "{id:<12}  {samples:>9}  {share:>4.1}%  {busy:>4.1}%")?;
        }
        for event in &self.events {
            writeln!(f, "step {}: {} {:?}", event.step, self.devices[event.rank].id, event.what)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn scenario(text: &str) -> TrainingScenario {
        TrainingScenario::from_toml(text).unwrap()
    }

    const TWO: &str = "
        [training]
        samples = 51_200
        batch = 512
        epochs = 2
        exchange_s = 1e-3
        [[device]]
        id = 'fast'
        per_sample_s = 1e-4
        [[device]]
        id = 'slow'
        per_sample_s = 2.5e-4
        per_launch_s = 2e-3
        micro_batch = 64
    ";

    #[test]
    fn steady_devices_reach_the_ideal() {
        let done = simulate_training(&scenario(TWO)).unwrap();
        assert_eq!((done.samples, done.steps), (102_400, 200));
        assert!(done.efficiency > 0.999 && done.efficiency < 1.0 + 1e-9, "{done}");
        assert!(done.gain_over_equal > 1.2, "{done}");
    }

    #[test]
    fn a_throttle_death_and_return_cost_little_and_lose_no_sample() {
        let events = "
            [[event]]
            at_s = 1.0
            device = 'fast'
            what = 'slow'
            factor = 2.0
            [[event]]
            at_s = 4.0
            device = 'slow'
            what = 'die'
            [[event]]
            at_s = 6.0
            device = 'slow'
            what = 'return'
        ";
        let done = simulate_training(&scenario(&format!("{TWO}{events}"))).unwrap();
        assert_eq!(done.samples, 102_400);
        assert_eq!(done.events.len(), 2);
        assert!(done.efficiency > 0.9, "{done}");
        assert_eq!(
            simulate_training(&scenario(&format!("{TWO}{events}"))).unwrap().to_string(),
            done.to_string()
        );
    }

    #[test]
    fn the_death_of_all_devices_is_an_error() {
        let die = |id: &str| format!("[[event]]\nat_s = 1.0\ndevice = '{id}'\nwhat = 'die'\n");
        let text = format!("{TWO}{}{}", die("fast"), die("slow"));
        assert_eq!(simulate_training(&scenario(&text)).unwrap_err(), "no rank is left to train");
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_name() {
        let error = TrainingScenario::from_toml(&TWO.replace("1e-4", "nan")).unwrap_err();
        assert!(error.contains("`fast`: `per_sample_s`"), "{error}");
        let error = TrainingScenario::from_toml(&TWO.replace("batch = 512", "batch = 0")).unwrap_err();
        assert!(error.contains("`batch`"), "{error}");
        assert!(TrainingScenario::from_toml(&TWO.replace("'slow'", "'fast'")).is_err());
    }
}
