//! Whole runs on devices that work, fail, hang and are slow, through every way to start one.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod common;

use std::{
    collections::BTreeSet,
    error::Error as _,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use common::{
    Faulty, Scramble, assert_counted_once, assert_possible, card, cores, done_of, numbers, scramble,
    wait_until_idle, within, without_history,
};
use evener_device::{
    Device, DeviceId, Error, Kernel, Result,
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::{
    Activity, Cancel, Chunk, Closure, Job, KernelParams, KernelTask, Pool, Report, Results, RunError,
    Settings, Strategy, Task,
};

const LIMIT: Duration = Duration::from_secs(20);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn plain(items: &[u32]) -> Vec<u32> {
    items.iter().map(|&item| scramble(item)).collect()
}

type Prepare = Arc<dyn Fn(&DeviceId) -> Result<()> + Send + Sync>;
type Costs = fn(&[u32]) -> Vec<f64>;
type Compute = Arc<dyn Fn(&DeviceId, &[u32], &mut Results<'_, u32>) -> Result<()> + Send + Sync>;

/// A task of plain functions, which may do anything on any device. It works on a copy of the items, so that the caller
/// of the run need not wait for it.
#[derive(Clone)]
struct Plain {
    prepare: Prepare,
    compute: Compute,
    costs: Option<Costs>,
}

impl Plain {
    fn new(
        compute: impl Fn(&DeviceId, &[u32], &mut Results<'_, u32>) -> Result<()> + Send + Sync + 'static,
    ) -> Plain {
        Plain { prepare: Arc::new(|_| Ok(())), compute: Arc::new(compute), costs: None }
    }

    /// Scrambles, after a call of `before`.
    fn after(before: impl Fn(&DeviceId, &[u32]) + Send + Sync + 'static) -> Plain {
        Plain::new(move |device, items, results| {
            before(device, items);
            results.extend(items.iter().map(|&item| scramble(item)));
            Ok(())
        })
    }

    fn preparing(mut self, prepare: impl Fn(&DeviceId) -> Result<()> + Send + Sync + 'static) -> Plain {
        self.prepare = Arc::new(prepare);
        self
    }
}

impl Task for Plain {
    type Input = u32;
    type Output = u32;
    type State = DeviceId;

    fn name(&self) -> &str {
        "plain"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, device: &Device) -> Result<DeviceId> {
        (self.prepare)(device.id())?;
        Ok(device.id().clone())
    }

    fn run(
        &self,
        device: &mut DeviceId,
        chunk: &Chunk<'_, u32>,
        results: &mut Results<'_, u32>,
    ) -> Result<()> {
        let items = chunk.read(<[u32]>::to_vec)?;
        (self.compute)(device, &items, results)
    }

    fn costs(&self, items: &[u32]) -> Option<Vec<f64>> {
        self.costs.map(|costs| costs(items))
    }
}

/// A kernel with one `f64` per item.
fn root() -> KernelTask<f64, f64> {
    let kernel = Kernel::new("root").reads::<f64>().writes::<f64>().params::<KernelParams>().rust(|launch| {
        let count = launch.params::<KernelParams>()?.count as usize;
        let (items, results) = (launch.read::<f64>(0)?, launch.write::<f64>(1)?);
        for (result, item) in results[..count].iter_mut().zip(items) {
            *result = item.sqrt() * 1e3;
        }
        Ok(())
    });
    KernelTask::new(&kernel)
}

/// The same in `f32`.
fn root_f32() -> KernelTask<f32, f32> {
    let kernel = Kernel::new("root").reads::<f32>().writes::<f32>().params::<KernelParams>().rust(|launch| {
        let count = launch.params::<KernelParams>()?.count as usize;
        let (items, results) = (launch.read::<f32>(0)?, launch.write::<f32>(1)?);
        for (result, item) in results[..count].iter_mut().zip(items) {
            *result = item.sqrt() * 1e3;
        }
        Ok(())
    });
    KernelTask::new(&kernel)
}

fn two() -> Vec<Device> {
    vec![card("card:0"), cores("cpu", 2)]
}

fn lost(device: &DeviceId) -> Error {
    Error::Lost { device: device.clone(), operation: "testing".into(), detail: "on purpose".into() }
}

#[test]
fn a_run_without_items_has_no_results() {
    within(LIMIT, "no items", || {
        let faulty = Faulty::new(&two());
        let job = faulty.job(&Scramble::new());
        let run = job.map(&[]).unwrap();
        assert!(run.results().is_empty());
        assert_counted_once(run.report(), 0);
        assert_eq!(job.map_reduce(&[], |a, _| a).unwrap().into_value(), None);
        assert_eq!(job.map_stream([]).unwrap().count(), 0);
        let nothing = Closure::new("nothing", |_: &u32| ());
        assert_eq!(faulty.job(&nothing).for_each(&[]).unwrap().done, 0);
    });
}

#[test]
fn fewer_items_than_devices_are_each_done_once() {
    within(LIMIT, "few items", || {
        let devices = [card("card:0"), card("card:1"), cores("cpu", 2), cores("cpu/b", 1)];
        for strategy in [Strategy::Equal, Strategy::Proportional, Strategy::Dynamic, Strategy::Adaptive] {
            for count in 1..6 {
                let faulty = Faulty::new(&devices);
                let items = numbers(count);
                let run = faulty.job(&Scramble::new()).strategy(strategy).map(&items).unwrap();
                assert_eq!(run.results(), plain(&items));
                assert_counted_once(run.report(), items.len());
            }
        }
    });
}

#[test]
fn every_strategy_survives_a_loss_and_a_hang_in_any_operation() {
    let items = numbers(300);
    for strategy in [Strategy::Equal, Strategy::Proportional, Strategy::Dynamic, Strategy::Adaptive] {
        for fault in [Fault::Fail(InjectedError::Lost), Fault::Fail(InjectedError::OutOfMemory), Fault::Hang]
        {
            for operation in (1..22).step_by(if fault == Fault::Hang { 7 } else { 1 }) {
                let (name, items) =
                    (format!("{strategy:?}: {fault:?} in operation {operation}"), items.clone());
                // A device that hangs in its first chunk is judged by the others' times, and they may be disturbed.
                within(LIMIT * 3, &name, move || {
                    let faulty = Faulty::new(&two());
                    faulty.faults[0].at(operation, fault);
                    let job = faulty.job(&Scramble::new()).strategy(strategy);
                    let run = job.map(&items).unwrap();
                    assert_eq!(run.results(), plain(&items));
                    assert_counted_once(run.report(), items.len());
                    faulty.wait_until_idle();
                });
            }
        }
    }
}

#[test]
fn costs_change_the_division_of_items_and_never_the_results() {
    within(LIMIT, "costs", || {
        let items = numbers(300);
        let right: Costs = |items| items.iter().map(|item| f64::from(item % 50)).collect();
        let too_few: Costs = |_| vec![1.0];
        let absurd: Costs =
            |items| (0..items.len()).map(|it| [0.0, -3.0, f64::NAN, f64::INFINITY][it % 4]).collect();
        for costs in [right, too_few, absurd] {
            let faulty = Faulty::new(&two());
            let task = Plain { costs: Some(costs), ..Plain::after(|_, _| ()) };
            let run = faulty.job(&task).map(&items).unwrap();
            assert_eq!(run.results(), plain(&items));
            assert_counted_once(run.report(), items.len());
        }
    });
}

#[test]
fn a_task_error_ends_the_run_and_names_the_item() {
    within(LIMIT, "a task error", || {
        let pool = Faulty::new(&[cores("cpu", 2), cores("cpu/b", 1)]);
        let items = numbers(300);
        let (bad, ran) = (items[137], Arc::new(AtomicU64::new(0)));
        let count = ran.clone();
        let task = Closure::fallible("picky", move |&item: &u32| {
            if item == bad {
                count.fetch_add(1, SeqCst);
                return Err("not this one".into());
            }
            Ok(scramble(item))
        });
        match pool.job(&task).map(&items).unwrap_err() {
            RunError::Task { items, error: Error::Task { item, message, .. } } => {
                assert!(items.contains(&137), "{items:?}");
                assert_eq!((item, message.as_str()), (Some(137), "not this one"));
            }
            other => panic!("{other}"),
        }
        wait_until_idle(&pool.pool);
        assert_eq!(ran.load(SeqCst), 1, "it would fail anywhere, so it is not tried again");
    });
}

#[test]
fn the_options_of_a_pool_are_those_of_its_jobs_and_a_job_may_override_them() {
    within(LIMIT, "options", || {
        let settings = Settings { max_items: Some(7), ..Settings::default() };
        let pool = Pool::builder().devices([cores("cpu", 2)]).keep_history_at(None);
        let pool = pool.strategy(Strategy::Equal).settings(settings).build().unwrap();
        let (items, task) = (numbers(700), Closure::new("plain", |&item: &u32| scramble(item)));
        let chunks = |report: &Report| report.devices.iter().map(|device| device.chunks).sum::<u64>();
        let run = pool.map(&task, &items).unwrap();
        assert_eq!(run.report().strategy.as_deref(), Some("equal"));
        assert!(chunks(run.report()) >= 100, "{} chunks of at most 7 items", chunks(run.report()));
        let run =
            pool.job(&task).strategy(Strategy::Adaptive).settings(Settings::default()).map(&items).unwrap();
        assert_eq!(run.report().strategy.as_deref(), Some("adaptive"));
        assert!(chunks(run.report()) < 100, "{} chunks", chunks(run.report()));
    });
}

#[test]
fn the_error_of_a_closure_is_kept_as_the_source() {
    within(LIMIT, "sources", || {
        let pool = Pool::new([cores("cpu", 2)]).unwrap();
        let parse = Closure::fallible("parse", |text: &String| Ok(text.parse::<u32>()?));
        let error = pool.map(&parse, &["12".to_owned(), "x".to_owned()]).unwrap_err();
        let RunError::Task { error: cause, .. } = &error else { panic!("{error}") };
        assert!(cause.cause().unwrap().is::<std::num::ParseIntError>());
        // It is the last error of the chain.
        let (mut last, mut next) = (String::new(), error.source());
        while let Some(error) = next {
            (last, next) = (error.to_string(), error.source());
        }
        assert_eq!(last, "invalid digit found in string");
        let queue = pool.queue(&parse).open().unwrap();
        let error = queue.submit("y".to_owned()).unwrap().wait().unwrap_err();
        let cause = error.source().unwrap().downcast_ref::<Error>().unwrap().cause();
        assert!(cause.unwrap().is::<std::num::ParseIntError>());
    });
}

#[test]
fn a_panic_of_a_closure_ends_the_run_and_names_the_item_and_the_next_run_works() {
    within(LIMIT, "a panic", || {
        let pool = Faulty::new(&[cores("cpu", 2), cores("cpu/b", 1)]);
        let armed = Arc::new(AtomicBool::new(true));
        let is_armed = armed.clone();
        let items = numbers(300);
        let bad = items[42];
        let task = Closure::new("panicky", move |&item: &u32| {
            assert!(item != bad || !is_armed.load(SeqCst), "never this one");
            scramble(item)
        });
        let job = pool.job(&task);
        match job.map(&items).unwrap_err() {
            RunError::Task { error: Error::Task { item, message, .. }, .. } => {
                assert_eq!(item, Some(42));
                assert!(message.contains("never this one"), "{message}");
            }
            other => panic!("{other}"),
        }
        armed.store(false, SeqCst);
        assert_eq!(job.map(&items).unwrap().results(), plain(&items));
    });
}

#[test]
fn a_state_on_which_the_task_failed_is_not_used_again() {
    /// A state is unusable once it has failed.
    #[derive(Clone)]
    struct Fragile(Arc<AtomicBool>);

    impl Task for Fragile {
        type Input = u32;
        type Output = u32;
        type State = bool;

        fn name(&self) -> &str {
            "fragile"
        }

        fn can_use(&self, _: &Device) -> bool {
            true
        }

        fn prepare(&self, _: &Device) -> Result<bool> {
            Ok(false)
        }

        fn run(
            &self,
            broken: &mut bool,
            chunk: &Chunk<'_, u32>,
            results: &mut Results<'_, u32>,
        ) -> Result<()> {
            assert!(!*broken, "the state was left half-way by a panic");
            *broken = true;
            assert!(!self.0.load(SeqCst), "on purpose");
            chunk.read(|items| results.extend(items.iter().map(|&item| scramble(item))))?;
            *broken = false;
            Ok(())
        }
    }

    within(LIMIT, "a broken state", || {
        let pool = Faulty::new(&[cores("cpu", 1)]);
        let fails = Arc::new(AtomicBool::new(true));
        let job = pool.job(&Fragile(fails.clone()));
        let items = numbers(50);
        assert!(matches!(job.map(&items), Err(RunError::Task { .. })));
        wait_until_idle(&pool.pool);
        std::thread::sleep(ms(20)); // the worker returns its state after it has reported the failure
        fails.store(false, SeqCst);
        assert_eq!(job.map(&items).unwrap().results(), plain(&items));
    });
}

#[test]
fn too_few_or_too_many_results_are_the_tasks_own_error() {
    for extra in [-1i64, 1] {
        within(LIMIT, "a wrong number of results", move || {
            let pool = Faulty::new(&two());
            let task = Plain::new(move |_, items, results| {
                let count = (items.len() as i64 + extra) as usize;
                results.extend(std::iter::repeat_n(7, count));
                Ok(())
            });
            let error = pool.job(&task).map(&numbers(100)).unwrap_err();
            assert!(matches!(error, RunError::Task { .. }), "{error}");
            assert!(error.to_string().contains("the task returned"), "{error}");
        });
    }
}

#[test]
fn a_panicking_check_or_combination_is_the_tasks_own_error() {
    within(LIMIT, "a panicking combination", || {
        let pool = Faulty::new(&two());
        let job = pool.job(&Scramble::new());
        let items = numbers(40_000); // more than one per block
        let error = job.map_reduce(&items, |_, _| panic!("will not combine")).unwrap_err();
        assert!(matches!(error, RunError::Task { .. }), "{error}");
        assert!(error.to_string().contains("will not combine"), "{error}");
    });
}

#[test]
fn a_run_goes_on_without_a_device_that_cannot_be_prepared() {
    let lost_on_card = |device: &DeviceId| match device.as_str() {
        "card:0" => Err(lost(device)),
        _ => Ok(()),
    };
    let panics_on_card = |device: &DeviceId| {
        assert_ne!(device.as_str(), "card:0", "on purpose");
        Ok(())
    };
    let hangs_on_card = |device: &DeviceId| {
        if device.as_str() == "card:0" {
            std::thread::sleep(ms(1500));
        }
        Ok(())
    };
    let ways: [(&str, Prepare); 3] = [
        ("lost", Arc::new(lost_on_card)),
        ("panics", Arc::new(panics_on_card)),
        ("hangs", Arc::new(hangs_on_card)),
    ];
    for (name, prepare) in ways {
        for strategy in [Strategy::Adaptive, Strategy::Equal] {
            let prepare = prepare.clone();
            within(LIMIT, name, move || {
                let pool = Faulty::new(&two());
                let task = Plain::after(|_, _| ()).preparing(move |device| prepare(device));
                let items = numbers(300);
                let run = pool.job(&task).strategy(strategy).prepare_limit(ms(100)).map(&items).unwrap();
                assert_eq!(run.results(), plain(&items), "{name}");
                assert_counted_once(run.report(), items.len());
                assert_eq!(run.report().devices[0].items, 0, "{name}");
            });
        }
    }
}

#[test]
fn a_run_whose_devices_cannot_be_prepared_ends_with_their_errors() {
    // Printing a panic may take a moment.
    let ways: [(&str, Duration, Prepare); 3] = [
        ("on purpose", LIMIT, Arc::new(|device| Err(lost(device)))),
        ("panicked: on purpose", LIMIT, Arc::new(|_| panic!("on purpose"))),
        (
            "timed out after 100ms while preparing the device",
            ms(100),
            Arc::new(|_| {
                std::thread::sleep(ms(1500));
                Ok(())
            }),
        ),
    ];
    for (says, limit, prepare) in ways {
        within(LIMIT, says, move || {
            let pool = Faulty::new(&two());
            let task = Plain::after(|_, _| ()).preparing(move |device| prepare(device));
            let start = Instant::now();
            let error = pool.job(&task).prepare_limit(limit).map(&numbers(100)).unwrap_err();
            assert!(matches!(error, RunError::NoDeviceLeft { .. }), "{error}");
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(done_of(&error).unwrap().count(), 0);
            let waited = start.elapsed();
            assert!(limit == LIMIT || waited < ms(1400), "it waited for what hangs: {waited:?}");
        });
    }
}

#[test]
fn a_sum_of_floats_is_the_same_to_the_last_bit_on_any_devices_and_after_any_failure() {
    // As many blocks as items, and blocks of two with one left over.
    for count in [3_000u32, 20_001] {
        let wide: Vec<f64> = (0..count).map(|number| f64::from(number) + 0.1).collect();
        let narrow: Vec<f32> = wide.iter().map(|&item| item as f32).collect();
        let sums = |devices: &[Device], plan: &[(usize, u64, Fault)]| {
            let (devices, plan) = (devices.to_vec(), plan.to_vec());
            let (wide, narrow) = (wide.clone(), narrow.clone());
            within(LIMIT, &format!("a sum: {plan:?}"), move || {
                let faulty = Faulty::new(&devices);
                plan.iter()
                    .for_each(|&(device, operation, fault)| faulty.faults[device].at(operation, fault));
                let sum = faulty.job(&root()).map_reduce(&wide, |a, b| a + b).unwrap();
                assert_counted_once(sum.report(), wide.len());
                faulty.wait_until_idle();
                let sum_f32 = faulty.job(&root_f32()).map_reduce(&narrow, |a, b| a + b).unwrap();
                faulty.wait_until_idle();
                (sum.into_value().unwrap().to_bits(), sum_f32.into_value().unwrap().to_bits())
            })
        };
        let alone = sums(&[cores("cpu", 1)], &[]);
        if count < 16_384 {
            let plain = wide.iter().map(|item| item.sqrt() * 1e3).reduce(|a, b| a + b).unwrap();
            assert_eq!(alone.0, plain.to_bits());
        }
        assert_eq!(sums(&[card("card:0"), card("card:1"), cores("cpu", 2)], &[]), alone);
        for operation in 1..30 {
            let faults =
                [Fault::Fail(InjectedError::Lost), Fault::Fail(InjectedError::OutOfMemory), Fault::Hang];
            let plan = [(0, operation, faults[operation as usize % 3])];
            assert_eq!(sums(&two(), &plan), alone, "{plan:?}");
        }
    }
}

#[test]
fn for_each_runs_every_item_exactly_once_when_nothing_fails() {
    within(LIMIT, "for_each", || {
        let faulty = Faulty::new(&[cores("cpu", 2), cores("cpu/b", 1)]);
        let counts: Arc<Vec<AtomicU64>> = Arc::new((0..2_000).map(|_| AtomicU64::new(0)).collect());
        let counted = counts.clone();
        let task = Closure::new("count", move |&item: &usize| {
            counted[item].fetch_add(1, Relaxed);
        });
        let items: Vec<usize> = (0..counts.len()).collect();
        let report = faulty.job(&task).for_each(&items).unwrap();
        assert_counted_once(&report, items.len());
        assert!(counts.iter().all(|count| count.load(SeqCst) == 1));
    });
}

/// A task without results for any device; some chunks take long.
#[derive(Clone)]
struct SlowFirstChunk {
    /// The device that is slow on its first chunk.
    device: &'static str,
    long: Duration,
    done: Arc<Mutex<Vec<u32>>>,
}

impl Task for SlowFirstChunk {
    type Input = u32;
    type Output = ();
    type State = DeviceId;

    fn name(&self) -> &str {
        "slow first chunk"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, device: &Device) -> Result<DeviceId> {
        Ok(device.id().clone())
    }

    fn run(
        &self,
        device: &mut DeviceId,
        chunk: &Chunk<'_, u32>,
        results: &mut Results<'_, ()>,
    ) -> Result<()> {
        let items = chunk.read(<[u32]>::to_vec)?;
        std::thread::sleep(if device.as_str() == self.device { self.long } else { ms(1) });
        self.done.lock().unwrap().extend(&items);
        results.extend(items.iter().map(|_| ()));
        Ok(())
    }
}

#[test]
fn for_each_ends_although_a_device_hangs_in_its_very_first_chunk() {
    within(LIMIT, "for_each with a hang", || {
        let faulty = Faulty::new(&two());
        let done = Arc::new(Mutex::new(Vec::new()));
        let task = SlowFirstChunk { device: "card:0", long: Duration::from_secs(25), done: done.clone() };
        let items = numbers(200);
        let report = faulty.job(&task).for_each(&items).unwrap();
        assert_counted_once(&report, items.len());
        let done: BTreeSet<u32> = done.lock().unwrap().iter().copied().collect();
        assert_eq!(done, items.iter().copied().collect());
    });
}

#[test]
fn a_slow_device_has_not_failed() {
    within(LIMIT, "a slow device", || {
        let faulty = Faulty::new(&[cores("cpu", 1), cores("cpu/b", 1)]);
        let task = Plain::new(|device, items, results| {
            std::thread::sleep(ms(if device.as_str() == "cpu" { 150 } else { 1 }));
            results.extend(items.iter().map(|&item| scramble(item)));
            Ok(())
        });
        let items = numbers(60);
        let run = faulty.job(&task).map(&items).unwrap();
        assert_eq!(run.results(), plain(&items));
        assert!(run.report().wall_s < 0.14, "it was not rescued");
        wait_until_idle(&faulty.pool);
        let failed: Vec<u64> = faulty.pool.statistics().iter().map(|device| device.failed).collect();
        assert_eq!(failed, [0, 0]);
    });
}

/// Starts a run of ten seconds, ends it, and returns the error and how long the run took.
fn ended_by(
    end: impl FnOnce(Job<'static, Plain>) -> Job<'static, Plain> + Send + 'static,
) -> (RunError, Duration, BTreeSet<u64>) {
    within(LIMIT, "something that is ended", move || {
        let faulty = Faulty::new(&two());
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let note = seen.clone();
        let task = Plain::after(move |_, items| {
            std::thread::sleep(ms(10) * items.len() as u32);
            note.lock().unwrap().extend(items.iter().map(|&item| u64::from(item)));
        });
        let items: Vec<u32> = (0..3_000).collect();
        let job = faulty.job(&task).settings(Settings { max_items: Some(3), ..common::SHORT });
        let start = Instant::now();
        let error = end(job).map(&items).unwrap_err();
        let took = start.elapsed();
        let seen = seen.lock().unwrap().clone();
        wait_until_idle(&faulty.pool);
        (error, took, seen)
    })
}

fn assert_finished_items_ran(error: &RunError, ran: &BTreeSet<u64>) {
    let done = done_of(error).unwrap();
    assert_possible(done, 3_000);
    assert!(done.count() > 0, "{error}");
    assert!(done.0.iter().cloned().flatten().all(|item| ran.contains(&item)), "{error}: only {ran:?} ran");
}

#[test]
fn a_cancelled_run_returns_at_once_with_the_finished_items() {
    let cancel = Cancel::new();
    let from_outside = cancel.clone();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(ms(150));
        from_outside.cancel();
    });
    let (error, took, ran) = ended_by(move |job| job.cancel(&cancel));
    canceller.join().unwrap();
    assert!(matches!(error, RunError::Cancelled { items: 3_000, .. }), "{error}");
    assert!(took < ms(600), "it took {took:?}");
    assert_finished_items_ran(&error, &ran);
}

#[test]
fn a_run_past_its_deadline_returns_at_once_with_the_finished_items() {
    let (error, took, ran) = ended_by(|job| job.deadline(ms(150)));
    assert!(matches!(error, RunError::DeadlinePassed { items: 3_000, .. }), "{error}");
    assert!(took >= ms(150) && took < ms(600), "it took {took:?}");
    assert_finished_items_ran(&error, &ran);
}

#[test]
fn a_deadline_ends_a_run_whose_devices_all_hang() {
    within(LIMIT, "everything hangs", || {
        let faulty = Faulty::new(&two());
        faulty.faults.iter().for_each(|faults| faults.at(8, Fault::Hang));
        let job = faulty.job(&Scramble::new()).deadline(ms(300)).prepare_limit(Duration::from_secs(60));
        let start = Instant::now();
        let error = job.map(&numbers(400)).unwrap_err();
        assert!(matches!(error, RunError::DeadlinePassed { .. } | RunError::NoDeviceLeft { .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
        faulty.wait_until_idle();
    });
}

#[test]
fn progress_only_ever_grows_and_a_callback_that_panics_costs_nothing_else() {
    within(LIMIT, "progress", || {
        let faulty = Faulty::new(&two());
        let task = Plain::after(|_, _| std::thread::sleep(ms(40)));
        let items = numbers(100);
        let settings = Settings { max_items: Some(2), ..common::SHORT };
        let mut told: Vec<(u64, f64)> = Vec::new();
        let job = faulty.job(&task).settings(settings).on_progress(|progress| {
            assert_eq!(progress.items, 100);
            told.push((progress.done, progress.shares.iter().map(|share| share.1).sum()));
        });
        assert_eq!(job.map(&items).unwrap().results(), plain(&items));
        drop(job);
        assert!(told.len() >= 2, "{told:?}");
        assert!(told.is_sorted_by_key(|it| it.0) && told.iter().all(|it| it.0 <= 100), "{told:?}");
        assert!(told.iter().all(|it| it.0 == 0 || (it.1 - 1.0).abs() < 1e-9), "{told:?}");

        let job = faulty.job(&task).settings(settings).on_progress(|_| panic!("on purpose"));
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.map(&items).map(drop)));
        assert!(run.is_err(), "the panic continues in the thread that started the run");
        drop(job);
        wait_until_idle(&faulty.pool);
        assert_eq!(faulty.job(&task).settings(settings).map(&items).unwrap().results(), plain(&items));
    });
}

#[test]
fn a_stream_keeps_the_order_and_loses_nothing_whatever_fails() {
    let operations = 40;
    for operation in 1..=operations {
        for fault in [
            Fault::Fail(InjectedError::Lost),
            Fault::Fail(InjectedError::OutOfMemory),
            Fault::Hang,
            Fault::Corrupt,
        ] {
            within(LIMIT, &format!("a stream: {fault:?} in operation {operation}"), move || {
                let faulty = Faulty::new(&two());
                faulty.faults[operation as usize % 2].at(operation, fault);
                let job = faulty.job(&Scramble::new());
                let items = numbers(1_500);
                let stream = job.map_stream(items.clone()).unwrap();
                let results: Vec<u32> = stream.map(|result| result.unwrap()).collect();
                assert_eq!(results, plain(&items));
                faulty.wait_until_idle();
            });
        }
    }
}

#[test]
fn a_stream_never_reads_further_ahead_than_its_window() {
    const WINDOW: u64 = 1 << 16;
    within(LIMIT, "back-pressure", || {
        let faulty = Faulty::new(&[cores("cpu", 2)]);
        let (taken, task) =
            (Arc::new(AtomicU64::new(0)), Closure::new("scramble", |&item: &u32| scramble(item)));
        let count = taken.clone();
        let source = (0u32..).inspect(move |_| {
            count.fetch_add(1, SeqCst);
        });
        let mut most = 0;
        let stream = faulty.job(&task).map_stream(source).unwrap();
        for (given, result) in (0u64..300_000).zip(stream) {
            assert_eq!(result.unwrap(), scramble(given as u32));
            most = most.max(taken.load(SeqCst) - (given + 1));
        }
        assert!(most <= WINDOW, "{most} items were taken ahead");
    });
}

#[test]
fn a_cancelled_stream_ends_with_an_error_however_fast_results_come() {
    for by_deadline in [false, true] {
        within(LIMIT, "a cancelled stream", move || {
            let faulty = Faulty::new(&[cores("cpu", 2)]);
            let task = Closure::new("scramble", |&item: &u32| scramble(item));
            let cancel = Cancel::new();
            let mut job = faulty.job(&task).cancel(&cancel);
            if by_deadline {
                job = job.deadline(ms(100));
            }
            let mut stream = job.map_stream(0u32..).unwrap();
            let start = Instant::now();
            // A slow consumer always finds results ready.
            while start.elapsed() < ms(120) {
                if let Some(Err(error)) = stream.next() {
                    assert!(by_deadline, "{error}");
                    return;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            cancel.cancel();
            let start = Instant::now();
            let error = loop {
                match stream.next().expect("an error, not an end") {
                    Ok(_) => std::thread::sleep(Duration::from_micros(50)),
                    Err(error) => break error,
                }
                assert!(start.elapsed() < ms(500), "it goes on although it was ended");
            };
            match by_deadline {
                false => assert!(matches!(error, RunError::Cancelled { .. }), "{error}"),
                true => assert!(matches!(error, RunError::DeadlinePassed { .. }), "{error}"),
            }
            assert!(stream.next().is_none(), "an error is the last thing");
        });
    }
}

#[test]
fn a_stream_returns_the_results_before_an_error_and_nothing_after_it() {
    for _ in 0..50 {
        within(LIMIT, "a stream with an error", || {
            let faulty = Faulty::new(&[cores("cpu", 2), cores("cpu/b", 1)]);
            let task = Closure::fallible("picky", |&item: &u32| match item {
                700 => Err("not this one".into()),
                _ => Ok(scramble(item)),
            });
            let mut stream = faulty.job(&task).map_stream(0u32..2_000).unwrap();
            let mut given = 0u32;
            let error = loop {
                match stream.next().expect("an error, not an end") {
                    Ok(result) => assert_eq!(result, scramble(given)),
                    Err(error) => break error,
                }
                given += 1;
            };
            assert!(given <= 700);
            assert!(
                matches!(error, RunError::Task { error: Error::Task { item: Some(700), .. }, .. }),
                "{error}"
            );
            for _ in 0..3 {
                assert!(stream.next().is_none());
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn a_stream_returns_results_while_its_source_has_no_item_yet() {
    within(LIMIT, "a source that waits for results", || {
        for devices in [vec![cores("cpu", 2)], two().to_vec()] {
            let faulty = Faulty::new(&devices);
            // Each item is sent once the result of the one before it has come.
            let (sender, receiver) = std::sync::mpsc::channel();
            let mut stream = faulty.job(&Plain::after(|_, _| ())).map_stream(receiver).unwrap();
            let start = Instant::now();
            for item in 0..200u32 {
                sender.send(item).unwrap();
                assert_eq!(stream.next().unwrap().unwrap(), scramble(item));
            }
            assert!(start.elapsed() < ms(2_000), "a result waits: {:?}", start.elapsed());
            drop(sender);
            assert!(stream.next().is_none());
        }
    });
}

#[test]
fn a_stream_bounds_the_bytes_that_it_holds() {
    /// Items of a kibibyte each, on the heap.
    #[derive(Clone)]
    struct Heavy;
    impl Task for Heavy {
        type Input = Vec<u8>;
        type Output = usize;
        type State = ();
        fn name(&self) -> &str {
            "heavy"
        }
        fn can_use(&self, _: &Device) -> bool {
            true
        }
        fn prepare(&self, _: &Device) -> Result<()> {
            Ok(())
        }
        fn run(
            &self,
            _: &mut (),
            chunk: &Chunk<'_, Vec<u8>>,
            results: &mut Results<'_, usize>,
        ) -> Result<()> {
            chunk.read(|items| results.extend(items.iter().map(Vec::len)))
        }
        fn item_bytes(&self, item: &Vec<u8>) -> u64 {
            item.len() as u64
        }
    }
    within(LIMIT, "bytes", || {
        let faulty = Faulty::new(&[cores("cpu", 2)]);
        for (items, bytes, max_ahead) in [(1 << 16, 10 << 10, 10), (5, 1 << 30, 5), (0, 0, 1)] {
            let (start, taken) = (Instant::now(), Arc::new(AtomicU64::new(0)));
            let count = taken.clone();
            let source = std::iter::repeat_with(move || {
                count.fetch_add(1, SeqCst);
                vec![0; 1 << 10]
            });
            let stream = faulty.job(&Heavy).read_ahead(items, bytes).map_stream(source.take(2_000)).unwrap();
            let mut most = 0;
            for (given, result) in (0u64..).zip(stream) {
                assert_eq!(result.unwrap(), 1 << 10);
                most = most.max(taken.load(SeqCst) - (given + 1));
            }
            assert!(most <= max_ahead, "{most} items of a kibibyte were held");
            assert!(
                start.elapsed() < ms(5_000),
                "workers sleep although an item waits: {:?}",
                start.elapsed()
            );
            assert_eq!(taken.load(SeqCst), 2_000);
        }
    });
}

#[test]
fn a_stream_copies_no_item_and_drops_each_once() {
    struct Counted(u32, Arc<AtomicU64>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, SeqCst);
        }
    }
    within(LIMIT, "items that cannot be cloned", || {
        let faulty = Faulty::new(&[cores("cpu", 2)]);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = dropped.clone();
        let task = Closure::new("scramble", |item: &Counted| scramble(item.0));
        let source = (0..10_000).map(move |item| Counted(item, count.clone()));
        let stream = faulty.job(&task).map_stream(source).unwrap();
        let results: Vec<u32> = stream.map(|result| result.unwrap()).collect();
        assert_eq!(results, (0..10_000).map(scramble).collect::<Vec<_>>());
        while Arc::strong_count(&dropped) > 1 {
            std::thread::sleep(ms(1));
        }
        assert_eq!(dropped.load(SeqCst), 10_000);
    });
}

#[test]
fn a_stream_can_be_sent_to_another_thread_and_its_source_may_borrow() {
    within(LIMIT, "a borrowed source", || {
        let faulty = Faulty::new(&[cores("cpu", 2)]);
        let task = Closure::new("scramble", |&item: &u32| scramble(item));
        let items = numbers(5_000);
        let job = faulty.job(&task);
        let results = std::thread::scope(|scope| {
            let stream = job.map_stream_scoped(scope, items.iter().copied()).unwrap();
            let consumer = scope.spawn(move || stream.map(|result| result.unwrap()).collect::<Vec<u32>>());
            consumer.join().unwrap()
        });
        assert_eq!(results, plain(&items));
    });
}

#[test]
fn a_panic_of_the_source_comes_after_the_results_of_the_items_before_it() {
    within(LIMIT, "a source that panics", || {
        let faulty = Faulty::new(&[cores("cpu", 2)]);
        let task = Closure::new("scramble", |&item: &u32| scramble(item));
        let source = (0u32..).inspect(|&item| assert!(item < 500, "the source breaks"));
        let mut stream = faulty.job(&task).map_stream(source).unwrap();
        for item in 0..500 {
            assert_eq!(stream.next().unwrap().unwrap(), scramble(item));
        }
        let next = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stream.next().is_some()));
        assert_eq!(next.unwrap_err().downcast_ref(), Some(&"the source breaks"));
        assert!(stream.next().is_none());
    });
}

#[test]
fn a_stream_goes_on_without_a_device_that_hangs_while_the_source_has_no_item() {
    within(LIMIT, "a dry stream", || {
        let faulty = Faulty::new(&two());
        let hangs = Arc::new(AtomicBool::new(true));
        let first = hangs.clone();
        // The card hangs once it was measured; the other device takes over its chunk, because nothing else is left to
        // do.
        let seen = AtomicU64::new(0);
        let task = Plain::after(move |device, _| {
            let chunk = if device.as_str() == "card:0" { seen.fetch_add(1, SeqCst) } else { 0 };
            if chunk == 2 && first.swap(false, SeqCst) {
                std::thread::sleep(Duration::from_secs(25));
            }
            std::thread::sleep(Duration::from_micros(200));
        });
        let mut stream = faulty
            .job(&task)
            .map_stream((0u32..3_000).inspect(|item| {
                if item % 1_024 == 0 {
                    std::thread::sleep(ms(300));
                }
            }))
            .unwrap();
        let results: Vec<u32> = stream.by_ref().map(|result| result.unwrap()).collect();
        assert_eq!(results, (0..3_000).map(scramble).collect::<Vec<_>>());
        assert!(!hangs.load(SeqCst), "it never hung");
        let failed = faulty.pool.statistics()[0].failed;
        assert!(failed >= 1, "the hang was not detected");
    });
}

/// A result that must not be dropped.
struct PanicsOnDrop {
    armed: bool,
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        assert!(!self.armed, "it was dropped");
    }
}

/// Fails on the card, with results that panic when they are dropped.
#[derive(Clone)]
struct PanickingResults;

impl Task for PanickingResults {
    type Input = u32;
    type Output = PanicsOnDrop;
    type State = DeviceId;

    fn name(&self) -> &str {
        "explosive"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, device: &Device) -> Result<DeviceId> {
        Ok(device.id().clone())
    }

    fn run(
        &self,
        device: &mut DeviceId,
        chunk: &Chunk<'_, u32>,
        results: &mut Results<'_, PanicsOnDrop>,
    ) -> Result<()> {
        if device.as_str() == "card:0" {
            results.push(PanicsOnDrop { armed: true });
            return Err(lost(device));
        }
        std::thread::sleep(ms(1));
        results.extend((0..chunk.len()).map(|_| PanicsOnDrop { armed: false }));
        Ok(())
    }
}

#[test]
fn results_that_panic_when_they_are_dropped_lose_no_item_and_hide_no_error() {
    within(LIMIT, "a hand that is gone", || {
        for strategy in [Strategy::Equal, Strategy::Adaptive] {
            let faulty = Faulty::new(&two());
            let run = faulty.job(&PanickingResults).strategy(strategy).map(&numbers(300)).unwrap();
            assert_counted_once(run.report(), 300);
            // The device's own error counts.
            assert_eq!(run.report().devices[0].state, "quarantined");
            wait_until_idle(&faulty.pool);
        }
    });
}

#[test]
fn a_lane_has_all_its_workers_again_after_one_hung_while_another_failed() {
    within(LIMIT, "a lane with a hung hand", || {
        let faulty = Faulty::new(&two());
        let (came, at_once, most) = (AtomicU64::new(0), AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
        let seen = most.clone();
        let task = Plain::new(move |device, items, results| {
            if device.as_str() == "card:0" {
                match came.fetch_add(1, SeqCst) {
                    // The first worker hangs; the second fails once the first has begun to.
                    0 => std::thread::sleep(Duration::from_secs(25)),
                    1 => return Err(lost(device)),
                    _ => {}
                }
                seen.fetch_max(at_once.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(ms(5));
                at_once.fetch_sub(1, SeqCst);
            }
            std::thread::sleep(ms(5));
            results.extend(items.iter().map(|&item| scramble(item)));
            Ok(())
        });
        let items = numbers(400);
        let settings = Settings { max_items: Some(2), ..common::SHORT };
        let run = faulty.job(&task).settings(settings).map(&items).unwrap();
        assert_eq!(run.results(), plain(&items));
        assert_eq!(most.load(SeqCst), 2, "one of its two hands is gone");
        wait_until_idle(&faulty.pool);
    });
}

#[test]
fn a_stream_that_is_dropped_half_way_leaves_no_worker_busy() {
    within(LIMIT, "a dropped stream", || {
        let faulty = Faulty::new(&two());
        let job = faulty.job(&Scramble::new());
        let mut stream = job.map_stream(0u32..).unwrap();
        for number in 0..100 {
            assert_eq!(stream.next().unwrap().unwrap(), scramble(number));
        }
        drop(stream);
        faulty.wait_until_idle();
        let items = numbers(100);
        assert_eq!(job.map(&items).unwrap().results(), plain(&items));
    });
}

#[test]
fn devices_in_reserve_join_when_the_chosen_ones_fail_or_do_not_respond() {
    type Break = fn(&Faults);
    let breaks: [(&str, Break); 5] = [
        ("destroyed", |faults| faults.destroy()),
        ("killed", |faults| faults.kill()),
        ("not able", |faults| faults.at_next(Fault::Fail(InjectedError::Unsupported))),
        ("out of memory", |faults| faults.at_next(Fault::Fail(InjectedError::OutOfMemory))),
        ("hung", |faults| faults.at_next(Fault::Hang)),
    ];
    within(ms(120_000), "one device chosen, which fails", move || {
        let mut used_alone = 0;
        for (broken, (name, act)) in [0, 1].into_iter().flat_map(|it| breaks.map(|how| (it, how))) {
            for (warm, count) in [(0, 1), (0, 100), (3, 1), (3, 100)] {
                let faulty = Faulty::new(&two());
                let items = numbers(count);
                for _ in 0..warm {
                    let run = faulty.pool.map(&Scramble::new(), &items).unwrap();
                    used_alone += usize::from(run.report().devices.len() == 1);
                }
                act(&faulty.faults[broken]);
                let start = Instant::now();
                let run = faulty.pool.map(&Scramble::new(), &items);
                let (took, about) = (start.elapsed(), format!("{name}, device {broken}, {count} items"));
                let run = run.unwrap_or_else(|error| panic!("{about}: {error}"));
                assert_eq!(run.results(), plain(&items), "{about}");
                assert_counted_once(run.report(), items.len());
                assert!(took < ms(10_000), "{about} took {took:?}");
                faulty.wait_until_idle();
            }
        }
        assert!(used_alone > 0, "no device was ever used alone");
    });
}

#[test]
fn a_device_that_hangs_is_not_chosen_alone_again() {
    within(ms(120_000), "a device that hangs in every run", || {
        let faulty = Faulty::new(&two());
        let items = numbers(100);
        // The first runs find out which device is used alone.
        let mut last = None;
        for _ in 0..20 {
            let run = faulty.pool.map(&Scramble::new(), &items).unwrap();
            last = (run.report().devices.len() == 1).then(|| run.report().devices[0].id.clone()).or(last);
        }
        let hung = usize::from(last.as_deref() == Some("cpu"));
        let start = Instant::now();
        for _ in 0..20 {
            faulty.faults[hung].at_next(Fault::Hang);
            assert_eq!(faulty.pool.map(&Scramble::new(), &items).unwrap().results(), plain(&items));
            faulty.wait_until_idle();
        }
        assert!(start.elapsed() < ms(12_000), "20 runs took {:?}", start.elapsed());
    });
}

#[test]
fn runs_that_begin_while_their_thread_unwinds_return_their_results() {
    struct Maps(Pool, std::sync::mpsc::Sender<Result<Vec<u32>, String>>);
    impl Drop for Maps {
        fn drop(&mut self) {
            let run = self.0.map(&Closure::new("same", |&item: &u32| item), &[1, 2, 3]);
            let results = run.map(|run| run.results().to_vec()).map_err(|error| error.to_string());
            self.1.send(results).unwrap();
        }
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let pool = Pool::new([cores("cpu", 2)]).unwrap();
    let unwinds = std::thread::spawn(move || {
        let _maps = Maps(pool, sender);
        panic!("on purpose");
    });
    assert!(unwinds.join().is_err());
    assert_eq!(receiver.recv().unwrap().unwrap(), [1, 2, 3]);
}

#[test]
fn results_are_dropped_when_the_progress_callback_panics() {
    within(LIMIT, "a callback that panics", || {
        use std::sync::{
            Arc,
            atomic::{AtomicIsize, Ordering::SeqCst},
        };
        struct Counted(Arc<AtomicIsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        let alive = Arc::new(AtomicIsize::new(0));
        let count = alive.clone();
        let make = Closure::new("make", move |_: &u32| {
            std::thread::sleep(ms(2));
            count.fetch_add(1, SeqCst);
            Counted(count.clone())
        });
        let job = Pool::new([cores("cpu", 2)]).unwrap().job(&make);
        let job = job.on_progress(|progress| assert!(progress.done < 10, "enough"));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.map(&[0; 500]).map(drop)));
        assert!(panic.is_err());
        let start = Instant::now();
        while alive.load(SeqCst) != 0 {
            assert!(start.elapsed() < ms(5_000), "{} results are left", alive.load(SeqCst));
            std::thread::sleep(ms(1));
        }
    });
}

#[test]
fn a_stream_that_is_dropped_drops_its_source_after_the_current_item() {
    within(LIMIT, "a channel that outlives its stream", || {
        let faulty = Faulty::new(&[cores("cpu", 2)]);
        let job = faulty.job(&Plain::after(|_, _| ()));
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut stream = job.map_stream(receiver).unwrap();
        sender.send(1u32).unwrap();
        assert_eq!(stream.next().unwrap().unwrap(), scramble(1));
        drop(stream);
        // The thread that reads the source waits for one more item; then the receiver is dropped.
        let taken = (0..1000u32).take_while(|&item| {
            std::thread::sleep(ms(1));
            sender.send(item).is_ok()
        });
        assert!(taken.count() < 1000, "it is read on");
    });
}

#[test]
fn runs_of_one_job_at_the_same_time_do_not_wait_for_the_one_that_reports_progress() {
    within(LIMIT, "two runs of one job", || {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        let waits = Closure::new("waits", move |&item: &u32| {
            if item == 7 {
                held.lock().unwrap().recv().unwrap();
            }
            item
        });
        let job = Pool::new([cores("cpu", 2)]).unwrap().job(&waits).on_progress(|_| ());
        std::thread::scope(|scope| {
            let long = scope.spawn(|| job.map(&[7; 1]).unwrap());
            std::thread::sleep(ms(50));
            assert_eq!(job.map(&[1, 2, 3]).unwrap().results(), [1, 2, 3]);
            assert!(!long.is_finished());
            release.send(()).unwrap();
            assert_eq!(long.join().unwrap().results(), [7]);
        });
    });
}

#[test]
fn runs_of_one_pool_at_the_same_time_do_not_disturb_each_other() {
    within(LIMIT, "runs at the same time", || {
        let faulty = Faulty::new(&two());
        faulty.faults[0].at(20, Fault::Fail(InjectedError::Lost));
        faulty.faults[0].at(60, Fault::Fail(InjectedError::OutOfMemory));
        let pool: &Pool = &faulty.pool;
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let faulty = &faulty;
                scope.spawn(move || {
                    let job = faulty.job(&Scramble::new());
                    for round in 0..5 {
                        let items = numbers(200 + 10 * thread + round);
                        let run = job.map(&items).unwrap();
                        assert_eq!(run.results(), plain(&items));
                        assert_counted_once(run.report(), items.len());
                    }
                });
            }
        });
        wait_until_idle(pool);
        faulty.faults.iter().for_each(Faults::release);
    });
}

/// A task that takes long to be prepared on one device, or returns `Error::Ended` when it should not.
#[derive(Clone)]
struct SlowToPrepare {
    prepare: Option<(&'static str, Duration)>,
    each: Duration,
    ends: bool,
}

impl Task for SlowToPrepare {
    type Input = u32;
    type Output = u32;
    type State = ();

    fn name(&self) -> &str {
        "slow to prepare"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, device: &Device) -> Result<()> {
        if let Some((_, time)) = self.prepare.filter(|(id, _)| device.id().as_str() == *id) {
            std::thread::sleep(time);
        }
        Ok(())
    }

    fn run(&self, _: &mut (), chunk: &Chunk<'_, u32>, results: &mut Results<'_, u32>) -> Result<()> {
        if self.ends {
            return Err(Error::Ended);
        }
        chunk.read(|items| {
            for &item in items {
                std::thread::sleep(self.each);
                results.push(scramble(item));
            }
        })
    }
}

#[test]
fn a_card_that_is_slow_to_prepare_does_not_delay_the_cores() {
    within(LIMIT, "a card that compiles for long", || {
        let pool = without_history([cores("cpu/a", 4), card("card:0")]);
        let task =
            SlowToPrepare { prepare: Some(("card:0", Duration::from_secs(8))), each: ms(20), ends: false };
        let items = numbers(100);
        let begin = Instant::now();
        let run = pool.job(&task).all_devices().map(&items).unwrap();
        assert_eq!(run.results(), plain(&items));
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}; the cores take 0.5 s", begin.elapsed());
    });
}

#[test]
fn a_task_that_returns_ended_during_its_run_has_failed() {
    within(LIMIT, "a task that says Ended", || {
        let faulty = Faulty::new(&two());
        let task = SlowToPrepare { prepare: None, each: ms(0), ends: true };
        let error = faulty.job(&task).map(&numbers(3)).unwrap_err();
        assert!(matches!(error, RunError::Task { .. }), "{error}");
    });
}

#[test]
fn a_run_that_is_stopped_before_it_begins_does_nothing() {
    within(LIMIT, "cancelled before", || {
        let began = Arc::new(AtomicU64::new(0));
        let seen = began.clone();
        let task = Closure::new("counts", move |_: &u32| {
            seen.fetch_add(1, SeqCst);
        });
        let pool = without_history([cores("cpu", 2)]);
        let cancel = Cancel::new();
        cancel.cancel();
        let error = pool.job(&task).cancel(&cancel).map(&numbers(9)).unwrap_err();
        assert!(matches!(error, RunError::Cancelled { .. }), "{error}");
        let error = pool.job(&task).deadline(ms(0)).map(&numbers(9)).unwrap_err();
        assert!(matches!(error, RunError::DeadlinePassed { .. }), "{error}");
        assert_eq!(began.load(SeqCst), 0);
    });
}

#[test]
fn nonsensical_settings_lose_no_result_and_no_memory() {
    /// A result that detects a drop of uninitialised memory.
    struct Made(Vec<u64>);
    impl Drop for Made {
        fn drop(&mut self) {
            assert_eq!(self.0.len(), 1);
            self.0.clear();
        }
    }
    #[derive(Clone)]
    struct Makes;
    impl Task for Makes {
        type Input = u64;
        type Output = Made;
        type State = ();
        fn name(&self) -> &str {
            "makes"
        }
        fn can_use(&self, _: &Device) -> bool {
            true
        }
        fn prepare(&self, _: &Device) -> Result<()> {
            Ok(())
        }
        fn run(&self, _: &mut (), chunk: &Chunk<'_, u64>, results: &mut Results<'_, Made>) -> Result<()> {
            chunk.read(|items| {
                for &item in items {
                    std::thread::sleep(Duration::from_micros(item));
                    results.push(Made(vec![item]));
                }
            })
        }
    }
    within(LIMIT, "odd settings", || {
        let pool = without_history([cores("cpu/a", 1), cores("cpu/b", 1)]);
        for odd in [-1.0, f64::NAN, f64::INFINITY] {
            let settings =
                Settings { hung_factor: odd, hung_after: Duration::from_nanos(1), ..Settings::default() };
            for round in 0..20 {
                let items: Vec<u64> =
                    (0..17).map(|it| if it % 3 == round % 3 { 3_000 } else { 100 }).collect();
                let job = pool.job(&Makes).settings(settings);
                let made = job.map(&items).unwrap().into_results();
                assert!(made.iter().zip(&items).all(|(made, item)| made.0 == [*item]));
            }
        }
    });
}

/// Doubles items one by one, and records its largest chunk.
#[derive(Clone)]
struct ItemByItem {
    largest: Arc<AtomicU64>,
    /// Fails on this item.
    fails_on: Option<u32>,
    results: Arc<()>,
}

impl Task for ItemByItem {
    type Input = u32;
    type Output = (u32, Arc<()>);
    type State = ();

    fn name(&self) -> &str {
        "item by item"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, _: &Device) -> Result<()> {
        Ok(())
    }

    fn may_hang(&self, _: &Device) -> bool {
        false
    }

    fn is_divisible(&self, _: &Device) -> bool {
        true
    }

    fn run(&self, _: &mut (), chunk: &Chunk<'_, u32>, results: &mut Results<'_, Self::Output>) -> Result<()> {
        self.largest.fetch_max(chunk.len() as u64, SeqCst);
        chunk.read(|items| {
            while let Some(block) = chunk.claim(results, 2) {
                for &item in &items[block] {
                    if Some(item) == self.fails_on {
                        return Err(Error::Ended);
                    }
                    results.push((2 * item, self.results.clone()));
                }
            }
            Ok(())
        })?
    }

    fn check(&self, items: &[u32], results: &[Self::Output]) -> Result<(), String> {
        let is_right = items.iter().zip(results).all(|(item, result)| 2 * item == result.0);
        (is_right && items.len() == results.len()).then_some(()).ok_or("wrong".into())
    }
}

#[test]
fn chunks_have_at_most_the_maximum_of_items_and_every_call_counts_as_a_chunk() {
    within(LIMIT, "parts", || {
        let pool = without_history([cores("cpu", 4)]);
        let items: Vec<u32> = (0..40_007).collect();
        for most in [1, 3, 64, 1 << 40] {
            let task = ItemByItem { largest: Arc::default(), fails_on: None, results: Arc::default() };
            let settings = Settings { max_items: Some(most), ..Settings::default() };
            let job = pool.job(&task).settings(settings);
            let mapped = job.map(&items).unwrap();
            assert!(mapped.results().iter().zip(&items).all(|(result, item)| result.0 == 2 * item));
            assert!((1..=most).contains(&task.largest.load(SeqCst)), "{most}");
            let chunks = mapped.report().devices[0].chunks;
            assert!(chunks >= (items.len() as u64).div_ceil(most), "{chunks} chunks of at most {most}");
            assert_counted_once(mapped.report(), items.len());
            let sum = job.map_reduce(&items, |a, b| (a.0 ^ b.0, a.1)).unwrap();
            assert_eq!(sum.value().unwrap().0, items.iter().fold(0, |sum, item| sum ^ (2 * item)));
            // A block that is combined cannot be split.
            let block = items.len().div_ceil(16_384) as u64;
            assert!(task.largest.load(SeqCst) <= most.max(block), "{most}");
            drop((mapped, sum));

            let failing = ItemByItem { fails_on: Some(5_000), ..task.clone() };
            let error = pool.job(&failing).settings(settings).map(&items).unwrap_err();
            assert!(matches!(error, RunError::Task { .. }), "{error}");
            drop((failing, job));
            // Workers that have just ended keep the task for a moment.
            let start = Instant::now();
            while Arc::strong_count(&task.results) > 1 && start.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(ms(1));
            }
            assert_eq!(Arc::strong_count(&task.results), 1, "no result of an earlier part leaks");
        }
    });
}

#[test]
fn an_error_is_returned_although_results_of_the_same_chunk_panic_when_dropped() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "dropping a result");
        }
    }
    within(LIMIT, "a bomb in a part", || {
        let pool = without_history([cores("cpu", 2)]);
        let task =
            Closure::fallible(
                "bombs",
                |&item: &u32| if item % 7 == 6 { Err("no".into()) } else { Ok(PanicsOnDrop) },
            );
        let settings = Settings { max_items: Some(4), ..Settings::default() };
        for _ in 0..20 {
            let job = pool.job(&task).settings(settings);
            let Err(error) = job.map(&numbers(1000)) else { panic!("some items fail") };
            assert!(matches!(error, RunError::Task { .. }), "{error}");
        }
    });
}

/// Sleeps for as many milliseconds as its item says, in blocks that it claims. Other lanes may run copies of its
/// chunks.
#[derive(Clone)]
struct SleepsPerItem;

impl Task for SleepsPerItem {
    type Input = u32;
    type Output = u32;
    type State = ();

    fn name(&self) -> &str {
        "sleepy"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, _: &Device) -> Result<()> {
        Ok(())
    }

    fn is_divisible(&self, _: &Device) -> bool {
        true
    }

    fn run(&self, _: &mut (), chunk: &Chunk<'_, u32>, results: &mut Results<'_, u32>) -> Result<()> {
        chunk.read(|items| {
            while let Some(block) = chunk.claim(results, usize::MAX) {
                for &item in &items[block] {
                    std::thread::sleep(ms(item.into()));
                    results.push(item);
                }
            }
        })
    }
}

#[test]
fn progress_never_exceeds_the_items_although_some_are_done_twice() {
    within(LIMIT, "progress of copies", || {
        for round in 0..20 {
            let pool = without_history([cores("three", 3), cores("one", 1)]);
            let items: Vec<u32> = (0..226)
                .map(|it| if scramble(it * 1000 + round).is_multiple_of(56) { 40 } else { 0 })
                .collect();
            let most = Arc::new(AtomicU64::new(0));
            let told = most.clone();
            let job = pool.job(&SleepsPerItem).on_progress(move |progress| {
                told.fetch_max(progress.done, SeqCst);
            });
            assert_eq!(job.map(&items).unwrap().results(), items);
            assert!(most.load(SeqCst) <= 226, "{most:?}");
        }
    });
}

#[test]
fn a_chunk_limit_fails_no_run_whose_items_are_each_done_in_time() {
    within(LIMIT, "a limit", || {
        let items: Vec<u32> = (0..400).map(|it| if (100..116).contains(&it) { 20 } else { 0 }).collect();
        let pool = without_history([cores("one", 1)]);
        let task = Closure::new("expensive", |&item: &u32| {
            std::thread::sleep(ms(item.into()));
            item
        });
        let job = pool.job(&task).chunk_limit(ms(100));
        assert_eq!(job.map(&items).unwrap().results(), items);
    });
}

#[test]
fn a_run_without_items_takes_no_time() {
    let pool = without_history([cores("cpu", 2)]);
    let task = Closure::new("nothing", |&item: &u32| item);
    let job = pool.job(&task);
    let least = (0..50).map(|_| {
        let start = Instant::now();
        assert!(job.map(&[]).unwrap().results().is_empty());
        start.elapsed()
    });
    assert!(least.min().unwrap() < Duration::from_micros(300));
}

/// A pool's workers have all the cores, even if a bound thread starts the first run.
#[cfg(target_os = "linux")]
#[test]
fn a_pool_that_first_runs_on_a_bound_thread_has_all_the_cores() {
    let allowed = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap().to_owned()
    };
    let all = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let slowly = |_| {
        std::thread::sleep(ms(1));
        allowed()
    };
    let part = &Device::cpu().split(&[1]).unwrap()[0];
    let part = Pool::builder().devices([part]).keep_history_at(None).build().unwrap();
    part.map_range(0..1, |_| drop(all.map_range(0..64, slowly).unwrap())).unwrap();
    let seen: BTreeSet<String> = all.map_range(0..64, slowly).unwrap().into_results().into_iter().collect();
    assert_eq!(seen, BTreeSet::from([allowed()]));
}

#[test]
fn each_item_is_accepted_in_one_span_of_the_trace() {
    let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let items: Vec<u64> = (0..100_000).collect();
    let double = Closure::new("double", |item: &u64| 2 * item);
    let job = pool.job(&double).trace();
    let (mapped, reduced) = (job.map(&items).unwrap(), job.map_reduce(&items, |a, b| a + b).unwrap());
    for trace in [mapped.trace(), reduced.trace()] {
        assert_eq!(trace.spans.iter().map(|span| span.accepted).sum::<u64>(), 100_000);
        // A reduction hands out blocks of items, but spans have items.
        assert_eq!(trace.spans.iter().map(|span| span.items.end).max(), Some(100_000));
        for span in trace.spans.iter().filter(|span| span.activity == Activity::Work) {
            assert_eq!(span.accepted + span.duplicates, span.items.end - span.items.start, "{span:?}");
        }
    }
}

#[test]
fn items_and_results_without_bytes_are_counted() {
    let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let count = seen.clone();
    let kernel = Kernel::new("count").params::<KernelParams>().rust(move |launch| {
        count.fetch_add(launch.params::<KernelParams>()?.count.into(), SeqCst);
        Ok(())
    });
    let task = KernelTask::<u32, ()>::new(&kernel.clone().reads::<u32>().writes::<()>());
    assert_eq!(pool.map(&task, &[7; 1000]).unwrap().results(), [(); 1000]);
    // An idle lane may have run a speculative copy of a straggler's items.
    assert!(seen.swap(0, SeqCst) >= 1000);
    let task = KernelTask::<(), ()>::new(&kernel.reads::<()>().writes::<()>());
    assert_eq!(pool.map(&task, &[(); 1000]).unwrap().results(), [(); 1000]);
    assert!(seen.load(SeqCst) >= 1000);
}

#[test]
fn items_with_a_larger_alignment_than_host_memory_are_refused() {
    #[derive(Debug, Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
    #[repr(C, align(128))]
    struct Wide([u8; 128]);
    let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let kernel =
        Kernel::new("copy").reads::<Wide>().writes::<Wide>().params::<KernelParams>().rust(|_| Ok(()));
    let task = KernelTask::<Wide, Wide>::new(&kernel);
    for count in [1, 10, 1000] {
        let text = pool.map(&task, &vec![Wide([1; 128]); count]).unwrap_err().to_string();
        assert!(text.contains("128 bytes") && text.contains("Wide"), "{count}: {text}");
    }
}

#[test]
fn a_report_says_why_a_device_was_retired() {
    let task = Plain::after(|_, _| std::thread::sleep(ms(1))).preparing(|device| match device.as_str() {
        "x" => Err(Error::WillNotCompile {
            device: device.clone(),
            kernel: "scramble".into(),
            body: "wgsl".into(),
            log: "expected global declaration\n  fn nonsense(".into(),
        }),
        _ => Ok(()),
    });
    let pool = without_history([card("x"), cores("a", 1)]);
    let items = numbers(50);
    let run = pool.job(&task).all_devices().map(&items).unwrap();
    assert_eq!(run.results(), plain(&items));
    let [card, cores] = &run.report().devices[..] else { panic!("{}", run.report()) };
    assert_eq!((card.state.as_str(), cores.state.as_str()), ("retired", "healthy"));
    assert!(card.failures.last().is_some_and(|error| error.contains("fn nonsense(")), "{:?}", card.failures);
    assert!(cores.failures.is_empty());
    let text = run.report().to_string();
    let line = "x was not used: kernel `scramble` does not compile (wgsl): expected global\n  declaration fn nonsense(\n";
    assert!(text.contains(line), "{text}");
    let json = serde_json::to_value(run.report()).unwrap();
    assert!(json["devices"][0]["failures"][0].as_str().unwrap().contains("does not compile"), "{json}");
}

#[test]
fn a_report_has_the_last_errors_of_a_device_that_recovered() {
    let fails = AtomicU64::new(0);
    let task = Plain::new(move |device, items, results| {
        if device.as_str() == "x" && fails.fetch_add(1, SeqCst) < 1 {
            return Err(Error::BadResult {
                device: device.clone(),
                operation: "scrambling".into(),
                detail: "a flipped bit".into(),
            });
        }
        std::thread::sleep(ms(1));
        results.extend(items.iter().map(|&item| scramble(item)));
        Ok(())
    });
    let pool = without_history([card("x"), cores("a", 1)]);
    let settings = Settings { first_quarantine: ms(1), max_items: Some(1), ..Settings::default() };
    let run = pool.job(&task).all_devices().settings(settings).map(&numbers(200)).unwrap();
    let card = &run.report().devices[0];
    assert_eq!((card.state.as_str(), card.quarantines), ("healthy", 1), "{}", run.report());
    assert_eq!(card.failures, ["x: wrong result while scrambling: a flipped bit"]);
    let line = "x went on after a failure: wrong result while scrambling: a flipped bit\n";
    assert!(run.report().to_string().contains(line), "{}", run.report());
}

#[test]
fn devices_of_a_run_without_items_are_healthy() {
    let pool = without_history([card("x"), cores("a", 2)]);
    let run = pool.job(&Plain::after(|_, _| {})).all_devices().map(&[]).unwrap();
    let states: Vec<&str> = run.report().devices.iter().map(|device| device.state.as_str()).collect();
    assert_eq!(states, ["healthy", "healthy"], "{}", run.report());
}

#[test]
fn results_that_do_not_fit_into_memory_are_an_error() {
    let pool = without_history([cores("a", 1)]);
    let error = pool.map_range(0..usize::MAX, |_| 1u64).unwrap_err();
    assert!(matches!(error, RunError::ResultsTooLarge { bytes_each: 8, .. }), "{error:?}");
    let text = "the results of 18,446,744,073,709,551,615 items do not fit into memory: 8 bytes each";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_pool_refuses_one_device_twice_and_a_device_with_its_own_partition() {
    let cpu = Device::cpu();
    let part = cpu.split(&[1]).unwrap().remove(0);
    for (devices, ids) in [([&cpu, &cpu], ("cpu", "cpu")), ([&cpu, &part], ("cpu", "cpu/a"))] {
        let error = Pool::new(devices).unwrap_err();
        let text = format!("{} and {} are the same hardware: remove one of them", ids.0, ids.1);
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn a_chunk_that_hangs_until_the_run_ends_counts_as_busy_and_is_in_the_trace() {
    let released = Arc::new(AtomicBool::new(false));
    let waits = released.clone();
    let task = Plain::after(move |device, _| match device.as_str() {
        "x" => {
            while !waits.load(SeqCst) {
                std::thread::sleep(ms(1));
            }
        }
        _ => std::thread::sleep(ms(1)),
    });
    let pool = without_history([card("x"), cores("a", 1)]);
    let settings = Settings { max_items: Some(1), hung_after: LIMIT, ..Settings::default() };
    let items = numbers(200);
    let run = pool.job(&task).all_devices().settings(settings).trace().map(&items).unwrap();
    released.store(true, SeqCst);
    assert_eq!(run.results(), plain(&items));
    let (report, card) = (run.report(), &run.report().devices[0]);
    assert_eq!(card.items, 0);
    assert!(card.busy_s > 0.5 * report.wall_s, "{report}");
    let spans = run.trace().spans.iter().filter(|span| span.lane == 0);
    let hung: Vec<_> = spans.filter(|span| span.activity == Activity::Dropped).collect();
    assert!(
        !hung.is_empty() && hung.iter().all(|it| it.until.as_secs_f64() > 0.9 * report.wall_s),
        "{hung:?}"
    );
}

#[test]
fn numbers_of_items_in_errors_have_commas() {
    let task = Closure::new("odd one out", |&item: &u32| assert_ne!(item, 7_777));
    let error = without_history([cores("a", 1)]).map(&task, &(0..10_000).collect::<Vec<_>>()).unwrap_err();
    assert!(error.to_string().contains("running task `odd one out` on item 7,777: panicked"), "{error}");
}
