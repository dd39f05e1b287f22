//! Signals that end a batch, with what is finished kept.

use evener_schedule::Cancel;

/// Does `work`, and cancels it at the first SIGHUP, SIGINT or SIGTERM. A second one ends the process at once. A signal that
/// the process ignores, as SIGHUP under `nohup`, stays ignored. Returns the result and the signal.
#[cfg(unix)]
pub(super) fn cancel_at_signal<R>(cancel: &Cancel, work: impl FnOnce() -> R) -> (R, Option<i32>) {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
            mpsc::{RecvTimeoutError, channel},
        },
        time::Duration,
    };

    use signal_hook::{
        consts::{SIGHUP, SIGINT, SIGTERM},
        flag,
    };

    /// How often the thread looks for a signal.
    const TICK: Duration = Duration::from_millis(20);

    let (received, ends_process) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    for signal in [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|&signal| !is_ignored(signal)) {
        // Actions run in this order: the first signal sets the flag that lets the second one end the process.
        let registered = flag::register_conditional_default(signal, ends_process.clone())
            .and_then(|_| flag::register(signal, ends_process.clone()))
            .and_then(|_| flag::register_usize(signal, received.clone(), signal as usize));
        if let Err(error) = registered {
            tracing::debug!(signal, %error, "cannot handle a signal: it ends the process at once");
        }
    }
    let result = std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let received = &received;
        scope.spawn(move || {
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if received.load(SeqCst) != 0 {
                    cancel.cancel();
                    return;
                }
            }
        });
        let result = work();
        drop(end);
        result
    });
    // From here on, a signal ends the process as usual.
    ends_process.store(true, SeqCst);
    let signal = received.load(SeqCst) as i32;
    (result, (signal != 0).then_some(signal))
}

/// Returns whether the process was started with a signal ignored, where /proc tells.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signals are counted from 1.
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(not(unix))]
pub(super) fn cancel_at_signal<R>(_: &Cancel, work: impl FnOnce() -> R) -> (R, Option<i32>) {
    (work(), None)
}

/// Ends the process as a signal does that has no handler.
#[cfg(unix)]
pub(super) fn end_by(signal: i32) {
    if let Err(error) = signal_hook::low_level::emulate_default_handler(signal) {
        tracing::debug!(signal, %error, "cannot end by the signal");
    }
}

#[cfg(not(unix))]
pub(super) fn end_by(_: i32) {}
