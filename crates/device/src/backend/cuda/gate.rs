//! The gate in front of a context: who is inside a driver call, and whether anybody may still enter.
//!
//! After a device is lost its context is destroyed, with every handle in it. No call may then be under way with
//! such a handle, and none may begin. So every call is made inside the gate; losing the device shuts it; and
//! whoever destroys the context first waits until the last caller has left. The counters are spread over
//! cache lines by thread, so that threads which launch at the same time do not slow each other.

use std::{
    cell::Cell,
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Relaxed, Release, SeqCst},
    },
    time::{Duration, Instant},
};

const SHARDS: usize = 16;

/// A counter with its cache line, and the neighbour that the processor fetches along, to itself.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicUsize);

#[derive(Debug, Default)]
pub(super) struct Gate {
    shut: AtomicBool,
    inside: [Shard; SHARDS],
}

/// Somebody inside. Leaves when dropped.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a AtomicUsize);

impl Gate {
    /// Enters, unless the gate is shut.
    #[inline]
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        let count = &self.inside[own_shard()].0;
        // Counting comes before looking, and shutting comes before counting the others, all in one order: so
        // either this caller sees the gate shut, or whoever shut it sees this caller.
        count.fetch_add(1, SeqCst);
        let inside = Inside(count);
        (!self.shut.load(SeqCst)).then_some(inside)
    }

    pub(super) fn is_shut(&self) -> bool {
        self.shut.load(SeqCst)
    }

    /// Lets nobody enter any more. Those inside stay until they leave.
    pub(super) fn shut(&self) {
        self.shut.store(true, SeqCst);
    }

    /// Waits until nobody is inside; gives up after `limit`. Says whether all have left.
    pub(super) fn drain(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.inside.iter().any(|shard| shard.0.load(SeqCst) != 0) {
            if start.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

/// The counter of the calling thread: threads take them in turn.
#[inline]
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<usize> = const { Cell::new(usize::MAX) });
    OWN.try_with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
        }
        own.get()
    })
    .unwrap_or(0)
}

#[cfg(test)]
mod test {
    use std::sync::{Arc, atomic::AtomicU64};

    use super::*;

    #[test]
    fn nobody_enters_a_shut_gate_and_those_inside_are_waited_for() {
        let gate = Gate::default();
        let inside = gate.enter().unwrap();
        let nested = gate.enter().unwrap();
        gate.shut();
        assert!(gate.enter().is_none());
        assert!(!gate.drain(Duration::from_millis(1)));
        drop((inside, nested));
        assert!(gate.drain(Duration::ZERO));
    }

    #[test]
    fn once_drained_no_thread_is_inside_however_they_raced() {
        for _ in 0..50 {
            let (gate, inside) = (Arc::new(Gate::default()), Arc::new(AtomicU64::new(0)));
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let (gate, count) = (gate.clone(), inside.clone());
                    std::thread::spawn(move || {
                        while let Some(_inside) = gate.enter() {
                            count.fetch_add(1, SeqCst);
                            std::hint::spin_loop();
                            count.fetch_sub(1, SeqCst);
                        }
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_micros(200));
            gate.shut();
            assert!(gate.drain(Duration::from_secs(10)));
            assert_eq!(inside.load(SeqCst), 0);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }
}
