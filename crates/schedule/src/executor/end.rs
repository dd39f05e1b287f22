//! How a chunk ends: its results are kept, or it failed.

use std::sync::{Arc, atomic::Ordering::Release};

use evener_device::Error;

use super::{Doing, Outlet, Shared, guarded, hand::Next};
use crate::{
    pool::lock,
    run::{self, Failure, LaneIndex, Purpose, State, Time, Verdict},
    task::{Copies, Results, Task},
};

impl<T: Task> Shared<T> {
    /// A chunk has ended well: its results are kept, if they are the first. Gives what comes next.
    #[expect(clippy::too_many_arguments, reason = "all that is known of the chunk")]
    pub(super) fn finish(
        self: &Arc<Self>,
        me: usize,
        chunk: &run::Chunk,
        began: Time,
        copies: Copies,
        results: Results<'_, T::Output>,
        generation: u64,
        in_place: bool,
    ) -> Next {
        let results = match &self.fold {
            None => Ok(results),
            Some(fold) => {
                match guarded(self.seats[chunk.lane].id.clone(), "combining", || Ok(fold(results.into_vec())))
                {
                    Ok(folded) => Err(folded),
                    Err(error) => return self.fail(me, chunk, began, error, generation),
                }
            }
        };
        // From here to the writing, nobody takes the results away.
        let hold = match &self.results {
            Outlet::Slots(slots) => match slots.hold() {
                Some(hold) => Some(hold),
                None => return self.leave(me, chunk.lane),
            },
            Outlet::InOrder(_) => None,
        };
        let mut guard = self.core();
        let core = &mut *guard;
        let now = self.now();
        if core.hands[me].dismissed {
            return Next::Go;
        }
        core.hands[me].doing = Doing::Nothing;
        if core.run.outcome().is_some() {
            self.seats[chunk.lane].counters.drop();
            return Next::Go;
        }
        let took = core.account.took(chunk.lane, began, now);
        let verdict = core.run.ended(chunk.id, took, now.saturating_sub(began));
        let items = self.items_of(&chunk.items);
        core.account.ended(chunk, began, verdict, items.end - items.start, now);
        core.account.copies(chunk, (began, now), copies.up, copies.down);
        self.seats[chunk.lane].counters.end(took);
        if chunk.purpose == Purpose::Canary {
            core.account.look_at_trust(&core.run, now);
        }
        if verdict == Verdict::Accept {
            core.accepted.push(chunk.items.clone());
        }
        let next = self.ask_within(core, me, chunk.lane, generation, now);
        let has_ended = core.run.outcome().is_some();
        drop(guard);
        if verdict == Verdict::Accept {
            self.keep(chunk, results, in_place);
        }
        drop(hold);
        if has_ended {
            self.has_ended.store(true, Release);
            self.wake_all();
        } else if chunk.purpose == Purpose::Canary {
            // There is room for the lane's other hands now.
            self.work.notify_all();
        }
        next
    }

    /// Keeps the results of a chunk that were accepted.
    fn keep(
        &self,
        chunk: &run::Chunk,
        results: std::result::Result<Results<'_, T::Output>, Vec<T::Output>>,
        in_place: bool,
    ) {
        match (&self.results, results) {
            (_, Ok(results)) if in_place => results.leave(),
            (Outlet::Slots(slots), results) => {
                // SAFETY: the slots are held by `finish`; a unit is accepted once, so nobody else has its slot.
                #[allow(unsafe_code)]
                let slots = unsafe { slots.slice(chunk.items.start as usize..chunk.items.end as usize) };
                match results {
                    Ok(results) => results.move_to(slots),
                    Err(folded) => {
                        for (slot, result) in slots.iter_mut().zip(folded) {
                            slot.write(result);
                        }
                    }
                }
            }
            (Outlet::InOrder(waiting), results) => {
                let results = results.map_or_else(|folded| folded, Results::into_vec);
                lock(waiting).insert(chunk.items.start, results);
                self.news.notify_all();
            }
        }
    }

    /// The run ended while a chunk was in hand.
    pub(super) fn leave(&self, me: usize, lane: LaneIndex) -> Next {
        if !self.core().hands[me].dismissed {
            self.seats[lane].counters.drop();
        }
        Next::Go
    }

    /// A chunk has failed. Gives what comes next.
    pub(super) fn fail(
        self: &Arc<Self>,
        me: usize,
        chunk: &run::Chunk,
        began: Time,
        error: Error,
        generation: u64,
    ) -> Next {
        let lane = chunk.lane;
        let mut core = self.core();
        let now = self.now();
        if core.hands[me].dismissed {
            return Next::Go;
        }
        core.hands[me].doing = Doing::Nothing;
        let has_failed = !matches!(error, Error::Ended);
        if has_failed {
            self.seats[lane].counters.fail()
        } else {
            self.seats[lane].counters.drop()
        }
        if core.run.outcome().is_some() {
            return Next::Go;
        }
        if !has_failed {
            // Somebody else's results for these items were accepted, and the items are gone.
            core.account.unfinished(chunk, began, now);
            core.run.failed(chunk.id, Failure::TooLarge, now);
            return self.ask_within(&mut core, me, lane, generation, now);
        }
        core.account.failed(chunk, began, now);
        tracing::warn!(device = %self.seats[lane].id, items = ?chunk.items, %error, "a chunk failed");
        let failure = Failure::from(&error);
        core.run.failed(chunk.id, failure, now);
        match failure {
            Failure::Task => core.task_error = Some(error),
            _ => core.failures.push(error),
        }
        core.look(now);
        if core.run.state(lane) != State::Healthy {
            // It begins afresh, and so does the lane: its other chunks are out of its hands, and nobody would notice if
            // one of them hung.
            self.seats[lane].renew(generation);
            self.replace(&mut core, lane, now, |doing| matches!(doing, Doing::Chunk(..)));
        }
        let next = self.ask_within(&mut core, me, lane, generation, now);
        drop(core);
        self.wake_all();
        next
    }
}
