//! What the scheduler decides, as a stream of events that views follow.
//!
//! Every run of a pool and every queue writes to the stream of the process, [`stream`], while a reader is
//! [attached](EventStream::attach). The crate `evener-view` folds the events into what a view shows.
//!
//! ```
//! use evener_device::Device;
//! use evener_schedule::{Closure, Pool, events::{EventKind, stream}};
//!
//! let mut reader = stream().attach();
//! let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build()?;
//! pool.map(&Closure::new("square", |&number: &u64| number * number), &[1, 2, 3])?;
//! let mut events = Vec::new();
//! while reader.read(1_000, &mut events) {}
//! assert!(events.iter().any(|event| matches!(&event.kind, EventKind::Status(status) if status.task == "square")));
//! assert!(events.iter().any(|event| matches!(&event.kind, EventKind::RunEnded(_))));
//! # Ok::<(), evener_schedule::RunError>(())
//! ```

mod ring;
mod run_events;
mod stream;
#[cfg(test)]
mod test;

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

pub use self::{
    run_events::RunEvents,
    stream::{EventReader, EventStream, stream},
};
pub(crate) use self::{run_events::lane_number, stream::Followed};
use crate::{
    report::{LeftOut, Report},
    run::{LaneState, Purpose, Tally, Time},
};

/// One event of a run or a queue.
#[derive(Debug, Clone)]
pub struct Event {
    /// The number of the run or queue. No two of a process have the same.
    pub run: u64,
    /// When it happened, since the run began.
    pub at: Time,
    /// What happened.
    pub kind: EventKind,
}

/// What happened in a run or a queue. A lane is a number of the devices' lanes, in the order of [`RunStatus::devices`]; in a
/// queue, a device is one lane.
#[derive(Debug, Clone)]
pub enum EventKind {
    /// The whole state of the run: it has begun, devices have joined it, or a reader needs to know. It replaces what a reader
    /// knew of the run.
    Status(Arc<RunStatus>),
    /// A lane's device was prepared.
    Prepared {
        /// The lane.
        lane: u32,
        /// How long that took.
        took: Duration,
    },
    /// A chunk was handed out.
    ChunkBegan(ChunkEvent),
    /// A chunk has ended without an error.
    ChunkEnded {
        /// The chunk, with the items that it has computed.
        chunk: ChunkEvent,
        /// Items whose results were accepted; the others were accepted from other lanes before.
        accepted: u64,
        /// How long it kept the lane busy: less than the time since it began, if chunks overlap.
        busy: Duration,
        /// Time since it was handed out.
        took: Duration,
    },
    /// The task was called several times for the chunk that has just ended, which count as chunks in the report.
    ChunkParts {
        /// The lane.
        lane: u32,
        /// Chunks besides the one that was counted.
        more: u64,
    },
    /// A chunk has ended without results.
    ChunkLost {
        /// The chunk.
        chunk: ChunkEvent,
        /// Whether the lane failed; otherwise other lanes had delivered the results before, or the run has ended.
        failed: bool,
        /// How long it kept the lane busy.
        busy: Duration,
        /// Time since it was handed out.
        took: Duration,
    },
    /// A lane's state, or its counters of failures, after a failure or a canary.
    Lane {
        /// The lane.
        lane: u32,
        /// Whether it gets work.
        state: LaneState,
        /// Chunks that failed on it and were done again, so far.
        retries: u64,
        /// How often it was quarantined so far.
        quarantines: u64,
        /// How often that was because a chunk had hung.
        hangs: u64,
    },
    /// An error of a device, in words.
    Error {
        /// The device.
        device: Arc<str>,
        /// The error.
        reason: Arc<str>,
    },
    /// The progress of a run, some times a second.
    Progress(RunProgress),
    /// The pieces of a queue, some times a second.
    Queue(QueueProgress),
    /// The run has ended, or the queue was closed and all its pieces have their results.
    RunEnded(Arc<RunEnd>),
}

/// A chunk of a run, or a batch of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkEvent {
    /// The lane that runs it.
    pub lane: u32,
    /// Its number in the run. The copies of a queue's batch, on several lanes, have the same.
    pub chunk: u64,
    /// Its first item.
    pub first: u64,
    /// The number of items.
    pub items: u64,
    /// Why the lane runs it.
    pub purpose: Purpose,
}

/// How a run gets its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    /// A map over a slice.
    Map,
    /// A map over an iterator: the number of items is not known.
    Stream,
    /// A queue: a service to which pieces are submitted.
    Queue,
}

/// The state of a run or a queue at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct RunStatus {
    /// The task's name.
    pub task: String,
    /// How it gets its items.
    pub kind: RunKind,
    /// The strategy's name.
    pub strategy: &'static str,
    /// The number of items, if it is known.
    pub items: Option<u64>,
    /// The predicted time, if there was a prediction.
    pub predicted: Option<Duration>,
    /// The devices that take part.
    pub devices: Vec<DeviceStatus>,
    /// The devices that do not take part, and why.
    pub left_out: Vec<LeftOut>,
}

/// A device of a [`RunStatus`].
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceStatus {
    /// Its id.
    pub id: String,
    /// Its lanes.
    pub lanes: Vec<LaneStatus>,
}

/// A lane of a [`RunStatus`].
#[derive(Debug, Clone, PartialEq)]
pub struct LaneStatus {
    /// Whether it gets work.
    pub state: LaneState,
    /// Its counters so far.
    pub tally: Tally,
    /// Items whose results were accepted.
    pub items: u64,
    /// Time with a chunk in flight, and the part of it without accepted results.
    pub busy: Duration,
    /// The part of `busy` without accepted results.
    pub wasted: Duration,
    /// The chunks in flight, and since when.
    pub in_flight: Vec<(ChunkEvent, Time)>,
}

/// The progress of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunProgress {
    /// Items that are done. Those that a worker of plain code has begun count as done.
    pub done: u64,
    /// The number of items so far; a stream's may grow.
    pub items: Option<u64>,
    /// The ideal time of what is done divided by the time so far, at the rates that the devices had so far. `None` while no
    /// item is done.
    pub efficiency: Option<f64>,
    /// The efficiency that is guaranteed, once the last item is handed out, from the chunks that have ended since.
    pub bound: Option<f64>,
    /// The chunk that the run waits for, if no results came for ten seconds.
    pub waiting_for: Option<Arc<str>>,
}

/// The pieces of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueProgress {
    /// Pieces that were submitted so far.
    pub submitted: u64,
    /// Pieces that wait.
    pub queued: u64,
    /// Pieces without a result: waiting, or running.
    pub outstanding: u64,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEnd {
    /// The error, if the run failed or was cancelled.
    pub error: Option<String>,
    /// The run's report. A queue has none, nor has a run whose caller panicked.
    pub report: Option<Report>,
}
