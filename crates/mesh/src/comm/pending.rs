//! Collectives under way: a thread of the group's own runs them, one after another, while the caller goes on.

use std::{
    fmt,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread::{self, JoinHandle},
};

use super::error::{CommError, Result};

/// What runs on the thread.
type Work = Box<dyn FnOnce() + Send>;

/// The thread that runs a group's calls in the order in which they were started. It begins with the first.
#[derive(Debug)]
pub(super) struct Worker {
    queue: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn begin(name: &str) -> std::io::Result<Self> {
        let (queue, work) = mpsc::channel::<Work>();
        let thread = thread::Builder::new()
            .name(format!("group {name}"))
            .spawn(move || work.into_iter().for_each(|it| it()))?;
        Ok(Worker { queue: Some(queue), thread: Some(thread) })
    }

    pub(super) fn run(&self, work: Work) {
        if let Some(queue) = &self.queue {
            // The thread takes work until the queue is dropped.
            let _ = queue.send(work);
        }
    }
}

impl Drop for Worker {
    // Each call ends within its timeout, so this does too.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A collective under way. The buffers that were given to it come back when it has ended.
///
/// Dropping it does not stop the collective, of which this rank is a part: it goes on, and its result is lost.
#[must_use = "the result is lost unless it is waited for"]
pub struct Pending<T> {
    result: Receiver<Result<T>>,
    group: Arc<str>,
}

impl<T> Pending<T> {
    pub(super) fn new(group: &Arc<str>) -> (Sender<Result<T>>, Self) {
        let (sender, result) = mpsc::channel();
        (sender, Pending { result, group: group.clone() })
    }

    /// Waits until it has ended, which it does within the group's timeout once those started before it have.
    pub fn wait(self) -> Result<T> {
        self.result.recv().unwrap_or_else(|_| Err(self.lost()))
    }

    /// The result where it has ended; otherwise the handle again.
    pub fn try_wait(self) -> std::result::Result<Result<T>, Self> {
        match self.result.try_recv() {
            Ok(result) => Ok(result),
            Err(TryRecvError::Empty) => Err(self),
            Err(TryRecvError::Disconnected) => Ok(Err(self.lost())),
        }
    }

    fn lost(&self) -> CommError {
        let why = "its thread ended".into();
        CommError::Poisoned { group: self.group.to_string(), why }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending(group `{}`)", self.group)
    }
}
