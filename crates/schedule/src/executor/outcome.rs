//! The result of a run.

use super::{Core, RunData, Shared, StopReason};
use crate::{
    error::{DoneItems, RunError},
    run::Outcome,
    task::Task,
};

impl StopReason {
    /// The error of a run that was stopped when `done` of its items were done.
    pub(crate) fn error(self, done: DoneItems, items: u64) -> RunError {
        match self {
            StopReason::Cancelled => RunError::Cancelled { done, items },
            StopReason::DeadlinePassed(after) => RunError::DeadlinePassed { after, done, items },
        }
    }
}

impl<T: Task, E: RunData<T>> Shared<T, E> {
    /// The result of a run of this many items, once it has ended.
    pub(crate) fn result(
        &self,
        core: &mut Core,
        stopped: Option<StopReason>,
        items: u64,
    ) -> Option<Result<(), RunError>> {
        let done =
            |core: &Core| DoneItems::of(core.accepted.iter().map(|units| self.items_of(units)).collect());
        Some(match (core.run.outcome()?.clone(), stopped) {
            (Outcome::Complete, _) => Ok(()),
            (Outcome::TaskFailed(units), _) => Err(RunError::Task {
                items: self.items_of(&units),
                error: core.task_error.take().unwrap_or(evener_device::Error::Ended),
            }),
            (_, Some(stopped)) => Err(stopped.error(done(core), items)),
            _ => {
                let failures =
                    std::mem::take(&mut core.failures).into_iter().map(|(_, error)| error).collect();
                Err(RunError::NoDeviceLeft { done: done(core), items, failures })
            }
        })
    }
}
