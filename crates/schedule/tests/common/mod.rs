//! Shared by the tests of whole runs: devices that fail on purpose, a task that checks itself, and a watchdog.
#![allow(dead_code, reason = "no file of tests uses all of it")]

mod renamed;
mod test_task;

use std::{
    borrow::Borrow,
    sync::mpsc,
    time::{Duration, Instant},
};

use bytemuck::Pod;
use evener_device::{Device, DeviceKind, Kernel, Result, testing::Faults};
use evener_schedule::{
    Chunk, Closure, DoneItems, Job, KernelParams, KernelState, KernelTask, Pool, Report, Results, RunError,
    Settings, Task,
};

use self::renamed::renamed;
#[allow(unused_imports, reason = "not every file of tests uses it")]
pub(crate) use self::test_task::TestTask;

/// A processor of this many cores: as many lanes, each with one chunk in flight.
pub(crate) fn cores(id: &str, count: u32) -> Device {
    renamed(id, |it| (it.kind, it.compute_units) = (DeviceKind::Cpu, Some(count)))
}

/// A device that is scheduled like a card: one lane with two chunks in flight.
pub(crate) fn card(id: &str) -> Device {
    renamed(id, |it| (it.kind, it.compute_units) = (DeviceKind::Discrete, Some(16)))
}

/// A pool without a file of learned times.
pub(crate) fn without_history<D: Borrow<Device>>(devices: impl IntoIterator<Item = D>) -> Pool {
    Pool::builder().devices(devices).keep_history_at(None).build().unwrap()
}

/// The devices of a pool, each with its fault injector.
pub(crate) struct Faulty {
    pub(crate) pool: Pool,
    pub(crate) faults: Vec<Faults>,
}

impl Faulty {
    pub(crate) fn new(devices: &[Device]) -> Faulty {
        let (devices, faults): (Vec<_>, Vec<_>) = devices.iter().map(Faults::wrap).unzip();
        Faulty { pool: without_history(devices), faults }
    }

    pub(crate) fn job<T: Task>(&self, task: &T) -> Job<'static, T> {
        self.pool.job(task).settings(SHORT).prepare_limit(Duration::from_millis(400)).all_devices()
    }

    /// Ends every hang, and waits until no worker is busy.
    pub(crate) fn wait_until_idle(&self) {
        // Repeatedly: a worker that lost a race may hang only after the run.
        wait_until_idle_while(&self.pool, || self.faults.iter().for_each(Faults::release));
    }
}

/// Waits until no worker is busy: the counters return to zero, whatever happened.
pub(crate) fn wait_until_idle(pool: &Pool) {
    wait_until_idle_while(pool, || ());
}

fn wait_until_idle_while(pool: &Pool, mut meanwhile: impl FnMut()) {
    let start = Instant::now();
    loop {
        meanwhile();
        let active: Vec<u64> = pool.statistics().iter().map(|device| device.active).collect();
        if active.iter().all(|&count| count == 0) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "still at work after the run: {active:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Settings with few, large chunks and short limits. A healthy device on a busy machine must still be within them.
pub(crate) const SHORT: Settings = Settings {
    min_fraction: 0.2,
    max_fraction: 0.5,
    max_time_floor: Duration::from_micros(200),
    unsplit_run_under: Duration::ZERO,
    min_overheads: 0.0,
    max_growth: 1_000.0,
    hung_after: Duration::from_millis(250),
    hung_factor: 10.0,
    chunk_limit: None,
    silence: Duration::from_secs(10),
    silence_factor: 100.0,
    return_limit: Duration::from_millis(300),
    first_quarantine: Duration::from_millis(2),
    max_quarantine: Duration::from_millis(64),
    straggler_check: Duration::from_millis(1),
    speculative_copies: true,
    no_copy_under: Duration::from_micros(100),
    max_items: None,
};

/// The result of an item.
pub(crate) fn scramble(item: u32) -> u32 {
    item.wrapping_mul(2_654_435_761).rotate_left(7) ^ item
}

/// A kernel as a task that checks its results: the result of an item must be that of `expected`.
#[derive(Clone)]
pub(crate) struct Checked<T> {
    kernel: KernelTask<T, T>,
    expected: fn(T) -> T,
}

impl<T: Pod + Send + Sync> Checked<T> {
    pub(crate) fn new(kernel: KernelTask<T, T>, expected: fn(T) -> T) -> Self {
        Checked { kernel, expected }
    }
}

impl<T: Pod + PartialEq + Send + Sync> Task for Checked<T> {
    type Input = T;
    type Output = T;
    type State = KernelState<T, T>;

    fn name(&self) -> &str {
        self.kernel.name()
    }

    fn can_use(&self, device: &Device) -> bool {
        self.kernel.can_use(device)
    }

    fn prepare(&self, device: &Device) -> Result<Self::State> {
        self.kernel.prepare(device)
    }

    fn run<'s>(
        &self,
        state: &'s mut Self::State,
        chunk: &Chunk<'_, T>,
        results: &mut Results<'s, T>,
    ) -> Result<()> {
        self.kernel.run(state, chunk, results)
    }

    fn max_items(&self, state: &Self::State) -> u64 {
        self.kernel.max_items(state)
    }

    fn check(&self, items: &[T], results: &[T]) -> Result<(), String> {
        match items.iter().zip(results).position(|(&item, &result)| result != (self.expected)(item)) {
            None => Ok(()),
            Some(wrong) => Err(format!("item {wrong} of the chunk is wrong")),
        }
    }
}

/// A kernel that scrambles, as a task that checks its results.
pub(crate) fn scramble_task() -> Checked<u32> {
    let kernel = Kernel::new("scramble")
        .reads::<u32>()
        .writes::<u32>()
        .params::<KernelParams>()
        .workgroup(64)
        .wgsl(
            r#"
            struct Params { first: vec2<u32>, count: u32, padding: u32 }
            var<immediate> params: Params;
            @group(0) @binding(0) var<storage, read> items: array<u32>;
            @group(0) @binding(1) var<storage, read_write> results: array<u32>;
            @compute @workgroup_size(64)
            fn scramble(@builtin(global_invocation_id) id: vec3<u32>) {
                if (id.x < params.count) {
                    let item = items[id.x];
                    let product = item * 2654435761u;
                    results[id.x] = ((product << 7u) | (product >> 25u)) ^ item;
                }
            }"#,
        )
        .rust(|launch| {
            let count = launch.params::<KernelParams>()?.count as usize;
            let (items, results) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
            for (result, &item) in results[..count].iter_mut().zip(items) {
                *result = scramble(item);
            }
            Ok(())
        });
    Checked::new(KernelTask::new(&kernel), scramble)
}

/// Returns `count` items.
pub(crate) fn numbers(count: u32) -> Vec<u32> {
    (0..count).map(|number| number.wrapping_mul(2_246_822_519)).collect()
}

/// Calls a closure, and fails if it takes longer than the limit: a hang must not hang the tests.
pub(crate) fn within<R: Send + 'static>(
    limit: Duration,
    name: &str,
    work: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name.into());
    let thread = thread.spawn(move || drop(sender.send(work()))).unwrap();
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hung: {name} is not done after {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = thread.join().unwrap_err();
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            panic!("{name}: {}", said.unwrap_or_default())
        }
    }
}

/// Asserts that every item was done by exactly one device.
pub(crate) fn assert_counted_once(report: &Report, items: usize) {
    let counted: u64 = report.devices.iter().map(|device| device.items).sum();
    assert_eq!((report.items, report.done, counted), (items as u64, items as u64, items as u64), "{report}");
}

/// Asserts that an error's finished items are possible: ordered ranges that do not touch, within the items, and not all
/// of them.
pub(crate) fn assert_possible(done: &DoneItems, items: usize) {
    let mut after = None;
    for range in &done.0 {
        assert!(range.start < range.end && range.end <= items as u64, "{done:?} of {items}");
        assert!(after.is_none_or(|end| end < range.start), "{done:?} is not in order");
        after = Some(range.end);
    }
    assert!(done.count() < items as u64, "all was done, and yet it is an error");
}

/// An error's finished items, if it has them.
pub(crate) fn done_of(error: &RunError) -> Option<&DoneItems> {
    match error {
        RunError::NoDeviceLeft { done, .. }
        | RunError::Cancelled { done, .. }
        | RunError::DeadlinePassed { done, .. } => Some(done),
        _ => None,
    }
}

/// SplitMix64, a random number generator.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
