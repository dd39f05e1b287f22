//! How a chunk ends: its results are kept, or it failed.

use std::{ops::Range, sync::Arc};

use evener_device::Error;
use smallvec::{SmallVec, smallvec};

use super::{
    Doing, Ends, Shared,
    hand::{Done, Next},
};
use crate::{
    contain::log,
    run::{self, Failure, LaneIndex, Purpose, State, Time, Verdict},
    task::{Results, Slots, Task, guarded},
    trace::Activity,
};

impl<T: Task, E: Ends<T>> Shared<T, E> {
    /// A chunk has ended well: its results are kept, if they are the first. Gives what comes next.
    #[expect(clippy::too_many_arguments, reason = "all that is known of the chunk")]
    pub(super) fn finish(
        self: &Arc<Self>,
        me: usize,
        chunk: &run::Chunk,
        began: Time,
        done: Done,
        mut results: Results<'_, T::Output>,
        generation: u64,
        in_place: bool,
    ) -> Next {
        if let Some(fold) = &self.fold {
            match guarded(self.seat(chunk.lane).id.clone(), "combining", || Ok(fold(results.take()))) {
                Ok(folded) => results.extend(folded),
                Err(error) => return self.fail(me, chunk, began, error, generation),
            }
        }
        // From here to the writing, nobody takes the results away.
        let hold = self.ends.slots().map(Slots::hold);
        if let Some(None) = hold {
            return self.ended(me, chunk.lane);
        }
        let mut guard = self.core();
        let core = &mut *guard;
        let now = self.now();
        if core.hands[me].dismissed {
            return Next::Go;
        }
        core.hands[me].doing = Doing::Nothing;
        if core.run.outcome().is_some() {
            self.seat(chunk.lane).counters.drop();
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
        self.seat(chunk.lane).counters.end(took);
        if chunk.purpose == Purpose::Canary {
            core.account.look_at_trust(&core.run, now);
        }
        let next = self.ask_within(core, me, chunk.lane, generation, now);
        // From here until they are kept nothing may panic: what counts as accepted counts as written.
        core.accept(&accepted);
        let has_ended = core.run.outcome().is_some();
        drop(guard);
        if accepted.is_empty() {
            drop(results);
        } else if in_place {
            // No other lane runs any unit of a chunk whose results are in place, so all are accepted.
            results.leave();
        } else {
            self.ends.keep(chunk.items.start, results, &accepted);
        }
        drop(hold);
        if self.ends.window().is_some() {
            // A thread that has just found no results waits, or holds the lock until it does.
            drop(self.core());
            self.news.notify_all();
        }
        if has_ended {
            self.tell_end();
        } else if chunk.purpose == Purpose::Canary || gives_back {
            // There is something to do for lanes that wait.
            self.work.notify_all();
        }
        next
    }

    /// The run ended while a chunk was in hand.
    pub(super) fn ended(&self, me: usize, lane: LaneIndex) -> Next {
        if !self.core().hands[me].dismissed {
            self.seat(lane).counters.drop();
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
            self.seat(lane).counters.fail()
        } else {
            self.seat(lane).counters.drop()
        }
        if core.run.outcome().is_some() {
            return Next::Go;
        }
        if !has_failed {
            // Somebody else's results for these items were accepted, and the items are gone.
            core.account.in_vain(chunk, Activity::Dropped, began, now);
            core.run.dropped(chunk.id, now);
            return self.ask_within(&mut core, me, lane, generation, now);
        }
        core.account.in_vain(chunk, Activity::Failure, began, now);
        log!(warn, device = %self.seat(lane).id, items = ?chunk.items, %error, "a chunk failed");
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
            self.seat(lane).renew(generation);
            self.replace(&mut core, lane, now, |doing| matches!(doing, Doing::Chunk(..)));
        }
        let next = self.ask_within(&mut core, me, lane, generation, now);
        drop(core);
        self.wake_all();
        next
    }
}
