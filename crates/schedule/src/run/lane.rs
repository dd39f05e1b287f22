//! What is known about one lane: how fast it is, what it has in hand, and whether it is to be trusted.

use std::time::Duration;

use super::{Expected, LaneSpec, Time};

/// How a lane stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is given work.
    Healthy,
    /// It failed and is left alone until then; what it gets first is a small chunk that shows whether it is well.
    Quarantined {
        /// When it is tried again.
        until: Time,
    },
    /// It failed in a way that would repeat itself: it gets nothing more in this run.
    Retired,
}

/// One lane, as the decisions see it.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) state: State,
    /// Whether the next chunk is to show that it is well again.
    pub(super) on_trial: bool,
    /// Failures so far: each makes the next quarantine longer.
    pub(super) strikes: u32,
    pub(super) in_flight: usize,
    /// How many chunks it may have in hand at once.
    pub(super) depth: usize,
    pub(super) may_hang: bool,
    /// The most items that it had memory for.
    pub(super) most_items: u64,
    /// The cost of the largest chunk that it has finished.
    pub(super) largest: f64,
    /// Its share of a fixed split, while nobody has taken it.
    pub(super) share: Option<std::ops::Range<u64>>,
    speed: Speed,
}

/// Time per item, over all chunks, the k-th counted k times: adaptive weighted factoring, version E.
#[derive(Debug, Clone, Copy, Default)]
struct Speed {
    chunks: f64,
    weighted_time: f64,
    weighted_items: f64,
    /// The smallest chunk, and the shortest time that one of its size took: most of that may be overhead.
    smallest: Option<(f64, f64)>,
    /// What counts until a chunk has ended.
    expected: Option<Expected>,
}

impl Lane {
    pub(super) fn new(spec: &LaneSpec, most_items: Option<u64>) -> Self {
        let most = [spec.most_items, most_items].into_iter().flatten().min();
        let usable = |it: &Expected| it.seconds_per_item > 0.0 && it.seconds_per_item.is_finite();
        let expected = spec.expected.filter(usable);
        Lane {
            state: State::Healthy,
            on_trial: false,
            strikes: 0,
            in_flight: 0,
            depth: spec.depth.max(1),
            may_hang: spec.may_hang,
            most_items: most.unwrap_or(u64::MAX).max(1),
            largest: expected.map_or(0.0, |it| it.largest.max(0.0)),
            share: None,
            speed: Speed { expected, ..Speed::default() },
        }
    }

    /// A chunk of so much cost has ended that kept the lane busy for so long.
    pub(super) fn learn(&mut self, cost: f64, took: Duration) {
        let took = took.as_secs_f64().max(1e-9);
        let speed = &mut self.speed;
        speed.chunks += 1.0;
        speed.weighted_time += speed.chunks * took;
        speed.weighted_items += speed.chunks * cost;
        speed.smallest = Some(match speed.smallest {
            Some((smallest, shortest)) if smallest < cost => (smallest, shortest),
            Some((smallest, shortest)) if smallest == cost => (smallest, shortest.min(took)),
            _ => (cost, took),
        });
        self.largest = self.largest.max(cost);
    }

    /// Seconds per item of mean cost, overhead included, once it is known.
    pub(super) fn seconds_per_item(&self) -> Option<f64> {
        if self.speed.weighted_items > 0.0 {
            return Some(self.speed.weighted_time / self.speed.weighted_items);
        }
        Some(self.speed.expected?.seconds_per_item)
    }

    /// Items of mean cost per second, once it is known.
    pub(super) fn rate(&self) -> Option<f64> {
        self.seconds_per_item().map(f64::recip)
    }

    /// What a chunk costs beside its items: what the smallest one took longer than its items should have.
    pub(super) fn overhead(&self) -> f64 {
        let before = self.speed.expected.map_or(0.0, |it| it.overhead_seconds.max(0.0));
        let (Some((cost, took)), Some(each)) = (self.speed.smallest, self.seconds_per_item()) else {
            return before;
        };
        // Chunks that are all alike tell nothing; what was known before still holds.
        (took - cost * each).max(before.min(took))
    }

    /// How long a chunk of so much cost probably takes.
    pub(super) fn estimate(&self, cost: f64) -> Option<f64> {
        Some((self.seconds_per_item()? * cost).max(self.overhead()))
    }

    /// What it has shown, for the next run of the same task.
    pub(super) fn learned(&self) -> Option<Expected> {
        (self.speed.chunks > 0.0).then(|| Expected {
            seconds_per_item: self.seconds_per_item().unwrap_or(f64::INFINITY),
            overhead_seconds: self.overhead(),
            largest: self.largest,
        })
    }

    /// Whether it may be given a chunk at this time.
    pub(super) fn has_room(&self, now: Time) -> bool {
        let awake = match self.state {
            State::Healthy => true,
            State::Quarantined { until } => until <= now,
            State::Retired => false,
        };
        // One chunk at a time while it has to show that it is well.
        let depth = if self.on_trial || self.state != State::Healthy { 1 } else { self.depth };
        awake && self.in_flight < depth
    }
}
