//! The state that the threads of a queue share, and the queue's watcher thread.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Instant,
};

use super::{
    dispatcher::{Dispatcher, Refused, Settled, SubmitOptions, WATCH_INTERVAL},
    error::QueueError,
    handle::{PieceKey, Submitted, Withdraw},
    worker::QueueWorker,
};
use crate::{
    contain::{contain, log},
    events::{Followed, RunEvents},
    executor::{Next, PoolDevice, StateCache, next_owner, run_worker},
    run::Time,
    sync::{lock, wait, wait_timeout},
    task::Task,
};

type DispatcherOf<T> = Dispatcher<<T as Task>::Input, <T as Task>::Output>;

/// The state that the threads of a queue share.
pub(super) struct QueueContext<T: Task> {
    pub(super) task: T,
    /// The device of each of the dispatcher's device queues.
    pub(super) devices: Vec<Arc<PoolDevice>>,
    /// The state that the workers of each device share.
    pub(super) states: StateCache<T::State>,
    /// Identifies the queue to the devices' threads.
    owner: usize,
    start: Instant,
    dispatcher: Mutex<DispatcherOf<T>>,
    /// Notified when the workers of a device have work, or are to end.
    pub(super) worker_wake: Vec<Condvar>,
    /// Notified when the queue becomes idle or busy, for the watcher thread.
    watcher_wake: Condvar,
    /// Notified when every piece has its result.
    all_answered: Condvar,
    /// Notified when the queue has capacity again, or is closed.
    capacity_freed: Condvar,
}

impl<T: Task> QueueContext<T> {
    pub(super) fn new(task: T, devices: Vec<Arc<PoolDevice>>, mut dispatcher: DispatcherOf<T>) -> Self {
        let owner = next_owner();
        dispatcher.events = Some(RunEvents::new(owner as u64, 1, u64::MAX));
        let worker_wake = devices.iter().map(|_| Condvar::new()).collect();
        let (watcher_wake, all_answered, capacity_freed) = (Condvar::new(), Condvar::new(), Condvar::new());
        let (states, start, dispatcher) = (StateCache::default(), Instant::now(), Mutex::new(dispatcher));
        QueueContext {
            task,
            devices,
            states,
            owner,
            start,
            dispatcher,
            worker_wake,
            watcher_wake,
            all_answered,
            capacity_freed,
        }
    }

    pub(super) fn dispatcher(&self) -> MutexGuard<'_, DispatcherOf<T>> {
        lock(&self.dispatcher)
    }

    pub(super) fn now(&self) -> Time {
        self.start.elapsed()
    }

    /// Calls a closure with the dispatcher, and then acts on the outcome: asks the balancer if it is due, wakes and
    /// starts workers and, after releasing the lock, wakes the threads that wait for a result.
    pub(super) fn with_dispatcher<R>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut DispatcherOf<T>, Time) -> R,
    ) -> R {
        let mut dispatcher = self.dispatcher();
        let now = self.now();
        dispatcher.detect_pause(now);
        let (was_idle, was_full) = (dispatcher.is_idle(), dispatcher.outstanding >= dispatcher.capacity);
        let answer = act(&mut dispatcher, now);
        dispatcher.rebalance_if_due(now);
        self.start_workers(&mut dispatcher, now);
        dispatcher.tell_progress(|| self.task.name(), now);
        let settled = std::mem::take(&mut dispatcher.settled);
        let (is_idle, is_empty, is_over) =
            (dispatcher.is_idle(), dispatcher.outstanding == 0, dispatcher.is_over());
        let wakes_submitters = dispatcher.outstanding < dispatcher.capacity || dispatcher.closed;
        let capacity_waiters =
            if wakes_submitters { std::mem::take(&mut dispatcher.capacity_waiters) } else { Vec::new() };
        drop(dispatcher);
        if was_full && wakes_submitters {
            self.capacity_freed.notify_all();
        }
        if was_idle != is_idle || is_over {
            self.watcher_wake.notify_all();
        }
        if is_empty {
            self.all_answered.notify_all();
        }
        if is_over {
            self.worker_wake.iter().for_each(Condvar::notify_all);
        }
        settled.into_iter().for_each(release);
        for waker in capacity_waiters {
            contain(|| waker.wake());
        }
        answer
    }

    /// Wakes workers for the waiting pieces, and starts more if there are too few.
    fn start_workers(self: &Arc<Self>, dispatcher: &mut DispatcherOf<T>, now: Time) {
        while let Some(device) = dispatcher.device_needing_worker(now) {
            let (me, shared) = (dispatcher.add_worker(device), self.clone());
            let begin = move || {
                run_worker(&shared, QueueWorker { me, device, state: None }, Next::Wait { until: None })
            };
            if let Err(why) = self.devices[device].threads.spawn(self.owner, begin) {
                dispatcher.no_thread(me, &why, now);
            }
        }
        for (device, count) in dispatcher.to_wake(now) {
            (0..count).for_each(|_| self.worker_wake[device].notify_one());
        }
        for (device, it) in dispatcher.devices.iter().enumerate() {
            if it.health.is_retired() && it.workers > 0 {
                // The workers of a retired device end.
                self.worker_wake[device].notify_all();
            }
        }
    }

    /// The watcher thread: until the queue is closed and empty, it finds stragglers, devices whose quarantine is over,
    /// and uneven loads.
    pub(super) fn watch(self: &Arc<Self>) {
        loop {
            let mut dispatcher = self.dispatcher();
            if dispatcher.is_over() {
                return;
            }
            // No change is missed from here on: changing the dispatcher needs the lock.
            if dispatcher.is_idle() {
                dispatcher.park();
                drop(wait(&self.watcher_wake, dispatcher));
            } else {
                drop(wait_timeout(&self.watcher_wake, dispatcher, WATCH_INTERVAL));
            }
            self.with_dispatcher(|dispatcher, now| dispatcher.watch(now));
        }
    }

    /// Submits a piece, and waits while the queue is full.
    pub(super) fn submit(
        self: &Arc<Self>,
        mut item: T::Input,
        options: SubmitOptions,
    ) -> Result<Submitted<T::Output>, QueueError> {
        loop {
            match self.with_dispatcher(|dispatcher, now| dispatcher.submit(item, options, now)) {
                Ok(submitted) => return Ok(submitted),
                Err((_, Refused::Closed)) => return Err(QueueError::Closed),
                Err((refused, Refused::Full)) => item = refused,
            }
            let mut dispatcher = self.dispatcher();
            while dispatcher.outstanding >= dispatcher.capacity && !dispatcher.closed {
                dispatcher = wait(&self.capacity_freed, dispatcher);
            }
        }
    }

    /// Accepts no more pieces.
    pub(super) fn close(self: &Arc<Self>) {
        self.with_dispatcher(|dispatcher, _| dispatcher.closed = true);
    }

    /// Waits until every piece has its result.
    pub(super) fn wait_until_empty(&self) {
        let mut dispatcher = self.dispatcher();
        while dispatcher.outstanding > 0 {
            dispatcher = wait(&self.all_answered, dispatcher);
        }
    }
}

impl<T: Task> Followed for QueueContext<T> {
    fn tell_status(&self) {
        let now = self.now();
        self.dispatcher().tell_status(|| self.task.name(), now);
    }
}

impl<T: Task> Withdraw for QueueContext<T> {
    fn withdraw(self: Arc<Self>, key: PieceKey) -> bool {
        self.with_dispatcher(|dispatcher, _| dispatcher.withdraw(key))
    }
}

/// Wakes the task that waits for a piece, and drops the piece, and its result if no handle is left. All of these run
/// the user's code, whose panics must not reach the next pieces.
fn release<I, O>(settled: Settled<I, O>) {
    let Settled { ticket, item, waker } = settled;
    let woken = contain(|| waker.map(std::task::Waker::wake));
    let dropped = [contain(|| drop(item)), contain(|| drop(ticket))];
    if !woken || dropped.contains(&false) {
        log!(warn, "a waker, or an item or result that was dropped, panicked");
    }
}
