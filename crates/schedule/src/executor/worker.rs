//! The workers of a run: each does chunks of one lane, one after another.

use std::{
    mem::MaybeUninit,
    ops::Range,
    ptr::NonNull,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use evener_device::{Device, DeviceId, Error, Result};
use smallvec::SmallVec;

use super::{
    CachedState, Core, PoolDevice, RunContext, RunData, Window, WorkSource, WorkerActivity, WorkerEntry,
    run_worker, ticker::YieldTicks,
};
use crate::{
    contain::{contain, log},
    run::{self, Answer, FailureKind, LaneIndex, LaneState, Time},
    sync::wait_timeout,
    task::{
        Chunk, Claims, CopyTimes, Items, ResultSlots, Results, Task, catch_panic, run_chunk, task_error,
        thread_error,
    },
    trace::Activity,
};

/// Number of threads that a worker wakes before it begins its own work: enough that all threads are awake after two or
/// three rounds, few enough that the first threads begin soon.
const WOKEN_AT_ONCE: usize = 3;

/// Measurements of a chunk.
pub(super) struct ChunkStats {
    /// The time of its copies.
    pub(super) copies: CopyTimes,
    /// How often the task was called.
    pub(super) parts: u64,
}

/// What a worker of a run does next.
pub(super) type Next = super::Next<run::LaneChunk>;

/// A worker of a run.
pub(crate) struct RunWorker<T: Task> {
    /// The index of its [`WorkerEntry`].
    index: usize,
    lane: LaneIndex,
    claims: Arc<Claims>,
    state: Option<CachedState<T::State>>,
    /// Memory for results that are not written in place.
    scratch: Vec<MaybeUninit<T::Output>>,
    /// How many items of a stream had arrived when it last spun.
    spun: u64,
}

impl Core {
    /// Adds a worker of a lane, before its thread starts.
    fn add_worker<T: Task>(&mut self, lane: LaneIndex) -> RunWorker<T> {
        let entry = WorkerEntry::new(lane);
        let (index, claims) = (self.workers.len(), entry.claims.clone());
        self.workers.push(entry);
        RunWorker { index, lane, claims, state: None, scratch: Vec::new(), spun: 0 }
    }
}

impl<T: Task, E: RunData<T>> WorkSource for Arc<RunContext<T, E>> {
    type Worker = RunWorker<T>;
    type Work = run::LaneChunk;

    /// Gets a state for the worker: its own, a cached one, or a new one.
    fn prepare(&self, worker: &mut RunWorker<T>) -> Next {
        let RunWorker { index, lane, ref mut state, .. } = *worker;
        let pool_device = self.device(lane);
        let mut available = state.take().or_else(|| self.states.take(pool_device));
        loop {
            let Some(mut core) = self.wait_out_quarantine(index, lane) else {
                // The worker is not needed: `exit` returns the state to the cache.
                *state = available;
                return Next::Exit;
            };
            let (device, generation) = pool_device.device();
            if let Some(kept) = available.take_if(|it| it.generation == generation) {
                self.mark_ready(&mut core, lane, kept.max_items);
                let next = self.ask_within(&mut core, index, lane, generation, self.now());
                *state = Some(kept);
                return next;
            }
            drop(core);
            let is_there = pool_device.is_there();
            let mut core = self.core();
            let began = self.now();
            if !is_there && core.run.lane_awaited(lane, began) {
                log!(debug, device = %pool_device.id, "a device is not there yet");
                core.record_lane_states(began);
                drop(core);
                self.wake_all();
                continue;
            }
            core.workers[index].activity = WorkerActivity::Preparing(began);
            drop(core);
            // Dropping a state runs the task's code, so it happens without the lock.
            available = None;
            let prepared = self.make_state(pool_device, &device, generation);
            let mut core = self.core();
            let now = self.now();
            if core.workers[index].abandoned {
                return Next::Exit;
            }
            core.workers[index].activity = WorkerActivity::Idle;
            core.recorder.prepared(lane, began, now);
            match prepared {
                Ok(made) => {
                    self.mark_ready(&mut core, lane, made.max_items);
                    *state = Some(made);
                    return self.ask_within(&mut core, index, lane, generation, now);
                }
                Err(error) => {
                    log!(warn, device = %pool_device.id, %error, "preparing a device failed");
                    let failure = FailureKind::from(&error);
                    // If several workers of a lane fail because their device was lost, the first one reopens it, and only
                    // its failure counts against the lane; the others try again.
                    if matches!(failure, FailureKind::Unable | FailureKind::Task)
                        || pool_device.reopen(generation)
                    {
                        core.run.lane_failed(lane, failure, now);
                    }
                    core.keep_failure(pool_device, error, now);
                    core.record_lane_states(now);
                    self.wake_all();
                }
            }
        }
    }

    /// Runs a chunk and reports the result. Returns what comes next.
    fn run(&self, worker: &mut RunWorker<T>, mut chunk: run::LaneChunk) -> Next {
        let RunWorker { index, lane, ref claims, state: Some(ref mut state), ref mut scratch, .. } = *worker
        else {
            return Next::Prepare;
        };
        self.device(lane).counters.begin();
        let in_place = self.data.slots().filter(|_| chunk.exclusive && self.fold.is_none());
        let guard = in_place.map(ResultSlots::guard);
        if let Some(None) = guard {
            return self.ended(index, lane);
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
        // SAFETY: the slots are valid until the results are dropped or kept in `finish`: they are this worker's scratch
        // memory, or `guard` keeps the caller's memory. No other thread writes to them: `Run` gives the items of an exclusive
        // chunk to no other lane (`Run::may_be_exclusive`), except items that are stolen, and `Claims` lets a worker write
        // results of claimed items only, which are never stolen.
        #[allow(unsafe_code)]
        let mut results = unsafe {
            let mut results = Results::for_claims(slots);
            if claims.is_none() {
                results.set_capacity(count as usize);
            }
            results
        };
        let generation = state.generation;
        let outcome = self.compute(&mut state.state, &chunk, claims, &mut results);
        if let Some(claims) = &claims {
            // The worker has claimed all items that it kept, so none is stolen from here on.
            chunk.items.end = chunk.items.start + u64::from(claims.end()).div_ceil(self.unit);
        }
        match outcome {
            Ok(done) => self.finish(index, &chunk, done, results, generation, in_place.is_some()),
            Err(error) => {
                // Dropping results runs the user's code, whose panic would hide the error.
                contain(|| drop(results));
                // The task's own error may have left its state half changed.
                state.is_reusable &= !matches!(error, Error::Task { .. });
                self.fail(index, &chunk, error, generation)
            }
        }
    }

    /// Waits until there may be work, and asks again.
    fn wait(&self, worker: &mut RunWorker<T>, until: Option<Time>) -> Next {
        /// A worker asks again at least this often.
        const LONGEST: Duration = Duration::from_millis(50);
        let RunWorker { index, lane, state: Some(ref state), ref mut spun, .. } = *worker else {
            return Next::Prepare;
        };
        let window = self.data.window();
        if let Some(window) = window {
            let seen = self.core().workers[index].seen;
            if window.spin(seen, spun) {
                return self.ask(index, lane, state.generation);
            }
        }
        let core = self.core();
        // The run may have ended since the worker asked.
        if core.workers[index].abandoned || core.run.outcome().is_some() {
            return Next::Exit;
        }
        let limit = until.map_or(LONGEST, |until| until.saturating_sub(self.now()).min(LONGEST));
        // A worker that left the remaining items to others need not be woken for more.
        let woken_by = window.filter(|_| core.run.is_drained());
        woken_by.into_iter().for_each(Window::begin_wait);
        let has_new = |core: &Core| window.is_some_and(|window| window.arrived() != core.workers[index].seen);
        let core = if has_new(&core) { core } else { self.wait_for_work(core, limit) };
        woken_by.into_iter().for_each(Window::end_wait);
        let (has_ended, has_new) = (core.run.outcome().is_some(), has_new(&core));
        drop(core);
        if has_ended {
            // `notify_end` woke one waiting worker only.
            self.work_available.notify_all();
            return Next::Exit;
        }
        let next = self.ask(index, lane, state.generation);
        if has_new && matches!(next, Next::Wait { .. }) {
            // This worker leaves the new items to others, and may have been woken in the place of one that would take them.
            self.work_available.notify_all();
        }
        next
    }

    /// Returns the worker's state to the cache.
    fn exit(&self, worker: &mut RunWorker<T>) {
        if let Some(state) = worker.state.take() {
            self.states.put(self.device(worker.lane), state);
        }
    }

    /// Gives the worker's chunk back, and retires its lane.
    fn panicked(&self, &mut RunWorker { index, lane, .. }: &mut RunWorker<T>, message: String) {
        let mut core = self.core();
        let now = self.now();
        let entry = &mut core.workers[index];
        if std::mem::replace(&mut entry.abandoned, true) {
            return;
        }
        if let WorkerActivity::Chunk(chunk, began) =
            std::mem::replace(&mut entry.activity, WorkerActivity::Idle)
        {
            core.recorder.wasted(&chunk, Activity::Failure, began, now);
            self.device(lane).counters.fail();
        }
        let error = task_error(&self.device(lane).id, "working on a lane".into(), message);
        log!(warn, device = %self.device(lane).id, %error, "a worker panicked");
        core.keep_failure(self.device(lane), error, now);
        core.run.lane_failed(lane, FailureKind::Unable, now);
        core.record_lane_states(now);
        drop(core);
        self.wake_all();
    }
}

impl<T: Task, E: RunData<T>> RunContext<T, E> {
    /// Starts a worker on a lane. The caller holds the lock.
    pub(super) fn start_worker(self: &Arc<Self>, core: &mut Core, lane: LaneIndex) {
        let worker = core.add_worker(lane);
        let index = worker.index;
        if let Err(error) = self.spawn(worker) {
            self.worker_not_started(core, index, &error);
        }
    }

    fn spawn(self: &Arc<Self>, worker: RunWorker<T>) -> std::io::Result<()> {
        let shared = self.clone();
        self.device(worker.lane).threads.spawn(self.owner, move || {
            shared.start_some_workers();
            run_worker(&shared, worker, Next::Prepare);
        })
    }

    /// Retires the lane of a worker for which the system gave no thread.
    fn worker_not_started(&self, core: &mut Core, index: usize, error: &std::io::Error) {
        core.workers[index].abandoned = true;
        let lane = core.workers[index].lane;
        let now = self.now();
        core.keep_failure(self.device(lane), thread_error(&self.device(lane).id, error), now);
        core.run.lane_failed(lane, FailureKind::Unable, now);
        core.record_lane_states(now);
        self.wake_all();
    }

    /// Starts the next few workers. Each of them does the same, so that all are awake soon. Waking a thread takes longer
    /// than anything that is done under the lock, so it happens without the lock.
    pub(super) fn start_some_workers(self: &Arc<Self>) {
        let mut is_started = false;
        while !is_started {
            let mut core = self.core();
            if core.run.outcome().is_some() {
                core.lanes_to_start.clear();
            }
            let first = core.lanes_to_start.len().saturating_sub(WOKEN_AT_ONCE);
            let lanes: SmallVec<[LaneIndex; WOKEN_AT_ONCE]> =
                core.lanes_to_start.drain(first..).rev().collect();
            let workers = lanes.into_iter().map(|lane| core.add_worker(lane));
            let workers: SmallVec<[RunWorker<T>; WOKEN_AT_ONCE]> = workers.collect();
            drop(core);
            is_started = workers.is_empty();
            // A worker that starts will start others; if none does, the next lanes are tried here.
            for worker in workers {
                let index = worker.index;
                match self.spawn(worker) {
                    Ok(()) => is_started = true,
                    Err(error) => self.worker_not_started(&mut self.core(), index, &error),
                }
            }
        }
    }

    /// Runs chunks of a lane on the thread that started the run, for as long as there are any, and calls `between_chunks`
    /// after each, which is every few milliseconds. Then a worker takes over.
    pub(super) fn work_on_lane(self: &Arc<Self>, lane: LaneIndex, mut between_chunks: impl FnMut()) {
        let pool_device = self.device(lane);
        let (device, generation) = pool_device.device();
        let new = || self.make_state(pool_device, &device, generation).ok();
        // An error here happens again in the worker, which reports it.
        if let Some(state) = self.states.take(pool_device).or_else(new) {
            let mut core = self.core();
            let mut worker = core.add_worker(lane);
            let _ticks = YieldTicks::begin(&worker.claims);
            self.mark_ready(&mut core, lane, state.max_items);
            drop(core);
            let mut next = self.ask(worker.index, lane, state.generation);
            worker.state = Some(state);
            while let Next::Run(work) = next {
                next = self.run(&mut worker, work);
                between_chunks();
            }
            self.core().workers[worker.index].abandoned = true;
            self.exit(&mut worker);
        }
        let mut core = self.core();
        if core.run.outcome().is_none() {
            self.start_worker(&mut core, lane);
        }
    }

    /// Records that a lane is ready, and limits its chunks to what its state can hold.
    fn mark_ready(&self, core: &mut Core, lane: LaneIndex, max_items: u64) {
        core.recorder.ready(lane, self.now());
        core.run.limit(lane, max_items / self.unit);
    }

    /// Makes a state of the task on a generation of a device. Called without the lock, since this runs the task's code.
    fn make_state(
        &self,
        pool_device: &PoolDevice,
        device: &Device,
        generation: u64,
    ) -> Result<CachedState<T::State>> {
        let resident = self.states.resident(pool_device, generation);
        let prepare = || {
            let state = self.task.prepare_with(device, &resident)?;
            let max_items = self.task.max_items(&state);
            Ok(CachedState::new(state, generation, max_items))
        };
        let made = catch_panic(pool_device.id.clone(), "preparing the device", prepare)?;
        Ok(self.states.track(pool_device, made))
    }

    /// Waits until there may be work, or the limit has passed.
    fn wait_for_work<'s>(&'s self, mut core: MutexGuard<'s, Core>, limit: Duration) -> MutexGuard<'s, Core> {
        core.waiting += 1;
        let mut core = wait_timeout(&self.work_available, core, limit);
        core.waiting -= 1;
        core
    }

    /// Waits until a lane's quarantine is over. Returns the lock, or `None` if the worker is not needed any more.
    fn wait_out_quarantine(&self, index: usize, lane: LaneIndex) -> Option<MutexGuard<'_, Core>> {
        let mut core = self.core();
        loop {
            if core.run.outcome().is_some() {
                drop(core);
                self.work_available.notify_all();
                return None;
            }
            if core.workers[index].abandoned {
                return None;
            }
            let now = self.now();
            match core.run.state(lane) {
                LaneState::Quarantined { until } if until > now => {
                    core = self.wait_for_work(core, until - now)
                }
                LaneState::Retired => return None,
                LaneState::Healthy | LaneState::Quarantined { .. } => return Some(core),
            }
        }
    }

    fn ask(&self, index: usize, lane: LaneIndex, generation: u64) -> Next {
        let mut core = self.core();
        let now = self.now();
        self.ask_within(&mut core, index, lane, generation, now)
    }

    pub(super) fn ask_within(
        &self,
        core: &mut Core,
        index: usize,
        lane: LaneIndex,
        generation: u64,
        now: Time,
    ) -> Next {
        if core.workers[index].abandoned {
            return Next::Exit;
        }
        if self.device(lane).generation() != generation {
            return Next::Prepare;
        }
        self.tell_status(core, now);
        if let Some(window) = self.data.window() {
            window.announce(core);
            core.workers[index].seen = window.announced();
        }
        if let Some(end) = self.device(lane).available_until() {
            let end = end.map(|end| end.saturating_duration_since(self.start));
            // A chunk would fail on a device that is gone. Opening it again says whether it is.
            if core.run.set_end(lane, end) && self.device(lane).reopen(generation) {
                return Next::Prepare;
            }
        }
        let mut answer = match self.steal_most(core, lane, now) {
            Some(answer) => answer,
            None => {
                self.note_progress(core, now);
                core.run.ask(lane, now)
            }
        };
        while let Answer::Steal { from, fraction, max_items } = answer {
            let taken = self.steal(core, from, fraction, max_items);
            answer = core.run.stolen(lane, from, taken, now);
        }
        match answer {
            Answer::Run(chunk) => {
                if self.is_divisible(lane) {
                    let items = self.items_of(&chunk.items);
                    core.workers[index].claims.begin(items.end - items.start);
                }
                if let Some(window) = self.data.window() {
                    window.hand_out(&chunk.items);
                }
                core.workers[index].activity = WorkerActivity::Chunk(chunk.clone(), now);
                core.recorder.began(&chunk, now);
                log!(trace, lane, items = ?chunk.items, purpose = ?chunk.purpose, "chunk started");
                Next::Run(chunk)
            }
            Answer::Wait { until } => Next::Wait { until },
            Answer::Ended | Answer::Steal { .. } => Next::Exit,
        }
    }

    /// Steals half of the unclaimed items of the worker that has most of them, if the run leaves the choice to the workers.
    /// A lane that finds too few waits a moment before it asks the run.
    fn steal_most(&self, core: &mut Core, lane: LaneIndex, now: Time) -> Option<Answer> {
        let least = core.run.min_steal_items(lane)?.saturating_mul(self.unit);
        let unclaimed = |worker: &WorkerEntry| match &worker.activity {
            WorkerActivity::Chunk(chunk, _) if !worker.abandoned => {
                Some((worker.claims.unclaimed(), chunk.id))
            }
            _ => None,
        };
        let most = core.workers.iter().filter_map(unclaimed).max();
        let from = most.filter(|(unclaimed, from)| *unclaimed >= least && core.run.can_be_stolen_from(*from));
        let taken = from.and_then(|(_, from)| Some((from, self.steal(core, from, 0.5, u64::MAX)?)));
        match taken {
            Some((from, items)) => Some(core.run.stolen(lane, from, Some(items), now)),
            None => core.run.found_nothing(lane, now).map(|until| Answer::Wait { until: Some(until) }),
        }
    }

    /// Reports the workers' progress to the run, if it may decide to steal next.
    fn note_progress(&self, core: &mut Core, now: Time) {
        if !core.run.may_steal(now) {
            return;
        }
        for worker in core.workers.iter().filter(|worker| self.is_divisible(worker.lane) && !worker.abandoned)
        {
            if let WorkerActivity::Chunk(chunk, _) = &worker.activity {
                let begun = u64::from(worker.claims.claimed()).div_ceil(self.unit);
                core.run.note_begun(chunk.id, chunk.items.start + begun, now);
            }
        }
    }

    /// Takes units that its worker has not claimed from the end of a chunk.
    fn steal(&self, core: &Core, from: u64, fraction: f64, max_units: u64) -> Option<Range<u64>> {
        let victim = core.workers.iter().find(|worker| worker.has(from))?;
        let WorkerActivity::Chunk(chunk, _) = &victim.activity else { return None };
        let max_items = max_units.saturating_mul(self.unit);
        let taken = victim.claims.steal(fraction, max_items, self.unit as u32)?;
        let unit = |items: u32| chunk.items.start + u64::from(items).div_ceil(self.unit);
        Some(unit(taken.start)..unit(taken.end))
    }

    /// Computes a chunk's results, and checks them.
    fn compute<'s>(
        &self,
        state: &'s mut T::State,
        chunk: &run::LaneChunk,
        claims: Option<&Claims>,
        results: &mut Results<'s, T::Output>,
    ) -> Result<ChunkStats> {
        let device = &self.device(chunk.lane).id;
        let range = self.items_of(&chunk.items);
        let at_once = chunk.at_once.saturating_mul(self.unit);
        self.data.with_items(&range, |items| {
            let mut work = Chunk::new(range.clone(), items);
            if let Some(claims) = claims {
                if at_once < range.end - range.start {
                    // The items are borrowed once for all parts, since plain code reads them all the time.
                    let parts = |items: &[T::Input]| {
                        self.compute_parts(state, device, (range.start, items), claims, at_once, results)
                    };
                    return work.read(parts)?;
                }
                work = work.divisible(claims, 0, self.unit as u32);
            }
            Ok(ChunkStats { copies: run_chunk(&self.task, device, state, &work, results)?, parts: 1 })
        })
    }

    /// Computes a chunk in parts of `at_once` items, for as long as the worker has items left. `first` is the number of the
    /// chunk's first item in the run.
    fn compute_parts(
        &self,
        state: &mut T::State,
        device: &DeviceId,
        (first, items): (u64, &[T::Input]),
        claims: &Claims,
        at_once: u64,
        results: &mut Results<'_, T::Output>,
    ) -> Result<ChunkStats> {
        let mut done = ChunkStats { copies: CopyTimes::default(), parts: 0 };
        let mut begun = 0;
        while begun < claims.end() {
            let end = u64::from(begun).saturating_add(at_once).min(items.len() as u64);
            let here = Items::Slice(&items[begun as usize..end as usize]);
            let work = Chunk::new(first + u64::from(begun)..first + end, here);
            let work = work.divisible(claims, begun, self.unit as u32);
            // SAFETY: `results` is not used while the part lives: the part is dropped below, or consumed by `append_segment`.
            #[allow(unsafe_code)]
            let mut part = unsafe { results.next_segment() };
            let copies = match run_chunk(&self.task, device, state, &work, &mut part) {
                Ok(copies) => copies,
                Err(error) => {
                    // Dropping results runs the user's code, whose panic would hide the error.
                    contain(|| drop(part));
                    return Err(error);
                }
            };
            begun += part.len() as u32;
            done.parts += u64::from(!part.is_empty());
            done.copies.upload += copies.upload;
            done.copies.download += copies.download;
            results.append_segment(part);
        }
        Ok(done)
    }
}
