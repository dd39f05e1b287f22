//! The desk: the dispatcher of a queue, which makes every decision under one lock.
//!
//! It has no thread and no clock of its own: it is told what happened and when, and answers with what to do. Nor does it
//! run anybody else's code: a piece that has its answer is put aside, and dropped and woken once the lock is released.
//! The one exception are log lines, whose panics are [contained](crate::contain).
//!
//! A piece is in exactly one of two places: in a device's queue, or in flight. A piece in flight has one attempt for
//! each worker that runs it: more than one where a [speculative copy](late) was made. The first result is its answer.
//! What other workers bring later is handed back to them, to be dropped.

mod fail;
#[cfg(test)]
mod fuzz;
mod late;
mod place;
#[cfg(test)]
mod test;

use std::{collections::BTreeMap, sync::Arc, task::Waker, time::Duration};

pub(super) use self::late::{GLANCE, Stall};
use super::{
    error::QueueError,
    handle::{Answer, Place, Promise},
    line::{Line, Ticket},
};
use crate::{
    balancer::{Balancer, BalancerSettings, BalancerStatistics},
    contain::log,
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

/// The dispatcher of a queue.
pub(super) struct Desk<I, O> {
    pub(super) lines: Vec<Line<I, O>>,
    /// The workers, by number. A worker that was called hung is not among them any more.
    hands: BTreeMap<u64, Hand>,
    /// Pieces that a worker has begun with and that have no answer yet, by their number.
    in_flight: BTreeMap<u64, InFlight<I, O>>,
    next_hand: u64,
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
}

/// A piece that has its answer: what is left of it, and who waits for the answer.
pub(super) struct Settled<I, O> {
    pub(super) ticket: Ticket<I, O>,
    pub(super) waker: Option<Waker>,
}

/// A worker of a line.
struct Hand {
    line: usize,
    doing: Doing,
    /// It has done a piece since it made its device ready.
    warm: bool,
}

enum Doing {
    Nothing,
    /// Makes its device, of this generation, ready.
    Preparing {
        span: Span,
        generation: u64,
    },
    Piece(Attempt),
}

/// A piece that at least one worker runs.
struct InFlight<I, O> {
    ticket: Ticket<I, O>,
    /// The workers that run it.
    running: Vec<u64>,
    /// The line where a speculative copy waits for a worker.
    copy_at: Option<usize>,
}

/// A piece that one worker runs.
struct Attempt {
    /// The piece's number.
    piece: u64,
    span: Span,
    /// The generation of the device that it runs on.
    generation: u64,
    /// It shows whether its device is well again.
    canary: bool,
    /// It is its worker's first piece on this opening of the device, which may compile code and allocate memory.
    first: bool,
    evidence: Evidence,
}

/// What is known about an attempt from the other attempts at its piece.
#[derive(Debug, Clone, Copy)]
enum Evidence {
    /// Nothing: the piece has no answer yet.
    Pending,
    /// Nothing, and there will be none: the piece was answered with an error of the task.
    None,
    /// Another device has done the piece. By the two devices' usual speeds this one needs so long.
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

/// What a worker is to do.
pub(super) enum Next<I> {
    /// Run this piece.
    Run { item: Arc<I>, number: u64 },
    /// Make its device ready.
    Prepare,
    /// Wait: there is nothing to do at the moment.
    Rest,
    /// End: all is done, or another worker has taken its place.
    Go,
}

impl<I, O> Desk<I, O> {
    pub(super) fn new(lines: Vec<Line<I, O>>, balancer: BalancerSettings, limits: Limits) -> Self {
        Desk {
            lines,
            hands: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_hand: 0,
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
        }
    }

    /// Takes a new piece, and says what its handle waits for.
    pub(super) fn submit(
        &mut self,
        item: I,
        priority: i32,
        now: Time,
    ) -> Result<(Arc<Answer<O>>, Place), QueueError> {
        if self.closed {
            return Err(QueueError::Closed);
        }
        let place = Place { priority: std::cmp::Reverse(priority), number: self.next_number };
        self.next_number += 1;
        self.outstanding += 1;
        let (promise, answer) = Promise::new();
        let item = Arc::new(item);
        self.place(Ticket { place, item, promise, failures: Vec::new() }, now);
        Ok((answer, place))
    }

    /// Takes a piece out that is not in flight. Says whether it was there.
    pub(super) fn withdraw(&mut self, place: Place) -> bool {
        let Some(ticket) = self.lines.iter_mut().find_map(|line| line.remove(place)) else { return false };
        self.settle(ticket, Err(QueueError::Cancelled));
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
            Doing::Piece(_) => it.active -= 1,
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
            return Next::Go;
        };
        let generation = self.lines[line].seat.generation();
        let is_outdated = ready_for.is_some_and(|ready| ready != generation);
        if self.is_over() || self.lines[line].trust.is_retired() || is_outdated {
            self.dismiss(hand);
            return Next::Go;
        }
        let it = &self.lines[line];
        if it.waiting() == 0 || !it.may_begin(now) {
            return Next::Rest;
        }
        let canary = !it.trust.is_working();
        if canary {
            self.keep_canary_only(line, now);
        }
        let (doing, next) = if ready_for.is_none() {
            self.lines[line].preparing += 1;
            (Doing::Preparing { span: Span::new(now), generation }, Next::Prepare)
        } else {
            let Some((piece, item)) = self.begin(hand, line) else { return Next::Rest };
            let (span, evidence) = (Span::new(now), Evidence::Pending);
            let attempt = Attempt { piece, span, generation, canary, first: !warm, evidence };
            (Doing::Piece(attempt), Next::Run { item, number: piece })
        };
        if canary {
            self.lines[line].trial = Some(hand);
        }
        if let Some(hand) = self.hands.get_mut(&hand) {
            hand.doing = doing;
        }
        next
    }

    /// Puts the next piece of a line in flight: one that is queued there, or a copy of one that runs elsewhere.
    fn begin(&mut self, hand: u64, line: usize) -> Option<(u64, Arc<I>)> {
        let it = &mut self.lines[line];
        let (number, item, copy) = match it.pop_copy() {
            Some(place) => {
                let flight = self.in_flight.get_mut(&place.number)?;
                flight.copy_at = None;
                flight.running.push(hand);
                it.copied += 1;
                (place.number, flight.ticket.item.clone(), true)
            }
            None => {
                let ticket = it.pop()?;
                let (number, item) = (ticket.place.number, ticket.item.clone());
                self.in_flight.insert(number, InFlight { ticket, running: vec![hand], copy_at: None });
                (number, item, false)
            }
        };
        it.active += 1;
        it.seat.counters.begin();
        log!(trace, device = %it.seat.id, piece = number, copy, "a piece begins");
        Some((number, item))
    }

    /// A worker has made its device ready.
    pub(super) fn prepared(&mut self, hand: u64) {
        self.stop(hand);
    }

    /// A worker has done its piece. Gives the result back where it is not the answer: another device was first, or the
    /// worker was called hung.
    pub(super) fn finished(&mut self, hand: u64, result: O, now: Time) -> Option<O> {
        let Some((line, Doing::Piece(attempt))) = self.stop(hand) else {
            return Some(result);
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
        let unwanted = match self.in_flight.remove(&attempt.piece) {
            Some(flight) => {
                it.done += 1;
                it.seat.counters.end(took);
                self.answer(flight, Ok(result), Some((line, took)));
                None
            }
            None => {
                it.seat.counters.drop();
                Some(result)
            }
        };
        // Learned last: evidence compares what the devices took for the pieces before this one.
        self.lines[line].mean.learn(took);
        if is_back {
            log!(debug, device = %self.lines[line].seat.id, "a device is well again");
        }
        unwanted
    }

    /// A piece that was in flight has its answer. Where a device has done it, that is evidence about the others.
    fn answer(
        &mut self,
        flight: InFlight<I, O>,
        result: Result<O, QueueError>,
        done_by: Option<(usize, Duration)>,
    ) {
        if let Some(line) = flight.copy_at {
            self.lines[line].copies.remove(&flight.ticket.place);
        }
        for hand in &flight.running {
            let Some(line) = self.hands.get(hand).map(|hand| hand.line) else { continue };
            let evidence = done_by.map_or(Evidence::None, |(by, took)| Evidence::DoneElsewhere {
                expected: took.mul_f64(self.times_as_slow(line, by)),
            });
            if let Some(Hand { doing: Doing::Piece(attempt), .. }) = self.hands.get_mut(hand)
                && attempt.piece == flight.ticket.place.number
            {
                attempt.evidence = evidence;
            }
        }
        self.settle(flight.ticket, result);
    }

    /// A piece has its answer.
    fn settle(&mut self, ticket: Ticket<I, O>, result: Result<O, QueueError>) {
        let waker = ticket.promise.keep(result);
        self.outstanding -= 1;
        self.settled.push(Settled { ticket, waker });
    }

    /// Asks the balancer, if it was not asked for a while and something is queued.
    pub(super) fn rebalance_if_due(&mut self, now: Time) {
        let is_due = self.asked.is_none_or(|asked| now.saturating_sub(asked) >= self.interval);
        if is_due && self.lines.iter().any(|line| line.queued() > 0) {
            self.asked = Some(now);
            self.rebalance(now);
        }
    }

    /// Asks the balancer, and does what it says.
    fn rebalance(&mut self, now: Time) {
        let loads: Vec<_> = self.lines.iter().map(|line| line.load(now)).collect();
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
