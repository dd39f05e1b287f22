//! Random runs: devices, items, costs, tasks, deadlines, limits and passing errors, all from a seed.
//!
//! `EVENER_FUZZ_SECONDS` says for how long, `EVENER_FUZZ_SEED` which runs. A failure prints the seed of its round; with
//! `EVENER_FUZZ_SECONDS=0` that round alone is run.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};

use evener_device::{
    Device,
    testing::{Failure, Fault, Faults},
};
use evener_schedule::{Cancel, Closure, Job, Pool, Results, RunError, Settings, Strategy, Task};

use crate::{
    common::{Dice, assert_counted_once, assert_sane, card, cores, done_of, forgetful, settle, within},
    support::{
        Checked, Plain, alike, answer, answers, beside_others, closure, cost, fallible, item, ms, spend,
        total,
    },
};

/// A round that takes longer has hung: its runs are of a second at most.
const ROUND: Duration = Duration::from_secs(30);
/// What a machine that has other things to do may add to any time.
const SLACK: Duration = ms(400);

/// Errors after which a device is as well as before.
const PASSING: [Fault; 5] = [
    Fault::Fail(Failure::Lost),
    Fault::Fail(Failure::TimedOut),
    Fault::Fail(Failure::BadResult),
    Fault::Fail(Failure::OutOfMemory),
    Fault::Corrupt,
];

/// Which task a round runs.
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
    /// The kernel more often than the others, since it alone has errors.
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

/// How a run is ended before its time, if at all.
#[derive(Debug, Clone, Copy)]
enum End {
    Never,
    Deadline(Duration),
    Cancel(Duration),
}

/// One run as it is drawn.
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

fn devices(dice: &mut Dice) -> (Vec<Device>, usize) {
    let mut lanes = 0;
    let devices = (0..1 + dice.under(3)).map(|number| {
        // The first is a processor: only that can do every task.
        if number > 0 && dice.under(2) == 0 {
            lanes += 1;
            return card(&format!("card:{number}"));
        }
        let count = 1 + dice.under(4);
        lanes += count;
        cores(&format!("cpu/{number}"), count as u32)
    });
    (devices.collect(), lanes)
}

/// Items that take a fifth of a second at most when the lanes share them.
fn items(dice: &mut Dice, lanes: usize) -> Vec<u64> {
    let count = match dice.under(8) {
        0 => dice.under(2),
        1 => 1 + dice.under(2 * lanes),
        2 => 1 + dice.under(200_000),
        _ => 1 + dice.under(3_000),
    };
    let mut left = ms(200) * lanes as u32;
    let mut items = alike(count, Duration::ZERO);
    let mut spend_on = |place: usize, micros: usize| {
        let time = Duration::from_micros(micros as u64).min(left);
        left -= time;
        items[place] = item(time, place);
    };
    let shape = if count == 0 { 5 } else { dice.under(5) };
    match shape {
        // Anything from nothing to five milliseconds.
        0 => (0..count).for_each(|place| spend_on(place, dice.under(5_000))),
        // A cluster somewhere, dear by chance.
        1 => {
            let (first, long) = (dice.under(count), 1 + dice.under(200));
            let each = 100 + dice.under(5_000);
            (first..count.min(first + long)).for_each(|place| spend_on(place, each));
        }
        // A few, far apart.
        2 => (0..1 + dice.under(6)).for_each(|_| spend_on(dice.under(count), dice.under(100_000))),
        // One that takes almost all of the time.
        3 => spend_on(dice.under(count), 250_000),
        // All alike.
        4 => {
            let each = dice.under(1_000);
            (0..count).for_each(|place| spend_on(place, each));
        }
        _ => {}
    }
    items
}

fn plan(dice: &mut Dice, lanes: usize) -> Plan {
    let strategies = [Strategy::Equal, Strategy::Proportional, Strategy::Dynamic];
    let kind = Kind::ALL[dice.under(Kind::ALL.len())];
    Plan {
        kind,
        lanes,
        end: match dice.under(6) {
            0 => End::Deadline(Duration::from_micros(dice.under(300_000) as u64)),
            1 => End::Cancel(Duration::from_micros(dice.under(300_000) as u64)),
            _ => End::Never,
        },
        chunk_limit: match dice.under(6) {
            0 => Some(Duration::from_secs(600)),
            1 => Some(Duration::from_millis(100 + dice.under(900) as u64)),
            _ => None,
        },
        strategy: if dice.under(5) == 0 { strategies[dice.under(3)] } else { Strategy::Adaptive },
        settings: match dice.under(4) {
            0 => Settings { max_items: Some(1 + dice.under(64) as u64), ..Settings::default() },
            1 => Settings { rescue: false, ..Settings::default() },
            _ => Settings::default(),
        },
        errors: 0,
    }
}

/// A pool, a job on it, and two runs.
fn round(seed: u64) {
    let mut dice = Dice(seed);
    let (devices, lanes) = devices(&mut dice);
    let mut plan = plan(&mut dice, lanes);
    let (devices, faults): (Vec<_>, Vec<_>) = devices.iter().map(Faults::wrap).unzip();
    if plan.kind == Kind::Kernel && dice.under(2) == 0 {
        for faults in &faults {
            for _ in 0..dice.under(3) {
                faults.at(1 + dice.roll() % 80, PASSING[dice.under(PASSING.len())]);
                plan.errors += 1;
            }
        }
    }
    let pool = forgetful(devices);
    match plan.kind {
        Kind::Closure => runs(&pool, &closure(), &plan, &mut dice),
        Kind::Fallible => runs(&pool, &fallible(), &plan, &mut dice),
        Kind::OfChunks => runs(&pool, &of_chunks(), &plan, &mut dice),
        Kind::Reading => runs(&pool, &Plain { copies: false }, &plan, &mut dice),
        Kind::Copying => runs(&pool, &Plain { copies: true }, &plan, &mut dice),
        Kind::Kernel => runs(&pool, &Checked::new(), &plan, &mut dice),
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

fn runs<T: Task<Input = u64, Output = u64>>(pool: &Pool, task: &T, plan: &Plan, dice: &mut Dice) {
    let cancel = Cancel::new();
    // Where a limit of the user's is too tight for every device, the run ends once none has come back for this long.
    let settings = Settings { return_limit: Duration::from_secs(3), ..plan.settings };
    let mut job = pool.job(task).settings(settings).strategy(plan.strategy);
    if dice.under(2) == 0 {
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
        let items = items(dice, plan.lanes);
        let way = dice.under(4);
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
        settle(pool);
    }
}

/// A run in one of several ways; its results are checked.
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
            // Blocks depend on the number of items alone, so with fewer than that it is a plain fold.
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

/// An error has to be one that the plan excuses, and the end has to come in time.
fn judge(plan: &Plan, items: &[u64], way: usize, took: Duration, outcome: Result<(), RunError>) {
    let all = total(items);
    let longest = items.iter().map(|&item| cost(item)).max().unwrap_or_default();
    // What cannot be interrupted is waited for where it reads the caller's items; what was copied is left behind.
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
    // Where nothing goes wrong, a run is not slower than one thread that does everything.
    if plan.errors == 0 && plan.chunk_limit.is_none_or(|limit| limit > all) {
        assert!(took <= all + 5 * SLACK, "{took:?} for what a plain loop does in {all:?}");
    }
    if let Err(error) = &outcome
        && way > 1
        && let Some(done) = done_of(error)
        && !items.is_empty()
    {
        assert_sane(done, items.len());
    }
}

fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|why| panic!("{name}={value}: {why}")))
}

#[test]
fn random_runs_give_the_results_of_a_plain_loop_or_a_justified_error() {
    let time = Duration::from_secs(from_environment("EVENER_FUZZ_SECONDS").unwrap_or(12));
    // The same rounds every time; other seeds are for whoever looks for more.
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
                    // Turns of tests that run alone do not count.
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
