//! The action for `SIGUSR1`, which MPICH's launcher sends.
//!
//! If the launcher does not kill the other processes when one has died, it sends them `SIGUSR1`. MPICH's handler then
//! asks the launcher which process died, and does not always return; without a handler the signal kills the process. So
//! if the program has set no action, a handler that does nothing is installed while MPI runs. Child processes are not
//! affected: `exec` resets handlers.

use std::ffi::c_int;

/// The action of `SIGUSR1` before MPI was initialized.
pub(super) struct SavedAction(libc::sigaction);

extern "C" fn ignore_signal(_: c_int) {}

fn ignoring_handler() -> usize {
    ignore_signal as extern "C" fn(c_int) as usize
}

impl SavedAction {
    pub(super) fn ask() -> Option<Self> {
        // SAFETY: a zeroed `sigaction` is valid, and the pointer is to it.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(libc::SIGUSR1, std::ptr::null(), &mut before) == 0)
                .then_some(SavedAction(before))
        }
    }

    /// Replaces MPI's handler by the saved action, or by the handler that does nothing if that would kill the process.
    pub(super) fn override_mpi(&self) {
        let mut action = self.0;
        if action.sa_sigaction == libc::SIG_DFL {
            (action.sa_sigaction, action.sa_flags) = (ignoring_handler(), libc::SA_RESTART);
        }
        set(&action);
    }

    /// Restores the saved action, unless the program has set another meanwhile.
    pub(super) fn restore(self) {
        if SavedAction::ask().is_some_and(|now| now.0.sa_sigaction == ignoring_handler()) {
            set(&self.0);
        }
    }
}

fn set(action: &libc::sigaction) {
    // SAFETY: the action was in force before, or its handler does nothing.
    unsafe { libc::sigaction(libc::SIGUSR1, action, std::ptr::null_mut()) };
}
