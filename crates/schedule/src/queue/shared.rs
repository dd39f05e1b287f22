//! What the threads of a queue share, and the thread that looks after it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    desk::{Desk, Settled},
    handle::{Place, Withdraw},
};
use crate::{
    pool::{Seat, lock},
    run::Time,
    task::Task,
};

/// So often somebody looks around while anything is to be done.
const GLANCE: Duration = Duration::from_millis(10);

type DeskOf<T> = Desk<<T as Task>::Input, <T as Task>::Output>;

/// All that the threads of a queue share.
pub(super) struct Shared<T: Task> {
    pub(super) task: T,
    /// The device of each line.
    pub(super) seats: Vec<Arc<Seat>>,
    start: Instant,
    desk: Mutex<DeskOf<T>>,
    /// Something has changed for the hands of a line.
    pub(super) work: Vec<Condvar>,
    /// Something has changed for whoever looks after the queue.
    news: Condvar,
    /// Nothing is to be done any more.
    quiet: Condvar,
}

impl<T: Task> Shared<T> {
    pub(super) fn new(task: T, seats: Vec<Arc<Seat>>, desk: DeskOf<T>) -> Self {
        let work = seats.iter().map(|_| Condvar::new()).collect();
        let (news, quiet) = (Condvar::new(), Condvar::new());
        Shared { task, seats, start: Instant::now(), desk: Mutex::new(desk), work, news, quiet }
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, DeskOf<T>> {
        lock(&self.desk)
    }

    pub(super) fn now(&self) -> Time {
        self.start.elapsed()
    }

    /// Does something at the desk, and then what follows from it: the balancer is asked if it is time, hands are woken
    /// and hired, and, once the lock is gone, those who wait for a result are told.
    pub(super) fn at_desk<R>(self: &Arc<Self>, act: impl FnOnce(&mut DeskOf<T>, Time) -> R) -> R {
        let mut desk = self.desk();
        let now = self.now();
        let was_idle = desk.outstanding == 0;
        let answer = act(&mut desk, now);
        desk.rebalance_if_due(now);
        self.staff(&mut desk, now);
        let settled = std::mem::take(&mut desk.settled);
        let (is_idle, is_over) = (desk.outstanding == 0, desk.is_over());
        drop(desk);
        if was_idle != is_idle || is_over {
            self.news.notify_all();
        }
        if is_idle {
            self.quiet.notify_all();
        }
        if is_over {
            self.work.iter().for_each(Condvar::notify_all);
        }
        settled.into_iter().for_each(release);
        answer
    }

    /// Sees to it that there is somebody for what is queued.
    fn staff(self: &Arc<Self>, desk: &mut DeskOf<T>, now: Time) {
        for line in 0..self.seats.len() {
            while desk.lines[line].lacks_hands(now) {
                let hand = desk.hire(line);
                let shared = self.clone();
                if let Err(why) = self.seats[line].crew.go(move || shared.live(hand, line)) {
                    desk.no_thread(hand, &why, now);
                }
            }
            let it = &desk.lines[line];
            if it.trust.is_retired() && it.hands > 0 {
                // Its hands are to go.
                self.work[line].notify_all();
            }
            match it.queued() {
                0 => {}
                _ if !it.may_begin(now) => {}
                1 => self.work[line].notify_one(),
                _ => self.work[line].notify_all(),
            }
        }
    }

    /// Looks after the queue until all is done: for what has hung, for devices that are to be tried again, and for
    /// loads that are uneven although nobody submits or finishes anything.
    pub(super) fn look_after(self: &Arc<Self>) {
        loop {
            let desk = self.desk();
            if desk.is_over() {
                return;
            }
            let is_idle = desk.outstanding == 0;
            // Nothing that happens from here on is missed: whoever has news needs the lock to make it.
            match is_idle {
                true => drop(self.news.wait(desk).unwrap_or_else(PoisonError::into_inner)),
                false => drop(self.news.wait_timeout(desk, GLANCE).unwrap_or_else(PoisonError::into_inner)),
            }
            self.at_desk(|desk, now| {
                desk.dismiss_hung(now);
                desk.send_canaries(now);
            });
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
            desk = self.quiet.wait(desk).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T: Task> Withdraw for Shared<T> {
    fn withdraw(self: Arc<Self>, place: Place) -> bool {
        self.at_desk(|desk, _| desk.withdraw(place))
    }
}

/// Lets go of a piece that has its answer, and wakes whoever waits for it. Both run code of the user's, whose panics are
/// nobody else's matter: least of all of those who wait for the pieces after this one.
fn release<I, O>(settled: Settled<I, O>) {
    let Settled { ticket, waker } = settled;
    let woken = catch_unwind(AssertUnwindSafe(|| waker.map(std::task::Waker::wake)));
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(ticket)));
    if woken.is_err() || dropped.is_err() {
        tracing::warn!("a waker, or an item or result that was dropped, panicked");
    }
}
