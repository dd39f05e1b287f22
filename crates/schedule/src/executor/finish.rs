//! The end of a chunk: its results are kept, or it failed.

use std::{ops::Range, sync::Arc};

use evener_device::{Error, Result};
use smallvec::{SmallVec, smallvec};

use super::{
    Fold, RunContext, RunData, WorkerActivity,
    ticker::SUSPENDED_AFTER,
    worker::{ChunkStats, Next},
};
use crate::{
    contain::{ContainedDrop, log},
    run::{self, FailureKind, LaneIndex, LaneState, Purpose, Verdict},
    task::{ResultSlots, Results, Task, catch_panic},
    trace::Activity,
};

impl<T: Task, E: RunData<T>> RunContext<T, E> {
    /// Keeps those results of a chunk that are the first of their items. Returns what comes next.
    pub(super) fn finish(
        self: &Arc<Self>,
        index: usize,
        chunk: &run::LaneChunk,
        done: ChunkStats,
        results: Results<'_, T::Output>,
        generation: u64,
        in_place: bool,
    ) -> Next {
        let results = match &self.fold {
            None => Ok(results),
            Some(fold) => self.fold_results(chunk.lane, fold, results),
        };
        // Dropping results runs the user's code, whose panic would end this worker.
        let mut results = match results {
            Ok(results) => ContainedDrop::new(results),
            Err(error) => return self.fail(index, chunk, error, generation),
        };
        // Until the results are written, the thread that started the run cannot take them.
        let held = self.data.slots().map(ResultSlots::guard);
        if let Some(None) = held {
            return self.ended(index, chunk.lane);
        }
        let mut guard = self.core();
        let core = &mut *guard;
        let now = self.now();
        if core.workers[index].abandoned {
            return Next::Exit;
        }
        // A chunk that was in flight during a suspension took longer than this; most take far less.
        if core.workers[index].busy_for(now) > SUSPENDED_AFTER {
            self.note_suspension(core, now);
        }
        let began = core.workers[index].end_chunk(now);
        if core.run.outcome().is_some() {
            core.recorder.wasted(chunk, Activity::Dropped, began, now);
            self.device(chunk.lane).counters.drop();
            return Next::Exit;
        }
        let took = core.recorder.took(chunk.lane, began, now);
        // The worker may have ended the chunk early, because it was asked to yield.
        let gives_back = core.run.shrink(chunk.id, chunk.items.end, now);
        let verdict = core.run.chunk_ended_with_latency(chunk.id, took, now.saturating_sub(began), now);
        let accepted: SmallVec<[Range<u64>; 1]> = match verdict {
            Verdict::Accept => smallvec![chunk.items.clone()],
            Verdict::AcceptPart(parts) => parts.into(),
            Verdict::Drop => SmallVec::new(),
        };
        let count = |units: &Range<u64>| {
            let items = self.items_of(units);
            items.end - items.start
        };
        let counts = (count(&chunk.items), accepted.iter().map(count).sum());
        core.recorder.ended(chunk, began, counts, (done.copies.upload, done.copies.download), now);
        core.recorder.done_in_parts(chunk.lane, done.parts, now);
        core.run.done_in_parts(chunk.lane, done.parts);
        self.device(chunk.lane).counters.end(took);
        if chunk.purpose == Purpose::Canary {
            core.recorder.update_lane_states(&core.run, now);
        }
        let next = self.ask_within(core, index, chunk.lane, generation, now);
        // Nothing may panic from here until the results are kept: accepted units count as written.
        core.accept(&accepted);
        let has_ended = core.run.outcome().is_some();
        drop(guard);
        if !accepted.is_empty()
            && let Some(results) = results.take()
        {
            if in_place {
                // No other lane runs a unit of a chunk that is written in place, so all are accepted.
                results.leave_in_slots();
            } else {
                self.data.keep(chunk.items.start, results, &accepted);
            }
        }
        drop(results);
        drop(held);
        if self.data.window().is_some() {
            // A thread that found no results holds the lock until it waits, so it cannot miss this notification.
            drop(self.core());
            self.progress_made.notify_all();
        }
        if has_ended {
            self.notify_end();
        } else if chunk.purpose == Purpose::Canary || gives_back {
            // There may be work for lanes that wait.
            self.work_available.notify_all();
        }
        next
    }

    /// Combines the results of each unit of a chunk.
    fn fold_results<'s>(
        &self,
        lane: LaneIndex,
        fold: &Fold<T::Output>,
        mut results: Results<'s, T::Output>,
    ) -> Result<Results<'s, T::Output>> {
        let all = results.take();
        let folded = catch_panic(self.device(lane).id.clone(), "combining results", || Ok(fold(all)))?;
        results.extend(folded);
        Ok(results)
    }

    /// The run ended while a chunk was in flight.
    pub(super) fn ended(&self, index: usize, lane: LaneIndex) -> Next {
        if !self.core().workers[index].abandoned {
            self.device(lane).counters.drop();
        }
        Next::Exit
    }

    /// Gives a failed chunk back. Returns what comes next.
    pub(super) fn fail(
        self: &Arc<Self>,
        index: usize,
        chunk: &run::LaneChunk,
        error: Error,
        generation: u64,
    ) -> Next {
        let lane = chunk.lane;
        let mut core = self.core();
        let now = self.now();
        if core.workers[index].abandoned {
            return Next::Exit;
        }
        self.note_suspension(&mut core, now);
        let began = core.workers[index].end_chunk(now);
        let has_failed = !matches!(error, Error::Ended);
        if has_failed {
            self.device(lane).counters.fail()
        } else {
            self.device(lane).counters.drop()
        }
        if core.run.outcome().is_some() {
            return Next::Exit;
        }
        if !has_failed {
            // Other workers' results for these items were accepted, and the items were dropped.
            core.recorder.wasted(chunk, Activity::Dropped, began, now);
            core.run.chunk_dropped(chunk.id, now);
            return self.ask_within(&mut core, index, lane, generation, now);
        }
        core.recorder.wasted(chunk, Activity::Failure, began, now);
        log!(warn, device = %self.device(lane).id, items = ?chunk.items, %error, "chunk failed");
        let failure = FailureKind::from(&error);
        core.run.chunk_failed(chunk.id, failure, now);
        match failure {
            FailureKind::Task => core.task_error = Some(error),
            _ => core.keep_failure(self.device(lane), error, now),
        }
        core.record_lane_states(now);
        if core.run.state(lane) != LaneState::Healthy {
            // The lane is quarantined or retired, and all of its chunks were given back: its device is reopened, and its
            // other workers are replaced, since nothing would notice if one of them hung.
            self.device(lane).reopen(generation);
            self.replace(&mut core, lane, now, |activity| matches!(activity, WorkerActivity::Chunk(..)));
        }
        let next = self.ask_within(&mut core, index, lane, generation, now);
        drop(core);
        self.wake_all();
        next
    }
}
