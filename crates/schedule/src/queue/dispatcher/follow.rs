//! What views learn of a queue: each device is a lane, and each batch a chunk.

use std::{sync::Arc, time::Duration};

use evener_device::Error;

use super::{BatchAttempt, Dispatcher, WorkerState};
use crate::{
    events::{
        ChunkEvent, DeviceStatus, EventKind, LaneStatus, QueueProgress, RunEnd, RunEvents, RunKind,
        RunStatus, lane_number,
    },
    run::{Tally, Time},
};

impl<I, O> Dispatcher<I, O> {
    /// Writes an event, if readers follow the queue.
    fn event(&self, now: Time, kind: impl FnOnce() -> EventKind) {
        if let Some(events) = &self.events {
            events.write(now, kind);
        }
    }

    pub(super) fn tell_began(&self, batch: ChunkEvent, now: Time) {
        self.event(now, || EventKind::ChunkBegan(batch));
    }

    /// Writes that a batch has ended, of which this many pieces were accepted.
    pub(super) fn tell_ended(&self, attempt: &BatchAttempt, accepted: usize, took: Duration, now: Time) {
        let (chunk, accepted) = (attempt.event, accepted as u64);
        self.event(now, || EventKind::ChunkEnded { chunk, accepted, busy: took, took });
    }

    /// Writes that a batch has failed.
    pub(super) fn tell_failed(&self, device: usize, attempt: &BatchAttempt, error: &Error, now: Time) {
        let (chunk, took) = (attempt.event, attempt.stopwatch.age(now));
        self.event(now, || EventKind::ChunkLost { chunk, failed: true, busy: took, took });
        self.event(now, || EventKind::Error {
            device: self.devices[device].device.id.to_string().into(),
            reason: error.to_string().into(),
        });
        self.tell_health(device, now);
    }

    /// Writes a device's state and failures.
    pub(super) fn tell_health(&self, device: usize, now: Time) {
        let (it, lane) = (&self.devices[device], lane_number(device));
        self.event(now, || EventKind::Lane {
            lane,
            state: it.health.quarantine.state,
            retries: it.failed,
            quarantines: it.health.quarantines,
            hangs: it.health.hangs,
        });
    }

    /// Writes the queue's status if readers do not know it, its progress if it is due, and its end.
    pub(in crate::queue) fn tell_progress<'a>(&mut self, task: impl FnOnce() -> &'a str, now: Time) {
        self.tell_status(task, now);
        let is_over = self.is_over();
        if self.events.as_mut().is_some_and(|events| events.is_progress_due(now) || is_over) {
            self.event(now, || EventKind::Queue(self.progress()));
        }
        if is_over && let Some(events) = self.events.take() {
            events.write(now, || EventKind::RunEnded(Arc::new(RunEnd { error: None, report: None })));
        }
    }

    /// Writes the queue's status if readers do not know it.
    pub(in crate::queue) fn tell_status<'a>(&mut self, task: impl FnOnce() -> &'a str, now: Time) {
        if !self.events.as_ref().is_some_and(RunEvents::needs_status) {
            return;
        }
        let devices = (0..self.devices.len()).map(|device| self.device_status(device));
        let status = RunStatus {
            task: task().into(),
            kind: RunKind::Queue,
            strategy: "queue",
            items: None,
            predicted: None,
            devices: devices.collect(),
            left_out: Vec::new(),
        };
        if let Some(events) = &mut self.events {
            events.status(now, || status);
        }
        self.event(now, || EventKind::Queue(self.progress()));
    }

    fn device_status(&self, device: usize) -> DeviceStatus {
        let it = &self.devices[device];
        let in_flight = self.workers.values().filter_map(|worker| match &worker.state {
            WorkerState::Batch(attempt) if worker.device == device => {
                Some((attempt.event, attempt.stopwatch.began))
            }
            _ => None,
        });
        let tally = Tally {
            items: it.done,
            retries: it.failed,
            quarantines: it.health.quarantines,
            hangs: it.health.hangs,
            ..Tally::default()
        };
        let lane = LaneStatus {
            state: it.health.quarantine.state,
            tally,
            items: it.done,
            // A queue does not sum up these times.
            busy: Duration::ZERO,
            wasted: Duration::ZERO,
            in_flight: in_flight.collect(),
        };
        DeviceStatus { id: it.device.id.to_string(), lanes: vec![lane] }
    }

    fn progress(&self) -> QueueProgress {
        let queued = self.shared.len() + self.devices.iter().map(|device| device.queued()).sum::<usize>();
        QueueProgress {
            submitted: self.next_number,
            queued: queued as u64,
            outstanding: self.outstanding as u64,
        }
    }
}
