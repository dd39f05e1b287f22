//! Drives a [`Run`] with real devices in real time.
//!
//! Each lane has workers: threads that ask the run for a chunk, run it, and report the result. There is no dispatcher
//! thread: a worker takes the lock, reports what it did, gets its next chunk, and releases the lock. The thread that started
//! the run watches for hung chunks, the deadline and cancellation, and reports progress.
//!
//! A worker that a hung device blocks is abandoned: another takes its place on the reopened device, and later results of
//! the first are dropped. So workers own all that they hold, and borrow the caller's items only for a moment
//! ([`LentItems`](crate::task::LentItems)).

mod data;
mod finish;
mod follow;
mod outcome;
mod pool_device;
mod spin_budget;
mod state_cache;
mod thread_cache;
mod ticker;
mod watch;
mod window;
mod worker;
mod worker_loop;

use std::{
    ops::Range,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, TryLockError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    time::{Duration, Instant},
};

use evener_device::Error;

use self::ticker::SuspensionClock;
pub(crate) use self::{
    data::{RunData, SliceData, StreamData},
    follow::RunChoice,
    pool_device::PoolDevice,
    spin_budget::SpinBudget,
    state_cache::{CachedState, StateCache},
    thread_cache::{ThreadCache, next_owner},
    ticker::RunTicks,
    watch::{Control, GetReserve, Reserve, StopReason},
    window::{ReadAhead, Window},
    worker_loop::{Next, WorkSource, run_worker},
};
use crate::{
    contain::log,
    error::DoneItems,
    events::RunEvents,
    recorder::Recorder,
    run::{LaneIndex, Run, Time},
    sync::lock,
    task::{Claims, MAX_DIVISIBLE_ITEMS, Task},
    trace::Activity,
};

/// Combines the results of a chunk before they are stored: the results of each unit of items become one result.
pub(crate) type Fold<O> = Arc<dyn Fn(Vec<O>) -> Vec<O> + Send + Sync>;

/// The state that all threads of one run share.
pub(crate) struct RunContext<T: Task, E> {
    pub(crate) task: T,
    /// The device of each lane.
    pub(crate) devices: Vec<Arc<PoolDevice>>,
    pub(crate) data: E,
    pub(crate) fold: Option<Fold<T::Output>>,
    /// Items per unit: the run counts in units. The last unit may have fewer.
    pub(crate) unit: u64,
    pub(crate) items: u64,
    /// Whether other lanes can steal from a lane's chunks.
    divisible: Vec<bool>,
    /// Identifies the run to the devices' threads. An address would not: the next run may have the same one while threads of
    /// this run still end.
    owner: usize,
    /// The device of each lane that was added later, and whether other lanes can steal from its chunks.
    added: OnceLock<Vec<(Arc<PoolDevice>, bool)>>,
    /// The task's states on the devices, kept between runs.
    pub(crate) states: Arc<StateCache<T::State>>,
    /// How the devices were chosen, for views.
    choice: RunChoice,
    pub(crate) start: Instant,
    suspensions: SuspensionClock,
    core: Mutex<Core>,
    /// Wakes workers that wait for work.
    work_available: Condvar,
    /// Wakes the thread that watches the run or waits for its results.
    pub(crate) progress_made: Condvar,
    /// Whether the run has completed: a spinning thread reads it without the lock.
    has_ended: AtomicBool,
}

/// The number of accepted ranges from which adjacent ones are joined.
const JOIN_ACCEPTED_AT: usize = 1 << 16;

/// The state behind the lock.
pub(crate) struct Core {
    pub(crate) run: Run,
    pub(crate) recorder: Recorder,
    workers: Vec<WorkerEntry>,
    /// Lanes whose workers were not started yet, one entry per worker.
    lanes_to_start: Vec<LaneIndex>,
    /// The units whose results were accepted.
    pub(crate) accepted: Vec<Range<u64>>,
    /// The length of `accepted` at which adjacent ranges are joined next.
    join_accepted_at: usize,
    /// Errors of devices, each with its device's index in the pool.
    pub(crate) failures: Vec<(usize, Error)>,
    /// The task's own error, which ended the run.
    pub(crate) task_error: Option<Error>,
    /// When to log next what the run waits for.
    next_wait_log: Time,
    /// Workers that wait for `work_available`.
    waiting: usize,
    /// Whether the lanes in reserve were asked for.
    has_asked_reserve: bool,
    /// The reading of the suspension clock that was noted last, and when.
    suspended: u64,
    suspension_noted: Time,
}

impl Core {
    /// The state of a run that has not started, with the reading of the suspension clock.
    fn new(run: Run, recorder: Recorder, suspended: u64) -> Self {
        Core {
            run,
            recorder,
            workers: Vec::new(),
            lanes_to_start: Vec::new(),
            accepted: Vec::new(),
            join_accepted_at: JOIN_ACCEPTED_AT,
            failures: Vec::new(),
            task_error: None,
            next_wait_log: Time::ZERO,
            waiting: 0,
            has_asked_reserve: false,
            suspended,
            suspension_noted: Time::ZERO,
        }
    }

    /// Adds accepted units. An endless stream adds them without end, so adjacent ranges are joined now and then.
    fn accept(&mut self, units: &[Range<u64>]) {
        self.accepted.extend(units.iter().cloned());
        if self.accepted.len() >= self.join_accepted_at {
            self.accepted = DoneItems::of(std::mem::take(&mut self.accepted)).0;
            self.join_accepted_at = (2 * self.accepted.len()).max(JOIN_ACCEPTED_AT);
        }
    }

    /// Keeps the error of a device, for the report, and for the error that the run may end with.
    fn keep_failure(&mut self, device: &PoolDevice, error: Error, now: Time) {
        self.recorder.error(&device.id.to_string(), &error, now);
        /// Errors kept per device, the latest: a device that comes and goes for days fails without end.
        const KEPT: usize = 8;
        let is_of_device = |it: &(usize, Error)| it.0 == device.index;
        if self.failures.iter().filter(|it| is_of_device(it)).count() >= KEPT
            && let Some(oldest) = self.failures.iter().position(is_of_device)
        {
            self.failures.remove(oldest);
        }
        self.failures.push((device.index, error));
    }

    /// Records the chunks that are in flight when the run has ended: their results will be dropped.
    pub(crate) fn record_in_flight(&mut self, now: Time) {
        for worker in self.workers.iter().filter(|worker| !worker.abandoned) {
            if let WorkerActivity::Chunk(chunk, began) = &worker.activity {
                self.recorder.wasted(chunk, Activity::Dropped, *began, now);
            }
        }
    }

    /// Subtracts the suspensions of the process since the last call from all times that count for a lane. `suspended` is
    /// the reading of the suspension clock, in nanoseconds.
    fn note_suspension(&mut self, suspended: u64, now: Time) {
        // The process ran at the time of the last call.
        let since = now.saturating_sub(std::mem::replace(&mut self.suspension_noted, now));
        let gap = suspended.saturating_sub(std::mem::replace(&mut self.suspended, suspended));
        if gap == 0 {
            return;
        }
        let gap = Duration::from_nanos(gap).min(since);
        log!(debug, ?gap, "the process was suspended");
        self.run.note_suspension(gap, now);
        self.recorder.note_suspension(gap, now);
        for worker in &mut self.workers {
            if let WorkerActivity::Preparing(began) | WorkerActivity::Chunk(_, began) = &mut worker.activity {
                *began = began.saturating_add(gap).min(now);
            }
        }
    }

    /// Records which lanes are quarantined or retired, after a failure.
    fn record_lane_states(&mut self, now: Time) {
        self.recorder.update_lane_states(&self.run, now);
    }
}

/// The shared record of a worker.
struct WorkerEntry {
    lane: LaneIndex,
    activity: WorkerActivity,
    /// Whether the run has given up on it: its results are dropped, and it exits when it returns.
    abandoned: bool,
    /// The items of its chunk that it has claimed; other lanes can steal the rest.
    claims: Arc<Claims>,
    /// How many items of a stream had arrived when it last asked for work.
    seen: u64,
}

impl WorkerEntry {
    fn new(lane: LaneIndex) -> Self {
        WorkerEntry {
            lane,
            activity: WorkerActivity::Idle,
            abandoned: false,
            claims: Arc::default(),
            seen: 0,
        }
    }

    /// How long its present activity has taken.
    fn busy_for(&self, now: Time) -> Duration {
        match self.activity {
            WorkerActivity::Idle => Duration::ZERO,
            WorkerActivity::Preparing(began) | WorkerActivity::Chunk(_, began) => now.saturating_sub(began),
        }
    }

    /// Ends its activity. Returns since when it ran its chunk, without suspensions of the process.
    fn end_chunk(&mut self, now: Time) -> Time {
        match std::mem::replace(&mut self.activity, WorkerActivity::Idle) {
            WorkerActivity::Chunk(_, began) => began,
            WorkerActivity::Idle | WorkerActivity::Preparing(_) => now,
        }
    }

    fn has(&self, chunk: u64) -> bool {
        !self.abandoned && matches!(&self.activity, WorkerActivity::Chunk(own, _) if own.id == chunk)
    }
}

/// What a worker does now.
enum WorkerActivity {
    /// Waits for work.
    Idle,
    /// Prepares its device. With the start time, to which later suspensions of the process are added.
    Preparing(Time),
    /// Runs a chunk. With the time at which the chunk was handed out, to which later suspensions of the process are added.
    Chunk(crate::run::LaneChunk, Time),
}

/// Whether other lanes can steal from chunks on this device. Claims count items in 32 bits.
fn can_divide<T: Task>(task: &T, device: &PoolDevice, unit: u64) -> bool {
    unit <= MAX_DIVISIBLE_ITEMS && task.is_divisible(&device.device().0)
}

impl<T: Task, E: RunData<T>> RunContext<T, E> {
    #[expect(clippy::too_many_arguments, reason = "a run needs all of these")]
    pub(crate) fn new(
        task: T,
        run: Run,
        recorder: Recorder,
        devices: Vec<Arc<PoolDevice>>,
        data: E,
        fold: Option<Fold<T::Output>>,
        (unit, items): (u64, u64),
        states: Arc<StateCache<T::State>>,
        choice: RunChoice,
    ) -> Self {
        let owner = next_owner();
        let recorder = recorder.with_events(RunEvents::new(owner as u64, unit, items));
        let start = Instant::now();
        let suspensions = SuspensionClock::new(start);
        let suspended = suspensions.suspended_until(Duration::ZERO);
        RunContext {
            divisible: devices.iter().map(|device| can_divide(&task, device, unit)).collect(),
            owner,
            added: OnceLock::new(),
            task,
            devices,
            data,
            fold,
            unit,
            items,
            states,
            choice,
            start,
            suspensions,
            core: Mutex::new(Core::new(run, recorder, suspended)),
            work_available: Condvar::new(),
            progress_made: Condvar::new(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// The device of a lane.
    pub(crate) fn device(&self, lane: LaneIndex) -> &Arc<PoolDevice> {
        self.devices.get(lane).unwrap_or_else(|| &self.added()[lane - self.devices.len()].0)
    }

    /// Whether other lanes can steal from a lane's chunks.
    fn is_divisible(&self, lane: LaneIndex) -> bool {
        self.divisible.get(lane).copied().unwrap_or_else(|| self.added()[lane - self.divisible.len()].1)
    }

    /// The device of each lane that was added later, and whether other lanes can steal from its chunks.
    pub(crate) fn added(&self) -> &[(Arc<PoolDevice>, bool)] {
        self.added.get().map_or(&[], |added| added)
    }

    /// Locks the core. Threads hold it for a fraction of a microsecond, so a thread that finds it locked spins for some
    /// microseconds before it parks: many cores that end short chunks would otherwise spend their time waking each other.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        for attempt in 0..16u32 {
            match self.core.try_lock() {
                Ok(core) => return core,
                Err(TryLockError::Poisoned(core)) => return core.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    (0..1 << attempt.min(4)).for_each(|_| std::hint::spin_loop())
                }
            }
        }
        lock(&self.core)
    }

    pub(crate) fn now(&self) -> Time {
        self.start.elapsed()
    }

    /// Subtracts suspensions of the process from all times that count for a lane. Called before these times are used.
    fn note_suspension(&self, core: &mut Core, now: Time) {
        core.note_suspension(self.suspensions.suspended_until(now), now);
    }

    /// Stops the run: every worker ends its chunk after its present item.
    pub(crate) fn stop(&self) {
        let mut core = self.core();
        core.run.stop();
        core.workers.iter().for_each(|worker| worker.claims.end_run());
        drop(core);
        // If the run has completed, `notify_end` has woken a worker already.
        if !self.has_ended.load(Acquire) {
            self.wake_all();
        }
    }

    /// Converts units to items.
    pub(crate) fn items_of(&self, units: &Range<u64>) -> Range<u64> {
        if self.unit == 1 {
            return units.clone();
        }
        units.start * self.unit..(units.end * self.unit).min(self.items)
    }

    /// Wakes all waiting workers, and the thread that watches.
    pub(crate) fn wake_all(&self) {
        self.work_available.notify_all();
        self.progress_made.notify_all();
    }

    /// Wakes the thread that started the run, and one waiting worker, which wakes the others: waking all takes longer than a
    /// short run, and they would all contend for the lock that the first thread needs.
    pub(crate) fn notify_end(&self) {
        self.has_ended.store(true, Release);
        self.progress_made.notify_all();
        self.work_available.notify_one();
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::run::{Answer, LaneSpec, Settings, Shares};

    const S: Duration = Duration::from_secs(1);

    /// A run of one lane. Its first worker got a chunk after one second, and its second worker began to prepare the device
    /// after two.
    fn core() -> Core {
        let lane = LaneSpec {
            depth: 2,
            max_items: Some(1),
            may_hang: true,
            divisible: false,
            score: 1.0,
            launch_seconds: 0.0,
            expected: None,
        };
        let mut run = Run::new(10, &[lane], &Shares::Pulled, Settings::default());
        let Answer::Run(chunk) = run.ask(0, S) else { panic!("there is work") };
        let mut workers = vec![WorkerEntry::new(0), WorkerEntry::new(0), WorkerEntry::new(0)];
        workers[0].activity = WorkerActivity::Chunk(chunk, S);
        workers[1].activity = WorkerActivity::Preparing(2 * S);
        Core { workers, ..Core::new(run, Recorder::new(1, false), 5_000_000_000) }
    }

    /// Since when the workers are busy.
    fn busy_since(core: &Core) -> [Time; 2] {
        [0, 1].map(|worker| match core.workers[worker].activity {
            WorkerActivity::Preparing(began) | WorkerActivity::Chunk(_, began) => began,
            WorkerActivity::Idle => panic!("it is busy"),
        })
    }

    #[test]
    fn a_suspension_counts_neither_for_a_chunk_nor_for_a_preparation() {
        let mut core = core();
        core.note_suspension(5_000_000_000, 3 * S);
        assert_eq!(busy_since(&core), [S, 2 * S], "suspensions before the run");
        core.note_suspension(65_000_000_000, 64 * S);
        assert_eq!(busy_since(&core), [61 * S, 62 * S]);
        core.note_suspension(65_000_000_000, 65 * S);
        assert_eq!(busy_since(&core), [61 * S, 62 * S], "it is noted once");
        assert_eq!(
            core.recorder.took(0, S, 65 * S),
            5 * S,
            "its last chunk ended at the start, by assumption"
        );
        assert!(core.run.overdue(65 * S).is_empty() && core.run.outcome().is_none());
        assert_eq!(core.workers[0].end_chunk(65 * S), 61 * S);
    }

    #[test]
    fn the_process_was_suspended_no_longer_than_since_the_last_event() {
        let mut core = core();
        core.note_suspension(5_000_000_000, 3 * S);
        core.note_suspension(15_000_000_000, 7 * S);
        assert_eq!(busy_since(&core), [5 * S, 6 * S]);
    }
}
