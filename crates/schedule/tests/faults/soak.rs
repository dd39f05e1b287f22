//! Random faults on random pools for some time.
//!
//! `EVENER_SOAK_SECONDS` sets the duration, `EVENER_SOAK_SEED` the seed, which is printed when a round fails.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::{Duration, Instant},
};

use evener_device::{
    Device,
    testing::{Fault, InjectedError},
};
use evener_schedule::{Job, RunError, Strategy};

use crate::{
    common::{
        Faulty, Rng, Scramble, assert_counted_once, assert_possible, card, cores, done_of, numbers, scramble,
        within,
    },
    matrix::every_fault,
};

fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|why| panic!("{name}={value}: {why}")))
}

/// A pool of one to four devices, each with up to four faults, and three runs of one job on it.
fn round(seed: u64) {
    let mut rng = Rng(seed);
    let devices: Vec<Device> = (0..1 + rng.below(4))
        .map(|number| match rng.below(3) {
            0 => cores(&format!("cpu/{number}"), 1 + rng.below(3) as u32),
            _ => card(&format!("card:{number}")),
        })
        .collect();
    let faulty = Faulty::new(&devices);
    let all: Vec<Fault> = every_fault().collect();
    let (mut broken, mut task_fails) = (0, false);
    for faults in &faulty.faults {
        let planned: Vec<Fault> = (0..rng.below(5)).map(|_| all[rng.below(all.len())]).collect();
        planned.iter().for_each(|&fault| faults.at(1 + rng.next() % 120, fault));
        broken += usize::from(!planned.is_empty());
        task_fails |= planned.contains(&Fault::Fail(InjectedError::Task));
        // A device that is slowed down also hangs for many times as long.
        if rng.below(4) == 0 && !planned.contains(&Fault::Hang) {
            faults.slow_down(1.0 + rng.below(50) as f64);
        }
    }
    let strategies = [Strategy::Adaptive, Strategy::Adaptive, Strategy::Equal, Strategy::Proportional];
    let job = faulty
        .job(&Scramble::new())
        .strategy(strategies[rng.below(strategies.len())])
        .chunk_limit(Duration::from_millis(1200));
    for _ in 0..3 {
        let items = numbers(rng.below(1_500) as u32);
        match one_run(&job, &items, rng.below(3)) {
            Ok(()) => {}
            Err(RunError::Task { error, .. }) => assert!(task_fails, "{error}"),
            Err(error) => {
                let RunError::NoDeviceLeft { items, .. } = error else { panic!("{error}") };
                assert_eq!(broken, devices.len(), "a device is well, and yet: {error}");
                // For a stream these are the items that it had read: all of them may be done.
                let done = done_of(&error).unwrap();
                if done.count() < items {
                    assert_possible(done, items as usize);
                }
            }
        }
        faulty.wait_until_idle();
    }
}

/// Runs in one of three ways, and checks the results.
fn one_run(job: &Job<'_, Scramble>, items: &[u32], way: usize) -> Result<(), RunError> {
    let plain: Vec<u32> = items.iter().map(|&item| scramble(item)).collect();
    match way {
        0 => {
            let results: Vec<u32> = job.map_stream(items.to_vec())?.collect::<Result<_, _>>()?;
            assert_eq!(results, plain);
        }
        1 => {
            let combine = |a: u32, b: u32| a.rotate_left(1) ^ b;
            let reduced = job.map_reduce(items, combine)?;
            assert_eq!(reduced.into_value(), plain.into_iter().reduce(combine));
        }
        _ => {
            let run = job.map(items)?;
            assert_eq!(run.results(), plain);
            assert_counted_once(run.report(), items.len());
        }
    }
    Ok(())
}

#[test]
fn random_faults_never_cost_an_item_or_hang_a_run() {
    let time = Duration::from_secs(from_environment("EVENER_SOAK_SECONDS").unwrap_or(10));
    let first = from_environment("EVENER_SOAK_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64
    });
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < time {
        let seed = first.wrapping_add(rounds);
        let work = move || within(Duration::from_secs(40), "a round", move || round(seed));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            eprintln!("to see it again: EVENER_SOAK_SEED={seed}");
            resume_unwind(panic);
        }
        rounds += 1;
    }
    eprintln!("{rounds} rounds of three runs from seed {first}");
}
