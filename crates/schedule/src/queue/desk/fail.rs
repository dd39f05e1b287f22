//! What happens when something fails.

use evener_device::Error;

use super::{Attempt, Desk, Doing, Hand, QueueError};
use crate::{
    contain::log,
    run::{Failure, Time},
};

impl<I, O> Desk<I, O> {
    /// A worker's piece has failed.
    pub(in crate::queue) fn failed(&mut self, hand: u64, error: Error, now: Time) {
        // A worker that was dismissed has nothing to say.
        if let Some((line, Doing::Piece(attempt))) = self.stop(hand) {
            self.attempt_failed(hand, line, &attempt, error, now);
        }
    }

    /// A worker could not make its device, of this generation, ready.
    pub(in crate::queue) fn not_ready(&mut self, hand: u64, generation: u64, error: Error, now: Time) {
        let Some((line, _)) = self.stop(hand) else { return };
        let device = &self.lines[line].seat.id;
        log!(warn, %device, %error, "a device could not be made ready");
        match Failure::from(&error) {
            Failure::Unable | Failure::Task => self.retire(line, error, now),
            Failure::TooLarge | Failure::Untrusted => self.strike(line, generation, error, now),
        }
    }

    /// A worker panicked outside the task's own code: in what the task's types do when they are dropped, at most. Its
    /// thread is not there any more.
    pub(in crate::queue) fn fell(&mut self, hand: u64, error: Error, now: Time) {
        if let Some((line, Doing::Piece(attempt))) = self.dismiss(hand) {
            self.attempt_failed(hand, line, &attempt, error, now);
        }
    }

    /// There was no thread for a worker. A device with others makes do with them.
    pub(in crate::queue) fn no_thread(&mut self, hand: u64, why: &std::io::Error, now: Time) {
        let Some((line, _)) = self.dismiss(hand) else { return };
        let it = &mut self.lines[line];
        let (device, operation) = (it.seat.id.clone(), "starting a thread".to_owned());
        let error = Error::Lost { device, operation, detail: why.to_string() };
        log!(warn, device = %it.seat.id, %error, workers = it.hands, "a worker is missing");
        if it.hands > 0 {
            it.most_hands = it.hands;
            return;
        }
        let generation = it.seat.generation();
        self.strike(line, generation, error, now);
    }

    /// An attempt has failed: its device is judged by the error, and its piece goes elsewhere, unless another worker
    /// still runs it.
    pub(super) fn attempt_failed(
        &mut self,
        hand: u64,
        line: usize,
        attempt: &Attempt,
        error: Error,
        now: Time,
    ) {
        self.last_end = now;
        let it = &mut self.lines[line];
        it.failed += 1;
        it.seat.counters.fail();
        log!(warn, device = %it.seat.id, piece = attempt.piece, %error, "a piece failed");
        if let Failure::Task = Failure::from(&error) {
            if let Some(flight) = self.in_flight.remove(&attempt.piece) {
                self.answer(flight, Err(QueueError::Task { error }), None);
            }
            return;
        }
        if let Some(flight) = self.in_flight.get_mut(&attempt.piece) {
            flight.running.retain(|&running| running != hand);
            flight.ticket.failures.push((line, error.clone()));
        }
        match Failure::from(&error) {
            Failure::Unable | Failure::Task => self.retire(line, error, now),
            Failure::TooLarge | Failure::Untrusted => self.strike(line, attempt.generation, error, now),
        }
        let is_stranded = |flight: &super::InFlight<I, O>| flight.running.is_empty();
        if self.in_flight.get(&attempt.piece).is_some_and(is_stranded)
            && let Some(flight) = self.in_flight.remove(&attempt.piece)
        {
            // A copy that waits for a worker becomes the piece itself.
            if let Some(line) = flight.copy_at {
                self.lines[line].copies.remove(&flight.ticket.place);
            }
            self.place(flight.ticket, now);
        }
    }

    /// A device of this generation goes into quarantine. Of several workers that fail for one reason, only the first
    /// counts: it opens the device afresh. Workers that are still making the old opening ready are let go, since what
    /// they make is of no use, and they may hang: no piece may wait for them.
    pub(super) fn strike(&mut self, line: usize, generation: u64, error: Error, now: Time) {
        let it = &mut self.lines[line];
        if !it.seat.renew(generation) {
            return;
        }
        it.trust.strike(error, now);
        let is_outdated = |hand: &Hand| match &hand.doing {
            Doing::Preparing { generation: of, .. } => hand.line == line && *of <= generation,
            _ => false,
        };
        let outdated: Vec<u64> =
            self.hands.iter().filter(|(_, hand)| is_outdated(hand)).map(|(&number, _)| number).collect();
        for hand in outdated {
            self.dismiss(hand);
        }
        self.drop_copies(line);
        let trust = &self.lines[line].trust;
        if trust.failed_again() || trust.is_away_for_long(now) {
            self.spread(line, now);
        }
        self.rebalance(now);
        let it = &self.lines[line];
        log!(debug, device = %it.seat.id, standing = ?it.trust.standing, "a device is set aside");
    }

    /// A device cannot do the task: the pieces that wait there go elsewhere, at once, since they would wait forever.
    fn retire(&mut self, line: usize, error: Error, now: Time) {
        let device = self.lines[line].seat.id.clone();
        let why = error.clone();
        self.lines[line].trust.retire(error);
        self.drop_copies(line);
        for ticket in self.lines[line].drain() {
            self.place(ticket, now);
        }
        log!(warn, %device, error = %why, "a device is retired from a queue");
    }

    /// Takes back the speculative copies that wait for a worker of a line.
    pub(super) fn drop_copies(&mut self, line: usize) {
        for place in std::mem::take(&mut self.lines[line].copies) {
            if let Some(flight) = self.in_flight.get_mut(&place.number) {
                flight.copy_at = None;
            }
        }
    }
}
