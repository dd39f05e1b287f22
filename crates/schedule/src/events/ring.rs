//! A bounded ring of events: writers never wait, and readers that fall behind count what they lost.

use std::sync::{
    Mutex, PoisonError, TryLockError,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed},
    },
};

use super::Event;

/// The last events, each in a slot of its own.
///
/// A writer claims a number, and tries the lock of that number's slot once: if a reader happens to copy the slot in that
/// moment, the event is dropped, and readers count it as lost. So no writer ever waits, not even for a reader whose thread
/// the system has stopped. (`tokio::sync::broadcast` and the like have the same interface, and their senders wait for the
/// locks of readers.)
#[derive(Debug)]
pub(super) struct Ring {
    /// As many as a power of two.
    slots: Box<[Mutex<Slot>]>,
    /// The number of the next event.
    head: AtomicU64,
}

#[derive(Debug, Default)]
struct Slot {
    /// The number of the event, plus one; zero before the first.
    number: u64,
    event: Option<Event>,
}

/// What a reader finds at a number.
pub(super) enum Found {
    Event(Event),
    /// A later event has taken its place.
    Overwritten,
    /// Its writer has not written it yet, or has dropped it.
    Missing,
}

impl Ring {
    pub(super) fn new(capacity: usize) -> Self {
        let slots = (0..capacity.next_power_of_two()).map(|_| Mutex::default()).collect();
        Ring { slots, head: AtomicU64::new(0) }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }

    /// The number of the next event.
    pub(super) fn head(&self) -> u64 {
        self.head.load(Acquire)
    }

    fn slot(&self, number: u64) -> &Mutex<Slot> {
        &self.slots[(number & (self.capacity() - 1)) as usize]
    }

    /// Adds an event, without waiting.
    pub(super) fn push(&self, event: Event) {
        // The slot's lock orders the event itself.
        let number = self.head.fetch_add(1, Relaxed);
        let mut slot = match self.slot(number).try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(slot)) => slot.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // A writer that was stopped for a whole round leaves the later event.
        if slot.number <= number {
            *slot = Slot { number: number + 1, event: Some(event) };
        }
    }

    /// Returns a copy of the event with this number, which is less than [`head`](Self::head).
    pub(super) fn get(&self, number: u64) -> Found {
        let slot = self.slot(number).lock().unwrap_or_else(PoisonError::into_inner);
        match (slot.number, &slot.event) {
            (at, Some(event)) if at == number + 1 => Found::Event(event.clone()),
            (at, _) if at > number + 1 => Found::Overwritten,
            _ => Found::Missing,
        }
    }
}
