//! A job: one task of a pool, with its options and what it has prepared and learned.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use evener_device::DeviceId;

use super::{Cancel, JobOptions, MapStream, Pool, history::JobHistory};
use crate::{
    contain::log,
    error::RunError,
    executor::{Fold, ReadAhead, StateCache},
    progress::{Bar, Progress},
    report::Report,
    run::Settings,
    strategy::Strategy,
    sync::lock,
    task::{ResultSlots, Task},
    trace::Trace,
};

/// Called with a run's progress.
type ProgressListener<'a> = Mutex<Box<dyn FnMut(&Progress) + Send + 'a>>;

/// Number of blocks of a reduction: enough to divide, few enough to combine.
const BLOCKS: u64 = 16_384;

/// One task of a pool, with its options. A job keeps its prepared kernels and buffers, and what it learns about the
/// devices, from run to run. Make it once if it runs often.
///
/// ```
/// use std::time::Duration;
/// use evener_device::Device;
/// use evener_schedule::{Closure, Pool, Strategy};
///
/// let pool = Pool::new([Device::cpu()])?;
/// let square = Closure::new("square", |&number: &u64| number * number);
/// let job = pool
///     .job(&square)
///     .strategy(Strategy::Adaptive)
///     .deadline(Duration::from_secs(60))
///     .on_progress(|progress| println!("{} of {}", progress.done, progress.items));
/// let run = job.map(&[1, 2, 3])?;
/// assert_eq!(run.results(), [1, 4, 9]);
/// println!("{}", run.report());
/// # Ok::<(), evener_schedule::RunError>(())
/// ```
pub struct Job<'a, T: Task> {
    pub(super) pool: Pool,
    pub(super) task: T,
    pub(super) options: JobOptions,
    pub(super) progress: Option<Arc<ProgressListener<'a>>>,
    pub(super) context: TaskContext<T::State>,
}

/// What the runs of one task in a pool share: prepared states, and what was learned.
pub(super) struct TaskContext<S> {
    /// The key of the task's history.
    pub(super) key: Arc<str>,
    /// The [`Task::state_id`] of the cached states.
    pub(super) state_id: Option<u64>,
    pub(super) states: Arc<StateCache<S>>,
    pub(super) history: Arc<Mutex<JobHistory>>,
}

impl<S> TaskContext<S> {
    pub(super) fn new(pool: &Pool, key: Arc<str>) -> Self {
        let history = JobHistory::new(key.clone(), pool.shared().model.clone());
        TaskContext { key, state_id: None, states: Arc::default(), history: Arc::new(Mutex::new(history)) }
    }
}

impl<S> Clone for TaskContext<S> {
    fn clone(&self) -> Self {
        let TaskContext { key, state_id, states, history } = self;
        TaskContext {
            key: key.clone(),
            state_id: *state_id,
            states: states.clone(),
            history: history.clone(),
        }
    }
}

impl<T: Task> Job<'static, T> {
    pub(super) fn new(pool: Pool, task: T, context: TaskContext<T::State>) -> Self {
        let options = pool.shared().options.clone();
        Job { pool, task, options, progress: None, context }
    }
}

impl<'a, T: Task> Job<'a, T> {
    /// Sets how items are divided among devices.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.options.strategy = strategy;
        self
    }

    /// Sets the tuning parameters.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.options.settings = settings;
        self
    }

    /// Sets whether an idle lane runs a speculative copy of the chunk that would end last. The other settings stay the pool's.
    pub fn speculative_copies(mut self, allowed: bool) -> Self {
        self.options.settings.speculative_copies = allowed;
        self
    }

    /// Uses all devices that the task has code for from the beginning. By default, devices that are expected to make no
    /// difference join only if the others fail, or do not respond for a second.
    pub fn all_devices(mut self) -> Self {
        self.options.selects_devices = false;
        self
    }

    /// Records a trace of every lane, for [`Mapped::trace`].
    pub fn trace(mut self) -> Self {
        self.options.keeps_trace = true;
        self
    }

    /// Lets a run be cancelled.
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.options.control.cancel = Some(cancel.0.clone());
        self
    }

    /// Ends a run that takes longer with [`RunError::DeadlinePassed`], once the current items of plain code are done.
    /// Time in which the process was stopped counts.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.control.deadline = Some(deadline);
        self
    }

    /// Sets the time limit of a chunk. A chunk that takes longer has hung, also one of plain code, and no other limit
    /// applies. Chunks are cut to take about a quarter of it; after one that takes too long, the lane's next chunks
    /// have half as many items. Every device must be able to do one item in this time. Without it, a chunk has hung
    /// once other devices have done its items in a small fraction of the time.
    ///
    /// Limits are checked every ten milliseconds. With a limit of zero, every chunk that a check finds in flight has hung:
    /// a run with longer chunks fails.
    pub fn chunk_limit(mut self, limit: Duration) -> Self {
        self.options.settings.chunk_limit = Some(limit);
        self
    }

    /// Sets the maximum time to prepare a device, by default five minutes, because some kernels take long to compile.
    pub fn prepare_limit(mut self, limit: Duration) -> Self {
        self.options.control.prepare_limit = limit;
        self
    }

    /// Sets how far [`map_stream`](Pool::map_stream) reads its source ahead of the returned results: at most `items`
    /// items, of at most `bytes` [bytes](Task::item_bytes). Default: 65,536 items and 256 MiB.
    pub fn read_ahead(mut self, items: usize, bytes: u64) -> Self {
        self.options.read_ahead = ReadAhead { items, bytes };
        self
    }

    /// Calls a closure with a run's progress, ten times a second and at its end, on the thread that started the run.
    /// Shorter runs and streams do not call it. Of two runs of this job at the same time, one calls it. If it panics,
    /// the run ends, and the panic continues in the thread that started it.
    pub fn on_progress<'b>(self, callback: impl FnMut(&Progress) + Send + 'b) -> Job<'b, T> {
        let Job { pool, task, options, context, .. } = self;
        Job { pool, task, options, progress: Some(Arc::new(Mutex::new(Box::new(callback)))), context }
    }

    /// Returns the job for another task of this type, or the same with other parameters, with all options and what was
    /// learned. Prepared states are shared if the tasks' [`state_id`](Task::state_id) is the same.
    pub fn with_task(&self, task: &T) -> Job<'a, T> {
        let state_id = task.state_id();
        let is_fit = state_id.is_some() && state_id == self.task.state_id();
        let mut context = self.context.clone();
        if !is_fit {
            context.states = Arc::default();
        }
        let (pool, options, progress) = (self.pool.clone(), self.options.clone(), self.progress.clone());
        Job { pool, task: task.clone(), options, progress, context }
    }

    /// Draws a progress bar on standard error for runs that take longer than a second, with the rate, the remaining
    /// time and the devices' shares. Draws nothing if standard error is not a terminal.
    pub fn progress_bar(self) -> Job<'static, T> {
        let mut bar = Bar::default();
        self.on_progress(move |progress| {
            bar.show(progress);
            if progress.ended {
                bar = Bar::default();
            }
        })
    }

    /// Runs the task on every item, and returns the results in order.
    pub fn map(&self, items: &[T::Input]) -> Result<Mapped<T::Output>, RunError> {
        self.execute(items, 1, None, None)
    }

    /// As [`Pool::map_reduce`].
    pub fn map_reduce(
        &self,
        items: &[T::Input],
        combine: impl Fn(T::Output, T::Output) -> T::Output + Send + Sync + 'static,
    ) -> Result<Reduced<T::Output>, RunError> {
        // The blocks depend on the number of items only, and so does the order in which results are combined.
        let unit = (items.len() as u64).div_ceil(BLOCKS).max(1);
        let combine = Arc::new(combine);
        let within = combine.clone();
        let fold: Fold<T::Output> = Arc::new(move |results| {
            let mut folded = Vec::new();
            let mut results = results.into_iter().peekable();
            while results.peek().is_some() {
                folded.extend(results.by_ref().take(unit as usize).reduce(|a, b| within(a, b)));
            }
            folded
        });
        let Mapped { results, report, trace } = self.execute(items, unit, Some(fold), None)?;
        Ok(Reduced { value: results.into_iter().reduce(|a, b| combine(a, b)), report, trace })
    }

    /// As [`Pool::for_each`].
    pub fn for_each(&self, items: &[T::Input]) -> Result<Report, RunError>
    where
        T: Task<Output = ()>,
    {
        let settings = Settings { speculative_copies: false, ..self.options.settings };
        let Mapped { report, .. } = self.execute_with(settings, items, 1, None, None, ResultSlots::new)?;
        Ok(report)
    }

    /// As [`Pool::map_stream`].
    pub fn map_stream<I>(&self, items: I) -> Result<MapStream<'static, T>, RunError>
    where
        I: IntoIterator<Item = T::Input>,
        I::IntoIter: Send + 'static,
    {
        MapStream::begin(self, items.into_iter(), |thread, read| thread.spawn(read).map(drop))
    }

    /// As [`Pool::map_stream`], for a source that borrows: a thread of a [scope](std::thread::scope) reads it, and ends
    /// with the item that it is reading when the stream ends. If the stream is [forgotten](std::mem::forget) before its
    /// end, the scope waits forever, as for any scoped thread that never ends.
    ///
    /// ```
    /// # use evener_device::Device;
    /// # use evener_schedule::{Closure, Pool};
    /// # let pool = Pool::new([Device::cpu()])?;
    /// let lines = String::from("one\ntwo\nthree");
    /// let job = pool.job(&Closure::new("length", |line: &String| line.len()));
    /// let sum = std::thread::scope(|scope| {
    ///     let lengths = job.map_stream_scoped(scope, lines.lines().map(str::to_owned))?;
    ///     lengths.sum::<Result<usize, _>>()
    /// })?;
    /// assert_eq!(sum, 11);
    /// # Ok::<(), evener_schedule::RunError>(())
    /// ```
    /// The stream cannot leave the scope:
    /// ```compile_fail
    /// # use evener_device::Device;
    /// # use evener_schedule::{Closure, Pool};
    /// # let pool = Pool::new([Device::cpu()]).unwrap();
    /// let job = pool.job(&Closure::new("length", |line: &String| line.len()));
    /// let lines = vec![String::from("one")];
    /// let lengths = std::thread::scope(|scope| job.map_stream_scoped(scope, lines).unwrap());
    /// ```
    pub fn map_stream_scoped<'scope, I>(
        &self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        items: I,
    ) -> Result<MapStream<'scope, T>, RunError>
    where
        I: IntoIterator<Item = T::Input>,
        I::IntoIter: Send + 'scope,
    {
        MapStream::begin(self, items.into_iter(), |thread, read| thread.spawn_scoped(scope, read).map(drop))
    }

    /// Measures each device alone, and returns its items per second. Later reports compare a run with the sum of the
    /// rates, and [`Strategy::Proportional`] and [`Strategy::Dynamic`] use them. A device that fails has no rate, and
    /// without items no device has one.
    ///
    /// The first run on a device, which prepares it, is not counted. Then the number of items grows until they take at
    /// least 50 milliseconds, or until all of them are used, and the shortest of several runs counts: a disturbance
    /// makes a run longer, never shorter. This takes about half a second per device, or two runs if a single item takes
    /// longer than that.
    pub fn calibrate(&self, items: &[T::Input]) -> Result<Vec<(DeviceId, Option<f64>)>, RunError> {
        let mut rates = Vec::new();
        for device in self.pool.usable(&self.task)? {
            let rate = match self.solo_rate(device.index, items) {
                Err(error @ (RunError::Cancelled { .. } | RunError::DeadlinePassed { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    log!(warn, device = %device.id, %error, "a device could not be calibrated");
                    None
                }
                Ok(rate) => {
                    let rates = &mut lock(&self.context.history).solo_rates;
                    rate.map(|rate| rates.insert(device.index, rate));
                    rate
                }
            };
            rates.push((device.id.clone(), rate));
        }
        Ok(rates)
    }

    /// Items per second of one device alone. `None` without items.
    fn solo_rate(&self, device: usize, items: &[T::Input]) -> Result<Option<f64>, RunError> {
        /// The time that a sample should take, in seconds. Half of it is enough.
        const ENOUGH: f64 = 0.1;
        let time_of = |count: usize| {
            let run = self.execute(&items[..count], 1, None, Some(device))?;
            Ok::<f64, RunError>(run.report.wall_s.max(1e-9))
        };
        let mut count = items.len().min(1);
        if count == 0 {
            return Ok(None);
        }
        // It opens the device and compiles the task's kernels.
        time_of(count)?;
        loop {
            let is_all = count == items.len();
            let took = settled_time(|| time_of(count), |took| took < ENOUGH / 2.0 && !is_all)?;
            if took >= ENOUGH / 2.0 || is_all {
                return Ok(Some(count as f64 / took));
            }
            count = ((count as f64 * (ENOUGH / took).clamp(2.0, 16.0)) as usize).min(items.len());
        }
    }
}

/// The shortest time of several runs, in seconds: runs until three in a row are not clearly shorter than those before, until
/// one `is_too_short`, or once if it takes long.
fn settled_time(
    mut run: impl FnMut() -> Result<f64, RunError>,
    is_too_short: impl Fn(f64) -> bool,
) -> Result<f64, RunError> {
    /// Compared with runs of this many seconds, disturbances are short.
    const LONG: f64 = 1.0;
    const SHORTER: f64 = 0.9;
    let (mut shortest, mut unchanged) = (run()?, 0);
    while unchanged < 3 && shortest < LONG && !is_too_short(shortest) {
        let took = run()?;
        unchanged = if took < shortest * SHORTER { 0 } else { unchanged + 1 };
        shortest = shortest.min(took);
    }
    Ok(shortest)
}

/// The results, report and trace of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Mapped<O> {
    pub(super) results: Vec<O>,
    pub(super) report: Report,
    pub(super) trace: Trace,
}

impl<O> Mapped<O> {
    /// The results, in the order of the items.
    pub fn results(&self) -> &[O] {
        &self.results
    }

    /// Takes the results.
    pub fn into_results(self) -> Vec<O> {
        self.results
    }

    /// What each device did, and how close to ideal the run came.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What every lane did, when; empty unless [`Job::trace`] asked for it.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }
}

/// The value, report and trace of a reduction.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduced<O> {
    value: Option<O>,
    report: Report,
    trace: Trace,
}

impl<O> Reduced<O> {
    /// The combined result, or `None` without items.
    pub fn value(&self) -> Option<&O> {
        self.value.as_ref()
    }

    /// Takes the combined result.
    pub fn into_value(self) -> Option<O> {
        self.value
    }

    /// What each device did, and how close to ideal the run came.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What every lane did, when; empty unless [`Job::trace`] asked for it.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::task::Closure;

    #[test]
    fn a_job_with_a_progress_callback_can_be_sent_to_another_thread() {
        fn sent<S: Send>(it: S) -> S {
            std::thread::scope(|scope| scope.spawn(|| it).join().unwrap())
        }
        let pool =
            Pool::builder().devices([evener_device::Device::cpu()]).keep_history_at(None).build().unwrap();
        let job = sent(pool.job(&Closure::new("square", |&number: &u64| number * number)));
        assert_eq!(job.map(&[3]).unwrap().results(), [9]);
        let mut told = 0;
        assert_eq!(sent(job.on_progress(|_| told += 1)).map(&[3]).unwrap().results(), [9]);
    }
}
