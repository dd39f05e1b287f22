//! Tasks: the user's code for a chunk of items on a device.

mod arrays;
mod borrowed;
mod claims;
mod closure;
mod function;
mod gate;
mod kernel;
mod lend;
mod resident;
mod results;
mod run_chunk;

use std::{
    cell::Cell,
    fmt,
    ops::Range,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use evener_device::{Device, Direction, Error, Result};

pub use self::{
    arrays::Arrays,
    claims::{Claims, MAX_DIVISIBLE_ITEMS},
    closure::{AnyFunction, BoxClosure, Closure},
    function::task_fns,
    kernel::{KernelParams, KernelState, KernelTask},
    resident::Resident,
    results::Results,
};
pub(crate) use self::{
    borrowed::borrowed_task,
    lend::{LentItems, ResultSlots},
    run_chunk::{catch_panic, run_chunk, task_error, thread_error},
};

use crate::report::grouped;

/// The code that turns a chunk of items into results, on any device that it knows how to use.
///
/// A run clones the task for its worker threads, and a device that hangs may keep its thread beyond the run. So a task
/// owns its data; large data belongs behind an [`Arc`](std::sync::Arc).
///
/// Plain Rust code is a [`Closure`], and a kernel with one result per item a [`KernelTask`]. This task keeps a table on
/// each device:
///
/// ```
/// use evener_device::{Device, Result};
/// use evener_schedule::{Chunk, Pool, Results, Task};
///
/// /// Looks numbers up in a table, of which each worker has a copy.
/// #[derive(Clone)]
/// struct Lookup {
///     table: std::sync::Arc<[u32]>,
/// }
///
/// impl Task for Lookup {
///     type Input = u8;
///     type Output = u32;
///     type State = Vec<u32>;
///
///     fn name(&self) -> &str {
///         "lookup"
///     }
///
///     fn can_use(&self, device: &Device) -> bool {
///         device.describe().is_local_processor()
///     }
///
///     fn prepare(&self, _: &Device) -> Result<Vec<u32>> {
///         Ok(self.table.to_vec())
///     }
///
///     fn run(&self, table: &mut Vec<u32>, chunk: &Chunk<'_, u8>, results: &mut Results<'_, u32>) -> Result<()> {
///         chunk.read(|items| results.extend(items.iter().map(|&item| table[usize::from(item)])))
///     }
/// }
///
/// let task = Lookup { table: (0..256).map(|n| n * n).collect() };
/// let pool = Pool::new([Device::cpu()])?;
/// assert_eq!(pool.map(&task, &[1, 2, 3])?.results(), [1, 4, 9]);
/// # Ok::<(), evener_schedule::RunError>(())
/// ```
pub trait Task: Clone + Send + Sync + 'static {
    /// An item.
    type Input: Send + Sync + 'static;
    /// The result of an item.
    type Output: Send + 'static;
    /// A worker's own state, kept from chunk to chunk and from run to run of one [`Job`](crate::Job): compiled kernels,
    /// streams, buffers on the device.
    type State: Send + 'static;

    /// The task's name in reports. Its history is stored under the name, the type, the sizes of items and results and
    /// the [`fingerprint`](Self::fingerprint): tasks that have all of them in common should take about the same time
    /// per item.
    fn name(&self) -> &str;

    /// A number that tells tasks of the same name apart whose items take different times: a hash of a kernel's source,
    /// for example. The number is the same in every process. Default: zero.
    fn fingerprint(&self) -> u64 {
        0
    }

    /// Identifies the states that this task can use: tasks of this type with the same number can use each other's
    /// [prepared](Self::prepare) states, and [`Pool::map`] keeps them from call to call. With `None`, states are used
    /// in one run only. Default: `Some(0)` for tasks or states of size zero, otherwise `None`.
    ///
    /// [`Pool::map`]: crate::Pool::map
    fn state_id(&self) -> Option<u64> {
        (size_of::<Self>() == 0 || size_of::<Self::State>() == 0).then_some(0)
    }

    /// Whether the task has code for a device. Runs leave out the other devices.
    fn can_use(&self, device: &Device) -> bool;

    /// Makes the state of one worker of a device.
    fn prepare(&self, device: &Device) -> Result<Self::State>;

    /// Makes the state of one worker of a device. All workers of the device share `resident`: large data that is only
    /// read is then on the device once instead of once per worker. Default: [`prepare`](Self::prepare).
    fn prepare_with(&self, device: &Device, resident: &Resident) -> Result<Self::State> {
        let _ = resident;
        self.prepare(device)
    }

    /// Turns the items of a chunk into as many results, in order.
    ///
    /// `Error::Task` ends the run; after any other error the chunk is retried, on another device or with fewer items.
    fn run<'s>(
        &self,
        state: &'s mut Self::State,
        chunk: &Chunk<'_, Self::Input>,
        results: &mut Results<'s, Self::Output>,
    ) -> Result<()>;

    /// Number of workers of a device, each with its own state. Default: one per core of this machine's processor, so that `run`
    /// can be single-threaded, and two for another device, so that one worker copies while the other computes. Zero counts as one.
    fn workers(&self, device: &Device) -> usize {
        match device.describe().is_local_processor() {
            true => device.describe().compute_units.map_or(1, |units| units.max(1) as usize),
            false => 2,
        }
    }

    /// Maximum number of items in a chunk. Zero counts as one. Default: no limit.
    fn max_items(&self, state: &Self::State) -> u64 {
        let _ = state;
        u64::MAX
    }

    /// Whether a chunk on the device may never end. A worker that may hang is given up on evidence: another lane has
    /// done the same items in a small fraction of the time. Plain code that cannot hang is waited for. Default: `true`.
    fn may_hang(&self, device: &Device) -> bool {
        let _ = device;
        true
    }

    /// Whether `run` takes its items with [`Chunk::claim`] before it begins them. Idle lanes can then steal the items
    /// that are not begun, and a cancelled run ends after the current item. Default: `false`.
    fn is_divisible(&self, device: &Device) -> bool {
        let _ = device;
        false
    }

    /// Bytes of memory of an item and its result in a [stream](crate::Pool::map_stream), including the memory that they
    /// own, for example the bytes of a `Vec`. Default: the sizes of the two values.
    fn item_bytes(&self, item: &Self::Input) -> u64 {
        (size_of_val(item) + size_of::<Self::Output>()) as u64
    }

    /// Relative costs of the items, one number each, or `None` if all items cost about the same. Negative numbers, NaN and
    /// infinity count as zero. If the number of costs is not that of the items, or all are zero, they are ignored.
    fn costs(&self, items: &[Self::Input]) -> Option<Vec<f64>> {
        let _ = items;
        None
    }

    /// Checks results cheaply. After an error the chunk is retried, and its device goes into quarantine.
    fn check(&self, items: &[Self::Input], results: &[Self::Output]) -> Result<(), String> {
        let _ = (items, results);
        Ok(())
    }
}

/// Returns a number that no other call in this process returns.
fn unique_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// A range of a run's items, given to one worker.
pub struct Chunk<'a, I> {
    range: Range<u64>,
    items: Items<'a, I>,
    /// The claims that other lanes may steal from; `None` if no other lane can.
    claims: Option<Stealable<'a>>,
    /// Number of items claimed, if no other lane can steal any.
    claimed: Cell<usize>,
    copy_times: Cell<CopyTimes>,
    /// Whether the items are pieces of a queue.
    is_of_queue: bool,
}

/// The worker's items that other lanes may steal. A chunk is all of them or a range of them.
#[derive(Clone, Copy)]
struct Stealable<'a> {
    claims: &'a Claims,
    /// Number of items before the chunk's first.
    before: u32,
    /// Items are split only at multiples of this.
    unit: u32,
}

/// Time spent in copies to the device and from it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CopyTimes {
    pub(crate) upload: Duration,
    pub(crate) download: Duration,
}

/// The memory of a chunk's items.
pub(crate) enum Items<'a, I> {
    /// The memory of the run's caller.
    Lent(&'a LentItems<I>),
    /// Memory that lives as long as the chunk.
    Slice(&'a [I]),
}

impl<'a, I> Chunk<'a, I> {
    pub(crate) fn new(range: Range<u64>, items: Items<'a, I>) -> Self {
        let (claimed, copy_times) = (Cell::new(0), Cell::default());
        Chunk { range, items, claims: None, claimed, copy_times, is_of_queue: false }
    }

    /// A batch of a queue: its items are pieces, numbered in the order of submission.
    pub(crate) fn of_queue(range: Range<u64>, items: Items<'a, I>) -> Self {
        Chunk { is_of_queue: true, ..Chunk::new(range, items) }
    }

    /// An item's name in an error.
    pub(crate) fn name_of(&self, item: u64) -> String {
        match self.is_of_queue {
            true => format!("piece {} (in the order of submission)", grouped(item)),
            false => format!("item {}", grouped(item)),
        }
    }

    /// Lets other lanes steal items: `before` of the claims come before the chunk's first item, and items are split
    /// only at multiples of `unit`.
    pub(crate) fn divisible(self, claims: &'a Claims, before: u32, unit: u32) -> Self {
        Chunk { claims: Some(Stealable { claims, before, unit }), ..self }
    }

    /// Claims the next items, at most `most`, and returns their range counted from the chunk's first item. Returns
    /// `None` once no item is left: other lanes may have stolen items, or the worker was asked to yield.
    ///
    /// A task that is [divisible](Task::is_divisible) claims all its items, and adds one result for each before it
    /// claims more:
    ///
    /// ```
    /// # use evener_device::Result;
    /// # use evener_schedule::{Chunk, Results};
    /// # fn square(chunk: &Chunk<'_, u64>, results: &mut Results<'_, u64>) -> Result<()> {
    /// chunk.read(|items| {
    ///     while let Some(block) = chunk.claim(results, 16) {
    ///         results.extend(items[block].iter().map(|item| item * item));
    ///     }
    /// })
    /// # }
    /// ```
    pub fn claim<O>(&self, results: &mut Results<'_, O>, most: usize) -> Option<Range<usize>> {
        let Some(Stealable { claims, before, unit }) = self.claims else {
            let start = self.claimed.get();
            let end = start.saturating_add(most.max(1)).min(self.len());
            self.claimed.set(end);
            return (start < end && !self.is_over()).then_some(start..end);
        };
        // Items behind the chunk belong to the next chunk.
        let left = self.len().saturating_sub((claims.claimed() - before) as usize);
        let most = u32::try_from(most.max(1).min(left)).unwrap_or(u32::MAX);
        let block = if most > 0 { claims.claim(most, unit)? } else { return None };
        let block = (block.start - before) as usize..(block.end - before) as usize;
        // SAFETY: `Claims` gives each item to one lane only, so the slots of claimed items are this worker's own; the
        // maker of `results` has a slot for each of the chunk's items.
        #[allow(unsafe_code)]
        unsafe {
            results.set_capacity(block.end)
        };
        Some(block)
    }

    /// Gives back the claimed items from `from` on, which the worker has not begun.
    pub(crate) fn unclaim<O>(&self, results: &mut Results<'_, O>, from: usize) {
        let Some(Stealable { claims, before, .. }) = self.claims else { return self.claimed.set(from) };
        // SAFETY: there are no more slots than before, and those were this worker's own.
        #[allow(unsafe_code)]
        unsafe {
            results.set_capacity(from)
        };
        claims.unclaim(before + from as u32);
    }

    /// The claims that say whether the worker should give back the items that it has not begun.
    pub(crate) fn claims(&self) -> &Claims {
        static NEVER_INTERRUPTED: LazyLock<Claims> = LazyLock::new(Claims::default);
        self.claims.map_or(&*NEVER_INTERRUPTED, |own| own.claims)
    }

    /// Number of items that are left to this worker after all steals.
    pub(crate) fn own_len(&self) -> usize {
        let end = |own: Stealable<'_>| own.claims.end().saturating_sub(own.before) as usize;
        self.claims.map_or(self.len(), end).min(self.len())
    }

    /// The items' numbers in the run.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Returns whether the chunk has no items. A run hands out no empty chunk.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Calls a closure with the items. They belong to the caller of the run, and the run cannot return before the
    /// closure does: the closure may compute and copy, but should not wait for a device. Fails with `Error::Ended` if
    /// the run has ended.
    pub fn read<R>(&self, closure: impl FnOnce(&[I]) -> R) -> Result<R> {
        match self.items {
            Items::Slice(items) => Ok(closure(items)),
            Items::Lent(lent) => {
                let range = self.range.start as usize..self.range.end as usize;
                lent.read(range, closure).ok_or(Error::Ended)
            }
        }
    }

    /// Whether the run has ended: another lane has done these items, or the run was stopped. Long computations should
    /// check this from time to time and return `Error::Ended`, because the run's caller waits for them.
    pub fn is_over(&self) -> bool {
        let is_over = self.claims.is_some_and(|own| own.claims.is_over());
        is_over || matches!(self.items, Items::Lent(lent) if lent.is_revoked())
    }

    /// Adds time that was spent copying the chunk's items to the device, or its results from it, to the report.
    pub fn add_copy_time(&self, direction: Direction, time: Duration) {
        let mut copies = self.copy_times.get();
        match direction {
            Direction::Upload => copies.upload += time,
            Direction::Download => copies.download += time,
        }
        self.copy_times.set(copies);
    }

    pub(crate) fn copy_times(&self) -> CopyTimes {
        self.copy_times.get()
    }
}

impl<I> fmt::Debug for Chunk<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({:?})", self.range)
    }
}
