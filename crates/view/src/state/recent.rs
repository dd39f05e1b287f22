//! The last few of something, each with the version in which it came.

use std::collections::VecDeque;

/// A list of the last `max` things.
#[derive(Debug, Clone)]
pub(super) struct Recent<T> {
    things: VecDeque<(u64, T)>,
    max: usize,
}

impl<T: Clone> Recent<T> {
    pub(super) fn new(max: usize) -> Self {
        Recent { things: VecDeque::new(), max: max.max(1) }
    }

    pub(super) fn push(&mut self, version: u64, thing: T) {
        if self.things.len() >= self.max {
            self.things.pop_front();
        }
        self.things.push_back((version, thing));
    }

    /// All of them, the newest last.
    pub(super) fn all(&self) -> VecDeque<T> {
        self.iter().cloned().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.things.iter().map(|(_, thing)| thing)
    }

    /// Those that came after a version, the newest last.
    pub(super) fn since(&self, version: u64) -> Vec<T> {
        let first = self.things.partition_point(|(at, _)| *at <= version);
        self.things.iter().skip(first).map(|(_, thing)| thing.clone()).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.things.len()
    }

    pub(super) fn pop_oldest(&mut self) {
        self.things.pop_front();
    }
}
