//! A virtual device: it takes chunks, and knows when the next one ends.

use std::{collections::VecDeque, ops::Range, time::Duration};

use super::{
    cost::{ItemCosts, Rng},
    scenario::{DeviceSpec, EventKind},
};
use crate::run::{Expected, LaneChunk, Time};

/// Whether a virtual device works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Well,
    Hung,
    Dead,
}

/// A chunk in flight on a virtual device.
#[derive(Debug)]
struct QueuedChunk {
    chunk: LaneChunk,
    /// When its bytes are copied.
    copied: Time,
    /// Remaining seconds of work at the device's own speed.
    work: f64,
    /// Seconds of work per item of mean cost.
    each: f64,
    /// The cost of all its items.
    cost: f64,
}

/// A virtual device.
#[derive(Debug)]
pub(super) struct VirtualDevice {
    /// Its specification, with its own id and rate.
    pub(super) spec: DeviceSpec,
    pub(super) condition: Condition,
    pub(super) slowness: f64,
    /// The time of all copies to it.
    pub(super) copied: Duration,
    /// The chunks in flight: the first is computed, the others wait.
    chunks: VecDeque<QueuedChunk>,
    /// The time up to which the first chunk's work is subtracted.
    counted: Time,
    /// When the first chunk began to keep the device busy.
    since: Time,
    copies_until: Time,
    /// Changes whenever an earlier prediction of the next end becomes wrong.
    pub(super) version: u64,
    pub(super) rng: Rng,
}

impl VirtualDevice {
    pub(super) fn new(spec: DeviceSpec, rng: Rng) -> Self {
        VirtualDevice {
            spec,
            condition: Condition::Well,
            slowness: 1.0,
            copied: Duration::ZERO,
            chunks: VecDeque::new(),
            counted: Time::ZERO,
            since: Time::ZERO,
            copies_until: Time::ZERO,
            version: 0,
            rng,
        }
    }

    /// Seconds per byte to the device: of the slower of link and bus, which carry different pieces at once.
    fn copy_seconds_per_byte(&self) -> f64 {
        let link = self.spec.link.map(|link| link.bytes_per_s);
        link.into_iter().chain(self.spec.copy_bytes_per_s).fold(0.0, |most, rate| rate.recip().max(most))
    }

    /// The link's delay each way.
    fn delay(&self) -> Duration {
        Duration::from_secs_f64(self.spec.link.map_or(0.0, |link| link.delay_s))
    }

    /// Takes a chunk.
    pub(super) fn take(&mut self, chunk: LaneChunk, cost: f64, bytes: f64, now: Time) {
        let copy = bytes * self.copy_seconds_per_byte();
        self.copies_until = self.copies_until.max(now) + Duration::from_secs_f64(copy);
        self.copied += Duration::from_secs_f64(copy);
        let jitter = 1.0 + self.spec.jitter * (2.0 * self.rng.unit() - 1.0);
        let each = jitter / self.spec.rate;
        let work = self.spec.launch_s + cost * each;
        let copied = self.copies_until + self.delay();
        if self.chunks.is_empty() {
            self.since = now;
            self.counted = copied;
        }
        self.chunks.push_back(QueuedChunk { chunk, copied, work, each, cost });
        self.version += 1;
    }

    /// The chunks in flight.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = &LaneChunk> {
        self.chunks.iter().map(|queued| &queued.chunk)
    }

    /// Releases a fraction of the items of a chunk that are not begun, from its end. `None` if all are begun.
    pub(super) fn release(
        &mut self,
        chunk: u64,
        fraction: f64,
        max_items: u64,
        costs: &ItemCosts,
        now: Time,
    ) -> Option<Range<u64>> {
        self.count(now);
        let index = self.chunks.iter().position(|queued| queued.chunk.id == chunk)?;
        let queued = &mut self.chunks[index];
        let items = queued.chunk.items.clone();
        let begun = if index == 0 {
            costs.reached(&items, queued.cost - queued.work / queued.each)
        } else {
            items.start
        };
        let not_begun = begun.max(items.start + 1)..items.end;
        if not_begun.is_empty() {
            return None;
        }
        let count = ((not_begun.end - not_begun.start) as f64 * fraction).round().max(1.0) as u64;
        let taken = not_begun.end.saturating_sub(count.min(max_items)).max(not_begun.start)..not_begun.end;
        let cost = costs.of(&taken);
        queued.work = (queued.work - cost * queued.each).max(0.0);
        queued.cost -= cost;
        queued.chunk.items.end = taken.start;
        Some(taken)
    }

    /// When the first chunk ends on the device, if nothing happens before.
    fn computed(&self, first: &QueuedChunk) -> Time {
        let begin = self.counted.max(first.copied);
        begin + Duration::from_secs_f64((first.work * self.slowness).min(1e9))
    }

    /// When the end of the first chunk is known, if nothing happens before: a link's delay after it has ended.
    pub(super) fn next_end(&self) -> Option<Time> {
        let first = self.chunks.front()?;
        (self.condition == Condition::Well).then(|| self.computed(first) + self.delay())
    }

    /// Ends the first chunk. Returns it, and how long it kept the device busy.
    pub(super) fn end(&mut self, now: Time) -> Option<(LaneChunk, Duration)> {
        let ended = self.chunks.pop_front()?;
        let took = now.saturating_sub(self.since);
        self.since = now;
        // The next chunk began when this one ended on the device.
        self.counted = now.saturating_sub(self.delay());
        self.version += 1;
        Some((ended.chunk, took))
    }

    /// Subtracts the work of the first chunk up to now, before the speed changes.
    fn count(&mut self, now: Time) {
        let counted = self.chunks.front().map(|first| (self.work_left(first, now), self.computed(first)));
        if let Some((first, (left, computed))) = self.chunks.front_mut().zip(counted) {
            first.work = left;
            // One that has ended on the device waits for nothing but the link.
            let is_well = self.condition == Condition::Well;
            self.counted = self.counted.max(if is_well { now.min(computed) } else { now });
        }
        self.version += 1;
    }

    /// Remaining seconds of work of the first chunk.
    fn work_left(&self, first: &QueuedChunk, now: Time) -> f64 {
        let begin = self.counted.max(first.copied);
        let is_well = self.condition == Condition::Well;
        let passed = if is_well { now.saturating_sub(begin) } else { Duration::ZERO };
        (first.work - passed.as_secs_f64() / self.slowness).max(0.0)
    }

    /// The number of the chunk that it computes, and the first item that is not begun.
    pub(super) fn progress(&self, costs: &ItemCosts, now: Time) -> Option<(u64, u64)> {
        let first = self.chunks.front()?;
        let done = first.cost - self.work_left(first, now) / first.each;
        let items = &first.chunk.items;
        Some((first.chunk.id, costs.reached(items, done).max(items.start + 1)))
    }

    /// Applies an event. Returns the chunks that fail with it.
    pub(super) fn apply(&mut self, kind: EventKind, now: Time) -> Vec<LaneChunk> {
        self.count(now);
        match kind {
            EventKind::Slow { factor } => self.slowness = factor,
            EventKind::Hang => self.condition = Condition::Hung,
            EventKind::LoseMemory { items } => self.spec.memory_items = Some(items),
            EventKind::Return => {
                self.condition = Condition::Well;
                self.slowness = 1.0;
            }
            EventKind::Die => {
                self.condition = Condition::Dead;
                return self.drop_chunks(now);
            }
        }
        Vec::new()
    }

    /// Drops all chunks in flight.
    pub(super) fn drop_chunks(&mut self, now: Time) -> Vec<LaneChunk> {
        self.version += 1;
        self.copies_until = now;
        self.chunks.drain(..).map(|queued| queued.chunk).collect()
    }

    /// Whether it has this chunk in flight.
    pub(super) fn has(&self, chunk: u64) -> bool {
        self.chunks.iter().any(|queued| queued.chunk.id == chunk)
    }

    /// What the run knows of it from the start: the rate that device and link allow, and the overhead of a chunk.
    pub(super) fn expected(&self, items: u64, bytes_per_item: u64) -> Expected {
        let items = items.max(1) as f64;
        Expected {
            seconds_per_item: self.capacity(bytes_per_item).recip() + self.spec.launch_s / items,
            overhead_seconds: Some(self.spec.launch_s + 2.0 * self.delay().as_secs_f64()),
            largest: items,
        }
    }

    /// Whether it has no chunk in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Items of mean cost per second at present, which have this many bytes each: as many as device and link allow.
    pub(super) fn capacity(&self, bytes_per_item: u64) -> f64 {
        let by_link = self.spec.link.map_or(f64::INFINITY, |link| link.bytes_per_s / bytes_per_item as f64);
        if self.condition == Condition::Well { (self.spec.rate / self.slowness).min(by_link) } else { 0.0 }
    }
}
