//! The items of a stream: one thread reads them from the source, and the workers of a run share them.
//!
//! The window keeps an item until its result is delivered, since it may have to be computed again. Items are never copied:
//! those of a chunk are moved together when the chunk is handed out, and all workers that run some of them share the memory.
//!
//! Lock order: the run's lock, then the window's.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::{
        Arc, Condvar, Mutex, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

use super::{Core, Shared, SpinBudget, StreamData};
use crate::{
    contain::contain,
    sync::{lock, wait},
    task::Task,
};

/// Maximum number of items in a batch. Unassigned items are kept in batches, each of which is moved as a whole.
const BATCH: usize = 1024;

/// How far a stream reads ahead of the delivered results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadAhead {
    pub(crate) items: usize,
    pub(crate) bytes: u64,
}

/// Items that have arrived and whose results were not delivered yet.
pub(crate) struct Window<I> {
    inner: Mutex<Inner<I>>,
    /// Wakes the thread that reads the source: there is capacity again, or the run has ended.
    capacity_changed: Condvar,
    /// Items that have arrived so far.
    arrived: AtomicU64,
    /// Items that were added to the run. Changed under the run's lock only.
    announced: AtomicU64,
    /// Workers that wait because all items of the run are handed out.
    idle: AtomicUsize,
}

struct Inner<I> {
    limits: ReadAhead,
    /// Items that were not handed out, in batches, and the number of the first.
    unassigned: VecDeque<VecDeque<I>>,
    first_unassigned: u64,
    /// Items that were handed out, by the number of the first of each chunk.
    chunks: BTreeMap<u64, Arc<ChunkItems<I>>>,
    /// The sizes of items whose results were not delivered, and their sum.
    sizes: VecDeque<u64>,
    bytes: u64,
    stopped: bool,
    /// The payload of the source's panic.
    panic: Option<Box<dyn Any + Send>>,
}

impl<I> Inner<I> {
    fn has_capacity(&self) -> bool {
        self.sizes.len() < self.limits.items && self.bytes < self.limits.bytes
    }
}

/// The items of one chunk as it was first handed out.
pub(super) struct ChunkItems<I> {
    first: u64,
    batches: Mutex<Vec<VecDeque<I>>>,
    /// The items in one slice, which the first worker that needs it makes.
    joined: OnceLock<Vec<I>>,
}

impl<I> ChunkItems<I> {
    /// Returns a range of the items, or `None` if it is not within this chunk.
    pub(super) fn get(&self, range: &Range<u64>) -> Option<&[I]> {
        let joined = self.joined.get_or_init(|| {
            let mut batches = std::mem::take(&mut *lock(&self.batches)).into_iter();
            let mut all = Vec::from(batches.next().unwrap_or_default());
            batches.for_each(|batch| all.extend(batch));
            all
        });
        joined.get(range.start.checked_sub(self.first)? as usize..(range.end - self.first) as usize)
    }
}

impl<I> Window<I> {
    pub(crate) fn new(limits: ReadAhead) -> Self {
        Window {
            inner: Mutex::new(Inner {
                limits: ReadAhead { items: limits.items.max(1), bytes: limits.bytes.max(1) },
                unassigned: VecDeque::new(),
                first_unassigned: 0,
                chunks: BTreeMap::new(),
                sizes: VecDeque::new(),
                bytes: 0,
                stopped: false,
                panic: None,
            }),
            capacity_changed: Condvar::new(),
            arrived: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            idle: AtomicUsize::new(0),
        }
    }

    /// Items that have arrived so far.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(SeqCst)
    }

    /// Adds an item of this size. Returns whether the source may be read again at once.
    fn push(&self, item: I, bytes: u64) -> bool {
        let mut inner = lock(&self.inner);
        match inner.unassigned.back_mut() {
            Some(batch) if batch.len() < BATCH => batch.push_back(item),
            _ => inner.unassigned.push_back(VecDeque::from([item])),
        }
        inner.sizes.push_back(bytes);
        inner.bytes = inner.bytes.saturating_add(bytes);
        self.arrived.fetch_add(1, SeqCst);
        !inner.stopped && inner.has_capacity()
    }

    /// Waits until there is capacity for another item. Returns false if the run needs no more items.
    fn wait_for_capacity(&self) -> bool {
        let mut inner = lock(&self.inner);
        while !inner.stopped && !inner.has_capacity() {
            inner = wait(&self.capacity_changed, inner);
        }
        !inner.stopped
    }

    /// Stops the reading of the source.
    pub(crate) fn stop(&self) {
        lock(&self.inner).stopped = true;
        self.capacity_changed.notify_all();
    }

    /// Frees the capacity of the next items: their results were delivered.
    pub(crate) fn release(&self, items: usize) {
        let mut inner = lock(&self.inner);
        let was_full = !inner.has_capacity();
        let bytes: u64 = inner.sizes.drain(..items).sum();
        inner.bytes = inner.bytes.saturating_sub(bytes);
        let has_capacity = inner.has_capacity();
        drop(inner);
        if was_full && has_capacity {
            self.capacity_changed.notify_all();
        }
    }

    /// Drops the items before this one: their results were accepted.
    pub(crate) fn forget(&self, before: u64) {
        let mut gone = Vec::new();
        let mut inner = lock(&self.inner);
        // Chunks were first handed out one after another, so each chunk ends where the next begins.
        while let Some(next) = inner.chunks.keys().nth(1).copied().or(Some(inner.first_unassigned))
            && next <= before
            && let Some((_, items)) = inner.chunks.pop_first()
        {
            gone.push(items);
        }
        drop(inner);
        // Dropping items runs the user's code, which may panic.
        for items in gone {
            contain(|| drop(items));
        }
    }

    /// Moves the items of a chunk that is handed out together, if they are unassigned.
    pub(super) fn hand_out(&self, range: &Range<u64>) {
        let mut inner = lock(&self.inner);
        if range.start < inner.first_unassigned {
            return;
        }
        let (mut left, mut batches) = ((range.end - range.start) as usize, Vec::new());
        while left > 0
            && let Some(batch) = inner.unassigned.front_mut()
        {
            let whole = batch.len() <= left;
            let part = if whole { std::mem::take(batch) } else { batch.drain(..left).collect() };
            left -= part.len();
            batches.push(part);
            if whole {
                inner.unassigned.pop_front();
            }
        }
        inner.first_unassigned = range.end;
        let items = ChunkItems { first: range.start, batches: Mutex::new(batches), joined: OnceLock::new() };
        inner.chunks.insert(range.start, Arc::new(items));
    }

    /// The chunk with which an item was first handed out, or `None` if its items were dropped after their results were
    /// accepted.
    pub(super) fn chunk(&self, first: u64) -> Option<Arc<ChunkItems<I>>> {
        lock(&self.inner).chunks.range(..=first).next_back().map(|(_, items)| items.clone())
    }

    /// Takes the payload of the source's panic.
    pub(crate) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        lock(&self.inner).panic.take()
    }

    /// Adds the items that have arrived since the last call to the run. Returns how many they are.
    pub(super) fn announce(&self, core: &mut Core) -> u64 {
        let arrived = self.arrived();
        let new = arrived - self.announced.swap(arrived, SeqCst);
        if new > 0 {
            core.run.grow(new);
        }
        new
    }

    /// Spins until more items arrive than a worker has seen, if some have arrived since it last spun: more will follow soon,
    /// and waking a worker for each takes far longer than many an item. Returns whether there are any.
    pub(super) fn spin(&self, seen: u64, spun: &mut u64) -> bool {
        let before = std::mem::replace(spun, seen);
        let has_new = || (self.arrived() != seen).then_some(());
        seen != before && SpinBudget::SHORT.spin_until(has_new).is_some()
    }

    /// Items that were added to the run.
    pub(super) fn announced(&self) -> u64 {
        self.announced.load(SeqCst)
    }

    /// Counts a worker that is about to wait, under the run's lock. After this, and before it waits, the worker checks once
    /// more whether items have arrived.
    pub(super) fn begin_wait(&self) {
        self.idle.fetch_add(1, SeqCst);
    }

    pub(super) fn end_wait(&self) {
        self.idle.fetch_sub(1, SeqCst);
    }
}

impl<T: Task> Shared<T, StreamData<T>> {
    /// Adds an item of the source, and waits for capacity. Returns whether the source is to be read further.
    pub(crate) fn push_item(&self, item: T::Input, bytes: u64) -> bool {
        let window = &self.data.window;
        let may_read_on = window.push(item, bytes);
        // Busy workers find the item when they ask next. Since `arrived` is increased before `idle` is read, and a worker
        // increases `idle` before it reads `arrived`, the worker sees the item or this thread sees the worker.
        if window.idle.load(SeqCst) > 0 {
            let mut core = self.core();
            let new = window.announce(&mut core);
            // Whether any waiting worker can take an item. Others wait until their lane's quarantine is over, or have left
            // the items to faster lanes: one of these could be woken in the place of a worker that takes it.
            let all_idle = core.waiting <= window.idle.load(SeqCst);
            drop(core);
            match new {
                0 => {}
                1 if all_idle && self.divisible.iter().all(|divisible| *divisible) => {
                    self.work_available.notify_one()
                }
                _ => self.work_available.notify_all(),
            }
        }
        may_read_on || window.wait_for_capacity()
    }

    /// Ends the stream: the source has ended, or panicked.
    pub(crate) fn source_ended(&self, panic: Option<Box<dyn Any + Send>>) {
        let window = &self.data.window;
        lock(&window.inner).panic = panic;
        let mut core = self.core();
        window.announce(&mut core);
        core.run.close();
        drop(core);
        self.wake_all();
    }
}
