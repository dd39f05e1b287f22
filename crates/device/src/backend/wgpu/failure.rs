//! wgpu's errors as values.
//!
//! wgpu has three ways to fail. Calls report to a callback, on the thread that made them and before they return:
//! [`watch`] is told of what happens to the calls in it, at no cost where nothing does (wgpu's own error scopes
//! would take a microsecond of each submission). The loss of the device goes to another callback, at any time. A
//! [`DeviceFailure`] keeps what nobody watched for, and the loss, until somebody asks. And polling a device that is
//! being lost panics; [`catch_panic`] turns that into an error.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::*},
    },
};

use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// What has gone wrong with an open device, outside of any call that could have said so.
#[derive(Debug, Default)]
pub(super) struct DeviceFailure {
    /// Whether there is anything to look at: all that a launch pays for.
    any: AtomicBool,
    /// Set once, for good.
    lost: OnceLock<String>,
    /// The first error that no call has reported yet.
    error: Mutex<Option<wgpu::Error>>,
}

impl DeviceFailure {
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
            Error::Unsupported { device, operation, detail: inner_message(&description) }
        }
        wgpu::Error::Internal { description, .. } => {
            Error::BadResult { device, operation, detail: inner_message(&description) }
        }
    }
}

/// What wgpu says, without the frame around it.
pub(super) fn inner_message(description: &str) -> String {
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

/// Runs a call of wgpu's that panics where it should return an error, and gives the panic's message.
///
/// The process's panic hook is the host program's, and is left alone: it runs before the panic is caught here, and
/// prints a line unless the program has set one that does not. That happens at most once for a device that is lost, and for
/// a kernel that wgpu's translator cannot take. Nothing but unwinding out of wgpu is caught: no code of the user's runs in
/// here.
pub(super) fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        inner_message(text.unwrap_or("the driver's interface gave up"))
    })
}

#[cfg(test)]
mod test {
    use std::panic::{PanicHookInfo, set_hook, take_hook};

    use super::*;

    type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send>;

    #[test]
    fn a_panic_of_wgpus_is_an_error_and_the_programs_hook_stays() {
        let address = |hook: &Hook| (&raw const **hook).cast::<()>();
        let before = take_hook();
        // Something to capture, so that it has an address of its own.
        let mark = Box::new(7u8);
        let hook: Hook = Box::new(move |info| {
            let _ = &mark;
            before(info);
        });
        let programs = address(&hook);
        set_hook(hook);
        assert_eq!(catch_panic(|| 7), Ok(7));
        assert_eq!(catch_panic(|| -> () { panic!("gone {}", 1) }), Err("gone 1".into()));
        let after = take_hook();
        assert_eq!(address(&after), programs);
        set_hook(after);
    }
}
