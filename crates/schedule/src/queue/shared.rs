//! What the threads of a queue share, and the thread that looks after it.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Instant,
};

use super::{
    desk::{Desk, GLANCE, Refused, Settled, Wishes},
    error::QueueError,
    hand::Worker,
    handle::{Place, Submitted, Withdraw},
};
use crate::{
    contain::{contain, log},
    executor::{Next, PoolDevice, StateCache, run_worker},
    run::Time,
    sync::{lock, wait, wait_timeout},
    task::Task,
};

type DeskOf<T> = Desk<<T as Task>::Input, <T as Task>::Output>;

/// All that the threads of a queue share.
pub(super) struct Shared<T: Task> {
    pub(super) task: T,
    /// The device of each line.
    pub(super) seats: Vec<Arc<PoolDevice>>,
    /// What the workers of each device have in common.
    pub(super) shelf: StateCache<T::State>,
    start: Instant,
    desk: Mutex<DeskOf<T>>,
    /// Something has changed for the workers of a line.
    pub(super) work: Vec<Condvar>,
    /// The queue is idle no more, or again: something has changed for the look-after thread.
    news: Condvar,
    /// Every piece has its answer.
    quiet: Condvar,
    /// There is room for a piece, or none is taken any more.
    room: Condvar,
}

impl<T: Task> Shared<T> {
    pub(super) fn new(task: T, seats: Vec<Arc<PoolDevice>>, desk: DeskOf<T>) -> Self {
        let work = seats.iter().map(|_| Condvar::new()).collect();
        let (news, quiet, room) = (Condvar::new(), Condvar::new(), Condvar::new());
        let (shelf, start, desk) = (StateCache::default(), Instant::now(), Mutex::new(desk));
        Shared { task, seats, shelf, start, desk, work, news, quiet, room }
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, DeskOf<T>> {
        lock(&self.desk)
    }

    pub(super) fn now(&self) -> Time {
        self.start.elapsed()
    }

    /// Does something at the desk, and then what follows from it: the balancer is asked if it is time, workers are woken
    /// and started, and, once the lock is released, the threads that wait for a result are woken.
    pub(super) fn at_desk<R>(self: &Arc<Self>, act: impl FnOnce(&mut DeskOf<T>, Time) -> R) -> R {
        let mut desk = self.desk();
        let now = self.now();
        desk.notice_pause(now);
        let (was_idle, was_full) = (desk.is_idle(), desk.outstanding >= desk.capacity);
        let answer = act(&mut desk, now);
        desk.rebalance_if_due(now);
        self.staff(&mut desk, now);
        let settled = std::mem::take(&mut desk.settled);
        let (is_idle, is_quiet, is_over) = (desk.is_idle(), desk.outstanding == 0, desk.is_over());
        let has_room = desk.outstanding < desk.capacity || desk.closed;
        let wants_room = if has_room { std::mem::take(&mut desk.wants_room) } else { Vec::new() };
        drop(desk);
        if was_full && has_room {
            self.room.notify_all();
        }
        if was_idle != is_idle || is_over {
            self.news.notify_all();
        }
        if is_quiet {
            self.quiet.notify_all();
        }
        if is_over {
            self.work.iter().for_each(Condvar::notify_all);
        }
        settled.into_iter().for_each(release);
        for waker in wants_room {
            contain(|| waker.wake());
        }
        answer
    }

    /// Wakes workers for the pieces that wait, and starts more where there are too few.
    fn staff(self: &Arc<Self>, desk: &mut DeskOf<T>, now: Time) {
        while let Some(line) = desk.understaffed(now) {
            let (me, shared) = (desk.hire(line), self.clone());
            let begin =
                move || run_worker(&shared, Worker { me, line, state: None }, Next::Wait { until: None });
            if let Err(why) = self.seats[line].threads.spawn(begin) {
                desk.no_thread(me, &why, now);
            }
        }
        for (line, count) in desk.to_wake(now) {
            (0..count).for_each(|_| self.work[line].notify_one());
        }
        for (line, it) in desk.lines.iter().enumerate() {
            if it.trust.is_retired() && it.hands > 0 {
                // Its workers are to end.
                self.work[line].notify_all();
            }
        }
    }

    /// Looks after the queue until all is done: late pieces, devices whose quarantine is over, and loads that are uneven
    /// although nothing is submitted or finished.
    pub(super) fn look_after(self: &Arc<Self>) {
        loop {
            let mut desk = self.desk();
            if desk.is_over() {
                return;
            }
            // Nothing that happens from here on is missed: changing the desk needs the lock.
            if desk.is_idle() {
                desk.sleep();
                drop(wait(&self.news, desk));
            } else {
                drop(wait_timeout(&self.news, desk, GLANCE));
            }
            self.at_desk(|desk, now| desk.look_after(now));
        }
    }

    /// Takes a piece, once there is room for it.
    pub(super) fn submit(
        self: &Arc<Self>,
        mut item: T::Input,
        wishes: Wishes,
    ) -> Result<Submitted<T::Output>, QueueError> {
        loop {
            match self.at_desk(|desk, now| desk.submit(item, wishes, now)) {
                Ok(submitted) => return Ok(submitted),
                Err((_, Refused::Closed)) => return Err(QueueError::Closed),
                Err((refused, Refused::Full)) => item = refused,
            }
            let mut desk = self.desk();
            while desk.outstanding >= desk.capacity && !desk.closed {
                desk = wait(&self.room, desk);
            }
        }
    }

    /// Takes no more pieces.
    pub(super) fn close(self: &Arc<Self>) {
        self.at_desk(|desk, _| desk.closed = true);
    }

    /// Waits until nothing is to be done.
    pub(super) fn wait_until_quiet(&self) {
        let mut desk = self.desk();
        while desk.outstanding > 0 {
            desk = wait(&self.quiet, desk);
        }
    }
}

impl<T: Task> Withdraw for Shared<T> {
    fn withdraw(self: Arc<Self>, place: Place) -> bool {
        self.at_desk(|desk, _| desk.withdraw(place))
    }
}

/// Wakes the task that waits for a piece, and drops the piece, and its result where no handle is left. All of them run
/// code of the user's, whose panics must not reach the pieces after this one.
fn release<I, O>(settled: Settled<I, O>) {
    let Settled { ticket, item, waker } = settled;
    let woken = contain(|| waker.map(std::task::Waker::wake));
    let dropped = [contain(|| drop(item)), contain(|| drop(ticket))];
    if !woken || dropped.contains(&false) {
        log!(warn, "a waker, or an item or result that was dropped, panicked");
    }
}
