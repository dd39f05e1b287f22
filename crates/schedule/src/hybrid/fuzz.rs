//! The model on random machines: devices of any speed that slow each other down, take long to prepare, and change.
//! `EVENER_FUZZ_SEED` and `EVENER_FUZZ_CASES` choose other seeds.
//!
//! What must hold on every machine, where "least" is the time of the best fixed set of devices:
//! - a session takes no longer than 1.08 times the least (2 % for trials, 5 % that several devices must be faster by than
//!   one, 1 % below which nothing is changed), what it takes to make each device ready twice, and what trying each set
//!   ten times costs;
//! - while nothing changes, the last quarter takes no longer than 1.08 times the least;
//! - the same holds of the last quarter after a device's speed has changed by up to ten times: the set that is best then is
//!   found within three quarters of the time in which the budget earns what trying every set twenty times costs, or of
//!   8,000 runs or 40 s where that is shorter.

use std::time::Duration;

use super::{joint::CostLine, *};

/// A random number generator.
struct Rng(u64);

impl Rng {
    /// Evenly from 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Between two positive numbers, evenly by magnitude.
    fn between(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.next())
    }

    /// A factor by which a run is longer: mostly small, sometimes large.
    fn disturbance(&mut self) -> f64 {
        let much = if self.next() < 0.02 { 1.0 + self.next() * 3.0 } else { 1.0 };
        (1.0 + self.next() * 0.06) * much
    }
}

/// The mean of [`Rng::disturbance`].
const DISTURBANCE: f64 = 1.03 * (1.0 + 0.02 * 1.5);

/// Devices with seconds of startup, overhead and per item; and how much each is slowed down by every other one.
#[derive(Clone, Debug)]
struct Machine {
    devices: Vec<(f64, f64, f64)>,
    contention: f64,
}

impl Machine {
    fn new(rng: &mut Rng) -> Machine {
        let count = 2 + (rng.next() * 3.0) as usize;
        let device = |_| {
            let startup = if rng.next() < 0.3 { 0.0 } else { rng.between(1e-3, 2.0) };
            (startup, rng.between(1e-5, 1e-3), rng.between(1e-7, 2e-6))
        };
        let devices = (0..count).map(device).collect();
        Machine { devices, contention: if rng.next() < 0.5 { 0.0 } else { rng.next() } }
    }

    /// The time of devices together once they are ready, and the devices that work.
    fn run(&self, members: &[usize], items: u64) -> (f64, Vec<usize>) {
        let slower = 1.0 + self.contention * (members.len() as f64 - 1.0);
        let line = |&it: &usize| CostLine::new(self.devices[it].1 * slower, self.devices[it].2 * slower);
        let lines: Vec<CostLine> = members.iter().map(line).collect();
        let joint = joint::fastest(&lines, items);
        let worked = members.iter().zip(&joint.items).filter(|(_, items)| **items > 0.0);
        (joint.seconds, worked.map(|(&it, _)| it).collect())
    }

    /// Every set of devices.
    fn sets(&self) -> Vec<Vec<usize>> {
        let all = || 0..self.devices.len();
        (1..1usize << self.devices.len()).map(|set| all().filter(|it| set >> it & 1 == 1).collect()).collect()
    }

    fn least(&self, items: u64) -> f64 {
        self.sets().iter().map(|set| self.run(set, items).0).fold(f64::INFINITY, f64::min)
    }

    /// The cost of trying every set once: some runs with it instead of the best.
    fn trials(&self, items: u64) -> f64 {
        let least = self.least(items);
        let trial = |set: &Vec<usize>| {
            let seconds = self.run(set, items).0;
            (0.02 / seconds).clamp(1.0, 8.0) * (seconds - 0.75 * least)
        };
        self.sets().iter().map(trial).sum()
    }

    fn startups(&self) -> f64 {
        self.devices.iter().map(|device| device.0).sum()
    }
}

/// A program on a machine: its prepared devices, and what it has learned.
struct Program {
    model: Model,
    ready: Vec<bool>,
}

impl Program {
    /// Runs for this many seconds, as a job does: short runs reuse a decision. Returns the seconds it really took and the
    /// number of runs, in all and for the last quarter.
    fn simulate(&mut self, machine: &Machine, items: u64, seconds: f64, rng: &mut Rng) -> [(f64, f64); 2] {
        let (mut clock, mut runs, mut late) = (0.0, 0.0, (0.0, 0.0));
        while clock < seconds {
            let candidate = |it: usize| Candidate {
                device: it.to_string(),
                score: 50.0,
                needs_preparation: !self.ready[it],
            };
            let candidates: Vec<Candidate> = (0..machine.devices.len()).map(candidate).collect();
            let choice = self.model.choose("task", items, &candidates);
            let members: Vec<usize> = choice.used.iter().map(|used| used.device.parse().unwrap()).collect();
            let begin = clock;
            let (took, worked) = machine.run(&members, items);
            let mut walls = Vec::new();
            let sum = |walls: &[f64]| walls.iter().sum::<f64>();
            let cold: Vec<bool> = members.iter().map(|&it| !self.ready[it]).collect();
            if cold.contains(&true) {
                // Worst case: the run waits until all devices are prepared.
                walls.push(took * rng.disturbance());
                let startup = members.iter().filter(|&&it| !self.ready[it]).map(|&it| machine.devices[it].0);
                clock += startup.fold(0.0, f64::max);
                members.iter().for_each(|&it| self.ready[it] = true);
            }
            while walls.is_empty()
                || !cold.contains(&true)
                    && if choice.is_provisional {
                        walls.len() < 8 && sum(&walls) < 0.02
                    } else {
                        sum(&walls) < 0.005
                    }
            {
                walls.push(took * rng.disturbance());
            }
            clock += sum(&walls);
            runs += walls.len() as f64;
            if begin >= 0.75 * seconds {
                late = (late.0 + clock - begin, late.1 + walls.len() as f64);
            }
            for (&member, cold) in members.iter().zip(cold) {
                let (startup, ..) = machine.devices[member];
                let share = if worked.contains(&member) { items / worked.len() as u64 } else { 0 };
                let startup = Duration::from_secs_f64(if cold { startup } else { 1e-6 });
                let (device, busy) = (member.to_string(), Duration::from_secs_f64(walls[0]));
                self.model.observe(
                    "task",
                    &Observation { device, items: share, busy, startup, needed_preparation: cold },
                );
            }
            walls.sort_by(f64::total_cmp);
            let named = |set: &[usize]| set.iter().map(usize::to_string).collect();
            let measurements = Measurements {
                devices: named(&members),
                worked: named(&worked),
                wall: Duration::from_secs_f64(walls[walls.len() / 4]),
                runs: walls.len() as u32,
            };
            self.model.record_runs("task", items, measurements);
        }
        [(clock, runs), late]
    }
}

/// The fraction of the time that may be lost.
const SLOWER: f64 = 1.08;

fn session(seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..4).for_each(|_| rng.0 = rng.0.rotate_left(17) ^ (rng.next() * 1e9) as u64);
    let mut machine = Machine::new(&mut rng);
    let items = rng.between(1.0, 1e5) as u64;
    let mut program = Program { model: Model::default(), ready: vec![false; machine.devices.len()] };
    for part in 0..3 {
        let (least, trials, startups) = (machine.least(items), machine.trials(items), machine.startups());
        let length = 20.0 * trials / 0.02 + 2.0 * startups / 0.02;
        let length = length.clamp(1000.0 * least, 8_000.0 * least.max(5e-3));
        let [(took, runs), (late_took, late_runs)] = program.simulate(&machine, items, length, &mut rng);
        let context = || format!("seed {seed}, part {part}, {items} items, {machine:?}");
        let ratio = late_took / (late_runs * least * DISTURBANCE);
        assert!(ratio <= SLOWER, "{ratio:.3} times the least in the last quarter: {}", context());
        let allowed = SLOWER * runs * least * DISTURBANCE + 2.0 * startups + 10.0 * trials;
        assert!(took <= allowed, "{took} s, and {allowed} s is allowed: {}", context());
        // One device changes; or another program begins, which knows what this one learned.
        if part == 0 {
            let changed = (rng.next() * machine.devices.len() as f64) as usize;
            let factor = rng.between(0.1, 10.0);
            let (startup, overhead, per_item) = machine.devices[changed];
            machine.devices[changed] = (startup, overhead * factor, per_item * factor);
        } else {
            program.ready.fill(false);
        }
    }
}

#[test]
fn choosing_costs_no_more_than_its_bound_on_any_machine() {
    let number =
        |name: &str, usual: u64| std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(usual);
    let (first, cases) = (number("EVENER_FUZZ_SEED", 0), number("EVENER_FUZZ_CASES", 16));
    for seed in first..first + cases {
        session(seed);
    }
}
