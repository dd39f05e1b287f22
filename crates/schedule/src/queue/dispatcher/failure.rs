//! Failures of batches, preparations, workers and devices.

use std::time::Duration;

use evener_device::Error;

use super::{BatchAttempt, Dispatcher, QueueError, RunningBatch, WorkerRecord, WorkerState};
use crate::{
    contain::log,
    queue::device_queue::{PieceItem, WaitingPiece},
    run::{FailureKind, Time},
    task::thread_error,
};

impl<I, O> Dispatcher<I, O> {
    /// Records that a worker's batch has failed.
    pub(in crate::queue) fn failed(&mut self, worker: u64, error: Error, now: Time) {
        // A worker that was removed has no batch.
        if let Some((device, WorkerState::Batch(attempt))) = self.set_idle(worker) {
            self.attempt_failed(worker, device, &attempt, error, now);
        }
    }

    /// Records that a worker could not prepare this generation of its device.
    pub(in crate::queue) fn prepare_failed(&mut self, worker: u64, generation: u64, error: Error, now: Time) {
        let Some((device, _)) = self.set_idle(worker) else { return };
        log!(warn, device = %self.devices[device].device.id, %error, "a device could not be prepared");
        match FailureKind::from(&error) {
            FailureKind::Unable | FailureKind::Task => self.retire(device, error, now),
            FailureKind::TooLarge | FailureKind::Untrusted => self.quarantine(device, generation, error, now),
        }
        self.give_up_stranded(now);
    }

    /// Records that a worker panicked outside the task's `run`, for example in a drop of the task's types. Its thread
    /// has ended.
    pub(in crate::queue) fn panicked(&mut self, worker: u64, error: Error, now: Time) {
        match self.remove_worker(worker) {
            Some((device, WorkerState::Batch(attempt))) => {
                self.attempt_failed(worker, device, &attempt, error, now)
            }
            // The next worker would panic as well.
            Some((device, WorkerState::Preparing { .. })) => {
                self.retire(device, error, now);
                self.give_up_stranded(now);
            }
            _ => {}
        }
    }

    /// Records that no thread could be started for a worker. A device that has other workers goes on with them.
    pub(in crate::queue) fn no_thread(&mut self, worker: u64, why: &std::io::Error, now: Time) {
        let Some((device, _)) = self.remove_worker(worker) else { return };
        let it = &mut self.devices[device];
        let error = thread_error(&it.device.id, why);
        log!(warn, device = %it.device.id, %error, workers = it.workers, "no thread for a worker");
        if it.workers > 0 {
            it.max_workers = it.workers;
            return;
        }
        let generation = it.device.generation();
        self.quarantine(device, generation, error, now);
        self.give_up_stranded(now);
    }

    /// Records a failed attempt: the error decides about its device, and its pieces wait again, unless another worker
    /// still runs them.
    pub(super) fn attempt_failed(
        &mut self,
        worker: u64,
        device: usize,
        attempt: &BatchAttempt,
        error: Error,
        now: Time,
    ) {
        self.last_end = now;
        let it = &mut self.devices[device];
        it.failed += attempt.pieces as u64;
        (0..attempt.pieces).for_each(|_| it.device.counters.fail());
        log!(warn, device = %it.device.id, pieces = attempt.pieces, %error, "a batch failed");
        self.tell_failed(device, attempt, &error, now);
        let it = &mut self.devices[device];
        match FailureKind::from(&error) {
            FailureKind::Task => {
                if let Some(mut flight) = self.in_flight.remove(&attempt.flight) {
                    self.record_evidence(&flight, attempt.flight, None);
                    if flight.tickets.len() > 1 {
                        // Each piece runs alone, so that only the faulty one gets the error.
                        self.wait_again(flight);
                    } else if let Some(ticket) = flight.tickets.pop() {
                        let item = PieceItem::Begun(flight.items, flight.first);
                        self.settle(ticket, item, Err(QueueError::Task { error }));
                    }
                }
                return;
            }
            // A smaller batch may fit.
            FailureKind::TooLarge if attempt.pieces > 1 => {
                it.max_pieces = (attempt.pieces / 2).max(1);
            }
            failure => {
                if let Some(flight) = self.in_flight.get_mut(&attempt.flight) {
                    let failures = flight.tickets.iter_mut().map(|ticket| &mut ticket.failures);
                    failures.for_each(|failures| failures.push((device, error.clone())));
                }
                match failure {
                    FailureKind::Unable => self.retire(device, error, now),
                    _ => self.quarantine(device, attempt.generation, error, now),
                }
            }
        }
        if let Some(flight) = self.in_flight.get_mut(&attempt.flight) {
            flight.running.retain(|&mut running| running != worker);
            if flight.running.is_empty()
                && let Some(flight) = self.in_flight.remove(&attempt.flight)
            {
                self.wait_again(flight);
            }
        }
        self.give_up_stranded(now);
    }

    /// Enqueues the pieces of a batch that no worker runs. Each will run alone, with the batch's items.
    fn wait_again(&mut self, flight: RunningBatch<I, O>) {
        let RunningBatch { tickets, items, first, .. } = flight;
        for (index, ticket) in tickets.into_iter().enumerate() {
            let item = PieceItem::Begun(items.clone(), first + index);
            self.enqueue(WaitingPiece { ticket, item, move_time: Duration::ZERO }, None);
        }
    }

    /// Puts this generation of a device into quarantine. Of several workers that fail for one reason only the first
    /// counts, which opens the device again. Workers that still prepare the old generation are removed, because their
    /// states are useless and may hang: no piece may wait for them.
    pub(super) fn quarantine(&mut self, device: usize, generation: u64, error: Error, now: Time) {
        let it = &mut self.devices[device];
        if !it.device.reopen(generation) {
            return;
        }
        it.health.record_failure(error, now);
        let is_outdated = |worker: &WorkerRecord| match &worker.state {
            WorkerState::Preparing { generation: of, .. } => worker.device == device && *of <= generation,
            _ => false,
        };
        let outdated: Vec<u64> = self
            .workers
            .iter()
            .filter(|(_, worker)| is_outdated(worker))
            .map(|(&number, _)| number)
            .collect();
        for worker in outdated {
            self.remove_worker(worker);
        }
        // The data in its memory is lost.
        self.release_home_pieces(device);
        let it = &self.devices[device];
        log!(debug, device = %it.device.id, state = ?it.health.quarantine.state, "a device goes into quarantine");
        self.tell_health(device, now);
    }

    /// Retires a device that cannot run the task.
    fn retire(&mut self, device: usize, error: Error, now: Time) {
        log!(warn, device = %self.devices[device].device.id, %error, "a device is retired from a queue");
        self.devices[device].health.retire(error);
        self.release_home_pieces(device);
        self.tell_health(device, now);
    }
}
