//! A job: one task for a pool, with its options, and what it has made on the devices.

use std::{
    collections::HashMap,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use evener_device::{Device, DeviceId, Kind};

use super::{Cancel, MapStream, Pool, Seat, Shelf, lock, statistics::score};
use crate::{
    account::{Account, DeviceLanes},
    error::{Done, RunError},
    executor::{Control, Feed, Fold, Lent, Outlet, Shared, Slots, Stopped},
    hybrid::{Candidate, Observation},
    progress::{Progress, Reporter},
    report::{Calibrated, LeftOut, Report},
    run::{Costs, Expected, LaneSpec, Outcome, Run, Settings},
    strategy::Strategy,
    task::Task,
    trace::Trace,
};

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
    strategy: Strategy,
    pub(super) settings: Settings,
    chooses: bool,
    keeps_trace: bool,
    pub(super) cancel: Option<Cancel>,
    pub(super) deadline: Option<Duration>,
    pub(super) prepare_limit: Duration,
    progress: Option<Mutex<Tell<'a>>>,
    progress_every: Duration,
    pub(super) shelf: Arc<Shelf<T::State>>,
    memory: Mutex<Memory>,
}

/// Who is told how far a run has come.
type Tell<'a> = Box<dyn FnMut(&Progress) + 'a>;

/// What a job knows from its earlier runs.
#[derive(Debug, Default)]
struct Memory {
    /// What each device's lanes have shown, by the items of a unit.
    expected: HashMap<(usize, u64), Expected>,
    /// Items a second of each device alone.
    alone: HashMap<usize, f64>,
}

/// Some of a pool's devices, and how many lanes each has in a run.
pub(super) struct Lanes {
    pub(super) devices: Vec<DeviceLanes>,
    /// The seat of each lane.
    pub(super) seats: Vec<Arc<Seat>>,
    pub(super) specs: Vec<LaneSpec>,
}

/// Which devices a run uses.
struct Selection {
    seats: Vec<Arc<Seat>>,
    left_out: Vec<LeftOut>,
    predicted: Option<Duration>,
}

impl<T: Task> Job<'static, T> {
    pub(super) fn new(pool: Pool, task: T, strategy: Strategy, settings: Settings) -> Self {
        Job {
            pool,
            task,
            strategy,
            settings,
            chooses: true,
            keeps_trace: false,
            cancel: None,
            deadline: None,
            prepare_limit: Duration::from_secs(300),
            progress: None,
            progress_every: Duration::from_millis(100),
            shelf: Arc::default(),
            memory: Mutex::default(),
        }
    }
}

impl<'a, T: Task> Job<'a, T> {
    /// Sets how items are shared out.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets what can be tuned.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Uses all devices that have code for the task, also those that are expected to make no difference.
    pub fn all_devices(mut self) -> Self {
        self.chooses = false;
        self
    }

    /// Keeps what every lane did, for [`Mapped::trace`].
    pub fn trace(mut self) -> Self {
        self.keeps_trace = true;
        self
    }

    /// Lets a run be cancelled.
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Ends a run that takes longer, with [`RunError::DeadlinePassed`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// A chunk that takes longer than this has hung. Without it, its lane's own history tells.
    pub fn chunk_limit(mut self, limit: Duration) -> Self {
        self.settings.limit = Some(limit);
        self
    }

    /// A device that takes longer than this to be made ready has hung: five minutes, unless said otherwise, since some
    /// kernels take long to compile.
    pub fn prepare_limit(mut self, limit: Duration) -> Self {
        self.prepare_limit = limit;
        self
    }

    /// Tells how far a run has come, ten times a second, on the thread that started it.
    pub fn on_progress<'b>(self, tell: impl FnMut(&Progress) + 'b) -> Job<'b, T> {
        Job {
            progress: Some(Mutex::new(Box::new(tell))),
            pool: self.pool,
            task: self.task,
            strategy: self.strategy,
            settings: self.settings,
            chooses: self.chooses,
            keeps_trace: self.keeps_trace,
            cancel: self.cancel,
            deadline: self.deadline,
            prepare_limit: self.prepare_limit,
            progress_every: self.progress_every,
            shelf: self.shelf,
            memory: self.memory,
        }
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
        let settings = Settings { rescue: false, ..self.settings };
        let Mapped { report, .. } = self.execute_with(settings, items, 1, None, None)?;
        Ok(report)
    }

    /// As [`Pool::map_stream`].
    pub fn map_stream<'i, I>(&self, items: I) -> Result<MapStream<'i, T>, RunError>
    where
        T::Input: Clone,
        I: IntoIterator<Item = T::Input>,
        I::IntoIter: 'i,
    {
        let Selection { seats, .. } = self.select(None, 0)?;
        MapStream::new(self, self.lanes(&seats, u64::MAX, 1), Box::new(items.into_iter()))
    }

    /// Measures how fast each device is alone, with these items: each does all of them twice, and the better time
    /// counts. Reports tell from then on how close a run came to the sum, and [`Strategy::Proportional`] and
    /// [`Strategy::Dynamic`] go by these rates. Gives the items a second; a device that fails has none.
    pub fn calibrate(&self, items: &[T::Input]) -> Result<Vec<(DeviceId, Option<f64>)>, RunError> {
        let mut rates = Vec::new();
        for seat in self.usable()? {
            let mut best: Option<f64> = None;
            for _ in 0..2 {
                match self.execute(items, 1, None, Some(seat.index)) {
                    Ok(run) => {
                        let rate = items.len() as f64 / run.report.wall_s.max(1e-9);
                        best = Some(best.map_or(rate, |best| best.max(rate)));
                    }
                    Err(error @ (RunError::Cancelled { .. } | RunError::DeadlinePassed { .. })) => {
                        return Err(error);
                    }
                    Err(error) => tracing::warn!(device = %seat.id, %error, "it could not be calibrated"),
                }
            }
            if let Some(rate) = best {
                lock(&self.memory).alone.insert(seat.index, rate);
            }
            rates.push((seat.id.clone(), best));
        }
        Ok(rates)
    }

    /// Keeps what is learned about this pool's devices in a file of one's own, or nowhere; the user's cache folder has
    /// it otherwise.
    pub fn keep_history_at(self, path: Option<PathBuf>) -> Self {
        self.pool.inner().chooser.keep_at(path);
        self
    }

    /// The devices that have code for the task.
    fn usable(&self) -> Result<Vec<Arc<Seat>>, RunError> {
        let seats = &self.pool.inner().seats;
        let usable: Vec<_> =
            seats.iter().filter(|seat| self.task.can_use(&seat.device().0)).cloned().collect();
        if usable.is_empty() {
            let devices = seats.iter().map(|seat| seat.id.to_string()).collect::<Vec<_>>().join(", ");
            return Err(RunError::Unable { task: self.task.name().into(), devices });
        }
        Ok(usable)
    }

    /// Which devices a run of so many items uses: one that is named, or those that are worth it.
    fn select(&self, only: Option<usize>, items: u64) -> Result<Selection, RunError> {
        let mut seats = self.usable()?;
        let mut left_out: Vec<LeftOut> = Vec::new();
        for seat in &self.pool.inner().seats {
            if only.is_none() && !seats.iter().any(|usable| usable.index == seat.index) {
                left_out
                    .push(LeftOut { id: seat.id.to_string(), reason: "the task has no code for it".into() });
            }
        }
        if let Some(only) = only {
            seats.retain(|seat| seat.index == only);
            return Ok(Selection { seats, left_out, predicted: None });
        }
        if !self.chooses || self.strategy != Strategy::Adaptive || items == 0 {
            return Ok(Selection { seats, left_out, predicted: None });
        }
        let candidates: Vec<Candidate> = seats
            .iter()
            .map(|seat| Candidate { device: history_name(&seat.device().0), score: score(&seat.device().0) })
            .collect();
        let choice = self.pool.inner().chooser.choose(self.task.name(), items, &candidates);
        for (device, reason) in &choice.left_out {
            if let Some(index) = candidates.iter().position(|candidate| candidate.device == *device) {
                left_out.push(LeftOut { id: seats[index].id.to_string(), reason: reason.to_string() });
            }
        }
        let is_used = |name: &str| choice.used.iter().any(|used| used.device == name);
        let mut names = candidates.iter();
        seats.retain(|_| names.next().is_some_and(|candidate| is_used(&candidate.device)));
        Ok(Selection { seats, left_out, predicted: choice.predicted })
    }

    /// The lanes of some devices: one a core of the processor, and one of every other device, with as many chunks in
    /// hand as the task wants. No more than there are units to do.
    pub(super) fn lanes(&self, used: &[Arc<Seat>], units: u64, unit: u64) -> Lanes {
        let mut lanes = Lanes { devices: Vec::new(), seats: Vec::new(), specs: Vec::new() };
        let memory = lock(&self.memory);
        for seat in used {
            let (device, _) = seat.device();
            let hands = (self.task.hands(&device).max(1) as u64).min(units) as usize;
            let (count, depth) = if device.describe().kind == Kind::Cpu { (hands, 1) } else { (1, hands) };
            let spec = LaneSpec {
                depth,
                most_items: None,
                may_hang: self.task.may_hang(&device),
                expected: memory.expected.get(&(seat.index, unit)).copied(),
            };
            let first = lanes.specs.len();
            lanes.devices.push(DeviceLanes { id: seat.id.to_string(), lanes: first..first + count });
            lanes.seats.extend(std::iter::repeat_n(seat.clone(), count));
            lanes.specs.extend(std::iter::repeat_n(spec, count));
        }
        lanes
    }

    fn execute(
        &self,
        items: &[T::Input],
        unit: u64,
        fold: Option<Fold<T::Output>>,
        only: Option<usize>,
    ) -> Result<Mapped<T::Output>, RunError> {
        self.execute_with(self.settings, items, unit, fold, only)
    }

    /// One run, from its beginning to its end. It counts in units of so many items, each of which has one result.
    fn execute_with(
        &self,
        settings: Settings,
        items: &[T::Input],
        unit: u64,
        fold: Option<Fold<T::Output>>,
        only: Option<usize>,
    ) -> Result<Mapped<T::Output>, RunError> {
        let count = items.len() as u64;
        let units = count.div_ceil(unit);
        let Selection { seats, left_out, predicted } = self.select(only, count)?;
        let Lanes { devices, seats: lane_seats, specs } = self.lanes(&seats, units, unit);
        let run = self.decide(settings, &seats, &devices, &specs, units, unit, items);
        let own = own_lane(&lane_seats, &specs, units);
        let hands = specs.iter().enumerate();
        let hands: Vec<usize> =
            hands.map(|(lane, spec)| if own == Some(lane) { 0 } else { spec.depth }).collect();
        // SAFETY: `borrowed` takes the items back before this function returns, in whatever way it does.
        #[allow(unsafe_code)]
        let lent = unsafe { Lent::new(items) };
        let shared = Arc::new(Shared::new(
            self.task.clone(),
            run,
            Account::new(specs.len(), self.keeps_trace),
            lane_seats,
            Feed::Lent(lent),
            Outlet::Slots(Slots::new(units as usize)),
            fold,
            (unit, count),
            self.shelf.clone(),
        ));
        let borrowed = Borrowed(&shared);
        tracing::debug!(task = self.task.name(), items = count, lanes = specs.len(), "a run begins");
        shared.begin(&hands);
        let stopped = self.watch(&shared, own);
        drop(borrowed);

        let mut core = shared.core();
        let wall = shared.now();
        let mut report = core.account.report(&core.run, &devices, count, wall, None);
        let spans = core.account.take_spans();
        let accepted = std::mem::take(&mut core.accepted);
        let outcome = core.run.outcome().cloned().unwrap_or(Outcome::NoLaneLeft);
        let failures = std::mem::take(&mut core.failures);
        let task_error = core.task_error.take();
        self.remember(&core.run, &seats, &devices, unit);
        drop(core);
        let Outlet::Slots(slots) = &shared.results else { return Err(RunError::NoDevices) };
        // SAFETY: every unit that was accepted was written, by `finish`, and no other.
        #[allow(unsafe_code)]
        let results = unsafe { slots.take(&accepted) };
        tracing::debug!(task = self.task.name(), ?outcome, wall_s = report.wall_s, "a run has ended");
        let done = || Done::of(accepted.iter().map(|units| shared.items_of(units)).collect());
        match (outcome, results, stopped) {
            (Outcome::Complete, Some(results), _) => {
                self.learn(&report, &seats, only);
                report.task = Some(self.task.name().into());
                report.strategy = Some(self.strategy.name().into());
                report.left_out = left_out;
                report.predicted_s = predicted.map(|predicted| predicted.as_secs_f64());
                report.calibrated = self.calibrated(&report, &seats);
                let lanes = trace_lanes(&devices);
                Ok(Mapped { results, report, trace: Trace { lanes, spans } })
            }
            (Outcome::TaskFailed(units), _, _) => {
                let error = task_error.unwrap_or(evener_device::Error::Ended);
                Err(RunError::Task { items: shared.items_of(&units), error })
            }
            (_, _, Some(Stopped::Cancelled)) => Err(RunError::Cancelled { done: done(), items: count }),
            (_, _, Some(Stopped::DeadlinePassed(after))) => {
                Err(RunError::DeadlinePassed { after, done: done(), items: count })
            }
            _ => Err(RunError::NoDeviceLeft { done: done(), items: count, failures }),
        }
    }

    /// The decisions of a run.
    #[expect(clippy::too_many_arguments, reason = "all that decides")]
    fn decide(
        &self,
        settings: Settings,
        seats: &[Arc<Seat>],
        devices: &[DeviceLanes],
        specs: &[LaneSpec],
        units: u64,
        unit: u64,
        items: &[T::Input],
    ) -> Run {
        let lane_counts: Vec<usize> = devices.iter().map(|device| device.lanes.len()).collect();
        let shares = self.strategy.shares(units, &self.strengths(seats), &lane_counts);
        let run = Run::new(units, specs, &shares, settings);
        match self.task.costs(items).filter(|costs| costs.len() == items.len()) {
            None => run,
            Some(costs) => {
                let of_units: Vec<f64> = costs.chunks(unit as usize).map(|unit| unit.iter().sum()).collect();
                run.with_costs(Costs::new(&of_units))
            }
        }
    }

    /// Score and utilization of each device, as far as the strategy asks for them. Rates that a calibration has
    /// measured count where every device has one, since they cannot be compared with scores.
    fn strengths(&self, seats: &[Arc<Seat>]) -> Vec<(f64, f64)> {
        let memory = lock(&self.memory);
        let measured = seats.iter().all(|seat| memory.alone.contains_key(&seat.index));
        let strength = |seat: &Arc<Seat>| {
            let (device, _) = seat.device();
            let known = memory.alone.get(&seat.index).copied().filter(|_| measured);
            let busy = if self.strategy == Strategy::Dynamic { device.telemetry().utilization } else { None };
            (known.unwrap_or_else(|| score(&device)), busy.unwrap_or(0.0))
        };
        seats.iter().map(strength).collect()
    }

    fn watch(&self, shared: &Arc<Shared<T>>, own: Option<usize>) -> Option<Stopped> {
        let mut tell = self.progress.as_ref().map(lock);
        let reporter = tell.as_mut().map(|tell| Reporter {
            tell: &mut ***tell,
            every: self.progress_every,
            next: self.progress_every,
        });
        let mut control = Control {
            cancel: self.cancel.as_ref().map(|cancel| cancel.0.clone()),
            deadline: self.deadline,
            reporter,
            prepare_limit: self.prepare_limit,
        };
        shared.watch(&mut control, own)
    }

    /// Keeps what the lanes have shown, for the next run.
    fn remember(&self, run: &Run, seats: &[Arc<Seat>], devices: &[DeviceLanes], unit: u64) {
        let mut memory = lock(&self.memory);
        for (seat, device) in seats.iter().zip(devices) {
            let learned = device.lanes.clone().filter_map(|lane| run.learned(lane));
            // Of several lanes of one device, the one that did most tells best.
            if let Some(best) = learned.max_by(|a, b| a.largest.total_cmp(&b.largest)) {
                memory.expected.insert((seat.index, unit), best);
            }
        }
    }

    /// Teaches the model what the devices did, where it was they who decided how much.
    fn learn(&self, report: &Report, seats: &[Arc<Seat>], only: Option<usize>) {
        if self.strategy != Strategy::Adaptive && only.is_none() {
            return;
        }
        let observation = |(seat, device): (&Arc<Seat>, &crate::report::DeviceReport)| {
            let seconds = |time: f64| Duration::try_from_secs_f64(time).unwrap_or_default();
            Observation {
                device: history_name(&seat.device().0),
                items: device.items,
                busy: seconds(if device.items > 0 {
                    device.busy_s
                } else {
                    report.wall_s - device.startup_s
                }),
                startup: seconds(device.startup_s),
            }
        };
        let observations: Vec<Observation> = seats.iter().zip(&report.devices).map(observation).collect();
        self.pool.inner().chooser.observe(self.task.name(), &observations);
    }

    /// How the run compares with the devices' rates alone, where all of them are known.
    fn calibrated(&self, report: &Report, seats: &[Arc<Seat>]) -> Option<Calibrated> {
        let memory = lock(&self.memory);
        let rates: Option<Vec<f64>> =
            seats.iter().map(|seat| memory.alone.get(&seat.index).copied()).collect();
        let ideal_s = report.items as f64 / rates?.iter().sum::<f64>();
        Some(Calibrated { ideal_s, efficiency: ideal_s / report.wall_s.max(f64::MIN_POSITIVE) })
    }
}

/// Takes the items back, however a run ends.
struct Borrowed<'s, T: Task>(&'s Arc<Shared<T>>);

impl<T: Task> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        self.0.core().run.stop();
        self.0.wake_all();
        if let Feed::Lent(lent) = &self.0.feed {
            lent.take_back();
        }
    }
}

/// The lane that the thread which starts a run works on itself: one of plain code on whole cores, in a run that is
/// expected to be over before another thread would be awake for long.
fn own_lane(seats: &[Arc<Seat>], specs: &[LaneSpec], units: u64) -> Option<usize> {
    const SHORT: f64 = 0.005;
    let rate: f64 =
        specs.iter().map(|spec| spec.expected.map_or(0.0, |it| it.seconds_per_item.recip())).sum();
    let is_short = units as f64 / rate < SHORT;
    let is_plain =
        |lane: &usize| !specs[*lane].may_hang && seats[*lane].device().0.describe().part_of.is_none();
    (0..specs.len()).find(is_plain).filter(|_| is_short)
}

/// What a device's history is kept under: another card in the same place is another device.
fn history_name(device: &Device) -> String {
    format!("{} ({})", device.id(), device.describe().name)
}

fn trace_lanes(devices: &[DeviceLanes]) -> Vec<String> {
    let name = |device: &DeviceLanes, lane: usize, lanes: &Range<usize>| match lanes.len() {
        1 => device.id.clone(),
        _ => format!("{} lane {}", device.id, lane - lanes.start),
    };
    devices.iter().flat_map(|it| it.lanes.clone().map(move |lane| name(it, lane, &it.lanes))).collect()
}

/// The results of a run, and how it went.
#[derive(Debug, Clone, PartialEq)]
pub struct Mapped<O> {
    results: Vec<O>,
    report: Report,
    trace: Trace,
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
