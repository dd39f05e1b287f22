//! One run of a job, from its beginning to its end.

use std::{
    any::type_name,
    collections::TryReserveError,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
    sync::{Arc, Mutex, TryLockError},
    time::{Duration, Instant},
};

use evener_device::{Device, Error};

use super::{
    Job, Mapped,
    history::{JobHistory, RunDevices},
};
use crate::{
    contain::{contain, log},
    error::{DoneItems, RunError},
    events::RunEnd,
    executor::{
        Fold, GetReserve, PoolDevice, Reserve, RunChoice, RunContext, RunTicks, SliceData, StopReason,
    },
    hybrid::{Candidate, Observation},
    progress::Reporter,
    recorder::{DeviceLanes, Recorder},
    report::{Calibrated, DeviceReport, LeftOut, Report},
    run::{Costs, Expected, LaneSpec, Run, Settings, Time},
    strategy::Strategy,
    sync::lock,
    task::{LentItems, MAX_DIVISIBLE_ITEMS, ResultSlots, Task},
    trace::Trace,
};

/// The lanes of a run, and their devices.
#[derive(Default)]
pub(super) struct Lanes {
    pub(super) device_lanes: Vec<DeviceLanes>,
    /// The device of each lane.
    pub(super) devices: Vec<Arc<PoolDevice>>,
    pub(super) specs: Vec<LaneSpec>,
}

impl<T: Task> Job<'_, T> {
    /// Selects the devices of a run of this many items: the one device `only`, or those that are worth using.
    pub(super) fn select(&self, only: Option<usize>, items: u64) -> Result<RunDevices, RunError> {
        let selects_devices = only.is_none()
            && self.options.selects_devices
            && self.options.strategy == Strategy::Adaptive
            && items > 0;
        let are_ready =
            |devices: &[Arc<PoolDevice>]| devices.iter().all(|device| self.context.states.has(device));
        if selects_devices
            && let Some(cached_choice) = lock(&self.context.history).cached_choice(items)
            && are_ready(&cached_choice.devices)
        {
            return Ok(cached_choice);
        }
        let begin = Instant::now();
        let mut devices = self.pool.usable(&self.task)?;
        let usable = |device: &&Arc<PoolDevice>| !devices.iter().any(|it| it.index == device.index);
        let no_code = |device: &Arc<PoolDevice>| LeftOut {
            id: device.id.to_string(),
            reason: "the task has no code for it".into(),
        };
        let mut left_out: Vec<LeftOut> =
            self.pool.shared().devices.iter().filter(usable).map(no_code).collect();
        if !selects_devices {
            devices.retain(|device| only.is_none_or(|only| device.index == only));
            return Ok(RunDevices {
                devices,
                reserve: Vec::new(),
                left_out: left_out.into(),
                predicted: None,
                is_provisional: false,
                fresh: true,
            });
        }
        let candidate = |device: &Arc<PoolDevice>| {
            let (opened, _) = device.device();
            Candidate {
                device: history_name(&opened),
                score: device.score,
                needs_preparation: !self.context.states.has(device),
            }
        };
        let candidates: Vec<Candidate> = devices.iter().map(candidate).collect();
        let model = &self.pool.shared().model;
        let choice = model.with_model(|model| model.choose(&self.context.key, items, &candidates));
        for (device, reason) in &choice.left_out {
            if let Some(index) = candidates.iter().position(|candidate| candidate.device == *device) {
                left_out.push(LeftOut { id: devices[index].id.to_string(), reason: reason.to_string() });
            }
        }
        let is_used = |name: &str| choice.used.iter().any(|used| used.device == name);
        let mut used = candidates.iter().map(|candidate| is_used(&candidate.device));
        let (devices, reserve): (Vec<_>, Vec<_>) =
            devices.into_iter().partition(|_| used.next().unwrap_or_default());
        let (left_out, predicted, is_provisional) =
            (left_out.into(), choice.predicted, choice.is_provisional);
        let selection = RunDevices { devices, reserve, left_out, predicted, is_provisional, fresh: true };
        // A run with a device that is not prepared yet takes longer than the next ones.
        if are_ready(&selection.devices) {
            lock(&self.context.history).cache_choice(items, &selection, begin.elapsed());
        }
        Ok(selection)
    }

    /// Makes the lanes of devices for a run of this many units.
    pub(super) fn lanes(&self, used: &[Arc<PoolDevice>], units: u64, unit: u64) -> Lanes {
        make_lanes(&self.task, &self.context.history, used, units, unit)
    }

    /// The lanes of the devices in reserve, if there are any: they are made when they are needed, since most runs never need
    /// them, and short ones have no time to prepare them.
    fn reserve(&self, reserve: &[Arc<PoolDevice>], units: u64, unit: u64) -> Option<Reserve<T>> {
        let (history, devices) = (self.context.history.clone(), reserve.to_vec());
        let make = move |task: &T| {
            let Lanes { devices, specs, .. } = make_lanes(task, &history, &devices, units, unit);
            devices.into_iter().zip(specs).collect()
        };
        Some(Reserve { device: reserve.first()?.clone(), make: Box::new(make) })
    }

    pub(super) fn execute(
        &self,
        items: &[T::Input],
        unit: u64,
        fold: Option<Fold<T::Output>>,
        only: Option<usize>,
    ) -> Result<Mapped<T::Output>, RunError> {
        self.execute_with(self.options.settings, items, unit, fold, only, ResultSlots::new)
    }

    /// Executes one run, which counts in units of this many items. Each unit has one result slot.
    pub(super) fn execute_with(
        &self,
        settings: Settings,
        items: &[T::Input],
        unit: u64,
        fold: Option<Fold<T::Output>>,
        only: Option<usize>,
        slots: impl FnOnce(usize) -> Result<ResultSlots<T::Output>, TryReserveError>,
    ) -> Result<Mapped<T::Output>, RunError> {
        let count = items.len() as u64;
        let units = count.div_ceil(unit);
        // A run that is stopped before it begins does nothing.
        if let Some(stopped) = self.options.control.stop_reason(|| Time::ZERO).filter(|_| count > 0) {
            return Err(stopped.error(DoneItems::default(), count, false));
        }
        let selection = self.select(only, count)?;
        let RunDevices { mut devices, reserve, left_out, predicted, .. } = selection.clone();
        let cold: Vec<bool> = devices.iter().map(|device| !self.context.states.has(device)).collect();
        let lanes = self.lanes(&devices, units, unit);
        let mut run = self.decide(settings, &devices, &lanes, (unit, units), items);
        let Lanes { mut device_lanes, devices: lane_devices, specs } = lanes;
        if !reserve.is_empty() {
            run = run.with_reserve();
        }
        let caller_lane = caller_lane(&lane_devices, &specs, units);
        let workers = specs.iter().enumerate();
        let workers: Vec<usize> =
            workers.map(|(lane, spec)| if caller_lane == Some(lane) { 0 } else { spec.depth }).collect();
        let too_large = |_| RunError::ResultsTooLarge { items: count, bytes_each: size_of::<T::Output>() };
        let results = slots(units as usize).map_err(too_large)?;
        // SAFETY: `guard` revokes the items before this function returns or unwinds.
        #[allow(unsafe_code)]
        let lent = unsafe { LentItems::new(items) };
        let data = SliceData { items: lent, results };
        let ticks = RunTicks::begin();
        let shared = Arc::new(RunContext::new(
            self.task.clone(),
            run,
            Recorder::new(specs.len(), self.options.keeps_trace),
            lane_devices,
            data,
            fold,
            (unit, count),
            self.context.states.clone(),
            RunChoice { strategy: self.options.strategy.name(), left_out: left_out.clone(), predicted },
        ));
        let mut guard = RunGuard { shared: &shared, is_watched: false };
        log!(debug, task = self.task.name(), items = count, lanes = specs.len(), "run started");
        shared.begin(&workers);
        let stopped = self.watch(&shared, &|| self.reserve(&reserve, units, unit), caller_lane);
        guard.is_watched = true;
        drop((guard, ticks));

        let mut core = shared.core();
        let wall = shared.now();
        core.record_in_flight(wall);
        let added = shared.added();
        let mut lane = specs.len();
        // The lanes of one device follow each other.
        for lanes in added.chunk_by(|(one, _), (other, _)| one.index == other.index) {
            let device = &lanes[0].0;
            device_lanes.push(DeviceLanes { id: device.id.to_string(), lanes: lane..lane + lanes.len() });
            devices.push(device.clone());
            lane += lanes.len();
        }
        let needed_reserve = !added.is_empty();
        let mut report = core.recorder.report(&core.run, &device_lanes, count, wall, None);
        for (device, report) in devices.iter().zip(&mut report.devices) {
            let failures = core.failures.iter().filter(|(index, _)| *index == device.index);
            report.failures = failures.map(|(_, error)| failure_text(error)).collect();
        }
        let mut spans = core.recorder.take_spans();
        spans.iter_mut().for_each(|span| span.items = shared.items_of(&span.items));
        let ending = shared.result(&mut core, stopped, count);
        let accepted = std::mem::take(&mut core.accepted);
        let has_awaited = core.run.has_awaited();
        // Only a successful run says how long one takes.
        if matches!(ending, Some(Ok(()))) {
            lock(&self.context.history).record_lanes(&core.run, &devices, &device_lanes, (unit, units));
        }
        // `watch` returns only when the run has ended.
        let ending = ending.unwrap_or(Err(RunError::NoDevices));
        report.task = Some(self.task.name().into());
        report.strategy = Some(self.options.strategy.name().into());
        report.left_out = left_out.to_vec();
        if needed_reserve {
            report.left_out.retain(|left_out| !device_lanes.iter().any(|lanes| lanes.id == left_out.id));
        }
        report.predicted_s = predicted.map(|predicted| predicted.as_secs_f64());
        report.calibrated = self.calibrated(&report, &devices);
        shared.tell_end(&mut core, |_, _| RunEnd::new(&ending, Some(report.clone())));
        drop(core);
        // SAFETY: `finish` writes exactly the units that it accepts.
        #[allow(unsafe_code)]
        let results = unsafe { shared.data.results.take(&accepted) };
        log!(debug, task = self.task.name(), ?ending, wall_s = report.wall_s, "run ended");
        ending?;
        let results = results.ok_or(RunError::NoDevices)?;
        // A run that had to do without a device says little about how long one with it takes.
        if !has_awaited {
            self.learn(&report, selection, &cold, only, needed_reserve);
        }
        let lanes = trace_lanes(&device_lanes);
        Ok(Mapped { results, report, trace: Trace { task: self.task.name().into(), lanes, spans } })
    }

    /// Makes the state machine of a run.
    fn decide(
        &self,
        settings: Settings,
        devices: &[Arc<PoolDevice>],
        lanes: &Lanes,
        (unit, units): (u64, u64),
        items: &[T::Input],
    ) -> Run {
        let lane_counts: Vec<usize> = lanes.device_lanes.iter().map(|it| it.lanes.len()).collect();
        // Reading telemetry takes time that short runs do not have.
        let strengths =
            if self.options.strategy == Strategy::Adaptive { Vec::new() } else { self.strengths(devices) };
        let shares = self.options.strategy.shares(units, &strengths, &lane_counts);
        // A run counts in units, which are not split.
        let max_items = settings.max_items.map(|most| (most / unit).max(1));
        let run = Run::new(units, &lanes.specs, &shares, Settings { max_items, ..settings });
        match self.task.costs(items).filter(|costs| costs.len() == items.len()) {
            None => run,
            Some(costs) => {
                let of_units: Vec<f64> = costs.chunks(unit as usize).map(|unit| unit.iter().sum()).collect();
                run.with_costs(Costs::new(&of_units))
            }
        }
    }

    /// Score and utilization of each device, as the strategy needs them. Calibrated rates replace the scores if every
    /// device has one, because the two cannot be compared.
    fn strengths(&self, devices: &[Arc<PoolDevice>]) -> Vec<(f64, f64)> {
        let history = lock(&self.context.history);
        let measured = devices.iter().all(|device| history.solo_rates.contains_key(&device.index));
        let strength = |device: &Arc<PoolDevice>| {
            let (opened, _) = device.device();
            let known = history.solo_rates.get(&device.index).copied().filter(|_| measured);
            let busy = if self.options.strategy == Strategy::Dynamic {
                opened.telemetry().utilization
            } else {
                None
            };
            (known.unwrap_or(device.score), busy.unwrap_or(0.0))
        };
        devices.iter().map(strength).collect()
    }

    fn watch(
        &self,
        shared: &Arc<RunContext<T, SliceData<T>>>,
        reserve: GetReserve<'_, T>,
        caller_lane: Option<usize>,
    ) -> Option<StopReason> {
        // Of two runs of a job at the same time, one reports progress: the other must not wait for it.
        let mut callback = self.progress.as_ref().and_then(|listener| match listener.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Ok(listener) => Some(listener),
        });
        let mut reporter = callback.as_mut().map(|callback| Reporter::new(&mut ***callback));
        shared.watch(&self.options.control, reserve, &mut reporter, caller_lane)
    }

    /// Teaches the model from a run whose work was divided by the devices' speeds. If devices in reserve had to help,
    /// the chosen ones took at least as long as the run.
    fn learn(
        &self,
        report: &Report,
        selection: RunDevices,
        cold: &[bool],
        only: Option<usize>,
        needed_help: bool,
    ) {
        if (self.options.strategy != Strategy::Adaptive && only.is_none()) || report.items == 0 {
            return;
        }
        let observation = |((device, done), &cold): ((&Arc<PoolDevice>, &DeviceReport), &bool)| {
            let seconds = |time: f64| Duration::try_from_secs_f64(time).unwrap_or_default();
            Observation {
                device: history_name(&device.device().0),
                items: done.items,
                busy: seconds(if done.items > 0 { done.busy_s } else { report.wall_s - done.startup_s }),
                startup: seconds(done.startup_s),
                needed_preparation: cold,
            }
        };
        let model = &self.pool.shared().model;
        if selection.fresh {
            let devices = selection.devices.iter().zip(&report.devices).zip(cold);
            model.with_model(|model| {
                for observation in devices.map(observation) {
                    model.observe(&self.context.key, &observation);
                }
            });
        }
        lock(&self.context.history).run_ended(report.items, selection, cold, report, needed_help);
        model.save_if_due();
    }

    /// The run compared with the devices' rates alone, if all of them are known.
    fn calibrated(&self, report: &Report, devices: &[Arc<PoolDevice>]) -> Option<Calibrated> {
        let history = lock(&self.context.history);
        let rates: Option<Vec<f64>> =
            devices.iter().map(|device| history.solo_rates.get(&device.index).copied()).collect();
        let ideal_s = report.items as f64 / rates?.iter().sum::<f64>();
        Some(Calibrated { ideal_s, efficiency: ideal_s / report.wall_s.max(f64::MIN_POSITIVE) })
    }
}

/// Makes the lanes of devices: one per core of the processor, except cores that feed other devices, and one per other
/// device, with as many chunks in flight as the task has workers. No more than there are units.
fn make_lanes<T: Task>(
    task: &T,
    history: &Mutex<JobHistory>,
    used: &[Arc<PoolDevice>],
    units: u64,
    unit: u64,
) -> Lanes {
    let mut lanes = Lanes::default();
    let history = lock(history);
    let known: Vec<Option<Expected>> =
        used.iter().map(|device| history.expected(device, unit, units)).collect();
    drop(history);
    let is_core = |device: &Arc<PoolDevice>| device.device().0.describe().is_local_processor();
    let feeding = |device: &&Arc<PoolDevice>| {
        (!is_core(device)).then(|| task.workers(&device.device().0).max(1) as u64)
    };
    let feeders: u64 = used.iter().filter_map(|device| feeding(&device)).sum();
    for (device, expected) in used.iter().zip(known) {
        let (opened, _) = device.device();
        let mut workers = task.workers(&opened).max(1) as u64;
        if is_core(device) && opened.describe().part_of.is_none() {
            // A thread that feeds another device needs a core, or that device waits.
            workers = workers.saturating_sub(feeders).max(1);
        }
        let workers = workers.min(units).min(useful_workers(expected, units, is_core(device))) as usize;
        let (count, depth) = if opened.describe().is_local_processor() { (workers, 1) } else { (1, workers) };
        let spec = LaneSpec {
            depth,
            max_items: Some(MAX_DIVISIBLE_ITEMS / unit.max(1)).filter(|_| task.is_divisible(&opened)),
            may_hang: task.may_hang(&opened),
            divisible: task.is_divisible(&opened),
            // The cores of a processor share its score.
            score: device.score / count as f64,
            launch_seconds: 0.0,
            expected,
        };
        let first = lanes.specs.len();
        lanes.device_lanes.push(DeviceLanes { id: device.id.to_string(), lanes: first..first + count });
        lanes.devices.extend(std::iter::repeat_n(device.clone(), count));
        lanes.specs.extend(std::iter::repeat_n(spec, count));
    }
    lanes
}

/// An error in a report. A compiler's log may be long.
fn failure_text(error: &Error) -> String {
    const LONGEST: usize = 4_000;
    let text = error.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Revokes the items and closes the result slots when a run returns or unwinds.
struct RunGuard<'s, T: Task> {
    shared: &'s Arc<RunContext<T, SliceData<T>>>,
    /// Whether `watch` has returned, so that `execute_with` takes the results.
    is_watched: bool,
}

impl<T: Task> Drop for RunGuard<'_, T> {
    fn drop(&mut self) {
        self.shared.stop();
        let SliceData { items, results } = &self.shared.data;
        items.revoke();
        results.close();
        if !self.is_watched {
            // `watch` has panicked, in the user's progress callback, and this thread unwinds. The results are dropped here,
            // and a second panic, of a result's drop, would abort the process.
            let mut core = self.shared.core();
            let accepted = std::mem::take(&mut core.accepted);
            let error = Some("the code of the program that was told the progress has panicked".into());
            self.shared.tell_end(&mut core, |_, _| RunEnd { error, report: None });
            drop(core);
            // SAFETY: `finish` writes exactly the units that it accepts.
            #[allow(unsafe_code)]
            contain(|| drop(unsafe { results.take(&accepted) }));
        }
    }
}

/// Number of workers that this many units are worth: waking a thread takes about as long as some runs, and the second
/// worker of a GPU only hides copies.
fn useful_workers(expected: Option<Expected>, units: u64, is_core: bool) -> u64 {
    let waking = if is_core { 75e-6 } else { 300e-6 };
    expected.map_or(u64::MAX, |it| (it.seconds_per_item * units as f64 / waking).max(1.0) as u64)
}

/// The lane on which the calling thread works itself: a lane of plain code on whole cores, in a run that is expected to
/// end soon after another thread would wake.
fn caller_lane(devices: &[Arc<PoolDevice>], specs: &[LaneSpec], units: u64) -> Option<usize> {
    const SHORT: f64 = 0.005;
    let rate: f64 =
        specs.iter().map(|spec| spec.expected.map_or(0.0, |it| it.seconds_per_item.recip())).sum();
    let is_short = units as f64 / rate < SHORT;
    let is_plain = |lane: &usize| {
        specs[*lane].divisible
            && !specs[*lane].may_hang
            && devices[*lane].device().0.describe().part_of.is_none()
    };
    (0..specs.len()).find(is_plain).filter(|_| is_short)
}

/// The key of a device's history: another card in the same slot is another device, and so is another partition.
pub(super) fn history_name(device: &Device) -> String {
    let units = device.describe().compute_units.unwrap_or_default();
    format!("{} ({}, {units})", device.id(), device.describe().name)
}

/// The key of a task's history: its name, and a hash of what else tells it from other tasks.
pub(super) fn task_key<T: Task>(task: &T) -> Arc<str> {
    let mut hasher = DefaultHasher::new();
    (type_name::<T>(), size_of::<T::Input>(), size_of::<T::Output>(), task.fingerprint()).hash(&mut hasher);
    format!("{} {:016x}", task.name(), hasher.finish()).into()
}

fn trace_lanes(devices: &[DeviceLanes]) -> Vec<String> {
    let name = |device: &DeviceLanes, lane: usize, lanes: &Range<usize>| match lanes.len() {
        1 => device.id.clone(),
        _ => format!("{} lane {}", device.id, lane - lanes.start),
    };
    devices.iter().flat_map(|it| it.lanes.clone().map(move |lane| name(it, lane, &it.lanes))).collect()
}

#[cfg(test)]
mod test {
    use evener_device::Kernel;

    use super::*;
    use crate::task::{Closure, KernelTask};

    #[test]
    fn tasks_that_differ_in_source_type_or_name_have_histories_of_their_own() {
        let body = "@compute @workgroup_size(64) fn body() {}";
        let task = |source: &'static str| KernelTask::<u32, u32>::new(&Kernel::new("body").wgsl(source));
        let key = task_key(&task(body));
        assert_eq!(key, task_key(&task(body)));
        assert_ne!(key, task_key(&task("@compute @workgroup_size(64) fn body() { }")));
        assert_ne!(key, task_key(&KernelTask::<u32, u64>::new(&Kernel::new("body").wgsl(body))));
        let [one, other] = ["one", "other"].map(|name| task_key(&Closure::new(name, |&item: &u32| item)));
        assert_ne!(one, other);
    }
}
