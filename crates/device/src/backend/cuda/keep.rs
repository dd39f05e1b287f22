//! What a stream keeps alive: the memory and kernels that its operations use, until they have ended.
//!
//! Asking the driver after every operation would cost as much as the operation. So what operations use is
//! gathered in batches; an event is recorded behind a batch when it is full, or lent by an event that stands
//! there anyway; and a batch is let go when the stream is known to have come past it.

use std::collections::VecDeque;

/// A batch is full with so many things.
const BATCH: usize = 256;

/// A batch is full with so many bytes of host memory, which is dear.
const BATCH_BYTES: u64 = 32 << 20;

/// Things kept alive, in the order of the operations that use them. `E` is what tells that a batch has ended.
#[derive(Debug)]
pub(super) struct KeepAlive<K, E> {
    gathering: Vec<K>,
    gathering_bytes: u64,
    batches: VecDeque<Batch<K, E>>,
    /// An emptied list, to be filled again.
    spare: Vec<K>,
}

#[derive(Debug)]
struct Batch<K, E> {
    /// Its last operation.
    last: u64,
    end: E,
    kept: Vec<K>,
}

impl<K, E> Default for KeepAlive<K, E> {
    fn default() -> Self {
        KeepAlive { gathering: Vec::new(), gathering_bytes: 0, batches: VecDeque::new(), spare: Vec::new() }
    }
}

impl<K, E> KeepAlive<K, E> {
    /// What was kept last, if the batch has not been closed since.
    #[inline]
    pub(super) fn latest(&self) -> Option<&K> {
        self.gathering.last()
    }

    /// Keeps a thing that holds so many bytes of host memory.
    #[inline]
    pub(super) fn push(&mut self, kept: K, bytes: u64) {
        self.gathering.push(kept);
        self.gathering_bytes += bytes;
    }

    /// Whether the batch should be closed.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.gathering.len() >= BATCH || self.gathering_bytes >= BATCH_BYTES
    }

    /// Closes the batch after the operation `last`, which `end` tells the end of.
    pub(super) fn close(&mut self, last: u64, end: impl FnOnce() -> E) {
        if self.gathering.is_empty() {
            return;
        }
        let kept = std::mem::replace(&mut self.gathering, std::mem::take(&mut self.spare));
        self.gathering_bytes = 0;
        self.batches.push_back(Batch { last, end: end(), kept });
    }

    /// What tells the end of the oldest batch, and its last operation.
    pub(super) fn oldest(&self) -> Option<(u64, &E)> {
        self.batches.front().map(|batch| (batch.last, &batch.end))
    }

    /// Lets go of the batches whose operations have ended, which are all up to `ended`.
    pub(super) fn release(&mut self, ended: u64) {
        while self.batches.front().is_some_and(|batch| batch.last <= ended) {
            if let Some(mut batch) = self.batches.pop_front() {
                batch.kept.clear();
                self.spare = batch.kept;
            }
        }
    }

    /// Lets go of everything: the stream is empty.
    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.gathering.clear();
        self.gathering_bytes = 0;
    }
}

#[cfg(test)]
mod test {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_thing_lives_until_its_batch_has_ended_and_no_longer() {
        let things: Vec<_> = (0..6).map(Rc::new).collect();
        let alive = || things.iter().map(|thing| Rc::strong_count(thing) - 1).collect::<Vec<_>>();
        let mut keep = KeepAlive::default();
        for (operation, thing) in (1..).zip(&things) {
            keep.push(thing.clone(), 0);
            if operation % 2 == 0 {
                keep.close(operation, || operation);
            }
        }
        assert_eq!(alive(), [1; 6]);
        keep.release(1);
        assert_eq!(alive(), [1; 6], "the first batch ends with operation 2");
        keep.release(2);
        assert_eq!(alive(), [0, 0, 1, 1, 1, 1]);
        assert_eq!(keep.oldest(), Some((4, &4)));
        keep.release(5);
        assert_eq!(alive(), [0, 0, 0, 0, 1, 1]);
        keep.clear();
        assert_eq!(alive(), [0; 6]);
    }

    #[test]
    fn a_batch_is_full_by_number_or_by_bytes() {
        let mut keep = KeepAlive::<u32, ()>::default();
        (0..255).for_each(|thing| keep.push(thing, 0));
        assert!(!keep.is_full());
        keep.push(0, 0);
        assert!(keep.is_full());
        keep.close(256, || ());
        assert!(!keep.is_full());
        keep.push(0, 32 << 20);
        assert!(keep.is_full());
        keep.close(257, || ());
        keep.close(257, || panic!("an empty batch needs no end"));
        keep.release(u64::MAX);
        assert!(keep.oldest().is_none());
    }

    #[test]
    fn what_was_kept_last_is_known_only_within_its_batch() {
        let mut keep = KeepAlive::<u32, ()>::default();
        keep.push(5, 0);
        assert_eq!(keep.latest(), Some(&5));
        keep.close(1, || ());
        assert_eq!(keep.latest(), None, "it may be let go before the next operation has ended");
    }
}
