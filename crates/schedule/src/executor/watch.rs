//! What the thread that started a run does until the run ends: it watches for hung chunks, the deadline and cancellation.

use std::{
    sync::{
        Arc, MutexGuard,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed},
        },
    },
    time::Duration,
};

use evener_device::{Error, Result};

use super::{Core, PoolDevice, RunContext, RunData, SpinBudget, WorkerActivity};
use crate::{
    contain::log,
    progress::{Progress, Reporter},
    report::grouped,
    run::{FailureKind, LaneIndex, LaneSpec, Outcome, Time},
    sync::wait_timeout,
    task::{MAX_DIVISIBLE_ITEMS, Task, catch_panic, thread_error},
    trace::Activity,
};

/// The time between checks if nothing wakes the watching thread.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The time between log lines about plain code that takes long.
const WAIT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Lanes that a run gets later: the device of each, and its properties.
type NewLanes = Vec<(Arc<PoolDevice>, LaneSpec)>;

/// Lanes that are made and added if the others fail or do not respond.
pub(crate) struct Reserve<T> {
    /// One of their devices. The lanes are made on a thread of it: the task's code about a device may block, and must block
    /// no other lane.
    pub(crate) device: Arc<PoolDevice>,
    /// Makes the lanes.
    pub(crate) make: Box<dyn FnOnce(&T) -> NewLanes + Send>,
}

/// Returns the lanes in reserve, if there are any. Called with the lock.
pub(crate) type GetReserve<'a, T> = &'a dyn Fn() -> Option<Reserve<T>>;

/// The limits of a run that its caller sets.
#[derive(Debug, Clone)]
pub(crate) struct Control {
    pub(crate) cancel: Option<Arc<AtomicBool>>,
    pub(crate) deadline: Option<Duration>,
    /// Maximum time to prepare a device.
    pub(crate) prepare_limit: Duration,
}

impl Control {
    /// Why the run has to stop, if it has to.
    pub(crate) fn stop_reason(&self, now: impl Fn() -> Time) -> Option<StopReason> {
        if self.cancel.as_ref().is_some_and(|cancel| cancel.load(Relaxed)) {
            return Some(StopReason::Cancelled);
        }
        self.deadline.filter(|&deadline| now() >= deadline).map(StopReason::DeadlinePassed)
    }
}

/// Why the caller stopped a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    Cancelled,
    DeadlinePassed(Duration),
}

impl<T: Task, E: RunData<T>> RunContext<T, E> {
    /// Starts this many workers on each lane. Waking a thread takes long, so threads that are awake help to wake others.
    pub(crate) fn begin(self: &Arc<Self>, workers: &[usize]) {
        let lanes = workers.iter().enumerate().rev();
        let mut core = self.core();
        core.lanes_to_start = lanes.flat_map(|(lane, &count)| std::iter::repeat_n(lane, count)).collect();
        self.tell_status(&mut core, self.now());
        drop(core);
        self.start_some_workers();
    }

    /// Watches until the run has ended, and runs chunks of `caller_lane` meanwhile, if one is given. Reports progress.
    /// Adds the lanes of `reserve` if no other lane is healthy, or all healthy ones are silent. Returns why the run was
    /// stopped, if it was.
    pub(crate) fn watch(
        self: &Arc<Self>,
        control: &Control,
        reserve: GetReserve<'_, T>,
        reporter: &mut Option<Reporter<'_>>,
        caller_lane: Option<LaneIndex>,
    ) -> Option<StopReason> {
        let mut stopped = None;
        if let Some(lane) = caller_lane {
            let mut next_check = CHECK_INTERVAL;
            self.work_on_lane(lane, || {
                let now = self.now();
                if now >= next_check {
                    next_check = now + CHECK_INTERVAL;
                    stopped = stopped.or(self.check_and_report(self.core(), control, reserve, reporter));
                }
            });
        }
        // Parking and waking up takes longer than a short run.
        let core = self.core();
        let others =
            core.workers.iter().filter(|worker| !worker.abandoned).count() + core.lanes_to_start.len();
        let has_ended = core.run.outcome().is_some();
        drop(core);
        if !has_ended {
            SpinBudget::for_waiting_on(others).spin_until(|| self.has_ended.load(Acquire).then_some(()));
        }
        loop {
            let core = self.core();
            if core.run.outcome().is_some() {
                if let Some(reporter) = reporter.as_mut().filter(|it| it.has_reported()) {
                    let progress = Progress { ended: true, ..self.progress(&core, self.now()) };
                    let is_stopped = core.run.outcome() == Some(&Outcome::Stopped);
                    drop(core);
                    reporter.report(&progress, self.now());
                    return stopped.filter(|_| is_stopped);
                }
                return stopped.filter(|_| core.run.outcome() == Some(&Outcome::Stopped));
            }
            // No notification is missed from here on: it takes the lock to cause one.
            let mut core = wait_timeout(&self.progress_made, core, CHECK_INTERVAL);
            let now = self.now();
            self.note_suspension(&mut core, now);
            if now >= core.next_wait_log {
                core.next_wait_log = now + WAIT_LOG_INTERVAL;
                if let Some(waiting) = self.waiting_for(&core, now) {
                    drop(core);
                    log!(info, "still waiting for {waiting}");
                    core = self.core();
                }
            }
            stopped = stopped.or(self.check_and_report(core, control, reserve, reporter));
        }
    }

    /// Describes the chunk that has run longest, if no results came for a while.
    fn waiting_for(&self, core: &Core, now: Time) -> Option<String> {
        if now.saturating_sub(core.run.last_accepted()) < WAIT_LOG_INTERVAL {
            return None;
        }
        let chunks =
            core.workers.iter().filter(|worker| !worker.abandoned).filter_map(|worker| {
                match &worker.activity {
                    WorkerActivity::Chunk(chunk, began) => Some((chunk, *began)),
                    _ => None,
                }
            });
        let (chunk, began) = chunks.min_by_key(|(_, began)| *began)?;
        let (items, seconds) = (self.items_of(&chunk.items), now.saturating_sub(began).as_secs());
        let (first, end) = (grouped(items.start), grouped(items.end));
        Some(format!("{}: items {first}..{end} for {seconds} s", self.device(chunk.lane).id))
    }

    /// Checks the run once, and reports progress if it is time.
    fn check_and_report(
        self: &Arc<Self>,
        mut core: MutexGuard<'_, Core>,
        control: &Control,
        reserve: GetReserve<'_, T>,
        reporter: &mut Option<Reporter<'_>>,
    ) -> Option<StopReason> {
        let stopped = self.check(&mut core, control, reserve);
        let now = self.now();
        if let Some(reporter) = reporter.as_mut().filter(|it| it.is_due(now)) {
            let progress = self.progress(&core, now);
            // The user's code runs without the lock.
            drop(core);
            reporter.report(&progress, now);
        }
        stopped
    }

    /// Checks once for a stop, hung chunks, devices that are not ready, and whether the reserve is needed.
    pub(crate) fn check(
        self: &Arc<Self>,
        core: &mut Core,
        control: &Control,
        reserve: GetReserve<'_, T>,
    ) -> Option<StopReason> {
        let now = self.now();
        self.note_suspension(core, now);
        self.tell_progress(core, now);
        let stopped = self.stop_reason(control, || now);
        if stopped.is_some() {
            core.run.stop();
            core.workers.iter().for_each(|worker| worker.claims.end_run());
            self.wake_all();
            return stopped;
        }
        self.replace_hung(core, now);
        self.replace_unready(core, control.prepare_limit, now);
        if core.run.needs_reserve(now)
            && !std::mem::replace(&mut core.has_asked_reserve, true)
            && let Some(reserve) = reserve()
        {
            self.make_reserve(core, reserve);
        }
        None
    }

    /// Makes the lanes in reserve on another thread, which adds them to the run.
    fn make_reserve(self: &Arc<Self>, core: &mut Core, Reserve { device, make }: Reserve<T>) {
        let (shared, first) = (self.clone(), device.clone());
        let make = move || {
            let operation = "adding the devices that were left out";
            let made = catch_panic(first.id.clone(), operation, || Ok(make(&shared.task)));
            shared.add_lanes(&first, made);
        };
        if let Err(error) = device.threads.spawn(self.owner, make) {
            core.keep_failure(&device, thread_error(&device.id, &error), self.now());
            core.run.add_lanes(&[]);
        }
    }

    /// Adds lanes to the run, once, and starts their workers. An error in `lanes` counts as an
    /// error of `device`, on whose thread they were made.
    fn add_lanes(self: &Arc<Self>, device: &PoolDevice, lanes: Result<NewLanes>) {
        let mut guard = self.core();
        let core = &mut *guard;
        if core.run.outcome().is_some() {
            return;
        }
        let lanes = lanes.unwrap_or_else(|error| {
            log!(warn, %error, "the devices that were left out cannot be added");
            core.keep_failure(device, error, self.now());
            Vec::new()
        });
        log!(
            info,
            lanes = lanes.len(),
            "adding the devices that were left out: the others have failed or do not respond"
        );
        let first = core.run.tallies().len();
        let (devices, specs): (Vec<_>, Vec<_>) = lanes.into_iter().unzip();
        let divisible = |spec: &LaneSpec| spec.divisible && self.unit <= MAX_DIVISIBLE_ITEMS;
        self.added.get_or_init(|| devices.into_iter().zip(specs.iter().map(divisible)).collect());
        core.run.add_lanes(&specs);
        core.recorder.add_lanes(specs.len());
        self.tell_joined(core, self.now());
        for (index, spec) in specs.iter().enumerate() {
            (0..spec.depth).for_each(|_| self.start_worker(core, first + index));
        }
        drop(guard);
        self.wake_all();
    }

    /// Replaces workers whose chunks have hung.
    fn replace_hung(self: &Arc<Self>, core: &mut Core, now: Time) {
        let hung = core.run.overdue(now);
        if hung.is_empty() {
            return;
        }
        let is_hung = |activity: &WorkerActivity| matches!(activity, WorkerActivity::Chunk(chunk, _) if hung.contains(&chunk.id));
        let mut lanes: Vec<LaneIndex> = core
            .workers
            .iter()
            .filter(|worker| !worker.abandoned && is_hung(&worker.activity))
            .map(|worker| worker.lane)
            .collect();
        lanes.sort_unstable();
        lanes.dedup();
        for lane in lanes {
            let after = core.workers.iter().find_map(|worker| match &worker.activity {
                WorkerActivity::Chunk(_, began) if worker.lane == lane && !worker.abandoned => {
                    Some(now.saturating_sub(*began))
                }
                _ => None,
            });
            let operation = "running a chunk".to_owned();
            self.give_up(core, lane, operation, after.unwrap_or_default(), now);
        }
    }

    /// Replaces the workers of a lane whose device takes too long to prepare.
    fn replace_unready(self: &Arc<Self>, core: &mut Core, limit: Duration, now: Time) {
        let overdue = core.workers.iter().find_map(|worker| match worker.activity {
            WorkerActivity::Preparing(since) if !worker.abandoned && now.saturating_sub(since) >= limit => {
                Some(worker.lane)
            }
            _ => None,
        });
        if let Some(lane) = overdue {
            core.run.lane_failed(lane, FailureKind::Untrusted, now);
            self.give_up(core, lane, "preparing the device".into(), limit, now);
        }
    }

    /// Abandons a lane's busy workers, reopens its device, and starts new workers in their place.
    fn give_up(
        self: &Arc<Self>,
        core: &mut Core,
        lane: LaneIndex,
        operation: String,
        after: Duration,
        now: Time,
    ) {
        let pool_device = self.device(lane);
        let error = Error::TimedOut { device: pool_device.id.clone(), operation, after };
        log!(warn, device = %pool_device.id, %error, "device timed out");
        core.keep_failure(pool_device, error, now);
        pool_device.reopen(pool_device.generation());
        self.replace(core, lane, now, |activity| !matches!(activity, WorkerActivity::Idle));
        core.record_lane_states(now);
        self.wake_all();
    }

    /// Abandons those of a lane's workers whose activity matches, and starts new workers in their place.
    pub(super) fn replace(
        self: &Arc<Self>,
        core: &mut Core,
        lane: LaneIndex,
        now: Time,
        matches_activity: impl Fn(&WorkerActivity) -> bool,
    ) {
        for worker in 0..core.workers.len() {
            let it = &mut core.workers[worker];
            if it.lane != lane || it.abandoned || !matches_activity(&it.activity) {
                continue;
            }
            it.abandoned = true;
            match std::mem::replace(&mut it.activity, WorkerActivity::Idle) {
                WorkerActivity::Idle => {}
                WorkerActivity::Preparing(began) => core.recorder.prepared(lane, began, now),
                WorkerActivity::Chunk(chunk, began) => {
                    core.recorder.wasted(&chunk, Activity::Failure, began, now);
                    self.device(lane).counters.fail();
                }
            }
            if core.run.outcome().is_none() {
                self.start_worker(core, lane);
            }
        }
    }

    /// The progress of the run. Items that a worker of plain code has begun count as done.
    pub(super) fn progress(&self, core: &Core, now: Time) -> Progress {
        let mut begun = vec![0; core.run.tallies().len()];
        for worker in core.workers.iter().filter(|worker| self.is_divisible(worker.lane) && !worker.abandoned)
        {
            // Items of a chunk with a speculative copy may be counted for the other lane.
            if let WorkerActivity::Chunk(chunk, _) = &worker.activity
                && chunk.exclusive
            {
                begun[worker.lane] += u64::from(worker.claims.claimed().saturating_sub(1));
            }
        }
        let mut shares: Vec<(evener_device::DeviceId, u64)> = Vec::new();
        for (lane, begun) in begun.into_iter().enumerate() {
            let (pool_device, items) = (self.device(lane), core.recorder.items(lane) + begun);
            match shares.last_mut() {
                Some((id, sum)) if *id == pool_device.id => *sum += items,
                _ => shares.push((pool_device.id.clone(), items)),
            }
        }
        Progress { waiting_for: self.waiting_for(core, now), ..Progress::new(shares, self.items, now) }
    }
}
