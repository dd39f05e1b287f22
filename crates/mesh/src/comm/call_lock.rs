//! The lock that a rank's calls hold, and the leave notice of a group that becomes unusable meanwhile.
//!
//! # The protocol
//! A group becomes unusable at any time, by any thread: it fails, or its generation ends. This rank must then send the
//! other ranks a leave notice, because they may be waiting for it; but not while a call of this rank is in flight,
//! because that call must succeed on all ranks or fail on all. So a notice is sent under the lock.
//!
//! A thread that makes the group unusable and finds the lock held leaves the notice to the holder. **Every thread that
//! has held the lock checks the group once more after releasing it**: a holder that checked the group before it became
//! unusable would otherwise lose the notice. The two fences order the check after the release, and the attempt to lock
//! after the change: either the holder sees that the group is unusable, or the other thread finds the lock free.
//!
//! `tests/loom` checks the protocol with loom.

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{Ordering::SeqCst, fence},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{Ordering::SeqCst, fence},
};
use std::sync::{PoisonError, TryLockError};

/// The lock of a rank's endpoint. A call holds it.
#[derive(Debug)]
pub(crate) struct CallLock<E>(Mutex<E>);

impl<E> CallLock<E> {
    pub(crate) fn new(endpoint: E) -> Self {
        CallLock(Mutex::new(endpoint))
    }

    /// Locks the endpoint. The caller must check the group before it makes a call, and must call
    /// [`release`](Self::release) afterwards.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, E> {
        // Ignores poisoning: no panic leaves an endpoint inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks the endpoint, and sends a notice that another thread has left to this one.
    #[inline]
    pub(crate) fn release(
        &self,
        guard: MutexGuard<'_, E>,
        is_usable: impl Fn() -> bool,
        notify: impl FnOnce(),
    ) {
        drop(guard);
        fence(SeqCst);
        if !is_usable() {
            self.notify_if_unusable(is_usable, notify);
        }
    }

    /// Calls `notify` if the group is unusable and no thread holds the lock. Otherwise the thread that holds it calls
    /// `notify`.
    #[cold]
    pub(crate) fn notify_if_unusable(&self, is_usable: impl Fn() -> bool, notify: impl FnOnce()) {
        loop {
            fence(SeqCst);
            let guard = match self.0.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            if !is_usable() {
                // Under the lock: no call is in flight.
                return notify();
            }
            drop(guard);
            // If the group has become unusable since the check, another thread may have found the lock held.
            fence(SeqCst);
            if is_usable() {
                return;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod test {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_notice_is_sent_for_a_group_that_becomes_unusable_while_a_thread_only_checks_it() {
        let lock = CallLock::new(());
        let (usable, notified) = (Cell::new(true), Cell::new(0));
        let notify = || notified.set(notified.get() + 1);
        let is_usable = || {
            let found = usable.replace(false);
            if found {
                // Another thread makes the group unusable just after this one has checked it, and finds the lock held.
                lock.notify_if_unusable(|| false, || panic!("a notice during a call"));
            }
            found
        };
        lock.notify_if_unusable(is_usable, notify);
        assert_eq!(notified.get(), 1);
    }

    #[test]
    fn the_thread_that_makes_a_call_sends_the_notice_that_another_has_left_to_it() {
        let lock = CallLock::new(());
        let notified = Cell::new(0);
        let guard = lock.lock();
        lock.notify_if_unusable(|| false, || panic!("a notice during a call"));
        lock.release(guard, || false, || notified.set(notified.get() + 1));
        assert_eq!(notified.get(), 1);
        lock.release(lock.lock(), || true, || panic!("the group is usable"));
    }
}

#[cfg(all(test, loom))]
mod with_loom {
    use loom::{
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize},
        },
        thread,
    };

    use super::*;

    struct Group {
        lock: CallLock<()>,
        usable: AtomicBool,
        in_call: AtomicBool,
        notices: AtomicUsize,
    }

    impl Group {
        fn new() -> Arc<Self> {
            Arc::new(Group {
                lock: CallLock::new(()),
                usable: AtomicBool::new(true),
                in_call: AtomicBool::new(false),
                notices: AtomicUsize::new(0),
            })
        }

        fn is_usable(&self) -> bool {
            self.usable.load(SeqCst)
        }

        fn notify(&self) {
            assert!(!self.in_call.load(SeqCst), "a notice during a call");
            self.notices.fetch_add(1, SeqCst);
        }

        /// Checks the group, as a thread does that has just joined it.
        fn check(&self) {
            self.lock.notify_if_unusable(|| self.is_usable(), || self.notify());
        }

        fn call(&self) {
            let guard = self.lock.lock();
            if self.is_usable() {
                self.in_call.store(true, SeqCst);
                thread::yield_now();
                self.in_call.store(false, SeqCst);
            }
            self.lock.release(guard, || self.is_usable(), || self.notify());
        }

        fn end(&self) {
            self.usable.store(false, SeqCst);
            self.check();
        }
    }

    /// Ends the group while other threads run these functions. A notice is sent, and never during a call.
    fn end_during(others: &'static [fn(&Group)]) {
        let mut model = loom::model::Builder::new();
        // With more it takes minutes.
        model.preemption_bound = Some(3);
        model.check(move || {
            let group = Group::new();
            let threads: Vec<_> = others
                .iter()
                .map(|function| {
                    let group = group.clone();
                    thread::spawn(move || function(&group))
                })
                .collect();
            group.end();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(group.notices.load(SeqCst) > 0, "the notice is lost");
        });
    }

    #[test]
    fn a_group_that_ends_while_a_thread_joins_it_is_left() {
        end_during(&[Group::check]);
    }

    #[test]
    fn a_group_that_ends_during_calls_is_left_after_them() {
        end_during(&[Group::call]);
        end_during(&[Group::call, Group::call]);
        end_during(&[Group::call, Group::check]);
    }
}
