//! A task over items that come one after another.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, atomic::AtomicBool},
    thread::Builder,
    time::Duration,
};

use evener_device::Error;

use super::{execute::Lanes, job::Job, lock};
use crate::{
    account::Account,
    error::RunError,
    executor::{Control, Feed, Outlet, Shared, Window},
    run::{Outcome, Run},
    task::Task,
};

/// The results of a task over items that come one after another, in their order.
///
/// A thread of its own takes the items from their source, no further ahead of the results that were asked for than
/// [`Job::read_ahead`](crate::Job::read_ahead) says: a slow consumer slows the source down, and memory is bounded. An
/// error is the last thing that it gives. A panic of the source goes on in [`next`](Iterator::next), after the results
/// of the items before it.
pub struct MapStream<'scope, T: Task> {
    shared: Arc<Shared<T>>,
    cancel: Option<Arc<AtomicBool>>,
    deadline: Option<Duration>,
    prepare_limit: Duration,
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
        lanes: Lanes,
        source: impl Iterator<Item = T::Input> + Send + 's,
        start: impl FnOnce(Builder, Box<dyn FnOnce() + Send + 's>) -> std::io::Result<()>,
    ) -> Result<Self, RunError> {
        let Lanes { seats, specs, .. } = lanes;
        let hands: Vec<usize> = specs.iter().map(|spec| spec.depth).collect();
        let shared = Arc::new(Shared::new(
            job.task.clone(),
            Run::open(&specs, job.settings),
            Account::new(specs.len(), false),
            seats,
            Feed::Window(Window::new(job.read_ahead)),
            Outlet::InOrder(Mutex::new(BTreeMap::new())),
            None,
            (1, u64::MAX),
            job.shelf.clone(),
        ));
        shared.begin(&hands);
        let stream = MapStream {
            shared: shared.clone(),
            cancel: job.cancel.as_ref().map(|cancel| cancel.0.clone()),
            deadline: job.deadline,
            prepare_limit: job.prepare_limit,
            given: 0,
            unreleased: 0,
            // Whatever the bytes: a few large items are released one by one.
            release_every: (job.read_ahead.items / 64).clamp(1, 64),
            ready: VecDeque::new(),
            ended: false,
            scope: PhantomData,
        };
        let first = shared.seats[0].id.clone();
        let thread = Builder::new().name("evener-stream".into());
        start(thread, Box::new(move || read(&shared, source))).map_err(|why| Error::Lost {
            device: first,
            operation: "starting a thread".into(),
            detail: why.to_string(),
        })?;
        Ok(stream)
    }

    fn window(&self) -> Option<&Window<T::Input>> {
        match &self.shared.feed {
            Feed::Window(window) => Some(window),
            Feed::Lent(_) => None,
        }
    }

    /// Moves results that are next in order to where they are given from. Says whether there were any.
    fn take_results(&mut self) -> bool {
        let Outlet::InOrder(waiting) = &self.shared.results else { return false };
        let next = self.given + self.ready.len() as u64;
        let Some(results) = lock(waiting).remove(&next) else { return false };
        self.ready.extend(results);
        let until = self.given + self.ready.len() as u64;
        self.window().into_iter().for_each(|window| window.forget(until));
        true
    }

    fn has_results(&self) -> bool {
        matches!(&self.shared.results, Outlet::InOrder(waiting) if lock(waiting).contains_key(&self.given))
    }

    /// Tells the window which results were given, so that the source is read on.
    fn release(&mut self) {
        let items = std::mem::take(&mut self.unreleased);
        if items > 0 {
            self.window().into_iter().for_each(|window| window.release(items));
        }
    }

    fn control(&self) -> Control<'static> {
        let Self { deadline, prepare_limit, .. } = *self;
        Control { cancel: self.cancel.clone(), deadline, reporter: None, prepare_limit }
    }

    /// Whether it is to end although there is more to give: looked at before every result, since a slow consumer may
    /// never find that there is nothing to give. What has come to its end is given.
    fn is_over(&self) -> bool {
        (self.cancel.is_some() || self.deadline.is_some())
            && self.control().is_over(|| self.shared.now())
            && self.shared.core().run.outcome() != Some(&Outcome::Complete)
    }
}

/// Takes items from their source until it ends, or the stream does.
fn read<T: Task>(shared: &Shared<T>, source: impl Iterator<Item = T::Input>) {
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
            let arrived = self.window().map_or(0, Window::arrived);
            let stopped = shared.glance(&mut core, &self.control());
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
                        self.window().into_iter().for_each(Window::stop);
                        return Some(Err(error));
                    }
                    if let Some(panic) = self.window().and_then(Window::take_panic) {
                        resume_unwind(panic);
                    }
                }
                // Results that come from here on are told with the lock.
                None if self.has_results() => {}
                None => drop(shared.wait_for_news(core, Duration::from_millis(10))),
            }
        }
    }
}

impl<T: Task> Drop for MapStream<'_, T> {
    fn drop(&mut self) {
        self.shared.stop();
        self.window().into_iter().for_each(Window::stop);
    }
}

impl<T: Task> fmt::Debug for MapStream<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapStream").field("given", &self.given).finish_non_exhaustive()
    }
}
