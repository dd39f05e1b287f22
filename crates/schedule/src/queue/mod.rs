//! A queue: a service to which work is submitted one piece at a time.
//!
//! Pieces wait in one queue, sorted by priority, and the workers of all devices take from it. A worker locks the
//! [dispatcher](self::dispatcher), reports its last batch, gets its next one, and releases the lock. Pieces whose data
//! is on one device wait in that device's own queue. While the queue is busy, a watcher thread starts speculative
//! copies of stragglers, gives up on hung devices, and runs the balancer.
//!
//! Each piece has one ticket, which waits or is in flight. The first result takes the ticket and later ones are
//! dropped, so a piece gets exactly one result.

mod context;
mod device_queue;
mod dispatcher;
mod error;
mod handle;
mod health;
mod statistics;
#[cfg(test)]
mod test;
mod worker;

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Weak},
    task::Poll,
    time::Duration,
};

use evener_device::{DeviceId, affinity::unbound, thread_stack::thread_builder};

use self::{
    context::QueueContext,
    device_queue::DeviceQueue,
    dispatcher::{BatchLimits, Dispatcher, Limits, Refused, SubmitOptions},
    handle::Submitted,
};
pub use self::{
    error::{QueueError, TrySubmitError},
    handle::Handle,
    statistics::{QueueDeviceStatistics, QueueStatistics},
};
use crate::{
    balancer::BalancerSettings,
    contain::{contain, log},
    error::RunError,
    events::stream,
    pool::Pool,
    task::{Task, thread_error},
};

/// The options of a queue to be opened: see [`Pool::queue`].
#[derive(Debug)]
#[must_use = "a queue takes pieces once it is opened"]
pub struct QueueBuilder<T> {
    pool: Pool,
    task: T,
    balancer: BalancerSettings,
    limits: Limits,
    batch: BatchLimits,
    capacity: usize,
}

impl<T: Task> QueueBuilder<T> {
    /// Lets a device take up to `max_batch` pieces at once, as one chunk of its task: one launch instead of many. A
    /// device that finds fewer waits for more until the oldest has waited for `max_delay`, or until the queue is full
    /// or closed. By default each piece runs alone.
    ///
    /// If the task fails on a batch, each of its pieces runs again alone, so that only the faulty piece gets the error.
    pub fn batch(mut self, max_batch: usize, max_delay: Duration) -> Self {
        self.batch = BatchLimits { pieces: max_batch, delay: max_delay };
        self
    }

    /// Sets the maximum number of pieces without a result, by default 65,536. When the queue is full, `submit` waits
    /// and `try_submit` fails.
    pub fn capacity(mut self, pieces: usize) -> Self {
        self.capacity = pieces;
        self
    }

    /// Sets when pieces move away from their [home](Submission::home), and how many.
    pub fn balancer(mut self, settings: BalancerSettings) -> Self {
        self.balancer = settings;
        self
    }

    /// Sets the time limit of a piece. A device that takes longer has hung: it goes into quarantine, and the piece is
    /// retried, on another device if possible.
    ///
    /// With this limit, no other limit applies. Without it, a device that [may hang](Task::may_hang) is declared hung
    /// only once another device has done the same piece in a small fraction of the time, and plain code on the
    /// processor never is. The first piece on a device may compile code, so it may take up to the
    /// [`silence_limit`](Self::silence_limit).
    pub fn piece_limit(mut self, limit: Duration) -> Self {
        self.limits.piece = Some(limit);
        self
    }

    /// Sets how long to wait for a device that [may hang](Task::may_hang) if no other device can show that the piece
    /// takes less: by default 60 seconds, or a hundred times the longest piece so far if that is longer. The device is
    /// then opened again, and the piece is retried once before it fails. Has no effect with a
    /// [`piece_limit`](Self::piece_limit).
    pub fn silence_limit(mut self, limit: Duration) -> Self {
        self.limits.silence = Some(limit);
        self
    }

    /// Sets the maximum time to prepare a device, by default five minutes, because some kernels take long to compile.
    pub fn prepare_limit(mut self, limit: Duration) -> Self {
        self.limits.prepare = limit;
        self
    }

    /// Opens the queue. A device is prepared when it gets its first piece. Fails if the task has no code for any device
    /// of the pool.
    pub fn open(self) -> Result<Queue<T>, RunError> {
        let QueueBuilder { pool, task, balancer, limits, batch, capacity } = self;
        let devices = pool.usable(&task)?;
        let queues = devices.iter().map(|device| {
            let (opened, _) = device.device();
            DeviceQueue::new(device.clone(), device.score, task.workers(&opened), task.may_hang(&opened))
        });
        let dispatcher = Dispatcher::new(queues.collect(), balancer, limits, batch, capacity);
        log!(debug, task = task.name(), devices = devices.len(), "a queue opens");
        let shared = Arc::new(QueueContext::new(task, devices, dispatcher));
        let followed: Weak<QueueContext<T>> = Arc::downgrade(&shared);
        stream().register(followed);
        let queue = Queue { shared };
        let watched = queue.shared.clone();
        let watch = move || {
            // The user's code is contained; after any other panic the watcher goes on.
            while !contain(|| watched.watch()) {}
        };
        let thread = thread_builder("evener-queue".into());
        unbound(|| thread.spawn(watch)).map_err(|why| thread_error(&queue.shared.devices[0].id, &why))?;
        Ok(queue)
    }
}

impl Pool {
    /// A service for one task, to which work is submitted one piece at a time.
    pub fn queue<T: Task>(&self, task: &T) -> QueueBuilder<T> {
        QueueBuilder {
            pool: self.clone(),
            task: task.clone(),
            balancer: BalancerSettings::default(),
            limits: Limits { piece: None, prepare: Duration::from_secs(300), silence: None },
            batch: BatchLimits { pieces: 1, delay: Duration::ZERO },
            capacity: 1 << 16,
        }
    }
}

/// A service for one task: pieces are submitted one at a time, from any thread, and run by the first device of the pool
/// that can take them, higher priorities first. A queue accepts pieces until it is closed or dropped; submitted pieces
/// are still run.
///
/// Every handle gets a result. A piece that fails on one device is run by another; an error of the task affects its own
/// piece only.
///
/// ```
/// use evener_device::Device;
/// use evener_schedule::{Closure, Pool, QueueError};
///
/// let pool = Pool::new([Device::cpu()])?;
/// let square = Closure::new("square", |&number: &u64| number * number);
/// let queue = pool.queue(&square).open()?;
///
/// let three = queue.submit(3)?;
/// let four = queue.submit_with(4, 10)?; // a higher priority than the usual 0
/// assert_eq!(four.wait()?, 16);
/// assert_eq!(three.wait()?, 9);
///
/// queue.close();
/// assert!(matches!(queue.submit(5), Err(QueueError::Closed)));
/// queue.join();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Queue<T: Task> {
    shared: Arc<QueueContext<T>>,
}

impl<T: Task> Queue<T> {
    /// Submits a piece behind the waiting ones. Blocks the thread while the queue is [full](QueueBuilder::capacity).
    pub fn submit(&self, item: T::Input) -> Result<Handle<T::Output>, QueueError> {
        self.piece(item).submit()
    }

    /// Submits a piece with a priority: it begins before pieces with a lower priority, and after earlier ones with the
    /// same. Blocks as [`submit`](Queue::submit) does.
    pub fn submit_with(&self, item: T::Input, priority: i32) -> Result<Handle<T::Output>, QueueError> {
        self.piece(item).priority(priority).submit()
    }

    /// Submits a piece, or returns its item if the queue is full or closed.
    pub fn try_submit(&self, item: T::Input) -> Result<Handle<T::Output>, TrySubmitError<T::Input>> {
        self.piece(item).try_submit()
    }

    /// Returns a piece to be submitted, to set its options.
    pub fn piece(&self, item: T::Input) -> Submission<'_, T> {
        Submission { queue: self, item, options: SubmitOptions::default() }
    }

    fn handle(&self, (answer, key): Submitted<T::Output>) -> Handle<T::Output> {
        let queue: Weak<QueueContext<T>> = Arc::downgrade(&self.shared);
        Handle::new(answer, key, queue)
    }

    /// Accepts no more pieces. Submitted pieces are still run.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Accepts no more pieces, and waits until every piece has its result. If a piece of the same queue calls it, it never
    /// returns: the piece would wait for itself.
    pub fn join(self) {
        self.shared.close();
        self.shared.wait_until_empty();
    }

    /// Returns the queue's statistics.
    pub fn statistics(&self) -> QueueStatistics {
        let dispatcher = self.shared.dispatcher();
        let devices = dispatcher.devices.iter().map(|device| QueueDeviceStatistics {
            device: device.device.id.clone(),
            queued: device.queued(),
            active: device.active,
            done: device.done,
            failed: device.failed,
            copied: device.copied,
            moved_in: device.moved_in,
            moved_out: device.moved_out,
            mean: device.mean.time(),
            is_working: device.health.is_working(),
        });
        QueueStatistics {
            outstanding: dispatcher.outstanding,
            queued: dispatcher.shared_len(),
            balancer: dispatcher.balanced(),
            devices: devices.collect(),
        }
    }
}

impl<T: Task> Drop for Queue<T> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<T: Task> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("task", &self.shared.task.name())
            .field("statistics", &self.statistics())
            .finish()
    }
}

/// A piece to be submitted, with its options: see [`Queue::piece`]. [`submit`](Submission::submit) blocks the thread
/// while the queue is full; awaiting it suspends the task instead, and returns the handle.
///
/// ```
/// # use std::time::Duration;
/// # use evener_device::Device;
/// # use evener_schedule::{Closure, Pool};
/// # let pool = Pool::new([Device::cpu()])?;
/// # let queue = pool.queue(&Closure::new("square", |&number: &u64| number * number)).open()?;
/// # let result = async {
/// let handle = queue.piece(3).priority(10).await?;
/// handle.await
/// # };
/// # drop(result);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a piece is done once it is submitted"]
pub struct Submission<'q, T: Task> {
    queue: &'q Queue<T>,
    item: T::Input,
    options: SubmitOptions,
}

impl<T: Task> Submission<'_, T> {
    /// Sets the priority, by default 0. Higher priorities begin first.
    pub fn priority(mut self, priority: i32) -> Self {
        self.options.priority = priority;
        self
    }

    /// Sets the device that has the piece's data, and the time to move the data to another device. The piece waits for
    /// that device, unless the [balancer](QueueBuilder::balancer) finds that it would wait too long, or the device
    /// fails. A device that is not in the queue is ignored.
    pub fn home(mut self, device: &DeviceId, move_time: Duration) -> Self {
        let index = self.queue.shared.devices.iter().position(|it| it.id == *device);
        self.options.home = index.map(|index| (index, move_time));
        self
    }

    /// Submits the piece, and blocks while the queue is full.
    pub fn submit(self) -> Result<Handle<T::Output>, QueueError> {
        Ok(self.queue.handle(self.queue.shared.submit(self.item, self.options)?))
    }

    /// Submits the piece, or returns its item if the queue is full or closed.
    pub fn try_submit(self) -> Result<Handle<T::Output>, TrySubmitError<T::Input>> {
        let Submission { queue, item, options } = self;
        match queue.shared.with_dispatcher(|dispatcher, now| dispatcher.submit(item, options, now)) {
            Ok(submitted) => Ok(queue.handle(submitted)),
            Err((item, Refused::Full)) => Err(TrySubmitError::Full(item)),
            Err((item, Refused::Closed)) => Err(TrySubmitError::Closed(item)),
        }
    }
}

impl<'q, T: Task> IntoFuture for Submission<'q, T> {
    type Output = Result<Handle<T::Output>, QueueError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'q>>;

    fn into_future(self) -> Self::IntoFuture {
        let Submission { queue, item, options } = self;
        let mut item = Some(item);
        Box::pin(std::future::poll_fn(move |context| {
            let Some(next) = item.take() else { return Poll::Ready(Err(QueueError::Taken)) };
            // Cloning and dropping a waker may run any code, which must not run under the lock.
            let mut waker = Some(context.waker().clone());
            let submitted = queue.shared.with_dispatcher(|dispatcher, now| {
                let submitted = dispatcher.submit(next, options, now);
                let is_full = matches!(submitted, Err((_, Refused::Full)));
                if is_full
                    && !dispatcher.capacity_waiters.iter().any(|known| known.will_wake(context.waker()))
                {
                    dispatcher.capacity_waiters.extend(waker.take());
                }
                submitted
            });
            match submitted {
                Ok(submitted) => Poll::Ready(Ok(queue.handle(submitted))),
                Err((_, Refused::Closed)) => Poll::Ready(Err(QueueError::Closed)),
                Err((refused, Refused::Full)) => {
                    item = Some(refused);
                    Poll::Pending
                }
            }
        }))
    }
}

impl<T: Task> fmt::Debug for Submission<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission").field("options", &self.options).finish_non_exhaustive()
    }
}
