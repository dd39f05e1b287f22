//! The handle of one piece, and the result that it waits for.

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

/// A piece's result to come: block on it with [`wait`](Handle::wait), or await it in any async runtime. Dropping it
/// cancels the piece, unless a device has begun the piece: see [`detach`](Handle::detach).
#[must_use = "a piece's result, and its error, are only had through its handle"]
pub struct Handle<O> {
    pending: Arc<PendingResult<O>>,
    key: PieceKey,
    /// `None` if dropping the handle does not cancel the piece.
    queue: Option<Weak<dyn Withdraw>>,
}

/// A piece's position in its queue: higher priorities first, equal ones by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PieceKey {
    pub(super) priority: std::cmp::Reverse<i32>,
    pub(super) number: u64,
}

/// The parts of a handle.
pub(super) type Submitted<O> = (Arc<PendingResult<O>>, PieceKey);

/// Removes pieces that no device has begun from a queue.
pub(super) trait Withdraw: Send + Sync {
    /// Returns whether the piece was removed.
    fn withdraw(self: Arc<Self>, key: PieceKey) -> bool;
}

impl<O> Handle<O> {
    pub(super) fn new(pending: Arc<PendingResult<O>>, key: PieceKey, queue: Weak<dyn Withdraw>) -> Self {
        Handle { pending, key, queue: Some(queue) }
    }

    /// Drops the handle without cancelling the piece. The piece's result is dropped.
    pub fn detach(mut self) {
        self.queue = None;
    }

    /// Waits for the result.
    pub fn wait(self) -> Result<O, QueueError> {
        let mut state = lock(&self.pending.state);
        loop {
            match state.take() {
                Some(result) => return result,
                None => {
                    state.block();
                    state = wait(&self.pending.answered, state);
                }
            }
        }
    }

    /// Waits for the result, up to a time limit. Returns the handle if the limit passes.
    pub fn wait_timeout(self, limit: Duration) -> Result<Result<O, QueueError>, Handle<O>> {
        let start = Instant::now();
        let mut state = lock(&self.pending.state);
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
            state = wait_timeout(&self.pending.answered, state, left);
        }
    }

    /// Whether the result or error is ready, so that waiting would not block.
    pub fn is_done(&self) -> bool {
        self.pending.is_ready()
    }

    /// Cancels the piece, unless a device has begun it. Returns whether it was cancelled; the handle's result is then
    /// [`QueueError::Cancelled`].
    pub fn cancel(&self) -> bool {
        let queue = self.queue.as_ref().and_then(Weak::upgrade);
        queue.is_some_and(|queue| queue.withdraw(self.key))
    }
}

impl<O> Drop for Handle<O> {
    fn drop(&mut self) {
        if !self.pending.is_ready() {
            self.cancel();
        }
    }
}

impl<O> Future for Handle<O> {
    type Output = Result<O, QueueError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.pending.state);
        if let Some(result) = state.take() {
            return Poll::Ready(result);
        }
        // The last task that polled is woken. The old waker is dropped without the lock.
        let waker = Some(context.waker().clone());
        let before = std::mem::replace(&mut *state, PieceResult::Waiting { waker, blocks: false });
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<O> fmt::Debug for Handle<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({}, {})", self.key.number, if self.is_done() { "done" } else { "waiting" })
    }
}

/// The state that a handle and its piece share.
#[derive(Debug)]
pub(super) struct PendingResult<O> {
    state: Mutex<PieceResult<O>>,
    answered: Condvar,
}

impl<O> PendingResult<O> {
    pub(super) fn is_ready(&self) -> bool {
        !matches!(*lock(&self.state), PieceResult::Waiting { .. })
    }
}

/// The result of a piece.
#[derive(Debug)]
enum PieceResult<O> {
    /// The piece is not done. With the task to wake, and whether a thread blocks: notifying without need is far slower
    /// than this check.
    Waiting {
        waker: Option<Waker>,
        blocks: bool,
    },
    Ready(Result<O, QueueError>),
    Taken,
}

impl<O> PieceResult<O> {
    /// Records that a thread is about to block.
    fn block(&mut self) {
        if let PieceResult::Waiting { blocks, .. } = self {
            *blocks = true;
        }
    }

    /// Takes the result, if it is ready.
    fn take(&mut self) -> Option<Result<O, QueueError>> {
        match std::mem::replace(self, PieceResult::Taken) {
            PieceResult::Ready(result) => Some(result),
            PieceResult::Taken => Some(Err(QueueError::Taken)),
            waiting => {
                *self = waiting;
                None
            }
        }
    }
}

/// The duty to give a handle its result. Dropping it unfulfilled gives [`QueueError::Abandoned`].
#[derive(Debug)]
pub(super) struct Promise<O>(Arc<PendingResult<O>>);

impl<O> Promise<O> {
    /// Makes a promise and the pending result that its handle waits for.
    pub(super) fn new() -> (Promise<O>, Arc<PendingResult<O>>) {
        let pending = Arc::new(PendingResult {
            state: Mutex::new(PieceResult::Waiting { waker: None, blocks: false }),
            answered: Condvar::new(),
        });
        (Promise(pending.clone()), pending)
    }

    /// Sets the result, unless there is one. The caller wakes the returned waker once it holds no lock, because a waker
    /// may run any code.
    pub(super) fn fulfil(&self, result: Result<O, QueueError>) -> Option<Waker> {
        let mut state = lock(&self.0.state);
        let PieceResult::Waiting { waker, blocks } = &mut *state else { return None };
        let (waker, blocks) = (waker.take(), *blocks);
        *state = PieceResult::Ready(result);
        drop(state);
        if blocks {
            self.0.answered.notify_all();
        }
        waker
    }
}

impl<O> Drop for Promise<O> {
    fn drop(&mut self) {
        if let Some(waker) = self.fulfil(Err(QueueError::Abandoned)) {
            contain(|| waker.wake());
        }
    }
}
