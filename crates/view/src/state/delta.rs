//! What has changed in a program since a view last looked.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{
    HISTORY, MAX_LOG,
    program::{Bar, ChunkInHand, DeviceState, DeviceTotals, LogLine, PastRun, Program, RunSummary, RunView},
    totals::{TaskTotals, replace},
};

/// What a view is sent: the whole at first, and when it has fallen too far behind, and then what has changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Update {
    /// All of it.
    Snapshot(Box<Program>),
    /// What has changed since the update before.
    Delta(Box<Delta>),
}

impl Update {
    /// The version that a view has once it has applied it.
    pub fn version(&self) -> u64 {
        match self {
            Update::Snapshot(program) => program.version,
            Update::Delta(delta) => delta.version,
        }
    }
}

/// What has changed in a program from one version to a later one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// The version that it applies to.
    pub from: u64,
    /// The version that it leads to.
    pub version: u64,
    /// When it was made.
    pub unix_s: f64,
    /// Events that were lost, in all.
    pub lost_events: u64,
    /// The ids of all runs that are shown: others are to be removed.
    pub shown: Vec<u64>,
    /// Runs that are new, or whose devices are others than before: they replace a run of the same id.
    pub new_runs: Vec<RunView>,
    /// Runs that have changed.
    pub runs: Vec<RunDelta>,
    /// The ids of all past runs that are kept: others are to be removed.
    pub kept_past: Vec<u64>,
    /// New past runs.
    pub past: Vec<PastRun>,
    /// New lines of the log.
    pub log: Vec<LogLine>,
    /// The totals of tasks whose runs have ended: they replace those of the same name.
    #[serde(default)]
    pub totals: Vec<TaskTotals>,
}

/// What has changed in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunDelta {
    /// All but the devices.
    pub summary: RunSummary,
    /// The devices that have changed.
    pub devices: Vec<DeviceDelta>,
}

/// What has changed in a device of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceDelta {
    /// Its index in the run.
    pub device: usize,
    /// Its state and counters.
    pub totals: DeviceTotals,
    /// New samples of its throughput.
    pub throughput: Vec<f64>,
    /// The lanes that have changed.
    pub lanes: Vec<LaneDelta>,
}

/// What has changed in a lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneDelta {
    /// Its index in the device.
    pub lane: usize,
    /// Whether it gets work.
    pub state: DeviceState,
    /// The chunks that it has in hand.
    pub in_hand: Vec<ChunkInHand>,
    /// New bars.
    pub bars: Vec<Bar>,
}

impl Program {
    /// Applies an update. Returns false, and changes nothing, if it is a delta to another version: the view then asks for
    /// a snapshot.
    pub fn apply(&mut self, update: Update) -> bool {
        let delta = match update {
            Update::Snapshot(program) => {
                *self = *program;
                return true;
            }
            Update::Delta(delta) => *delta,
        };
        if delta.from != self.version {
            return false;
        }
        (self.version, self.unix_s, self.lost_events) = (delta.version, delta.unix_s, delta.lost_events);
        for run in delta.new_runs {
            match self.runs.iter_mut().find(|it| it.summary.id == run.summary.id) {
                Some(known) => *known = run,
                None => self.runs.push(run),
            }
        }
        for changed in delta.runs {
            if let Some(run) = self.runs.iter_mut().find(|it| it.summary.id == changed.summary.id) {
                run.apply(changed);
            }
        }
        // The order is that of the program.
        let position = |id: u64| delta.shown.iter().position(|&shown| shown == id);
        self.runs.retain(|run| position(run.summary.id).is_some());
        self.runs.sort_by_key(|run| position(run.summary.id));
        self.past.extend(delta.past);
        self.past.retain(|run| delta.kept_past.contains(&run.summary.id));
        extend(&mut self.log, delta.log, MAX_LOG);
        replace(&mut self.totals, delta.totals);
        true
    }
}

impl RunView {
    fn apply(&mut self, changed: RunDelta) {
        self.summary = changed.summary;
        for changed in changed.devices {
            let Some(device) = self.devices.get_mut(changed.device) else { continue };
            device.totals = changed.totals;
            extend(&mut device.throughput, changed.throughput, HISTORY);
            for changed in changed.lanes {
                let Some(lane) = device.lanes.get_mut(changed.lane) else { continue };
                (lane.state, lane.in_hand) = (changed.state, changed.in_hand);
                extend(&mut lane.bars, changed.bars, self.max_bars);
            }
        }
    }
}

/// Appends to a list of the last `max` things.
pub(super) fn extend<T>(list: &mut VecDeque<T>, new: impl IntoIterator<Item = T>, max: usize) {
    for it in new {
        if list.len() >= max {
            list.pop_front();
        }
        list.push_back(it);
    }
}
