//! What happens when something fails.

use std::time::Duration;

use evener_device::Error;

use super::{Attempt, Desk, Doing, Hand, InFlight, QueueError};
use crate::{
    contain::log,
    queue::line::{Item, Waiting},
    run::{Failure, Time},
    task::thread_error,
};

impl<I, O> Desk<I, O> {
    /// A worker's batch has failed.
    pub(in crate::queue) fn failed(&mut self, hand: u64, error: Error, now: Time) {
        // A worker that was dismissed has nothing to say.
        if let Some((line, Doing::Batch(attempt))) = self.stop(hand) {
            self.attempt_failed(hand, line, &attempt, error, now);
        }
    }

    /// A worker could not make its device, of this generation, ready.
    pub(in crate::queue) fn not_ready(&mut self, hand: u64, generation: u64, error: Error, now: Time) {
        let Some((line, _)) = self.stop(hand) else { return };
        let device = &self.lines[line].seat.id;
        log!(warn, %device, %error, "a device could not be made ready");
        match Failure::from(&error) {
            Failure::Unable | Failure::Task => self.retire(line, error),
            Failure::TooLarge | Failure::Untrusted => self.strike(line, generation, error, now),
        }
        self.give_up_stranded(now);
    }

    /// A worker panicked outside the task's own code: in what the task's types do when they are dropped, at most. Its
    /// thread is not there any more.
    pub(in crate::queue) fn fell(&mut self, hand: u64, error: Error, now: Time) {
        match self.dismiss(hand) {
            Some((line, Doing::Batch(attempt))) => self.attempt_failed(hand, line, &attempt, error, now),
            // The next worker would panic as well.
            Some((line, Doing::Preparing { .. })) => {
                self.retire(line, error);
                self.give_up_stranded(now);
            }
            _ => {}
        }
    }

    /// There was no thread for a worker. A device with others makes do with them.
    pub(in crate::queue) fn no_thread(&mut self, hand: u64, why: &std::io::Error, now: Time) {
        let Some((line, _)) = self.dismiss(hand) else { return };
        let it = &mut self.lines[line];
        let error = thread_error(&it.seat.id, why);
        log!(warn, device = %it.seat.id, %error, workers = it.hands, "a worker is missing");
        if it.hands > 0 {
            it.max_workers = it.hands;
            return;
        }
        let generation = it.seat.generation();
        self.strike(line, generation, error, now);
        self.give_up_stranded(now);
    }

    /// An attempt has failed: its device is judged by the error, and its pieces wait for another, unless another worker
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
        it.failed += attempt.pieces as u64;
        (0..attempt.pieces).for_each(|_| it.seat.counters.fail());
        log!(warn, device = %it.seat.id, pieces = attempt.pieces, %error, "a batch failed");
        match Failure::from(&error) {
            Failure::Task => {
                if let Some(mut flight) = self.in_flight.remove(&attempt.flight) {
                    self.witness(&flight, attempt.flight, None);
                    if flight.tickets.len() > 1 {
                        // Each is done alone, so that the error is the answer of the piece that it comes from.
                        self.wait_again(flight);
                    } else if let Some(ticket) = flight.tickets.pop() {
                        let item = Item::Begun(flight.items, flight.first);
                        self.settle(ticket, item, Err(QueueError::Task { error }));
                    }
                }
                return;
            }
            // Fewer of them may fit.
            Failure::TooLarge if attempt.pieces > 1 => {
                it.max_pieces = (attempt.pieces / 2).max(1);
            }
            failure => {
                if let Some(flight) = self.in_flight.get_mut(&attempt.flight) {
                    let failures = flight.tickets.iter_mut().map(|ticket| &mut ticket.failures);
                    failures.for_each(|failures| failures.push((line, error.clone())));
                }
                match failure {
                    Failure::Unable => self.retire(line, error),
                    _ => self.strike(line, attempt.generation, error, now),
                }
            }
        }
        if let Some(flight) = self.in_flight.get_mut(&attempt.flight) {
            flight.running.retain(|&mut running| running != hand);
            if flight.running.is_empty()
                && let Some(flight) = self.in_flight.remove(&attempt.flight)
            {
                self.wait_again(flight);
            }
        }
        self.give_up_stranded(now);
    }

    /// The pieces of a batch that nobody runs wait to be done, each alone: their items stay together.
    fn wait_again(&mut self, flight: InFlight<I, O>) {
        let InFlight { tickets, items, first, .. } = flight;
        for (index, ticket) in tickets.into_iter().enumerate() {
            let item = Item::Begun(items.clone(), first + index);
            self.place(Waiting { ticket, item, move_time: Duration::ZERO }, None);
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
        // What it had in its memory is gone.
        self.make_homeless(line);
        let it = &self.lines[line];
        log!(debug, device = %it.seat.id, state = ?it.trust.quarantine.state, "a device is set aside");
    }

    /// A device cannot do the task.
    fn retire(&mut self, line: usize, error: Error) {
        log!(warn, device = %self.lines[line].seat.id, %error, "a device is retired from a queue");
        self.lines[line].trust.retire(error);
        self.make_homeless(line);
    }
}
