//! What waits at one device of a queue, and what is known of the device.

use std::{
    collections::VecDeque,
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
    executor::PoolDevice,
    run::Time,
};

/// A piece goes to a device for so many tries at most, and to the same device again only for want of another one. The
/// quarantine grows from try to try, so a device that is away for most of a second loses no piece.
const MOST_TRIES: u32 = 4;

/// A piece that its device was called hung with counts as so many tries, since each may take very long.
const TRIES_A_HANG: u32 = 2;

/// A piece without an answer. There is one ticket for each: waiting, or in flight.
#[derive(Debug)]
pub(super) struct Ticket<O> {
    pub(super) place: Place,
    pub(super) since: Time,
    pub(super) promise: Promise<O>,
    /// The lines that it failed on, and how.
    pub(super) failures: Vec<(usize, Error)>,
}

impl<O> Ticket<O> {
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

/// A piece that waits to be begun.
#[derive(Debug)]
pub(super) struct Waiting<I, O> {
    pub(super) ticket: Ticket<O>,
    pub(super) item: Item<I>,
    /// How long it takes to bring its data to another device, where it has a home.
    pub(super) move_time: Duration,
}

/// The item of a piece.
#[derive(Debug)]
pub(super) enum Item<I> {
    /// No worker has had it.
    New(I),
    /// It was begun with the others of a batch, which workers may hold longer than the piece is in flight. It is done
    /// alone from then on.
    Begun(Arc<[I]>, usize),
}

/// One device of a queue, with the pieces whose home it is.
#[derive(Debug)]
pub(super) struct Line<I, O> {
    pub(super) seat: Arc<PoolDevice>,
    /// In the order of their places. Changed only by the functions here, which keep the order and the count.
    queue: VecDeque<Piece<Waiting<I, O>>>,
    /// How many of them the seat's counter knows of.
    counted: u64,
    pub(super) trust: Trust,
    /// Mean time of a piece.
    pub(super) mean: Mean,
    /// The longest time that a worker's first batch took; nothing before one was done.
    pub(super) longest_first: Option<Duration>,
    /// The device's static score.
    pub(super) score: f64,
    /// Whether the device may hang; plain code on the processor does not.
    pub(super) may_hang: bool,
    /// Maximum number of workers.
    pub(super) max_workers: usize,
    /// Maximum number of pieces that fit a batch.
    pub(super) max_pieces: usize,
    /// How many workers it has, and how many of them make the device ready and run a batch.
    pub(super) hands: usize,
    pub(super) preparing: usize,
    pub(super) active: usize,
    /// Workers that wait until a batch is due.
    pub(super) timers: usize,
    /// The worker that finds out whether a device in quarantine is well again.
    pub(super) trial: Option<u64>,
    /// Its late workers.
    pub(super) stall: Stall,
    pub(super) done: u64,
    pub(super) failed: u64,
    /// Speculative copies that began here, in pieces.
    pub(super) copied: u64,
    /// Pieces that the balancer brought and took.
    pub(super) received: u64,
    pub(super) gave: u64,
}

impl<I, O> Line<I, O> {
    pub(super) fn new(seat: Arc<PoolDevice>, score: f64, max_workers: usize, may_hang: bool) -> Self {
        Line {
            seat,
            queue: VecDeque::new(),
            counted: 0,
            trust: Trust::new(),
            mean: Mean::default(),
            longest_first: None,
            score: score.max(1e-3),
            may_hang,
            max_workers: max_workers.max(1),
            max_pieces: usize::MAX,
            hands: 0,
            preparing: 0,
            active: 0,
            timers: 0,
            trial: None,
            stall: Stall::default(),
            done: 0,
            failed: 0,
            copied: 0,
            received: 0,
            gave: 0,
        }
    }

    /// How many pieces wait for this device alone.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The pieces that wait for this device alone, in order.
    pub(super) fn own(&self) -> impl Iterator<Item = &Waiting<I, O>> {
        self.queue.iter().map(Piece::work)
    }

    /// Puts a piece where it belongs.
    pub(super) fn push(&mut self, piece: Waiting<I, O>) {
        let at = self.queue.partition_point(|other| other.work().ticket.place < piece.ticket.place);
        self.queue.insert(at, Piece::new(piece));
        self.count();
    }

    /// Takes one piece out, if it is here.
    pub(super) fn remove(&mut self, place: Place) -> Option<Waiting<I, O>> {
        let at = self.queue.binary_search_by_key(&place, |piece| piece.work().ticket.place).ok()?;
        let piece = self.queue.remove(at)?;
        self.count();
        Some(piece.into_work())
    }

    /// Takes all pieces out.
    pub(super) fn drain(&mut self) -> Vec<Waiting<I, O>> {
        let all = self.queue.drain(..).map(Piece::into_work).collect();
        self.count();
        all
    }

    /// Lets pieces move between two lines, and puts them in order where they came to.
    pub(super) fn exchange(&mut self, other: &mut Self, step: &crate::balancer::Move) -> usize {
        let count = step.apply(&mut self.queue, &mut other.queue);
        other.queue.make_contiguous().sort_by_key(|piece| piece.work().ticket.place);
        self.gave += count as u64;
        other.received += count as u64;
        self.count();
        other.count();
        count
    }

    /// What the balancer is told: several workers drain the queue so many times as fast as one.
    pub(super) fn load(&self) -> Load {
        let load = Load::of(&self.queue);
        let moves: Duration = self.own().map(|piece| piece.move_time).sum();
        Load {
            piece_time: self.mean.time().map(|mean| mean / self.max_workers as u32),
            move_time: moves / u32::try_from(load.queued).unwrap_or(u32::MAX).max(1),
            working: self.is_well(),
            ..load
        }
    }

    /// Whether the device works, and not all of its workers are late.
    pub(super) fn is_well(&self) -> bool {
        self.trust.is_working() && !self.stall.stalled
    }

    /// Whether a worker may begin with a piece: any number while the device works, and the canary alone after its
    /// quarantine.
    pub(super) fn may_begin(&self, now: Time) -> bool {
        self.trust.is_working() || self.trust.may_be_tried(now) && self.trial.is_none()
    }

    /// Workers that will soon ask what to do.
    pub(super) fn free_hands(&self) -> usize {
        self.hands - self.active - if self.stall.unready { self.preparing } else { 0 }
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
