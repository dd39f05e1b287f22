//! The dispatcher of a queue: a state machine that makes every decision under one lock.
//!
//! It has no thread and no clock: callers report events with their times, and get the next action. It runs no user
//! code: a finished piece is put aside, and is dropped, and its task woken, once the lock is released. The one
//! exception are log messages, whose panics are [contained](crate::contain).
//!
//! A piece is in exactly one of three places: in the shared queue, in the queue of the device that is its home, or in
//! flight as one of a batch. A batch has one attempt per worker that runs it: more than one if a [speculative
//! copy](straggler) was made. The first results win; later ones are returned to their worker, which drops them.

mod failure;
mod follow;
#[cfg(test)]
mod fuzz;
mod placement;
mod straggler;
#[cfg(test)]
mod test;

use std::{collections::BTreeMap, sync::Arc, task::Waker, time::Duration};

use smallvec::SmallVec;

use self::placement::Pick;
pub(super) use self::straggler::{Stall, WATCH_INTERVAL};
use super::{
    device_queue::{DeviceQueue, PieceItem, Ticket, WaitingPiece},
    error::QueueError,
    handle::{PieceKey, Promise, Submitted},
};
use crate::{
    balancer::{Balancer, BalancerSettings, BalancerStatistics},
    contain::log,
    events::{ChunkEvent, RunEvents, lane_number},
    executor,
    run::{Purpose, Time},
};

/// The time limits of a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The user's limit for a piece. If set, no other limit applies to pieces.
    pub(super) piece: Option<Duration>,
    /// Maximum time to prepare a device.
    pub(super) prepare: Duration,
    /// Maximum time to wait for a device that may hang if no other device can give evidence; `None` for the default.
    pub(super) silence: Option<Duration>,
}

/// How pieces are batched.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLimits {
    /// Maximum number of pieces in a batch.
    pub(super) pieces: usize,
    /// Maximum time that a piece waits for a batch to fill.
    pub(super) delay: Duration,
}

/// Why a piece was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Closed,
    Full,
}

/// The options of a submitted piece.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SubmitOptions {
    pub(super) priority: i32,
    /// The device that has its data, and the time to move the data to another.
    pub(super) home: Option<(usize, Duration)>,
}

/// The state of a queue: its pieces, workers, devices and batches.
pub(super) struct Dispatcher<I, O> {
    pub(super) devices: Vec<DeviceQueue<I, O>>,
    /// Pieces that any device may take.
    shared: BTreeMap<PieceKey, WaitingPiece<I, O>>,
    /// The workers, by number. A worker that was declared hung is removed.
    workers: BTreeMap<u64, WorkerRecord>,
    /// Batches without results that at least one worker runs, by number.
    in_flight: BTreeMap<u64, RunningBatch<I, O>>,
    /// The stragglers among them, found by the last watch: other devices may run copies.
    stragglers: Vec<u64>,
    batch: BatchLimits,
    /// Maximum number of pieces without a result.
    pub(super) capacity: usize,
    next_worker: u64,
    next_flight: u64,
    next_number: u64,
    balancer: Balancer,
    interval: Duration,
    /// When the balancer last ran.
    balancer_asked: Option<Time>,
    limits: Limits,
    /// The longest piece so far.
    longest: Duration,
    /// When the watcher thread last ran; `None` while it is parked because the queue is idle.
    last_watch: Option<Time>,
    /// When an attempt last ended.
    last_end: Time,
    /// When the log last reported slow plain code.
    last_notice: Time,
    pub(super) closed: bool,
    /// Number of pieces without a result.
    pub(super) outstanding: usize,
    /// Finished pieces, to be dropped without the lock.
    pub(super) settled: Vec<Settled<I, O>>,
    /// Tasks that wait for capacity.
    pub(super) capacity_waiters: Vec<Waker>,
    /// The events of the queue, until it is over, if views can follow it.
    pub(super) events: Option<RunEvents>,
}

/// A finished piece, and the waker of the task that waits for it. The ticket drops the result if no handle is left.
pub(super) struct Settled<I, O> {
    pub(super) ticket: Ticket<O>,
    pub(super) item: PieceItem<I>,
    pub(super) waker: Option<Waker>,
}

/// The dispatcher's record of one worker.
struct WorkerRecord {
    device: usize,
    state: WorkerState,
    /// Whether it has run a batch since it prepared its device.
    warm: bool,
}

/// What a worker of a queue does.
enum WorkerState {
    Idle,
    /// Prepares this generation of its device.
    Preparing {
        stopwatch: Stopwatch,
        generation: u64,
    },
    Batch(BatchAttempt),
}

/// A batch of pieces that at least one worker runs.
struct RunningBatch<I, O> {
    tickets: SmallVec<[Ticket<O>; 1]>,
    /// The items that contain the batch's, which begin at `first`.
    items: Arc<[I]>,
    first: usize,
    /// The workers that run it.
    running: SmallVec<[u64; 2]>,
}

/// A batch that one worker runs.
struct BatchAttempt {
    /// The batch's number.
    flight: u64,
    /// Number of pieces.
    pieces: usize,
    stopwatch: Stopwatch,
    /// The generation of its device.
    generation: u64,
    /// Whether it tries a device in quarantine.
    canary: bool,
    /// Whether it is its worker's first on this generation of the device, which may compile code and allocate memory.
    first: bool,
    evidence: Evidence,
    /// The batch in the events.
    event: ChunkEvent,
}

/// Evidence about an attempt from the other attempts at its batch.
#[derive(Debug, Clone, Copy)]
enum Evidence {
    /// None yet: the batch is in flight.
    Pending,
    /// None, for good: the batch ended with an error of the task.
    None,
    /// Another device has finished the batch. By the two devices' usual speeds, this attempt needs `expected`.
    DoneElsewhere { expected: Duration },
}

/// Measures a running time, without the time in which the process was stopped.
#[derive(Debug, Clone, Copy)]
struct Stopwatch {
    began: Time,
    paused: Duration,
}

impl Stopwatch {
    fn new(began: Time) -> Stopwatch {
        Stopwatch { began, paused: Duration::ZERO }
    }

    /// Time since the beginning.
    fn age(&self, now: Time) -> Duration {
        now.saturating_sub(self.began).saturating_sub(self.paused)
    }

    /// Takes out a time in which the process was stopped.
    fn pause(&mut self, from: Time, until: Time) {
        self.paused += until.saturating_sub(from.max(self.began));
    }
}

/// A batch for a worker: `count` of these items, from `first` on. The first piece has this number.
pub(super) struct BatchItems<I> {
    pub(super) items: Arc<[I]>,
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) number: u64,
}

/// The next action of a worker.
pub(super) type Next<I> = executor::Next<BatchItems<I>>;

impl<I, O> Dispatcher<I, O> {
    pub(super) fn new(
        devices: Vec<DeviceQueue<I, O>>,
        balancer: BalancerSettings,
        limits: Limits,
        batch: BatchLimits,
        capacity: usize,
    ) -> Self {
        Dispatcher {
            devices,
            shared: BTreeMap::new(),
            workers: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            stragglers: Vec::new(),
            batch: BatchLimits { pieces: batch.pieces.max(1), ..batch },
            capacity: capacity.max(1),
            next_worker: 0,
            next_flight: 0,
            next_number: 0,
            interval: balancer.interval,
            balancer: Balancer::new(balancer),
            balancer_asked: None,
            limits,
            longest: Duration::ZERO,
            last_watch: None,
            last_end: Time::ZERO,
            last_notice: Time::ZERO,
            closed: false,
            outstanding: 0,
            settled: Vec::new(),
            capacity_waiters: Vec::new(),
            events: None,
        }
    }

    /// Accepts a new piece and returns its pending result and key, or returns the item.
    pub(super) fn submit(
        &mut self,
        item: I,
        options: SubmitOptions,
        now: Time,
    ) -> Result<Submitted<O>, (I, Refused)> {
        if self.closed {
            return Err((item, Refused::Closed));
        }
        if self.outstanding >= self.capacity {
            return Err((item, Refused::Full));
        }
        let key = PieceKey { priority: std::cmp::Reverse(options.priority), number: self.next_number };
        self.next_number += 1;
        self.outstanding += 1;
        let (promise, pending) = Promise::new();
        let ticket = Ticket { key, since: now, promise, failures: Vec::new() };
        let move_time = options.home.map_or(Duration::ZERO, |(_, time)| time);
        let piece = WaitingPiece { ticket, item: PieceItem::New(item), move_time };
        self.enqueue(piece, options.home.map(|(device, _)| device));
        Ok((pending, key))
    }

    /// Removes a waiting piece.
    fn take(&mut self, key: PieceKey) -> Option<WaitingPiece<I, O>> {
        let shared = self.shared.remove(&key);
        shared.or_else(|| self.devices.iter_mut().find_map(|device| device.remove(key)))
    }

    /// Cancels a piece that is not in flight. Returns whether it was found.
    pub(super) fn withdraw(&mut self, key: PieceKey) -> bool {
        let Some(piece) = self.take(key) else { return false };
        self.settle(piece.ticket, piece.item, Err(QueueError::Cancelled));
        true
    }

    /// Whether the queue is closed, and every piece has its result.
    pub(super) fn is_over(&self) -> bool {
        self.closed && self.outstanding == 0
    }

    /// Whether every piece has its result, and no worker is busy.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0 && self.devices.iter().all(|device| device.active + device.preparing == 0)
    }

    /// Adds a worker to a device. Returns its number.
    pub(super) fn add_worker(&mut self, device: usize) -> u64 {
        let number = self.next_worker;
        self.next_worker += 1;
        self.devices[device].workers += 1;
        self.workers.insert(number, WorkerRecord { device, state: WorkerState::Idle, warm: false });
        number
    }

    /// Removes a worker. Returns its device and state.
    fn remove_worker(&mut self, worker: u64) -> Option<(usize, WorkerState)> {
        let WorkerRecord { device, state, .. } = self.workers.remove(&worker)?;
        self.devices[device].workers -= 1;
        self.leave_state(worker, device, &state);
        Some((device, state))
    }

    /// Makes a worker idle. Returns its device and last state, or `None` if it was removed.
    fn set_idle(&mut self, worker: u64) -> Option<(usize, WorkerState)> {
        let WorkerRecord { device, state, .. } = self.workers.get_mut(&worker)?;
        let (device, state) = (*device, std::mem::replace(state, WorkerState::Idle));
        self.leave_state(worker, device, &state);
        Some((device, state))
    }

    /// Updates the counts of a device whose worker leaves a state.
    fn leave_state(&mut self, worker: u64, device: usize, state: &WorkerState) {
        let it = &mut self.devices[device];
        match state {
            WorkerState::Idle => {}
            WorkerState::Preparing { .. } => it.preparing -= 1,
            WorkerState::Batch(_) => it.active -= 1,
        }
        if !matches!(state, WorkerState::Idle) {
            // The next watch sets it again, if another worker of the device is late.
            it.stall = Default::default();
        }
        if it.canary_worker == Some(worker) {
            it.canary_worker = None;
        }
    }

    /// Returns a worker's next action. The worker is ready for a generation of its device, or not ready. A worker of an
    /// old generation is removed, and another started in its place: on a device that has hung, releasing its state may
    /// take any time, and no piece may wait for that.
    pub(super) fn next_work(&mut self, worker: u64, ready_for: Option<u64>, now: Time) -> Next<I> {
        let Some((device, warm)) = self.workers.get(&worker).map(|worker| (worker.device, worker.warm))
        else {
            return Next::Exit;
        };
        let generation = self.devices[device].device.generation();
        let is_outdated = ready_for.is_some_and(|ready| ready != generation);
        if self.is_over() || self.devices[device].health.is_retired() || is_outdated {
            self.remove_worker(worker);
            return Next::Exit;
        }
        let until = match self.pick(device, now) {
            None => None,
            Some(Pick::Later(due)) if ready_for.is_some() => Some(due),
            Some(pick) => {
                let canary = !self.devices[device].health.is_working();
                let (state, next) = if ready_for.is_none() {
                    self.devices[device].preparing += 1;
                    (WorkerState::Preparing { stopwatch: Stopwatch::new(now), generation }, Next::Prepare)
                } else {
                    let Some((event, next)) = self.begin(worker, device, pick, canary) else {
                        return Next::Wait { until: None };
                    };
                    self.tell_began(event, now);
                    let (flight, pieces) = (event.chunk, event.items as usize);
                    let (stopwatch, evidence) = (Stopwatch::new(now), Evidence::Pending);
                    let attempt = BatchAttempt {
                        flight,
                        pieces,
                        stopwatch,
                        generation,
                        canary,
                        first: !warm,
                        evidence,
                        event,
                    };
                    (WorkerState::Batch(attempt), next)
                };
                if canary {
                    self.devices[device].canary_worker = Some(worker);
                }
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.state = state;
                }
                return next;
            }
        };
        Next::Wait { until }
    }

    /// Puts a batch, or another attempt at one, in flight. Returns the batch and the worker's action.
    fn begin(
        &mut self,
        worker: u64,
        device: usize,
        pick: Pick,
        canary: bool,
    ) -> Option<(ChunkEvent, Next<I>)> {
        let (number, is_copy) = match pick {
            Pick::Later(_) => return None,
            Pick::Copy(number) => {
                self.stragglers.retain(|&late| late != number);
                (number, true)
            }
            Pick::Pieces(keys) => {
                let number = self.next_flight;
                self.next_flight += 1;
                let (mut tickets, mut new, mut begun) = (SmallVec::new(), Vec::new(), None);
                for WaitingPiece { ticket, item, .. } in keys.into_iter().filter_map(|key| self.take(key)) {
                    tickets.push(ticket);
                    match item {
                        PieceItem::New(item) => new.push(item),
                        PieceItem::Begun(items, first) => begun = Some((items, first)),
                    }
                }
                let (items, first) = begun.unwrap_or_else(|| (new.into(), 0));
                self.in_flight
                    .insert(number, RunningBatch { tickets, items, first, running: SmallVec::new() });
                (number, false)
            }
        };
        let flight = self.in_flight.get_mut(&number)?;
        flight.running.push(worker);
        let count = flight.tickets.len();
        let it = &mut self.devices[device];
        if is_copy {
            it.copied += count as u64;
        }
        it.active += 1;
        (0..count).for_each(|_| it.device.counters.begin());
        log!(trace, device = %it.device.id, batch = number, pieces = count, is_copy, "a batch begins");
        let (items, first, piece) = (flight.items.clone(), flight.first, flight.tickets[0].key.number);
        let purpose = match (canary, is_copy) {
            (true, _) => Purpose::Canary,
            (false, true) => Purpose::Speculative,
            (false, false) => Purpose::Work,
        };
        let lane = lane_number(device);
        let event = ChunkEvent { lane, chunk: number, first: piece, items: count as u64, purpose };
        Some((event, Next::Run(BatchItems { items, first, count, number: piece })))
    }

    /// Records that a worker has prepared its device, for up to `max_pieces` pieces at once.
    pub(super) fn prepared(&mut self, worker: u64, max_pieces: u64) {
        if let Some((device, _)) = self.set_idle(worker) {
            let most = usize::try_from(max_pieces).unwrap_or(usize::MAX).max(1);
            self.devices[device].max_pieces = self.devices[device].max_pieces.min(most);
        }
    }

    /// Records a worker's results. Returns them if they are not needed: another device was first, or the worker was
    /// declared hung.
    pub(super) fn finished(&mut self, worker: u64, results: Vec<O>, now: Time) -> Option<Vec<O>> {
        let Some((device, WorkerState::Batch(attempt))) = self.set_idle(worker) else {
            return Some(results);
        };
        let took = attempt.stopwatch.age(now);
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.warm = true;
        }
        self.longest = self.longest.max(took);
        self.last_end = now;
        let it = &mut self.devices[device];
        if attempt.first {
            it.longest_first = it.longest_first.max(Some(took));
        }
        let is_back = it.health.done(attempt.canary, now);
        let each = took / u32::try_from(attempt.pieces).unwrap_or(u32::MAX);
        let unwanted = match self.in_flight.remove(&attempt.flight) {
            Some(flight) => {
                it.done += attempt.pieces as u64;
                (0..attempt.pieces).for_each(|_| it.device.counters.end(each));
                self.record_evidence(&flight, attempt.flight, Some((device, took)));
                let RunningBatch { tickets, items, first, .. } = flight;
                for (index, (ticket, result)) in tickets.into_iter().zip(results).enumerate() {
                    let item = PieceItem::Begun(items.clone(), first + index);
                    self.settle(ticket, item, Ok(result));
                }
                None
            }
            None => {
                (0..attempt.pieces).for_each(|_| it.device.counters.drop());
                Some(results)
            }
        };
        self.tell_ended(&attempt, if unwanted.is_none() { attempt.pieces } else { 0 }, took, now);
        // Last, because evidence compares the devices' times before this batch.
        self.devices[device].mean.learn(each);
        if is_back {
            log!(debug, device = %self.devices[device].device.id, "a device is healthy again");
            self.tell_health(device, now);
        }
        unwanted
    }

    /// Records evidence about the other attempts at a batch, which a device has finished or not.
    fn record_evidence(
        &mut self,
        flight: &RunningBatch<I, O>,
        number: u64,
        done_by: Option<(usize, Duration)>,
    ) {
        for worker in &flight.running {
            let Some(device) = self.workers.get(worker).map(|worker| worker.device) else { continue };
            let evidence = done_by.map_or(Evidence::None, |(by, took)| Evidence::DoneElsewhere {
                expected: took.mul_f64(self.times_as_slow(device, by)),
            });
            if let Some(WorkerRecord { state: WorkerState::Batch(attempt), .. }) =
                self.workers.get_mut(worker)
                && attempt.flight == number
            {
                attempt.evidence = evidence;
            }
        }
    }

    /// Gives a piece its result.
    fn settle(&mut self, ticket: Ticket<O>, item: PieceItem<I>, result: Result<O, QueueError>) {
        let waker = ticket.promise.fulfil(result);
        self.outstanding -= 1;
        self.settled.push(Settled { ticket, item, waker });
    }

    /// Runs the balancer if it is due and pieces wait at their homes.
    pub(super) fn rebalance_if_due(&mut self, now: Time) {
        let is_due = self
            .balancer_asked
            .is_none_or(|balancer_asked| now.saturating_sub(balancer_asked) >= self.interval);
        if is_due && self.devices.iter().any(|device| device.queued() > 0) {
            self.balancer_asked = Some(now);
            self.rebalance(now);
        }
    }

    /// Runs the balancer, and makes its moves.
    fn rebalance(&mut self, now: Time) {
        let loads: Vec<_> = self.devices.iter().map(|device| device.load()).collect();
        for step in self.balancer.rebalance(now, &loads) {
            let Ok([from, to]) = self.devices.get_disjoint_mut([step.from, step.to]) else { continue };
            let pieces = from.exchange(to, &step);
            log!(debug, from = %from.device.id, to = %to.device.id, pieces, "queued pieces moved");
        }
    }

    pub(super) fn balanced(&self) -> BalancerStatistics {
        self.balancer.statistics()
    }
}
