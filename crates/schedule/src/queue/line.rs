//! What waits at one device of a queue, and what is known of the device.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use evener_device::Error;

use super::{
    handle::{Place, Promise},
    trust::Trust,
};
use crate::{
    balancer::{Load, Piece},
    pool::Seat,
    run::Time,
};

/// A piece on its way: there is one ticket for each, and whoever has it has the piece.
#[derive(Debug)]
pub(super) struct Ticket<I, O> {
    pub(super) place: Place,
    /// Shared with the hand that works on it, which may keep it longer than it keeps the piece.
    pub(super) item: Arc<I>,
    pub(super) promise: Promise<O>,
    /// The lines that it failed on, and how.
    pub(super) failures: Vec<(usize, Error)>,
    /// How often somebody was given up on with it.
    pub(super) given_up: u32,
}

impl<I, O> Ticket<I, O> {
    /// How often it failed on a line.
    pub(super) fn tries_on(&self, line: usize) -> usize {
        self.failures.iter().filter(|(failed, _)| *failed == line).count()
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
    pub(super) trust: Trust,
    pub(super) mean: Mean,
    /// The device's static score.
    pub(super) score: f64,
    /// Whether a piece that takes far too long has hung.
    pub(super) may_hang: bool,
    /// How many hands it may have.
    pub(super) most_hands: usize,
    /// How many it has, and how many of them make the device ready and work on a piece.
    pub(super) hands: usize,
    pub(super) preparing: usize,
    pub(super) active: usize,
    pub(super) done: u64,
    pub(super) failed: u64,
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
            trust: Trust::new(),
            mean: Mean::default(),
            score: score.max(1e-3),
            may_hang,
            most_hands: most_hands.max(1),
            hands: 0,
            preparing: 0,
            active: 0,
            done: 0,
            failed: 0,
            received: 0,
            gave: 0,
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
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

    /// What the balancer is told: several hands drain the queue so many times as fast as one, and what the device is
    /// about to be tried with stays.
    pub(super) fn load(&self, now: Time) -> Load {
        let load = Load::of(&self.queue);
        let working = self.trust.is_working();
        let canary = usize::from(!working && self.may_begin(now));
        Load {
            movable: load.movable.saturating_sub(canary),
            piece_time: self.mean.time().map(|mean| mean / self.most_hands as u32),
            working,
            ..load
        }
    }

    /// Whether a hand may begin with a piece: any number while it works, and the canary alone when it is tried.
    pub(super) fn may_begin(&self, now: Time) -> bool {
        let is_tried = self.trust.may_be_tried(now) && self.active == 0 && self.preparing == 0;
        self.trust.is_working() || is_tried
    }

    /// Whether it is to be tried, and has nothing to be tried with.
    pub(super) fn wants_canary(&self, now: Time) -> bool {
        !self.trust.is_working() && self.may_begin(now) && self.queue.is_empty()
    }

    /// Whether there is more to do than there are hands that will take it up.
    pub(super) fn lacks_hands(&self, now: Time) -> bool {
        let free = self.hands.saturating_sub(self.active);
        self.hands < self.most_hands && self.queue.len() > free && self.may_begin(now)
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
