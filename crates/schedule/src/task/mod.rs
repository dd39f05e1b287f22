//! What is done with the items: code for a chunk of them, on a device.

mod arrays;
mod borrowed;
mod claims;
mod closure;
mod gate;
mod kernel;
mod lend;
mod perform;
mod resident;
mod results;

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

use evener_device::{Device, DeviceKind, Direction, Error, Result};

pub use self::{
    arrays::Arrays,
    closure::{AnyFunction, BoxClosure, Closure},
    kernel::{KernelParams, KernelState, KernelTask},
    resident::Resident,
    results::Results,
};
pub(crate) use self::{
    borrowed::borrowed,
    claims::{Claims, MOST_ITEMS},
    lend::{Lent, Slots},
    perform::{guarded, no_thread, perform, task_error},
};

/// The code that turns a chunk of items into results, on any device that it knows how to use.
///
/// A run works with clones of a task on threads of its own, which a device that hangs may keep beyond the run. So a
/// task owns what it needs; what is large is behind an [`Arc`](std::sync::Arc).
///
/// For plain Rust code there is [`Closure`], and for a kernel with one result an item [`KernelTask`]. Here is one that
/// keeps something of its own on each device:
///
/// ```
/// use evener_device::{Device, DeviceKind, Result};
/// use evener_schedule::{Chunk, Pool, Results, Task};
///
/// /// Looks numbers up in a table, which each lane has a copy of.
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
///         device.describe().kind == DeviceKind::Cpu
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
    /// What becomes of an item.
    type Output: Send + 'static;
    /// What is made once for each hand of a lane and kept from chunk to chunk, and from run to run of one
    /// [`Job`](crate::Job): compiled kernels, streams, buffers on the device.
    type State: Send + 'static;

    /// What it is called in reports, and what its history is kept under, together with its type, the sizes of items and
    /// results and the [`fingerprint`](Self::fingerprint): as long as they are the same, the time an item takes should be
    /// about the same.
    fn name(&self) -> &str;

    /// A number that differs between tasks whose items take unlike times, where the name is the same: a hash of a
    /// kernel's source, for example. The same in every program. Zero, unless said otherwise.
    fn fingerprint(&self) -> u64 {
        0
    }

    /// The same number for tasks of this type that can use what each other's [`prepare`](Self::prepare) has made, so that
    /// [`Pool::map`] keeps it from one call to the next; nothing where only the task itself and its clones in one run
    /// can. Zero for tasks, or states, that have no content, and nothing for others, unless said otherwise.
    ///
    /// [`Pool::map`]: crate::Pool::map
    fn state_id(&self) -> Option<u64> {
        (size_of::<Self>() == 0 || size_of::<Self::State>() == 0).then_some(0)
    }

    /// Whether it has code for a device. Others are left out of its runs.
    fn can_use(&self, device: &Device) -> bool;

    /// Makes a device ready.
    fn prepare(&self, device: &Device) -> Result<Self::State>;

    /// Makes a device ready for one of its workers, which all have `resident` in common: for large data that is only
    /// read, so that it is on the device once and not once a worker. The same as [`prepare`](Self::prepare), unless said
    /// otherwise.
    fn prepare_with(&self, device: &Device, resident: &Resident) -> Result<Self::State> {
        let _ = resident;
        self.prepare(device)
    }

    /// Turns the items of a chunk into as many results, in order.
    ///
    /// An `Error::Task` ends the run; with any other error the chunk is done again, elsewhere or smaller.
    fn run<'s>(
        &self,
        state: &'s mut Self::State,
        chunk: &Chunk<'_, Self::Input>,
        results: &mut Results<'s, Self::Output>,
    ) -> Result<()>;

    /// How many chunks are worked on at once on a device, each by a hand with a state of its own: as many as the
    /// processor has cores, so that `run` need not spread its work; and two on a GPU, so that one's copies hide behind
    /// the other's compute.
    fn hands(&self, device: &Device) -> usize {
        match device.describe().kind {
            DeviceKind::Cpu => device.describe().compute_units.map_or(1, |units| units.max(1) as usize),
            _ => 2,
        }
    }

    /// The most items that fit a chunk: any number, unless said otherwise.
    fn max_items(&self, state: &Self::State) -> u64 {
        let _ = state;
        u64::MAX
    }

    /// Whether a chunk may never end: a device's may, but plain code is only slow, and waited for. Whether one has hung is
    /// decided on evidence: another lane has done the same items in a small part of the time. It may, unless said
    /// otherwise.
    fn may_hang(&self, device: &Device) -> bool {
        let _ = device;
        true
    }

    /// Whether `run` works item by item on a device and takes each with [`Chunk::claim`] before it begins it. Then an idle
    /// lane can take over what is not begun, and a run that is cancelled ends after the item in hand. It does not, unless
    /// said otherwise.
    fn is_divisible(&self, device: &Device) -> bool {
        let _ = device;
        false
    }

    /// How many bytes of memory an item and its result take while a [stream](crate::Pool::map_stream) has them: their own
    /// size, unless said otherwise. Count what they own elsewhere, such as the bytes of a `Vec`.
    fn item_bytes(&self, item: &Self::Input) -> u64 {
        (size_of_val(item) + size_of::<Self::Output>()) as u64
    }

    /// What the items cost compared with each other, one number each, where they do not all cost about the same.
    fn costs(&self, items: &[Self::Input]) -> Option<Vec<f64>> {
        let _ = items;
        None
    }

    /// A cheap check of results. What it finds wrong is done again, and the device not trusted for a while.
    fn check(&self, items: &[Self::Input], results: &[Self::Output]) -> Result<(), String> {
        let _ = (items, results);
        Ok(())
    }
}

/// A number that nothing else in this program has.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// Some of a run's items, to be worked on by one hand.
pub struct Chunk<'a, I> {
    range: Range<u64>,
    items: Items<'a, I>,
    /// What other lanes may steal from; nothing where the chunk is this worker's alone.
    claims: Option<Stealable<'a>>,
    /// How many items were claimed, where no other lane can steal any.
    claimed: Cell<usize>,
    copying: Cell<Copies>,
}

/// Items that other lanes may steal: all that the worker was handed, of which a chunk may be a part.
#[derive(Clone, Copy)]
struct Stealable<'a> {
    claims: &'a Claims,
    /// How many of them come before the chunk's first.
    before: u32,
    /// So many items cannot be parted.
    unit: u32,
}

/// How long copies took, to the device and from it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Copies {
    pub(crate) up: Duration,
    pub(crate) down: Duration,
}

/// Where a chunk's items are.
pub(crate) enum Items<'a, I> {
    /// With the caller of the run, who lends them.
    Lent(&'a Lent<I>),
    /// Here.
    Here(&'a [I]),
}

impl<'a, I> Chunk<'a, I> {
    pub(crate) fn new(range: Range<u64>, items: Items<'a, I>) -> Self {
        Chunk { range, items, claims: None, claimed: Cell::new(0), copying: Cell::default() }
    }

    /// The same, with items that other lanes can steal, so many of which come before the chunk's first. Units of so many
    /// items are not parted.
    pub(crate) fn divisible(self, claims: &'a Claims, before: u32, unit: u32) -> Self {
        Chunk { claims: Some(Stealable { claims, before, unit }), ..self }
    }

    /// Takes the next items to be begun, at most so many, counted from the chunk's first. Nothing once all are taken:
    /// those that another lane has stolen, or that are given back because this one is to yield, do not come.
    ///
    /// A task that says [`Task::is_divisible`] takes all its items so, and gives one result for each before it takes more:
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
        // What comes behind the chunk is for the next one.
        let left = self.len().saturating_sub((claims.claimed() - before) as usize);
        let most = u32::try_from(most.max(1).min(left)).unwrap_or(u32::MAX);
        let block = if most > 0 { claims.claim(most, unit)? } else { return None };
        let block = (block.start - before) as usize..(block.end - before) as usize;
        // SAFETY: the slots of claimed items are this worker's own, and there is one for each of the chunk's items.
        #[allow(unsafe_code)]
        unsafe {
            results.make_room(block.end)
        };
        Some(block)
    }

    /// Gives back claimed items that are not begun, from here on.
    pub(crate) fn unclaim<O>(&self, results: &mut Results<'_, O>, from: usize) {
        let Some(Stealable { claims, before, .. }) = self.claims else { return self.claimed.set(from) };
        // SAFETY: fewer slots than before.
        #[allow(unsafe_code)]
        unsafe {
            results.make_room(from)
        };
        claims.unclaim(before + from as u32);
    }

    /// What tells whether the worker should give back what it has not begun.
    pub(crate) fn claims(&self) -> &Claims {
        static NEVER_INTERRUPTED: LazyLock<Claims> = LazyLock::new(Claims::default);
        self.claims.map_or(&*NEVER_INTERRUPTED, |own| own.claims)
    }

    /// How many of the items are this worker's in the end.
    pub(crate) fn own_len(&self) -> usize {
        let end = |own: Stealable<'_>| own.claims.end().saturating_sub(own.before) as usize;
        self.claims.map_or(self.len(), end).min(self.len())
    }

    /// Which items they are, counted from the run's first.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// How many.
    pub fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Whether there are none: never, in a run.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Looks at the items. They belong to whoever started the run, who waits for the closure to return: it may compute
    /// and copy, but should not wait for a device. Fails when the run has ended meanwhile.
    pub fn read<R>(&self, look: impl FnOnce(&[I]) -> R) -> Result<R> {
        match self.items {
            Items::Here(items) => Ok(look(items)),
            Items::Lent(lent) => {
                let range = self.range.start as usize..self.range.end as usize;
                lent.read(range, look).ok_or(Error::Ended)
            }
        }
    }

    /// Whether the run has ended, and waits for whoever looks at its items: somebody else has done these, or it was
    /// stopped. Code that takes long may ask this now and then, and return `Error::Ended`.
    pub fn is_over(&self) -> bool {
        let is_over = self.claims.is_some_and(|own| own.claims.is_over());
        is_over || matches!(self.items, Items::Lent(lent) if lent.is_wanted_back())
    }

    /// Tells how long the chunk's items were copied to the device, or its results from it, for the report.
    pub fn spent_copying(&self, direction: Direction, time: Duration) {
        let mut copies = self.copying.get();
        match direction {
            Direction::Upload => copies.up += time,
            Direction::Download => copies.down += time,
        }
        self.copying.set(copies);
    }

    pub(crate) fn copies(&self) -> Copies {
        self.copying.get()
    }
}

impl<I> fmt::Debug for Chunk<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({:?})", self.range)
    }
}
