//! What a job knows from its earlier runs.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::{Seat, execute::history_name};
use crate::{
    account::DeviceLanes,
    hybrid::Experience,
    report::{DeviceReport, LeftOut},
    run::{Expected, Run},
};

/// Deciding which devices to use may take one part in so many of the time that the runs take.
const WORTH: u32 = 100;
/// It hardly ever takes longer than this. Where it does, because what is known had to be read from a file or because
/// another had the core, the next time it will not.
const DECIDING: Duration = Duration::from_micros(50);
/// Once in so many runs it is forgotten what a chunk costs beside its items.
const FORGETFUL: u32 = 16;
/// So many numbers of items are remembered.
const SIZES: usize = 64;

/// What a job knows from its earlier runs.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// What each device's lanes have shown, by the items of a unit and about how many units there were: a short run is
    /// mostly overhead, and says little about a long one.
    expected: HashMap<(usize, u64), BTreeMap<u32, Expected>>,
    /// Runs so far.
    runs: u32,
    /// Items a second of each device alone.
    pub(super) alone: HashMap<usize, f64>,
    /// Which devices runs of so many items have used lately.
    choices: HashMap<u64, Remembered>,
}

/// Which devices a run uses.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    pub(super) seats: Vec<Arc<Seat>>,
    pub(super) left_out: Arc<[LeftOut]>,
    pub(super) predicted: Option<Duration>,
    /// Whether it is to find something out, and something else may be faster.
    pub(super) explores: bool,
    /// Whether it was decided just now, so that something can be learned from how it turns out.
    pub(super) fresh: bool,
}

#[derive(Debug)]
struct Remembered {
    selection: Selection,
    /// How long deciding took.
    deciding: Duration,
    /// How long the runs took that have used it since, in all and one by one.
    used: Duration,
    walls: Vec<Duration>,
    /// Which of the devices have done something.
    worked: Vec<bool>,
}

impl Remembered {
    /// How long a run with it takes: the lower quartile, since whatever disturbs a run only ever makes it longer.
    fn wall(mut self) -> Option<Duration> {
        self.walls.sort_unstable();
        self.walls.get(self.walls.len() / 4).copied()
    }
}

/// So many runs with one decision are timed one by one.
const TIMED: usize = 64;
/// So many runs, or runs for so long, tell enough of what was only tried: the first ones with devices that had nothing to
/// do for a while take longer than those that follow.
const EXPLORING: usize = 8;
const EXPLORING_AT_MOST: Duration = Duration::from_millis(20);

impl Memory {
    /// What a device's lanes have shown in the run that was most like one of so many units.
    pub(super) fn expected(&self, seat: &Seat, unit: u64, units: u64) -> Option<Expected> {
        let sizes = self.expected.get(&(seat.index, unit))?;
        let size = units.max(1).ilog2();
        sizes.iter().min_by_key(|(known, _)| known.abs_diff(size)).map(|(_, expected)| *expected)
    }

    /// Keeps what the lanes of a run have shown.
    pub(super) fn remember(
        &mut self,
        run: &Run,
        seats: &[Arc<Seat>],
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

    /// The devices that a run of so many items used lately, unless it is worth deciding anew.
    pub(super) fn lately(&self, items: u64) -> Option<Selection> {
        let known = self.choices.get(&items)?;
        let stays = if known.selection.explores {
            known.walls.len() < EXPLORING && known.used < EXPLORING_AT_MOST
        } else {
            known.used < known.deciding * WORTH
        };
        stays.then(|| Selection { fresh: false, ..known.selection.clone() })
    }

    /// Keeps a decision that took so long, for the next runs of as many items.
    pub(super) fn decided(&mut self, items: u64, selection: &Selection, deciding: Duration) {
        if self.choices.len() >= SIZES {
            self.choices.clear();
        }
        let (deciding, worked) = (deciding.min(DECIDING), vec![false; selection.seats.len()]);
        let (selection, used, walls) = (selection.clone(), Duration::ZERO, Vec::new());
        self.choices.insert(items, Remembered { selection, deciding, used, walls, worked });
    }

    /// What came of the last decision for so many items, which is over.
    pub(super) fn experience(&mut self, items: u64) -> Option<Experience> {
        let known = self.choices.remove(&items)?;
        let name = |seat: &Arc<Seat>| history_name(&seat.device().0);
        let devices: Vec<String> = known.selection.seats.iter().map(name).collect();
        let worked = devices.iter().zip(&known.worked).filter(|(_, worked)| **worked);
        let worked = worked.map(|(device, _)| device.clone()).collect();
        let used = known.used;
        let wall = known.wall()?;
        let runs = used.as_secs_f64() / wall.as_secs_f64().max(1e-9);
        Some(Experience { devices, worked, wall, runs: runs.round() as u32 })
    }

    /// A run of so many items took so long, and this is what its devices did.
    pub(super) fn took(&mut self, items: u64, wall: Duration, devices: &[DeviceReport]) {
        if let Some(known) = self.choices.get_mut(&items) {
            known.used += wall;
            for (worked, device) in known.worked.iter_mut().zip(devices) {
                *worked |= device.items > 0;
            }
            if known.walls.len() < TIMED {
                known.walls.push(wall);
            }
        }
    }
}
