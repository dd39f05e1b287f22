//! Drives a [`Run`] with real devices in real time.
//!
//! Each lane has hands: threads that ask the run for a chunk, do it, and tell how it went. Nobody stands between them:
//! a hand takes the lock, says what it has done, is told what comes next, and lets go. The thread that started the run
//! only watches: for chunks that have hung, the deadline, cancellation, and to report progress.
//!
//! A hand that does not come back is dismissed: another takes its place, on the device opened afresh, and whatever the
//! first one brings when it does come is dropped. That is why hands own all that they hold, and why the caller's items
//! are only ever [`Lent`](crate::task::Lent).

mod crew;
mod end;
mod ends;
mod hand;
mod outcome;
mod patience;
mod seat;
mod ticker;
mod watch;
mod window;
mod worker;

use std::{
    ops::Range,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, TryLockError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    time::Instant,
};

use evener_device::Error;

pub(crate) use self::{
    crew::Crew,
    ends::{Ends, Slice, Stream},
    patience::Patience,
    seat::{Kept, Seat, Shelf},
    watch::{Control, Stopped},
    window::{ReadAhead, Window},
    worker::{Employer, Next, work},
};
use crate::{
    account::Account,
    error::Done,
    run::{LaneIndex, LaneSpec, Run, Time},
    sync::lock,
    task::{Claims, MOST_ITEMS, Task},
};

/// What becomes of the results of a chunk's items before they are kept: one for every so many of them.
pub(crate) type Fold<O> = Arc<dyn Fn(Vec<O>) -> Vec<O> + Send + Sync>;

/// Gives the lanes that a run may need later: the device of each, and what is expected of it.
pub(crate) type Reserve<'a> = &'a dyn Fn() -> Vec<(Arc<Seat>, LaneSpec)>;

/// All that the threads of one run share.
pub(crate) struct Shared<T: Task, E> {
    pub(crate) task: T,
    /// The device of each lane.
    pub(crate) seats: Vec<Arc<Seat>>,
    pub(crate) ends: E,
    pub(crate) fold: Option<Fold<T::Output>>,
    /// The run counts in units of so many items; the last may have fewer.
    pub(crate) unit: u64,
    pub(crate) items: u64,
    /// Which lanes' chunks others can steal from.
    divisible: Vec<bool>,
    /// The device of each lane that was added later, and whether others can steal from its chunks.
    added: OnceLock<Vec<(Arc<Seat>, bool)>>,
    /// States from earlier runs, and for later ones.
    pub(crate) shelf: Arc<Shelf<T::State>>,
    pub(crate) start: Instant,
    core: Mutex<Core>,
    /// Something has changed for lanes that wait.
    work: Condvar,
    /// Something has changed for whoever watches.
    pub(crate) news: Condvar,
    /// The run has ended well: to be looked at without the lock.
    has_ended: AtomicBool,
}

/// Ranges of accepted units are first joined once there are so many.
const JOIN_ACCEPTED_AT: usize = 1 << 16;

/// What is changed under the lock.
pub(crate) struct Core {
    pub(crate) run: Run,
    pub(crate) account: Account,
    hands: Vec<Hand>,
    /// Lanes that hands are still to be sent to.
    to_hire: Vec<LaneIndex>,
    /// The units that were accepted.
    pub(crate) accepted: Vec<Range<u64>>,
    /// They are joined once there are so many ranges.
    join_accepted_at: usize,
    /// What has gone wrong.
    pub(crate) failures: Vec<Error>,
    /// The task's own error, which ended the run.
    pub(crate) task_error: Option<Error>,
    /// When it is said next that the run waits for something.
    next_word: Time,
}

impl Core {
    /// Keeps which units were accepted. A stream without end has ever more of them, so those that touch are joined now and
    /// then.
    fn accept(&mut self, units: &[Range<u64>]) {
        self.accepted.extend(units.iter().cloned());
        if self.accepted.len() >= self.join_accepted_at {
            self.accepted = Done::of(std::mem::take(&mut self.accepted)).0;
            self.join_accepted_at = (2 * self.accepted.len()).max(JOIN_ACCEPTED_AT);
        }
    }

    /// Keeps what has gone wrong with a device, for the error that the run may end with.
    fn keep_failure(&mut self, error: Error) {
        /// Of each device the last so many are kept: one that comes and goes for days fails without end.
        const KEPT: usize = 8;
        let of_device = |it: &Error| it.device() == error.device();
        if self.failures.iter().filter(|it| of_device(it)).count() >= KEPT
            && let Some(oldest) = self.failures.iter().position(of_device)
        {
            self.failures.remove(oldest);
        }
        self.failures.push(error);
    }

    /// Something has gone wrong: which lanes are trusted now?
    fn look(&mut self, now: Time) {
        self.account.look_at_trust(&self.run, now);
    }
}

/// What is known of a hand.
struct Hand {
    lane: LaneIndex,
    doing: Doing,
    /// It was given up on: whatever it brings is dropped, and it is to go.
    dismissed: bool,
    /// Which items of its chunk it has begun, where others can steal the rest.
    claims: Arc<Claims>,
    /// How many items of a stream had come when it last asked what to do.
    seen: u64,
}

impl Hand {
    fn new(lane: LaneIndex) -> Self {
        Hand { lane, doing: Doing::Nothing, dismissed: false, claims: Arc::default(), seen: 0 }
    }

    fn has(&self, chunk: u64) -> bool {
        !self.dismissed && matches!(&self.doing, Doing::Chunk(own, _) if own.id == chunk)
    }
}

enum Doing {
    Nothing,
    /// Makes its device ready, since then.
    Preparing(Time),
    /// Works on a chunk, since then.
    Chunk(crate::run::Chunk, Time),
}

/// Whether others can steal from chunks on this device. Results are kept in order as they come, and units are counted in 32
/// bits.
fn can_divide<T: Task>(task: &T, seat: &Seat, unit: u64) -> bool {
    unit <= MOST_ITEMS && task.is_divisible(&seat.device().0)
}

impl<T: Task, E: Ends<T>> Shared<T, E> {
    #[expect(clippy::too_many_arguments, reason = "a run is all of these")]
    pub(crate) fn new(
        task: T,
        run: Run,
        account: Account,
        seats: Vec<Arc<Seat>>,
        ends: E,
        fold: Option<Fold<T::Output>>,
        (unit, items): (u64, u64),
        shelf: Arc<Shelf<T::State>>,
    ) -> Self {
        Shared {
            divisible: seats.iter().map(|seat| can_divide(&task, seat, unit)).collect(),
            added: OnceLock::new(),
            task,
            seats,
            ends,
            fold,
            unit,
            items,
            shelf,
            start: Instant::now(),
            core: Mutex::new(Core {
                run,
                account,
                hands: Vec::new(),
                to_hire: Vec::new(),
                accepted: Vec::new(),
                join_accepted_at: JOIN_ACCEPTED_AT,
                failures: Vec::new(),
                task_error: None,
                next_word: Time::ZERO,
            }),
            work: Condvar::new(),
            news: Condvar::new(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// The device of a lane.
    pub(crate) fn seat(&self, lane: LaneIndex) -> &Arc<Seat> {
        self.seats.get(lane).unwrap_or_else(|| &self.added()[lane - self.seats.len()].0)
    }

    /// Whether others can steal from a lane's chunks.
    fn is_divisible(&self, lane: LaneIndex) -> bool {
        self.divisible.get(lane).copied().unwrap_or_else(|| self.added()[lane - self.divisible.len()].1)
    }

    fn added(&self) -> &[(Arc<Seat>, bool)] {
        self.added.get().map_or(&[], |added| added)
    }

    /// Takes the lock. It is held for a fraction of a microsecond, so a thread that finds it taken spins for some
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

    /// Ends the run from outside, and has every worker stop after the item that it has begun.
    pub(crate) fn stop(&self) {
        let mut core = self.core();
        core.run.stop();
        core.hands.iter().for_each(|hand| hand.claims.end_all());
        drop(core);
        // Where the run has ended well, `tell_end` has woken a worker already.
        if !self.has_ended.load(Acquire) {
            self.wake_all();
        }
    }

    /// The items of some units.
    pub(crate) fn items_of(&self, units: &Range<u64>) -> Range<u64> {
        if self.unit == 1 {
            return units.clone();
        }
        units.start * self.unit..(units.end * self.unit).min(self.items)
    }

    /// Wakes whoever waits for work, and whoever watches.
    pub(crate) fn wake_all(&self) {
        self.work.notify_all();
        self.news.notify_all();
    }

    /// The run has ended well. The thread that started it is told at once. One waiting worker is woken, which wakes the
    /// others: that takes longer than a short run, and they would all want the lock that the first thread needs.
    pub(crate) fn tell_end(&self) {
        self.has_ended.store(true, Release);
        self.news.notify_all();
        self.work.notify_one();
    }
}
