//! The workers of a queue: each runs batches of pieces on one device, one after another.

use std::{mem::MaybeUninit, sync::Arc};

use evener_device::Result;
use smallvec::SmallVec;

use super::{
    desk::{Next, Work},
    shared::Shared,
};
use crate::{
    contain::{contain, log},
    executor::{Employer, Kept},
    run::Time,
    sync::{wait, wait_timeout},
    task::{Chunk, Items, Results, Task, catch_panic, run_chunk, task_error},
};

/// A worker of a queue: its number at the desk, and its line.
pub(super) struct Worker<T: Task> {
    pub(super) me: u64,
    pub(super) line: usize,
    pub(super) state: Option<Kept<T::State>>,
}

impl<T: Task> Employer for Arc<Shared<T>> {
    type Worker = Worker<T>;
    type Work = Work<T::Input>;

    fn prepare(&self, worker: &mut Worker<T>) -> Next<T::Input> {
        let seat = &self.seats[worker.line];
        let (device, generation) = seat.device();
        let resident = self.shelf.resident(seat, generation);
        let prepare = || {
            let state = self.task.prepare_with(&device, &resident)?;
            let most = self.task.max_items(&state);
            Ok((state, most))
        };
        match catch_panic(seat.id.clone(), "preparing", prepare) {
            Ok((state, most)) => {
                self.at_desk(|desk, _| desk.prepared(worker.me, most));
                worker.state = Some(Kept::new(state, generation));
            }
            Err(error) => self.at_desk(|desk, now| desk.not_ready(worker.me, generation, error, now)),
        }
        Next::Rest { until: None }
    }

    fn run(&self, worker: &mut Worker<T>, work: Work<T::Input>) -> Next<T::Input> {
        let Work { items, first, count, number } = work;
        // The desk gives pieces only to workers that are ready; no piece is lost if it did otherwise.
        let Some(kept) = &mut worker.state else {
            self.fall(worker, "it was not ready".into());
            return Next::Go;
        };
        let results = self.compute(worker.line, kept, &items[first..first + count], number);
        // Never dropped under the lock; and a panic in it must not lose the results.
        contain(|| drop(items));
        self.tell(worker.me, kept.generation, results)
    }

    /// Waits until there is something to do.
    fn rest(&self, worker: &mut Worker<T>, _: Option<Time>) -> Next<T::Input> {
        let (work, generation) = (&self.work[worker.line], worker.state.as_ref().map(|kept| kept.generation));
        let mut desk = self.desk();
        loop {
            match desk.ask(worker.me, generation, self.now()) {
                Next::Rest { until: None } => desk = wait(work, desk),
                Next::Rest { until: Some(until) } => {
                    desk.lines[worker.line].timers += 1;
                    desk = wait_timeout(work, desk, until.saturating_sub(self.now()));
                    desk.lines[worker.line].timers -= 1;
                }
                next => return next,
            }
        }
    }

    fn leave(&self, worker: &mut Worker<T>) {
        // Before another worker is started in its place: what an old opening of a device holds may be in the way of the
        // new one.
        worker.state = None;
        self.at_desk(|_, _| ());
    }

    /// The desk may start another worker in its place.
    fn fall(&self, worker: &mut Worker<T>, message: String) {
        contain(|| drop(worker.state.take()));
        let error = task_error(&self.seats[worker.line].id, "between pieces".into(), message);
        log!(warn, %error, "a worker has panicked");
        self.at_desk(|desk, now| desk.fell(worker.me, error, now));
    }
}

impl<T: Task> Shared<T> {
    /// Turns the items of a batch into their results. The first has this number.
    fn compute(
        &self,
        line: usize,
        kept: &mut Kept<T::State>,
        items: &[T::Input],
        number: u64,
    ) -> Result<Vec<T::Output>> {
        let chunk = Chunk::new(number..number + items.len() as u64, Items::Slice(items));
        let mut slots: SmallVec<[MaybeUninit<T::Output>; 1]> = SmallVec::new();
        slots.resize_with(items.len(), MaybeUninit::uninit);
        let mut results = Results::new(&mut slots);
        // There is exactly one result for each: `run_chunk` sees to it.
        run_chunk(&self.task, &self.seats[line].id, &mut kept.state, &chunk, &mut results)?;
        Ok(results.take())
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
