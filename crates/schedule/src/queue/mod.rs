//! A service that work is submitted to one piece at a time.
//!
//! Pieces wait in one queue, by priority, and the workers of every device take from it: threads of the device's crew. A
//! worker takes the lock of the [desk](self::desk), which dispatches the pieces, says what became of its batch, is told
//! what comes next, and releases the lock. Pieces whose data is on one device wait in that device's own queue. One more
//! thread looks after the queue while it is busy: it has late pieces done elsewhere as well, gives up on devices that have
//! hung, and asks the balancer.
//!
//! There is one ticket for each piece: waiting, or in flight. The first result takes the ticket, so whatever another
//! worker brings later is dropped, and a piece has exactly one answer.

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
    pin::Pin,
    sync::{Arc, Weak},
    task::Poll,
    time::Duration,
};

use evener_device::{DeviceId, affinity::unbound};

use self::{
    desk::{Batch, Desk, Limits, Refused, Wishes},
    handle::Submitted,
    line::Line,
    shared::Shared,
};
pub use self::{
    error::{QueueError, TrySubmitError},
    handle::Handle,
    statistics::{QueueDevice, QueueStatistics},
};
use crate::{
    balancer::BalancerSettings,
    contain::{contain, log},
    error::RunError,
    pool::Pool,
    task::{Task, no_thread},
};

/// A queue that is about to be opened, with its options: see [`Pool::queue`].
#[derive(Debug)]
#[must_use = "a queue takes pieces once it is opened"]
pub struct QueueBuilder<T> {
    pool: Pool,
    task: T,
    balancer: BalancerSettings,
    limits: Limits,
    batch: Batch,
    capacity: usize,
}

impl<T: Task> QueueBuilder<T> {
    /// Has a device take up to so many pieces at once, as one chunk of its task: one launch instead of many. A device that
    /// finds fewer waits for more, until the oldest of them has waited for so long; with a delay of zero it takes what is
    /// there, and so it does where the queue is full or closed, so that no more can come. By default each piece is done
    /// alone.
    ///
    /// An error of the task in a batch makes each of its pieces be done again, alone, so that it is the answer of the piece
    /// that it comes from.
    pub fn batch(mut self, max_batch: usize, max_delay: Duration) -> Self {
        self.batch = Batch { pieces: max_batch, delay: max_delay };
        self
    }

    /// Sets how many pieces may be without an answer: submitting more waits, or says that the queue is full. By default
    /// 65,536.
    pub fn capacity(mut self, pieces: usize) -> Self {
        self.capacity = pieces;
        self
    }

    /// Sets when pieces move away from their [home](Submission::home), and how many.
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
        let QueueBuilder { pool, task, balancer, limits, batch, capacity } = self;
        let seats = pool.usable(&task)?;
        let lines = seats.iter().map(|seat| {
            let (device, _) = seat.device();
            Line::new(seat.clone(), seat.score, task.hands(&device), task.may_hang(&device))
        });
        let desk = Desk::new(lines.collect(), balancer, limits, batch, capacity);
        log!(debug, task = task.name(), devices = seats.len(), "a queue opens");
        let shared = Arc::new(Shared::new(task, seats, desk));
        let queue = Queue { shared };
        let looked_after = queue.shared.clone();
        let look_after = move || {
            // The user's code is contained; if anything panics all the same, the queue is not left alone.
            while !contain(|| looked_after.look_after()) {}
        };
        let thread = std::thread::Builder::new().name("evener-queue".into());
        unbound(|| thread.spawn(look_after)).map_err(|why| no_thread(&queue.shared.seats[0].id, &why))?;
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
            batch: Batch { pieces: 1, delay: Duration::ZERO },
            capacity: 1 << 16,
        }
    }
}

/// A service for one task: pieces are submitted one at a time, from any thread, and done by the first device of the pool
/// that can take them, higher priorities first. It lives until it is closed or dropped, and what was submitted before is still done.
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
    /// Takes a piece, to be done after those that are waiting. Blocks the thread while the queue is
    /// [full](QueueBuilder::capacity).
    pub fn submit(&self, item: T::Input) -> Result<Handle<T::Output>, QueueError> {
        self.piece(item).submit()
    }

    /// Takes a piece with a priority: it is begun before those with a lower one, and after those with the same that came
    /// before it. Blocks as [`submit`](Queue::submit) does.
    pub fn submit_with(&self, item: T::Input, priority: i32) -> Result<Handle<T::Output>, QueueError> {
        self.piece(item).priority(priority).submit()
    }

    /// Takes a piece if there is room for it, and otherwise gives it back.
    pub fn try_submit(&self, item: T::Input) -> Result<Handle<T::Output>, TrySubmitError<T::Input>> {
        self.piece(item).try_submit()
    }

    /// A piece that is about to be submitted, with its options.
    pub fn piece(&self, item: T::Input) -> Submission<'_, T> {
        Submission { queue: self, item, wishes: Wishes::default() }
    }

    fn handle(&self, (answer, place): Submitted<T::Output>) -> Handle<T::Output> {
        let queue: Weak<Shared<T>> = Arc::downgrade(&self.shared);
        Handle::new(answer, place, queue)
    }

    /// Takes no more pieces. What was submitted is still done.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Takes no more pieces, and waits until every piece has its answer. Called from within a piece of the same queue, it
    /// never returns: the piece would wait for itself.
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
            queued: desk.shared_len(),
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

/// A piece that is about to be submitted: see [`Queue::piece`]. [`submit`](Submission::submit) blocks the thread while the
/// queue is full; awaiting it does not, and gives the handle once there is room.
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
    wishes: Wishes,
}

impl<T: Task> Submission<'_, T> {
    /// Sets the priority, 0 unless said otherwise: higher ones are begun first.
    pub fn priority(mut self, priority: i32) -> Self {
        self.wishes.priority = priority;
        self
    }

    /// Says that the piece's data is on a device, and how long it would take to bring it to another. The piece waits for
    /// that device, unless the [balancer](QueueBuilder::balancer) finds that it would wait too long there, or the device
    /// fails. A device that is not among the queue's is no home.
    pub fn home(mut self, device: &DeviceId, move_time: Duration) -> Self {
        let line = self.queue.shared.seats.iter().position(|seat| seat.id == *device);
        self.wishes.home = line.map(|line| (line, move_time));
        self
    }

    /// Submits it, once there is room for it.
    pub fn submit(self) -> Result<Handle<T::Output>, QueueError> {
        Ok(self.queue.handle(self.queue.shared.submit(self.item, self.wishes)?))
    }

    /// Submits it if there is room for it, and otherwise gives it back.
    pub fn try_submit(self) -> Result<Handle<T::Output>, TrySubmitError<T::Input>> {
        let Submission { queue, item, wishes } = self;
        match queue.shared.at_desk(|desk, now| desk.submit(item, wishes, now)) {
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
        let Submission { queue, item, wishes } = self;
        let mut item = Some(item);
        Box::pin(std::future::poll_fn(move |context| {
            let Some(next) = item.take() else { return Poll::Ready(Err(QueueError::Taken)) };
            // Cloning and dropping a waker may run any code, which must not run under the lock.
            let mut waker = Some(context.waker().clone());
            let submitted = queue.shared.at_desk(|desk, now| {
                let submitted = desk.submit(next, wishes, now);
                let is_full = matches!(submitted, Err((_, Refused::Full)));
                if is_full && !desk.wants_room.iter().any(|known| known.will_wake(context.waker())) {
                    desk.wants_room.extend(waker.take());
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
        f.debug_struct("Submission").field("wishes", &self.wishes).finish_non_exhaustive()
    }
}
