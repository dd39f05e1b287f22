//! A device's place in a pool: the device as it is now, its threads, and what was counted of it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
    time::Duration,
};

use evener_device::{Device, DeviceId, DeviceKind, ScoreTable};

use super::{Crew, Patience};
use crate::{contain::contain, sync::lock, task::Resident};

/// A device's place in a pool.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) index: usize,
    pub(crate) id: DeviceId,
    /// What the device can probably do, from its description alone.
    pub(crate) score: f64,
    device: Mutex<Device>,
    /// How often the device was opened afresh.
    generation: AtomicU64,
    pub(crate) crew: Crew,
    pub(crate) counters: Counters,
}

impl Seat {
    pub(crate) fn new(index: usize, device: Device) -> Self {
        let id = device.id().clone();
        let binding = device.clone();
        let is_core = device.describe().kind == DeviceKind::Cpu;
        let patience = if is_core { Patience::SHORT } else { Patience::LONG };
        let crew = Crew::new(id.to_string(), patience, move |number| binding.bind_thread(number));
        let score = ScoreTable::default().score(device.describe()).points;
        let (device, generation) = (Mutex::new(device), AtomicU64::new(0));
        Seat { index, id, score, device, generation, crew, counters: Counters::default() }
    }

    /// The device, and its generation.
    pub(crate) fn device(&self) -> (Device, u64) {
        let device = lock(&self.device);
        (device.clone(), self.generation())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }

    /// Opens the device afresh, unless that was done since this generation. Says whether it did.
    pub(crate) fn renew(&self, generation: u64) -> bool {
        let mut device = lock(&self.device);
        if self.generation() != generation {
            return false;
        }
        *device = device.reopened();
        self.generation.store(generation + 1, SeqCst);
        true
    }
}

/// What was counted of a device, over all runs. Any thread may ask at any time.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    active: AtomicU64,
    pub(crate) queued: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) failed: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Counters {
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

    /// What began came to nothing, and it is nobody's fault.
    pub(crate) fn drop(&self) {
        self.active.fetch_sub(1, Relaxed);
    }

    /// What is under way. A chunk that is given up on just before its hand begins it ends before it begins.
    pub(crate) fn active(&self) -> u64 {
        self.active.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// How long what was done took on average.
    pub(crate) fn mean(&self) -> Option<Duration> {
        let nanoseconds = self.nanoseconds.load(Relaxed).checked_div(self.done.load(Relaxed));
        nanoseconds.map(Duration::from_nanos)
    }
}

/// A task's state on a device, of one generation of it.
#[derive(Debug)]
pub(crate) struct Kept<S> {
    pub(crate) state: S,
    pub(crate) generation: u64,
    /// Whether the task's own code has never failed on it.
    pub(crate) sound: bool,
    #[expect(dead_code, reason = "it counts until it is dropped")]
    out: Option<Out>,
}

impl<S> Kept<S> {
    /// One that was just made.
    pub(crate) fn new(state: S, generation: u64) -> Self {
        Kept { state, generation, sound: true, out: None }
    }
}

/// Counts what is in somebody's hands.
#[derive(Debug)]
struct Out(Arc<AtomicUsize>);

impl Out {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, SeqCst);
        Out(count.clone())
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// States that wait for the next run.
#[derive(Debug)]
pub(crate) struct Shelf<S> {
    by_seat: Mutex<HashMap<usize, Place<S>>>,
}

/// The states of one generation of a device.
#[derive(Debug)]
struct Place<S> {
    generation: u64,
    kept: Vec<Kept<S>>,
    /// How many of them are in somebody's hands, and will most likely come back.
    out: Arc<AtomicUsize>,
    resident: Resident,
}

impl<S> Default for Shelf<S> {
    fn default() -> Self {
        Shelf { by_seat: Mutex::default() }
    }
}

impl<S> Shelf<S> {
    /// What is known of a device as it is now.
    fn with<R>(&self, seat: &Seat, use_it: impl FnOnce(&mut Place<S>) -> R) -> R {
        let mut by_seat = lock(&self.by_seat);
        let generation = seat.generation();
        let new =
            || Place { generation, kept: Vec::new(), out: Arc::default(), resident: Resident::default() };
        let place = by_seat.entry(seat.index).or_insert_with(new);
        let outdated = (place.generation != generation).then(|| std::mem::replace(place, new()));
        let used = use_it(place);
        drop(by_seat);
        // The task's code, which may take long, and whose panic is not the caller's.
        contain(|| drop(outdated));
        used
    }

    /// A state for a device, if one is there, or comes back at once from the run before: its hand may need a moment
    /// longer than whoever has the results.
    pub(crate) fn take(&self, seat: &Seat) -> Option<Kept<S>> {
        let look = || {
            self.with(seat, |place| {
                let kept = place.kept.pop().map(|kept| Kept { out: Some(Out::new(&place.out)), ..kept });
                (kept.is_some() || place.out.load(SeqCst) == 0).then_some(kept)
            })
        };
        // Making another one takes far longer.
        Patience::SHORT.wait(look).flatten()
    }

    /// One that was just made is in somebody's hands.
    pub(crate) fn lend(&self, seat: &Seat, kept: Kept<S>) -> Kept<S> {
        let out =
            self.with(seat, |place| (place.generation == kept.generation).then(|| Out::new(&place.out)));
        Kept { out, ..kept }
    }

    /// What the states of this generation of a device have in common.
    pub(crate) fn resident(&self, seat: &Seat, generation: u64) -> Resident {
        let of_now =
            self.with(seat, |place| (place.generation == generation).then(|| place.resident.clone()));
        of_now.unwrap_or_default()
    }

    /// Whether there is a state that can be used, or is in use.
    pub(crate) fn has(&self, seat: &Seat) -> bool {
        self.with(seat, |place| !place.kept.is_empty() || place.out.load(SeqCst) > 0)
    }

    /// Keeps a state, unless its device has been opened afresh since, or it may have been left half-way.
    pub(crate) fn put(&self, seat: &Seat, kept: Kept<S>) {
        if kept.sound && kept.generation == seat.generation() {
            self.with(seat, |place| place.kept.push(Kept { out: None, ..kept }));
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_in_somebodys_hands_is_there_until_it_is_dropped() {
        let (seat, shelf) = (Seat::new(0, Device::cpu()), Shelf::default());
        assert!(!shelf.has(&seat));
        let made = shelf.lend(&seat, Kept::new("state", seat.generation()));
        assert!(shelf.has(&seat));
        assert!(shelf.take(&seat).is_none());
        shelf.put(&seat, made);
        let taken = shelf.take(&seat).unwrap();
        assert!(shelf.has(&seat));
        drop(taken);
        assert!(!shelf.has(&seat));
        assert!(shelf.take(&seat).is_none());
    }

    #[test]
    fn what_comes_back_at_once_is_waited_for() {
        let (seat, shelf) = (Seat::new(0, Device::cpu()), Shelf::default());
        let made = shelf.lend(&seat, Kept::new("state", seat.generation()));
        std::thread::scope(|scope| {
            scope.spawn(|| shelf.put(&seat, made));
            // It may take longer than that to come back, on a machine that has much to do.
            while shelf.take(&seat).is_none() {}
        });
    }

    #[test]
    fn a_device_that_was_opened_afresh_has_nothing() {
        let (seat, shelf) = (Seat::new(0, Device::cpu()), Shelf::default());
        let (old, older) = (seat.generation(), seat.generation());
        shelf.put(&seat, Kept::new("state", old));
        let out = shelf.lend(&seat, Kept::new("another", older));
        assert!(seat.renew(old));
        assert!(!shelf.has(&seat));
        shelf.put(&seat, out);
        assert!(shelf.take(&seat).is_none());
    }
}
