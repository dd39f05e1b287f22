//! Devices with injected faults, for tests of error handling.
//!
//! [`Faults::wrap`] wraps any device of any back end. The wrapped device works like the original one until an operation
//! for which a fault is planned: then it fails with a given error, hangs, or returns a wrong result. Operations are
//! counted from 1, in the order in which they reach the back end. [`Faults::operations`] returns their number, so a test
//! can fail each of them in turn.
//!
//! ```
//! use evener_device::{Device, Error, testing::{Fault, Faults, InjectedError}};
//!
//! let (device, faults) = Faults::wrap(&Device::cpu());
//! device.buffer_from(&[1u8, 2, 3])?;
//! let operations = faults.operations();
//!
//! for n in 1..=operations {
//!     let (device, faults) = Faults::wrap(&Device::cpu());
//!     faults.at(n, Fault::Fail(InjectedError::Lost));
//!     assert!(matches!(device.buffer_from(&[1u8, 2, 3]), Err(Error::Lost { .. })));
//!     device.reopened().buffer_from(&[1u8, 2, 3])?; // the same hardware, opened again
//! }
//! # Ok::<(), Error>(())
//! ```

mod wrap;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::{
    describe::DeviceId,
    device::Device,
    error::{Error, Result},
};

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The operation returns an error. After `Lost`, all operations on this opening of the device fail.
    Fail(InjectedError),
    /// The operation, and every wait after it, does not end: a wait with a timeout returns `TimedOut`, one without waits
    /// until [`Faults::release`].
    Hang,
    /// The next download after this operation has one bit flipped.
    Corrupt,
}

/// The error that a fault injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InjectedError {
    /// `Error::Lost`.
    Lost,
    /// `Error::OutOfMemory`.
    OutOfMemory,
    /// `Error::TimedOut`, at once.
    TimedOut,
    /// `Error::WillNotCompile`.
    WillNotCompile,
    /// `Error::BadResult`.
    BadResult,
    /// `Error::Task`.
    Task,
    /// `Error::Unsupported`.
    Unsupported,
}

impl InjectedError {
    /// All errors.
    pub const ALL: [InjectedError; 7] = [
        InjectedError::Lost,
        InjectedError::OutOfMemory,
        InjectedError::TimedOut,
        InjectedError::WillNotCompile,
        InjectedError::BadResult,
        InjectedError::Task,
        InjectedError::Unsupported,
    ];

    fn error(self, device: &DeviceId, operation: &str) -> Error {
        let (device, operation, detail) = (device.clone(), operation.to_owned(), "injected fault".to_owned());
        match self {
            InjectedError::Lost => Error::Lost { device, operation, detail },
            InjectedError::OutOfMemory => {
                Error::OutOfMemory { device, operation, requested: 0, available: None, detail }
            }
            InjectedError::TimedOut => Error::TimedOut { device, operation, after: Duration::ZERO },
            InjectedError::WillNotCompile => {
                Error::WillNotCompile { device, kernel: operation, body: "any".into(), log: detail }
            }
            InjectedError::BadResult => Error::BadResult { device, operation, detail },
            InjectedError::Task => {
                Error::Task { device, operation, item: None, message: detail, source: None }
            }
            InjectedError::Unsupported => Error::Unsupported { device, operation, detail },
        }
    }
}

/// The planned faults of a wrapped device. They may be changed from any thread while the device works.
#[derive(Debug, Clone)]
pub struct Faults {
    injector: Arc<FaultInjector>,
}

/// Makes the operations of a wrapped device fail as planned.
#[derive(Debug)]
struct FaultInjector {
    device: DeviceId,
    plan: Mutex<BTreeMap<u64, Fault>>,
    operations: AtomicU64,
    openings: AtomicU64,
    /// The last lost opening, or `u64::MAX` once the device was destroyed.
    lost_opening: AtomicU64,
    corrupt_next: AtomicBool,
    /// The slowdown factor, as the bits of an `f64`.
    slowness: AtomicU64,
    hung: Mutex<bool>,
    released: Condvar,
}

impl Faults {
    /// Wraps a device. The wrapped device has the same id, and works as before until a fault is injected.
    ///
    /// Opening the device, allocations, copies, compilations, launches and waits are operations. Plain Rust code on the
    /// processor needs none, so that no fault reaches it: closures of tasks, and the proofs, multi-scalar multiplications and
    /// transforms of `evener-zk` there.
    pub fn wrap(device: &Device) -> (Device, Faults) {
        let injector = Arc::new(FaultInjector {
            device: device.id().clone(),
            plan: Mutex::default(),
            operations: AtomicU64::new(0),
            openings: AtomicU64::new(0),
            lost_opening: AtomicU64::new(0),
            corrupt_next: AtomicBool::new(false),
            slowness: AtomicU64::new(1f64.to_bits()),
            hung: Mutex::new(false),
            released: Condvar::new(),
        });
        (wrap::device(device, injector.clone()), Faults { injector })
    }

    /// Plans a fault for the operation of this number, counted from 1 since the wrapping.
    pub fn at(&self, operation: u64, fault: Fault) {
        lock(&self.injector.plan).insert(operation, fault);
    }

    /// Injects a fault into the next operation.
    pub fn at_next(&self, fault: Fault) {
        // Operations are counted under the same lock, so none can come in between.
        let mut plan = lock(&self.injector.plan);
        plan.insert(self.operations() + 1, fault);
    }

    /// Loses the device now: all operations fail until it is opened again. Does nothing if the device is not open yet, and
    /// the first operation opens it: to fail that one, plan a fault with [`at`](Faults::at).
    pub fn kill(&self) {
        self.injector.lose();
        self.release();
    }

    /// Loses the device now and permanently: every opening of it fails.
    pub fn destroy(&self) {
        self.injector.lost_opening.store(u64::MAX, SeqCst);
        self.release();
    }

    /// Makes everything take `factor` times as long from now on; 1 is the device's own speed.
    pub fn slow_down(&self, factor: f64) {
        self.injector.slowness.store(factor.max(1.0).to_bits(), SeqCst);
    }

    /// Ends a hang: waiting threads go on.
    pub fn release(&self) {
        *lock(&self.injector.hung) = false;
        self.injector.released.notify_all();
    }

    /// The number of operations that have reached the back end.
    pub fn operations(&self) -> u64 {
        self.injector.operations.load(SeqCst)
    }
}

impl FaultInjector {
    fn slowness(&self) -> f64 {
        f64::from_bits(self.slowness.load(SeqCst))
    }

    fn lose(&self) {
        self.lost_opening.fetch_max(self.openings.load(SeqCst), SeqCst);
    }

    /// Counts an operation, and applies the fault that is planned for it.
    fn operation(&self, opening: u64, name: &str) -> Result<()> {
        let fault = {
            let mut plan = lock(&self.plan);
            let number = self.operations.fetch_add(1, SeqCst) + 1;
            plan.remove(&number)
        };
        self.check_lost(opening, name)?;
        match fault {
            None => Ok(()),
            Some(Fault::Fail(failure)) => {
                if failure == InjectedError::Lost {
                    self.lose();
                }
                Err(failure.error(&self.device, name))
            }
            Some(Fault::Hang) => {
                *lock(&self.hung) = true;
                Ok(())
            }
            Some(Fault::Corrupt) => {
                self.corrupt_next.store(true, SeqCst);
                Ok(())
            }
        }
    }

    fn check_lost(&self, opening: u64, name: &str) -> Result<()> {
        if opening <= self.lost_opening.load(SeqCst) {
            return Err(InjectedError::Lost.error(&self.device, name));
        }
        Ok(())
    }

    fn is_hung(&self) -> bool {
        *lock(&self.hung)
    }

    /// Waits while the device hangs.
    fn wait_while_hung(&self, name: &str, timeout: Option<Duration>) -> Result<()> {
        let hung = lock(&self.hung);
        match timeout {
            None => drop(self.released.wait_while(hung, |hung| *hung)),
            Some(timeout) => {
                let waited = self.released.wait_timeout_while(hung, timeout, |hung| *hung);
                let elapsed = waited.unwrap_or_else(PoisonError::into_inner).1;
                if elapsed.timed_out() {
                    let (device, operation) = (self.device.clone(), name.to_owned());
                    return Err(Error::TimedOut { device, operation, after: timeout });
                }
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod test;
