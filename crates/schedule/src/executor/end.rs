//! How a chunk ends: its results are kept, or it failed.

use std::{ops::Range, sync::Arc};

use evener_device::Error;
use smallvec::{SmallVec, smallvec};

use super::{
    Doing, Outlet, Shared, guarded,
    hand::{Done, Next},
};
use crate::{
    contain::{contain, log},
    pool::lock,
    run::{self, Failure, LaneIndex, Purpose, State, Time, Verdict},
    task::{Results, Task},
};

impl<T: Task> Shared<T> {
    /// A chunk has ended well: its results are kept, if they are the first. Gives what comes next.
    #[expect(clippy::too_many_arguments, reason = "all that is known of the chunk")]
    pub(super) fn finish(
        self: &Arc<Self>,
        me: usize,
        chunk: &run::Chunk,
        began: Time,
        done: Done,
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
        // What its worker gave up, because another lane is idle or somebody had to be looked after.
        let gives_back = core.run.shrink(chunk.id, chunk.items.end, now);
        let verdict = core.run.ended(chunk.id, took, now.saturating_sub(began), now);
        let accepted: SmallVec<[Range<u64>; 1]> = match verdict {
            Verdict::Accept => smallvec![chunk.items.clone()],
            Verdict::AcceptPart(parts) => parts.into(),
            Verdict::Drop => SmallVec::new(),
        };
        let items = accepted.iter().map(|units| self.items_of(units));
        core.account.ended(chunk, began, items.map(|items| items.end - items.start).sum(), now);
        core.account.copies(chunk, (began, now), done.copies.up, done.copies.down);
        core.run.done_in_parts(chunk.lane, done.parts);
        self.seats[chunk.lane].counters.end(took);
        if chunk.purpose == Purpose::Canary {
            core.account.look_at_trust(&core.run, now);
        }
        let next = self.ask_within(core, me, chunk.lane, generation, now);
        // From here to the end of `keep` nothing may panic: what counts as accepted counts as written.
        core.accept(&accepted);
        let has_ended = core.run.outcome().is_some();
        drop(guard);
        self.keep(chunk, results, &accepted, in_place);
        drop(hold);
        if has_ended {
            self.tell_end();
        } else if chunk.purpose == Purpose::Canary || gives_back {
            // There is something to do for lanes that wait.
            self.work.notify_all();
        }
        next
    }

    /// Keeps the results of those of a chunk's units that were accepted.
    fn keep(
        &self,
        chunk: &run::Chunk,
        results: std::result::Result<Results<'_, T::Output>, Vec<T::Output>>,
        accepted: &[Range<u64>],
        in_place: bool,
    ) {
        if accepted.is_empty() {
            return;
        }
        let part = |units: &Range<u64>| {
            (units.start - chunk.items.start) as usize..(units.end - chunk.items.start) as usize
        };
        match (&self.results, results) {
            // No other lane runs any unit of a chunk whose results are in place, so all are accepted.
            (_, Ok(results)) if in_place => results.leave(),
            (Outlet::Slots(slots), results) => {
                // SAFETY: the slots are held by `finish`; a unit is accepted once, so nobody else has its slot.
                #[allow(unsafe_code)]
                let slots =
                    |units: &Range<u64>| unsafe { slots.slice(units.start as usize..units.end as usize) };
                match results {
                    Ok(results) => {
                        let parts = accepted.iter().map(|units| (part(units), slots(units)));
                        // All parts are moved before the other results are dropped, which is the user's code.
                        contain(|| results.move_parts(parts));
                    }
                    Err(folded) => {
                        let mut folded: Vec<Option<T::Output>> = folded.into_iter().map(Some).collect();
                        for units in accepted {
                            for (slot, result) in slots(units).iter_mut().zip(&mut folded[part(units)]) {
                                if let Some(result) = result.take() {
                                    slot.write(result);
                                }
                            }
                        }
                        contain(|| drop(folded));
                    }
                }
            }
            (Outlet::InOrder(waiting), results) => {
                let mut results = results.map_or_else(|folded| folded, Results::into_vec);
                // From the end, so that each part is what is left there. Dropping the others is the user's code.
                let (mut parts, mut others) = (Vec::new(), Vec::new());
                for units in accepted.iter().rev() {
                    others.push(results.split_off(part(units).end));
                    parts.push((units.start, results.split_off(part(units).start)));
                }
                lock(waiting).extend(parts);
                // A thread that has just found nothing waits, or holds the lock until it does.
                drop(self.core());
                self.news.notify_all();
                contain(|| drop((results, others)));
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
            core.run.dropped(chunk.id, now);
            return self.ask_within(&mut core, me, lane, generation, now);
        }
        core.account.failed(chunk, began, now);
        log!(warn, device = %self.seats[lane].id, items = ?chunk.items, %error, "a chunk failed");
        let failure = Failure::from(&error);
        core.run.failed(chunk.id, failure, now);
        match failure {
            Failure::Task => core.task_error = Some(error),
            _ => core.keep_failure(error),
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
