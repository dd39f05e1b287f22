//! The resources that a stream keeps alive: the memory and kernels of its operations, until these have finished.
//!
//! Querying the driver after every operation would cost as much as the operation. Resources are therefore collected in
//! batches. A full batch is closed with an event of its own, or with one that the user records; the batch is dropped once
//! the stream is known to have passed that event.

use std::collections::VecDeque;

const MAX_BATCH: usize = 256;

/// Maximum bytes of pinned host memory in a batch: it is scarce, so it is released early.
const MAX_BATCH_BYTES: u64 = 32 << 20;

/// Resources `R`, in the order of the operations that use them. `E` is an event that is reached when a batch has finished.
#[derive(Debug)]
pub(super) struct KeepAlive<R, E> {
    current: Vec<R>,
    current_bytes: u64,
    batches: VecDeque<ResourceBatch<R, E>>,
    /// An empty vector whose allocation is reused for the next batch.
    spare: Vec<R>,
}

#[derive(Debug)]
struct ResourceBatch<R, E> {
    /// The number of its last operation.
    last: u64,
    end: E,
    resources: Vec<R>,
}

impl<R, E> Default for KeepAlive<R, E> {
    fn default() -> Self {
        KeepAlive { current: Vec::new(), current_bytes: 0, batches: VecDeque::new(), spare: Vec::new() }
    }
}

impl<R, E> KeepAlive<R, E> {
    /// The last resource of the open batch.
    #[inline]
    pub(super) fn latest(&self) -> Option<&R> {
        self.current.last()
    }

    /// Adds a resource that holds this many bytes of pinned host memory.
    #[inline]
    pub(super) fn push(&mut self, resource: R, bytes: u64) {
        self.current.push(resource);
        self.current_bytes += bytes;
    }

    /// Whether the batch should be closed.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.current.len() >= MAX_BATCH || self.current_bytes >= MAX_BATCH_BYTES
    }

    /// Closes the batch after the operation `last`. `end` makes the event behind that operation.
    pub(super) fn close(&mut self, last: u64, end: impl FnOnce() -> E) {
        if self.current.is_empty() {
            return;
        }
        let resources = std::mem::replace(&mut self.current, std::mem::take(&mut self.spare));
        self.current_bytes = 0;
        self.batches.push_back(ResourceBatch { last, end: end(), resources });
    }

    /// The number of the last operation of the oldest batch, and the event behind it.
    pub(super) fn oldest(&self) -> Option<(u64, &E)> {
        self.batches.front().map(|batch| (batch.last, &batch.end))
    }

    /// Drops the batches whose operations have finished: all operations up to `finished`.
    pub(super) fn release(&mut self, finished: u64) {
        while self.batches.front().is_some_and(|batch| batch.last <= finished) {
            if let Some(mut batch) = self.batches.pop_front() {
                batch.resources.clear();
                self.spare = batch.resources;
            }
        }
    }

    /// Drops all resources, for a stream without work in flight.
    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.current.clear();
        self.current_bytes = 0;
    }
}

#[cfg(test)]
mod test {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_resource_is_dropped_when_its_batch_has_finished() {
        let resources: Vec<_> = (0..6).map(Rc::new).collect();
        let alive = || resources.iter().map(|resource| Rc::strong_count(resource) - 1).collect::<Vec<_>>();
        let mut keep = KeepAlive::default();
        for (operation, resource) in (1..).zip(&resources) {
            keep.push(resource.clone(), 0);
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
        (0..255).for_each(|resource| keep.push(resource, 0));
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
    fn the_latest_resource_is_known_only_within_its_batch() {
        let mut keep = KeepAlive::<u32, ()>::default();
        keep.push(5, 0);
        assert_eq!(keep.latest(), Some(&5));
        keep.close(1, || ());
        assert_eq!(keep.latest(), None, "it may be dropped before the next operation has finished");
    }
}
