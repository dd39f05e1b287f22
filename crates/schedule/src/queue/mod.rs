//! A service that work is submitted to one piece at a time.
//!
//! Each device has its own queue, and workers that take from it: threads of the device's crew. A worker takes the lock of
//! the [desk](self::desk), which dispatches the pieces, says what became of its piece, is told what comes next, and
//! releases the lock. One more thread looks after the queue while it is busy: it has late pieces done elsewhere as well,
//! gives up on devices that have hung, and tries devices again whose quarantine is over.
//!
//! There is one ticket for each piece: in a device's queue, or in flight. The first result takes the ticket, so whatever
//! another worker brings later is dropped, and a piece has exactly one answer.

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
    sync::{Arc, Weak},
    time::Duration,
};

use evener_device::Error;

use self::{
    desk::{Desk, Limits},
    handle::Withdraw,
    line::Line,
    shared::Shared,
};
pub use self::{
    error::QueueError,
    handle::Handle,
    statistics::{QueueDevice, QueueStatistics},
};
use crate::{
    balancer::BalancerSettings,
    contain::{contain, log},
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
    limits: Limits,
}

impl<T: Task> QueueBuilder<T> {
    /// Sets when queued pieces move from one device to another, and how many.
    pub fn balancer(mut self, settings: BalancerSettings) -> Self {
        self.balancer = settings;
        self
    }

    /// Sets how long a piece may take. A device that takes longer has hung: it is left alone for a while, and the piece is
    /// done again, elsewhere if possible.
    ///
    /// With a limit of your own, no other limit counts. Without one, a piece may take as long as it takes: a device that
    /// [may hang](Task::may_hang) is said to have hung only once another device has done the same piece in a small part
    /// of the time, and plain code on the processor never is. The first piece that a device does may take longer, up to
    /// the [`silence_limit`](Self::silence_limit), since it may compile code.
    pub fn piece_limit(mut self, limit: Duration) -> Self {
        self.limits.piece = Some(limit);
        self
    }

    /// Sets how long a device that [may hang](Task::may_hang) is waited for where no other device can show that the piece
    /// takes less: by default 60 seconds, or a hundred times the longest piece so far if that is longer. The device is
    /// then opened afresh and the piece tried once more, before it fails. Has no effect beside a
    /// [`piece_limit`](Self::piece_limit).
    pub fn silence_limit(mut self, limit: Duration) -> Self {
        self.limits.silence = Some(limit);
        self
    }

    /// Sets how long a device may take to be made ready: five minutes, unless said otherwise, since some kernels take
    /// long to compile.
    pub fn prepare_limit(mut self, limit: Duration) -> Self {
        self.limits.prepare = limit;
        self
    }

    /// Opens the queue. Nothing is made on a device before it gets its first piece. Fails where no device of the pool
    /// has code for the task.
    pub fn open(self) -> Result<Queue<T>, RunError> {
        let QueueBuilder { pool, task, balancer, limits } = self;
        let seats = pool.usable(&task)?;
        let first = seats[0].id.clone();
        let lines = seats.iter().map(|seat| {
            let (device, _) = seat.device();
            Line::new(seat.clone(), score(&device), task.hands(&device), task.may_hang(&device))
        });
        let desk = Desk::new(lines.collect(), balancer, limits);
        log!(debug, task = task.name(), devices = seats.len(), "a queue opens");
        let shared = Arc::new(Shared::new(task, seats, desk));
        let queue = Queue { shared };
        let looked_after = queue.shared.clone();
        let look_after = move || {
            // The user's code is contained; if anything panics all the same, the queue is not left alone.
            while !contain(|| looked_after.look_after()) {}
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
            limits: Limits { piece: None, prepare: Duration::from_secs(300), silence: None },
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
            copied: line.copied,
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
