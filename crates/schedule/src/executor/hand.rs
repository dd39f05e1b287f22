//! The workers of a run: each does chunks of one lane, one after another.

use std::{
    mem::MaybeUninit,
    ops::Range,
    ptr::NonNull,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use evener_device::{DeviceId, Error, Result};
use smallvec::SmallVec;

use super::{Core, Doing, Employer, Ends, Hand, Kept, Shared, Window, ticker::Ticks, work};
use crate::{
    contain::{contain, log},
    run::{self, Answer, Failure, LaneIndex, State, Time},
    sync::wait_timeout,
    task::{Chunk, Claims, Copies, Items, Results, Slots, Task, guarded, no_thread, perform, task_error},
    trace::Activity,
};

/// Threads that a thread wakes before it begins to work: enough that all are awake after two or three rounds, and so few
/// that the first ones are not kept from their work.
const WOKEN_AT_ONCE: usize = 3;

/// How a chunk was done.
pub(super) struct Done {
    /// How long copies took.
    pub(super) copies: Copies,
    /// How often the task was called.
    pub(super) parts: u64,
}

/// What a worker of a run is to do: a chunk, which was handed out then.
pub(super) type Next = super::Next<(run::Chunk, Time)>;

/// A worker of a run.
pub(crate) struct Worker<T: Task> {
    /// The number of its [`Hand`].
    me: usize,
    lane: LaneIndex,
    claims: Arc<Claims>,
    state: Option<Kept<T::State>>,
    /// Room for results that are not written in their places.
    scratch: Vec<MaybeUninit<T::Output>>,
    /// How many items of a stream had come when it last spun.
    spun: u64,
}

impl Core {
    /// A lane gets a worker, which is known before it begins.
    fn add_worker<T: Task>(&mut self, lane: LaneIndex) -> Worker<T> {
        let hand = Hand::new(lane);
        let (me, claims) = (self.hands.len(), hand.claims.clone());
        self.hands.push(hand);
        Worker { me, lane, claims, state: None, scratch: Vec::new(), spun: 0 }
    }
}

impl<T: Task, E: Ends<T>> Employer for Arc<Shared<T, E>> {
    type Worker = Worker<T>;
    type Work = (run::Chunk, Time);

    /// Has a state for a lane: the one that is there, one from an earlier run, or a new one.
    fn prepare(&self, worker: &mut Worker<T>) -> Next {
        let Worker { me, lane, ref mut state, .. } = *worker;
        let seat = self.seat(lane);
        let mut at_hand = state.take().or_else(|| self.shelf.take(seat));
        loop {
            let Some(mut core) = self.wait_until_trusted(me, lane) else {
                // It came too late, or is not needed: what it has taken is for the next run.
                *state = at_hand;
                return Next::Go;
            };
            let (device, generation) = seat.device();
            if let Some(kept) = at_hand.take_if(|kept| kept.generation == generation) {
                self.be_ready(&mut core, lane, &kept.state);
                let next = self.ask_within(&mut core, me, lane, generation, self.now());
                *state = Some(kept);
                return next;
            }
            core.hands[me].doing = Doing::Preparing(self.now());
            drop(core);
            // Dropping it is the task's code.
            at_hand = None;
            let resident = self.shelf.resident(seat, generation);
            let prepare = || self.task.prepare_with(&device, &resident);
            let prepared = guarded(seat.id.clone(), "preparing", prepare);
            let mut core = self.core();
            let now = self.now();
            if core.hands[me].dismissed {
                return Next::Go;
            }
            core.hands[me].doing = Doing::Nothing;
            match prepared {
                Ok(made) => {
                    self.be_ready(&mut core, lane, &made);
                    *state = Some(self.shelf.lend(seat, Kept::new(made, generation)));
                    return self.ask_within(&mut core, me, lane, generation, now);
                }
                Err(error) => {
                    log!(warn, device = %seat.id, %error, "a device could not be made ready");
                    let failure = Failure::from(&error);
                    // Of several hands that fail for one reason, only the first counts; the others try afresh.
                    if matches!(failure, Failure::Unable | Failure::Task) || seat.renew(generation) {
                        core.run.lane_failed(lane, failure, now);
                    }
                    core.keep_failure(error);
                    core.look(now);
                    self.wake_all();
                }
            }
        }
    }

    /// Does a chunk and tells how it went. Gives what comes next.
    fn run(&self, worker: &mut Worker<T>, (mut chunk, began): (run::Chunk, Time)) -> Next {
        let Worker { me, lane, ref claims, state: Some(ref mut state), ref mut scratch, .. } = *worker else {
            return Next::Prepare;
        };
        self.seat(lane).counters.begin();
        let in_place = self.ends.slots().filter(|_| chunk.exclusive && self.fold.is_none());
        let hold = in_place.map(Slots::hold);
        if let Some(None) = hold {
            return self.ended(me, lane);
        }
        let items = self.items_of(&chunk.items);
        let count = items.end - items.start;
        let slots = match in_place {
            Some(slots) => slots.start(chunk.items.start as usize..chunk.items.end as usize),
            None => {
                if (scratch.len() as u64) < count {
                    scratch.resize_with(count as usize, MaybeUninit::uninit);
                }
                NonNull::from(scratch.as_mut_slice()).cast()
            }
        };
        let claims = self.is_divisible(lane).then_some(&**claims);
        // SAFETY: the slots are held, or this worker's scratch memory, until the results are dropped or kept in `finish`.
        // No other lane is given those of an exclusive chunk, but for items that it steals: it has no room for items that
        // its worker has not claimed.
        #[allow(unsafe_code)]
        let mut results = unsafe {
            let mut results = Results::for_claims(slots);
            if claims.is_none() {
                results.make_room(count as usize);
            }
            results
        };
        let generation = state.generation;
        let outcome = self.compute(&mut state.state, &chunk, claims, &mut results);
        if let Some(claims) = &claims {
            // What is left to this worker is not stolen any more: all of it is claimed.
            chunk.items.end = chunk.items.start + u64::from(claims.end()).div_ceil(self.unit);
        }
        match outcome {
            Ok(done) => self.finish(me, &chunk, began, done, results, generation, in_place.is_some()),
            Err(error) => {
                // Dropping them is the user's code, and its panic would hide the error.
                contain(|| drop(results));
                // Whatever the task's own code was in the middle of, it has left it there.
                state.sound &= !matches!(error, Error::Task { .. });
                self.fail(me, &chunk, began, error, generation)
            }
        }
    }

    /// Waits until something may have changed, and asks again.
    fn rest(&self, worker: &mut Worker<T>, until: Option<Time>) -> Next {
        /// Nobody is waited for longer than this without a look around.
        const LONGEST: Duration = Duration::from_millis(50);
        let Worker { me, lane, state: Some(ref state), ref mut spun, .. } = *worker else {
            return Next::Prepare;
        };
        let window = self.ends.window();
        if let Some(window) = window {
            let seen = self.core().hands[me].seen;
            if window.spin(seen, spun) {
                return self.ask(me, lane, state.generation);
            }
        }
        let core = self.core();
        // It may have ended between the asking and the lock.
        if core.hands[me].dismissed || core.run.outcome().is_some() {
            return Next::Go;
        }
        let limit = until.map_or(LONGEST, |until| until.saturating_sub(self.now()).min(LONGEST));
        // A worker that has left what there is to others need not be told of more.
        let told = window.filter(|_| core.run.is_drained());
        told.into_iter().for_each(Window::begin_rest);
        let has_new = window.is_some_and(|window| window.arrived() != core.hands[me].seen);
        let core = if has_new { core } else { wait_timeout(&self.work, core, limit) };
        told.into_iter().for_each(Window::end_rest);
        let has_ended = core.run.outcome().is_some();
        drop(core);
        if has_ended {
            // Only one of those that wait was woken.
            self.work.notify_all();
            return Next::Go;
        }
        self.ask(me, lane, state.generation)
    }

    /// What it has made is for the next run.
    fn leave(&self, worker: &mut Worker<T>) {
        if let Some(state) = worker.state.take() {
            self.shelf.put(self.seat(worker.lane), state);
        }
    }

    /// What the worker had begun is done elsewhere, and its lane is not used any more.
    fn fall(&self, &mut Worker { me, lane, .. }: &mut Worker<T>, message: String) {
        let mut core = self.core();
        let now = self.now();
        let hand = &mut core.hands[me];
        if std::mem::replace(&mut hand.dismissed, true) {
            return;
        }
        if let Doing::Chunk(chunk, began) = std::mem::replace(&mut hand.doing, Doing::Nothing) {
            core.account.in_vain(&chunk, Activity::Failure, began, now);
            self.seat(lane).counters.fail();
        }
        let error = task_error(&self.seat(lane).id, "working on a lane".into(), message);
        log!(warn, device = %self.seat(lane).id, %error, "a worker is gone");
        core.keep_failure(error);
        core.run.lane_failed(lane, Failure::Unable, now);
        core.look(now);
        drop(core);
        self.wake_all();
    }
}

impl<T: Task, E: Ends<T>> Shared<T, E> {
    /// Has a worker begin on a lane. The lock is held by the caller.
    pub(super) fn hire(self: &Arc<Self>, core: &mut Core, lane: LaneIndex) {
        let worker = core.add_worker(lane);
        let me = worker.me;
        if let Err(why) = self.send(worker) {
            self.not_sent(core, me, &why);
        }
    }

    fn send(self: &Arc<Self>, worker: Worker<T>) -> std::io::Result<()> {
        let shared = self.clone();
        self.seat(worker.lane).crew.go(move || {
            shared.hire_some();
            work(&shared, worker, Next::Prepare);
        })
    }

    /// There was no thread for a worker: its lane is not used any more.
    fn not_sent(&self, core: &mut Core, me: usize, why: &std::io::Error) {
        core.hands[me].dismissed = true;
        let lane = core.hands[me].lane;
        core.keep_failure(no_thread(&self.seat(lane).id, why));
        core.run.lane_failed(lane, Failure::Unable, self.now());
        self.wake_all();
    }

    /// Has the next few workers begin: each of them does the same, so that all are awake soon. Waking a thread takes
    /// longer than anything that is done under the lock, so it is not held meanwhile.
    pub(super) fn hire_some(self: &Arc<Self>) {
        let mut is_sent = false;
        while !is_sent {
            let mut core = self.core();
            if core.run.outcome().is_some() {
                core.to_hire.clear();
            }
            let first = core.to_hire.len().saturating_sub(WOKEN_AT_ONCE);
            let lanes: SmallVec<[LaneIndex; WOKEN_AT_ONCE]> = core.to_hire.drain(first..).rev().collect();
            let workers = lanes.into_iter().map(|lane| core.add_worker(lane));
            let workers: SmallVec<[Worker<T>; WOKEN_AT_ONCE]> = workers.collect();
            drop(core);
            is_sent = workers.is_empty();
            // A thread that comes sends others; where none does, the next lanes are tried.
            for worker in workers {
                let me = worker.me;
                match self.send(worker) {
                    Ok(()) => is_sent = true,
                    Err(why) => self.not_sent(&mut self.core(), me, &why),
                }
            }
        }
    }

    /// The thread that started the run works on a lane itself for as long as there is something to do, and looks after
    /// the run between chunks, which end every few milliseconds; then a hand takes over.
    pub(super) fn lend_a_hand(self: &Arc<Self>, lane: LaneIndex, mut look_after: impl FnMut()) {
        let seat = self.seat(lane);
        let (device, generation) = seat.device();
        let new = || {
            let resident = self.shelf.resident(seat, generation);
            let prepare = || self.task.prepare_with(&device, &resident);
            let state = guarded(seat.id.clone(), "preparing", prepare).ok()?;
            Some(self.shelf.lend(seat, Kept::new(state, generation)))
        };
        // What goes wrong here goes wrong again for the hand, who tells.
        if let Some(state) = self.shelf.take(seat).or_else(new) {
            let mut core = self.core();
            let mut worker = core.add_worker(lane);
            let _ticks = Ticks::begin(&worker.claims);
            self.be_ready(&mut core, lane, &state.state);
            drop(core);
            let mut next = self.ask(worker.me, lane, state.generation);
            worker.state = Some(state);
            while let Next::Run(work) = next {
                next = self.run(&mut worker, work);
                look_after();
            }
            self.core().hands[worker.me].dismissed = true;
            self.leave(&mut worker);
        }
        let mut core = self.core();
        if core.run.outcome().is_none() {
            self.hire(&mut core, lane);
        }
    }

    /// A lane has a hand with a state that chunks must fit.
    fn be_ready(&self, core: &mut Core, lane: LaneIndex, state: &T::State) {
        core.account.ready(lane, self.now());
        core.run.limit(lane, self.task.max_items(state) / self.unit);
    }

    /// Waits out a lane's quarantine. Gives the lock where there is something to be ready for.
    fn wait_until_trusted(&self, me: usize, lane: LaneIndex) -> Option<MutexGuard<'_, Core>> {
        let mut core = self.core();
        loop {
            if core.run.outcome().is_some() {
                drop(core);
                self.work.notify_all();
                return None;
            }
            if core.hands[me].dismissed {
                return None;
            }
            let now = self.now();
            match core.run.state(lane) {
                State::Quarantined { until } if until > now => {
                    core = wait_timeout(&self.work, core, until - now)
                }
                State::Retired => return None,
                State::Healthy | State::Quarantined { .. } => return Some(core),
            }
        }
    }

    fn ask(&self, me: usize, lane: LaneIndex, generation: u64) -> Next {
        let mut core = self.core();
        let now = self.now();
        self.ask_within(&mut core, me, lane, generation, now)
    }

    pub(super) fn ask_within(
        &self,
        core: &mut Core,
        me: usize,
        lane: LaneIndex,
        generation: u64,
        now: Time,
    ) -> Next {
        if core.hands[me].dismissed {
            return Next::Go;
        }
        if self.seat(lane).generation() != generation {
            return Next::Prepare;
        }
        if let Some(window) = self.ends.window() {
            window.announce(core);
            core.hands[me].seen = window.announced();
        }
        let mut answer = match self.steal_most(core, lane, now) {
            Some(answer) => answer,
            None => {
                self.note_progress(core, now);
                core.run.ask(lane, now)
            }
        };
        while let Answer::Steal { from, part, most } = answer {
            let taken = self.steal(core, from, part, most);
            answer = core.run.stolen(lane, from, taken, now);
        }
        match answer {
            Answer::Run(chunk) => {
                if self.is_divisible(lane) {
                    let items = self.items_of(&chunk.items);
                    core.hands[me].claims.begin(items.end - items.start);
                }
                if let Some(window) = self.ends.window() {
                    window.hand_out(&chunk.items);
                }
                core.hands[me].doing = Doing::Chunk(chunk.clone(), now);
                log!(trace, lane, items = ?chunk.items, purpose = ?chunk.purpose, "a chunk begins");
                Next::Run((chunk, now))
            }
            Answer::Wait { until } => Next::Rest { until },
            Answer::Ended | Answer::Steal { .. } => Next::Go,
        }
    }

    /// Half of the items that the worker with most of them has not claimed, where the decisions leave it to the workers. A
    /// lane that finds too few waits a moment before it asks.
    fn steal_most(&self, core: &mut Core, lane: LaneIndex, now: Time) -> Option<Answer> {
        let least = core.run.least_worth_stealing(lane)?.saturating_mul(self.unit);
        let free = |hand: &Hand| match &hand.doing {
            Doing::Chunk(chunk, _) if !hand.dismissed => Some((hand.claims.unclaimed(), chunk.id)),
            _ => None,
        };
        let most = core.hands.iter().filter_map(free).max();
        let from = most.filter(|(free, from)| *free >= least && core.run.can_be_stolen_from(*from));
        let taken = from.and_then(|(_, from)| Some((from, self.steal(core, from, 0.5, u64::MAX)?)));
        match taken {
            Some((from, items)) => Some(core.run.stolen(lane, from, Some(items), now)),
            None => core.run.found_nothing(lane, now).map(|until| Answer::Wait { until: Some(until) }),
        }
    }

    /// Tells the decisions how far the workers have come, where a lane may steal next.
    fn note_progress(&self, core: &mut Core, now: Time) {
        if !core.run.may_steal(now) {
            return;
        }
        for hand in core.hands.iter().filter(|hand| self.is_divisible(hand.lane) && !hand.dismissed) {
            if let Doing::Chunk(chunk, _) = &hand.doing {
                let begun = u64::from(hand.claims.claimed()).div_ceil(self.unit);
                core.run.note_begun(chunk.id, chunk.items.start + begun, now);
            }
        }
    }

    /// Takes units from a chunk that its worker has not begun.
    fn steal(&self, core: &Core, from: u64, part: f64, most: u64) -> Option<Range<u64>> {
        let victim = core.hands.iter().find(|hand| hand.has(from))?;
        let Doing::Chunk(chunk, _) = &victim.doing else { return None };
        let most = most.saturating_mul(self.unit);
        let taken = victim.claims.steal(part, most, self.unit as u32)?;
        let unit = |items: u32| chunk.items.start + u64::from(items).div_ceil(self.unit);
        Some(unit(taken.start)..unit(taken.end))
    }

    /// Turns a chunk into results, and checks them.
    fn compute<'s>(
        &self,
        state: &'s mut T::State,
        chunk: &run::Chunk,
        claims: Option<&Claims>,
        results: &mut Results<'s, T::Output>,
    ) -> Result<Done> {
        let device = &self.seat(chunk.lane).id;
        let range = self.items_of(&chunk.items);
        let at_once = chunk.at_once.saturating_mul(self.unit);
        self.ends.with_items(&range, |items| {
            let mut work = Chunk::new(range.clone(), items);
            if let Some(claims) = claims {
                if at_once < range.end - range.start {
                    // The items are lent once for all parts: plain code looks at them all the time anyway.
                    let parts = |items: &[T::Input]| {
                        self.compute_parts(state, device, (range.start, items), claims, at_once, results)
                    };
                    return work.read(parts)?;
                }
                work = work.divisible(claims, 0, self.unit as u32);
            }
            Ok(Done { copies: perform(&self.task, device, state, &work, results)?, parts: 1 })
        })
    }

    /// The same where the task is not to be given all items at once: part by part, for as long as the worker has any left.
    /// The first of them has this number in the run.
    fn compute_parts(
        &self,
        state: &mut T::State,
        device: &DeviceId,
        (first, items): (u64, &[T::Input]),
        claims: &Claims,
        at_once: u64,
        results: &mut Results<'_, T::Output>,
    ) -> Result<Done> {
        let mut done = Done { copies: Copies::default(), parts: 0 };
        let mut begun = 0;
        while begun < claims.end() {
            let end = u64::from(begun).saturating_add(at_once).min(items.len() as u64);
            let here = Items::Here(&items[begun as usize..end as usize]);
            let work = Chunk::new(first + u64::from(begun)..first + end, here);
            let work = work.divisible(claims, begun, self.unit as u32);
            // SAFETY: the part is added, or dropped, before `results` is used again.
            #[allow(unsafe_code)]
            let mut part = unsafe { results.next_part() };
            let copies = match perform(&self.task, device, state, &work, &mut part) {
                Ok(copies) => copies,
                Err(error) => {
                    // Dropping results is the user's code, and its panic would hide the error.
                    contain(|| drop(part));
                    return Err(error);
                }
            };
            begun += part.len() as u32;
            done.parts += u64::from(!part.is_empty());
            done.copies.up += copies.up;
            done.copies.down += copies.down;
            results.add_part(part);
        }
        Ok(done)
    }
}
