//! The loop of a worker: a thread that prepares a device and runs work on it, for a run or a queue.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    contain::{contain, panic_message},
    run::Time,
};

/// What a worker does next.
pub(crate) enum Next<W> {
    Run(W),
    /// Prepare the device: it was not prepared yet, or it was reopened.
    Prepare,
    /// Wait: there is nothing to do, or not before this time.
    Wait {
        until: Option<Time>,
    },
    /// Exit: all is done, or another worker has taken this one's place.
    Exit,
}

/// A run or a queue, which tells its workers what to do next.
pub(crate) trait WorkSource {
    /// A worker, with the task's state on its device.
    type Worker;
    type Work;

    fn prepare(&self, worker: &mut Self::Worker) -> Next<Self::Work>;
    fn run(&self, worker: &mut Self::Worker, work: Self::Work) -> Next<Self::Work>;
    fn wait(&self, worker: &mut Self::Worker, until: Option<Time>) -> Next<Self::Work>;
    fn exit(&self, worker: &mut Self::Worker);
    /// The worker panicked outside the calls that catch panics: while a value of the task was dropped.
    fn panicked(&self, worker: &mut Self::Worker, message: String);
}

/// Runs a worker until it exits or panics.
pub(crate) fn run_worker<S: WorkSource>(source: &S, mut worker: S::Worker, mut next: Next<S::Work>) {
    let until_exit = || loop {
        next = match std::mem::replace(&mut next, Next::Exit) {
            Next::Run(work) => source.run(&mut worker, work),
            Next::Prepare => source.prepare(&mut worker),
            Next::Wait { until } => source.wait(&mut worker, until),
            Next::Exit => return source.exit(&mut worker),
        }
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(until_exit)) {
        source.panicked(&mut worker, panic_message(&*panic));
    }
    // Dropping the task's state runs the user's code.
    contain(|| drop(worker));
}
