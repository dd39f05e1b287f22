//! What a job knows from its earlier runs.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::{chooser::Chooser, execute::history_name};
use crate::{
    executor::PoolDevice,
    hybrid::{Experience, size_class},
    recorder::DeviceLanes,
    report::{DeviceReport, LeftOut, Report},
    run::{Expected, Run},
};

/// Deciding which devices to use may take one part in so many of the time that the runs take.
const WORTH: u32 = 100;
/// It hardly ever takes longer than this. Where it does, because what is known had to be read from a file or because
/// another had the core, the next time it will not.
const DECIDING: Duration = Duration::from_micros(50);
/// Once in so many runs it is forgotten what a chunk costs beside its items.
const FORGETFUL: u32 = 16;

/// What a job knows from its earlier runs.
#[derive(Debug)]
pub(super) struct Memory {
    /// What the task's history is kept under.
    pub(super) task: Arc<str>,
    pub(super) chooser: Arc<Chooser>,
    /// What each device's lanes have shown, by the items of a unit and about how many units there were: a short run is
    /// mostly overhead, and says little about a long one.
    expected: HashMap<(usize, u64), BTreeMap<u32, Expected>>,
    /// Runs so far.
    runs: u32,
    /// Items a second of each device alone.
    pub(super) alone: HashMap<usize, f64>,
    /// Which devices runs of about so many items have used lately.
    choices: BTreeMap<u32, Remembered>,
}

/// Which devices a run uses.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    pub(super) seats: Vec<Arc<PoolDevice>>,
    /// The devices that could be used as well, should these fail or be silent.
    pub(super) reserve: Vec<Arc<PoolDevice>>,
    pub(super) left_out: Arc<[LeftOut]>,
    pub(super) predicted: Option<Duration>,
    /// Whether it is to find something out, and something else may be faster.
    pub(super) explores: bool,
    /// Whether it was decided just now, so that something can be learned from how it turns out.
    pub(super) fresh: bool,
}

impl Selection {
    /// Whether it is of the same devices.
    fn is_like(&self, other: &Selection) -> bool {
        let index = |seat: &Arc<PoolDevice>| seat.index;
        self.seats.iter().map(index).eq(other.seats.iter().map(index))
    }
}

#[derive(Debug)]
struct Remembered {
    selection: Selection,
    /// How long deciding took.
    deciding: Duration,
    /// How long the runs took that have used it since, in all and one by one, with the items of each.
    used: Duration,
    walls: Vec<(Duration, u64)>,
    /// Which of the devices have done something.
    worked: Vec<bool>,
}

impl Remembered {
    fn new(selection: Selection, deciding: Duration) -> Self {
        let worked = vec![false; selection.seats.len()];
        Remembered { selection, deciding, used: Duration::ZERO, walls: Vec::new(), worked }
    }

    /// Whether it is worth deciding anew.
    fn is_over(&self) -> bool {
        if self.selection.explores {
            self.walls.len() >= EXPLORING || self.used >= EXPLORING_AT_MOST
        } else {
            self.used >= self.deciding * WORTH
        }
    }

    /// A run took so long.
    fn add(&mut self, items: u64, wall: Duration, report: &Report) {
        self.used += wall;
        for (worked, device) in self.worked.iter_mut().zip(&report.devices) {
            *worked |= device.items > 0;
        }
        if self.walls.len() < TIMED {
            self.walls.push((wall, items));
        }
    }

    /// What came of it: of how many items a run was, and how it went. It takes what the lower quartile of the runs took,
    /// since whatever disturbs a run only ever makes it longer.
    fn experience(mut self) -> Option<(u64, Experience)> {
        let each = |&(wall, items): &(Duration, u64)| wall.as_secs_f64() / items.max(1) as f64;
        self.walls.sort_by(|a, b| each(a).total_cmp(&each(b)));
        let &(wall, items) = self.walls.get(self.walls.len() / 4)?;
        let name = |seat: &Arc<PoolDevice>| history_name(&seat.device().0);
        let devices: Vec<String> = self.selection.seats.iter().map(name).collect();
        let worked = devices.iter().zip(&self.worked).filter(|(_, worked)| **worked);
        let worked = worked.map(|(device, _)| device.clone()).collect();
        let runs = (self.used.as_secs_f64() / wall.as_secs_f64().max(1e-9)).round() as u32;
        Some((items, Experience { devices, worked, wall, runs: runs.max(1) }))
    }
}

/// So many runs with one decision are timed one by one.
const TIMED: usize = 64;
/// So many runs, or runs for so long, tell enough of what was only tried: the first ones with devices that had nothing to
/// do for a while take longer than those that follow.
const EXPLORING: usize = 8;
const EXPLORING_AT_MOST: Duration = Duration::from_millis(20);

impl Memory {
    pub(super) fn new(task: Arc<str>, chooser: Arc<Chooser>) -> Self {
        Memory {
            task,
            chooser,
            expected: HashMap::new(),
            runs: 0,
            alone: HashMap::new(),
            choices: BTreeMap::new(),
        }
    }

    /// What a device's lanes have shown in the run that was most like one of so many units.
    pub(super) fn expected(&self, seat: &PoolDevice, unit: u64, units: u64) -> Option<Expected> {
        let sizes = self.expected.get(&(seat.index, unit))?;
        let size = units.max(1).ilog2();
        sizes.iter().min_by_key(|(known, _)| known.abs_diff(size)).map(|(_, expected)| *expected)
    }

    /// Keeps what the lanes of a run have shown.
    pub(super) fn remember(
        &mut self,
        run: &Run,
        seats: &[Arc<PoolDevice>],
        devices: &[DeviceLanes],
        (unit, units): (u64, u64),
    ) {
        self.runs += 1;
        for (seat, device) in seats.iter().zip(devices) {
            let learned = device.lanes.clone().filter_map(|lane| run.learned(lane));
            // Of several lanes of one device, the one that did most tells best.
            if let Some(best) = learned.max_by(|a, b| a.largest.total_cmp(&b.largest)) {
                let sizes = self.expected.entry((seat.index, unit)).or_default();
                // What is believed of a chunk's overhead decides which chunks there are to learn it from. So it is
                // forgotten now and then.
                let forgets = self.runs.is_multiple_of(FORGETFUL);
                let overhead_seconds = best.overhead_seconds.filter(|_| !forgets);
                sizes.insert(units.max(1).ilog2(), Expected { overhead_seconds, ..best });
            }
        }
    }

    /// The devices that runs of about as many items use for now.
    pub(super) fn lately(&self, items: u64) -> Option<Selection> {
        let selection = &self.choices.get(&size_class(items))?.selection;
        Some(Selection { fresh: false, ..selection.clone() })
    }

    /// Keeps a decision that took so long, for the next runs of about as many items.
    pub(super) fn decided(&mut self, items: u64, selection: &Selection, deciding: Duration) {
        let remembered = Remembered::new(selection.clone(), deciding.min(DECIDING));
        if let Some(before) = self.choices.insert(size_class(items), remembered) {
            self.tell(before);
        }
    }

    /// A run of so many items with these devices has ended well. The model is told once it is worth deciding anew: at once,
    /// where they needed the help of others.
    pub(super) fn took(
        &mut self,
        items: u64,
        selection: Selection,
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
            let mut once = Remembered::new(selection, Duration::ZERO);
            once.add(items, wall, report);
            return self.tell(once);
        };
        known.add(items, wall, report);
        if known.is_over()
            && let Some(over) = self.choices.remove(&size)
        {
            self.tell(over);
        }
    }

    fn tell(&self, remembered: Remembered) {
        if let Some((items, experience)) = remembered.experience() {
            self.chooser.with_model(|model| model.ended(&self.task, items, experience));
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for remembered in std::mem::take(&mut self.choices).into_values() {
            self.tell(remembered);
        }
    }
}

/// How long a run would have taken if all its devices had been ready when it began: each did its items in the time that
/// was left once it was.
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
