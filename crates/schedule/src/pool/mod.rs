//! The pool: devices that share the items of a run.

mod borrowed;
mod builder;
mod execute;
mod history;
mod job;
mod shared_model;
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
use self::{execute::task_key, job::TaskContext, shared_model::SharedModel};
use crate::{
    error::RunError,
    executor::{Control, PoolDevice, ReadAhead},
    report::Report,
    run::Settings,
    strategy::Strategy,
    sync::lock,
    task::{Arrays, KernelTask, Task},
};

/// Cancels runs from any thread: keep a clone, and give one to the job.
#[derive(Debug, Clone, Default)]
pub struct Cancel(pub(crate) Arc<AtomicBool>);

impl Cancel {
    /// Makes a token that is not cancelled.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends every run that has a clone with [`RunError::Cancelled`]: within some milliseconds, or once the current
    /// items of plain code are done.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }
}

/// Devices that share the items of a run. A clone is another handle of the same pool.
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) devices: Vec<Arc<PoolDevice>>,
    options: Options,
    /// What runs keep of the last tasks, the oldest first.
    cached: Mutex<Vec<CachedTask>>,
    pub(crate) model: Arc<SharedModel>,
}

/// What is kept of a task between calls.
#[derive(Debug)]
struct CachedTask {
    type_id: TypeId,
    key: Arc<str>,
    /// A [`TaskContext`] of the task's state type.
    context: Box<dyn Any + Send>,
}

/// Number of tasks whose states are kept between runs.
const MAX_CACHED_TASKS: usize = 8;

/// The defaults of runs, which their job may override.
#[derive(Debug, Clone)]
struct Options {
    strategy: Strategy,
    settings: Settings,
    /// Whether devices that make no difference are left out.
    selects_devices: bool,
    keeps_trace: bool,
    read_ahead: ReadAhead,
    control: Control,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            strategy: Strategy::default(),
            settings: Settings::default(),
            selects_devices: true,
            keeps_trace: false,
            read_ahead: ReadAhead { items: 1 << 16, bytes: 256 << 20 },
            control: Control { cancel: None, deadline: None, prepare_limit: Duration::from_secs(300) },
        }
    }
}

impl Pool {
    /// Makes a pool with other options.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// Makes a pool of all devices of this machine, or those that the variable `EVENER_DEVICES` names.
    pub fn all() -> Result<Pool, RunError> {
        Pool::builder().build()
    }

    /// Makes a pool of these devices. Fails if there are none, or if two of them
    /// [are the same hardware](Device::shares_hardware_with), as the processor and a partition of it are.
    pub fn new<D: Borrow<Device>>(devices: impl IntoIterator<Item = D>) -> Result<Pool, RunError> {
        Pool::builder().devices(devices).build()
    }

    /// The pool's devices.
    pub fn devices(&self) -> Vec<Device> {
        self.inner.devices.iter().map(|device| device.device().0).collect()
    }

    /// Makes a job: one task with its options, which keeps what it has prepared and learned from run to run.
    pub fn job<T: Task>(&self, task: &T) -> Job<'static, T> {
        Job::new(self.clone(), task.clone(), TaskContext::new(self, task_key(task)))
    }

    /// The job of an earlier call with such a task, or a new one. What it learns, and its states if the task can use
    /// them, are kept for the next call.
    fn cached_job<T: Task>(&self, task: &T) -> Job<'static, T> {
        let (type_id, key, state_id) = (TypeId::of::<T>(), task_key(task), task.state_id());
        let mut cached = lock(&self.inner.cached);
        let index = cached.iter().position(|it| it.type_id == type_id && it.key == key);
        let known =
            index.and_then(|index| cached.remove(index).context.downcast::<TaskContext<T::State>>().ok());
        let mut context = known.map_or_else(|| TaskContext::new(self, key.clone()), |known| *known);
        let can_reuse = state_id.is_some() && context.state_id == state_id;
        let unusable_states = (!can_reuse).then(|| std::mem::take(&mut context.states));
        context.state_id = state_id;
        let mut own = context.clone();
        if state_id.is_none() {
            own.states = Arc::default();
        }
        let outdated = (cached.len() >= MAX_CACHED_TASKS).then(|| cached.remove(0));
        cached.push(CachedTask { type_id, key, context: Box::new(context) });
        drop(cached);
        // Dropping a task's states may take long.
        drop((unusable_states, outdated));
        Job::new(self.clone(), task.clone(), own)
    }

    /// Drops the compiled kernels and memory that runs keep for the next run of the same task.
    /// What was learned stays. Workers that have just ended a run drop theirs later: some memory may be freed a few
    /// milliseconds after this returns.
    pub fn release(&self) {
        let cached = std::mem::take(&mut *lock(&self.inner.cached));
        drop(cached);
    }

    /// Runs a task on every item, on all devices, and returns the results in order. Calls with one task learn from each
    /// other as the runs of a [`Job`] do; the states of the last few tasks are kept until [`Pool::release`].
    pub fn map<T: Task>(&self, task: &T, items: &[T::Input]) -> Result<Mapped<T::Output>, RunError> {
        self.cached_job(task).map(items)
    }

    /// As [`Pool::map`], with the results written to a slice. Fails if it is not as long as the items. After an error,
    /// the slice holds any mixture of old values and results.
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
        self.cached_job(task).map_into(items, results)
    }

    /// Runs a kernel with several inputs and outputs over slices, on all devices, as [`Pool::map`] runs a task over
    /// items. The results are written to the outputs. Fails before any device is used if the number, types or lengths
    /// of the arrays do not match the task.
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
        self.cached_job(task).map_arrays(arrays)
    }

    /// Runs a task on every item and combines the results, in an order that depends on their number only:
    /// floating-point sums are the same to the last bit, whichever device did which items. Returns `None` as the value
    /// without items.
    ///
    /// Up to 16,384 items are combined by the calling thread, after the run. More items are divided into at most as many
    /// blocks of equal size: the run combines the results within each block, and the calling thread those of the blocks. If
    /// the combining function panics within a block, the call returns [`RunError::Task`], as after a panic of the task. If
    /// it panics on the calling thread after the run, the panic continues in the caller.
    pub fn map_reduce<T: Task>(
        &self,
        task: &T,
        items: &[T::Input],
        combine: impl Fn(T::Output, T::Output) -> T::Output + Send + Sync + 'static,
    ) -> Result<Reduced<T::Output>, RunError> {
        self.cached_job(task).map_reduce(items, combine)
    }

    /// Runs a task without results on every item. No item runs twice unless a device fails, whose unfinished items run
    /// again.
    pub fn for_each<T: Task<Output = ()>>(&self, task: &T, items: &[T::Input]) -> Result<Report, RunError> {
        self.cached_job(task).for_each(items)
    }

    /// Runs a task on the items of an iterator, and returns the results in order, each as soon as it is ready, even
    /// while the source has no further item yet. So a channel's receiver can be the source, and later items may depend
    /// on results. A separate thread reads the source, no further ahead than [`Job::read_ahead`] says. For a source
    /// that borrows there is [`Job::map_stream_scoped`].
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
        self.cached_job(task).map_stream(items)
    }

    /// The devices that a task has code for. Fails if there are none.
    pub(crate) fn usable<T: Task>(&self, task: &T) -> Result<Vec<Arc<PoolDevice>>, RunError> {
        let devices = &self.inner.devices;
        let usable: Vec<_> =
            devices.iter().filter(|device| task.can_use(&device.device().0)).cloned().collect();
        if usable.is_empty() {
            let devices = devices.iter().map(|device| device.id.to_string()).collect::<Vec<_>>().join(", ");
            return Err(RunError::NoUsableDevice { task: task.name().into(), devices });
        }
        Ok(usable)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}
