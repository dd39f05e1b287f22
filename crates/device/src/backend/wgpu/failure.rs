//! wgpu's errors as values.
//!
//! wgpu fails in three ways. Calls report errors to a callback, on the calling thread and before they return: [`watch`]
//! collects those, at no cost without an error (wgpu's error scopes take a microsecond per submission). The loss of the
//! device goes to another callback, at any time. [`DeviceFailure`] stores the loss, and errors that no `watch` collected,
//! until the next check. Polling a device while it is being lost panics: [`catch_panic`] turns the panic into an error.
//! On an external device the caller's callbacks run in polls and submissions; their panics are the caller's, and
//! [`catch_fatal_error`] lets them pass.

use std::{
    any::Any,
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::*},
    },
};

use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// The loss of an open device, and errors that were reported outside of a watched call.
#[derive(Debug, Default)]
pub(super) struct DeviceFailure {
    /// Whether there is something to report. A launch reads only this.
    any: AtomicBool,
    /// The reason of the loss, set once.
    lost: OnceLock<String>,
    /// The first error that was not returned yet.
    error: Mutex<Option<wgpu::Error>>,
}

impl DeviceFailure {
    /// Marks the device as lost. The first reason is kept.
    pub(super) fn lose(&self, reason: &str) {
        let reason = reason.trim();
        self.lost.get_or_init(|| if reason.is_empty() { "no reason given" } else { reason }.into());
        self.any.store(true, SeqCst);
    }

    /// Stores an error that wgpu reports: for the `watch` on this thread, or else for the next check.
    pub(super) fn store(&self, error: wgpu::Error) {
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

    /// Drops an error that was not returned. A loss stays.
    pub(super) fn forget(&self) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Returns `Lost` from a loss on, and any other error once.
    pub(super) fn check(&self, device: &DeviceId, operation: &str) -> Result<()> {
        if self.any.load(Acquire) { self.report(device, operation) } else { Ok(()) }
    }

    #[cold]
    fn report(&self, device: &DeviceId, operation: &str) -> Result<()> {
        // Cleared before the check, so that an error reported meanwhile sets it again.
        self.any.store(false, SeqCst);
        if let Some(reason) = self.lost.get() {
            self.any.store(true, SeqCst);
            return Err(Error::lost(device, operation, reason));
        }
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map_or(Ok(()), |error| Err(translate(error, device, operation, 0)))
    }
}

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

/// Returns wgpu's message without the surrounding text.
pub(super) fn inner_message(description: &str) -> String {
    let inner = description.split_once("Caused by:").map_or(description, |(_, inner)| inner);
    inner.trim().to_owned()
}

thread_local! {
    /// `Some` while calls are watched on this thread, with the first error that they reported.
    static WATCHED: RefCell<Option<Option<wgpu::Error>>> = const { RefCell::new(None) };
}

/// Runs calls to wgpu and returns the first error that they reported.
pub(super) fn watch<T>(calls: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
    /// Ends the watch, even if the calls unwind.
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

/// Runs a call of wgpu that may panic, and returns the panic's message as an error.
///
/// The process's panic hook belongs to the program and stays as it is: it runs before the panic is caught here, and
/// prints a line by default. That happens at most once for a lost device, and for a kernel that wgpu's translator cannot
/// handle. Polls of an external device use [`catch_fatal_error`] instead: the caller's code runs inside them.
pub(super) fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    let error = |text: Option<&str>| inner_message(text.unwrap_or("wgpu panicked without a message"));
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| error(panic_message(&*panic)))
}

/// How wgpu's panic begins if a poll fails (`ContextWgpuCore::handle_error_fatal` in wgpu 30).
const FATAL_POLL: &str = "Error in Device::poll";

/// Polls an external device, and returns the message of wgpu's own panic as an error. A panic of one of the caller's
/// callbacks, which a poll runs, continues: it says nothing about the device.
pub(super) fn catch_fatal_error<T>(poll: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(poll)).or_else(|panic| match panic_message(&*panic) {
        Some(text) if text.starts_with(FATAL_POLL) => Err(inner_message(text)),
        _ => resume_unwind(panic),
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
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
        // A capture, so that the closure has an address of its own.
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

    #[test]
    fn of_the_panics_in_a_poll_of_an_external_device_only_wgpus_own_is_an_error() {
        assert_eq!(catch_fatal_error(|| 7), Ok(7));
        let fatal =
            || -> () { panic!("{FATAL_POLL}: Validation Error\n\nCaused by:\n  Parent device is lost\n") };
        assert_eq!(catch_fatal_error(fatal), Err("Parent device is lost".into()));
        let callers = || catch_fatal_error(|| -> () { panic!("of a callback") });
        let panic = catch_unwind(callers).unwrap_err();
        assert_eq!(panic_message(&*panic), Some("of a callback"));
    }
}
