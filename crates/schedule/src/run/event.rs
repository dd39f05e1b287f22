//! The types of a run's events and answers.

use std::{ops::Range, time::Duration};

use evener_device::{Error, Severity};

/// Time since the run began.
pub type Time = Duration;

/// A lane's index in the run.
pub type LaneIndex = usize;

/// How items are divided between lanes.
#[derive(Debug, Clone, PartialEq)]
pub enum Shares {
    /// Lanes pull chunks whose sizes follow their measured speed.
    Pulled,
    /// Each lane gets a fixed number of items at once.
    Fixed(Vec<u64>),
}

/// The properties of a lane before anything is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaneSpec {
    /// Maximum chunks in flight, up to 16. Two hide copies behind compute.
    pub depth: usize,
    /// Maximum items that fit its memory, if known.
    pub max_items: Option<u64>,
    /// Whether a chunk may never end, as on a GPU. A run waits for plain code on the processor, up to the user's limit.
    pub may_hang: bool,
    /// Whether other lanes can steal the items of a chunk that it has not begun: it works item by item, and claims each item
    /// before it begins it.
    pub divisible: bool,
    /// Its strength relative to other lanes, used until a chunk of the lane is measured.
    pub score: f64,
    /// Overhead of a chunk in seconds, used until a chunk of the lane is measured.
    pub launch_seconds: f64,
    /// Measurements of earlier runs of the same task, used until this run has its own.
    pub expected: Option<Expected>,
}

impl Default for LaneSpec {
    /// An unknown device with one chunk in flight.
    fn default() -> Self {
        LaneSpec {
            depth: 1,
            max_items: None,
            may_hang: true,
            divisible: false,
            score: 1.0,
            launch_seconds: 0.0,
            expected: None,
        }
    }
}

/// Measurements of a lane in earlier runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Seconds per item, overhead included.
    pub seconds_per_item: f64,
    /// Overhead of a chunk in seconds, or `None` if all chunks had the same size, so that it is unknown.
    pub overhead_seconds: Option<f64>,
    /// Items in the largest chunk that it finished.
    pub largest: f64,
}

/// Settings of a run. The defaults suit runs from milliseconds to days. No value is refused: numbers that are negative or NaN
/// count as zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Minimum time of a chunk, as a fraction of the expected time of the run. It bounds the imbalance at the end.
    pub min_fraction: f64,
    /// Maximum time of all chunks in flight on a lane, as a fraction of the expected time of the run. It bounds the cost of a
    /// failure.
    pub max_fraction: f64,
    /// Lower bound of the time that `max_fraction` allows: a chunk may always take this long, even in a short run.
    pub max_time_floor: Duration,
    /// A run of one lane that should take less than this is split into no more chunks than the lane can have in flight.
    pub unsplit_run_under: Duration,
    /// Minimum time of a chunk, as a multiple of the lane's overhead.
    pub min_overheads: f64,
    /// Maximum size of a lane's next chunk, as a multiple of the largest that it has finished.
    pub max_growth: f64,
    /// Minimum time that a chunk goes on after other lanes have done all of its items before it counts as hung.
    pub hung_after: Duration,
    /// Minimum time of a chunk that counts as hung, as a multiple of the time that other lanes took for its items.
    pub hung_factor: f64,
    /// Maximum time of a chunk, set by the user. A chunk that takes longer has hung. If it is set, it is the only limit.
    pub chunk_limit: Option<Duration>,
    /// Minimum time without the end of a chunk before a run fails in which every lane has a chunk in flight that may hang.
    pub silence: Duration,
    /// Minimum of `silence`, as a multiple of the longest chunk so far or of the expected time of the chunks in flight.
    pub silence_factor: f64,
    /// If every lane is quarantined, the run fails after this long without one that takes work again. The run waits this
    /// long even if no lane can return, as when the pool's only device uses a destroyed `wgpu::Device`: shorten it then.
    pub return_limit: Duration,
    /// Time of the first quarantine. Each later one is twice as long.
    pub first_quarantine: Duration,
    /// Maximum time of a quarantine.
    pub max_quarantine: Duration,
    /// Time between two checks of an idle lane for stragglers.
    pub straggler_check: Duration,
    /// Whether an idle lane runs a speculative copy of the chunk that would end last.
    pub speculative_copies: bool,
    /// A chunk of plain code that should take less than this gets no speculative copy: it would end before the copy does.
    pub no_copy_under: Duration,
    /// Maximum items per call of the task. A chunk that other lanes can steal from may have more: its lane runs it in parts,
    /// one after another. If a part fails, the whole chunk is done again. `map_reduce` over many items rounds it up to a
    /// block, whose results are combined in a fixed order. Zero counts as one.
    pub max_items: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            min_fraction: 0.002,
            max_fraction: 1.0 / 16.0,
            max_time_floor: Duration::from_micros(200),
            unsplit_run_under: Duration::from_micros(600),
            min_overheads: 4.0,
            max_growth: 8.0,
            hung_after: Duration::from_millis(500),
            hung_factor: 10.0,
            chunk_limit: None,
            silence: Duration::from_secs(60),
            silence_factor: 100.0,
            return_limit: Duration::from_secs(30),
            first_quarantine: Duration::from_millis(100),
            max_quarantine: Duration::from_millis(3_200),
            straggler_check: Duration::from_millis(1),
            speculative_copies: true,
            no_copy_under: Duration::from_micros(250),
            max_items: None,
        }
    }
}

/// Why a lane runs a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Its items were not tried before, or were given back.
    Work,
    /// A speculative copy of items that another lane has in flight and would finish later.
    Speculative,
    /// Items of another lane's chunk that it had not begun.
    Steal,
    /// A small chunk that shows whether a lane that failed works again.
    Canary,
}

/// A contiguous range of items, handed to one lane at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneChunk {
    /// Its number, by which its end is reported. Never used twice.
    pub id: u64,
    /// The lane that runs it.
    pub lane: LaneIndex,
    /// The items.
    pub items: Range<u64>,
    /// Why it runs.
    pub purpose: Purpose,
    /// Whether no other lane runs any of these items while this chunk is in flight. Stolen items leave the chunk.
    pub exclusive: bool,
    /// Maximum items per call of the task.
    pub at_once: u64,
}

/// What a lane that asked for work does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Run this chunk.
    Run(LaneChunk),
    /// Take items that its lane has not begun from the end of a chunk, and report them with
    /// [`Run::stolen`](super::Run::stolen).
    Steal {
        /// The chunk's number.
        from: u64,
        /// The fraction of the items that are not begun.
        fraction: f64,
        /// Maximum items to take.
        max_items: u64,
    },
    /// Ask again when a chunk ended or items arrived, and at `until` at the latest.
    Wait {
        /// When to ask again at the latest; `None` if only the end of a chunk or new items can change the answer.
        until: Option<Time>,
    },
    /// The run has ended.
    Ended,
}

/// What to do with a chunk's results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Accept all of them.
    Accept,
    /// Accept those of these items: those of the others were accepted from other lanes before.
    AcceptPart(Vec<Range<u64>>),
    /// Drop them: the results of all items were accepted from other lanes before.
    Drop,
}

/// The kind of a failure, which decides what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The chunk did not fit into memory: smaller ones may.
    TooLarge,
    /// The device was lost, hung, or gave a wrong result: its lane is quarantined.
    Untrusted,
    /// The lane cannot run this task at all: it is retired.
    Unable,
    /// The task itself failed, and would fail on any lane.
    Task,
}

impl From<&Error> for FailureKind {
    fn from(error: &Error) -> Self {
        match error.severity() {
            Severity::Shrink => FailureKind::TooLarge,
            Severity::Quarantine => FailureKind::Untrusted,
            Severity::Final if matches!(error, Error::Task { .. }) => FailureKind::Task,
            // What a device cannot do or compile now, it cannot do later in the run either.
            Severity::Final => FailureKind::Unable,
        }
    }
}

/// How a run has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every item has exactly one accepted result.
    Complete,
    /// The task failed on an item of this range.
    TaskFailed(Range<u64>),
    /// Every lane has failed or is silent.
    NoLaneLeft,
    /// The caller stopped it.
    Stopped,
}

/// The counters of one lane in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Items whose results were accepted from this lane.
    pub items: u64,
    /// Chunks that it finished, accepted or not.
    pub chunks: u64,
    /// Chunks that failed on it and were given back.
    pub retries: u64,
    /// Speculative copies of other lanes' chunks that it ran and whose results were accepted.
    pub speculative: u64,
    /// Chunks that it stole from other lanes.
    pub steals: u64,
    /// Chunks whose results were dropped.
    pub dropped: u64,
    /// How often it was quarantined.
    pub quarantines: u64,
    /// How often that was because a chunk had hung.
    pub hangs: u64,
}
