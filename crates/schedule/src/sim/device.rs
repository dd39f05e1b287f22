//! A virtual device: chunks go in, and it says when the next one ends.

use std::{collections::VecDeque, ops::Range, time::Duration};

use super::{
    cost::{Costs, Random},
    scenario::{Device, What},
};
use crate::run::{Chunk, Expected, Time};

/// How a virtual device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Well,
    Hung,
    Dead,
}

/// A chunk that a virtual device has in hand.
#[derive(Debug)]
struct InHand {
    chunk: Chunk,
    /// When its bytes are there.
    copied: Time,
    /// Seconds of work at the device's own speed that are left.
    work: f64,
    /// Seconds of work that each item of mean cost takes.
    each: f64,
    /// What all of its items cost.
    cost: f64,
}

/// A virtual device.
#[derive(Debug)]
pub(super) struct Virtual {
    /// What it is like: one of its kind, at its own rate.
    pub(super) spec: Device,
    pub(super) condition: Condition,
    pub(super) slowness: f64,
    /// How long it was copied to.
    pub(super) copied: Duration,
    /// The first is computed, the others wait.
    hand: VecDeque<InHand>,
    /// Up to when the first one's work has been counted.
    counted: Time,
    /// When the device was last free, or was given what it works on.
    since: Time,
    copies_until: Time,
    /// Whatever was said about the next end before this changed is wrong.
    pub(super) version: u64,
    pub(super) random: Random,
}

impl Virtual {
    pub(super) fn new(spec: Device, random: Random) -> Self {
        Virtual {
            spec,
            condition: Condition::Well,
            slowness: 1.0,
            copied: Duration::ZERO,
            hand: VecDeque::new(),
            counted: Time::ZERO,
            since: Time::ZERO,
            copies_until: Time::ZERO,
            version: 0,
            random,
        }
    }

    /// Takes a chunk of so much cost and so many bytes.
    pub(super) fn take(&mut self, chunk: Chunk, cost: f64, bytes: f64, now: Time) {
        let copy = self.spec.copy_bytes_per_s.map_or(0.0, |rate| bytes / rate);
        self.copies_until = self.copies_until.max(now) + Duration::from_secs_f64(copy);
        self.copied += Duration::from_secs_f64(copy);
        let jitter = 1.0 + self.spec.jitter * (2.0 * self.random.unit() - 1.0);
        let each = jitter / self.spec.rate;
        let work = self.spec.launch_s + cost * each;
        if self.hand.is_empty() {
            self.since = now;
            self.counted = self.copies_until;
        }
        self.hand.push_back(InHand { chunk, copied: self.copies_until, work, each, cost });
        self.version += 1;
    }

    /// Gives up items from the end of a chunk that it has not begun: this part of them, and at most so many. Nothing
    /// where all are begun.
    pub(super) fn give_up(
        &mut self,
        chunk: u64,
        part: f64,
        most: u64,
        costs: &Costs,
        now: Time,
    ) -> Option<Range<u64>> {
        self.count(now);
        let index = self.hand.iter().position(|in_hand| in_hand.chunk.id == chunk)?;
        let in_hand = &mut self.hand[index];
        let items = in_hand.chunk.items.clone();
        let begun = if index == 0 {
            costs.reached(&items, in_hand.cost - in_hand.work / in_hand.each)
        } else {
            items.start
        };
        let free = begun.max(items.start + 1)..items.end;
        if free.is_empty() {
            return None;
        }
        let count = ((free.end - free.start) as f64 * part).round().max(1.0) as u64;
        let taken = free.end.saturating_sub(count.min(most)).max(free.start)..free.end;
        let cost = costs.of(&taken);
        in_hand.work = (in_hand.work - cost * in_hand.each).max(0.0);
        in_hand.cost -= cost;
        in_hand.chunk.items.end = taken.start;
        Some(taken)
    }

    /// When the first chunk ends, if nothing happens meanwhile.
    pub(super) fn next_end(&self) -> Option<Time> {
        let first = self.hand.front()?;
        let begin = self.counted.max(first.copied);
        (self.condition == Condition::Well)
            .then(|| begin + Duration::from_secs_f64((first.work * self.slowness).min(1e9)))
    }

    /// The first chunk has ended. Gives it, and how long it kept the device.
    pub(super) fn end(&mut self, now: Time) -> Option<(Chunk, Duration)> {
        let ended = self.hand.pop_front()?;
        let took = now.saturating_sub(self.since);
        self.since = now;
        self.counted = now;
        self.version += 1;
        Some((ended.chunk, took))
    }

    /// Counts the work of the first chunk up to now, before the speed changes.
    fn count(&mut self, now: Time) {
        let left = self.hand.front().map(|first| self.work_left(first, now));
        if let Some((first, left)) = self.hand.front_mut().zip(left) {
            first.work = left;
            self.counted = self.counted.max(now);
        }
        self.version += 1;
    }

    /// Seconds of work that are left of the first chunk.
    fn work_left(&self, first: &InHand, now: Time) -> f64 {
        let begin = self.counted.max(first.copied);
        let is_well = self.condition == Condition::Well;
        let passed = if is_well { now.saturating_sub(begin) } else { Duration::ZERO };
        (first.work - passed.as_secs_f64() / self.slowness).max(0.0)
    }

    /// How far it has come with the chunk that it computes: the chunk's number, and the first item that is not begun.
    pub(super) fn progress(&self, costs: &Costs, now: Time) -> Option<(u64, u64)> {
        let first = self.hand.front()?;
        let done = first.cost - self.work_left(first, now) / first.each;
        let items = &first.chunk.items;
        Some((first.chunk.id, costs.reached(items, done).max(items.start + 1)))
    }

    /// Something happens to it. Gives the chunks that failed by that.
    pub(super) fn happen(&mut self, what: What, now: Time) -> Vec<Chunk> {
        self.count(now);
        match what {
            What::Slow { factor } => self.slowness = factor,
            What::Hang => self.condition = Condition::Hung,
            What::LoseMemory { items } => self.spec.memory_items = Some(items),
            What::Return => {
                self.condition = Condition::Well;
                self.slowness = 1.0;
            }
            What::Die => {
                self.condition = Condition::Dead;
                return self.let_go(now);
            }
        }
        Vec::new()
    }

    /// Lets everything go that it has in hand.
    pub(super) fn let_go(&mut self, now: Time) -> Vec<Chunk> {
        self.version += 1;
        self.copies_until = now;
        self.hand.drain(..).map(|in_hand| in_hand.chunk).collect()
    }

    /// Whether it has this chunk in hand.
    pub(super) fn has(&self, chunk: u64) -> bool {
        self.hand.iter().any(|in_hand| in_hand.chunk.id == chunk)
    }

    /// What is known of it before the run: its own rate, and what a launch costs.
    pub(super) fn expected(&self, items: u64) -> Expected {
        let items = items.max(1) as f64;
        Expected {
            seconds_per_item: self.spec.rate.recip() + self.spec.launch_s / items,
            overhead_seconds: Some(self.spec.launch_s),
            largest: items,
        }
    }

    /// Whether it has nothing in hand.
    pub(super) fn is_idle(&self) -> bool {
        self.hand.is_empty()
    }

    /// Items of mean cost a second, as it is now.
    pub(super) fn capacity(&self) -> f64 {
        if self.condition == Condition::Well { self.spec.rate / self.slowness } else { 0.0 }
    }
}
