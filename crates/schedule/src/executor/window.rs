//! The items of a stream: one thread takes them from their source, the workers of a run share them.
//!
//! An item is kept until its result was given, since it may have to be done again. It is never copied: the items of a
//! chunk are moved together when the chunk is handed out, and every worker that runs some of them shares that memory.
//!
//! Locks are taken in one order: the run's, then the window's.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::{
        Arc, Condvar, Mutex, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

use super::{Core, Patience, Shared, Stream};
use crate::{
    contain::contain,
    sync::{lock, wait},
    task::Task,
};

/// Items are kept in batches of so many until they are handed out: a batch is moved as a whole.
const BATCH: usize = 1024;

/// How far a stream reads ahead of the results that were given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadAhead {
    pub(crate) items: usize,
    pub(crate) bytes: u64,
}

/// Items that have come and whose results were not given yet.
pub(crate) struct Window<I> {
    inner: Mutex<Inner<I>>,
    /// The source may be read again, or is not needed any more.
    room: Condvar,
    /// Items that have come so far.
    arrived: AtomicU64,
    /// Those of them that the run knows of. Changed under the run's lock only.
    announced: AtomicU64,
    /// Workers that wait because every item that the run knows of is handed out.
    idle: AtomicUsize,
}

struct Inner<I> {
    limits: ReadAhead,
    /// Items that were not handed out, in batches, and the number of the first.
    fresh: VecDeque<VecDeque<I>>,
    first_fresh: u64,
    /// Items that were handed out, by the number of the first of each chunk.
    chunks: BTreeMap<u64, Arc<Items<I>>>,
    /// The sizes of items whose results were not given, and their sum.
    sizes: VecDeque<u64>,
    bytes: u64,
    stopped: bool,
    /// What the source panicked with.
    panic: Option<Box<dyn Any + Send>>,
}

impl<I> Inner<I> {
    fn has_room(&self) -> bool {
        self.sizes.len() < self.limits.items && self.bytes < self.limits.bytes
    }
}

/// The items of one chunk as it was first handed out.
pub(super) struct Items<I> {
    first: u64,
    batches: Mutex<Vec<VecDeque<I>>>,
    /// The same in one slice, which the first worker that needs it makes.
    together: OnceLock<Vec<I>>,
}

impl<I> Items<I> {
    /// Some of the items. Nothing where they are not all here.
    pub(super) fn get(&self, range: &Range<u64>) -> Option<&[I]> {
        let together = self.together.get_or_init(|| {
            let mut batches = std::mem::take(&mut *lock(&self.batches)).into_iter();
            let mut all = Vec::from(batches.next().unwrap_or_default());
            batches.for_each(|batch| all.extend(batch));
            all
        });
        together.get(range.start.checked_sub(self.first)? as usize..(range.end - self.first) as usize)
    }
}

impl<I> Window<I> {
    pub(crate) fn new(limits: ReadAhead) -> Self {
        Window {
            inner: Mutex::new(Inner {
                limits: ReadAhead { items: limits.items.max(1), bytes: limits.bytes.max(1) },
                fresh: VecDeque::new(),
                first_fresh: 0,
                chunks: BTreeMap::new(),
                sizes: VecDeque::new(),
                bytes: 0,
                stopped: false,
                panic: None,
            }),
            room: Condvar::new(),
            arrived: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            idle: AtomicUsize::new(0),
        }
    }

    /// Items that have come so far.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(SeqCst)
    }

    /// Keeps an item of so many bytes. Says whether the source may be read on at once.
    fn push(&self, item: I, bytes: u64) -> bool {
        let mut inner = lock(&self.inner);
        match inner.fresh.back_mut() {
            Some(batch) if batch.len() < BATCH => batch.push_back(item),
            _ => inner.fresh.push_back(VecDeque::from([item])),
        }
        inner.sizes.push_back(bytes);
        inner.bytes = inner.bytes.saturating_add(bytes);
        self.arrived.fetch_add(1, SeqCst);
        !inner.stopped && inner.has_room()
    }

    /// Waits until the source may be read again. Says whether it is to be.
    fn wait_for_room(&self) -> bool {
        let mut inner = lock(&self.inner);
        while !inner.stopped && !inner.has_room() {
            inner = wait(&self.room, inner);
        }
        !inner.stopped
    }

    /// The source is not read any more.
    pub(crate) fn stop(&self) {
        lock(&self.inner).stopped = true;
        self.room.notify_all();
    }

    /// The results of the next so many items were given, which makes room.
    pub(crate) fn release(&self, items: usize) {
        let mut inner = lock(&self.inner);
        let was_full = !inner.has_room();
        let bytes: u64 = inner.sizes.drain(..items).sum();
        inner.bytes = inner.bytes.saturating_sub(bytes);
        let has_room = inner.has_room();
        drop(inner);
        if was_full && has_room {
            self.room.notify_all();
        }
    }

    /// Drops the items before this one: their results were accepted.
    pub(crate) fn forget(&self, before: u64) {
        let mut gone = Vec::new();
        let mut inner = lock(&self.inner);
        // Chunks were first handed out one after another, so each ends where the next begins.
        while let Some(next) = inner.chunks.keys().nth(1).copied().or(Some(inner.first_fresh))
            && next <= before
            && let Some((_, items)) = inner.chunks.pop_first()
        {
            gone.push(items);
        }
        drop(inner);
        // The user's code, whose panic is not the caller's.
        for items in gone {
            contain(|| drop(items));
        }
    }

    /// A chunk is handed out: where its items are new, they are moved together.
    pub(super) fn hand_out(&self, range: &Range<u64>) {
        let mut inner = lock(&self.inner);
        if range.start < inner.first_fresh {
            return;
        }
        let (mut left, mut batches) = ((range.end - range.start) as usize, Vec::new());
        while left > 0
            && let Some(batch) = inner.fresh.front_mut()
        {
            let whole = batch.len() <= left;
            let part = if whole { std::mem::take(batch) } else { batch.drain(..left).collect() };
            left -= part.len();
            batches.push(part);
            if whole {
                inner.fresh.pop_front();
            }
        }
        inner.first_fresh = range.end;
        let items = Items { first: range.start, batches: Mutex::new(batches), together: OnceLock::new() };
        inner.chunks.insert(range.start, Arc::new(items));
    }

    /// The chunk that items were first handed out in. Nothing where their results were accepted from another worker.
    pub(super) fn chunk(&self, first: u64) -> Option<Arc<Items<I>>> {
        lock(&self.inner).chunks.range(..=first).next_back().map(|(_, items)| items.clone())
    }

    /// What the source panicked with.
    pub(crate) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        lock(&self.inner).panic.take()
    }

    /// Tells the run of the items that have come since it was last told. Says how many they are.
    pub(super) fn announce(&self, core: &mut Core) -> u64 {
        let arrived = self.arrived();
        let new = arrived - self.announced.swap(arrived, SeqCst);
        if new > 0 {
            core.run.grow(new);
        }
        new
    }

    /// Spins for a moment until there are more items than a worker has seen, where some have come since it last spun: more
    /// will follow soon, and waking a worker for each takes far longer than many an item. Says whether there are any.
    pub(super) fn spin(&self, seen: u64, spun: &mut u64) -> bool {
        let before = std::mem::replace(spun, seen);
        let has_new = || (self.arrived() != seen).then_some(());
        seen != before && Patience::SHORT.wait(has_new).is_some()
    }

    /// Items that the run knows of.
    pub(super) fn announced(&self) -> u64 {
        self.announced.load(SeqCst)
    }

    /// A worker is about to wait, under the run's lock. It looks whether more items have come after this, and before it
    /// waits.
    pub(super) fn begin_rest(&self) {
        self.idle.fetch_add(1, SeqCst);
    }

    pub(super) fn end_rest(&self) {
        self.idle.fetch_sub(1, SeqCst);
    }
}

impl<T: Task> Shared<T, Stream<T>> {
    /// An item has come from the source. Says whether the source is to be read on, once there is room.
    pub(crate) fn arrive(&self, item: T::Input, bytes: u64) -> bool {
        let window = &self.ends.window;
        let may_read_on = window.push(item, bytes);
        // Busy workers find the item when they ask next. The order of the two counters is what makes it certain that a
        // worker sees the item, or this thread the worker.
        if window.idle.load(SeqCst) > 0 {
            let mut core = self.core();
            let new = window.announce(&mut core);
            drop(core);
            match new {
                0 => {}
                // Any of them would take it.
                1 if self.divisible.iter().all(|divisible| *divisible) => self.work.notify_one(),
                _ => self.work.notify_all(),
            }
        }
        may_read_on || window.wait_for_room()
    }

    /// The source has ended, or panicked.
    pub(crate) fn source_ended(&self, panic: Option<Box<dyn Any + Send>>) {
        let window = &self.ends.window;
        lock(&window.inner).panic = panic;
        let mut core = self.core();
        window.announce(&mut core);
        core.run.close();
        drop(core);
        self.wake_all();
    }
}
