//! A proof in the making that several devices work on.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use ark_bn254::Fr;
use zeroize::Zeroizing;

use super::super::{ProofMaker, Witness};

/// How long the end of a proof waits for devices to zero their memory. A device that takes longer has most likely hung.
const ERASE_WAIT: Duration = Duration::from_secs(1);

/// A worker's engine, which the end of a proof uses too.
pub(super) type SharedMaker = Arc<Mutex<Box<dyn ProofMaker>>>;

/// The secrets of a proof that several devices make together.
pub struct SharedProof {
    id: u64,
    witness: Arc<Witness>,
    /// The scalars of the quotient polynomial, once one device has computed them.
    quotient: OnceLock<Arc<Zeroizing<Vec<Fr>>>>,
    /// The workers that may have copied secrets to their devices, and whether the device may hang.
    workers: Mutex<Vec<(SharedMaker, bool)>>,
    is_over: AtomicBool,
    is_refused: AtomicBool,
}

impl SharedProof {
    #[cfg(test)]
    pub(crate) fn for_test(witness: Arc<Witness>) -> Arc<SharedProof> {
        SharedProof::new(witness)
    }

    pub(super) fn new(witness: Arc<Witness>) -> Arc<SharedProof> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(SharedProof {
            id: NEXT.fetch_add(1, SeqCst),
            witness,
            quotient: OnceLock::new(),
            workers: Mutex::default(),
            is_over: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
        })
    }

    /// A number that no other proof has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The witness.
    pub fn witness(&self) -> &Witness {
        &self.witness
    }

    pub(super) fn witness_handle(&self) -> Arc<Witness> {
        self.witness.clone()
    }

    /// The scalars of the quotient polynomial, in the order of [`Engine::quotient`](super::super::Engine::quotient); empty
    /// until they are computed, which is before any part of [`Sum::H`](super::Sum::H) is.
    pub fn quotient(&self) -> &[Fr] {
        self.quotient.get().map_or(&[], |quotient| quotient)
    }

    pub(crate) fn set_quotient(&self, quotient: Arc<Zeroizing<Vec<Fr>>>) {
        // It is set once, between two runs.
        let _ = self.quotient.set(quotient);
    }

    /// Says that the witness does not satisfy the circuit: no more work is needed.
    pub(super) fn refuse(&self) {
        self.is_refused.store(true, SeqCst);
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(SeqCst)
    }

    /// Lets a worker use its engine for this proof. If the proof has ended, the worker zeroes what it copied.
    pub(super) fn work<R>(
        &self,
        maker: &SharedMaker,
        may_hang: bool,
        work: impl FnOnce(&mut dyn ProofMaker) -> R,
    ) -> R {
        {
            let mut workers = lock(&self.workers);
            if !workers.iter().any(|(known, _)| Arc::ptr_eq(known, maker)) {
                workers.push((maker.clone(), may_hang));
            }
        }
        let result = work(&mut **lock(maker));
        // `end` does not wait for an engine in use. The engine is free again, so either `end` finds it free, or this
        // worker finds that the proof is over.
        if self.is_over.load(SeqCst) {
            let _ = lock(maker).erase();
        }
        result
    }

    /// Ends the proof: zeroes the memory of all devices that worked on it. Workers that are still computing do so when they
    /// have finished.
    fn end(&self) {
        self.is_over.store(true, SeqCst);
        let workers = std::mem::take(&mut *lock(&self.workers));
        let (sender, receiver) = mpsc::channel();
        let mut waiting = 0;
        for (maker, may_hang) in workers {
            let done = sender.clone();
            let erase = move || {
                match maker.try_lock() {
                    // After an error, the device's worker meets it too.
                    Ok(mut maker) => drop(maker.erase()),
                    Err(TryLockError::Poisoned(poisoned)) => drop(poisoned.into_inner().erase()),
                    Err(TryLockError::WouldBlock) => {}
                }
                let _ = done.send(());
            };
            if !may_hang {
                erase();
            } else if let Ok(thread) = thread::Builder::new().name("evener-zk-erase".into()).spawn(erase) {
                // It is waited for by its message, for a limited time.
                drop(thread);
            }
            waiting += 1;
        }
        drop(sender);
        let deadline = Instant::now() + ERASE_WAIT;
        for _ in 0..waiting {
            match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    tracing::warn!("a device does not zero the memory of a proof: it may have hung");
                    return;
                }
                // A thread could not be started.
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// Ends a proof when it is dropped.
pub(super) struct EndOnDrop(pub(super) Arc<SharedProof>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
