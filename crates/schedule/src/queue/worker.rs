//! The workers of a queue: each runs batches of pieces on one device, one after another.

use std::{mem::MaybeUninit, sync::Arc};

use evener_device::Result;
use smallvec::SmallVec;

use super::{
    dispatcher::{BatchItems, Next},
    shared::Shared,
};
use crate::{
    contain::{contain, log},
    executor::{CachedState, WorkSource},
    run::Time,
    sync::{wait, wait_timeout},
    task::{Chunk, Items, Results, Task, catch_panic, run_chunk, task_error},
};

/// A worker of a queue: its number in the dispatcher, and its device.
pub(super) struct QueueWorker<T: Task> {
    pub(super) me: u64,
    pub(super) device: usize,
    pub(super) state: Option<CachedState<T::State>>,
}

impl<T: Task> WorkSource for Arc<Shared<T>> {
    type Worker = QueueWorker<T>;
    type Work = BatchItems<T::Input>;

    fn prepare(&self, worker: &mut QueueWorker<T>) -> Next<T::Input> {
        let device = &self.devices[worker.device];
        let (opened, generation) = device.device();
        let resident = self.states.resident(device, generation);
        let prepare = || {
            let state = self.task.prepare_with(&opened, &resident)?;
            let most = self.task.max_items(&state);
            Ok((state, most))
        };
        match catch_panic(device.id.clone(), "preparing the device", prepare) {
            Ok((state, most)) => {
                self.with_dispatcher(|dispatcher, _| dispatcher.prepared(worker.me, most));
                worker.state = Some(CachedState::new(state, generation, most));
            }
            Err(error) => self.with_dispatcher(|dispatcher, now| {
                dispatcher.prepare_failed(worker.me, generation, error, now)
            }),
        }
        Next::Wait { until: None }
    }

    fn run(&self, worker: &mut QueueWorker<T>, work: BatchItems<T::Input>) -> Next<T::Input> {
        let BatchItems { items, first, count, number } = work;
        // The dispatcher gives pieces to prepared workers only; if it did not, no piece would be lost.
        let Some(cached) = &mut worker.state else {
            self.panicked(worker, "the worker has no prepared state: please report this as a bug".into());
            return Next::Exit;
        };
        let results = self.compute(worker.device, cached, &items[first..first + count], number);
        // Dropped without the lock; a panic in the drop must not lose the results.
        contain(|| drop(items));
        self.report_batch(worker.me, cached.generation, results)
    }

    /// Waits for work.
    fn wait(&self, worker: &mut QueueWorker<T>, _: Option<Time>) -> Next<T::Input> {
        let (work, generation) =
            (&self.worker_wake[worker.device], worker.state.as_ref().map(|cached| cached.generation));
        let mut dispatcher = self.dispatcher();
        loop {
            match dispatcher.next_work(worker.me, generation, self.now()) {
                Next::Wait { until: None } => dispatcher = wait(work, dispatcher),
                Next::Wait { until: Some(until) } => {
                    dispatcher.devices[worker.device].timers += 1;
                    dispatcher = wait_timeout(work, dispatcher, until.saturating_sub(self.now()));
                    dispatcher.devices[worker.device].timers -= 1;
                }
                next => return next,
            }
        }
    }

    fn exit(&self, worker: &mut QueueWorker<T>) {
        // Dropped before another worker is started: resources of the old opening of a device may block the new one.
        worker.state = None;
        self.with_dispatcher(|_, _| ());
    }

    /// The worker panicked; the dispatcher may start another in its place.
    fn panicked(&self, worker: &mut QueueWorker<T>, message: String) {
        contain(|| drop(worker.state.take()));
        let operation = "dropping values of the task between two pieces".to_owned();
        let error = task_error(&self.devices[worker.device].id, operation, message);
        log!(warn, %error, "a worker has panicked");
        self.with_dispatcher(|dispatcher, now| dispatcher.panicked(worker.me, error, now));
    }
}

impl<T: Task> Shared<T> {
    /// Runs a batch. Its first item has this number.
    fn compute(
        &self,
        device: usize,
        cached: &mut CachedState<T::State>,
        items: &[T::Input],
        number: u64,
    ) -> Result<Vec<T::Output>> {
        let chunk = Chunk::of_queue(number..number + items.len() as u64, Items::Slice(items));
        let mut slots: SmallVec<[MaybeUninit<T::Output>; 1]> = SmallVec::new();
        slots.resize_with(items.len(), MaybeUninit::uninit);
        let mut results = Results::new(&mut slots);
        // `run_chunk` checks that there is one result per item.
        run_chunk(&self.task, &self.devices[device].id, &mut cached.state, &chunk, &mut results)?;
        Ok(results.take())
    }

    /// Reports a batch's outcome to the dispatcher, and asks for the next work.
    fn report_batch(
        self: &Arc<Self>,
        me: u64,
        generation: u64,
        results: Result<Vec<T::Output>>,
    ) -> Next<T::Input> {
        let (next, unwanted) = self.with_dispatcher(|dispatcher, now| {
            let unwanted = match results {
                Ok(results) => dispatcher.finished(me, results, now),
                Err(error) => {
                    dispatcher.failed(me, error, now);
                    None
                }
            };
            (dispatcher.next_work(me, Some(generation), now), unwanted)
        });
        // A panic here must not fail the worker's next piece.
        contain(|| drop(unwanted));
        next
    }
}
