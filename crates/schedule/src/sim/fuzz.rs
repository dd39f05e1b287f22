//! Random scenarios: what must never happen, and how far the adaptive strategy may be behind the best fixed split.
//!
//! `EVENER_FUZZ_SCENARIOS` says how many, `EVENER_FUZZ_SEED` which is the first: a scenario that shows something is
//! printed with its seed, as the TOML file that `evener sim` reads.

use std::fmt::Write;

use rayon::prelude::*;

use super::{cost::Random, *};

/// A scenario, and what makes it special, for people.
struct Drawn {
    scenario: Scenario,
    about: String,
}

struct Dice(Random);

impl Dice {
    fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    fn chance(&mut self, part: f64) -> bool {
        self.unit() < part
    }

    /// Evenly on a logarithmic scale.
    fn log(&mut self, from: f64, to: f64) -> f64 {
        from * (to / from).powf(self.unit())
    }

    fn whole(&mut self, from: f64, to: f64) -> u64 {
        self.log(from, to + 1.0).floor().clamp(from, to) as u64
    }
}

fn draw(seed: u64) -> Drawn {
    let mut dice = Dice(Random(seed));
    let mut about = String::new();
    let count = if dice.chance(0.3) { dice.whole(1.0, 3.0) } else { dice.whole(1.0, 200.0) } as usize;
    let items = if dice.chance(0.15) { dice.whole(1.0, 32.0) } else { dice.whole(1.0, 400_000.0) };
    let spread = if dice.chance(0.2) { 1.0 } else { dice.log(1.0, 1_000.0) };
    let relative: Vec<f64> = (0..count).map(|_| dice.log(1.0, spread)).collect();
    // How long it takes if no device is ever idle.
    let seconds = dice.log(1e-3, 100.0);
    let scale = items as f64 / seconds / relative.iter().sum::<f64>();
    let launches = dice.chance(0.5).then(|| seconds * dice.log(1e-6, 0.05));
    let divisible = dice.chance(0.25);
    let copies = dice.chance(0.15);
    let devices: Vec<Device> = relative
        .iter()
        .enumerate()
        .map(|(index, relative)| Device {
            id: format!("d{index}"),
            count: 1,
            rate: relative * scale,
            rate_up_to: None,
            utilization: 0.0,
            launch_s: launches
                .map_or(0.0, |launch| if dice.chance(0.5) { launch * dice.unit() } else { 0.0 }),
            copy_bytes_per_s: copies.then(|| relative * scale * 64.0 * dice.log(0.5, 20.0)),
            jitter: if dice.chance(0.5) { 0.02 * dice.unit() } else { 0.0 },
            memory_items: dice.chance(0.05).then(|| dice.whole(1.0, items.max(2) as f64)),
            depth: if dice.chance(0.5) { 1 } else { 2 },
            divisible: divisible && dice.chance(0.7),
        })
        .collect();
    let cost = match (dice.unit() * 8.0) as u32 {
        0..=2 => Cost::Constant,
        3 => Cost::Uniform,
        4 => Cost::HeavyTail { exponent: 1.1 + 2.0 * dice.unit() },
        5 => Cost::Ascending,
        6 => Cost::Descending,
        _ => Cost::Clustered { part: dice.log(1e-4, 0.2), factor: dice.log(2.0, 3_000.0), at: dice.unit() },
    };
    let _ = write!(about, "{count} devices, {items} items, spread {spread:.0}, {seconds:.2e} s, {cost:?}");
    if let Some(launch) = launches {
        let _ = write!(about, ", launch {launch:.1e} s");
    }
    if divisible {
        about.push_str(", divisible");
    }
    let mut events = Vec::new();
    let mut happen = |at_s: f64, index: usize, what| {
        events.push(Event { at_s, device: format!("d{index}"), what });
    };
    // One is left alone, so that there is always a device that is well.
    let victims = count.saturating_sub(1);
    match (dice.unit() * 8.0) as u32 {
        0 | 1 => {}
        2 => {
            let (at, factor) = (seconds * dice.unit(), dice.log(1.5, 50.0));
            (0..count).for_each(|index| happen(at, index, What::Slow { factor }));
            let _ = write!(about, ", all slow x{factor:.0}");
            if dice.chance(0.5) {
                (0..count).for_each(|index| happen(at + seconds, index, What::Return));
            }
        }
        3 => {
            for index in 0..victims {
                if dice.chance(0.4) {
                    happen(seconds * dice.unit(), index, What::Slow { factor: dice.log(1.2, 50.0) });
                }
            }
            about.push_str(", some slow");
        }
        4 => {
            for index in 0..victims {
                if dice.chance(0.3) {
                    happen(seconds * dice.unit(), index, What::Hang);
                }
            }
            about.push_str(", some hang");
        }
        5 => {
            for index in 0..victims {
                if dice.chance(0.5) {
                    happen(seconds * dice.unit(), index, What::Die);
                }
            }
            about.push_str(", some die");
        }
        6 => {
            for index in 0..count {
                if dice.chance(0.5) {
                    let at = seconds * dice.unit();
                    happen(at, index, if dice.chance(0.5) { What::Die } else { What::Hang });
                    happen(at + dice.log(1e-3, 10.0), index, What::Return);
                }
            }
            about.push_str(", some go and return");
        }
        _ => {
            let every = seconds / 14.0;
            for outage in 0..12 {
                for index in 0..count.min(3) {
                    happen(every * f64::from(outage), index, What::Die);
                    happen(every * f64::from(outage) + 0.01_f64.min(every / 2.0), index, What::Return);
                }
            }
            about.push_str(", blips");
        }
    }
    let bytes_per_item = if copies { 64 } else { 0 };
    Drawn {
        scenario: Scenario { about: String::new(), items, cost, bytes_per_item, seed, devices, events },
        about,
    }
}

/// Devices that are silent for long are waited for: here, one that is well is always there.
fn patient() -> Settings {
    Settings { silence: Duration::from_secs(1 << 40), ..Settings::default() }
}

/// How long the best of the fixed splits takes.
fn best_fixed(scenario: &Scenario) -> Option<f64> {
    let wall = |strategy| {
        let simulation = simulate(scenario, strategy, patient());
        (simulation.outcome == Outcome::Complete).then_some(simulation.report.wall_s)
    };
    [Strategy::Equal, Strategy::Proportional].into_iter().filter_map(wall).min_by(f64::total_cmp)
}

/// How a run with the adaptive strategy compares with fixed splits of the same scenario.
struct Judged {
    /// Its time divided by that of the quickest fixed split. 0 where no fixed split came to an end.
    to_best: f64,
    /// Whether chance decides little: there are many items for each device, or nothing that cannot be known.
    is_fair: bool,
    text: String,
}

/// Runs a random scenario. An error is what must never happen, and did.
fn judge(seed: u64) -> Result<Judged, String> {
    let Drawn { scenario, about } = draw(seed);
    let Simulation { report, outcome, trace } = simulate(&scenario, Strategy::Adaptive, patient());
    if outcome != Outcome::Complete {
        return Err(format!("seed {seed}: lost although a device is well: {about}\n{report}"));
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
    Ok(Judged { to_best, is_fair, text })
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[test]
fn random_scenarios_are_never_lost_below_their_bound_or_far_behind_a_fixed_split() {
    let count = from_environment("EVENER_FUZZ_SCENARIOS").unwrap_or(3_200);
    let first = from_environment("EVENER_FUZZ_SEED").unwrap_or(1);
    let (judged, wrong): (Vec<_>, Vec<_>) = (first..first + count)
        .into_par_iter()
        .map(judge)
        .collect::<Vec<_>>()
        .into_iter()
        .partition(Result::is_ok);
    let wrong: Vec<String> = wrong.into_iter().filter_map(Result::err).collect();
    let judged = judged.into_iter().filter_map(Result::ok);
    let (mut fair, mut chancy): (Vec<Judged>, Vec<Judged>) = judged.partition(|it| it.is_fair);
    let tell = |what, judged: &mut Vec<Judged>| {
        judged.sort_by(|a, b| b.to_best.total_cmp(&a.to_best));
        let behind = judged.iter().filter(|it| it.to_best > 1.05).count();
        println!(
            "{behind} of {} {what} are more than 5 % behind the best fixed split; the worst:",
            judged.len()
        );
        judged.iter().take(10.max(behind)).for_each(|it| println!("{}", it.text));
        behind
    };
    let behind = tell("with many items", &mut fair);
    let unlucky = tell("with few items", &mut chancy);
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong[..wrong.len().min(3)].join("\n"));
    assert!(fair.iter().all(|it| it.to_best <= 1.25), "{}", fair[0].text);
    assert!(behind * 200 <= fair.len(), "{behind} of {} are more than 5 % behind", fair.len());
    // The device that is given one of few items may be the one that slows down or hangs: nobody knows that before. Another
    // begins the same item once it has taken twice as long as was expected, and then takes as long as was expected.
    assert!(chancy.iter().all(|it| it.to_best <= 3.5), "{}", chancy[0].text);
    assert!(unlucky * 20 <= chancy.len().max(20), "{unlucky} of {} with few items", chancy.len());
}
