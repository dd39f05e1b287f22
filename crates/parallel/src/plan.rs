//! Decides how a loop is run.

use std::{
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use evener_device::Device;
use evener_schedule::Pool;

use crate::{
    choice::{Choice, Way},
    devices::{Devices, Tasks},
    scope::{self, LoopReport},
    threads::Threads,
};

/// A lock whose data is always whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One loop of a `#[parallel]` function: what is known of it from earlier runs.
#[derive(Debug)]
pub struct Loop {
    pub(crate) name: &'static str,
    min: Option<usize>,
    devices: Option<&'static str>,
    has_kernel: bool,
    note: &'static str,
    pub(crate) choice: Mutex<Choice>,
    pub(crate) tasks: Tasks,
    /// Whether devices other than the processor are no use to this loop.
    has_no_devices: AtomicBool,
    own_pool: OnceLock<Option<Pool>>,
}

/// How a loop is run this time.
#[derive(Debug)]
pub enum Plan {
    /// On the calling thread.
    Plain(Timer),
    /// On the processor's cores.
    Threads(Threads),
    /// On devices.
    Devices(Devices),
}

/// Measures a plain loop.
#[derive(Debug)]
pub struct Timer {
    of: &'static Loop,
    count: usize,
    start: Option<Instant>,
    note: Option<String>,
}

impl Timer {
    /// Ends the loop.
    pub fn finish(self) {
        let Timer { of, count, start, note } = self;
        let Some(start) = start else { return };
        let took = start.elapsed();
        lock(&of.choice).learn(Way::Plain, count, took);
        let place = "calling thread";
        scope::record(|| LoopReport { name: of.name, place, iterations: count, took, note, report: None });
    }
}

/// Whether `EVENER_PARALLEL` turns all of this off.
fn is_off() -> bool {
    static OFF: OnceLock<bool> = OnceLock::new();
    *OFF.get_or_init(|| {
        std::env::var("EVENER_PARALLEL").is_ok_and(|value| matches!(value.as_str(), "off" | "0" | "no"))
    })
}

/// The pool of this machine's processor.
fn processor() -> Option<&'static Pool> {
    static POOL: OnceLock<Option<Pool>> = OnceLock::new();
    POOL.get_or_init(|| Pool::new([Device::cpu()]).ok()).as_ref()
}

/// The pool of all devices.
fn all() -> Option<&'static Pool> {
    static POOL: OnceLock<Option<Pool>> = OnceLock::new();
    POOL.get_or_init(|| Pool::all().ok()).as_ref()
}

fn has_processor(pool: &Pool) -> bool {
    pool.devices().iter().any(|device| device.describe().is_local_processor())
}

fn has_others(pool: &Pool) -> bool {
    pool.devices().iter().any(|device| !device.describe().is_local_processor())
}

impl Loop {
    /// A loop that has not run yet.
    pub const fn new(
        name: &'static str,
        min: Option<usize>,
        devices: Option<&'static str>,
        has_kernel: bool,
        note: &'static str,
    ) -> Self {
        Loop {
            name,
            min,
            devices,
            has_kernel,
            note,
            choice: Mutex::new(Choice::new()),
            tasks: Mutex::new(Vec::new()),
            has_no_devices: AtomicBool::new(false),
            own_pool: OnceLock::new(),
        }
    }

    pub(crate) fn note(&self) -> Option<String> {
        (!self.note.is_empty()).then(|| format!("it runs on the processor only: {}", self.note))
    }

    pub(crate) fn refuse_devices(&self) {
        self.has_no_devices.store(true, Relaxed);
    }

    fn plain(&'static self, count: usize, is_timed: bool, note: Option<String>) -> Plan {
        Plan::Plain(Timer { of: self, count, start: is_timed.then(Instant::now), note })
    }

    /// Decides how this many iterations are run.
    pub fn plan(&'static self, count: usize) -> Plan {
        if is_off() || count == 0 {
            return self.plain(count, false, None);
        }
        if let Some(pool) = scope::pool() {
            return self.plan_on(pool, count);
        }
        let own = self.devices.and_then(|names| {
            let pool = self.own_pool.get_or_init(|| {
                let devices = evener_device::Inventory::discover().select(names).ok()?;
                Pool::new(devices).ok()
            });
            pool.clone()
        });
        if self.min.is_some_and(|min| count < min) {
            return self.plain(count, false, None);
        }
        if let Some(pool) = own {
            return self.plan_on(pool, count);
        }
        // A minimum says that more iterations are worth it.
        let allowed: &[Way] =
            match (self.min.is_some(), self.has_kernel && !self.has_no_devices.load(Relaxed)) {
                (false, true) => &[Way::Plain, Way::Threads, Way::Devices],
                (false, false) => &[Way::Plain, Way::Threads],
                (true, true) => &[Way::Threads, Way::Devices],
                (true, false) => &[Way::Threads],
            };
        let way = lock(&self.choice).choose(count, allowed);
        match way {
            Way::Plain => self.plain(count, true, None),
            Way::Devices => match all().filter(|pool| has_others(pool)) {
                Some(pool) => Plan::Devices(Devices { of: self, pool: pool.clone(), count }),
                None => {
                    self.refuse_devices();
                    self.on_processor(count)
                }
            },
            Way::Threads => self.on_processor(count),
        }
    }

    fn on_processor(&'static self, count: usize) -> Plan {
        match processor() {
            Some(pool) => Plan::Threads(Threads { of: self, pool: pool.clone(), count }),
            None => self.plain(count, true, None),
        }
    }

    /// A pool that the caller names is used.
    fn plan_on(&'static self, pool: Pool, count: usize) -> Plan {
        if self.has_kernel && has_others(&pool) {
            return Plan::Devices(Devices { of: self, pool, count });
        }
        if has_processor(&pool) {
            return Plan::Threads(Threads { of: self, pool, count });
        }
        let reason = if self.note.is_empty() { "it is marked `cpu`" } else { self.note };
        self.plain(count, true, Some(format!("no device of the pool can run it: {reason}")))
    }
}
