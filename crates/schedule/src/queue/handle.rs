//! A handle on one piece, and the answer that it waits for.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, Weak},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use super::error::QueueError;
use crate::{
    contain::contain,
    sync::{lock, wait, wait_timeout},
};

/// What waits for one piece's result: block on it with [`wait`](Handle::wait), or await it, since it is a future that
/// needs no particular runtime. Dropping it cancels the piece, unless a device has begun with it: see
/// [`detach`](Handle::detach).
#[must_use = "a piece's result, and its error, are only had through its handle"]
pub struct Handle<O> {
    answer: Arc<Answer<O>>,
    place: Place,
    /// Nothing where the piece goes on without its handle.
    queue: Option<Weak<dyn Withdraw>>,
}

/// Where a piece is in the order of its queue: higher priorities first, equals by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) priority: std::cmp::Reverse<i32>,
    pub(super) number: u64,
}

/// What a handle is made of.
pub(super) type Submitted<O> = (Arc<Answer<O>>, Place);

/// Takes pieces out of a queue that no device has begun with.
pub(super) trait Withdraw: Send + Sync {
    /// Says whether the piece was still there.
    fn withdraw(self: Arc<Self>, place: Place) -> bool;
}

impl<O> Handle<O> {
    pub(super) fn new(answer: Arc<Answer<O>>, place: Place, queue: Weak<dyn Withdraw>) -> Self {
        Handle { answer, place, queue: Some(queue) }
    }

    /// Drops the handle and not the piece: it is done, and its result dropped.
    pub fn detach(mut self) {
        self.queue = None;
    }

    /// Waits for the result.
    pub fn wait(self) -> Result<O, QueueError> {
        let mut state = lock(&self.answer.state);
        loop {
            match state.take() {
                Some(result) => return result,
                None => {
                    state.block();
                    state = wait(&self.answer.given, state);
                }
            }
        }
    }

    /// Waits for the result, for so long at most. Where it has not come by then, gives the handle back.
    pub fn wait_timeout(self, limit: Duration) -> Result<Result<O, QueueError>, Handle<O>> {
        let start = Instant::now();
        let mut state = lock(&self.answer.state);
        loop {
            if let Some(result) = state.take() {
                return Ok(result);
            }
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                drop(state);
                return Err(self);
            }
            state.block();
            state = wait_timeout(&self.answer.given, state, left);
        }
    }

    /// Whether there is a result, or an error, so that waiting would not block.
    pub fn is_done(&self) -> bool {
        self.answer.is_given()
    }

    /// Takes the piece out of its queue, unless somebody has begun with it. Says whether it did; the handle then gives
    /// [`QueueError::Cancelled`].
    pub fn cancel(&self) -> bool {
        let queue = self.queue.as_ref().and_then(Weak::upgrade);
        queue.is_some_and(|queue| queue.withdraw(self.place))
    }
}

impl<O> Drop for Handle<O> {
    fn drop(&mut self) {
        if !self.answer.is_given() {
            self.cancel();
        }
    }
}

impl<O> Future for Handle<O> {
    type Output = Result<O, QueueError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.answer.state);
        if let Some(result) = state.take() {
            return Poll::Ready(result);
        }
        // The last one to poll is the one to wake. The waker before it is dropped without the lock.
        let waker = Some(context.waker().clone());
        let before = std::mem::replace(&mut *state, State::Waiting { waker, blocks: false });
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<O> fmt::Debug for Handle<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({}, {})", self.place.number, if self.is_done() { "done" } else { "waiting" })
    }
}

/// What a handle and its piece share.
#[derive(Debug)]
pub(super) struct Answer<O> {
    state: Mutex<State<O>>,
    given: Condvar,
}

impl<O> Answer<O> {
    pub(super) fn is_given(&self) -> bool {
        !matches!(*lock(&self.state), State::Waiting { .. })
    }
}

#[derive(Debug)]
enum State<O> {
    /// With the task to be woken, and whether a thread waits: telling one that does not takes far longer than asking.
    Waiting {
        waker: Option<Waker>,
        blocks: bool,
    },
    Given(Result<O, QueueError>),
    Taken,
}

impl<O> State<O> {
    /// A thread is about to wait.
    fn block(&mut self) {
        if let State::Waiting { blocks, .. } = self {
            *blocks = true;
        }
    }

    /// The answer, once it is there.
    fn take(&mut self) -> Option<Result<O, QueueError>> {
        match std::mem::replace(self, State::Taken) {
            State::Given(result) => Some(result),
            State::Taken => Some(Err(QueueError::Taken)),
            waiting => {
                *self = waiting;
                None
            }
        }
    }
}

/// The duty to answer a handle. It cannot be forgotten: dropping it unfulfilled is an answer too.
#[derive(Debug)]
pub(super) struct Promise<O>(Arc<Answer<O>>);

impl<O> Promise<O> {
    /// A promise, and what its handle waits for.
    pub(super) fn new() -> (Promise<O>, Arc<Answer<O>>) {
        let answer = Arc::new(Answer {
            state: Mutex::new(State::Waiting { waker: None, blocks: false }),
            given: Condvar::new(),
        });
        (Promise(answer.clone()), answer)
    }

    /// Gives the answer, unless one was given before. Whoever is to be woken is woken by the caller, once it holds no
    /// lock: a waker may do anything.
    pub(super) fn keep(&self, result: Result<O, QueueError>) -> Option<Waker> {
        let mut state = lock(&self.0.state);
        let State::Waiting { waker, blocks } = &mut *state else { return None };
        let (waker, blocks) = (waker.take(), *blocks);
        *state = State::Given(result);
        drop(state);
        if blocks {
            self.0.given.notify_all();
        }
        waker
    }
}

impl<O> Drop for Promise<O> {
    fn drop(&mut self) {
        if let Some(waker) = self.keep(Err(QueueError::Abandoned)) {
            contain(|| waker.wake());
        }
    }
}
