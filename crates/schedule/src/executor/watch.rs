//! What the thread that started a run does until it ends: it watches.

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

use evener_device::Error;

use super::{Core, Doing, Ends, Patience, Reserve, Seat, Shared, can_divide};
use crate::{
    contain::log,
    progress::{Progress, Reporter},
    run::{Failure, LaneIndex, LaneSpec, Outcome, Time},
    sync::wait_timeout,
    task::Task,
    trace::Activity,
};

/// So often the watcher looks around when nothing wakes it.
const GLANCE: Duration = Duration::from_millis(10);

/// A look that comes so much later than it should shows that the whole process stood still.
const STOOD_STILL: Duration = Duration::from_millis(250);
/// So often it is said that a run waits for plain code which takes long.
const SAY_WAITING: Duration = Duration::from_secs(10);

/// What can end a run from outside.
#[derive(Debug, Clone)]
pub(crate) struct Control {
    pub(crate) cancel: Option<Arc<AtomicBool>>,
    pub(crate) deadline: Option<Duration>,
    /// So long a device may take to be made ready.
    pub(crate) prepare_limit: Duration,
}

impl Control {
    /// Why the run is to end, where it is.
    pub(crate) fn stopped(&self, now: impl Fn() -> Time) -> Option<Stopped> {
        if self.cancel.as_ref().is_some_and(|cancel| cancel.load(Relaxed)) {
            return Some(Stopped::Cancelled);
        }
        self.deadline.filter(|&deadline| now() >= deadline).map(Stopped::DeadlinePassed)
    }
}

/// Why a run was stopped from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    Cancelled,
    DeadlinePassed(Duration),
}

impl<T: Task, E: Ends<T>> Shared<T, E> {
    /// Puts so many hands on each lane. Waking a thread takes a while, so those that are awake help to wake the others.
    pub(crate) fn begin(self: &Arc<Self>, hands: &[usize]) {
        let lanes = hands.iter().enumerate().rev();
        self.core().to_hire = lanes.flat_map(|(lane, &count)| std::iter::repeat_n(lane, count)).collect();
        self.hire_some();
    }

    /// Watches until the run has ended, and works on a lane meanwhile, where one is given and it can. Tells how far it has
    /// come, and says why it ended, where it was stopped from outside. The lanes in `reserve` are asked for where the others
    /// are not enough.
    pub(crate) fn watch(
        self: &Arc<Self>,
        control: &Control,
        reserve: Reserve<'_>,
        reporter: &mut Option<Reporter<'_>>,
        own: Option<LaneIndex>,
    ) -> Option<Stopped> {
        let mut stopped = None;
        if let Some(lane) = own {
            let mut next = GLANCE;
            self.lend_a_hand(lane, || {
                let now = self.now();
                if now >= next {
                    next = now + GLANCE;
                    stopped = stopped.or(self.look_after(self.core(), control, reserve, reporter));
                }
            });
        }
        // Falling asleep and being woken takes longer than a short run.
        let core = self.core();
        let others = core.hands.iter().filter(|hand| !hand.dismissed).count() + core.to_hire.len();
        let has_ended = core.run.outcome().is_some();
        drop(core);
        if !has_ended {
            Patience::for_others(others).wait(|| self.has_ended.load(Acquire).then_some(()));
        }
        loop {
            let core = self.core();
            if core.run.outcome().is_some() {
                if let Some(reporter) = reporter.as_mut().filter(|it| it.has_told()) {
                    let progress = Progress { ended: true, ..self.progress(&core, self.now()) };
                    let is_stopped = core.run.outcome() == Some(&Outcome::Stopped);
                    drop(core);
                    reporter.report(&progress, self.now());
                    return stopped.filter(|_| is_stopped);
                }
                return stopped.filter(|_| core.run.outcome() == Some(&Outcome::Stopped));
            }
            // Nothing that happens from here on is missed: whoever has news needs the lock to make it.
            let before = self.now();
            let mut core = wait_timeout(&self.news, core, GLANCE);
            let now = self.now();
            let gap = now.saturating_sub(before).saturating_sub(GLANCE);
            if gap > STOOD_STILL {
                core.run.stood_still(gap, now);
            }
            if now >= core.next_word {
                core.next_word = now + SAY_WAITING;
                if let Some(waiting) = self.waiting_for(&core, now) {
                    drop(core);
                    log!(info, "still waiting for {waiting}");
                    core = self.core();
                }
            }
            stopped = stopped.or(self.look_after(core, control, reserve, reporter));
        }
    }

    /// The chunk of plain code that has been in hand longest, where nothing has come for a while.
    fn waiting_for(&self, core: &Core, now: Time) -> Option<String> {
        if now.saturating_sub(core.run.last_accepted()) < SAY_WAITING {
            return None;
        }
        let chunks = core.hands.iter().filter(|hand| !hand.dismissed).filter_map(|hand| match &hand.doing {
            Doing::Chunk(chunk, began) => Some((chunk, *began)),
            _ => None,
        });
        let (chunk, began) = chunks.min_by_key(|(_, began)| *began)?;
        let (items, seconds) = (self.items_of(&chunk.items), now.saturating_sub(began).as_secs());
        Some(format!("{}: items {}..{} for {seconds} s", self.seat(chunk.lane).id, items.start, items.end))
    }

    /// Looks once whether something has to be done or told.
    fn look_after(
        self: &Arc<Self>,
        mut core: MutexGuard<'_, Core>,
        control: &Control,
        reserve: Reserve<'_>,
        reporter: &mut Option<Reporter<'_>>,
    ) -> Option<Stopped> {
        let stopped = self.glance(&mut core, control, reserve);
        let now = self.now();
        if let Some(reporter) = reporter.as_mut().filter(|it| it.is_due(now)) {
            let progress = self.progress(&core, now);
            // The user's code runs without the lock.
            drop(core);
            reporter.report(&progress, now);
        }
        stopped
    }

    /// Looks once whether something has to be done.
    pub(crate) fn glance(
        self: &Arc<Self>,
        core: &mut Core,
        control: &Control,
        reserve: Reserve<'_>,
    ) -> Option<Stopped> {
        let now = self.now();
        let stopped = control.stopped(|| now);
        if stopped.is_some() {
            core.run.stop();
            core.hands.iter().for_each(|hand| hand.claims.end_all());
            self.wake_all();
            return stopped;
        }
        self.dismiss_hung(core, now);
        self.dismiss_unready(core, control.prepare_limit, now);
        if core.run.needs_reserve(now) {
            self.add_lanes(core, reserve());
        }
        None
    }

    /// Adds lanes to the run, once, and sends hands to them.
    fn add_lanes(self: &Arc<Self>, core: &mut Core, lanes: Vec<(Arc<Seat>, LaneSpec)>) {
        log!(info, lanes = lanes.len(), "the devices that were left out are used: the others are not enough");
        let first = core.run.tallies().len();
        let (seats, specs): (Vec<_>, Vec<_>) = lanes.into_iter().unzip();
        let divide = |seat: Arc<Seat>| (seat.clone(), can_divide(&self.task, &seat, self.unit));
        self.added.get_or_init(|| seats.into_iter().map(divide).collect());
        core.run.add_lanes(&specs);
        core.account.add_lanes(specs.len());
        for (index, spec) in specs.iter().enumerate() {
            (0..spec.depth).for_each(|_| self.hire(core, first + index));
        }
        self.wake_all();
    }

    /// Replaces hands whose chunks have hung.
    fn dismiss_hung(self: &Arc<Self>, core: &mut Core, now: Time) {
        let hung = core.run.overdue(now);
        if hung.is_empty() {
            return;
        }
        let is_hung = |doing: &Doing| matches!(doing, Doing::Chunk(chunk, _) if hung.contains(&chunk.id));
        let mut lanes: Vec<LaneIndex> = core
            .hands
            .iter()
            .filter(|hand| !hand.dismissed && is_hung(&hand.doing))
            .map(|hand| hand.lane)
            .collect();
        lanes.sort_unstable();
        lanes.dedup();
        for lane in lanes {
            let after = core.hands.iter().find_map(|hand| match &hand.doing {
                Doing::Chunk(_, began) if hand.lane == lane && !hand.dismissed => {
                    Some(now.saturating_sub(*began))
                }
                _ => None,
            });
            let operation = "running a chunk".to_owned();
            self.give_up(core, lane, operation, after.unwrap_or_default(), now);
        }
    }

    /// Replaces hands that were never ready.
    fn dismiss_unready(self: &Arc<Self>, core: &mut Core, limit: Duration, now: Time) {
        let late = core.hands.iter().find_map(|hand| match hand.doing {
            Doing::Preparing(since) if !hand.dismissed && now.saturating_sub(since) >= limit => {
                Some(hand.lane)
            }
            _ => None,
        });
        if let Some(lane) = late {
            core.run.lane_failed(lane, Failure::Untrusted, now);
            self.give_up(core, lane, "being made ready".into(), limit, now);
        }
    }

    /// Gives up on a lane's busy hands, and has others begin afresh in their place.
    fn give_up(
        self: &Arc<Self>,
        core: &mut Core,
        lane: LaneIndex,
        operation: String,
        after: Duration,
        now: Time,
    ) {
        let seat = self.seat(lane);
        let error = Error::TimedOut { device: seat.id.clone(), operation, after };
        log!(warn, device = %seat.id, %error, "a device is given up on");
        core.keep_failure(error);
        seat.renew(seat.generation());
        self.replace(core, lane, now, |doing| !matches!(doing, Doing::Nothing));
        core.look(now);
        self.wake_all();
    }

    /// Dismisses those of a lane's hands that are at something, and has others begin afresh in their place.
    pub(super) fn replace(
        self: &Arc<Self>,
        core: &mut Core,
        lane: LaneIndex,
        now: Time,
        is_at_it: impl Fn(&Doing) -> bool,
    ) {
        for hand in 0..core.hands.len() {
            let it = &mut core.hands[hand];
            if it.lane != lane || it.dismissed || !is_at_it(&it.doing) {
                continue;
            }
            it.dismissed = true;
            if let Doing::Chunk(chunk, began) = std::mem::replace(&mut it.doing, Doing::Nothing) {
                core.account.in_vain(&chunk, Activity::Failure, began, now);
                self.seat(lane).counters.fail();
            }
            if core.run.outcome().is_none() {
                self.hire(core, lane);
            }
        }
    }

    /// How far it has come. What a worker has begun of a chunk that others can steal from counts as done.
    fn progress(&self, core: &Core, now: Time) -> Progress {
        let mut begun = vec![0; core.run.tallies().len()];
        for hand in core.hands.iter().filter(|hand| self.is_divisible(hand.lane) && !hand.dismissed) {
            // What has a copy may be done, and counted, by another lane.
            if let Doing::Chunk(chunk, _) = &hand.doing
                && chunk.exclusive
            {
                begun[hand.lane] += u64::from(hand.claims.claimed().saturating_sub(1));
            }
        }
        let mut shares: Vec<(evener_device::DeviceId, u64)> = Vec::new();
        for (lane, begun) in begun.into_iter().enumerate() {
            let (seat, items) = (self.seat(lane), core.account.items(lane) + begun);
            match shares.last_mut() {
                Some((id, sum)) if *id == seat.id => *sum += items,
                _ => shares.push((seat.id.clone(), items)),
            }
        }
        Progress { waiting_for: self.waiting_for(core, now), ..Progress::new(shares, self.items, now) }
    }
}
