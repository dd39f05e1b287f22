//! What waits at one device of a queue, and what is known of the device.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use evener_device::Error;

use super::{
    desk::Stall,
    handle::{Place, Promise},
    trust::Trust,
};
use crate::{
    balancer::{Load, Piece},
    pool::Seat,
    run::Time,
};

/// A piece goes to a device for so many tries at most, and to the same device again only for want of another one. The
/// quarantine grows from try to try, so a device that is away for most of a second loses no piece.
const MOST_TRIES: u32 = 4;

/// A piece that its device was called hung with counts as so many tries, since each may take very long.
const TRIES_A_HANG: u32 = 2;

/// A piece without an answer. There is one ticket for each: in a device's queue, or in flight.
#[derive(Debug)]
pub(super) struct Ticket<I, O> {
    pub(super) place: Place,
    /// Shared with the workers that run it, which may keep it longer than the piece is in flight.
    pub(super) item: Arc<I>,
    pub(super) promise: Promise<O>,
    /// The lines that it failed on, and how.
    pub(super) failures: Vec<(usize, Error)>,
}

impl<I, O> Ticket<I, O> {
    /// How often it failed on a line.
    pub(super) fn tries_on(&self, line: usize) -> u32 {
        let tries = |error: &Error| if matches!(error, Error::TimedOut { .. }) { TRIES_A_HANG } else { 1 };
        self.failures.iter().filter(|(failed, _)| *failed == line).map(|(_, error)| tries(error)).sum()
    }

    /// Whether it may be tried on a line: again, where it failed there before.
    pub(super) fn may_try(&self, line: usize) -> bool {
        self.tries_on(line) < MOST_TRIES
    }
}

/// One device's queue.
#[derive(Debug)]
pub(super) struct Line<I, O> {
    pub(super) seat: Arc<Seat>,
    /// In the order of their places. Changed only by the functions here, which keep the order and the count.
    queue: VecDeque<Piece<Ticket<I, O>>>,
    /// How many of them the seat's counter knows of.
    counted: u64,
    /// Pieces that are late on another device and are to be done here as well.
    pub(super) copies: BTreeSet<Place>,
    pub(super) trust: Trust,
    pub(super) mean: Mean,
    /// The longest time that a worker's first piece took; nothing before one was done.
    pub(super) longest_first: Option<Duration>,
    /// The device's static score.
    pub(super) score: f64,
    /// Whether the device may hang; plain code on the processor does not.
    pub(super) may_hang: bool,
    /// Maximum number of workers.
    pub(super) most_hands: usize,
    /// How many workers it has, and how many of them make the device ready and run a piece.
    pub(super) hands: usize,
    pub(super) preparing: usize,
    pub(super) active: usize,
    /// The worker that finds out whether a device in quarantine is well again.
    pub(super) trial: Option<u64>,
    /// Its late workers.
    pub(super) stall: Stall,
    pub(super) done: u64,
    pub(super) failed: u64,
    /// Speculative copies that began here.
    pub(super) copied: u64,
    /// Pieces that the balancer brought and took.
    pub(super) received: u64,
    pub(super) gave: u64,
}

impl<I, O> Line<I, O> {
    pub(super) fn new(seat: Arc<Seat>, score: f64, most_hands: usize, may_hang: bool) -> Self {
        Line {
            seat,
            queue: VecDeque::new(),
            counted: 0,
            copies: BTreeSet::new(),
            trust: Trust::new(),
            mean: Mean::default(),
            longest_first: None,
            score: score.max(1e-3),
            may_hang,
            most_hands: most_hands.max(1),
            hands: 0,
            preparing: 0,
            active: 0,
            trial: None,
            stall: Stall::default(),
            done: 0,
            failed: 0,
            copied: 0,
            received: 0,
            gave: 0,
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// How many pieces wait for a worker: those that are queued, and copies of others.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len() + self.copies.len()
    }

    /// Takes the next piece if it is a copy: copies and queued pieces go by their places.
    pub(super) fn pop_copy(&mut self) -> Option<Place> {
        let copy = self.copies.first()?;
        if self.queue.front().is_some_and(|queued| queued.work().place < *copy) {
            return None;
        }
        self.copies.pop_first()
    }

    /// Puts a piece where it belongs.
    pub(super) fn push(&mut self, ticket: Ticket<I, O>) {
        let at = self.queue.partition_point(|piece| piece.work().place < ticket.place);
        self.queue.insert(at, Piece::new(ticket));
        self.count();
    }

    /// The piece that is next.
    pub(super) fn pop(&mut self) -> Option<Ticket<I, O>> {
        let piece = self.queue.pop_front()?;
        self.count();
        Some(piece.into_work())
    }

    /// The last piece of those that will do: the one that would have waited longest.
    pub(super) fn pop_last(&mut self, will_do: impl Fn(&Ticket<I, O>) -> bool) -> Option<Ticket<I, O>> {
        let at = self.queue.iter().rposition(|piece| will_do(piece.work()))?;
        let piece = self.queue.remove(at)?;
        self.count();
        Some(piece.into_work())
    }

    /// Takes one piece out, if it is here.
    pub(super) fn remove(&mut self, place: Place) -> Option<Ticket<I, O>> {
        let at = self.queue.binary_search_by_key(&place, |piece| piece.work().place).ok()?;
        let piece = self.queue.remove(at)?;
        self.count();
        Some(piece.into_work())
    }

    /// Takes all pieces out.
    pub(super) fn drain(&mut self) -> Vec<Ticket<I, O>> {
        let all = self.queue.drain(..).map(Piece::into_work).collect();
        self.count();
        all
    }

    /// Lets pieces move between two lines, and puts them in order where they came to.
    pub(super) fn exchange(&mut self, other: &mut Self, step: &crate::balancer::Move) -> usize {
        let count = step.apply(&mut self.queue, &mut other.queue);
        other.queue.make_contiguous().sort_by_key(|piece| piece.work().place);
        self.gave += count as u64;
        other.received += count as u64;
        self.count();
        other.count();
        count
    }

    /// What the balancer is told: several workers drain the queue so many times as fast as one; the canary stays; a
    /// device whose workers are all late gets nothing; and what waits until a device is ready leaves it only where it
    /// would be done sooner elsewhere.
    pub(super) fn load(&self, now: Time) -> Load {
        let load = Load::of(&self.queue);
        let working = self.trust.is_working();
        let canary = usize::from(!working && self.may_begin(now));
        let gets_ready = working && self.stall.unready;
        Load {
            movable: if gets_ready { 0 } else { load.movable.saturating_sub(canary) },
            piece_time: self.mean.time().map(|mean| mean / self.most_hands as u32),
            working: working && self.stall.relieved_at.is_none(),
            ..load
        }
    }

    /// Whether a worker may begin with a piece: any number while the device works, and the canary alone after its
    /// quarantine.
    pub(super) fn may_begin(&self, now: Time) -> bool {
        self.trust.is_working() || self.trust.may_be_tried(now) && self.trial.is_none()
    }

    /// Whether its quarantine is over, and it has no piece for a canary.
    pub(super) fn wants_canary(&self, now: Time) -> bool {
        !self.trust.is_working() && self.may_begin(now) && self.waiting() == 0
    }

    /// Whether there is more to do than there are workers that will take it up.
    pub(super) fn lacks_hands(&self, now: Time) -> bool {
        let free = self.hands.saturating_sub(self.active);
        self.hands < self.most_hands && self.waiting() > free && self.may_begin(now)
    }

    /// Keeps what the pool's statistics say of the seat right. Other queues count there too, so only the change is told.
    fn count(&mut self) {
        let (before, now) = (self.counted, self.queue.len() as u64);
        self.counted = now;
        // Adding the difference wraps around where it is negative, as the counter does.
        self.seat.counters.queued.fetch_add(now.wrapping_sub(before), Relaxed);
    }
}

/// The mean time of a device's pieces, in which the last few dozen count most: a service's pieces change over time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mean {
    pieces: u32,
    seconds: f64,
}

impl Mean {
    const MEMORY: u32 = 32;

    pub(super) fn learn(&mut self, took: Duration) {
        self.pieces = (self.pieces + 1).min(Self::MEMORY);
        self.seconds += (took.as_secs_f64() - self.seconds) / f64::from(self.pieces);
    }

    /// The mean, once there is one.
    pub(super) fn time(&self) -> Option<Duration> {
        (self.pieces > 0).then(|| Duration::from_secs_f64(self.seconds.max(1e-9)))
    }
}
