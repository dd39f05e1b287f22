//! Random runs: devices, items, costs, tasks, deadlines, limits and transient errors, all from a seed.
//!
//! `EVENER_FUZZ_SECONDS` sets the duration, `EVENER_FUZZ_SEED` the first seed. A failure prints the seed of its round;
//! with `EVENER_FUZZ_SECONDS=0` only that round runs.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};

use evener_device::{
    Device,
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::{Cancel, Closure, Job, Pool, Results, RunError, Settings, Strategy, Task};

use crate::{
    common::{
        Rng, assert_counted_once, assert_possible, card, cores, done_of, wait_until_idle, within,
        without_history,
    },
    support::{
        Checked, Plain, alike, answer, answers, beside_others, closure, cost, fallible, item, ms, spend,
        total,
    },
};

/// Limit of a round: its runs take a second at most.
const ROUND: Duration = Duration::from_secs(30);
/// The time that a busy machine may add to any other.
const SLACK: Duration = ms(400);

/// Transient errors: the device works afterwards.
const PASSING: [Fault; 5] = [
    Fault::Fail(InjectedError::Lost),
    Fault::Fail(InjectedError::TimedOut),
    Fault::Fail(InjectedError::BadResult),
    Fault::Fail(InjectedError::OutOfMemory),
    Fault::Corrupt,
];

/// The task of a round.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Closure,
    Fallible,
    OfChunks,
    Reading,
    Copying,
    Kernel,
}

impl Kind {
    /// The kernel more often than the others, because only it has errors.
    const ALL: [Kind; 8] = [
        Kind::Closure,
        Kind::Fallible,
        Kind::OfChunks,
        Kind::Reading,
        Kind::Copying,
        Kind::Kernel,
        Kind::Kernel,
        Kind::Kernel,
    ];
}

/// How a run is stopped, if at all.
#[derive(Debug, Clone, Copy)]
enum End {
    Never,
    Deadline(Duration),
    Cancel(Duration),
}

/// The random choices of one run.
#[derive(Debug)]
struct Plan {
    kind: Kind,
    lanes: usize,
    end: End,
    chunk_limit: Option<Duration>,
    strategy: Strategy,
    settings: Settings,
    errors: usize,
}

fn devices(rng: &mut Rng) -> (Vec<Device>, usize) {
    let mut lanes = 0;
    let devices = (0..1 + rng.below(3)).map(|number| {
        // The first is a processor: only a processor can run every task.
        if number > 0 && rng.below(2) == 0 {
            lanes += 1;
            return card(&format!("card:{number}"));
        }
        let count = 1 + rng.below(4);
        lanes += count;
        cores(&format!("cpu/{number}"), count as u32)
    });
    (devices.collect(), lanes)
}

/// Items that take a fifth of a second at most when the lanes share them.
fn items(rng: &mut Rng, lanes: usize) -> Vec<u64> {
    let count = match rng.below(8) {
        0 => rng.below(2),
        1 => 1 + rng.below(2 * lanes),
        2 => 1 + rng.below(200_000),
        _ => 1 + rng.below(3_000),
    };
    let mut left = ms(200) * lanes as u32;
    let mut items = alike(count, Duration::ZERO);
    let mut spend_on = |place: usize, micros: usize| {
        let time = Duration::from_micros(micros as u64).min(left);
        left -= time;
        items[place] = item(time, place);
    };
    let shape = if count == 0 { 5 } else { rng.below(5) };
    match shape {
        // From zero to five milliseconds.
        0 => (0..count).for_each(|place| spend_on(place, rng.below(5_000))),
        // A cluster of expensive items somewhere.
        1 => {
            let (first, long) = (rng.below(count), 1 + rng.below(200));
            let each = 100 + rng.below(5_000);
            (first..count.min(first + long)).for_each(|place| spend_on(place, each));
        }
        // A few expensive items, far apart.
        2 => (0..1 + rng.below(6)).for_each(|_| spend_on(rng.below(count), rng.below(100_000))),
        // One item that takes almost all of the time.
        3 => spend_on(rng.below(count), 250_000),
        // Equal items.
        4 => {
            let each = rng.below(1_000);
            (0..count).for_each(|place| spend_on(place, each));
        }
        _ => {}
    }
    items
}

fn plan(rng: &mut Rng, lanes: usize) -> Plan {
    let strategies = [Strategy::Equal, Strategy::Proportional, Strategy::Dynamic];
    let kind = Kind::ALL[rng.below(Kind::ALL.len())];
    Plan {
        kind,
        lanes,
        end: match rng.below(6) {
            0 => End::Deadline(Duration::from_micros(rng.below(300_000) as u64)),
            1 => End::Cancel(Duration::from_micros(rng.below(300_000) as u64)),
            _ => End::Never,
        },
        chunk_limit: match rng.below(6) {
            0 => Some(Duration::from_secs(600)),
            1 => Some(Duration::from_millis(100 + rng.below(900) as u64)),
            _ => None,
        },
        strategy: if rng.below(5) == 0 { strategies[rng.below(3)] } else { Strategy::Adaptive },
        settings: match rng.below(4) {
            0 => Settings { max_items: Some(1 + rng.below(64) as u64), ..Settings::default() },
            1 => Settings { speculative_copies: false, ..Settings::default() },
            _ => Settings::default(),
        },
        errors: 0,
    }
}

/// A pool, a job on it, and two runs.
fn round(seed: u64) {
    let mut rng = Rng(seed);
    let (devices, lanes) = devices(&mut rng);
    let mut plan = plan(&mut rng, lanes);
    let (devices, faults): (Vec<_>, Vec<_>) = devices.iter().map(Faults::wrap).unzip();
    if plan.kind == Kind::Kernel && rng.below(2) == 0 {
        for faults in &faults {
            for _ in 0..rng.below(3) {
                faults.at(1 + rng.next() % 80, PASSING[rng.below(PASSING.len())]);
                plan.errors += 1;
            }
        }
    }
    let pool = without_history(devices);
    match plan.kind {
        Kind::Closure => runs(&pool, &closure(), &plan, &mut rng),
        Kind::Fallible => runs(&pool, &fallible(), &plan, &mut rng),
        Kind::OfChunks => runs(&pool, &of_chunks(), &plan, &mut rng),
        Kind::Reading => runs(&pool, &Plain { copies: false }, &plan, &mut rng),
        Kind::Copying => runs(&pool, &Plain { copies: true }, &plan, &mut rng),
        Kind::Kernel => runs(&pool, &Checked::new(), &plan, &mut rng),
    }
}

fn of_chunks() -> impl Task<Input = u64, Output = u64> {
    Closure::of_chunks("uneven chunks", |items: &[u64], results: &mut Results<'_, u64>| {
        for &item in items {
            spend(cost(item));
            results.push(answer(item));
        }
        Ok(())
    })
}

fn runs<T: Task<Input = u64, Output = u64>>(pool: &Pool, task: &T, plan: &Plan, rng: &mut Rng) {
    let cancel = Cancel::new();
    // If a limit of the user's is too short for every device, the run ends once no device has answered for this long.
    let settings = Settings { return_limit: Duration::from_secs(3), ..plan.settings };
    let mut job = pool.job(task).settings(settings).strategy(plan.strategy);
    if rng.below(2) == 0 {
        job = job.all_devices();
    }
    if let Some(limit) = plan.chunk_limit {
        job = job.chunk_limit(limit);
    }
    job = match plan.end {
        End::Never => job,
        End::Deadline(after) => job.deadline(after),
        End::Cancel(_) => job.cancel(&cancel),
    };
    for _ in 0..2 {
        let items = items(rng, plan.lanes);
        let way = rng.below(4);
        let start = Instant::now();
        let canceller = match plan.end {
            End::Cancel(after) => {
                let cancel = cancel.clone();
                Some(std::thread::spawn(move || {
                    std::thread::sleep(after);
                    cancel.cancel();
                }))
            }
            _ => None,
        };
        let judged = catch_unwind(AssertUnwindSafe(|| {
            let outcome = one_run(&job, &items, way);
            judge(plan, &items, way, start.elapsed(), outcome);
        }));
        if let Err(panic) = judged {
            eprintln!("{plan:?}, {} items of {:?}, way {way}", items.len(), total(&items));
            resume_unwind(panic);
        }
        if let Some(canceller) = canceller {
            canceller.join().unwrap();
        }
        wait_until_idle(pool);
    }
}

/// Runs in one of several ways, and checks the results.
fn one_run<T: Task<Input = u64, Output = u64>>(
    job: &Job<'_, T>,
    items: &[u64],
    way: usize,
) -> Result<(), RunError> {
    match way {
        0 => {
            let results: Vec<u64> = job.map_stream(items.to_vec())?.collect::<Result<_, _>>()?;
            assert!(results == answers(items), "wrong results of a stream");
        }
        1 => {
            let combine = |a: u64, b: u64| a.rotate_left(1) ^ b;
            let reduced = job.map_reduce(items, combine)?;
            // Blocks depend on the number of items only; with fewer than that, it is a plain fold.
            if items.len() < 16_384 {
                let plain = answers(items).into_iter().reduce(combine);
                assert_eq!(reduced.into_value(), plain, "wrong result of a reduction");
            }
        }
        _ => {
            let mapped = job.map(items)?;
            assert!(mapped.results() == answers(items), "wrong results");
            assert_counted_once(mapped.report(), items.len());
        }
    }
    Ok(())
}

/// Asserts that an error is one that the plan explains, and that the end comes in time.
fn judge(plan: &Plan, items: &[u64], way: usize, took: Duration, outcome: Result<(), RunError>) {
    let all = total(items);
    let longest = items.iter().map(|&item| cost(item)).max().unwrap_or_default();
    // The run waits for uninterruptible code that reads the caller's items, and not for code that has copied them.
    let wait = match plan.kind {
        Kind::OfChunks | Kind::Reading => all,
        _ => longest,
    };
    match (&outcome, plan.end) {
        (Err(RunError::DeadlinePassed { .. }), End::Deadline(end))
        | (Err(RunError::Cancelled { .. }), End::Cancel(end)) => {
            assert!(
                took <= end + wait + SLACK,
                "{:?} late: ended after {end:?}, returned after {took:?}",
                took.saturating_sub(end)
            );
        }
        (Err(RunError::NoDeviceLeft { .. }), _) => {
            let limit = plan.chunk_limit.unwrap_or(Duration::MAX);
            assert!(all > limit / 2, "every device is well, and yet: {}", outcome.as_ref().unwrap_err());
        }
        (Err(error), _) => panic!("nothing excuses this: {error}"),
        (Ok(()), End::Deadline(end)) => {
            assert!(
                took <= end + wait + SLACK,
                "no error, {:?} after the deadline",
                took.saturating_sub(end)
            );
        }
        (Ok(()), _) => {}
    }
    // Without failures, a run is not slower than one thread that does everything.
    if plan.errors == 0 && plan.chunk_limit.is_none_or(|limit| limit > all) {
        assert!(took <= all + 5 * SLACK, "{took:?} for what a plain loop does in {all:?}");
    }
    if let Err(error) = &outcome
        && way > 1
        && let Some(done) = done_of(error)
        && !items.is_empty()
    {
        assert_possible(done, items.len());
    }
}

fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|why| panic!("{name}={value}: {why}")))
}

#[test]
fn random_runs_give_the_results_of_a_plain_loop_or_a_justified_error() {
    let time = Duration::from_secs(from_environment("EVENER_FUZZ_SECONDS").unwrap_or(12));
    // The same rounds every time, unless the variables choose others.
    let first = from_environment("EVENER_FUZZ_SEED").unwrap_or(7_000_000);
    let (next, failures) = (AtomicU64::new(0), AtomicU64::new(0));
    // Items sleep, so several rounds at once use the cores better.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut spent = Duration::ZERO;
                loop {
                    let turn = beside_others();
                    let start = Instant::now();
                    let seed = first.wrapping_add(next.fetch_add(1, SeqCst));
                    let work = move || within(ROUND, "a round", move || round(seed));
                    if catch_unwind(AssertUnwindSafe(work)).is_err() {
                        eprintln!("to see it again: EVENER_FUZZ_SECONDS=0 EVENER_FUZZ_SEED={seed}");
                        failures.fetch_add(1, SeqCst);
                    }
                    // Waiting for tests that run alone does not count.
                    spent += start.elapsed();
                    drop(turn);
                    if spent >= time || failures.load(SeqCst) >= 10 {
                        break;
                    }
                }
            });
            if time.is_zero() {
                break;
            }
        }
    });
    let (rounds, failures) = (next.into_inner(), failures.into_inner());
    eprintln!("{rounds} rounds of two runs from seed {first}");
    assert_eq!(failures, 0, "rounds that failed, of {rounds}; their seeds are above");
}
