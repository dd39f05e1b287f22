//! A job: one task for a pool, with its options, and what it has made on the devices.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use evener_device::DeviceId;

use super::{Cancel, MapStream, Options, Pool, memory::Memory};
use crate::{
    contain::log,
    error::RunError,
    executor::{Fold, ReadAhead, Shelf},
    progress::{Bar, Progress},
    report::Report,
    run::Settings,
    strategy::Strategy,
    sync::lock,
    task::{ResultSlots, Task},
    trace::Trace,
};

/// Somebody who is told how far a run has come.
type Listener<'a> = Mutex<Box<dyn FnMut(&Progress) + Send + 'a>>;

/// A reduction works on about so many blocks of items: enough to share out, few enough to combine.
const BLOCKS: u64 = 16_384;

/// One task for a pool, with its options. What it makes on the devices, kernels and buffers among it, and what it
/// learns about them is kept from run to run, so a job that runs often is made once.
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
    pub(super) options: Options,
    pub(super) progress: Option<Arc<Listener<'a>>>,
    pub(super) common: Common<T::State>,
}

/// What the runs of one task in a pool share: what it has made on the devices, and what was learned.
pub(super) struct Common<S> {
    /// What the task's history is kept under.
    pub(super) key: Arc<str>,
    /// Which tasks can use what is on the shelf.
    pub(super) state_id: Option<u64>,
    pub(super) shelf: Arc<Shelf<S>>,
    pub(super) memory: Arc<Mutex<Memory>>,
}

impl<S> Common<S> {
    pub(super) fn new(pool: &Pool, key: Arc<str>) -> Self {
        let memory = Memory::new(key.clone(), pool.inner().chooser.clone());
        Common { key, state_id: None, shelf: Arc::default(), memory: Arc::new(Mutex::new(memory)) }
    }
}

impl<S> Clone for Common<S> {
    fn clone(&self) -> Self {
        let Common { key, state_id, shelf, memory } = self;
        Common { key: key.clone(), state_id: *state_id, shelf: shelf.clone(), memory: memory.clone() }
    }
}

impl<T: Task> Job<'static, T> {
    pub(super) fn new(pool: Pool, task: T, common: Common<T::State>) -> Self {
        let options = pool.inner().options.clone();
        Job { pool, task, options, progress: None, common }
    }
}

impl<'a, T: Task> Job<'a, T> {
    /// Sets how items are shared out.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.options.strategy = strategy;
        self
    }

    /// Sets what can be tuned.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.options.settings = settings;
        self
    }

    /// Uses all devices that have code for the task from the beginning. Otherwise those that are expected to make no
    /// difference are left out, and come in only where the others fail, or give no sign of life for a second.
    pub fn all_devices(mut self) -> Self {
        self.options.chooses = false;
        self
    }

    /// Keeps what every lane did, for [`Mapped::trace`].
    pub fn trace(mut self) -> Self {
        self.options.keeps_trace = true;
        self
    }

    /// Lets a run be cancelled.
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.options.control.cancel = Some(cancel.0.clone());
        self
    }

    /// Ends a run that takes longer, with [`RunError::DeadlinePassed`], once the items of plain code that are in hand are
    /// done. Time in which the process was stopped counts.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.control.deadline = Some(deadline);
        self
    }

    /// A chunk that takes longer than this has hung, also one of plain code. Where it is given, it is the only limit. Chunks
    /// are cut to take about a quarter of it; where one takes too long all the same, the next of its lane have half as many
    /// items. One item must be done in this time on every device.
    /// Without it, a chunk has hung once other devices have done its items in a small part of the time.
    pub fn chunk_limit(mut self, limit: Duration) -> Self {
        self.options.settings.limit = Some(limit);
        self
    }

    /// A device that takes longer than this to be made ready has hung: five minutes, unless said otherwise, since some
    /// kernels take long to compile.
    pub fn prepare_limit(mut self, limit: Duration) -> Self {
        self.options.control.prepare_limit = limit;
        self
    }

    /// Sets how far [`map_stream`](Pool::map_stream) reads its source ahead of the results that were asked for: another
    /// item is taken while fewer than so many items, of fewer than so many [bytes](Task::item_bytes), have no result yet
    /// that was given. By default 65,536 items and 256 MiB.
    pub fn read_ahead(mut self, items: usize, bytes: u64) -> Self {
        self.options.read_ahead = ReadAhead { items, bytes };
        self
    }

    /// Tells how far a run has come, ten times a second and at its end, on the thread that started it. Runs that are over
    /// sooner tell nothing, nor do streams, whose caller sees how far they have come. Of two runs of this job at the same
    /// time one is told of. Where it panics, the run ends, and the panic goes on in the thread that started it.
    pub fn on_progress<'b>(self, tell: impl FnMut(&Progress) + Send + 'b) -> Job<'b, T> {
        let Job { pool, task, options, common, .. } = self;
        Job { pool, task, options, progress: Some(Arc::new(Mutex::new(Box::new(tell)))), common }
    }

    /// The same job for another task of this type, or the same with other parameters: with all options, and with what was
    /// learned so far. What was made on the devices is shared too where the tasks' [`state_id`](Task::state_id) is the
    /// same.
    pub fn with_task(&self, task: &T) -> Job<'a, T> {
        let state_id = task.state_id();
        let is_fit = state_id.is_some() && state_id == self.task.state_id();
        let mut common = self.common.clone();
        if !is_fit {
            common.shelf = Arc::default();
        }
        let (pool, options, progress) = (self.pool.clone(), self.options.clone(), self.progress.clone());
        Job { pool, task: task.clone(), options, progress, common }
    }

    /// Draws a bar on standard error for runs that take longer than a second, with the rate, the time to go and the
    /// devices' shares; nothing where it is no terminal.
    pub fn progress_bar(self) -> Job<'static, T> {
        let mut bar = Bar::default();
        self.on_progress(move |progress| {
            bar.show(progress);
            if progress.ended {
                bar = Bar::default();
            }
        })
    }

    /// Does the task for every item, and gives the results in the items' order.
    pub fn map(&self, items: &[T::Input]) -> Result<Mapped<T::Output>, RunError> {
        self.execute(items, 1, None, None)
    }

    /// As [`Pool::map_reduce`].
    pub fn map_reduce(
        &self,
        items: &[T::Input],
        combine: impl Fn(T::Output, T::Output) -> T::Output + Send + Sync + 'static,
    ) -> Result<Reduced<T::Output>, RunError> {
        // The blocks depend on the number of items alone, and so does the order in which results are combined.
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
        let settings = Settings { rescue: false, ..self.options.settings };
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

    /// The same for a source that borrows: it is read by a thread of a [scope](std::thread::scope), which ends once the
    /// source has given the item that it is asked for at the time. A stream that is [forgotten](std::mem::forget) before
    /// its end makes the scope wait without end, as any scoped thread does that waits for something that never comes.
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

    /// Measures how fast each device is alone, each with as many of these items as keep it busy for about a fifth of a
    /// second. Reports tell from then on how close a run came to the sum, and [`Strategy::Proportional`] and
    /// [`Strategy::Dynamic`] go by these rates. Gives the items a second; a device that fails has none.
    pub fn calibrate(&self, items: &[T::Input]) -> Result<Vec<(DeviceId, Option<f64>)>, RunError> {
        let mut rates = Vec::new();
        for seat in self.pool.usable(&self.task)? {
            let rate = match self.rate_alone(seat.index, items) {
                Err(error @ (RunError::Cancelled { .. } | RunError::DeadlinePassed { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    log!(warn, device = %seat.id, %error, "it could not be calibrated");
                    None
                }
                Ok(rate) => {
                    lock(&self.common.memory).alone.insert(seat.index, rate);
                    Some(rate)
                }
            };
            rates.push((seat.id.clone(), rate));
        }
        Ok(rates)
    }

    /// Items a second of one device, alone: the best of two runs that are long enough, or that have all the items.
    fn rate_alone(&self, seat: usize, items: &[T::Input]) -> Result<f64, RunError> {
        const ENOUGH: f64 = 0.2;
        let mut count = 1;
        let mut best: f64 = 0.0;
        for _ in 0..2 {
            loop {
                let Mapped { report, .. } =
                    self.execute(&items[..count.min(items.len())], 1, None, Some(seat))?;
                let took = report.wall_s.max(1e-9);
                if took >= ENOUGH / 2.0 || count >= items.len() {
                    best = best.max(count.min(items.len()) as f64 / took);
                    break;
                }
                count = (count as f64 * (ENOUGH / took).clamp(2.0, 16.0)) as usize;
            }
        }
        Ok(best)
    }
}

/// The results of a run, and how it went.
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

    /// The results, to keep.
    pub fn into_results(self) -> Vec<O> {
        self.results
    }

    /// Who did what, and how close to ideal it came.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What every lane did, when; empty unless [`Job::trace`] asked for it.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }
}

/// What a reduction came to, and how it went.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduced<O> {
    value: Option<O>,
    report: Report,
    trace: Trace,
}

impl<O> Reduced<O> {
    /// The combined result; nothing for no items.
    pub fn value(&self) -> Option<&O> {
        self.value.as_ref()
    }

    /// The combined result, to keep.
    pub fn into_value(self) -> Option<O> {
        self.value
    }

    /// Who did what, and how close to ideal it came.
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
    fn a_job_can_go_to_another_thread_with_whatever_listens_to_it() {
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
