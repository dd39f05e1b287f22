//! One device of a queue: the pieces whose home it is, its workers and its health.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use evener_device::Error;

use super::{
    dispatcher::Stall,
    handle::{PieceKey, Promise},
    health::DeviceHealth,
};
use crate::{
    balancer::{Load, Piece},
    executor::PoolDevice,
    run::Time,
};

/// Maximum number of tries of a piece on one device. A piece is retried on the same device only if no other device can
/// take it; the quarantine doubles with each failure, so a device that is away for most of a second loses no piece.
const MAX_TRIES: u32 = 4;

/// Number of tries that a hang counts for, because each hang may take very long.
const TRIES_PER_HANG: u32 = 2;

/// A piece without a result. Each piece has one ticket, which waits or is in flight.
#[derive(Debug)]
pub(super) struct Ticket<O> {
    pub(super) key: PieceKey,
    pub(super) since: Time,
    pub(super) promise: Promise<O>,
    /// The devices on which it failed, with the errors.
    pub(super) failures: Vec<(usize, Error)>,
}

impl<O> Ticket<O> {
    /// Number of failed tries on a device.
    pub(super) fn tries_on(&self, device: usize) -> u32 {
        let tries = |error: &Error| if matches!(error, Error::TimedOut { .. }) { TRIES_PER_HANG } else { 1 };
        self.failures.iter().filter(|(failed, _)| *failed == device).map(|(_, error)| tries(error)).sum()
    }

    /// Whether the piece may be tried on a device, even if it failed there before.
    pub(super) fn may_try(&self, device: usize) -> bool {
        self.tries_on(device) < MAX_TRIES
    }
}

/// A piece that waits for a worker.
#[derive(Debug)]
pub(super) struct WaitingPiece<I, O> {
    pub(super) ticket: Ticket<O>,
    pub(super) item: PieceItem<I>,
    /// Time to move its data to another device, if it has a home.
    pub(super) move_time: Duration,
}

/// The item of a piece.
#[derive(Debug)]
pub(super) enum PieceItem<I> {
    /// No worker has begun the piece.
    New(I),
    /// The piece was begun as one of a batch, whose items other workers may still hold. It is run alone from then on.
    Begun(Arc<[I]>, usize),
}

/// One device of a queue, with the pieces whose home it is.
#[derive(Debug)]
pub(super) struct DeviceQueue<I, O> {
    pub(super) device: Arc<PoolDevice>,
    /// Sorted by key. Only the methods below change it; they keep the order and the count.
    pieces: VecDeque<Piece<WaitingPiece<I, O>>>,
    /// Number of pieces that this queue has added to the pool's counter.
    counted: u64,
    pub(super) health: DeviceHealth,
    /// Mean time of a piece.
    pub(super) mean: MeanTime,
    /// Longest first batch of a worker, or `None` before the first one.
    pub(super) longest_first: Option<Duration>,
    /// The device's static score.
    pub(super) score: f64,
    /// Whether the device may hang; plain code on the processor cannot.
    pub(super) may_hang: bool,
    /// Maximum number of workers.
    pub(super) max_workers: usize,
    /// Maximum number of pieces that fit a batch.
    pub(super) max_pieces: usize,
    /// Number of workers, of workers that prepare the device, and of workers that run a batch.
    pub(super) workers: usize,
    pub(super) preparing: usize,
    pub(super) active: usize,
    /// Workers that wait for a batch's due time.
    pub(super) timers: usize,
    /// The worker that tries a device in quarantine with one piece.
    pub(super) canary_worker: Option<u64>,
    /// Whether all its workers are late.
    pub(super) stall: Stall,
    pub(super) done: u64,
    pub(super) failed: u64,
    /// Pieces of the speculative copies that began here.
    pub(super) copied: u64,
    /// Pieces that the balancer moved to this device, and away from it.
    pub(super) moved_in: u64,
    pub(super) moved_out: u64,
}

impl<I, O> DeviceQueue<I, O> {
    pub(super) fn new(device: Arc<PoolDevice>, score: f64, max_workers: usize, may_hang: bool) -> Self {
        DeviceQueue {
            device,
            pieces: VecDeque::new(),
            counted: 0,
            health: DeviceHealth::new(),
            mean: MeanTime::default(),
            longest_first: None,
            score: score.max(1e-3),
            may_hang,
            max_workers: max_workers.max(1),
            max_pieces: usize::MAX,
            workers: 0,
            preparing: 0,
            active: 0,
            timers: 0,
            canary_worker: None,
            stall: Stall::default(),
            done: 0,
            failed: 0,
            copied: 0,
            moved_in: 0,
            moved_out: 0,
        }
    }

    /// Number of pieces whose home this device is.
    pub(super) fn queued(&self) -> usize {
        self.pieces.len()
    }

    /// The pieces whose home this device is, in order.
    pub(super) fn own(&self) -> impl Iterator<Item = &WaitingPiece<I, O>> {
        self.pieces.iter().map(Piece::work)
    }

    /// Inserts a piece in order.
    pub(super) fn push(&mut self, piece: WaitingPiece<I, O>) {
        let at = self.pieces.partition_point(|other| other.work().ticket.key < piece.ticket.key);
        self.pieces.insert(at, Piece::new(piece));
        self.count();
    }

    /// Removes a piece, if it is here.
    pub(super) fn remove(&mut self, key: PieceKey) -> Option<WaitingPiece<I, O>> {
        let at = self.pieces.binary_search_by_key(&key, |piece| piece.work().ticket.key).ok()?;
        let piece = self.pieces.remove(at)?;
        self.count();
        Some(piece.into_work())
    }

    /// Removes all pieces.
    pub(super) fn drain(&mut self) -> Vec<WaitingPiece<I, O>> {
        let all = self.pieces.drain(..).map(Piece::into_work).collect();
        self.count();
        all
    }

    /// Moves pieces to another device, in order. Returns how many moved.
    pub(super) fn exchange(&mut self, other: &mut Self, step: &crate::balancer::Move) -> usize {
        let count = step.apply(&mut self.pieces, &mut other.pieces);
        other.pieces.make_contiguous().sort_by_key(|piece| piece.work().ticket.key);
        self.moved_out += count as u64;
        other.moved_in += count as u64;
        self.count();
        other.count();
        count
    }

    /// The device's load for the balancer: several workers drain the queue as many times faster than one.
    pub(super) fn load(&self) -> Load {
        let load = Load::of(&self.pieces);
        let moves: Duration = self.own().map(|piece| piece.move_time).sum();
        Load {
            piece_time: self.mean.time().map(|mean| mean / self.max_workers as u32),
            move_time: moves / u32::try_from(load.queued).unwrap_or(u32::MAX).max(1),
            working: self.is_well(),
            ..load
        }
    }

    /// Whether the device is healthy, and not all of its workers are late.
    pub(super) fn is_well(&self) -> bool {
        self.health.is_working() && !self.stall.stalled
    }

    /// Whether a worker may begin a piece: any worker of a healthy device, and only the canary after a quarantine.
    pub(super) fn may_begin(&self, now: Time) -> bool {
        self.health.is_working() || self.health.may_be_tried(now) && self.canary_worker.is_none()
    }

    /// Workers that are idle, or will be soon.
    pub(super) fn free_workers(&self) -> usize {
        self.workers - self.active - if self.stall.unready { self.preparing } else { 0 }
    }

    /// Updates the pool's counter of queued pieces. Other queues count there too, so only the difference is added.
    fn count(&mut self) {
        let (before, now) = (self.counted, self.pieces.len() as u64);
        self.counted = now;
        // A negative difference wraps around, as the counter does.
        self.device.counters.queued.fetch_add(now.wrapping_sub(before), Relaxed);
    }
}

/// The mean time of a device's pieces, weighted towards the last 32: a service's pieces change over time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MeanTime {
    pieces: u32,
    seconds: f64,
}

impl MeanTime {
    const WINDOW: u32 = 32;

    pub(super) fn learn(&mut self, took: Duration) {
        self.pieces = (self.pieces + 1).min(Self::WINDOW);
        self.seconds += (took.as_secs_f64() - self.seconds) / f64::from(self.pieces);
    }

    /// The mean, or `None` before the first piece.
    pub(super) fn time(&self) -> Option<Duration> {
        (self.pieces > 0).then(|| Duration::from_secs_f64(self.seconds.max(1e-9)))
    }
}
