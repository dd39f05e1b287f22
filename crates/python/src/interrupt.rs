//! Long calls: without the interpreter's lock, and ended by Ctrl-C.

use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use evener_schedule::Cancel;
use pyo3::{exceptions::PyRuntimeError, prelude::*};

/// A calling thread looks for signals this often.
const LOOK: Duration = Duration::from_millis(50);

/// Runs `work` on another thread, without the interpreter's lock. If a signal's handler raises an exception, as that of Ctrl-C
/// does, cancels the work, waits for its end, since it may use memory of the caller, and returns that exception.
pub(crate) fn run_interruptibly<T: Send>(
    py: Python<'_>,
    cancel: &Cancel,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    py.detach(|| {
        thread::scope(|scope| {
            let (sender, receiver) = channel();
            let worker = scope.spawn(move || {
                // A closed channel means that nobody waits any more.
                let _ = sender.send(work());
            });
            let mut interrupted = None;
            loop {
                match receiver.recv_timeout(LOOK) {
                    Ok(result) => return interrupted.map_or(Ok(result), Err),
                    Err(RecvTimeoutError::Timeout) if interrupted.is_some() => {}
                    Err(RecvTimeoutError::Timeout) => {
                        interrupted = Python::attach(|py| py.check_signals()).err();
                        if interrupted.is_some() {
                            cancel.cancel();
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        // The scope must not panic for its thread.
                        let _ = worker.join();
                        return Err(PyRuntimeError::new_err("a thread of evener panicked: please report it"));
                    }
                }
            }
        })
    })
}

/// Runs `work`, which cannot be cancelled, on another thread, without the interpreter's lock. If a signal's handler raises an
/// exception, returns that at once; the thread ends by itself.
pub(crate) fn run_detached<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    py.detach(|| {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            // A closed channel means that nobody waits any more.
            let _ = sender.send(work());
        });
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err("a thread of evener panicked: please report it"));
                }
            }
        }
    })
}
