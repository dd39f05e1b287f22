//! wgpu's errors as values.
//!
//! wgpu has three ways to fail. Calls report to a callback, on the thread that made them and before they return:
//! [`watch`] is told of what happens to the calls in it, at no cost where nothing does (wgpu's own error scopes
//! would take a microsecond of each submission). The loss of the device goes to another callback, at any time. A
//! [`Failure`] keeps what nobody watched for, and the loss, until somebody asks. And polling a device that is
//! being lost panics; [`quietly`] catches that.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, Once, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::*},
    },
};

use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// What has gone wrong with an open device, outside of any call that could have said so.
#[derive(Debug, Default)]
pub(super) struct Failure {
    /// Whether there is anything to look at: all that a launch pays for.
    any: AtomicBool,
    /// Set once, for good.
    lost: OnceLock<String>,
    /// The first error that no call has reported yet.
    error: Mutex<Option<wgpu::Error>>,
}

impl Failure {
    /// Notes that the device is lost. The first reason is the one that counts.
    pub(super) fn lose(&self, reason: &str) {
        let reason = reason.trim();
        self.lost.get_or_init(|| if reason.is_empty() { "no reason given" } else { reason }.into());
        self.any.store(true, SeqCst);
    }

    /// Takes an error from wgpu: for whoever watches this thread, or else for whoever asks next.
    pub(super) fn take(&self, error: wgpu::Error) {
        let unwatched = WATCHED.with_borrow_mut(|watched| match watched {
            Some(first) => {
                first.get_or_insert(error);
                None
            }
            None => Some(error),
        });
        let Some(error) = unwatched else { return };
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.any.store(true, SeqCst);
    }

    /// Forgets an error that nobody asked for. The loss of the device cannot be forgotten.
    pub(super) fn forget(&self) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Fails with `Lost` once the device is lost, and with any other error once.
    pub(super) fn check(&self, device: &DeviceId, operation: &str) -> Result<()> {
        if self.any.load(Acquire) { self.report(device, operation) } else { Ok(()) }
    }

    #[cold]
    fn report(&self, device: &DeviceId, operation: &str) -> Result<()> {
        // Cleared before it is looked at, so that what is noted meanwhile sets it again.
        self.any.store(false, SeqCst);
        if let Some(reason) = self.lost.get() {
            self.any.store(true, SeqCst);
            return Err(Error::lost(device, operation, reason));
        }
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map_or(Ok(()), |error| Err(translate(error, device, operation, 0)))
    }
}

/// One of wgpu's errors as one of ours.
pub(super) fn translate(error: wgpu::Error, device: &DeviceId, operation: &str, requested: u64) -> Error {
    let (device, operation) = (device.clone(), operation.to_owned());
    match error {
        wgpu::Error::OutOfMemory { source } => {
            Error::OutOfMemory { device, operation, requested, available: None, detail: source.to_string() }
        }
        wgpu::Error::Validation { description, .. } => {
            Error::Unsupported { device, operation, detail: words(&description) }
        }
        wgpu::Error::Internal { description, .. } => {
            Error::BadResult { device, operation, detail: words(&description) }
        }
    }
}

/// What wgpu says, without the frame around it.
pub(super) fn words(description: &str) -> String {
    let inner = description.split_once("Caused by:").map_or(description, |(_, inner)| inner);
    inner.trim().to_owned()
}

thread_local! {
    /// Whether calls are watched on this thread, and the first error that they have reported.
    static WATCHED: RefCell<Option<Option<wgpu::Error>>> = const { RefCell::new(None) };
}

/// Makes calls to wgpu and returns the first error that they reported.
pub(super) fn watch<T>(calls: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
    /// Ends the watch, also where the calls unwind.
    struct Outer(Option<Option<wgpu::Error>>);
    impl Drop for Outer {
        fn drop(&mut self) {
            WATCHED.set(self.0.take());
        }
    }
    let outer = Outer(WATCHED.replace(Some(None)));
    let made = calls();
    let error = WATCHED.take().flatten();
    drop(outer);
    (made, error)
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call of wgpu's that panics where it should return an error, and gives the panic's message.
///
/// A panic prints through the process's hook before it can be caught, so a hook is put before it that keeps
/// still for panics in here, and passes on all others. Nothing but unwinding out of wgpu is caught: no code
/// of the user's runs in here.
pub(super) fn quietly<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // Changing the hook while panicking is not allowed.
        if !std::thread::panicking() {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                if !QUIET.get() {
                    before(panic);
                }
            }));
        }
    });
    let before = QUIET.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    QUIET.set(before);
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        words(text.unwrap_or("the driver's interface gave up"))
    })
}
