//! Items that encode how long they take, their tasks, and child processes.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use evener_device::{Device, DeviceKind, Kernel, Result};
use evener_schedule::{Chunk, Closure, Job, KernelParams, KernelTask, Pool, Results, Task};

use crate::common::Checked;

/// No run here takes this long unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// An item: its microseconds in the high 32 bits, and its number in the low ones.
pub(crate) fn item(cost: Duration, number: usize) -> u64 {
    (u64::try_from(cost.as_micros()).unwrap() << 32) | (number as u64 & 0xFFFF_FFFF)
}

/// Returns `count` items that take the same time each.
pub(crate) fn alike(count: usize, cost: Duration) -> Vec<u64> {
    (0..count).map(|number| item(cost, number)).collect()
}

pub(crate) fn cost(item: u64) -> Duration {
    Duration::from_micros(item >> 32)
}

pub(crate) fn total(items: &[u64]) -> Duration {
    items.iter().map(|&item| cost(item)).sum()
}

/// The result of an item: a plain function of it, so that every result can be checked.
pub(crate) fn answer(item: u64) -> u64 {
    let mixed = (item ^ (item >> 31)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ (mixed >> 29)
}

pub(crate) fn answers(items: &[u64]) -> Vec<u64> {
    items.iter().map(|&item| answer(item)).collect()
}

/// Takes this long without using a core, except for the part that is too short to sleep.
pub(crate) fn spend(time: Duration) {
    if time >= Duration::from_micros(60) {
        std::thread::sleep(time);
    } else if !time.is_zero() {
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

/// A closure that takes as long as its item says.
pub(crate) fn closure() -> impl Task<Input = u64, Output = u64> {
    Closure::new("uneven closure", |&item: &u64| {
        spend(cost(item));
        answer(item)
    })
}

/// The same as a fallible closure that never fails.
pub(crate) fn fallible() -> impl Task<Input = u64, Output = u64> {
    Closure::fallible("uneven fallible", |&item: &u64| {
        spend(cost(item));
        Ok(answer(item))
    })
}

/// Takes as long as these items together, in steps of a millisecond or an item: a process that is stopped in between
/// still has the rest to do, as code that computes would.
pub(crate) fn spend_all(items: &[u64]) {
    let mut due = Duration::ZERO;
    for &item in items {
        due += cost(item);
        if due >= ms(1) {
            spend(std::mem::take(&mut due));
        }
    }
    spend(due);
}

/// A kernel with a Rust body that takes as long as its items together. A chunk of it cannot be interrupted.
pub(crate) fn kernel() -> KernelTask<u64, u64> {
    let kernel = Kernel::new("uneven_kernel")
        .reads::<u64>()
        .writes::<u64>()
        .params::<KernelParams>()
        .workgroup(64)
        .rust(|launch| {
            let count = launch.params::<KernelParams>()?.count as usize;
            let (items, results) = (launch.read::<u64>(0)?, launch.write::<u64>(1)?);
            spend_all(&items[..count]);
            for (result, &item) in results[..count].iter_mut().zip(items) {
                *result = answer(item);
            }
            Ok(())
        });
    KernelTask::new(&kernel)
}

/// The kernel as a task that checks its results.
pub(crate) fn checked() -> Checked<u64> {
    Checked::new(kernel(), answer)
}

/// A minimal task by the documentation of [`Task`]: it cannot be interrupted.
#[derive(Clone)]
pub(crate) struct Plain {
    /// Whether it copies its items first, so that the run need not wait for it.
    pub(crate) copies: bool,
}

impl Plain {
    /// Returns results after the items' total time, less what the last chunk overslept: a sleep of a quarter of a
    /// millisecond takes a fifth longer, and would count as the scheduler's fault. Time taken by other programs is not
    /// made up for.
    fn perform(overslept: &mut Duration, items: &[u64], results: &mut Results<'_, u64>) {
        let owed = total(items);
        let due = owed.saturating_sub(*overslept);
        let start = Instant::now();
        spend(due);
        const SLACK: Duration = Duration::from_micros(100);
        *overslept = (*overslept + start.elapsed()).saturating_sub(owed).min(SLACK);
        results.extend(items.iter().map(|&item| answer(item)));
    }
}

impl Task for Plain {
    type Input = u64;
    type Output = u64;
    type State = Duration;

    fn name(&self) -> &str {
        if self.copies { "uneven copying" } else { "uneven reading" }
    }

    fn can_use(&self, device: &Device) -> bool {
        device.describe().kind == DeviceKind::Cpu
    }

    fn prepare(&self, _: &Device) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn run(
        &self,
        overslept: &mut Duration,
        chunk: &Chunk<'_, u64>,
        results: &mut Results<'_, u64>,
    ) -> Result<()> {
        if self.copies {
            let items = chunk.read(<[u64]>::to_vec)?;
            Plain::perform(overslept, &items, results);
            Ok(())
        } else {
            chunk.read(|items| Plain::perform(overslept, items, results))
        }
    }
}

/// A job on all devices of the pool, which learns from its own runs only.
pub(crate) fn job<T: Task>(pool: &Pool, task: &T) -> Job<'static, T> {
    pool.job(task).all_devices()
}

/// Tests that measure times run alone, one after another; all others run beside each other.
static TURNS: RwLock<()> = RwLock::new(());

pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    TURNS.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURNS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Asserts that something takes at most this long, in the best of six tries: other programs only ever add to it.
pub(crate) fn assert_takes_at_most(limit: Duration, name: &str, mut work: impl FnMut() -> Duration) {
    let mut tries = Vec::new();
    for _ in 0..6 {
        let took = work();
        if took <= limit {
            return;
        }
        tries.push(took);
    }
    panic!("{name}: {limit:?} at most, but took {tries:?}");
}

/// Set in a child process that runs one test.
const CHILD: &str = "EVENER_TEST_CHILD";

/// Whether this process was started by [`Process::start`].
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// A test of this file in a child process.
pub(crate) struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts a test, by its full name, once more.
    pub(crate) fn start(name: &str) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Process { child, name: name.into() }
    }

    /// Waits until the process has printed a line that ends with this.
    pub(crate) fn wait_for(&mut self, word: &str) {
        let output = self.child.stdout.as_mut().unwrap();
        let mut lines = BufReader::with_capacity(1, output).lines();
        assert!(lines.any(|line| line.unwrap().ends_with(word)), "{} never printed `{word}`", self.name);
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, signal: &str) {
        let command = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success(), "{command}");
    }

    /// Asserts that the process succeeds within this time.
    pub(crate) fn assert_ends_well_within(mut self, limit: Duration) {
        let start = Instant::now();
        let hung = loop {
            if self.child.try_wait().unwrap().is_some() {
                break false;
            }
            if start.elapsed() > limit {
                self.child.kill().unwrap();
                break true;
            }
            std::thread::sleep(ms(5));
        };
        let mut said = String::new();
        for pipe in [
            &mut self.child.stdout.take().unwrap() as &mut dyn std::io::Read,
            &mut self.child.stderr.take().unwrap(),
        ] {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            said.push_str(&String::from_utf8_lossy(&bytes));
        }
        let status = self.child.wait().unwrap();
        assert!(!hung, "{} hung for {limit:?}:\n{said}", self.name);
        assert!(status.success(), "{}: {status}\n{said}", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may be stopped, and would stay so.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
