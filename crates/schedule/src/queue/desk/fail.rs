//! What happens when something fails.

use std::time::Duration;

use evener_device::Error;

use super::{Desk, Doing, QueueError, Ticket};
use crate::run::{Failure, Time};

/// A piece that takes so many times its device's mean has hung.
const PATIENCE: u32 = 8;

/// No piece is taken for hung before it took this long, unless the user says so.
const LEAST_PATIENCE: Duration = Duration::from_millis(500);

/// So many times as long for a piece that was given up on before, since it may simply take long.
const MORE_PATIENCE: u32 = 4;

impl<I, O> Desk<I, O> {
    /// A hand's piece has failed.
    pub(in crate::queue) fn failed(&mut self, hand: u64, error: Error, now: Time) {
        // Whoever was dismissed has nothing to say.
        if let Some((line, Doing::Piece { ticket, generation, .. })) = self.stop(hand) {
            self.piece_failed(line, ticket, generation, error, now);
        }
    }

    /// A hand could not make its device, of this generation, ready.
    pub(in crate::queue) fn not_ready(&mut self, hand: u64, generation: u64, error: Error, now: Time) {
        let Some((line, _)) = self.stop(hand) else { return };
        tracing::warn!(device = %self.lines[line].seat.id, %error, "a device could not be made ready");
        match Failure::from(&error) {
            Failure::Unable | Failure::Task => self.retire(line, error, now),
            Failure::TooLarge | Failure::Untrusted => self.strike(line, generation, error, now),
        }
    }

    /// A hand panicked outside the task's own code: in what the task's types do when they are dropped, at most. It is
    /// not there any more.
    pub(in crate::queue) fn fell(&mut self, hand: u64, error: Error, now: Time) {
        if let Some((line, Doing::Piece { ticket, generation, .. })) = self.dismiss(hand) {
            self.piece_failed(line, ticket, generation, error, now);
        }
    }

    /// There was no thread for a hand. A device with others makes do with them.
    pub(in crate::queue) fn no_thread(&mut self, hand: u64, why: &std::io::Error, now: Time) {
        let Some((line, _)) = self.dismiss(hand) else { return };
        let it = &mut self.lines[line];
        let (device, operation) = (it.seat.id.clone(), "starting a thread".to_owned());
        let error = Error::Lost { device, operation, detail: why.to_string() };
        tracing::warn!(device = %it.seat.id, %error, hands = it.hands, "a hand is missing");
        if it.hands > 0 {
            it.most_hands = it.hands;
            return;
        }
        let generation = it.seat.generation();
        self.strike(line, generation, error, now);
    }

    fn piece_failed(&mut self, line: usize, ticket: Ticket<I, O>, generation: u64, error: Error, now: Time) {
        let it = &mut self.lines[line];
        it.failed += 1;
        it.seat.counters.fail();
        tracing::warn!(device = %it.seat.id, piece = ticket.place.number, %error, "a piece failed");
        match Failure::from(&error) {
            Failure::Task => return self.settle(ticket, Err(QueueError::Task { error })),
            Failure::Unable => self.retire(line, error.clone(), now),
            Failure::TooLarge | Failure::Untrusted => self.strike(line, generation, error.clone(), now),
        }
        let mut ticket = ticket;
        ticket.failures.push((line, error));
        self.place(ticket, now);
    }

    /// A device of this generation is not to be trusted for now. Of several hands that fail for one reason, only the
    /// first counts: it opens the device afresh.
    fn strike(&mut self, line: usize, generation: u64, error: Error, now: Time) {
        let it = &mut self.lines[line];
        if !it.seat.renew(generation) {
            return;
        }
        it.trust.strike(error, now);
        tracing::debug!(device = %it.seat.id, standing = ?it.trust.standing, "a device is set aside");
        if it.trust.failed_again() {
            self.spread(line, now);
        }
        self.rebalance(now);
    }

    /// A device cannot do the task: what waits there goes elsewhere, at once, since it would wait forever.
    fn retire(&mut self, line: usize, error: Error, now: Time) {
        let it = &mut self.lines[line];
        tracing::warn!(device = %it.seat.id, %error, "a device is retired from a queue");
        it.trust.retire(error);
        for ticket in self.lines[line].drain() {
            self.place(ticket, now);
        }
    }

    /// Dismisses hands that have hung; their pieces go to others.
    pub(in crate::queue) fn dismiss_hung(&mut self, now: Time) {
        let late = |(&number, hand): (&u64, &super::Hand<I, O>)| {
            let (since, limit) = match &hand.doing {
                Doing::Nothing => return None,
                Doing::Preparing { since, .. } => (*since, self.prepare_limit),
                Doing::Piece { ticket, began, .. } => (*began, self.patience(hand.line, ticket)?),
            };
            let after = now.saturating_sub(since);
            (after >= limit).then_some((number, after))
        };
        let late: Vec<(u64, Duration)> = self.hands.iter().filter_map(late).collect();
        for (hand, after) in late {
            let Some((line, doing)) = self.dismiss(hand) else { continue };
            let device = self.lines[line].seat.id.clone();
            let timed_out = |operation: &str| Error::TimedOut {
                device: device.clone(),
                operation: operation.into(),
                after,
            };
            match doing {
                Doing::Nothing => {}
                Doing::Preparing { generation, .. } => {
                    let error = timed_out("being made ready");
                    tracing::warn!(%device, %error, "a device is given up on");
                    self.strike(line, generation, error, now);
                }
                Doing::Piece { mut ticket, generation, .. } => {
                    ticket.given_up += 1;
                    self.piece_failed(line, ticket, generation, timed_out("running a piece"), now);
                }
            }
        }
    }

    /// How long a piece may take on a device: the user's limit; or by the device's own history, where it may hang. One
    /// without a history has as long as it has to be made ready, since nothing may wait forever.
    fn patience(&self, line: usize, ticket: &Ticket<I, O>) -> Option<Duration> {
        let it = &self.lines[line];
        if self.limit.is_some() || !it.may_hang {
            return self.limit;
        }
        let patience = it.mean.time().map(|mean| mean.saturating_mul(PATIENCE).max(LEAST_PATIENCE));
        let more = MORE_PATIENCE.saturating_pow(ticket.given_up);
        Some(patience.unwrap_or(self.prepare_limit).saturating_mul(more))
    }
}
