//! A service that work is submitted to one piece at a time.
//!
//! Each device has its own queue, and hands that take from it: threads of the device's crew. A hand takes the lock of the
//! [desk](self::desk), says what became of its piece, is told what comes next, and lets go. One more thread looks after
//! the queue while anything is to be done: it gives up on what has hung, and sees to devices that are to be tried again.
//!
//! There is one ticket for each piece: in a device's queue, or with a hand's entry at the desk. Whoever gives up on a hand
//! takes its ticket, so whatever that hand brings later is nobody's, and a piece has exactly one answer.

mod desk;
mod error;
mod hand;
mod handle;
mod line;
mod shared;
mod statistics;
#[cfg(test)]
mod test;
mod trust;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::Duration,
};

use evener_device::Error;

use self::{desk::Desk, handle::Withdraw, line::Line, shared::Shared};
pub use self::{
    error::QueueError,
    handle::Handle,
    statistics::{QueueDevice, QueueStatistics},
};
use crate::{
    balancer::BalancerSettings,
    error::RunError,
    pool::{Pool, score},
    task::Task,
};

/// A queue that is about to be opened, with its options: see [`Pool::queue`].
#[derive(Debug)]
#[must_use = "a queue takes pieces once it is opened"]
pub struct QueueBuilder<T> {
    pool: Pool,
    task: T,
    balancer: BalancerSettings,
    limit: Option<Duration>,
    prepare_limit: Duration,
}

impl<T: Task> QueueBuilder<T> {
    /// Sets when queued pieces move from one device to another, and how many.
    pub fn balancer(mut self, settings: BalancerSettings) -> Self {
        self.balancer = settings;
        self
    }

    /// A piece that takes longer than this has hung, and is done again elsewhere. Without it the device's own history
    /// tells, for tasks that [may hang](Task::may_hang): eight times its mean, and half a second at least. A device
    /// without a history then has as long as it has to be made ready.
    pub fn piece_limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// A device that takes longer than this to be made ready has hung: five minutes, unless said otherwise, since some
    /// kernels take long to compile.
    pub fn prepare_limit(mut self, limit: Duration) -> Self {
        self.prepare_limit = limit;
        self
    }

    /// Opens the queue. Nothing is made on a device before it gets its first piece. Fails where no device of the pool
    /// has code for the task.
    pub fn open(self) -> Result<Queue<T>, RunError> {
        let QueueBuilder { pool, task, balancer, limit, prepare_limit } = self;
        let seats = pool.usable(&task)?;
        let first = seats[0].id.clone();
        let lines = seats.iter().map(|seat| {
            let (device, _) = seat.device();
            Line::new(seat.clone(), score(&device), task.hands(&device), task.may_hang(&device))
        });
        let desk = Desk::new(lines.collect(), balancer, limit, prepare_limit);
        tracing::debug!(task = task.name(), devices = seats.len(), "a queue opens");
        let shared = Arc::new(Shared::new(task, seats, desk));
        let queue = Queue { shared };
        let looked_after = queue.shared.clone();
        let look_after = move || {
            // It runs nothing of the user's that could panic; if it does all the same, the queue is not left alone.
            while catch_unwind(AssertUnwindSafe(|| looked_after.look_after())).is_err() {}
        };
        std::thread::Builder::new().name("evener-queue".into()).spawn(look_after).map_err(|why| {
            Error::Lost { device: first, operation: "starting a thread".into(), detail: why.to_string() }
        })?;
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
            limit: None,
            prepare_limit: Duration::from_secs(300),
        }
    }
}

/// A service for one task: pieces are submitted one at a time, from any thread, and done by whichever device of the pool
/// will be done with them first. It lives until it is closed or dropped, and what was submitted before is still done.
///
/// Every handle gets an answer. What a device fails to do is done by another; an error of the task itself is the answer
/// of its piece alone.
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
    shared: Arc<Shared<T>>,
}

impl<T: Task> Queue<T> {
    /// Takes a piece, to be done after those that are waiting.
    pub fn submit(&self, item: T::Input) -> Result<Handle<T::Output>, QueueError> {
        self.submit_with(item, 0)
    }

    /// Takes a piece with a priority: on its device it is done before those with a lower one, and after those with the
    /// same that came before it.
    pub fn submit_with(&self, item: T::Input, priority: i32) -> Result<Handle<T::Output>, QueueError> {
        let (answer, place) = self.shared.at_desk(|desk, now| desk.submit(item, priority, now))?;
        let queue: Weak<Shared<T>> = Arc::downgrade(&self.shared);
        let queue: Weak<dyn Withdraw> = queue;
        Ok(Handle::new(answer, place, queue))
    }

    /// Takes no more pieces. What was submitted is still done.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Takes no more pieces, and waits until every piece has its answer.
    pub fn join(self) {
        self.shared.close();
        self.shared.wait_until_quiet();
    }

    /// What the queue has done so far, and what it is doing now.
    pub fn statistics(&self) -> QueueStatistics {
        let desk = self.shared.desk();
        let devices = desk.lines.iter().map(|line| QueueDevice {
            device: line.seat.id.clone(),
            queued: line.queued(),
            active: line.active,
            done: line.done,
            failed: line.failed,
            received: line.received,
            gave: line.gave,
            mean: line.mean.time(),
            working: line.trust.is_working(),
        });
        QueueStatistics {
            outstanding: desk.outstanding,
            balancer: desk.balanced(),
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
