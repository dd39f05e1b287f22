//! The life of a worker: a thread that makes a device ready and does what it is told on it, for a run or a queue.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    contain::{contain, panic_message},
    run::Time,
};

/// What a worker is to do.
pub(crate) enum Next<W> {
    Run(W),
    /// Make its device ready: it is not, or it was opened afresh.
    Prepare,
    /// Wait: there is nothing to do at the moment, or not before then.
    Rest {
        until: Option<Time>,
    },
    /// End: all is done, or another worker has taken its place.
    Go,
}

/// A run or a queue, which tells workers what to do.
pub(crate) trait Employer {
    /// A worker, with what the task has made on its device.
    type Worker;
    type Work;

    fn prepare(&self, worker: &mut Self::Worker) -> Next<Self::Work>;
    fn run(&self, worker: &mut Self::Worker, work: Self::Work) -> Next<Self::Work>;
    fn rest(&self, worker: &mut Self::Worker, until: Option<Time>) -> Next<Self::Work>;
    fn leave(&self, worker: &mut Self::Worker);
    /// A worker has panicked where no user's code should have: while something of the task's was dropped.
    fn fall(&self, worker: &mut Self::Worker, message: String);
}

/// A worker's whole life, whatever it ends with.
pub(crate) fn work<E: Employer>(employer: &E, mut worker: E::Worker, mut next: Next<E::Work>) {
    let life = || loop {
        next = match std::mem::replace(&mut next, Next::Go) {
            Next::Run(work) => employer.run(&mut worker, work),
            Next::Prepare => employer.prepare(&mut worker),
            Next::Rest { until } => employer.rest(&mut worker, until),
            Next::Go => return employer.leave(&mut worker),
        }
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(life)) {
        employer.fall(&mut worker, panic_message(&*panic));
    }
    // What the task has made on the device goes with it, which is the user's code.
    contain(|| drop(worker));
}
