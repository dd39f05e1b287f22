//! A simulation of a pool's use of the model: one task, runs of one size after another, with noise, and with devices
//! that are slower after they were idle.

use std::time::Duration;

use super::*;

/// Times of runs on each device alone, in microseconds, measured on three partitions of an H200 and 16 cores.
const ALONE: [(u64, [f64; 4]); 9] = [
    (1, [92.0, 97.0, 92.0, 46.0]),
    (3, [92.0, 97.0, 92.0, 46.0]),
    (10, [98.0, 99.0, 99.0, 47.0]),
    (100, [101.0, 99.5, 100.0, 158.0]),
    (1_000, [102.0, 101.5, 101.3, 1_144.0]),
    (10_000, [140.0, 112.0, 114.0, 1_187.0]),
    (100_000, [593.0, 367.0, 295.0, 8_586.0]),
    (300_000, [1_496.0, 760.0, 570.0, 23_700.0]),
    (1_000_000, [4_494.0, 2_013.0, 1_306.0, 75_000.0]),
];
const NAMES: [&str; 4] = ["a", "b", "c", "cpu"];

/// A deterministic random number generator.
struct Rng(u64);

impl Rng {
    /// Evenly from 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A factor by which a run is longer: mostly small, sometimes large.
    fn disturbance(&mut self) -> f64 {
        let much = if self.next() < 0.03 { 1.0 + self.next() * 3.0 } else { 1.0 };
        (1.0 + self.next() * 0.08) * much
    }
}

/// Seconds that devices take together, including waking and feeding them; or that the fastest one takes, if it ends
/// before the others have started.
fn together(members: &[usize], alone: &[f64; 4]) -> f64 {
    let (all, one) = both_ways(members, alone);
    all.min(one) * 1e-6
}

/// The device that does all the work, if one does.
fn only_worker(members: &[usize], alone: &[f64; 4]) -> Option<usize> {
    let (all, one) = both_ways(members, alone);
    let fastest = members.iter().copied().min_by(|&a, &b| alone[a].total_cmp(&alone[b]));
    fastest.filter(|_| one < all)
}

fn both_ways(members: &[usize], alone: &[f64; 4]) -> (f64, f64) {
    let others = members.len() as f64 - 1.0;
    let rate: f64 = members.iter().map(|&member| 1.0 / (alone[member] - 40.0).max(1.0)).sum();
    let waking = if members.len() > 1 { 70.0 + 30.0 * others } else { 40.0 };
    let one = members.iter().map(|&member| alone[member] + 6.0 * others).fold(f64::INFINITY, f64::min);
    (waking + 1.0 / rate, one)
}

/// Simulates all sizes with this many pools, one after another, each of which is a little faster on some devices than on
/// others. Returns for each size the lower quartile of the runs, after learning, relative to that of the best device
/// alone.
fn simulate(seed: u64, pools: usize) -> Vec<(u64, f64)> {
    let mut rng = Rng(seed);
    let candidates: Vec<Candidate> = NAMES
        .iter()
        .map(|name| Candidate { device: (*name).into(), score: 50.0, needs_preparation: false })
        .collect();
    let mut model = Model::default();
    let mut measured: Vec<(Vec<f64>, [Vec<f64>; 4])> = vec![Default::default(); ALONE.len()];
    let mut clock = 0;
    for pool in 0..pools {
        let mut used_last = [0u64; 4];
        let born = clock;
        let mut luck = || -> [f64; 4] { std::array::from_fn(|_| 1.0 + 0.02 * (rng.next() - 0.5)) };
        let (lucky, alone_lucky) = (luck(), luck());
        for ((items, alone), (walls, singles)) in ALONE.iter().zip(&mut measured) {
            let (learning, counted) = if pool == 0 { (2_000, 1_000) } else { (300, 500) };
            let mut run = 0;
            while run < learning + counted {
                let choice = model.choose("task", *items, &candidates);
                let members: Vec<usize> =
                    (0..4).filter(|&it| choice.used.iter().any(|used| used.device == NAMES[it])).collect();
                let mut here = Vec::new();
                let sum = |walls: &[f64]| walls.iter().sum::<f64>();
                while here.is_empty()
                    || if choice.is_provisional {
                        here.len() < 8 && sum(&here) < 0.02
                    } else {
                        sum(&here) < 0.005
                    }
                {
                    clock += 1;
                    run += 1;
                    let was_idle = members.iter().any(|&it| clock - used_last[it] > 4);
                    members.iter().for_each(|&it| used_last[it] = clock);
                    let slowdown = if was_idle { 1.1 + rng.next() } else { 1.0 };
                    // The speed of the machine varies.
                    let drift = 1.0 + 0.08 * (clock as f64 / 700.0).sin();
                    // A new pool is slower at first.
                    let drift = if clock - born < 200 { drift * 1.3 } else { drift };
                    // And its cores even more.
                    let cores = if clock - born < 300 { 1.8 } else { 1.0 };
                    let now = |luck: &[f64; 4]| {
                        let of = |it: usize| alone[it] * drift * luck[it] * if it == 3 { cores } else { 1.0 };
                        std::array::from_fn(of)
                    };
                    here.push(together(&members, &now(&lucky)) * rng.disturbance() * slowdown);
                    if run > learning {
                        walls.extend(here.last());
                        (0..4).for_each(|it| {
                            singles[it].push(together(&[it], &now(&alone_lucky)) * rng.disturbance());
                        });
                    }
                }
                let each = items / members.len() as u64;
                for &member in &members {
                    model.observe(
                        "task",
                        &Observation {
                            device: NAMES[member].into(),
                            items: each.max(1),
                            busy: Duration::from_secs_f64(here[0]),
                            startup: Duration::from_micros(20),
                            needed_preparation: false,
                        },
                    );
                }
                let runs = here.len() as u32;
                here.truncate(64);
                let wall = Duration::from_secs_f64(quartile(&here));
                let named = |members: &[usize]| members.iter().map(|&it| NAMES[it].to_owned()).collect();
                let devices = named(&members);
                let worked = named(&only_worker(&members, alone).map_or(members, |one| vec![one]));
                model.record_runs("task", *items, Measurements { devices, worked, wall, runs });
            }
        }
    }
    let mut ratios = Vec::new();
    for ((items, _), (walls, singles)) in ALONE.iter().zip(measured) {
        let best = singles.iter().map(|single| quartile(single)).fold(f64::INFINITY, f64::min);
        ratios.push((*items, quartile(&walls) / best));
    }
    ratios
}

fn quartile(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

#[test]
fn choosing_costs_next_to_nothing_at_any_size() {
    for pools in [1, 4] {
        let found: Vec<(u64, f64)> = (0..20).flat_map(|seed| simulate(seed, pools)).collect();
        let over = |limit: f64| found.iter().filter(|(_, ratio)| *ratio > limit).collect::<Vec<_>>();
        println!("{pools}: {:?} of {}", over(1.02), found.len());
        assert!(over(1.03).is_empty(), "{:?}", over(1.03));
        assert!(over(1.02).len() <= found.len() / 60, "{:?} of {}", over(1.02), found.len());
    }
}
