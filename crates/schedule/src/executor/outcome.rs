//! How a run ends, for whoever started it.

use super::{Core, Ends, Shared, Stopped};
use crate::{
    error::{Done, RunError},
    run::Outcome,
    task::Task,
};

impl Stopped {
    /// The error of a run of so many items that was stopped when these were done.
    pub(crate) fn error(self, done: Done, items: u64) -> RunError {
        match self {
            Stopped::Cancelled => RunError::Cancelled { done, items },
            Stopped::DeadlinePassed(after) => RunError::DeadlinePassed { after, done, items },
        }
    }
}

impl<T: Task, E: Ends<T>> Shared<T, E> {
    /// How a run of so many items has ended, once it has.
    pub(crate) fn ending(
        &self,
        core: &mut Core,
        stopped: Option<Stopped>,
        items: u64,
    ) -> Option<Result<(), RunError>> {
        let done = |core: &Core| Done::of(core.accepted.iter().map(|units| self.items_of(units)).collect());
        Some(match (core.run.outcome()?.clone(), stopped) {
            (Outcome::Complete, _) => Ok(()),
            (Outcome::TaskFailed(units), _) => Err(RunError::Task {
                items: self.items_of(&units),
                error: core.task_error.take().unwrap_or(evener_device::Error::Ended),
            }),
            (_, Some(stopped)) => Err(stopped.error(done(core), items)),
            _ => {
                let failures = std::mem::take(&mut core.failures);
                Err(RunError::NoDeviceLeft { done: done(core), items, failures })
            }
        })
    }
}
