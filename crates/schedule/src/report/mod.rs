//! The report of a run: what each device did, and how close to ideal the run came.

mod text;
mod totals;

use serde::{Deserialize, Serialize};

pub(crate) use self::text::{count_of, grouped};
pub use self::totals::RunTotals;

/// The report of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The task's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The strategy's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// The number of items.
    pub items: u64,
    /// The number of items with an accepted result: all of them, unless the run failed.
    pub done: u64,
    /// The time of the run.
    pub wall_s: f64,
    /// The time of a run in which no device is ever idle, at the rates that the devices had in this run.
    pub ideal_s: f64,
    /// The ideal time divided by the real time. A failed run has none.
    pub efficiency: Option<f64>,
    /// The efficiency that was guaranteed when the last item was handed out: the run ends at the latest after the longest time
    /// in flight of the items that were in flight then.
    pub bound: Option<f64>,
    /// A comparison with the fastest device alone. A failed run has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup: Option<Speedup>,
    /// A comparison with the rates that the devices have alone, if those were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Calibrated>,
    /// The predicted time of the run, if there was a prediction.
    pub predicted_s: Option<f64>,
    /// What each device did.
    pub devices: Vec<DeviceReport>,
    /// Devices that were not used, and why.
    pub left_out: Vec<LeftOut>,
}

/// A run compared with the fastest of its devices alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speedup {
    /// The fastest device.
    pub device: String,
    /// Its time for all items, at the rate it had in this run.
    pub alone_s: f64,
    /// That time divided by the real time.
    pub times: f64,
}

/// A run compared with the rates that its devices have when each works alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    /// The time of the run at the sum of those rates.
    pub ideal_s: f64,
    /// That time divided by the real time.
    pub efficiency: f64,
}

/// A device that was not used in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its id.
    pub id: String,
    /// Why it was not used.
    pub reason: String,
}

/// What one device did in a run. Times of a device with several lanes, as the processor has one per core, are their mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Its id.
    pub id: String,
    /// Items whose results were accepted from it.
    pub items: u64,
    /// Chunks that it finished.
    pub chunks: u64,
    /// Time with a chunk in flight.
    pub busy_s: f64,
    /// Time of copies between host and device: part of the busy time, or hidden behind it.
    pub copy_s: f64,
    /// Time without a chunk: before it was ready, while there was nothing to do, or in quarantine.
    pub idle_s: f64,
    /// When it was ready for its first chunk.
    pub startup_s: f64,
    /// Time in which it was quarantined or retired.
    pub quarantined_s: f64,
    /// Items per second of busy time, or `None` if it did no items.
    pub rate: Option<f64>,
    /// Chunks that failed on it and were done again: `failed` in the text.
    pub retries: u64,
    /// Speculative copies of slower devices' chunks whose results were accepted from it.
    pub speculative: u64,
    /// Chunks that it stole: items that other lanes had not begun.
    pub steals: u64,
    /// Chunks whose results were dropped, because other devices delivered them first.
    pub dropped: u64,
    /// How often it was quarantined.
    pub quarantines: u64,
    /// How often that was because a chunk had hung: it did not end long after other devices had done its items, or within
    /// the limit of a chunk.
    pub hangs: u64,
    /// Its state at the end: `healthy` if it could take work, also if there was none; `quarantined` if it failed and had not
    /// shown yet that it works again; `retired` if it failed in a way that would repeat itself, for example because the
    /// kernel does not compile for it, and got no more work in this run.
    pub state: String,
    /// Its errors in the run, the last eight of them, the latest at the end. A successful run has them as well: other devices
    /// did the items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}
