//! Random scenarios: what must never happen, and how far the adaptive strategy may be behind the best fixed split.
//!
//! `EVENER_FUZZ_SCENARIOS` says how many, `EVENER_FUZZ_SEED` which is the first: a scenario that shows something is
//! printed with its seed, as the TOML file that `evener sim` reads.

use std::fmt::Write;

use rayon::prelude::*;

use super::{cost::Rng, *};

/// A random scenario, and its description for people.
struct RandomScenario {
    scenario: Scenario,
    about: String,
}

impl Rng {
    fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Evenly on a logarithmic scale.
    fn log(&mut self, from: f64, to: f64) -> f64 {
        from * (to / from).powf(self.unit())
    }

    fn whole(&mut self, from: f64, to: f64) -> u64 {
        self.log(from, to + 1.0).floor().clamp(from, to) as u64
    }
}

fn draw(seed: u64) -> RandomScenario {
    let mut rng = Rng(seed);
    let mut about = String::new();
    let count = if rng.chance(0.3) { rng.whole(1.0, 3.0) } else { rng.whole(1.0, 200.0) } as usize;
    let items = if rng.chance(0.15) { rng.whole(1.0, 32.0) } else { rng.whole(1.0, 400_000.0) };
    let spread = if rng.chance(0.2) { 1.0 } else { rng.log(1.0, 1_000.0) };
    let relative: Vec<f64> = (0..count).map(|_| rng.log(1.0, spread)).collect();
    // The time of the run if no device is ever idle.
    let seconds = rng.log(1e-3, 100.0);
    let scale = items as f64 / seconds / relative.iter().sum::<f64>();
    let launches = rng.chance(0.5).then(|| seconds * rng.log(1e-6, 0.05));
    let divisible = rng.chance(0.25);
    let copies = rng.chance(0.15);
    let devices: Vec<DeviceSpec> = relative
        .iter()
        .enumerate()
        .map(|(index, relative)| DeviceSpec {
            id: format!("d{index}"),
            count: 1,
            rate: relative * scale,
            rate_up_to: None,
            utilization: 0.0,
            launch_s: launches.map_or(0.0, |launch| if rng.chance(0.5) { launch * rng.unit() } else { 0.0 }),
            copy_bytes_per_s: copies.then(|| relative * scale * 64.0 * rng.log(0.5, 20.0)),
            link: None,
            jitter: if rng.chance(0.5) { 0.02 * rng.unit() } else { 0.0 },
            memory_items: rng.chance(0.05).then(|| rng.whole(1.0, items.max(2) as f64)),
            depth: if rng.chance(0.5) { 1 } else { 2 },
            divisible: divisible && rng.chance(0.7),
        })
        .collect();
    let cost = match (rng.unit() * 8.0) as u32 {
        0..=2 => Cost::Constant,
        3 => Cost::Uniform,
        4 => Cost::HeavyTail { exponent: 1.1 + 2.0 * rng.unit() },
        5 => Cost::Ascending,
        6 => Cost::Descending,
        _ => Cost::Clustered { part: rng.log(1e-4, 0.2), factor: rng.log(2.0, 3_000.0), at: rng.unit() },
    };
    let _ = write!(about, "{count} devices, {items} items, spread {spread:.0}, {seconds:.2e} s, {cost:?}");
    if let Some(launch) = launches {
        let _ = write!(about, ", launch {launch:.1e} s");
    }
    if divisible {
        about.push_str(", divisible");
    }
    let mut events = Vec::new();
    let mut add = |at_s: f64, index: usize, kind| {
        events.push(ScenarioEvent { at_s, device: format!("d{index}"), kind });
    };
    // One device has no events, so that one always works.
    let victims = count.saturating_sub(1);
    match (rng.unit() * 8.0) as u32 {
        0 | 1 => {}
        2 => {
            let (at, factor) = (seconds * rng.unit(), rng.log(1.5, 50.0));
            (0..count).for_each(|index| add(at, index, EventKind::Slow { factor }));
            let _ = write!(about, ", all slow x{factor:.0}");
            if rng.chance(0.5) {
                (0..count).for_each(|index| add(at + seconds, index, EventKind::Return));
            }
        }
        3 => {
            for index in 0..victims {
                if rng.chance(0.4) {
                    add(seconds * rng.unit(), index, EventKind::Slow { factor: rng.log(1.2, 50.0) });
                }
            }
            about.push_str(", some slow");
        }
        4 => {
            for index in 0..victims {
                if rng.chance(0.3) {
                    add(seconds * rng.unit(), index, EventKind::Hang);
                }
            }
            about.push_str(", some hang");
        }
        5 => {
            for index in 0..victims {
                if rng.chance(0.5) {
                    add(seconds * rng.unit(), index, EventKind::Die);
                }
            }
            about.push_str(", some die");
        }
        6 => {
            for index in 0..count {
                if rng.chance(0.5) {
                    let at = seconds * rng.unit();
                    add(at, index, if rng.chance(0.5) { EventKind::Die } else { EventKind::Hang });
                    add(at + rng.log(1e-3, 10.0), index, EventKind::Return);
                }
            }
            about.push_str(", some go and return");
        }
        _ => {
            let every = seconds / 14.0;
            for outage in 0..12 {
                for index in 0..count.min(3) {
                    add(every * f64::from(outage), index, EventKind::Die);
                    add(every * f64::from(outage) + 0.01_f64.min(every / 2.0), index, EventKind::Return);
                }
            }
            about.push_str(", blips");
        }
    }
    let bytes_per_item = if copies { 64 } else { 0 };
    RandomScenario {
        scenario: Scenario {
            about: String::new(),
            items,
            cost,
            bytes_per_item,
            max_items: None,
            seed,
            devices,
            events,
        },
        about,
    }
}

/// Settings without a limit for silence: in these scenarios, a device that works is always there.
fn without_silence_limit() -> Settings {
    Settings { silence: Duration::from_secs(1 << 40), ..Settings::default() }
}

/// The time of the best fixed split.
fn best_fixed(scenario: &Scenario) -> Option<f64> {
    let wall = |strategy| {
        let simulation = simulate(scenario, strategy, without_silence_limit());
        (simulation.outcome == Outcome::Complete).then_some(simulation.report.wall_s)
    };
    [Strategy::Equal, Strategy::Proportional].into_iter().filter_map(wall).min_by(f64::total_cmp)
}

/// A run with the adaptive strategy compared with fixed splits of the same scenario.
struct Comparison {
    /// Its time divided by that of the fastest fixed split, or 0 if none completed.
    to_best: f64,
    /// Whether chance decides little: there are many items per device, or nothing unpredictable happens.
    is_fair: bool,
    text: String,
}

/// Runs a rng scenario. An error is what must never happen, and did.
fn compare(seed: u64) -> Result<Comparison, String> {
    let RandomScenario { scenario, about } = draw(seed);
    let Simulation { report, outcome, trace } =
        simulate(&scenario, Strategy::Adaptive, without_silence_limit());
    if outcome != Outcome::Complete {
        return Err(format!("seed {seed}: lost although a device works: {about}\n{report}"));
    }
    let counted: u64 = report.devices.iter().map(|device| device.items).sum();
    if (report.done, counted) != (scenario.items, scenario.items) {
        return Err(format!("seed {seed}: {counted} of {} items: {about}", scenario.items));
    }
    let (efficiency, bound) = (report.efficiency.unwrap(), report.bound.unwrap());
    if efficiency < bound - 1e-9 {
        return Err(format!("seed {seed}: {efficiency} is below its bound {bound}: {about}\n{report}"));
    }
    if from_environment("EVENER_FUZZ_SCENARIOS") == Some(1) {
        println!("{report}\n{:?}\n{:?}", scenario.events, scenario.devices);
        trace.spans.iter().for_each(|span| println!("{span:?}"));
    }
    let is_fair = scenario.items >= 16 * scenario.devices.len() as u64
        || (scenario.cost == Cost::Constant && scenario.events.is_empty());
    let to_best = best_fixed(&scenario).map_or(0.0, |best| report.wall_s / best);
    let text = format!("{to_best:.3} seed {seed}: efficiency {efficiency:.3}: {about}");
    Ok(Comparison { to_best, is_fair, text })
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[test]
fn random_scenarios_complete_within_their_bound_and_near_the_best_fixed_split() {
    let count = from_environment("EVENER_FUZZ_SCENARIOS").unwrap_or(3_200);
    let first = from_environment("EVENER_FUZZ_SEED").unwrap_or(1);
    let (compared, wrong): (Vec<_>, Vec<_>) = (first..first + count)
        .into_par_iter()
        .map(compare)
        .collect::<Vec<_>>()
        .into_iter()
        .partition(Result::is_ok);
    let wrong: Vec<String> = wrong.into_iter().filter_map(Result::err).collect();
    let compared = compared.into_iter().filter_map(Result::ok);
    let (mut fair, mut chancy): (Vec<Comparison>, Vec<Comparison>) = compared.partition(|it| it.is_fair);
    let print_worst = |what, compared: &mut Vec<Comparison>| {
        compared.sort_by(|a, b| b.to_best.total_cmp(&a.to_best));
        let behind = compared.iter().filter(|it| it.to_best > 1.05).count();
        println!(
            "{behind} of {} {what} are more than 5 % behind the best fixed split; the worst:",
            compared.len()
        );
        compared.iter().take(10.max(behind)).for_each(|it| println!("{}", it.text));
        behind
    };
    let behind = print_worst("with many items", &mut fair);
    let unlucky = print_worst("with few items", &mut chancy);
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong[..wrong.len().min(3)].join("\n"));
    assert!(fair.iter().all(|it| it.to_best <= 1.25), "{}", fair[0].text);
    assert!(behind * 200 <= fair.len(), "{behind} of {} are more than 5 % behind", fair.len());
    // The device that gets one of few items may be the one that slows down or hangs, which nothing predicts. Another device
    // copies the item when it has taken twice the expected time, and then takes the expected time.
    assert!(chancy.iter().all(|it| it.to_best <= 3.5), "{}", chancy[0].text);
    assert!(unlucky * 20 <= chancy.len().max(20), "{unlucky} of {} with few items", chancy.len());
}
