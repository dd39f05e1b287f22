//! A proof in the making that several devices work on.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use ark_bn254::Fr;

use super::super::{ProofMaker, Secrets, Witness};

/// How long the end of a proof waits for devices to zero their memory. A device that takes longer has most likely hung.
const ERASE_WAIT: Duration = Duration::from_secs(1);

/// A worker's engine, which the end of a proof uses too.
pub(super) type SharedMaker = Arc<Mutex<Box<dyn ProofMaker>>>;

/// The secrets of a proof that several devices make together.
pub struct SharedProof {
    id: u64,
    witness: Arc<Witness>,
    /// The scalars of the quotient polynomial, once one device has computed them.
    quotient: OnceLock<Arc<Secrets<Fr>>>,
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

    pub(crate) fn set_quotient(&self, quotient: Arc<Secrets<Fr>>) {
        // It is set once, between two runs.
        let _ = self.quotient.set(quotient);
    }

    /// Says that a device found that the witness does not satisfy the circuit. If that result is accepted, no more work is
    /// needed.
    pub(super) fn refuse(&self) {
        self.is_refused.store(true, SeqCst);
    }

    /// Says that the result of a device that refused the witness was not accepted.
    pub(super) fn drop_refusal(&self) {
        self.is_refused.store(false, SeqCst);
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
        let NotErased { slow, without_thread } = self.erase_all(|erase| {
            let thread = thread::Builder::new().name("evener-zk-erase".into()).spawn(erase)?;
            // It is waited for by its message, for a limited time.
            drop(thread);
            Ok(())
        });
        if slow > 0 {
            tracing::warn!("{slow} of the devices of a proof do not zero their memory: they may have hung");
        }
        for error in without_thread {
            tracing::warn!(
                "the memory of a proof on a device is not zeroed before its next proof: \
                 a thread cannot be started: {error}"
            );
        }
    }

    /// Zeroes the memory of all devices that worked on the proof. `start` runs a closure on another thread, which keeps a
    /// device that hangs from hanging the caller.
    fn erase_all(&self, start: impl Fn(Box<dyn FnOnce() + Send>) -> io::Result<()>) -> NotErased {
        self.is_over.store(true, SeqCst);
        let workers = std::mem::take(&mut *lock(&self.workers));
        let (sender, receiver) = mpsc::channel();
        let (mut waiting, mut without_thread) = (0, Vec::new());
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
            } else if let Err(error) = start(Box::new(erase)) {
                without_thread.push(error);
                continue;
            }
            waiting += 1;
        }
        let deadline = Instant::now() + ERASE_WAIT;
        while waiting > 0 {
            match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(()) => waiting -= 1,
                Err(_) => break,
            }
        }
        NotErased { slow: waiting, without_thread }
    }
}

/// The devices that have not zeroed their memory when a proof ends.
#[derive(Debug)]
struct NotErased {
    /// Number of devices that take longer than [`ERASE_WAIT`].
    slow: usize,
    /// For each device for which no thread could be started, the reason.
    without_thread: Vec<io::Error>,
}

/// Ends a proof when it is dropped.
pub(super) struct EndProofOnDrop(pub(super) Arc<SharedProof>);

impl Drop for EndProofOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod test {
    use ark_bn254::Fr;
    use evener_device::Result as DeviceResult;

    use super::{
        super::super::{Part, PartSum, Proof, ProvingKey, Squares},
        *,
    };
    use crate::error::{Error, Result};

    /// Counts how often it zeroes its memory, which takes this long.
    struct CountsErasures(Arc<AtomicU64>, Duration);

    impl ProofMaker for CountsErasures {
        fn make(&mut self, _: &ProvingKey, _: &Witness, _: &Fr, _: &Fr) -> DeviceResult<Result<Proof>> {
            Ok(Err(Error::Unprovable))
        }

        fn make_quotient(&mut self, _: &ProvingKey, _: &SharedProof) -> DeviceResult<Result<Secrets<Fr>>> {
            Ok(Err(Error::Unprovable))
        }

        fn add_up(&mut self, _: &ProvingKey, _: &SharedProof, _: &[Part]) -> DeviceResult<Vec<PartSum>> {
            Ok(Vec::new())
        }

        fn erase(&mut self) -> DeviceResult<()> {
            thread::sleep(self.1);
            self.0.fetch_add(1, SeqCst);
            Ok(())
        }
    }

    /// A device that may hang, and one that may not, have worked on a proof.
    fn proof_of_two(may_hang_takes: Duration) -> (Arc<SharedProof>, Arc<AtomicU64>) {
        let proof = SharedProof::new(Arc::new(Squares::filling(1).witness(Fr::from(3)).unwrap()));
        let erased = Arc::new(AtomicU64::new(0));
        for (may_hang, takes) in [(true, may_hang_takes), (false, Duration::ZERO)] {
            let maker: Box<dyn ProofMaker> = Box::new(CountsErasures(erased.clone(), takes));
            proof.work(&Arc::new(Mutex::new(maker)), may_hang, |_| ());
        }
        (proof, erased)
    }

    fn in_thread(erase: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        thread::spawn(erase);
        Ok(())
    }

    #[test]
    fn devices_that_have_not_zeroed_their_memory_are_reported_and_not_waited_for_long() {
        let (proof, erased) = proof_of_two(Duration::ZERO);
        let not_erased = proof.erase_all(in_thread);
        assert_eq!((not_erased.slow, not_erased.without_thread.len()), (0, 0));
        assert_eq!(erased.load(SeqCst), 2);

        let (proof, _) = proof_of_two(ERASE_WAIT * 20);
        let begin = Instant::now();
        let not_erased = proof.erase_all(in_thread);
        assert_eq!((not_erased.slow, not_erased.without_thread.len()), (1, 0));
        assert!(begin.elapsed() < ERASE_WAIT * 10, "{:?}", begin.elapsed());
    }

    #[test]
    fn a_device_without_a_thread_to_zero_its_memory_is_reported_and_the_others_are_zeroed() {
        let (proof, erased) = proof_of_two(Duration::ZERO);
        let begin = Instant::now();
        let not_erased = proof.erase_all(|_| Err(io::Error::from(io::ErrorKind::WouldBlock)));
        assert_eq!((not_erased.slow, not_erased.without_thread.len()), (0, 1));
        assert_eq!(erased.load(SeqCst), 1);
        assert!(begin.elapsed() < ERASE_WAIT, "nothing is waited for");
    }
}
