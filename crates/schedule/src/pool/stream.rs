//! Runs of a task over an iterator.

use std::{
    collections::VecDeque,
    fmt,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, Weak},
    thread::Builder,
    time::Duration,
};

use evener_device::{affinity::unbound, thread_stack::thread_builder};

use super::{execute::Lanes, history::RunDevices, job::Job};
use crate::{
    error::RunError,
    events::{self, RunEnd},
    executor::{Control, Core, RunChoice, RunContext, RunTicks, StreamData, Window},
    recorder::Recorder,
    run::{Outcome, Run},
    sync::{lock, wait_timeout},
    task::{Task, thread_error},
};

/// The results of a task over an iterator of items, in order.
///
/// A separate thread reads the items, no further ahead of the returned results than
/// [`Job::read_ahead`](crate::Job::read_ahead) says: a slow consumer slows the source down, and memory is bounded. A panic
/// of the source continues in [`next`](Iterator::next), after the results of the items before it.
///
/// An error ends the stream, and is its last item. If the task or every device fails, the finished results up to the first
/// item without a result are returned before the error; later results are lost even if they are finished, and so are those
/// of the chunks in flight, which may come before the failed item. If the stream is cancelled or passes its deadline, the
/// error is the next item, and all results that were not returned are lost. The error's
/// [`DoneItems`](crate::DoneItems) are the finished items, returned or lost.
pub struct MapStream<'scope, T: Task> {
    shared: Arc<RunContext<T, StreamData<T>>>,
    control: Control,
    /// Number of returned results, and of those that the window does not know of.
    returned: u64,
    unreleased: usize,
    release_every: usize,
    ready: VecDeque<T::Output>,
    ended: bool,
    #[expect(dead_code, reason = "it ticks until it is dropped")]
    ticks: RunTicks,
    /// The thread that reads the source ends within the scope.
    scope: PhantomData<&'scope ()>,
}

impl<T: Task> MapStream<'_, T> {
    /// Begins a stream, whose source is read by a thread that `start` starts.
    pub(super) fn begin<'s>(
        job: &Job<'_, T>,
        source: impl Iterator<Item = T::Input> + Send + 's,
        start: impl FnOnce(Builder, Box<dyn FnOnce() + Send + 's>) -> std::io::Result<()>,
    ) -> Result<Self, RunError> {
        let RunDevices { devices, left_out, predicted, .. } = job.select(None, 0)?;
        let Lanes { devices, specs, .. } = job.lanes(&devices, u64::MAX, 1);
        let workers: Vec<usize> = specs.iter().map(|spec| spec.depth).collect();
        let ticks = RunTicks::begin();
        let shared = Arc::new(RunContext::new(
            job.task.clone(),
            Run::open_ended(&specs, job.options.settings),
            Recorder::new(specs.len(), false),
            devices,
            StreamData { window: Window::new(job.options.read_ahead), results: Mutex::default() },
            None,
            (1, u64::MAX),
            job.context.states.clone(),
            RunChoice { strategy: job.options.strategy.name(), left_out, predicted },
        ));
        let followed: Weak<RunContext<T, StreamData<T>>> = Arc::downgrade(&shared);
        events::stream().register(followed);
        shared.begin(&workers);
        let stream = MapStream {
            shared: shared.clone(),
            control: job.options.control.clone(),
            returned: 0,
            unreleased: 0,
            // A few large items are released one by one.
            release_every: (job.options.read_ahead.items / 64).clamp(1, 64),
            ready: VecDeque::new(),
            ended: false,
            ticks,
            scope: PhantomData,
        };
        let thread = thread_builder("evener-stream".into());
        unbound(|| start(thread, Box::new(move || read(&shared, source))))
            .map_err(|why| thread_error(&stream.shared.devices[0].id, &why))?;
        Ok(stream)
    }

    fn window(&self) -> &Window<T::Input> {
        &self.shared.data.window
    }

    /// Moves the next results to `ready`. Returns whether there were any.
    fn take_results(&mut self) -> bool {
        let next = self.returned + self.ready.len() as u64;
        let Some(results) = lock(&self.shared.data.results).remove(&next) else { return false };
        self.ready.extend(results);
        self.window().forget(self.returned + self.ready.len() as u64);
        true
    }

    /// Reports returned results to the window, so that the source is read on.
    fn release(&mut self) {
        let items = std::mem::take(&mut self.unreleased);
        if items > 0 {
            self.window().release(items);
        }
    }

    /// Writes to the events that the stream has ended.
    fn tell_end(&self, core: &mut Core, error: Option<&RunError>) {
        self.shared.tell_end(core, |core, now| {
            let (lanes, arrived) = (core.run.tallies().len(), self.window().arrived());
            let devices = self.shared.device_lanes(lanes);
            let mut report = core.recorder.report(&core.run, &devices, arrived, now, None);
            report.task = Some(self.shared.task.name().into());
            RunEnd { error: error.map(ToString::to_string), report: Some(report) }
        });
    }

    /// Whether the stream was stopped before it is complete. Checked before every result, because a slow consumer may
    /// always have results ready.
    fn is_over(&self) -> bool {
        self.shared.stop_reason(&self.control, || self.shared.now()).is_some()
            && self.shared.core().run.outcome() != Some(&Outcome::Complete)
    }
}

/// Reads the source until it ends or the stream is stopped.
fn read<T: Task>(shared: &RunContext<T, StreamData<T>>, source: impl Iterator<Item = T::Input>) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for item in source {
            let bytes = shared.task.item_bytes(&item);
            if !shared.push_item(item, bytes) {
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
            // An error ends the stream.
            if self.ended {
                return None;
            }
            if !self.is_over() {
                if let Some(result) = self.ready.pop_front() {
                    self.returned += 1;
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
            let stopped = shared.check(&mut core, &self.control, &|| None);
            match shared.result(&mut core, stopped, arrived) {
                // The last results may have come since the last check.
                Some(Ok(())) if self.returned < arrived => {
                    drop(core);
                    std::thread::yield_now();
                }
                Some(outcome) => {
                    self.tell_end(&mut core, outcome.as_ref().err());
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
                // Results from here on are notified with the lock.
                None if lock(&self.shared.data.results).contains_key(&self.returned) => {}
                None => drop(wait_timeout(&shared.progress_made, core, Duration::from_millis(10))),
            }
        }
    }
}

impl<T: Task> Drop for MapStream<'_, T> {
    fn drop(&mut self) {
        self.shared.stop();
        if !self.ended {
            self.tell_end(&mut self.shared.core(), None);
        }
        self.window().stop();
    }
}

impl<T: Task> fmt::Debug for MapStream<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapStream").field("returned", &self.returned).finish_non_exhaustive()
    }
}
