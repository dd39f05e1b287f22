//! What a run did: who did what, and how close to ideal it came.

use std::fmt;

use serde::Serialize;

/// What a run did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// How many items there were.
    pub items: u64,
    /// How many have an accepted result: all of them, unless the run failed.
    pub done: u64,
    /// How long it took.
    pub wall_s: f64,
    /// How long it would have taken had no device ever been idle, and had nothing cost anything but the items.
    pub ideal_s: f64,
    /// The ideal over the real time.
    pub efficiency: f64,
    /// The efficiency that was certain however wrong the estimates were: the items at the speeds that the devices
    /// showed, plus the longest chunk that was in flight when nothing was left to hand out.
    pub bound: f64,
    /// Who did what.
    pub devices: Vec<DeviceReport>,
}

/// What one device did in a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceReport {
    /// Its id.
    pub id: String,
    /// Items whose accepted results are its own.
    pub items: u64,
    /// Chunks that it finished.
    pub chunks: u64,
    /// How long it worked.
    pub busy_s: f64,
    /// Chunks that failed on it and were done again.
    pub retries: u64,
    /// Chunks that it took over from slower devices.
    pub rescues: u64,
    /// Chunks of it that another device was faster with.
    pub dropped: u64,
    /// Times it was put into quarantine.
    pub quarantines: u64,
    /// How it stood at the end: `healthy`, `quarantined` or `retired`.
    pub state: String,
}

/// Devices beyond this number are summed up.
const LISTED: usize = 20;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.devices.iter().take(LISTED).map(|device| device.id.len()).max().unwrap_or(0).max(6);
        writeln!(
            f,
            "{:width$} {:>12} {:>7} {:>8} {:>10} {:>8} {:>8} {:>8} {:>12}  state",
            "device", "items", "share", "chunks", "busy s", "retries", "rescues", "dropped", "quarantines"
        )?;
        for device in self.devices.iter().take(LISTED) {
            writeln!(
                f,
                "{:width$} {:>12} {:>6.1}% {:>8} {:>10.3} {:>8} {:>8} {:>8} {:>12}  {}",
                device.id,
                device.items,
                100.0 * device.items as f64 / self.items.max(1) as f64,
                device.chunks,
                device.busy_s,
                device.retries,
                device.rescues,
                device.dropped,
                device.quarantines,
                device.state
            )?;
        }
        if self.devices.len() > LISTED {
            let rest = &self.devices[LISTED..];
            let items: u64 = rest.iter().map(|device| device.items).sum();
            writeln!(f, "and {} more, which did {items} items", rest.len())?;
        }
        write!(
            f,
            "{} of {} items in {:.4} s; ideal {:.4} s; efficiency {:.4}, certain were {:.4}",
            self.done, self.items, self.wall_s, self.ideal_s, self.efficiency, self.bound
        )
    }
}
