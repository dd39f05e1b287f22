//! The desk: every decision of a queue, made under one lock.
//!
//! It has no thread and no clock of its own: it is told what happened and when, and answers with what to do. Nor does it
//! run anybody else's code: what is settled is put aside, and dropped and woken once the lock is gone.

mod fail;
mod place;
#[cfg(test)]
mod test;

use std::{collections::HashMap, sync::Arc, task::Waker, time::Duration};

use super::{
    error::QueueError,
    handle::{Answer, Place, Promise},
    line::{Line, Ticket},
};
use crate::{
    balancer::{Balancer, BalancerSettings, BalancerStatistics},
    run::Time,
};

/// What a queue has in hand.
pub(super) struct Desk<I, O> {
    pub(super) lines: Vec<Line<I, O>>,
    /// Those who work here, by number. A hand that was given up on is not among them any more.
    hands: HashMap<u64, Hand<I, O>>,
    next_hand: u64,
    next_number: u64,
    balancer: Balancer,
    interval: Duration,
    /// When the balancer was last asked because it was time.
    asked: Option<Time>,
    /// The user's own limit for a piece.
    limit: Option<Duration>,
    prepare_limit: Duration,
    pub(super) closed: bool,
    /// Pieces that have no answer yet.
    pub(super) outstanding: usize,
    /// What is settled, and waits to be dropped without the lock.
    pub(super) settled: Vec<Settled<I, O>>,
}

/// A piece that has its answer: what is left of it, and who waits for the answer.
pub(super) struct Settled<I, O> {
    pub(super) ticket: Ticket<I, O>,
    pub(super) waker: Option<Waker>,
}

/// Somebody who works on a line.
struct Hand<I, O> {
    line: usize,
    doing: Doing<I, O>,
}

enum Doing<I, O> {
    Nothing,
    /// Makes its device, of this generation, ready.
    Preparing {
        since: Time,
        generation: u64,
    },
    /// Works on a piece, with a device of this generation.
    Piece {
        ticket: Ticket<I, O>,
        began: Time,
        generation: u64,
        canary: bool,
    },
}

/// What a hand is to do.
pub(super) enum Next<I> {
    /// This piece.
    Run { item: Arc<I>, number: u64 },
    /// Make its device ready.
    Prepare,
    /// There is nothing at the moment.
    Rest,
    /// Go: all is done, or another has taken its place.
    Go,
}

impl<I, O> Desk<I, O> {
    pub(super) fn new(
        lines: Vec<Line<I, O>>,
        balancer: BalancerSettings,
        limit: Option<Duration>,
        prepare_limit: Duration,
    ) -> Self {
        Desk {
            lines,
            hands: HashMap::new(),
            next_hand: 0,
            next_number: 0,
            interval: balancer.interval,
            balancer: Balancer::new(balancer),
            asked: None,
            limit,
            prepare_limit,
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
        self.place(Ticket { place, item, promise, failures: Vec::new(), given_up: 0 }, now);
        Ok((answer, place))
    }

    /// Takes a piece out that nobody has begun with. Says whether it was there.
    pub(super) fn withdraw(&mut self, place: Place) -> bool {
        let Some(ticket) = self.lines.iter_mut().find_map(|line| line.remove(place)) else { return false };
        self.settle(ticket, Err(QueueError::Cancelled));
        true
    }

    /// Whether nothing is left to do, nor will be.
    pub(super) fn is_over(&self) -> bool {
        self.closed && self.outstanding == 0
    }

    /// Somebody will work on a line. Gives their number.
    pub(super) fn hire(&mut self, line: usize) -> u64 {
        let number = self.next_hand;
        self.next_hand += 1;
        self.lines[line].hands += 1;
        self.hands.insert(number, Hand { line, doing: Doing::Nothing });
        number
    }

    /// Lets a hand go, and gives what it was doing.
    fn dismiss(&mut self, hand: u64) -> Option<(usize, Doing<I, O>)> {
        let Hand { line, doing } = self.hands.remove(&hand)?;
        self.lines[line].hands -= 1;
        self.put_down(line, &doing);
        Some((line, doing))
    }

    /// What a hand was doing, which now does nothing; nothing where it was dismissed.
    fn stop(&mut self, hand: u64) -> Option<(usize, Doing<I, O>)> {
        let Hand { line, doing } = self.hands.get_mut(&hand)?;
        let (line, doing) = (*line, std::mem::replace(doing, Doing::Nothing));
        self.put_down(line, &doing);
        Some((line, doing))
    }

    fn put_down(&mut self, line: usize, doing: &Doing<I, O>) {
        match doing {
            Doing::Nothing => {}
            Doing::Preparing { .. } => self.lines[line].preparing -= 1,
            Doing::Piece { .. } => self.lines[line].active -= 1,
        }
    }

    /// A hand asks what to do. It says which generation of its device it is ready for.
    pub(super) fn ask(&mut self, hand: u64, ready_for: Option<u64>, now: Time) -> Next<I> {
        let Some(line) = self.hands.get(&hand).map(|hand| hand.line) else { return Next::Go };
        if self.is_over() || self.lines[line].trust.is_retired() {
            self.dismiss(hand);
            return Next::Go;
        }
        let it = &mut self.lines[line];
        if it.queued() == 0 || !it.may_begin(now) {
            return Next::Rest;
        }
        let generation = it.seat.generation();
        let canary = !it.trust.is_working();
        if canary {
            self.keep_canary_only(line, now);
        }
        let it = &mut self.lines[line];
        let (doing, next) = if ready_for != Some(generation) {
            it.preparing += 1;
            (Doing::Preparing { since: now, generation }, Next::Prepare)
        } else {
            let Some(ticket) = it.pop() else { return Next::Rest };
            it.active += 1;
            it.seat.counters.begin();
            let next = Next::Run { item: ticket.item.clone(), number: ticket.place.number };
            tracing::trace!(device = %it.seat.id, piece = ticket.place.number, canary, "a piece begins");
            (Doing::Piece { ticket, began: now, generation, canary }, next)
        };
        if let Some(hand) = self.hands.get_mut(&hand) {
            hand.doing = doing;
        }
        next
    }

    /// A hand has made its device ready.
    pub(super) fn prepared(&mut self, hand: u64) {
        self.stop(hand);
    }

    /// A hand has done its piece. Gives the result back where nobody waits for it: the hand was given up on.
    pub(super) fn finished(&mut self, hand: u64, result: O, now: Time) -> Option<O> {
        let Some((line, Doing::Piece { ticket, began, canary, .. })) = self.stop(hand) else {
            return Some(result);
        };
        let it = &mut self.lines[line];
        let took = now.saturating_sub(began);
        it.done += 1;
        it.mean.learn(took);
        it.seat.counters.end(took);
        if it.trust.done(canary) {
            tracing::debug!(device = %it.seat.id, "a device is well again");
        }
        self.settle(ticket, Ok(result));
        None
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
            tracing::debug!(from = %from.seat.id, to = %to.seat.id, pieces, "queued pieces move");
        }
    }

    pub(super) fn balanced(&self) -> BalancerStatistics {
        self.balancer.statistics()
    }
}
