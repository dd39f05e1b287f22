//! What a view shows: a snapshot of one program.

use std::collections::VecDeque;

use evener_schedule::{
    LeftOut, Report,
    events::{QueueProgress, RunKind},
};
use serde::{Deserialize, Serialize};

use super::totals::TaskTotals;

/// A program: what its runs and queues do now, and what they did.
///
/// Times named `unix_s` are seconds since 1970. All other times are seconds since the run began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its process id.
    pub pid: u32,
    /// The name of its executable.
    pub name: String,
    /// The version of this snapshot. It grows with every change.
    pub version: u64,
    /// When the snapshot was made.
    pub unix_s: f64,
    /// Events that were lost because the program wrote them faster than they were read: the counters may be too low until
    /// the runs' next status.
    pub lost_events: u64,
    /// The runs and queues of now, and the last ones that have ended; the newest last.
    pub runs: Vec<RunView>,
    /// The last runs that have ended, with their reports; the newest last.
    pub past: VecDeque<PastRun>,
    /// The last decisions in words; the newest last.
    pub log: VecDeque<LogLine>,
    /// What the runs that have ended did, by task.
    #[serde(default)]
    pub totals: Vec<TaskTotals>,
}

/// A run or a queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    /// All but the devices.
    pub summary: RunSummary,
    /// The devices that take part.
    pub devices: Vec<DeviceView>,
    /// The devices that do not take part, and why.
    pub left_out: Vec<LeftOut>,
    /// Maximum bars that are kept for each lane.
    pub max_bars: usize,
}

/// A run without its devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Its number in the program.
    pub id: u64,
    /// The task's name.
    pub task: String,
    /// How it gets its items.
    pub kind: RunKind,
    /// The strategy's name.
    pub strategy: String,
    /// When it began.
    pub began_unix_s: f64,
    /// Time since it began, or that it took.
    pub elapsed_s: f64,
    /// The number of items, if it is known.
    pub items: Option<u64>,
    /// Items that are done.
    pub done: u64,
    /// Items per second over the whole run so far.
    pub items_per_second: f64,
    /// Estimated remaining time.
    pub remaining_s: Option<f64>,
    /// Predicted time, if there was a prediction.
    pub predicted_s: Option<f64>,
    /// The efficiency so far, or of the run if it has ended.
    pub efficiency: Option<f64>,
    /// The guaranteed efficiency, once every item is handed out.
    pub bound: Option<f64>,
    /// The chunk that the run waits for, if no results came for ten seconds.
    pub waiting_for: Option<String>,
    /// The pieces of a queue.
    pub queue: Option<QueueProgress>,
    /// How it has ended, if it has.
    pub ended: Option<RunEnding>,
}

/// How a run has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEnding {
    /// When.
    pub unix_s: f64,
    /// The error, if it failed or was cancelled.
    pub error: Option<String>,
}

/// A device in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceView {
    /// Its id.
    pub id: String,
    /// Its state and counters.
    pub totals: DeviceTotals,
    /// Items per second in each of the last intervals of [`SAMPLE_S`](super::SAMPLE_S) seconds; the newest last.
    pub throughput: VecDeque<f64>,
    /// Its lanes: one for each core of a processor, and one for any other device.
    pub lanes: Vec<LaneView>,
}

/// The state and counters of a device in a run, as its [`DeviceReport`](evener_schedule::DeviceReport) has them at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct DeviceTotals {
    /// Whether it gets work.
    pub state: DeviceState,
    /// Items whose results were accepted.
    pub items: u64,
    /// Chunks that it finished.
    pub chunks: u64,
    /// Items that it has in hand.
    pub in_hand: u64,
    /// Items per second of busy time, or `None` before its first item.
    pub items_per_second: Option<f64>,
    /// Mean time of its lanes with a chunk in flight.
    pub busy_s: f64,
    /// Chunks that failed on it and were done again.
    pub retries: u64,
    /// Speculative copies of slower devices' chunks whose results were accepted from it.
    pub speculative: u64,
    /// Chunks that it stole.
    pub steals: u64,
    /// Chunks whose results were dropped, because other devices delivered them first.
    pub dropped: u64,
    /// How often it was quarantined.
    pub quarantines: u64,
    /// How often that was because a chunk had hung.
    pub hangs: u64,
    /// Its last error.
    pub last_error: Option<String>,
}

/// Whether a lane or a device gets work. A device with several lanes is healthy if one of them is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase", tag = "is")]
pub enum DeviceState {
    /// It gets work.
    #[default]
    Healthy,
    /// It failed, and gets no work until then.
    Quarantined {
        /// When it is tried with a canary.
        until_s: f64,
    },
    /// It failed in a way that would repeat itself, and gets no more work in this run.
    Retired,
}

/// A lane of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct LaneView {
    /// Whether it gets work.
    pub state: DeviceState,
    /// The chunks that it has in hand.
    pub in_hand: Vec<ChunkInHand>,
    /// Its last chunks; the newest last.
    pub bars: VecDeque<Bar>,
}

/// A chunk that a lane has in hand.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ChunkInHand {
    /// Its number in the run.
    pub chunk: u64,
    /// Its first item.
    pub first: u64,
    /// The number of items.
    pub items: u64,
    /// Why the lane runs it.
    pub kind: BarKind,
    /// Since when.
    pub since_s: f64,
}

/// A span of a lane's time: a chunk from when it was handed out until it ended, or the preparation of the device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// What it was.
    pub kind: BarKind,
    /// The first item.
    pub first: u64,
    /// The number of items; zero for a preparation.
    pub items: u64,
    /// The start.
    pub from_s: f64,
    /// The end.
    pub until_s: f64,
}

/// What a lane did in a span of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BarKind {
    /// A chunk.
    Work,
    /// A speculative copy of another lane's chunk.
    Speculative,
    /// Items that the lane stole from another lane's chunk.
    Steal,
    /// A small chunk that shows whether a lane that failed works again.
    Canary,
    /// A chunk whose results were dropped, because other lanes delivered them first or the run had ended.
    Dropped,
    /// A chunk that failed, hung or was lost with its device.
    Failure,
    /// Preparing the device.
    Preparation,
}

/// A run that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PastRun {
    /// What it was, at its end.
    pub summary: RunSummary,
    /// Its report. Queues have none.
    pub report: Option<Report>,
}

/// A decision, in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    /// When.
    pub unix_s: f64,
    /// The run.
    pub run: u64,
    /// What was decided, or happened.
    pub text: String,
    /// Whether it is a failure.
    pub is_failure: bool,
}

impl RunView {
    /// Each device's part of the accepted items, from 0 to 1; zeros before the first.
    pub fn shares(&self) -> Vec<f64> {
        let all: u64 = self.devices.iter().map(|device| device.totals.items).sum();
        self.devices.iter().map(|device| device.totals.items as f64 / all.max(1) as f64).collect()
    }
}

impl Program {
    /// A run, by its number.
    pub fn run(&self, id: u64) -> Option<&RunView> {
        self.runs.iter().find(|run| run.summary.id == id)
    }

    /// The runs and queues that have not ended.
    pub fn active(&self) -> impl Iterator<Item = &RunView> {
        self.runs.iter().filter(|run| run.summary.ended.is_none())
    }
}
