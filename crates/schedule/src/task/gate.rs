//! A gate: threads enter it until its owner closes it and waits for them to leave.

#[cfg(loom)]
use loom::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread::{self, Thread},
};
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread::{self, Thread},
};

/// Set once the gate is closed; the other bits count the threads inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Lets threads in until the thread that made it closes it, and then waits for the threads inside to leave.
///
/// Entering adds to the count and reads the closed bit in one atomic operation, and closing sets the bit and reads the
/// count in one. The second of the two sees the first: a thread that enters after the close turns back, and the owner
/// waits for a thread that entered before it.
#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicUsize,
    owner: Thread,
}

/// A thread's stay inside a gate. Leaves when dropped.
#[derive(Debug)]
pub(crate) struct GateGuard<'a>(&'a Gate);

impl Gate {
    pub(crate) fn new() -> Self {
        Gate { state: AtomicUsize::new(0), owner: thread::current() }
    }

    /// Enters, unless the gate is closed.
    pub(crate) fn enter(&self) -> Option<GateGuard<'_>> {
        let before = self.state.fetch_add(1, SeqCst);
        let inside = GateGuard(self);
        // A thread that turns back leaves as any other does: the owner may have counted it.
        (before & CLOSED == 0).then_some(inside)
    }

    /// Whether the owner has closed the gate, even if threads are still inside.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(SeqCst) & CLOSED != 0
    }

    /// Closes the gate, and waits until no thread is inside. Only the thread that made the gate may call this.
    pub(crate) fn close(&self) {
        self.state.fetch_or(CLOSED, SeqCst);
        let mut has_parked = false;
        while self.state.load(SeqCst) != CLOSED {
            thread::park();
            has_parked = true;
        }
        if has_parked {
            // `park` may have consumed an `unpark` that was meant for the caller: an executor such as `block_on`, inside
            // which this runs, parks the same thread until its future is woken. A wake-up too many does no harm there.
            thread::current().unpark();
        }
    }
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        // Cloned before leaving: once the last thread has left, the owner may drop the gate.
        let owner = self.0.owner.clone();
        if self.0.state.fetch_sub(1, SeqCst) == CLOSED | 1 {
            owner.unpark();
        }
    }
}

#[cfg(all(test, loom))]
mod with_loom {
    use loom::sync::{Arc, atomic::AtomicBool};

    use super::*;

    /// `count` threads enter while the gate is being closed.
    fn race(count: usize) {
        // The owner is a thread that waits for nothing else: loom lets a late `unpark` end any wait of its thread.
        let owner = loom::thread::spawn(move || {
            let gate = Arc::new(Gate::new());
            let there = Arc::new(AtomicBool::new(true));
            let threads: Vec<_> = (0..count)
                .map(|_| {
                    let (gate, there) = (gate.clone(), there.clone());
                    loom::thread::spawn(move || {
                        if let Some(_inside) = gate.enter() {
                            assert!(there.load(SeqCst), "inside a closed gate");
                        }
                    })
                })
                .collect();
            gate.close();
            there.store(false, SeqCst);
            threads
        });
        owner.join().unwrap().into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn no_thread_is_inside_a_closed_gate_and_its_owner_wakes() {
        loom::model(|| race(1));
        // In every order with up to three preemptions; without a bound it takes minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| race(2));
    }
}

#[cfg(all(test, not(loom)))]
mod test {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    };

    use super::*;

    #[test]
    fn no_thread_is_inside_a_closed_gate_whatever_the_race() {
        for _ in 0..if cfg!(miri) { 3 } else { 200 } {
            let (gate, count) = (Arc::new(Gate::new()), Arc::new(AtomicU64::new(0)));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (gate, count) = (gate.clone(), count.clone());
                    thread::spawn(move || {
                        while let Some(_inside) = gate.enter() {
                            count.fetch_add(1, SeqCst);
                            std::hint::spin_loop();
                            count.fetch_sub(1, SeqCst);
                        }
                    })
                })
                .collect();
            thread::yield_now();
            gate.close();
            assert_eq!(count.load(SeqCst), 0);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }

    #[test]
    fn closing_a_gate_consumes_no_wake_up_of_its_callers() {
        let (gate, (entered, is_inside)) = (Arc::new(Gate::new()), std::sync::mpsc::channel());
        let inside = gate.clone();
        let other = thread::spawn(move || {
            let _inside = inside.enter();
            entered.send(()).unwrap();
            thread::sleep(std::time::Duration::from_millis(50));
        });
        is_inside.recv().unwrap();
        // As the waker of a surrounding `block_on` does.
        thread::current().unpark();
        gate.close();
        let start = std::time::Instant::now();
        thread::park_timeout(std::time::Duration::from_secs(10));
        assert!(start.elapsed() < std::time::Duration::from_secs(5), "the wake-up is lost");
        other.join().unwrap();
    }
}
