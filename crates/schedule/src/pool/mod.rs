//! The pool: the devices that work together, and the ways to put them to work.

mod borrowed;
mod chooser;
mod execute;
mod job;
mod memory;
mod seat;
mod statistics;
mod stream;

use std::{
    borrow::Borrow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use evener_device::{Device, Inventory};

use self::chooser::Chooser;
pub use self::{
    job::{Job, Mapped, Reduced},
    statistics::DeviceStatistics,
    stream::MapStream,
};
pub(crate) use self::{
    seat::{Kept, Seat, Shelf, lock},
    statistics::score,
};
use crate::{error::RunError, report::Report, run::Settings, strategy::Strategy, task::Task};

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
    options: Mutex<Options>,
    pub(crate) chooser: Chooser,
}

/// What runs begin with, unless their job says otherwise.
#[derive(Debug, Clone, Copy, Default)]
struct Options {
    strategy: Strategy,
    settings: Settings,
}

impl Pool {
    /// All devices of this machine, or those that the variable `EVENER_DEVICES` names.
    pub fn all() -> Result<Pool, RunError> {
        Pool::new(Inventory::discover().select_or_default(None)?)
    }

    /// These devices.
    pub fn new<D: Borrow<Device>>(devices: impl IntoIterator<Item = D>) -> Result<Pool, RunError> {
        let devices = devices.into_iter().enumerate();
        let seats: Vec<Arc<Seat>> =
            devices.map(|(index, device)| Arc::new(Seat::new(index, device.borrow().clone()))).collect();
        if seats.is_empty() {
            return Err(RunError::NoDevices);
        }
        let inner = Inner { seats, options: Mutex::default(), chooser: Chooser::default() };
        Ok(Pool { inner: Arc::new(inner) })
    }

    /// Its devices.
    pub fn devices(&self) -> Vec<Device> {
        self.inner.seats.iter().map(|seat| seat.device().0).collect()
    }

    /// Sets how items are shared out from the next run on.
    pub fn set_strategy(&self, strategy: Strategy) {
        lock(&self.inner.options).strategy = strategy;
    }

    /// Sets what can be tuned, from the next run on.
    pub fn set_settings(&self, settings: Settings) {
        lock(&self.inner.options).settings = settings;
    }

    /// Work of one kind for this pool, with its options. What it makes on the devices is kept from run to run.
    pub fn job<T: Task>(&self, task: &T) -> Job<'static, T> {
        let Options { strategy, settings } = *lock(&self.inner.options);
        Job::new(self.clone(), task.clone(), strategy, settings)
    }

    /// Does a task for every item, on all devices, and gives the results in the items' order.
    pub fn map<T: Task>(&self, task: &T, items: &[T::Input]) -> Result<Mapped<T::Output>, RunError> {
        self.job(task).map(items)
    }

    /// Does a task for every item and combines the results, in an order that depends on their number alone: whoever
    /// did what, floating-point sums come out the same to the last bit. Nothing comes of no items.
    pub fn map_reduce<T: Task>(
        &self,
        task: &T,
        items: &[T::Input],
        combine: impl Fn(T::Output, T::Output) -> T::Output + Send + Sync + 'static,
    ) -> Result<Reduced<T::Output>, RunError> {
        self.job(task).map_reduce(items, combine)
    }

    /// Does a task that gives nothing back for every item. Nothing is done twice as long as no device fails; what a
    /// failed one had begun is done again.
    pub fn for_each<T: Task<Output = ()>>(&self, task: &T, items: &[T::Input]) -> Result<Report, RunError> {
        self.job(task).for_each(items)
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
    pub fn map_stream<T, I>(&self, task: &T, items: I) -> Result<MapStream<T>, RunError>
    where
        T: Task,
        I: IntoIterator<Item = T::Input>,
        I::IntoIter: Send + 'static,
    {
        self.job(task).map_stream(items)
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
