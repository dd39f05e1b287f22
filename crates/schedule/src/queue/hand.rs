//! A worker: a thread that runs batches of pieces on one device, one after another.

use std::{
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
};

use evener_device::Result;
use smallvec::SmallVec;

use super::{desk::Next, shared::Shared};
use crate::{
    contain::{contain, log},
    executor::{guarded, panic_message, perform, task_error},
    pool::Kept,
    task::{Chunk, Items, Results, Task},
};

impl<T: Task> Shared<T> {
    /// A worker's whole life, whatever it ends with.
    pub(super) fn live(self: Arc<Self>, me: u64, line: usize) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work_on(me, line))) {
            self.fall(me, line, panic_message(&*panic));
        }
    }

    /// A worker ends; the desk may start another one in its place.
    fn fall(self: &Arc<Self>, me: u64, line: usize, message: String) {
        let error = task_error(&self.seats[line].id, "between pieces".into(), message);
        log!(warn, %error, "a worker has panicked");
        self.at_desk(|desk, now| desk.fell(me, error, now));
    }

    fn work_on(self: &Arc<Self>, me: u64, line: usize) {
        let mut state: Option<Kept<T::State>> = None;
        let mut next = Next::Rest { until: None };
        loop {
            next = match next {
                Next::Go => {
                    // Before another worker is started in its place: what an old opening of a device holds may be in
                    // the way of the new one.
                    drop(state.take());
                    return self.at_desk(|_, _| ());
                }
                Next::Rest { .. } => self.wait_for_work(me, line, state.as_ref()),
                Next::Prepare => {
                    state = self.make_ready(me, line);
                    Next::Rest { until: None }
                }
                Next::Run { items, first, count, number } => {
                    // The desk gives pieces only to workers that are ready; no piece is lost if it did otherwise.
                    let Some(kept) = state.as_mut() else {
                        return self.fall(me, line, "it was not ready".into());
                    };
                    let results = self.compute(line, kept, &items[first..first + count], number);
                    // Never dropped under the lock; and a panic in it must not lose the results.
                    contain(|| drop(items));
                    self.tell(me, kept.generation, results)
                }
            }
        }
    }

    /// Waits until there is something to do.
    fn wait_for_work(&self, me: u64, line: usize, state: Option<&Kept<T::State>>) -> Next<T::Input> {
        let mut desk = self.desk();
        loop {
            match desk.ask(me, state.map(|kept| kept.generation), self.now()) {
                Next::Rest { until: None } => {
                    desk = self.work[line].wait(desk).unwrap_or_else(PoisonError::into_inner);
                }
                Next::Rest { until: Some(until) } => {
                    desk.lines[line].timers += 1;
                    let limit = until.saturating_sub(self.now());
                    let wait = self.work[line].wait_timeout(desk, limit);
                    desk = wait.unwrap_or_else(PoisonError::into_inner).0;
                    desk.lines[line].timers -= 1;
                }
                next => return next,
            }
        }
    }

    /// Makes the device ready for this worker.
    fn make_ready(self: &Arc<Self>, me: u64, line: usize) -> Option<Kept<T::State>> {
        let seat = &self.seats[line];
        let (device, generation) = seat.device();
        let resident = self.shelf.resident(seat, generation);
        let prepare = || {
            let state = self.task.prepare_with(&device, &resident)?;
            let most = self.task.most_items(&state);
            Ok((state, most))
        };
        match guarded(seat.id.clone(), "preparing", prepare) {
            Ok((state, most)) => {
                self.at_desk(|desk, _| desk.prepared(me, most));
                Some(Kept::new(state, generation))
            }
            Err(error) => {
                self.at_desk(|desk, now| desk.not_ready(me, generation, error, now));
                None
            }
        }
    }

    /// Turns the items of a batch into their results. The first has this number.
    fn compute(
        &self,
        line: usize,
        kept: &mut Kept<T::State>,
        items: &[T::Input],
        number: u64,
    ) -> Result<Vec<T::Output>> {
        let chunk = Chunk::new(number..number + items.len() as u64, Items::Here(items));
        let mut slots: SmallVec<[MaybeUninit<T::Output>; 1]> = SmallVec::new();
        slots.resize_with(items.len(), MaybeUninit::uninit);
        let mut results = Results::new(&mut slots);
        // There is exactly one result for each: `perform` sees to it.
        perform(&self.task, &self.seats[line].id, &mut kept.state, &chunk, &mut results)?;
        Ok(results.into_vec())
    }

    /// Tells how a batch went, and asks what comes next.
    fn tell(self: &Arc<Self>, me: u64, generation: u64, results: Result<Vec<T::Output>>) -> Next<T::Input> {
        let (next, unwanted) = self.at_desk(|desk, now| {
            let unwanted = match results {
                Ok(results) => desk.finished(me, results, now),
                Err(error) => {
                    desk.failed(me, error, now);
                    None
                }
            };
            (desk.ask(me, Some(generation), now), unwanted)
        });
        // This worker may have its next piece by now, which a panic would fail.
        contain(|| drop(unwanted));
        next
    }
}
