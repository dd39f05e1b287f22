//! A task's states on the devices of a pool, which are kept for the next run.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use super::{PoolDevice, SpinBudget};
use crate::{contain::contain, sync::lock, task::Resident};

/// A task's state on one generation of a device.
#[derive(Debug)]
pub(crate) struct CachedState<S> {
    pub(crate) state: S,
    pub(crate) generation: u64,
    /// Maximum items of a chunk in this state.
    pub(crate) max_items: u64,
    /// Whether the next run may use it: the task's own code has never failed on it.
    pub(crate) is_reusable: bool,
    #[expect(dead_code, reason = "it counts until it is dropped")]
    in_use: Option<InUse>,
}

impl<S> CachedState<S> {
    /// A state that was just made.
    pub(crate) fn new(state: S, generation: u64, max_items: u64) -> Self {
        CachedState { state, generation, max_items, is_reusable: true, in_use: None }
    }
}

/// Counts a state that a worker uses, until it is dropped.
#[derive(Debug)]
struct InUse(Arc<AtomicUsize>);

impl InUse {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, SeqCst);
        InUse(count.clone())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A task's states, by device.
#[derive(Debug)]
pub(crate) struct StateCache<S> {
    by_device: Mutex<HashMap<usize, DeviceStates<S>>>,
}

/// The states of one generation of a device.
#[derive(Debug)]
struct DeviceStates<S> {
    generation: u64,
    idle: Vec<CachedState<S>>,
    /// How many states workers use, which will most likely come back.
    in_use: Arc<AtomicUsize>,
    resident: Resident,
}

impl<S> Default for StateCache<S> {
    fn default() -> Self {
        StateCache { by_device: Mutex::default() }
    }
}

impl<S> StateCache<S> {
    /// Calls `use_them` with the states of the device's present generation.
    fn with<R>(&self, device: &PoolDevice, use_them: impl FnOnce(&mut DeviceStates<S>) -> R) -> R {
        let mut by_device = lock(&self.by_device);
        let generation = device.generation();
        let new = || DeviceStates {
            generation,
            idle: Vec::new(),
            in_use: Arc::default(),
            resident: Resident::default(),
        };
        let states = by_device.entry(device.index).or_insert_with(new);
        let outdated = (states.generation != generation).then(|| std::mem::replace(states, new()));
        let used = use_them(states);
        drop(by_device);
        // Dropping states runs the task's code, which may take long or panic.
        contain(|| drop(outdated));
        used
    }

    /// Takes an idle state of a device. Spins for a moment if all are in use: after the results of a run are delivered, its
    /// worker may need a moment to return its state, and making another takes far longer.
    pub(crate) fn take(&self, device: &PoolDevice) -> Option<CachedState<S>> {
        let poll = || {
            self.with(device, |states| {
                let in_use = || Some(InUse::new(&states.in_use));
                let state = states.idle.pop().map(|state| CachedState { in_use: in_use(), ..state });
                (state.is_some() || states.in_use.load(SeqCst) == 0).then_some(state)
            })
        };
        SpinBudget::SHORT.spin_until(poll).flatten()
    }

    /// Counts a state that was just made as in use.
    pub(crate) fn track(&self, device: &PoolDevice, state: CachedState<S>) -> CachedState<S> {
        let in_use = self.with(device, |states| {
            (states.generation == state.generation).then(|| InUse::new(&states.in_use))
        });
        CachedState { in_use, ..state }
    }

    /// What the states of this generation of a device share.
    pub(crate) fn resident(&self, device: &PoolDevice, generation: u64) -> Resident {
        let current =
            self.with(device, |states| (states.generation == generation).then(|| states.resident.clone()));
        current.unwrap_or_default()
    }

    /// Whether there is an idle state, or one in use.
    pub(crate) fn has(&self, device: &PoolDevice) -> bool {
        self.with(device, |states| !states.idle.is_empty() || states.in_use.load(SeqCst) > 0)
    }

    /// Returns a state to the cache, unless its device was reopened since or the task failed on it.
    pub(crate) fn put(&self, device: &PoolDevice, state: CachedState<S>) {
        let mut state = Some(state).filter(|state| state.is_reusable);
        // The generation is compared under the lock: the device may be reopened at any time.
        self.with(device, |states| {
            let kept = state.take_if(|state| state.generation == states.generation);
            states.idle.extend(kept.map(|state| CachedState { in_use: None, ..state }));
        });
        // A state that was not kept is dropped here, without the lock.
    }
}

#[cfg(test)]
mod test {
    use evener_device::Device;

    use super::*;

    #[test]
    fn a_state_in_use_counts_until_it_is_dropped() {
        let (device, cache) = (PoolDevice::new(0, Device::cpu()), StateCache::default());
        assert!(!cache.has(&device));
        let made = cache.track(&device, CachedState::new("state", device.generation(), 1));
        assert!(cache.has(&device));
        assert!(cache.take(&device).is_none());
        cache.put(&device, made);
        let taken = cache.take(&device).unwrap();
        assert!(cache.has(&device));
        drop(taken);
        assert!(!cache.has(&device));
        assert!(cache.take(&device).is_none());
    }

    #[test]
    fn a_state_that_comes_back_at_once_is_waited_for() {
        let (device, cache) = (PoolDevice::new(0, Device::cpu()), StateCache::default());
        let made = cache.track(&device, CachedState::new("state", device.generation(), 1));
        std::thread::scope(|scope| {
            scope.spawn(|| cache.put(&device, made));
            // On a busy machine it may come back after the spin budget is spent.
            while cache.take(&device).is_none() {}
        });
    }

    #[test]
    fn a_device_that_was_reopened_has_no_states() {
        let (device, cache) = (PoolDevice::new(0, Device::cpu()), StateCache::default());
        let (old, older) = (device.generation(), device.generation());
        cache.put(&device, CachedState::new("state", old, 1));
        let in_use = cache.track(&device, CachedState::new("another", older, 1));
        assert!(device.reopen(old));
        assert!(!cache.has(&device));
        cache.put(&device, in_use);
        assert!(cache.take(&device).is_none());
    }

    #[test]
    fn a_state_that_comes_back_while_its_device_is_reopened_is_not_kept() {
        let (device, cache) = (PoolDevice::new(0, Device::cpu()), StateCache::default());
        let state = CachedState::new("state", device.generation(), 1);
        std::thread::scope(|scope| {
            let locked = lock(&cache.by_device);
            scope.spawn(|| cache.put(&device, state));
            // The other thread waits for the lock by now.
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert!(device.reopen(0));
            drop(locked);
        });
        assert!(cache.take(&device).is_none());
    }

    /// A state that reports whether its cache was unlocked when it was dropped.
    struct Probe(Arc<StateCache<Probe>>, std::sync::mpsc::Sender<bool>);

    impl Drop for Probe {
        fn drop(&mut self) {
            self.1.send(self.0.by_device.try_lock().is_ok()).unwrap();
        }
    }

    #[test]
    fn a_state_that_is_not_kept_is_dropped_without_the_lock() {
        let (device, cache) = (PoolDevice::new(0, Device::cpu()), Arc::new(StateCache::default()));
        let (sender, receiver) = std::sync::mpsc::channel();
        let state = CachedState::new(Probe(cache.clone(), sender), device.generation(), 1);
        assert!(device.reopen(0));
        cache.put(&device, state);
        assert_eq!(receiver.try_recv(), Ok(true));
    }
}
