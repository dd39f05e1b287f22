//! A worker: a thread that runs one device's pieces, one after another.

use std::{
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
};

use evener_device::Result;

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
        let mut next = Next::Rest;
        loop {
            next = match next {
                Next::Go => {
                    // Before another worker is started in its place: what an old opening of a device holds may be in
                    // the way of the new one.
                    drop(state.take());
                    return self.at_desk(|_, _| ());
                }
                Next::Rest => self.wait_for_work(me, line, state.as_ref()),
                Next::Prepare => {
                    state = self.make_ready(me, line);
                    Next::Rest
                }
                Next::Run { item, number } => {
                    // The desk gives pieces only to workers that are ready; no piece is lost if it did otherwise.
                    let Some(kept) = state.as_mut() else {
                        return self.fall(me, line, "it was not ready".into());
                    };
                    let result = self.compute(line, kept, &item, number);
                    // Never dropped under the lock; and a panic in it must not lose the result.
                    contain(|| drop(item));
                    self.tell(me, kept.generation, result)
                }
            }
        }
    }

    /// Waits until there is something to do.
    fn wait_for_work(&self, me: u64, line: usize, state: Option<&Kept<T::State>>) -> Next<T::Input> {
        let mut desk = self.desk();
        loop {
            match desk.ask(me, state.map(|kept| kept.generation), self.now()) {
                Next::Rest => desk = self.work[line].wait(desk).unwrap_or_else(PoisonError::into_inner),
                next => return next,
            }
        }
    }

    /// Makes the device ready for this worker.
    fn make_ready(self: &Arc<Self>, me: u64, line: usize) -> Option<Kept<T::State>> {
        let seat = &self.seats[line];
        let (device, generation) = seat.device();
        match guarded(seat.id.clone(), "preparing", || self.task.prepare(&device)) {
            Ok(state) => {
                self.at_desk(|desk, _| desk.prepared(me));
                Some(Kept::new(state, generation))
            }
            Err(error) => {
                self.at_desk(|desk, now| desk.not_ready(me, generation, error, now));
                None
            }
        }
    }

    /// Turns one item into its result.
    fn compute(
        &self,
        line: usize,
        kept: &mut Kept<T::State>,
        item: &T::Input,
        number: u64,
    ) -> Result<T::Output> {
        let device = &self.seats[line].id;
        let chunk = Chunk::new(number..number + 1, Items::Here(std::slice::from_ref(item)));
        let mut slots = [MaybeUninit::uninit()];
        let mut results = Results::new(&mut slots);
        perform(&self.task, device, &mut kept.state, &chunk, &mut results)?;
        // There is exactly one: `perform` has seen to it.
        let missing =
            || task_error(device, format!("task `{}`", self.task.name()), "it gave no result".into());
        results.into_vec().pop().ok_or_else(missing)
    }

    /// Tells how a piece went, and asks what comes next.
    fn tell(self: &Arc<Self>, me: u64, generation: u64, result: Result<T::Output>) -> Next<T::Input> {
        let (next, unwanted) = self.at_desk(|desk, now| {
            let unwanted = match result {
                Ok(result) => desk.finished(me, result, now),
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
