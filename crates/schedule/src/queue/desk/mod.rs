//! The desk: the dispatcher of a queue, which makes every decision under one lock.
//!
//! It has no thread and no clock of its own: it is told what happened and when, and answers with what to do. Nor does it
//! run anybody else's code: a piece that has its answer is put aside, and dropped and woken once the lock is released.
//! The one exception are log lines, whose panics are [contained](crate::contain).
//!
//! A piece is in exactly one of three places: in the shared queue, in the queue of the device that is its home, or in
//! flight, as one of a batch. A batch has one attempt for each worker that runs it: more than one where a [speculative
//! copy](late) was made. The first results are the answers. What other workers bring later is handed back to them, to be
//! dropped.

mod fail;
#[cfg(test)]
mod fuzz;
mod late;
mod place;
#[cfg(test)]
mod test;

use std::{collections::BTreeMap, sync::Arc, task::Waker, time::Duration};

use smallvec::SmallVec;

pub(super) use self::late::{GLANCE, Stall};
use self::place::Pick;
use super::{
    error::QueueError,
    handle::{Place, Promise, Submitted},
    line::{Item, Line, Ticket, Waiting},
};
use crate::{
    balancer::{Balancer, BalancerSettings, BalancerStatistics},
    contain::log,
    executor,
    run::Time,
};

/// The time limits of a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The user's own limit for a piece. Where it is given, no other limit counts for pieces.
    pub(super) piece: Option<Duration>,
    /// How long a device may take to be made ready.
    pub(super) prepare: Duration,
    /// How long a device that may hang is waited for where no other device can give evidence; nothing for the default.
    pub(super) silence: Option<Duration>,
}

/// How pieces are taken together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    /// Maximum number of pieces in a batch.
    pub(super) pieces: usize,
    /// How long a piece waits for others at most.
    pub(super) delay: Duration,
}

/// Why a piece was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Closed,
    Full,
}

/// What a piece is submitted with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wishes {
    pub(super) priority: i32,
    /// The line that has its data, and how long it takes to bring the data to another.
    pub(super) home: Option<(usize, Duration)>,
}

/// The dispatcher of a queue.
pub(super) struct Desk<I, O> {
    pub(super) lines: Vec<Line<I, O>>,
    /// Pieces that any device may take.
    shared: BTreeMap<Place, Waiting<I, O>>,
    /// The workers, by number. A worker that was called hung is not among them any more.
    hands: BTreeMap<u64, Hand>,
    /// Batches that a worker has begun with and that have no answer yet, by their number.
    in_flight: BTreeMap<u64, InFlight<I, O>>,
    /// Those of them that are late, as of the last look: another device is to do them as well.
    late: Vec<u64>,
    batch: Batch,
    /// Maximum number of pieces without an answer.
    pub(super) capacity: usize,
    next_hand: u64,
    next_flight: u64,
    next_number: u64,
    balancer: Balancer,
    interval: Duration,
    /// When the balancer was last asked because it was time.
    asked: Option<Time>,
    limits: Limits,
    /// The longest time that a piece has taken so far.
    longest: Duration,
    /// When the look-after thread last ran; nothing while it sleeps because the queue is idle.
    looked: Option<Time>,
    /// When an attempt last ended.
    last_end: Time,
    /// When the log last said that plain code is waited for.
    last_notice: Time,
    pub(super) closed: bool,
    /// Pieces that have no answer yet.
    pub(super) outstanding: usize,
    /// Pieces that have their answer, and wait to be dropped without the lock.
    pub(super) settled: Vec<Settled<I, O>>,
    /// Tasks that wait for room, to be woken once there is some.
    pub(super) wants_room: Vec<Waker>,
}

/// A piece that has its answer, and the task that waits for it. The ticket drops the result where no handle is left.
pub(super) struct Settled<I, O> {
    pub(super) ticket: Ticket<O>,
    pub(super) item: Item<I>,
    pub(super) waker: Option<Waker>,
}

/// A worker of a line.
struct Hand {
    line: usize,
    doing: Doing,
    /// It has done a batch since it made its device ready.
    warm: bool,
}

enum Doing {
    Nothing,
    /// Makes its device, of this generation, ready.
    Preparing {
        span: Span,
        generation: u64,
    },
    Batch(Attempt),
}

/// A batch of pieces that at least one worker runs.
struct InFlight<I, O> {
    tickets: SmallVec<[Ticket<O>; 1]>,
    /// The items of the batch are these, from here on.
    items: Arc<[I]>,
    first: usize,
    /// The workers that run it.
    running: SmallVec<[u64; 2]>,
}

/// A batch that one worker runs.
struct Attempt {
    /// The batch's number.
    flight: u64,
    /// How many pieces it has.
    pieces: usize,
    span: Span,
    /// The generation of the device that it runs on.
    generation: u64,
    /// It shows whether its device is well again.
    canary: bool,
    /// It is its worker's first on this opening of the device, which may compile code and allocate memory.
    first: bool,
    evidence: Evidence,
}

/// What is known about an attempt from the other attempts at its batch.
#[derive(Debug, Clone, Copy)]
enum Evidence {
    /// Nothing: the batch has no answer yet.
    Pending,
    /// Nothing, and there will be none: the batch ended with an error of the task.
    None,
    /// Another device has done the batch. By the two devices' usual speeds this one needs so long.
    DoneElsewhere { expected: Duration },
}

/// A time span that is still running, without the time in which the process was stopped.
#[derive(Debug, Clone, Copy)]
struct Span {
    began: Time,
    paused: Duration,
}

impl Span {
    fn new(began: Time) -> Span {
        Span { began, paused: Duration::ZERO }
    }

    /// How long it has run for.
    fn age(&self, now: Time) -> Duration {
        now.saturating_sub(self.began).saturating_sub(self.paused)
    }

    /// The process did not run between these times.
    fn pause(&mut self, from: Time, until: Time) {
        self.paused += until.saturating_sub(from.max(self.began));
    }
}

/// A batch that a worker is to run: so many of these items, from here on. The first piece has this number.
pub(super) struct Work<I> {
    pub(super) items: Arc<[I]>,
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) number: u64,
}

/// What a worker of a queue is to do.
pub(super) type Next<I> = executor::Next<Work<I>>;

impl<I, O> Desk<I, O> {
    pub(super) fn new(
        lines: Vec<Line<I, O>>,
        balancer: BalancerSettings,
        limits: Limits,
        batch: Batch,
        capacity: usize,
    ) -> Self {
        Desk {
            lines,
            shared: BTreeMap::new(),
            hands: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            late: Vec::new(),
            batch: Batch { pieces: batch.pieces.max(1), ..batch },
            capacity: capacity.max(1),
            next_hand: 0,
            next_flight: 0,
            next_number: 0,
            interval: balancer.interval,
            balancer: Balancer::new(balancer),
            asked: None,
            limits,
            longest: Duration::ZERO,
            looked: None,
            last_end: Time::ZERO,
            last_notice: Time::ZERO,
            closed: false,
            outstanding: 0,
            settled: Vec::new(),
            wants_room: Vec::new(),
        }
    }

    /// Takes a new piece, and says what its handle waits for; or gives its item back.
    pub(super) fn submit(
        &mut self,
        item: I,
        wishes: Wishes,
        now: Time,
    ) -> Result<Submitted<O>, (I, Refused)> {
        if self.closed {
            return Err((item, Refused::Closed));
        }
        if self.outstanding >= self.capacity {
            return Err((item, Refused::Full));
        }
        let place = Place { priority: std::cmp::Reverse(wishes.priority), number: self.next_number };
        self.next_number += 1;
        self.outstanding += 1;
        let (promise, answer) = Promise::new();
        let ticket = Ticket { place, since: now, promise, failures: Vec::new() };
        let move_time = wishes.home.map_or(Duration::ZERO, |(_, time)| time);
        let piece = Waiting { ticket, item: Item::New(item), move_time };
        self.place(piece, wishes.home.map(|(line, _)| line));
        Ok((answer, place))
    }

    /// Takes a piece out that waits.
    fn take(&mut self, place: Place) -> Option<Waiting<I, O>> {
        let shared = self.shared.remove(&place);
        shared.or_else(|| self.lines.iter_mut().find_map(|line| line.remove(place)))
    }

    /// Cancels a piece that is not in flight. Says whether it was there.
    pub(super) fn withdraw(&mut self, place: Place) -> bool {
        let Some(piece) = self.take(place) else { return false };
        self.settle(piece.ticket, piece.item, Err(QueueError::Cancelled));
        true
    }

    /// Whether nothing is left to do, nor will be.
    pub(super) fn is_over(&self) -> bool {
        self.closed && self.outstanding == 0
    }

    /// Whether every piece has its answer, and no worker is busy.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0 && self.lines.iter().all(|line| line.active + line.preparing == 0)
    }

    /// A worker starts on a line. Gives its number.
    pub(super) fn hire(&mut self, line: usize) -> u64 {
        let number = self.next_hand;
        self.next_hand += 1;
        self.lines[line].hands += 1;
        self.hands.insert(number, Hand { line, doing: Doing::Nothing, warm: false });
        number
    }

    /// Lets a worker go, and gives what it was doing.
    fn dismiss(&mut self, hand: u64) -> Option<(usize, Doing)> {
        let Hand { line, doing, .. } = self.hands.remove(&hand)?;
        self.lines[line].hands -= 1;
        self.put_down(hand, line, &doing);
        Some((line, doing))
    }

    /// What a worker was doing, which now does nothing; nothing where it was dismissed.
    fn stop(&mut self, hand: u64) -> Option<(usize, Doing)> {
        let Hand { line, doing, .. } = self.hands.get_mut(&hand)?;
        let (line, doing) = (*line, std::mem::replace(doing, Doing::Nothing));
        self.put_down(hand, line, &doing);
        Some((line, doing))
    }

    fn put_down(&mut self, hand: u64, line: usize, doing: &Doing) {
        let it = &mut self.lines[line];
        match doing {
            Doing::Nothing => {}
            Doing::Preparing { .. } => it.preparing -= 1,
            Doing::Batch(_) => it.active -= 1,
        }
        if !matches!(doing, Doing::Nothing) {
            // Found again at the next look, where another worker of the line is late.
            it.stall = Default::default();
        }
        if it.trial == Some(hand) {
            it.trial = None;
        }
    }

    /// A worker asks what to do. It says which generation of its device it is ready for. One that is ready for an old
    /// opening is let go, and another one started in its place: giving back what it holds may take any time on a device
    /// that has hung, and no piece may wait for that.
    pub(super) fn ask(&mut self, hand: u64, ready_for: Option<u64>, now: Time) -> Next<I> {
        let Some((line, warm)) = self.hands.get(&hand).map(|hand| (hand.line, hand.warm)) else {
            return Next::Exit;
        };
        let generation = self.lines[line].seat.generation();
        let is_outdated = ready_for.is_some_and(|ready| ready != generation);
        if self.is_over() || self.lines[line].trust.is_retired() || is_outdated {
            self.dismiss(hand);
            return Next::Exit;
        }
        let until = match self.pick(line, now) {
            None => None,
            Some(Pick::Later(due)) if ready_for.is_some() => Some(due),
            Some(pick) => {
                let canary = !self.lines[line].trust.is_working();
                let (doing, next) = if ready_for.is_none() {
                    self.lines[line].preparing += 1;
                    (Doing::Preparing { span: Span::new(now), generation }, Next::Prepare)
                } else {
                    let Some((flight, pieces, next)) = self.begin(hand, line, pick) else {
                        return Next::Wait { until: None };
                    };
                    let (span, evidence) = (Span::new(now), Evidence::Pending);
                    let attempt =
                        Attempt { flight, pieces, span, generation, canary, first: !warm, evidence };
                    (Doing::Batch(attempt), next)
                };
                if canary {
                    self.lines[line].trial = Some(hand);
                }
                if let Some(hand) = self.hands.get_mut(&hand) {
                    hand.doing = doing;
                }
                return next;
            }
        };
        Next::Wait { until }
    }

    /// Puts a batch in flight, or another attempt at one. Gives its number, its size, and what the worker is to do.
    fn begin(&mut self, hand: u64, line: usize, pick: Pick) -> Option<(u64, usize, Next<I>)> {
        let (number, is_copy) = match pick {
            Pick::Later(_) => return None,
            Pick::Copy(number) => {
                self.late.retain(|&late| late != number);
                (number, true)
            }
            Pick::Pieces(places) => {
                let number = self.next_flight;
                self.next_flight += 1;
                let (mut tickets, mut new, mut begun) = (SmallVec::new(), Vec::new(), None);
                for Waiting { ticket, item, .. } in places.into_iter().filter_map(|place| self.take(place)) {
                    tickets.push(ticket);
                    match item {
                        Item::New(item) => new.push(item),
                        Item::Begun(items, first) => begun = Some((items, first)),
                    }
                }
                let (items, first) = begun.unwrap_or_else(|| (new.into(), 0));
                self.in_flight.insert(number, InFlight { tickets, items, first, running: SmallVec::new() });
                (number, false)
            }
        };
        let flight = self.in_flight.get_mut(&number)?;
        flight.running.push(hand);
        let count = flight.tickets.len();
        let it = &mut self.lines[line];
        if is_copy {
            it.copied += count as u64;
        }
        it.active += 1;
        (0..count).for_each(|_| it.seat.counters.begin());
        log!(trace, device = %it.seat.id, batch = number, pieces = count, is_copy, "a batch begins");
        let (items, first) = (flight.items.clone(), flight.first);
        Some((number, count, Next::Run(Work { items, first, count, number: flight.tickets[0].place.number })))
    }

    /// A worker has made its device ready, for so many pieces at once.
    pub(super) fn prepared(&mut self, hand: u64, max_pieces: u64) {
        if let Some((line, _)) = self.stop(hand) {
            let most = usize::try_from(max_pieces).unwrap_or(usize::MAX).max(1);
            self.lines[line].max_pieces = self.lines[line].max_pieces.min(most);
        }
    }

    /// A worker has done its batch. Gives the results back where they are not the answers: another device was first, or
    /// the worker was called hung.
    pub(super) fn finished(&mut self, hand: u64, results: Vec<O>, now: Time) -> Option<Vec<O>> {
        let Some((line, Doing::Batch(attempt))) = self.stop(hand) else {
            return Some(results);
        };
        let took = attempt.span.age(now);
        if let Some(hand) = self.hands.get_mut(&hand) {
            hand.warm = true;
        }
        self.longest = self.longest.max(took);
        self.last_end = now;
        let it = &mut self.lines[line];
        if attempt.first {
            it.longest_first = it.longest_first.max(Some(took));
        }
        let is_back = it.trust.done(attempt.canary, now);
        let each = took / u32::try_from(attempt.pieces).unwrap_or(u32::MAX);
        let unwanted = match self.in_flight.remove(&attempt.flight) {
            Some(flight) => {
                it.done += attempt.pieces as u64;
                (0..attempt.pieces).for_each(|_| it.seat.counters.end(each));
                self.witness(&flight, attempt.flight, Some((line, took)));
                let InFlight { tickets, items, first, .. } = flight;
                for (index, (ticket, result)) in tickets.into_iter().zip(results).enumerate() {
                    let item = Item::Begun(items.clone(), first + index);
                    self.settle(ticket, item, Ok(result));
                }
                None
            }
            None => {
                (0..attempt.pieces).for_each(|_| it.seat.counters.drop());
                Some(results)
            }
        };
        // Learned last: evidence compares what the devices took for the pieces before this one.
        self.lines[line].mean.learn(each);
        if is_back {
            log!(debug, device = %self.lines[line].seat.id, "a device is well again");
        }
        unwanted
    }

    /// A batch is not in flight any more. Where a device has done it, that is evidence about the others that run it.
    fn witness(&mut self, flight: &InFlight<I, O>, number: u64, done_by: Option<(usize, Duration)>) {
        for hand in &flight.running {
            let Some(line) = self.hands.get(hand).map(|hand| hand.line) else { continue };
            let evidence = done_by.map_or(Evidence::None, |(by, took)| Evidence::DoneElsewhere {
                expected: took.mul_f64(self.times_as_slow(line, by)),
            });
            if let Some(Hand { doing: Doing::Batch(attempt), .. }) = self.hands.get_mut(hand)
                && attempt.flight == number
            {
                attempt.evidence = evidence;
            }
        }
    }

    /// A piece has its answer.
    fn settle(&mut self, ticket: Ticket<O>, item: Item<I>, result: Result<O, QueueError>) {
        let waker = ticket.promise.keep(result);
        self.outstanding -= 1;
        self.settled.push(Settled { ticket, item, waker });
    }

    /// Asks the balancer, if it was not asked for a while and pieces wait at their homes.
    pub(super) fn rebalance_if_due(&mut self, now: Time) {
        let is_due = self.asked.is_none_or(|asked| now.saturating_sub(asked) >= self.interval);
        if is_due && self.lines.iter().any(|line| line.queued() > 0) {
            self.asked = Some(now);
            self.rebalance(now);
        }
    }

    /// Asks the balancer, and does what it says.
    fn rebalance(&mut self, now: Time) {
        let loads: Vec<_> = self.lines.iter().map(|line| line.load()).collect();
        for step in self.balancer.rebalance(now, &loads) {
            let Ok([from, to]) = self.lines.get_disjoint_mut([step.from, step.to]) else { continue };
            let pieces = from.exchange(to, &step);
            log!(debug, from = %from.seat.id, to = %to.seat.id, pieces, "queued pieces move");
        }
    }

    pub(super) fn balanced(&self) -> BalancerStatistics {
        self.balancer.statistics()
    }
}
