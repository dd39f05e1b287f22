//! Log lines that cannot do harm: a subscriber is the program's own code, and may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Logs as `tracing` does, at a level: `log!(warn, %error, "a chunk failed")`. A panic of the subscriber is swallowed,
/// since a worker that dies of it would take its chunk along.
macro_rules! log {
    ($level:ident, $($arguments:tt)*) => {
        $crate::log::quietly(|| tracing::$level!($($arguments)*))
    };
}
pub(crate) use log;

pub(crate) fn quietly(log: impl FnOnce()) {
    // The panic hook has told of it.
    let _ = catch_unwind(AssertUnwindSafe(log));
}
