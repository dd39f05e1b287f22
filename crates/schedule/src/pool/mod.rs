//! The pool: the devices that work together, and the ways to put them to work.

mod borrowed;
mod builder;
mod chooser;
mod execute;
mod job;
mod memory;
mod statistics;
mod stream;

use std::{
    any::{Any, TypeId},
    borrow::Borrow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytemuck::Pod;
use evener_device::Device;

pub use self::{
    builder::PoolBuilder,
    job::{Job, Mapped, Reduced},
    statistics::DeviceStatistics,
    stream::MapStream,
};
use self::{chooser::Chooser, execute::task_key, job::Common};
use crate::{
    error::RunError,
    executor::{Control, ReadAhead, Seat},
    report::Report,
    run::Settings,
    strategy::Strategy,
    sync::lock,
    task::{Arrays, KernelTask, Task},
};

/// Cancels a run from any thread: clone it, give one to the job, and keep the other.
#[derive(Debug, Clone, Default)]
pub struct Cancel(pub(crate) Arc<AtomicBool>);

impl Cancel {
    /// One that has not been used.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends every run that was given a clone of this with [`RunError::Cancelled`]: within some milliseconds, or once the
    /// items of plain code that are in hand are done.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }
}

/// Devices that work together. Cloning it gives another handle on the same pool.
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) seats: Vec<Arc<Seat>>,
    options: Options,
    /// What [`Pool::map`] and its like keep of the tasks that they were given last, by type and
    /// history, the oldest first.
    kept: Mutex<Vec<KeptTask>>,
    pub(crate) chooser: Arc<Chooser>,
}

/// What is kept of a task.
#[derive(Debug)]
struct KeptTask {
    kind: TypeId,
    key: Arc<str>,
    /// The [`Common`] of its state.
    common: Box<dyn Any + Send>,
}

/// What so many tasks have made on the devices is kept between calls of [`Pool::map`] and its like.
const KEPT: usize = 8;

/// What runs begin with, unless their job says otherwise.
#[derive(Debug, Clone)]
struct Options {
    strategy: Strategy,
    settings: Settings,
    /// Whether devices that make no difference are left out.
    chooses: bool,
    keeps_trace: bool,
    read_ahead: ReadAhead,
    control: Control,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            strategy: Strategy::default(),
            settings: Settings::default(),
            chooses: true,
            keeps_trace: false,
            read_ahead: ReadAhead { items: 1 << 16, bytes: 256 << 20 },
            control: Control { cancel: None, deadline: None, prepare_limit: Duration::from_secs(300) },
        }
    }
}

impl Pool {
    /// Makes a pool with options of its own.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// All devices of this machine, or those that the variable `EVENER_DEVICES` names.
    pub fn all() -> Result<Pool, RunError> {
        Pool::builder().build()
    }

    /// These devices.
    pub fn new<D: Borrow<Device>>(devices: impl IntoIterator<Item = D>) -> Result<Pool, RunError> {
        Pool::builder().devices(devices).build()
    }

    /// Its devices.
    pub fn devices(&self) -> Vec<Device> {
        self.inner.seats.iter().map(|seat| seat.device().0).collect()
    }

    /// Work of one kind for this pool, with its options. What it makes on the devices is kept from run to run.
    pub fn job<T: Task>(&self, task: &T) -> Job<'static, T> {
        Job::new(self.clone(), task.clone(), Common::new(self, task_key(task)))
    }

    /// The job of an earlier call with such a task, or a new one: what it has learned, and what it has made on the
    /// devices where that is of use to this task, is kept for the next call.
    fn kept_job<T: Task>(&self, task: &T) -> Job<'static, T> {
        let (kind, key, state_id) = (TypeId::of::<T>(), task_key(task), task.state_id());
        let mut kept = lock(&self.inner.kept);
        let place = kept.iter().position(|it| it.kind == kind && it.key == key);
        let known = place.and_then(|place| kept.remove(place).common.downcast::<Common<T::State>>().ok());
        let mut common = known.map_or_else(|| Common::new(self, key.clone()), |known| *known);
        let unfit = state_id.is_none() || common.state_id != state_id;
        let unfit = unfit.then(|| std::mem::take(&mut common.shelf));
        common.state_id = state_id;
        let mut own = common.clone();
        if state_id.is_none() {
            own.shelf = Arc::default();
        }
        let outdated = (kept.len() >= KEPT).then(|| kept.remove(0));
        kept.push(KeptTask { kind, key, common: Box::new(common) });
        drop(kept);
        // What a task has made may take long to be let go.
        drop((unfit, outdated));
        Job::new(self.clone(), task.clone(), own)
    }

    /// Lets go of what [`Pool::map`] and its like have made on the devices and keep for the next call with the same task:
    /// compiled kernels and memory. What was learned stays. Workers that have just ended a run let go of theirs by
    /// themselves, so memory may be freed some milliseconds after this returns.
    pub fn release(&self) {
        let kept = std::mem::take(&mut *lock(&self.inner.kept));
        drop(kept);
    }

    /// Does a task for every item, on all devices, and gives the results in the items' order. Calls with one task learn
    /// from each other as the runs of a [`Job`] do; what the last few tasks have made on the devices is kept until
    /// [`Pool::release`].
    pub fn map<T: Task>(&self, task: &T, items: &[T::Input]) -> Result<Mapped<T::Output>, RunError> {
        self.kept_job(task).map(items)
    }

    /// As [`Pool::map`], with the results written to where the caller wants them. Fails where they are not as many as the
    /// items. On any error, what is there is a mixture of what was there before and results.
    ///
    /// The results are written and not read: a kernel does not see what was in the slice before, and must write every
    /// result. A result that the kernel leaves unwritten is unspecified.
    ///
    /// ```
    /// # use evener_device::Device;
    /// # use evener_schedule::{Closure, Pool};
    /// let pool = Pool::new([Device::cpu()])?;
    /// let square = Closure::new("square", |&number: &u64| number * number);
    /// let mut squares = [0; 3];
    /// for numbers in [[1, 2, 3], [4, 5, 6]] {
    ///     pool.map_into(&square, &numbers, &mut squares)?;
    /// }
    /// assert_eq!(squares, [16, 25, 36]);
    /// # Ok::<(), evener_schedule::RunError>(())
    /// ```
    pub fn map_into<T: Task<Output: Copy>>(
        &self,
        task: &T,
        items: &[T::Input],
        results: &mut [T::Output],
    ) -> Result<Report, RunError> {
        self.kept_job(task).map_into(items, results)
    }

    /// Runs a kernel with several inputs and outputs over slices, on all devices, as [`Pool::map`] runs a task over items.
    /// The results are written to the outputs. Arrays whose number, types or lengths do not fit are refused before any
    /// device is asked.
    ///
    /// ```
    /// use evener_device::{Device, Kernel};
    /// use evener_schedule::{Arrays, KernelParams, KernelTask, Pool};
    ///
    /// // Sum and difference of two numbers, and a row of their first three multiples.
    /// let kernel = Kernel::new("both").rust(|launch| {
    ///     let count = launch.params::<KernelParams>()?.count as usize;
    ///     let (left, right) = (launch.read::<u32>(0)?, launch.read::<u32>(1)?);
    ///     let (sums, multiples) = (launch.write::<u64>(2)?, launch.write::<u32>(3)?);
    ///     for item in 0..count {
    ///         sums[item] = u64::from(left[item]) + u64::from(right[item]);
    ///         for step in 0..3 {
    ///             multiples[3 * item + step] = left[item] * (step as u32 + 1);
    ///         }
    ///     }
    ///     Ok(())
    /// });
    /// let task = KernelTask::arrays(&kernel).input::<u32>().input::<u32>().output::<u64>().output_rows::<u32>(3);
    /// let pool = Pool::new([Device::cpu()])?;
    /// let (mut sums, mut multiples) = ([0; 2], [0; 6]);
    /// let arrays = Arrays::new().input(&[1u32, 2]).input(&[10u32, 20]).output(&mut sums).output(&mut multiples);
    /// pool.map_arrays(&task, arrays)?;
    /// assert_eq!(sums, [11u64, 22]);
    /// assert_eq!(multiples, [1u32, 2, 3, 2, 4, 6]);
    /// # Ok::<(), evener_schedule::RunError>(())
    /// ```
    pub fn map_arrays<P: Pod>(
        &self,
        task: &KernelTask<(), (), P>,
        arrays: Arrays<'_>,
    ) -> Result<Report, RunError> {
        self.kept_job(task).map_arrays(arrays)
    }

    /// Does a task for every item and combines the results, in an order that depends on their number alone: whoever
    /// did what, floating-point sums come out the same to the last bit. Nothing comes of no items.
    ///
    /// Workers combine the results of a block of items, and the calling thread those of the blocks; with few items, each is a
    /// block. A panic of the combining function on a worker is an error as one of the task is; on the calling thread, it
    /// continues in the caller.
    pub fn map_reduce<T: Task>(
        &self,
        task: &T,
        items: &[T::Input],
        combine: impl Fn(T::Output, T::Output) -> T::Output + Send + Sync + 'static,
    ) -> Result<Reduced<T::Output>, RunError> {
        self.kept_job(task).map_reduce(items, combine)
    }

    /// Does a task that gives nothing back for every item. Nothing is done twice as long as no device fails; what a
    /// failed one had begun is done again.
    pub fn for_each<T: Task<Output = ()>>(&self, task: &T, items: &[T::Input]) -> Result<Report, RunError> {
        self.kept_job(task).for_each(items)
    }

    /// Does a task for items that come one after another, and gives the results in the same order as they are asked
    /// for: each as soon as it is there, also while the source has no further item yet. So a channel's receiver can be the
    /// source, and what is sent may depend on results. The source is read by a thread of its own, no further ahead than
    /// [`Job::read_ahead`] says. For a source that borrows there is [`Job::map_stream_scoped`].
    ///
    /// ```
    /// # use evener_device::Device;
    /// # use evener_schedule::{Closure, Pool};
    /// let pool = Pool::new([Device::cpu()])?;
    /// let half = Closure::new("half", |&number: &u64| number / 2);
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// sender.send(100)?;
    /// let mut last = 0;
    /// for result in pool.map_stream(&half, receiver.into_iter().take(4))? {
    ///     last = result?;
    ///     sender.send(last).ok(); // the next item is the last result
    /// }
    /// assert_eq!(last, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn map_stream<T, I>(&self, task: &T, items: I) -> Result<MapStream<'static, T>, RunError>
    where
        T: Task,
        I: IntoIterator<Item = T::Input>,
        I::IntoIter: Send + 'static,
    {
        self.kept_job(task).map_stream(items)
    }

    /// The devices that have code for a task. Fails where there are none.
    pub(crate) fn usable<T: Task>(&self, task: &T) -> Result<Vec<Arc<Seat>>, RunError> {
        let seats = &self.inner.seats;
        let usable: Vec<_> = seats.iter().filter(|seat| task.can_use(&seat.device().0)).cloned().collect();
        if usable.is_empty() {
            let devices = seats.iter().map(|seat| seat.id.to_string()).collect::<Vec<_>>().join(", ");
            return Err(RunError::Unable { task: task.name().into(), devices });
        }
        Ok(usable)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}
