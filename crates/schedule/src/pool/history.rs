//! What a job has learned from its earlier runs.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::{execute::history_name, shared_model::SharedModel};
use crate::{
    executor::PoolDevice,
    hybrid::{Measurements, size_class},
    recorder::DeviceLanes,
    report::{DeviceReport, LeftOut, Report},
    run::{Expected, Run},
};

/// A choice of devices is kept until its runs took this many times as long as making the choice.
const DECISION_WORTH: u32 = 100;
/// Maximum decision time that counts. Longer ones are rare: the model was read from a file, or another thread had the
/// core.
const MAX_DECISION_TIME: Duration = Duration::from_micros(50);
/// After this many runs the learned overhead of a chunk is dropped once.
const OVERHEAD_RESET_RUNS: u32 = 16;

/// What a job has learned from its earlier runs.
#[derive(Debug)]
pub(super) struct JobHistory {
    /// The key of the task's history.
    pub(super) task: Arc<str>,
    pub(super) model: Arc<SharedModel>,
    /// The learned times of each device's lanes, by the items per unit and the size of the run: a short run is mostly
    /// overhead, and says little about a long one.
    expected: HashMap<(usize, u64), BTreeMap<u32, Expected>>,
    /// Number of runs.
    runs: u32,
    /// Items per second of each device alone.
    pub(super) solo_rates: HashMap<usize, f64>,
    /// The current choice of devices, by size class.
    choices: BTreeMap<u32, CachedChoice>,
}

/// The devices that a run uses.
#[derive(Debug, Clone)]
pub(super) struct RunDevices {
    pub(super) devices: Vec<Arc<PoolDevice>>,
    /// The devices that join if these fail, or do not respond.
    pub(super) reserve: Vec<Arc<PoolDevice>>,
    pub(super) left_out: Arc<[LeftOut]>,
    pub(super) predicted: Option<Duration>,
    /// Whether the choice should not be kept for long: it is a trial, or another may be faster.
    pub(super) is_provisional: bool,
    /// Whether the choice is new, so that the model can learn from its outcome.
    pub(super) fresh: bool,
}

impl RunDevices {
    /// Whether both have the same devices.
    fn is_like(&self, other: &RunDevices) -> bool {
        let index = |device: &Arc<PoolDevice>| device.index;
        self.devices.iter().map(index).eq(other.devices.iter().map(index))
    }
}

#[derive(Debug)]
struct CachedChoice {
    selection: RunDevices,
    /// How long the decision took.
    deciding: Duration,
    /// The total time of the runs with this choice.
    used: Duration,
    /// The times of the first runs with this choice, and their items.
    timed_runs: Vec<(Duration, u64)>,
    /// Which of the devices have done an item.
    have_worked: Vec<bool>,
}

impl CachedChoice {
    fn new(selection: RunDevices, deciding: Duration) -> Self {
        let have_worked = vec![false; selection.devices.len()];
        CachedChoice { selection, deciding, used: Duration::ZERO, timed_runs: Vec::new(), have_worked }
    }

    /// Whether the choice should be made anew.
    fn is_outdated(&self) -> bool {
        if self.selection.is_provisional {
            self.timed_runs.len() >= EXPLORATION_RUNS || self.used >= EXPLORATION_TIME
        } else {
            self.used >= self.deciding * DECISION_WORTH
        }
    }

    /// Adds a run's time.
    fn add(&mut self, items: u64, wall: Duration, report: &Report) {
        self.used += wall;
        for (has_worked, device) in self.have_worked.iter_mut().zip(&report.devices) {
            *has_worked |= device.items > 0;
        }
        if self.timed_runs.len() < MAX_TIMED_RUNS {
            self.timed_runs.push((wall, items));
        }
    }

    /// The measurements of the runs, and the number of items: the lower quartile of the times, because disturbances
    /// only make a run longer.
    fn measurements(mut self) -> Option<(u64, Measurements)> {
        let each = |&(wall, items): &(Duration, u64)| wall.as_secs_f64() / items.max(1) as f64;
        self.timed_runs.sort_by(|a, b| each(a).total_cmp(&each(b)));
        let &(wall, items) = self.timed_runs.get(self.timed_runs.len() / 4)?;
        let name = |device: &Arc<PoolDevice>| history_name(&device.device().0);
        let devices: Vec<String> = self.selection.devices.iter().map(name).collect();
        let worked = devices.iter().zip(&self.have_worked).filter(|(_, has_worked)| **has_worked);
        let worked = worked.map(|(device, _)| device.clone()).collect();
        let runs = (self.used.as_secs_f64() / wall.as_secs_f64().max(1e-9)).round() as u32;
        Some((items, Measurements { devices, worked, wall, runs: runs.max(1) }))
    }
}

/// Maximum number of runs of one choice that are timed individually.
const MAX_TIMED_RUNS: usize = 64;
/// A trial ends after this many runs, or this much time. The first runs with devices that were idle for a while take
/// longer than the next.
const EXPLORATION_RUNS: usize = 8;
const EXPLORATION_TIME: Duration = Duration::from_millis(20);

impl JobHistory {
    pub(super) fn new(task: Arc<str>, model: Arc<SharedModel>) -> Self {
        JobHistory {
            task,
            model,
            expected: HashMap::new(),
            runs: 0,
            solo_rates: HashMap::new(),
            choices: BTreeMap::new(),
        }
    }

    /// The learned times of a device's lanes in the run with the most similar number of units.
    pub(super) fn expected(&self, device: &PoolDevice, unit: u64, units: u64) -> Option<Expected> {
        let sizes = self.expected.get(&(device.index, unit))?;
        let size = units.max(1).ilog2();
        sizes.iter().min_by_key(|(known, _)| known.abs_diff(size)).map(|(_, expected)| *expected)
    }

    /// Keeps the learned times of a run's lanes.
    pub(super) fn record_lanes(
        &mut self,
        run: &Run,
        devices: &[Arc<PoolDevice>],
        device_lanes: &[DeviceLanes],
        (unit, units): (u64, u64),
    ) {
        self.runs += 1;
        for (device, own) in devices.iter().zip(device_lanes) {
            let learned = own.lanes.clone().filter_map(|lane| run.learned(lane));
            // Of several lanes of one device, the one with the largest chunk is most precise.
            if let Some(best) = learned.max_by(|a, b| a.largest.total_cmp(&b.largest)) {
                let sizes = self.expected.entry((device.index, unit)).or_default();
                // The believed overhead decides the sizes of the chunks from which it is learned, so it is dropped now
                // and then.
                let forgets = self.runs.is_multiple_of(OVERHEAD_RESET_RUNS);
                let overhead_seconds = best.overhead_seconds.filter(|_| !forgets);
                sizes.insert(units.max(1).ilog2(), Expected { overhead_seconds, ..best });
            }
        }
    }

    /// The current choice for runs of about as many items.
    pub(super) fn cached_choice(&self, items: u64) -> Option<RunDevices> {
        let selection = &self.choices.get(&size_class(items))?.selection;
        Some(RunDevices { fresh: false, ..selection.clone() })
    }

    /// Keeps a choice, and how long it took to make, for the next runs of about as many items.
    pub(super) fn cache_choice(&mut self, items: u64, selection: &RunDevices, deciding: Duration) {
        let choice = CachedChoice::new(selection.clone(), deciding.min(MAX_DECISION_TIME));
        if let Some(before) = self.choices.insert(size_class(items), choice) {
            self.report_to_model(before);
        }
    }

    /// Records a successful run. The model gets the measurements once the choice should be made anew: at once, if
    /// devices in reserve had to help.
    pub(super) fn run_ended(
        &mut self,
        items: u64,
        selection: RunDevices,
        cold: &[bool],
        report: &Report,
        needed_help: bool,
    ) {
        let size = size_class(items);
        let wall = if needed_help { seconds(report.wall_s) } else { ready_wall(items, cold, report) };
        if needed_help {
            self.choices.remove(&size);
        }
        let Some(known) = self.choices.get_mut(&size).filter(|known| known.selection.is_like(&selection))
        else {
            let mut single_run = CachedChoice::new(selection, Duration::ZERO);
            single_run.add(items, wall, report);
            return self.report_to_model(single_run);
        };
        known.add(items, wall, report);
        if known.is_outdated()
            && let Some(choice) = self.choices.remove(&size)
        {
            self.report_to_model(choice);
        }
    }

    fn report_to_model(&self, choice: CachedChoice) {
        if let Some((items, measurements)) = choice.measurements() {
            self.model.with_model(|model| model.record_runs(&self.task, items, measurements));
        }
    }
}

impl Drop for JobHistory {
    fn drop(&mut self) {
        for choice in std::mem::take(&mut self.choices).into_values() {
            self.report_to_model(choice);
        }
    }
}

/// The time that a run would have taken if all its devices had been ready at its beginning, by each device's rate once
/// it was ready.
fn ready_wall(items: u64, cold: &[bool], report: &Report) -> Duration {
    let rate = |(device, &cold): (&DeviceReport, &bool)| {
        let startup_s = if cold { device.startup_s } else { 0.0 };
        device.items as f64 / (report.wall_s - startup_s).max(1e-9)
    };
    let rate: f64 = report.devices.iter().zip(cold).map(rate).sum();
    let ready = if cold.contains(&true) && rate > 0.0 { items as f64 / rate } else { report.wall_s };
    seconds(ready.min(report.wall_s))
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
