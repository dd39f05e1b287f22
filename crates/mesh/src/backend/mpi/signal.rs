//! The signal of MPICH's launcher.
//!
//! Where the launcher does not end the other processes when one has died, it tells them by `SIGUSR1`. MPICH's own answer
//! to it is to ask the launcher who, from which it does not always come back; and a process that has no answer dies of
//! it. So a program that has not said what is to become of the signal hears it with a handler that does nothing, for as
//! long as MPI runs. The children of the process are not affected: a program that is started has no handlers.

use std::ffi::c_int;

/// What `SIGUSR1` did before.
pub(super) struct SavedAction(libc::sigaction);

extern "C" fn ignore_signal(_: c_int) {}

fn ignoring_handler() -> usize {
    ignore_signal as extern "C" fn(c_int) as usize
}

impl SavedAction {
    /// Asks what the signal does.
    pub(super) fn ask() -> Option<Self> {
        // SAFETY: a zeroed action is a valid place for the answer.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(libc::SIGUSR1, std::ptr::null(), &mut before) == 0)
                .then_some(SavedAction(before))
        }
    }

    /// Takes the signal from MPI: it does what it did before, or nothing where it would have ended the process.
    pub(super) fn override_mpi(&self) {
        let mut action = self.0;
        if action.sa_sigaction == libc::SIG_DFL {
            (action.sa_sigaction, action.sa_flags) = (ignoring_handler(), libc::SA_RESTART);
        }
        set(&action);
    }

    /// Has the signal do what it did before, unless the program has said otherwise meanwhile.
    pub(super) fn restore(self) {
        if SavedAction::ask().is_some_and(|now| now.0.sa_sigaction == ignoring_handler()) {
            set(&self.0);
        }
    }
}

fn set(action: &libc::sigaction) {
    // SAFETY: an action that was in force before, or one whose handler does nothing.
    unsafe { libc::sigaction(libc::SIGUSR1, action, std::ptr::null_mut()) };
}
