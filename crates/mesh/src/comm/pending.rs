//! Started collectives: a thread per communicator runs them in order, while the caller continues.

use std::{
    fmt, mem,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Sender},
    },
    task::{Context, Poll, Waker},
    thread::{self, JoinHandle},
};

use evener_device::affinity::unbound;

use super::error::{CommError, Result};

type QueuedCall = Box<dyn FnOnce() + Send>;

/// The thread that runs the started calls of a communicator in order. The first started call spawns it.
#[derive(Debug)]
pub(super) struct CallThread {
    queue: Sender<QueuedCall>,
    thread: JoinHandle<()>,
}

impl CallThread {
    pub(super) fn begin(name: &str) -> std::io::Result<Self> {
        let (queue, work) = mpsc::channel::<QueuedCall>();
        let thread = thread::Builder::new().name(format!("group {name}"));
        // A call that panics is an error of its handle, and the next calls run.
        let run = move || work.into_iter().for_each(|it| drop(panic::catch_unwind(AssertUnwindSafe(it))));
        // The thread does not inherit the core of a worker of Evener that starts it.
        let thread = unbound(|| thread.spawn(run))?;
        Ok(CallThread { queue, thread })
    }

    pub(super) fn run(&self, work: QueuedCall) {
        // The thread runs until the queue is dropped.
        let _ = self.queue.send(work);
    }
}

impl CallThread {
    /// Runs `last` after all queued calls, and ends the thread. Waits for that, unless the calling thread is the same
    /// thread: it calls wakers, which are the program's code and may drop the last communicator.
    pub(super) fn end_with(self, last: QueuedCall) {
        let CallThread { queue, thread } = self;
        // If the thread has ended, which it does not before this, the call is dropped.
        let _ = queue.send(last);
        drop(queue);
        if thread.thread().id() != thread::current().id() {
            // Bounded: each call ends within its timeout. Panics of calls are caught.
            let _ = thread.join();
        }
    }
}

/// A started collective. It is a [`Future`] for any runtime; [`wait`](PendingCollective::wait) blocks instead. The
/// result returns the buffers that were moved into the call.
///
/// Dropping it does not stop the collective, which other ranks take part in: only the result is lost.
#[must_use = "the result is lost unless it is waited for"]
pub struct PendingCollective<T>(Arc<ResultSlot<T>>);

/// The result that the handle and the thread share.
struct ResultSlot<T> {
    group: Arc<str>,
    state: Mutex<State<T>>,
    ready: Condvar,
}

enum State<T> {
    Waiting(Option<Waker>),
    Ready(Result<T>),
    Taken,
}

impl<T> ResultSlot<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Ignores poisoning: the state is only replaced as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the result, or returns `None` if the call has not ended.
    fn take(&self, state: &mut State<T>) -> Option<Result<T>> {
        match mem::replace(state, State::Taken) {
            State::Ready(result) => Some(result),
            State::Taken => Some(Err(CommError::ResultTaken { group: self.group.to_string() })),
            waiting => {
                *state = waiting;
                None
            }
        }
    }
}

impl<T> PendingCollective<T> {
    /// Waits for the result, which is there within the group's timeout after the earlier calls have ended.
    pub fn wait(self) -> Result<T> {
        let mut state = self.0.state();
        loop {
            match self.0.take(&mut state) {
                Some(result) => return result,
                None => state = self.0.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Returns the result, or the handle if the call has not ended.
    pub fn try_wait(self) -> std::result::Result<Result<T>, Self> {
        let result = self.0.take(&mut self.0.state());
        result.ok_or(self)
    }
}

impl<T> Future for PendingCollective<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state();
        if let Some(result) = self.0.take(&mut state) {
            return Poll::Ready(result);
        }
        // Only the last task that polled is woken. The previous waker is dropped outside the lock, because it is the
        // program's code.
        let before = mem::replace(&mut *state, State::Waiting(Some(context.waker().clone())));
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<T> fmt::Debug for PendingCollective<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingCollective(group `{}`)", self.0.group)
    }
}

/// Sets the result of a [`PendingCollective`]. Dropping it without a result is an error of the handle.
pub(super) struct ResultSender<T>(Arc<ResultSlot<T>>);

impl<T> ResultSender<T> {
    pub(super) fn new(group: &Arc<str>) -> (Self, PendingCollective<T>) {
        let state = Mutex::new(State::Waiting(None));
        let slot = Arc::new(ResultSlot { group: group.clone(), state, ready: Condvar::new() });
        (ResultSender(slot.clone()), PendingCollective(slot))
    }

    pub(super) fn send(&self, result: Result<T>) {
        let mut state = self.0.state();
        let State::Waiting(waker) = &mut *state else { return };
        let waker = waker.take();
        *state = State::Ready(result);
        drop(state);
        self.0.ready.notify_all();
        // A waker is the program's code: if it panics, the thread continues.
        let _ = panic::catch_unwind(AssertUnwindSafe(|| waker.map(Waker::wake)));
    }
}

impl<T> Drop for ResultSender<T> {
    fn drop(&mut self) {
        if matches!(*self.0.state(), State::Waiting(_)) {
            let (group, why) = (self.0.group.to_string(), "the thread that runs started calls failed".into());
            self.send(Err(CommError::Poisoned { group, why }));
        }
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod test {
    use evener_device::Device;

    use super::*;

    fn allowed_cores() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap().to_owned()
    }

    #[test]
    fn started_calls_run_on_all_the_cores_if_a_bound_thread_starts_the_first() {
        let (all, part) = (allowed_cores(), Device::cpu().split(&[1]).unwrap().remove(0));
        let seen = thread::spawn(move || {
            part.bind_thread(0);
            let calls = CallThread::begin("world").unwrap();
            let (send, receive) = mpsc::channel();
            calls.run(Box::new(move || send.send(allowed_cores()).unwrap()));
            receive.recv().unwrap()
        });
        assert_eq!(seen.join().unwrap(), all);
    }
}
