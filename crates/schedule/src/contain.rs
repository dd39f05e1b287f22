//! Contains panics of the user's code (wakers, `Drop` of items and results, tracing subscribers) in runs and queues.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Logs through `tracing` at a level: `log!(warn, %error, "chunk failed")`. A subscriber that panics loses its own line and
/// does not end the worker.
macro_rules! log {
    ($level:ident, $($arguments:tt)*) => {
        $crate::contain::contain(|| tracing::$level!($($arguments)*))
    };
}
pub(crate) use log;

/// Runs the user's code and drops its value. Returns whether neither panicked.
pub(crate) fn contain<R>(code: impl FnOnce() -> R) -> bool {
    match catch_unwind(AssertUnwindSafe(code)) {
        // Dropping the value runs the user's code as well.
        Ok(value) => catch_unwind(AssertUnwindSafe(|| drop(value))).map_err(std::mem::forget).is_ok(),
        Err(payload) => {
            // Dropping the payload may panic again, so it is leaked.
            std::mem::forget(payload);
            false
        }
    }
}

/// A value whose drop runs the user's code: if that panics, the panic is contained.
pub(crate) struct ContainedDrop<T>(Option<T>);

impl<T> ContainedDrop<T> {
    pub(crate) fn new(value: T) -> Self {
        ContainedDrop(Some(value))
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    /// Takes the value out.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Drop for ContainedDrop<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            contain(|| drop(value));
        }
    }
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_else(|| "without a message".into()))
}

#[cfg(test)]
mod test {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[test]
    fn panics_of_the_code_its_value_and_its_payload_are_contained() {
        assert!(contain(|| 1));
        assert!(!contain(|| panic!("code")));
        assert!(!contain(|| Bomb));
        assert!(!contain(|| std::panic::panic_any(Bomb)));
        drop(ContainedDrop::new(Bomb));
    }
}
