//! How a run ends, for whoever started it.

use super::{Core, Shared, Stopped};
use crate::{
    error::{Done, RunError},
    run::Outcome,
    task::Task,
};

impl<T: Task> Shared<T> {
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
            (_, Some(Stopped::Cancelled)) => Err(RunError::Cancelled { done: done(core), items }),
            (_, Some(Stopped::DeadlinePassed(after))) => {
                Err(RunError::DeadlinePassed { after, done: done(core), items })
            }
            _ => {
                let failures = std::mem::take(&mut core.failures);
                Err(RunError::NoDeviceLeft { done: done(core), items, failures })
            }
        })
    }
}
