//! Ends a worker process with the process that started it, however that one ends.
#![allow(unsafe_code)]

use pyo3::{exceptions::PyOSError, prelude::*};

/// Ends this process when the other end of a socket is closed. On Linux also when the thread that started this process
/// ends, even if this process is stopped then. `parent` is the process that started this one.
///
/// A thread of its own waits, which needs no lock of the interpreter: a worker in a long call of a C library ends too.
#[pyfunction]
pub(crate) fn end_with_parent(socket: i32, parent: i32) -> PyResult<()> {
    #[cfg(target_os = "linux")]
    // SAFETY: `prctl` with this option reads no memory of this process.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    // SAFETY: `getppid` cannot fail.
    if unsafe { libc::getppid() } != parent {
        // It ended before the call above.
        exit();
    }
    let watch = move || {
        block_signals();
        loop {
            let mut poll = libc::pollfd { fd: socket, events: 0, revents: 0 };
            // SAFETY: `poll` gets one valid `pollfd`.
            let count = unsafe { libc::poll(&mut poll, 1, -1) };
            if count > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
                exit();
            }
        }
    };
    let thread = std::thread::Builder::new().name("evener parent".into()).stack_size(64 << 10).spawn(watch);
    thread.map(drop).map_err(|error| PyOSError::new_err(format!("no thread to watch the parent: {error}")))
}

/// Ends the process without running any other code of it.
fn exit() -> ! {
    // SAFETY: `_exit` ends the process.
    unsafe { libc::_exit(0) }
}

/// Leaves signals to the other threads: Python's handlers are for its main thread, which a signal must wake.
fn block_signals() {
    // SAFETY: both functions get a valid signal set, for which zeros are a value.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}
