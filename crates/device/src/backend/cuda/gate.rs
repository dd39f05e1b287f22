//! The gate of a context: counts the threads inside driver calls, and keeps further threads out once it is shut.
//!
//! After a device is lost its context is destroyed, with every handle in it. No call that uses such a handle may then be
//! running, and none may begin. Every call is therefore made inside the gate; losing the device shuts it; and the thread that
//! destroys the context first waits until the last caller has left. The counters are sharded by thread, each in a cache line
//! of its own, so that threads which launch at the same time do not slow each other.

use std::{
    cell::Cell,
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Relaxed, Release, SeqCst},
    },
    time::{Duration, Instant},
};

const SHARDS: usize = 16;

/// A counter alone in its cache line and in the adjacent one that the processor prefetches.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicUsize);

#[derive(Debug, Default)]
pub(super) struct CallGate {
    shut: AtomicBool,
    inside: [Shard; SHARDS],
}

/// A thread's stay inside the gate. The thread leaves when the guard is dropped.
#[derive(Debug)]
pub(super) struct DriverCallGuard<'a>(&'a AtomicUsize);

impl CallGate {
    /// Enters the gate. Returns `None` if it is shut.
    #[inline]
    pub(super) fn enter(&self) -> Option<DriverCallGuard<'_>> {
        let count = &self.inside[own_shard()].0;
        // `enter` counts, then checks `shut`; the other side sets `shut`, then reads the counts. With `SeqCst` on all four,
        // either this thread sees the gate shut, or `drain` sees this thread.
        count.fetch_add(1, SeqCst);
        let inside = DriverCallGuard(count);
        (!self.shut.load(SeqCst)).then_some(inside)
    }

    pub(super) fn is_shut(&self) -> bool {
        self.shut.load(SeqCst)
    }

    /// Refuses all later callers. Those inside stay until they leave.
    pub(super) fn shut(&self) {
        self.shut.store(true, SeqCst);
    }

    /// Waits until all callers have left, for `limit` at most. Returns whether they have.
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

impl Drop for DriverCallGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

/// The shard of the calling thread, assigned round-robin.
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
    fn a_shut_gate_refuses_callers_and_drains_those_inside() {
        let gate = CallGate::default();
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
            let (gate, inside) = (Arc::new(CallGate::default()), Arc::new(AtomicU64::new(0)));
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
