//! The events of one run.

use std::{sync::Arc, time::Duration};

use super::{ChunkEvent, Event, EventKind, EventStream, RunStatus, stream};
use crate::{
    executor::next_owner,
    run::{LaneChunk, Time},
};

/// Writes the events of one run, or of one queue. Its driver gives it to the [`Recorder`](crate::decide::Recorder), which
/// writes what the lanes do.
///
/// Nothing is written before the [status](RunEvents::status) that the readers need first.
#[derive(Debug)]
pub struct RunEvents {
    stream: &'static EventStream,
    run: u64,
    /// The stream's generation whose readers know the run's status.
    generation: u64,
    /// Items per unit: the run counts in units.
    unit: u64,
    items: u64,
    /// When to write the progress next.
    next_progress: Time,
}

/// Time between two events of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

impl RunEvents {
    /// The events of a run, to the stream of the process. The run counts in units of `unit` items, and has `items` items.
    pub(crate) fn new(run: u64, unit: u64, items: u64) -> Self {
        RunEvents::to(stream(), run, unit, items)
    }

    /// The events of a run, to a stream. The run counts in units of `unit` items, and has `items` items, or `u64::MAX` if
    /// that is not known.
    pub fn to(stream: &'static EventStream, run: u64, unit: u64, items: u64) -> Self {
        RunEvents { stream, run, generation: 0, unit: unit.max(1), items, next_progress: Time::ZERO }
    }

    /// The events of a run of `items` items that no pool drives, such as a simulation, to the stream of the process. The run
    /// gets a number of its own.
    pub fn of_process(items: u64) -> Self {
        RunEvents::new(next_owner() as u64, 1, items)
    }

    /// Whether a view has asked to cancel the run.
    pub fn is_cancel_requested(&self) -> bool {
        self.stream.is_cancel_requested(self.run)
    }

    /// Drops the request to cancel the run, which has ended.
    pub(crate) fn forget_cancel_request(&self) {
        self.stream.forget_request(self.run);
    }

    /// The run's number.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Whether readers are attached that know the run's status.
    pub fn is_followed(&self) -> bool {
        let generation = self.stream.generation();
        generation != 0 && generation == self.generation
    }

    /// Whether readers are attached that do not know the run's status.
    pub fn needs_status(&self) -> bool {
        let generation = self.stream.generation();
        generation != 0 && generation != self.generation
    }

    /// Writes the run's status, which `status` makes if a reader is attached.
    pub fn status(&mut self, at: Time, status: impl FnOnce() -> RunStatus) {
        // Read before the status is made: a reader that attaches meanwhile gets the next one.
        self.generation = self.stream.generation();
        self.write(at, || EventKind::Status(Arc::new(status())));
    }

    /// Writes an event if readers are attached that know the run.
    pub fn write(&self, at: Time, kind: impl FnOnce() -> EventKind) {
        if self.is_followed() {
            self.stream.publish(Event { run: self.run, at, kind: kind() });
        }
    }

    /// Whether readers are attached, and it is time for the next event of progress.
    pub fn is_progress_due(&mut self, now: Time) -> bool {
        let is_due = self.is_followed() && now >= self.next_progress;
        if is_due {
            self.next_progress = now + PROGRESS_INTERVAL;
        }
        is_due
    }

    /// A chunk, counted in items.
    pub(crate) fn chunk(&self, chunk: &LaneChunk) -> ChunkEvent {
        let first = chunk.items.start.saturating_mul(self.unit);
        let end = chunk.items.end.saturating_mul(self.unit).min(self.items);
        ChunkEvent {
            lane: lane_number(chunk.lane),
            chunk: chunk.id,
            first,
            items: end.saturating_sub(first),
            purpose: chunk.purpose,
        }
    }
}

/// A lane's number in events.
pub(crate) fn lane_number(lane: usize) -> u32 {
    u32::try_from(lane).unwrap_or(u32::MAX)
}
