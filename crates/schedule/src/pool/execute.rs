//! One run of a job, from its beginning to its end.

use std::{
    any::type_name,
    cell::OnceCell,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
    sync::{Arc, TryLockError},
    time::{Duration, Instant},
};

use evener_device::{Device, DeviceKind};

use super::{Job, Mapped, memory::Selection};
use crate::{
    account::{Account, DeviceLanes},
    contain::{contain, log},
    error::{Done, RunError},
    executor::{Fold, Reserve, Seat, Shared, Slice, Stopped},
    hybrid::{Candidate, Observation},
    progress::Reporter,
    report::{Calibrated, DeviceReport, LeftOut, Report},
    run::{Costs, Expected, LaneSpec, Run, Settings, Time},
    strategy::Strategy,
    sync::lock,
    task::{Lent, MOST_ITEMS, Slots, Task},
    trace::Trace,
};

/// Some of a pool's devices, and the lanes that each has in a run.
#[derive(Default)]
pub(super) struct Lanes {
    pub(super) devices: Vec<DeviceLanes>,
    /// The seat of each lane.
    pub(super) seats: Vec<Arc<Seat>>,
    pub(super) specs: Vec<LaneSpec>,
}

impl<T: Task> Job<'_, T> {
    /// Which devices a run of so many items uses: one that is named, or those that are worth it.
    pub(super) fn select(&self, only: Option<usize>, items: u64) -> Result<Selection, RunError> {
        let chooses = only.is_none()
            && self.options.chooses
            && self.options.strategy == Strategy::Adaptive
            && items > 0;
        let are_ready = |seats: &[Arc<Seat>]| seats.iter().all(|seat| self.common.shelf.has(seat));
        if chooses
            && let Some(lately) = lock(&self.common.memory).lately(items)
            && are_ready(&lately.seats)
        {
            return Ok(lately);
        }
        let begin = Instant::now();
        let mut seats = self.pool.usable(&self.task)?;
        let usable = |seat: &&Arc<Seat>| !seats.iter().any(|it| it.index == seat.index);
        let no_code = |seat: &Arc<Seat>| LeftOut {
            id: seat.id.to_string(),
            reason: "the task has no code for it".into(),
        };
        let mut left_out: Vec<LeftOut> = self.pool.inner().seats.iter().filter(usable).map(no_code).collect();
        if !chooses {
            seats.retain(|seat| only.is_none_or(|only| seat.index == only));
            return Ok(Selection {
                seats,
                reserve: Vec::new(),
                left_out: left_out.into(),
                predicted: None,
                explores: false,
                fresh: true,
            });
        }
        let candidate = |seat: &Arc<Seat>| {
            let (device, _) = seat.device();
            Candidate { device: history_name(&device), score: seat.score, cold: !self.common.shelf.has(seat) }
        };
        let candidates: Vec<Candidate> = seats.iter().map(candidate).collect();
        let chooser = &self.pool.inner().chooser;
        let choice = chooser.with_model(|model| model.choose(&self.common.key, items, &candidates));
        for (device, reason) in &choice.left_out {
            if let Some(index) = candidates.iter().position(|candidate| candidate.device == *device) {
                left_out.push(LeftOut { id: seats[index].id.to_string(), reason: reason.to_string() });
            }
        }
        let is_used = |name: &str| choice.used.iter().any(|used| used.device == name);
        let mut used = candidates.iter().map(|candidate| is_used(&candidate.device));
        let (seats, reserve): (Vec<_>, Vec<_>) =
            seats.into_iter().partition(|_| used.next().unwrap_or_default());
        let (left_out, predicted, explores) = (left_out.into(), choice.predicted, choice.explores);
        let selection = Selection { seats, reserve, left_out, predicted, explores, fresh: true };
        // Who is not ready yet takes longer now than the next times.
        if are_ready(&selection.seats) {
            lock(&self.common.memory).decided(items, &selection, begin.elapsed());
        }
        Ok(selection)
    }

    /// The lanes of some devices: one a core of the processor, but for those that feed other devices; and one of every
    /// other device, with as many chunks in hand as the task wants. No more than there are units to do.
    pub(super) fn lanes(&self, used: &[Arc<Seat>], units: u64, unit: u64) -> Lanes {
        let mut lanes = Lanes::default();
        let memory = lock(&self.common.memory);
        let known: Vec<Option<Expected>> =
            used.iter().map(|seat| memory.expected(seat, unit, units)).collect();
        drop(memory);
        let is_core = |seat: &Arc<Seat>| seat.device().0.describe().kind == DeviceKind::Cpu;
        let feeding =
            |seat: &&Arc<Seat>| (!is_core(seat)).then(|| self.task.hands(&seat.device().0).max(1) as u64);
        let feeders: u64 = used.iter().filter_map(|seat| feeding(&seat)).sum();
        for (seat, expected) in used.iter().zip(known) {
            let (device, _) = seat.device();
            let mut hands = self.task.hands(&device).max(1) as u64;
            if is_core(seat) && device.describe().part_of.is_none() {
                // Whoever feeds another device needs a core, and that device waits where there is none.
                hands = hands.saturating_sub(feeders).max(1);
            }
            let hands = hands.min(units).min(worth_waking(expected, units, is_core(seat))) as usize;
            let (count, depth) =
                if device.describe().kind == DeviceKind::Cpu { (hands, 1) } else { (1, hands) };
            let spec = LaneSpec {
                depth,
                max_items: Some(MOST_ITEMS / unit.max(1)).filter(|_| self.task.is_divisible(&device)),
                may_hang: self.task.may_hang(&device),
                divisible: self.task.is_divisible(&device),
                // That of a processor is shared by its cores.
                score: seat.score / count as f64,
                launch_seconds: 0.0,
                expected,
            };
            let first = lanes.specs.len();
            lanes.devices.push(DeviceLanes { id: seat.id.to_string(), lanes: first..first + count });
            lanes.seats.extend(std::iter::repeat_n(seat.clone(), count));
            lanes.specs.extend(std::iter::repeat_n(spec, count));
        }
        lanes
    }

    pub(super) fn execute(
        &self,
        items: &[T::Input],
        unit: u64,
        fold: Option<Fold<T::Output>>,
        only: Option<usize>,
    ) -> Result<Mapped<T::Output>, RunError> {
        self.execute_with(self.options.settings, items, unit, fold, only, Slots::new)
    }

    /// One run, from its beginning to its end. It counts in units of so many items, each of which has one result, for
    /// which there are slots.
    pub(super) fn execute_with(
        &self,
        settings: Settings,
        items: &[T::Input],
        unit: u64,
        fold: Option<Fold<T::Output>>,
        only: Option<usize>,
        slots: impl FnOnce(usize) -> Slots<T::Output>,
    ) -> Result<Mapped<T::Output>, RunError> {
        let count = items.len() as u64;
        let units = count.div_ceil(unit);
        // A run that is over before it begins begins nothing.
        if let Some(stopped) = self.options.control.stopped(|| Time::ZERO).filter(|_| count > 0) {
            return Err(stopped.error(Done::default(), count));
        }
        let selection = self.select(only, count)?;
        let Selection { mut seats, reserve, left_out, predicted, .. } = selection.clone();
        let cold: Vec<bool> = seats.iter().map(|seat| !self.common.shelf.has(seat)).collect();
        let lanes = self.lanes(&seats, units, unit);
        let mut run = self.decide(settings, &seats, &lanes, (unit, units), items);
        let Lanes { mut devices, seats: lane_seats, specs } = lanes;
        if !reserve.is_empty() {
            run = run.with_reserve();
        }
        let own = own_lane(&lane_seats, &specs, units);
        let hands = specs.iter().enumerate();
        let hands: Vec<usize> =
            hands.map(|(lane, spec)| if own == Some(lane) { 0 } else { spec.depth }).collect();
        // SAFETY: `borrowed` takes the items back before this function returns, in whatever way it does.
        #[allow(unsafe_code)]
        let lent = unsafe { Lent::new(items) };
        let ends = Slice { items: lent, results: slots(units as usize) };
        let shared = Arc::new(Shared::new(
            self.task.clone(),
            run,
            Account::new(specs.len(), self.options.keeps_trace),
            lane_seats,
            ends,
            fold,
            (unit, count),
            self.common.shelf.clone(),
        ));
        let mut borrowed = Borrowed { shared: &shared, is_watched: false };
        log!(debug, task = self.task.name(), items = count, lanes = specs.len(), "a run begins");
        shared.begin(&hands);
        // Most runs never ask for the others, and short ones have no time to get them ready.
        let called_in = OnceCell::new();
        let call_in = || {
            let lanes = called_in.get_or_init(|| self.lanes(&reserve, units, unit));
            lanes.seats.iter().cloned().zip(lanes.specs.iter().copied()).collect()
        };
        let stopped = self.watch(&shared, &call_in, own);
        borrowed.is_watched = true;
        drop(borrowed);

        let mut core = shared.core();
        let wall = shared.now();
        let has_called_in = called_in.get().is_some();
        if let Some(called_in) = called_in.into_inner() {
            seats.extend(reserve);
            devices.extend(called_in.devices.into_iter().map(|DeviceLanes { id, lanes }| DeviceLanes {
                id,
                lanes: lanes.start + specs.len()..lanes.end + specs.len(),
            }));
        }
        let mut report = core.account.report(&core.run, &devices, count, wall, None);
        let spans = core.account.take_spans();
        let ending = shared.ending(&mut core, stopped, count);
        let accepted = std::mem::take(&mut core.accepted);
        // Only a run that ended well says how long one takes.
        if matches!(ending, Some(Ok(()))) {
            lock(&self.common.memory).remember(&core.run, &seats, &devices, (unit, units));
        }
        drop(core);
        // SAFETY: every unit that was accepted was written, by `finish`, and no other.
        #[allow(unsafe_code)]
        let results = unsafe { shared.ends.results.take(&accepted) };
        log!(debug, task = self.task.name(), ?ending, wall_s = report.wall_s, "a run has ended");
        // It is only ever left by one that has ended.
        ending.unwrap_or(Err(RunError::NoDevices))?;
        let results = results.ok_or(RunError::NoDevices)?;
        self.learn(&report, selection, &cold, only, has_called_in);
        report.task = Some(self.task.name().into());
        report.strategy = Some(self.options.strategy.name().into());
        report.left_out = left_out.to_vec();
        if has_called_in {
            report.left_out.retain(|left_out| !devices.iter().any(|device| device.id == left_out.id));
        }
        report.predicted_s = predicted.map(|predicted| predicted.as_secs_f64());
        report.calibrated = self.calibrated(&report, &seats);
        let lanes = trace_lanes(&devices);
        Ok(Mapped { results, report, trace: Trace { lanes, spans } })
    }

    /// The decisions of a run.
    fn decide(
        &self,
        settings: Settings,
        seats: &[Arc<Seat>],
        lanes: &Lanes,
        (unit, units): (u64, u64),
        items: &[T::Input],
    ) -> Run {
        let lane_counts: Vec<usize> = lanes.devices.iter().map(|device| device.lanes.len()).collect();
        // Asking how strong they are takes time that short runs do not have.
        let strengths =
            if self.options.strategy == Strategy::Adaptive { Vec::new() } else { self.strengths(seats) };
        let shares = self.options.strategy.shares(units, &strengths, &lane_counts);
        // A run counts in units, which are not parted.
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

    /// Score and utilization of each device, as far as the strategy asks for them. Rates that a calibration has
    /// measured count where every device has one, since they cannot be compared with scores.
    fn strengths(&self, seats: &[Arc<Seat>]) -> Vec<(f64, f64)> {
        let memory = lock(&self.common.memory);
        let measured = seats.iter().all(|seat| memory.alone.contains_key(&seat.index));
        let strength = |seat: &Arc<Seat>| {
            let (device, _) = seat.device();
            let known = memory.alone.get(&seat.index).copied().filter(|_| measured);
            let busy = if self.options.strategy == Strategy::Dynamic {
                device.telemetry().utilization
            } else {
                None
            };
            (known.unwrap_or(seat.score), busy.unwrap_or(0.0))
        };
        seats.iter().map(strength).collect()
    }

    fn watch(
        &self,
        shared: &Arc<Shared<T, Slice<T>>>,
        reserve: Reserve<'_>,
        own: Option<usize>,
    ) -> Option<Stopped> {
        // A job that runs twice at a time tells of one of the runs: the other must not wait for it.
        let mut tell = self.progress.as_ref().and_then(|listener| match listener.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Ok(listener) => Some(listener),
        });
        let mut reporter = tell.as_mut().map(|tell| Reporter::new(&mut ***tell));
        shared.watch(&self.options.control, reserve, &mut reporter, own)
    }

    /// Teaches the model what the devices did, where it was they who decided how much. Devices that were chosen and needed
    /// help took at least as long as the run.
    fn learn(
        &self,
        report: &Report,
        selection: Selection,
        cold: &[bool],
        only: Option<usize>,
        needed_help: bool,
    ) {
        if (self.options.strategy != Strategy::Adaptive && only.is_none()) || report.items == 0 {
            return;
        }
        let observation = |((seat, device), &cold): ((&Arc<Seat>, &DeviceReport), &bool)| {
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
                cold,
            }
        };
        let chooser = &self.pool.inner().chooser;
        if selection.fresh {
            let devices = selection.seats.iter().zip(&report.devices).zip(cold);
            chooser.with_model(|model| {
                for observation in devices.map(observation) {
                    model.observe(&self.common.key, &observation);
                }
            });
        }
        lock(&self.common.memory).took(report.items, selection, cold, report, needed_help);
        chooser.save_now_and_then();
    }

    /// How the run compares with the devices' rates alone, where all of them are known.
    fn calibrated(&self, report: &Report, seats: &[Arc<Seat>]) -> Option<Calibrated> {
        let memory = lock(&self.common.memory);
        let rates: Option<Vec<f64>> =
            seats.iter().map(|seat| memory.alone.get(&seat.index).copied()).collect();
        let ideal_s = report.items as f64 / rates?.iter().sum::<f64>();
        Some(Calibrated { ideal_s, efficiency: ideal_s / report.wall_s.max(f64::MIN_POSITIVE) })
    }
}

/// Takes the items back, and has nobody write results any more, however a run ends.
struct Borrowed<'s, T: Task> {
    shared: &'s Arc<Shared<T, Slice<T>>>,
    /// Whether the run was watched until its end, so that its results are taken by the one that has watched.
    is_watched: bool,
}

impl<T: Task> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        self.shared.stop();
        let Slice { items, results } = &self.shared.ends;
        items.take_back();
        results.close();
        if !self.is_watched {
            // The user's code that progress is told to has panicked. A second panic would end the process.
            let accepted = std::mem::take(&mut self.shared.core().accepted);
            // SAFETY: as where a run ends without a panic.
            #[allow(unsafe_code)]
            contain(|| drop(unsafe { results.take(&accepted) }));
        }
    }
}

/// How many hands so many units are worth: waking one takes about as long as some runs do, and a second one on a GPU only
/// helps to hide copies.
fn worth_waking(expected: Option<Expected>, units: u64, is_core: bool) -> u64 {
    let waking = if is_core { 75e-6 } else { 300e-6 };
    expected.map_or(u64::MAX, |it| (it.seconds_per_item * units as f64 / waking).max(1.0) as u64)
}

/// The lane that the thread which starts a run works on itself: one of plain code on whole cores, in a run that is
/// expected to be over before another thread would be awake for long.
fn own_lane(seats: &[Arc<Seat>], specs: &[LaneSpec], units: u64) -> Option<usize> {
    const SHORT: f64 = 0.005;
    let rate: f64 =
        specs.iter().map(|spec| spec.expected.map_or(0.0, |it| it.seconds_per_item.recip())).sum();
    let is_short = units as f64 / rate < SHORT;
    let is_plain = |lane: &usize| {
        specs[*lane].divisible
            && !specs[*lane].may_hang
            && seats[*lane].device().0.describe().part_of.is_none()
    };
    (0..specs.len()).find(is_plain).filter(|_| is_short)
}

/// What a device's history is kept under: another card in the same place is another device, and so is another part of one.
pub(super) fn history_name(device: &Device) -> String {
    let units = device.describe().compute_units.unwrap_or_default();
    format!("{} ({}, {units})", device.id(), device.describe().name)
}

/// What a task's history is kept under: its name, and what else tells it from other tasks.
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
