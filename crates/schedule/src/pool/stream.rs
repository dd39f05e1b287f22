//! A task over items that come one after another.

use std::{
    collections::VecDeque,
    fmt,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex},
    thread::Builder,
    time::Duration,
};

use evener_device::affinity::unbound;

use super::{execute::Lanes, job::Job, memory::Selection};
use crate::{
    account::Account,
    error::RunError,
    executor::{Control, Shared, Stream, Window},
    run::{Outcome, Run},
    sync::{lock, wait_timeout},
    task::{Task, no_thread},
};

/// The results of a task over items that come one after another, in their order.
///
/// A thread of its own takes the items from their source, no further ahead of the results that were asked for than
/// [`Job::read_ahead`](crate::Job::read_ahead) says: a slow consumer slows the source down, and memory is bounded. An
/// error is the last thing that it gives. A panic of the source goes on in [`next`](Iterator::next), after the results
/// of the items before it.
pub struct MapStream<'scope, T: Task> {
    shared: Arc<Shared<T, Stream<T>>>,
    control: Control,
    /// Results that were given, and those of them that the window does not know of.
    given: u64,
    unreleased: usize,
    release_every: usize,
    ready: VecDeque<T::Output>,
    ended: bool,
    /// The thread that reads the source ends with the scope, which waits for it.
    scope: PhantomData<&'scope ()>,
}

impl<T: Task> MapStream<'_, T> {
    /// Begins to work on the items of a source, which is read by a thread that is started so.
    pub(super) fn begin<'s>(
        job: &Job<'_, T>,
        source: impl Iterator<Item = T::Input> + Send + 's,
        start: impl FnOnce(Builder, Box<dyn FnOnce() + Send + 's>) -> std::io::Result<()>,
    ) -> Result<Self, RunError> {
        let Selection { seats, .. } = job.select(None, 0)?;
        let Lanes { seats, specs, .. } = job.lanes(&seats, u64::MAX, 1);
        let hands: Vec<usize> = specs.iter().map(|spec| spec.depth).collect();
        let shared = Arc::new(Shared::new(
            job.task.clone(),
            Run::open(&specs, job.options.settings),
            Account::new(specs.len(), false),
            seats,
            Stream { window: Window::new(job.options.read_ahead), results: Mutex::default() },
            None,
            (1, u64::MAX),
            job.common.shelf.clone(),
        ));
        shared.begin(&hands);
        let stream = MapStream {
            shared: shared.clone(),
            control: job.options.control.clone(),
            given: 0,
            unreleased: 0,
            // Whatever the bytes: a few large items are released one by one.
            release_every: (job.options.read_ahead.items / 64).clamp(1, 64),
            ready: VecDeque::new(),
            ended: false,
            scope: PhantomData,
        };
        let thread = Builder::new().name("evener-stream".into());
        unbound(|| start(thread, Box::new(move || read(&shared, source))))
            .map_err(|why| no_thread(&stream.shared.seats[0].id, &why))?;
        Ok(stream)
    }

    fn window(&self) -> &Window<T::Input> {
        &self.shared.ends.window
    }

    /// Moves results that are next in order to where they are given from. Says whether there were any.
    fn take_results(&mut self) -> bool {
        let next = self.given + self.ready.len() as u64;
        let Some(results) = lock(&self.shared.ends.results).remove(&next) else { return false };
        self.ready.extend(results);
        self.window().forget(self.given + self.ready.len() as u64);
        true
    }

    /// Tells the window which results were given, so that the source is read on.
    fn release(&mut self) {
        let items = std::mem::take(&mut self.unreleased);
        if items > 0 {
            self.window().release(items);
        }
    }

    /// Whether it is to end although there is more to give: looked at before every result, since a slow consumer may
    /// never find that there is nothing to give. What has come to its end is given.
    fn is_over(&self) -> bool {
        self.control.stopped(|| self.shared.now()).is_some()
            && self.shared.core().run.outcome() != Some(&Outcome::Complete)
    }
}

/// Takes items from their source until it ends, or the stream does.
fn read<T: Task>(shared: &Shared<T, Stream<T>>, source: impl Iterator<Item = T::Input>) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for item in source {
            let bytes = shared.task.item_bytes(&item);
            if !shared.arrive(item, bytes) {
                break;
            }
        }
    }));
    shared.source_ended(outcome.err());
}

impl<T: Task> Iterator for MapStream<'_, T> {
    type Item = Result<T::Output, RunError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // An error is the last thing that it gives, whatever comes after it.
            if self.ended {
                return None;
            }
            if !self.is_over() {
                if let Some(result) = self.ready.pop_front() {
                    self.given += 1;
                    self.unreleased += 1;
                    if self.unreleased >= self.release_every || self.ready.is_empty() {
                        self.release();
                    }
                    return Some(Ok(result));
                }
                if self.take_results() {
                    continue;
                }
            }
            let shared = self.shared.clone();
            let mut core = shared.core();
            let arrived = self.window().arrived();
            let stopped = shared.glance(&mut core, &self.control, &Vec::new);
            match shared.ending(&mut core, stopped, arrived) {
                // The last results may have come since they were looked for.
                Some(Ok(())) if self.given < arrived => {
                    drop(core);
                    std::thread::yield_now();
                }
                Some(outcome) => {
                    drop(core);
                    self.ended = true;
                    if let Err(error) = outcome {
                        self.window().stop();
                        return Some(Err(error));
                    }
                    if let Some(panic) = self.window().take_panic() {
                        resume_unwind(panic);
                    }
                }
                // Results that come from here on are told with the lock.
                None if lock(&self.shared.ends.results).contains_key(&self.given) => {}
                None => drop(wait_timeout(&shared.news, core, Duration::from_millis(10))),
            }
        }
    }
}

impl<T: Task> Drop for MapStream<'_, T> {
    fn drop(&mut self) {
        self.shared.stop();
        self.window().stop();
    }
}

impl<T: Task> fmt::Debug for MapStream<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapStream").field("given", &self.given).finish_non_exhaustive()
    }
}
