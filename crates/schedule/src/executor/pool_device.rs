//! A device of a pool: its present opening, its threads, and its counters.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use evener_device::{Device, DeviceId, ScoreTable};

use super::{SpinBudget, ThreadCache};
use crate::sync::lock;

/// A device of a pool.
#[derive(Debug)]
pub(crate) struct PoolDevice {
    pub(crate) index: usize,
    pub(crate) id: DeviceId,
    /// Its static score, from its description alone.
    pub(crate) score: f64,
    /// Whether it is on another machine, so that it may be still to come, or be taken away.
    is_remote: bool,
    device: Mutex<Device>,
    /// How often the device was reopened.
    generation: AtomicU64,
    pub(crate) threads: ThreadCache,
    pub(crate) counters: DeviceCounters,
}

impl PoolDevice {
    pub(crate) fn new(index: usize, device: Device) -> Self {
        let id = device.id().clone();
        let binding = device.clone();
        let is_core = device.describe().is_local_processor();
        let spin_budget = if is_core { SpinBudget::SHORT } else { SpinBudget::LONG };
        // Only the threads of a partition of a processor are bound.
        let is_partition = is_core && device.describe().part_of.is_some();
        let cores = device.describe().compute_units.filter(|_| is_partition).unwrap_or(1).max(1) as usize;
        let bind = move |core| binding.bind_thread(core);
        let threads = ThreadCache::new(id.to_string(), spin_budget, cores, bind);
        let score = ScoreTable::default().score(device.describe()).points;
        let is_remote = device.describe().host.is_some();
        let (device, generation) = (Mutex::new(device), AtomicU64::new(0));
        let counters = DeviceCounters::default();
        PoolDevice { index, id, score, is_remote, device, generation, threads, counters }
    }

    /// Whether the device is there, so that preparing it is worth a try.
    pub(crate) fn is_there(&self) -> bool {
        !self.is_remote || self.device().0.is_there()
    }

    /// When the device will be taken away, if it can be. The outer `None` if it cannot.
    pub(crate) fn available_until(&self) -> Option<Option<Instant>> {
        self.is_remote.then(|| self.device().0.available_until())
    }

    /// The device, and its generation.
    pub(crate) fn device(&self) -> (Device, u64) {
        let device = lock(&self.device);
        (device.clone(), self.generation())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }

    /// Reopens the device, unless it was reopened since this generation. Returns whether it did.
    pub(crate) fn reopen(&self, generation: u64) -> bool {
        let mut device = lock(&self.device);
        if self.generation() != generation {
            return false;
        }
        *device = device.reopened();
        self.generation.store(generation + 1, SeqCst);
        true
    }
}

/// Counters of a device over all runs. Any thread may read them at any time.
#[derive(Debug, Default)]
pub(crate) struct DeviceCounters {
    active: AtomicU64,
    pub(crate) queued: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) failed: AtomicU64,
    nanoseconds: AtomicU64,
}

impl DeviceCounters {
    pub(crate) fn begin(&self) {
        self.active.fetch_add(1, Relaxed);
    }

    pub(crate) fn end(&self, took: Duration) {
        self.active.fetch_sub(1, Relaxed);
        self.done.fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn fail(&self) {
        self.active.fetch_sub(1, Relaxed);
        self.failed.fetch_add(1, Relaxed);
    }

    /// A chunk ended without results, and without a failure of the device.
    pub(crate) fn drop(&self) {
        self.active.fetch_sub(1, Relaxed);
    }

    /// Chunks in flight. A chunk that is given up on just before its worker begins it is subtracted before it is added.
    pub(crate) fn active(&self) -> u64 {
        self.active.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// The mean time of the chunks that are done.
    pub(crate) fn mean(&self) -> Option<Duration> {
        let nanoseconds = self.nanoseconds.load(Relaxed).checked_div(self.done.load(Relaxed));
        nanoseconds.map(Duration::from_nanos)
    }
}
