//! The result of a run.

use super::{Core, RunData, Shared, StopReason};
use crate::{
    error::{DoneItems, RunError},
    run::Outcome,
    task::Task,
};

impl StopReason {
    /// The error of a run that was stopped when `done` of its items were done, or of those that were `read_so_far`.
    pub(crate) fn error(self, done: DoneItems, items: u64, read_so_far: bool) -> RunError {
        match self {
            StopReason::Cancelled => RunError::Cancelled { done, items, read_so_far },
            StopReason::DeadlinePassed(after) => RunError::DeadlinePassed { after, done, items, read_so_far },
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
            (_, Some(stopped)) => Err(stopped.error(done(core), items, core.run.accepts_items())),
            _ => {
                let failures =
                    std::mem::take(&mut core.failures).into_iter().map(|(_, error)| error).collect();
                let read_so_far = core.run.accepts_items();
                Err(RunError::NoDeviceLeft { done: done(core), items, read_so_far, failures })
            }
        })
    }
}
