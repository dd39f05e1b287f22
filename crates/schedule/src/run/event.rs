//! The words in which a run is told what happened, and in which it answers.

use std::{ops::Range, time::Duration};

use evener_device::{Error, Severity};

/// Time since the run began.
pub type Time = Duration;

/// A lane's number in the run.
pub type LaneIndex = usize;

/// How items are shared out.
#[derive(Debug, Clone, PartialEq)]
pub enum Shares {
    /// Lanes pull chunks whose sizes follow their measured speed.
    Pulled,
    /// Each lane gets so many items, at once.
    Fixed(Vec<u64>),
}

/// What a lane is before anything was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaneSpec {
    /// How many chunks it has in flight at once, at most 16: two hide copies behind compute.
    pub depth: usize,
    /// The most items that fit its memory, where that is known.
    pub max_items: Option<u64>,
    /// Whether a chunk may never end, as a device's may. Plain code is waited for: nothing but the user's limit ends it.
    pub may_hang: bool,
    /// Whether other lanes can steal what it has not begun of a chunk: it works item by item, and claims each before it
    /// begins it.
    pub divisible: bool,
    /// How strong it is compared with the other lanes. It counts until something was measured.
    pub score: f64,
    /// Seconds that each chunk costs beside its items. It counts until something was measured.
    pub launch_seconds: f64,
    /// What earlier runs of the same task have shown. It counts until this run has shown better.
    pub expected: Option<Expected>,
}

impl Default for LaneSpec {
    /// A device of which nothing is known, with one chunk in hand at a time.
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

/// What earlier runs have shown of a lane.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Time an item, in seconds, overhead included.
    pub seconds_per_item: f64,
    /// What a chunk costs beside its items, in seconds; nothing where all were of one size, so that it cannot be told.
    pub overhead_seconds: Option<f64>,
    /// The largest chunk that it finished, in items.
    pub largest: f64,
}

/// What can be tuned. The defaults are good for runs from milliseconds to days.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// A chunk is to take at least this fraction of the expected time of the whole run: the price at the end.
    pub shortest_fraction: f64,
    /// What a lane has in hand is to take at most this fraction of the expected time of the whole run: the price of a
    /// failure.
    pub longest_fraction: f64,
    /// A chunk may always take this long, however short the run.
    pub longest_at_least: Duration,
    /// A run of one lane that should take less than this is not cut, but for as many chunks as the lane has in hand.
    pub whole_under: Duration,
    /// A chunk is to take at least so many times the lane's overhead.
    pub overheads: f64,
    /// A lane's next chunk is at most so many times the largest that it has finished.
    pub growth: f64,
    /// A chunk whose items others have done meanwhile has hung when it goes on for this long after that,
    pub hung_after: Duration,
    /// and for so many times as long as the others took.
    pub hung_factor: f64,
    /// Any chunk that takes this long has hung: the user's own limit. Where it is given, it is the only one.
    pub limit: Option<Duration>,
    /// Where every lane has a chunk in hand that may never end, the run ends with an error after this long without a
    /// sign of life,
    pub silence: Duration,
    /// and after so many times the longest chunk so far, or the time that a chunk in hand should take.
    pub silence_factor: f64,
    /// A run in which every lane is set aside waits this long for one of them to take work again. It does so too where none
    /// ever can, as with a pool whose only device is over a `wgpu::Device` that was destroyed: shorten it there.
    pub return_limit: Duration,
    /// The first quarantine; each later one is twice as long.
    pub cooldown: Duration,
    /// No quarantine is longer than this.
    pub longest_cooldown: Duration,
    /// So often an idle lane looks whether another has become late.
    pub look_again: Duration,
    /// Whether an idle lane runs a copy of what a slower one would finish last.
    pub rescue: bool,
    /// A chunk of plain code that should take less than this is not rescued: it would be done before a rescue is.
    pub exclusive_under: Duration,
    /// The most items that the task is given at once. A chunk that other lanes can steal from may have more: its lane does
    /// it in parts of at most so many, one after another. Where a part fails, the whole chunk is done again. `map_reduce`
    /// over many items gives some more at once: those of a block, whose results are combined in a fixed order.
    pub max_items: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            shortest_fraction: 0.002,
            longest_fraction: 1.0 / 16.0,
            longest_at_least: Duration::from_micros(200),
            whole_under: Duration::from_micros(600),
            overheads: 4.0,
            growth: 8.0,
            hung_after: Duration::from_millis(500),
            hung_factor: 10.0,
            limit: None,
            silence: Duration::from_secs(60),
            silence_factor: 100.0,
            return_limit: Duration::from_secs(30),
            cooldown: Duration::from_millis(100),
            longest_cooldown: Duration::from_millis(3_200),
            look_again: Duration::from_millis(1),
            rescue: true,
            exclusive_under: Duration::from_micros(250),
            max_items: None,
        }
    }
}

/// Why a chunk is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Its items were not tried before, or were given back.
    Work,
    /// A slower lane has the same items in hand and would finish them later.
    Rescue,
    /// Another lane had these items in hand and had not begun them.
    Steal,
    /// To see whether a lane that failed is well again.
    Canary,
}

/// A contiguous range of items, handed to one lane at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its number, by which its end is told. Never used twice.
    pub id: u64,
    /// Who runs it.
    pub lane: LaneIndex,
    /// The items.
    pub items: Range<u64>,
    /// Why.
    pub purpose: Purpose,
    /// Whether no other lane will run any of these items while this chunk is in flight. Items that are stolen from it
    /// are not its own any more.
    pub exclusive: bool,
    /// The most of them that the task may be given at once.
    pub at_once: u64,
}

/// What a lane that has room is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Run this.
    Run(Chunk),
    /// Take items from the end of a chunk that its lane has not begun, and tell [`Run::stolen`](super::Run::stolen).
    Steal {
        /// The chunk's number.
        from: u64,
        /// Which part of the items that are not begun is to be taken.
        part: f64,
        /// The most items to take.
        most: u64,
    },
    /// Ask again when something has changed, and at this time at the latest.
    Wait {
        /// When something changes by itself.
        until: Option<Time>,
    },
    /// The run has ended.
    Ended,
}

/// What to do with a chunk's results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All of them are the results of their items.
    Accept,
    /// Those of these items are; those of the others were accepted from other lanes before.
    AcceptPart(Vec<Range<u64>>),
    /// Other lanes' results were accepted before for all of the items: drop them.
    Drop,
}

/// What went wrong with a chunk, as far as it decides what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It did not fit: smaller ones may.
    TooLarge,
    /// The lane is not to be trusted for now: lost, hung or wrong.
    Untrusted,
    /// The lane cannot do this task at all.
    Unable,
    /// The task itself failed: it would anywhere.
    Task,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        match error.severity() {
            Severity::Shrink => Failure::TooLarge,
            Severity::Quarantine => Failure::Untrusted,
            Severity::Final if matches!(error, Error::Task { .. }) => Failure::Task,
            // What a device cannot do or compile now, it cannot later in the run.
            Severity::Final => Failure::Unable,
        }
    }
}

/// How a run has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every item has exactly one accepted result.
    Complete,
    /// The task failed on one of these items.
    TaskFailed(Range<u64>),
    /// No lane is left to trust.
    NoLaneLeft,
    /// It was ended from outside.
    Stopped,
}

/// What was counted in a run, for one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Items whose accepted results are this lane's.
    pub items: u64,
    /// Chunks that it finished, accepted or not.
    pub chunks: u64,
    /// Chunks of it that failed and were given back.
    pub retries: u64,
    /// Chunks that it ran because another lane would have finished them later, and that were accepted.
    pub rescues: u64,
    /// Chunks that it took from what another lane had not begun.
    pub steals: u64,
    /// Chunks whose results were dropped.
    pub dropped: u64,
    /// Times it was put into quarantine.
    pub quarantines: u64,
}
