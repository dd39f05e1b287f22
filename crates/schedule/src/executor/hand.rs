//! A hand: a thread that works on one lane's chunks, one after another.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};

use evener_device::{Error, Result};

use super::{Core, Doing, Feed, Hand, Results, Shared, panic_message};
use crate::{
    pool::Kept,
    run::{self, Answer, Failure, LaneIndex, Purpose, State, Time, Verdict},
    task::{Chunk, Items, Task},
};

/// What a hand is to do.
enum Next {
    Run(run::Chunk, Time),
    /// There is nothing at the moment.
    Idle(Option<Time>),
    /// Its device was opened afresh: so must be its state.
    Renew,
    /// Go: the run has ended, or another has taken its place.
    Go,
}

impl<T: Task> Shared<T> {
    /// Sends a hand to work on a lane. The lock is held by the caller: the hand is known before it begins.
    pub(super) fn hire(self: &Arc<Self>, core: &mut Core, lane: LaneIndex) {
        let number = core.hands.len();
        core.hands.push(Hand { lane, doing: Doing::Nothing, dismissed: false });
        let shared = self.clone();
        if let Err(why) = self.seats[lane].crew.go(move || shared.work_on(number, lane)) {
            core.hands[number].dismissed = true;
            let (device, operation) = (self.seats[lane].id.clone(), "starting a thread".to_owned());
            core.failures.push(Error::Lost { device, operation, detail: why.to_string() });
            core.run.lane_failed(lane, Failure::Unable, self.now());
            self.wake_all();
        }
    }

    /// A hand's whole life.
    fn work_on(self: Arc<Self>, me: usize, lane: LaneIndex) {
        let mut state: Option<Kept<T::State>> = None;
        let mut results = Vec::new();
        'ready: while let Some(kept) = self.make_ready(me, lane, state.take()) {
            let state = state.insert(kept);
            let mut next = self.ask(me, lane, state.generation);
            loop {
                match next {
                    Next::Go => break 'ready,
                    Next::Renew => continue 'ready,
                    Next::Idle(until) => {
                        if !self.rest(me, until) {
                            break 'ready;
                        }
                        next = self.ask(me, lane, state.generation);
                    }
                    Next::Run(chunk, began) => {
                        self.seats[lane].counters.begin();
                        let outcome = self.compute(&mut state.state, &chunk, &mut results);
                        next = match outcome {
                            Ok(copying) => self.finish(me, &chunk, began, copying, &mut results, state.generation),
                            Err(error) => self.fail(me, &chunk, began, error, state.generation),
                        };
                        results.clear();
                    }
                }
            }
        }
        if let Some(state) = state {
            self.shelf.put(lane, state, &self.seats[lane]);
        }
    }

    /// Has a state for a lane: the one that is there, one from an earlier run, or a new one. Nothing where the hand is
    /// to go.
    fn make_ready(
        self: &Arc<Self>,
        me: usize,
        lane: LaneIndex,
        state: Option<Kept<T::State>>,
    ) -> Option<Kept<T::State>> {
        let seat = &self.seats[lane];
        let mut at_hand = state.or_else(|| self.shelf.take(lane));
        loop {
            if !self.wait_until_trusted(me, lane) {
                return None;
            }
            let (device, generation) = seat.device();
            if let Some(kept) = at_hand.take().filter(|kept| kept.generation == generation) {
                self.core().account.ready(lane, self.now());
                return Some(kept);
            }
            self.core().hands[me].doing = Doing::Preparing(self.now());
            let prepared = guarded(seat.id.clone(), "preparing", || {
                let state = self.task.prepare(&device)?;
                let most = self.task.most_items(&state);
                Ok((state, most))
            });
            let mut core = self.core();
            let now = self.now();
            if core.hands[me].dismissed {
                return None;
            }
            core.hands[me].doing = Doing::Nothing;
            match prepared {
                Ok((state, most)) => {
                    core.account.ready(lane, now);
                    if self.unit == 1 {
                        core.run.limit(lane, most);
                    }
                    return Some(Kept { state, generation });
                }
                Err(error) => {
                    tracing::warn!(device = %seat.id, %error, "a device could not be made ready");
                    // Of several hands that fail for one reason, only the first counts.
                    if seat.renew(generation) || !core.run.is_awake(lane, now) {
                        core.run.lane_failed(lane, Failure::from(&error), now);
                    } else {
                        core.run.lane_failed(lane, Failure::Unable, now);
                    }
                    core.failures.push(error);
                    core.account.look_at_trust(&core.run, now);
                    self.wake_all();
                }
            }
        }
    }

    /// Waits out a lane's quarantine. Says whether there is something to be ready for.
    fn wait_until_trusted(&self, me: usize, lane: LaneIndex) -> bool {
        let mut core = self.core();
        loop {
            if core.hands[me].dismissed || core.run.outcome().is_some() {
                return false;
            }
            let now = self.now();
            match core.run.state(lane) {
                State::Quarantined { until } if until > now => core = self.wait_for_work(core, until - now),
                State::Retired => return false,
                State::Healthy | State::Quarantined { .. } => return true,
            }
        }
    }

    fn wait_for_work<'a>(&self, mut core: MutexGuard<'a, Core>, limit: Duration) -> MutexGuard<'a, Core> {
        core.waiting += 1;
        let mut core = self.work.wait_timeout(core, limit).unwrap_or_else(PoisonError::into_inner).0;
        core.waiting -= 1;
        core
    }

    /// Waits until something may have changed. Says whether to ask again.
    fn rest(&self, me: usize, until: Option<Time>) -> bool {
        /// Nobody is waited for longer than this without a look around.
        const LONGEST: Duration = Duration::from_millis(50);
        let core = self.core();
        // It may have ended between the asking and the lock.
        if core.hands[me].dismissed || core.run.outcome().is_some() {
            return false;
        }
        let limit = until.map_or(LONGEST, |until| until.saturating_sub(self.now()).min(LONGEST));
        drop(self.wait_for_work(core, limit));
        true
    }

    fn ask(&self, me: usize, lane: LaneIndex, generation: u64) -> Next {
        let mut core = self.core();
        let now = self.now();
        self.ask_within(&mut core, me, lane, generation, now)
    }

    fn ask_within(&self, core: &mut Core, me: usize, lane: LaneIndex, generation: u64, now: Time) -> Next {
        if core.hands[me].dismissed {
            return Next::Go;
        }
        if self.seats[lane].generation() != generation {
            return Next::Renew;
        }
        match core.run.ask(lane, now) {
            Answer::Run(chunk) => {
                core.hands[me].doing = Doing::Chunk(chunk.clone(), now);
                core.account.look(&core.run, now);
                tracing::trace!(lane, items = ?chunk.items, purpose = ?chunk.purpose, "a chunk begins");
                if chunk.purpose == Purpose::Rescue {
                    tracing::debug!(device = %self.seats[lane].id, items = ?chunk.items, "a rescue");
                }
                Next::Run(chunk, now)
            }
            Answer::Wait { until } => Next::Idle(until),
            Answer::Ended => Next::Go,
        }
    }

    /// Turns a chunk into results, checked and folded. Gives the time that went into copies.
    fn compute(
        &self,
        state: &mut T::State,
        chunk: &run::Chunk,
        results: &mut Vec<T::Output>,
    ) -> Result<Duration> {
        let device = &self.seats[chunk.lane].id;
        let items = self.items_of(&chunk.items);
        let copied;
        let feed = match &self.feed {
            Feed::Lent(lent) => Items::Lent(lent),
            Feed::Window(window) => {
                let window = window.lock().unwrap_or_else(PoisonError::into_inner);
                // What was accepted from somebody else may be gone.
                let Some(first) = items.start.checked_sub(window.first) else { return Err(Error::Ended) };
                copied = (window.copy)(&window.items, first as usize..(items.end - window.first) as usize);
                Items::Here(&copied)
            }
        };
        let work = Chunk::new(items, feed);
        guarded(device.clone(), "running a chunk", || {
            self.task.run(state, &work, results)?;
            if results.len() != work.len() {
                let message = format!("it gave {} results for {} items", results.len(), work.len());
                return Err(task_error(device, format!("task `{}`", self.task.name()), message));
            }
            let checked = work.read(|items| self.task.check(items, results))?;
            checked.map_err(|detail| Error::BadResult {
                device: device.clone(),
                operation: format!("checking items {:?}", work.range()),
                detail,
            })?;
            if let Some(fold) = &self.fold {
                *results = fold(std::mem::take(results));
            }
            Ok(work.copying())
        })
    }

    /// A chunk has ended well: its results are kept, if they are the first. Gives what comes next.
    fn finish(
        &self,
        me: usize,
        chunk: &run::Chunk,
        began: Time,
        copying: Duration,
        results: &mut Vec<T::Output>,
        generation: u64,
    ) -> Next {
        // From here to the writing, nobody takes the results away.
        let hold = match &self.results {
            Results::Slots(slots) => match slots.hold() {
                Some(hold) => Some(hold),
                None => return Next::Go,
            },
            Results::InOrder(_) => None,
        };
        let mut core = self.core();
        let now = self.now();
        if core.hands[me].dismissed {
            return Next::Go;
        }
        let core_mut = &mut *core;
        core_mut.hands[me].doing = Doing::Nothing;
        let took = core_mut.account.took(chunk.lane, began, now);
        let was_canary = chunk.purpose == Purpose::Canary;
        let verdict = core_mut.run.finished(chunk.id, took);
        let items = self.items_of(&chunk.items);
        core_mut.account.ended(chunk, began, verdict, items.end - items.start, now);
        core_mut.account.copied(chunk.lane, copying);
        self.seats[chunk.lane].counters.end(took);
        if was_canary {
            core_mut.account.look_at_trust(&core_mut.run, now);
        }
        if verdict == Verdict::Accept {
            core_mut.accepted.push(chunk.items.clone());
        }
        let next = self.ask_within(core_mut, me, chunk.lane, generation, now);
        let has_ended = core_mut.run.outcome().is_some();
        drop(core);
        if verdict == Verdict::Accept {
            match &self.results {
                // SAFETY: the slots are held; a unit is accepted once, so its slot is written once.
                #[allow(unsafe_code)]
                Results::Slots(slots) => unsafe { slots.write(chunk.items.start as usize, results) },
                Results::InOrder(waiting) => {
                    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                    waiting.insert(chunk.items.start, std::mem::take(results));
                    self.news.notify_all();
                }
            }
        }
        drop(hold);
        if has_ended {
            self.wake_all();
        }
        next
    }

    /// A chunk has failed. Gives what comes next.
    fn fail(&self, me: usize, chunk: &run::Chunk, began: Time, error: Error, generation: u64) -> Next {
        let lane = chunk.lane;
        let mut core = self.core();
        let now = self.now();
        self.seats[lane].counters.fail();
        if core.hands[me].dismissed || core.run.outcome().is_some() {
            return Next::Go;
        }
        core.hands[me].doing = Doing::Nothing;
        core.account.failed(chunk, began, now);
        if matches!(error, Error::Ended) {
            // Somebody else's results for these items were accepted, and the items are gone.
            core.run.failed(chunk.id, Failure::TooLarge, now);
            return self.ask_within(&mut core, me, lane, generation, now);
        }
        tracing::warn!(device = %self.seats[lane].id, items = ?chunk.items, %error, "a chunk failed");
        let failure = Failure::from(&error);
        core.run.failed(chunk.id, failure, now);
        match failure {
            Failure::Task => core.task_error = Some(error),
            _ => core.failures.push(error),
        }
        core.account.look_at_trust(&core.run, now);
        core.account.look(&core.run, now);
        if core.run.state(lane) != State::Healthy {
            // It begins afresh; so do the lane's other hands when they come to ask.
            self.seats[lane].renew(generation);
        }
        let next = self.ask_within(&mut core, me, lane, generation, now);
        drop(core);
        self.wake_all();
        next
    }
}

/// Runs the user's code. A panic becomes an error of the task.
fn guarded<R>(
    device: evener_device::DeviceId,
    operation: &str,
    work: impl FnOnce() -> Result<R>,
) -> Result<R> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => Err(task_error(&device, operation.to_owned(), panic_message(&*panic))),
    }
}

fn task_error(device: &evener_device::DeviceId, operation: String, message: String) -> Error {
    Error::Task { device: device.clone(), operation, item: None, message }
}
