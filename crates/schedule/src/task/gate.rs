//! A gate: who is inside, and whether anybody may still enter.

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

/// Set once the gate is shut; the rest counts those inside.
const SHUT: usize = 1 << (usize::BITS - 1);

/// Lets threads in until it is shut by the thread that made it, which then waits for those inside to leave.
///
/// Entering counts first and looks then, in one operation; so does shutting. Whichever of the two comes second sees
/// the other: a thread that enters after the shutting turns back, and one that entered before is waited for.
#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicUsize,
    keeper: Thread,
}

/// Somebody inside. Leaves when dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    pub(crate) fn new() -> Self {
        Gate { state: AtomicUsize::new(0), keeper: thread::current() }
    }

    /// Enters, unless the gate is shut.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let before = self.state.fetch_add(1, SeqCst);
        let inside = Inside(self);
        // One who turns back leaves as everybody does: the keeper may have seen it.
        (before & SHUT == 0).then_some(inside)
    }

    /// Whether it is shut, or about to be once those inside have left.
    pub(crate) fn is_shut(&self) -> bool {
        self.state.load(SeqCst) & SHUT != 0
    }

    /// Lets nobody in any more, and waits until nobody is inside. To be called by the thread that made the gate.
    pub(crate) fn shut(&self) {
        self.state.fetch_or(SHUT, SeqCst);
        while self.state.load(SeqCst) != SHUT {
            thread::park();
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // Cloned before leaving: once the last one has left, the keeper may drop the gate.
        let keeper = self.0.keeper.clone();
        if self.0.state.fetch_sub(1, SeqCst) == SHUT | 1 {
            keeper.unpark();
        }
    }
}

#[cfg(all(test, loom))]
mod with_loom {
    use loom::sync::{Arc, atomic::AtomicBool};

    use super::*;

    /// So many threads enter while the gate is shut.
    fn race(count: usize) {
        // The keeper is a thread of its own that waits for nothing else: loom takes a late `unpark` for the end of
        // whatever its thread waits for.
        let keeper = loom::thread::spawn(move || {
            let gate = Arc::new(Gate::new());
            let there = Arc::new(AtomicBool::new(true));
            let threads: Vec<_> = (0..count)
                .map(|_| {
                    let (gate, there) = (gate.clone(), there.clone());
                    loom::thread::spawn(move || {
                        if let Some(_inside) = gate.enter() {
                            assert!(there.load(SeqCst), "inside although it was shut");
                        }
                    })
                })
                .collect();
            gate.shut();
            there.store(false, SeqCst);
            threads
        });
        keeper.join().unwrap().into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn once_shut_nobody_is_inside_and_the_keeper_wakes() {
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
    fn once_shut_nobody_is_inside_however_they_raced() {
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
            gate.shut();
            assert_eq!(count.load(SeqCst), 0);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }
}
