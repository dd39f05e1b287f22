//! What a run did: who did what, and how close to ideal it came.

use std::fmt;

use serde::Serialize;

/// What a run did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// How many items there were.
    pub items: u64,
    /// How many have an accepted result: all of them, unless the run failed.
    pub done: u64,
    /// How long it took.
    pub wall_s: f64,
    /// How long it would have taken had no device ever been idle, at the rates that the devices showed in this run.
    pub ideal_s: f64,
    /// The ideal over the real time. A run that failed has none.
    pub efficiency: Option<f64>,
    /// The efficiency that was guaranteed once the last item had been handed out: the run cannot end later than the
    /// longest time that items which were in flight then are in flight in all.
    pub bound: Option<f64>,
    /// How much faster the run was than the best device alone. A run that failed has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<Speedup>,
    /// The same at the rates that the devices show alone, where those were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Calibrated>,
    /// How long it was expected to take, where that could be told.
    pub predicted_s: Option<f64>,
    /// Who did what.
    pub devices: Vec<DeviceReport>,
    /// Who was not used, and why.
    pub left_out: Vec<LeftOut>,
}

/// A run beside the best of its devices alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speedup {
    /// The device.
    pub device: String,
    /// How long it would have taken for all items, at the rate that it showed in this run.
    pub alone_s: f64,
    /// That over the real time.
    pub times: f64,
}

/// A run beside the rates that its devices show when each works alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Calibrated {
    /// How long it would have taken at the sum of those rates.
    pub ideal_s: f64,
    /// That over the real time.
    pub efficiency: f64,
}

/// A device that was not used in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Its id.
    pub id: String,
    /// Why.
    pub reason: String,
}

/// What one device did in a run. Where it has several lanes, as the processor has one a core, times are their mean.
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
    /// How long items and results were copied between host and device: part of the busy time, or hidden behind it.
    pub copy_s: f64,
    /// How long it did not work: before it was ready, while there was nothing for it, or when it was set aside.
    pub idle_s: f64,
    /// When it was ready for its first chunk.
    pub startup_s: f64,
    /// How long it was set aside.
    pub away_s: f64,
    /// Items a second while it worked; nothing where it did none.
    pub rate: Option<f64>,
    /// Chunks that failed on it and were done again.
    pub retries: u64,
    /// Chunks that it took over from slower devices.
    pub rescues: u64,
    /// Chunks that it took from what other lanes had not begun.
    pub steals: u64,
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
            "{:width$} {:>12} {:>7} {:>7} {:>9} {:>9} {:>9} {:>7} {:>7} {:>6} {:>7} {:>11}  state",
            "device",
            "items",
            "share",
            "chunks",
            "busy",
            "copy",
            "idle",
            "retries",
            "rescues",
            "steals",
            "dropped",
            "quarantines"
        )?;
        for device in self.devices.iter().take(LISTED) {
            writeln!(
                f,
                "{:width$} {:>12} {:>6.1}% {:>7} {:>9} {:>9} {:>9} {:>7} {:>7} {:>6} {:>7} {:>11}  {}",
                device.id,
                device.items,
                100.0 * device.items as f64 / self.items.max(1) as f64,
                device.chunks,
                time(device.busy_s),
                time(device.copy_s),
                time(device.idle_s),
                device.retries,
                device.rescues,
                device.steals,
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
        for LeftOut { id, reason } in &self.left_out {
            writeln!(f, "{id:width$} not used: {reason}")?;
        }
        write!(f, "{} of {} items in {}", self.done, self.items, time(self.wall_s))?;
        if let Some(efficiency) = self.efficiency {
            write!(f, "; ideal {}; efficiency {efficiency:.4}", time(self.ideal_s))?;
        }
        if let Some(bound) = self.bound {
            write!(f, " (guaranteed ≥ {bound:.4})")?;
        }
        if let Some(Speedup { device, times, .. }) = self.speedup.as_ref().filter(|_| self.devices.len() > 1)
        {
            write!(f, "\n{times:.2} times as fast as {device} alone, at the rate that it showed")?;
        }
        if let Some(Calibrated { ideal_s, efficiency }) = self.calibrated {
            write!(
                f,
                "\nat the rates that the devices show alone: ideal {}, efficiency {efficiency:.4}",
                time(ideal_s)
            )?;
        }
        if let Some(predicted) = self.predicted_s {
            write!(f, "\npredicted {}", time(predicted))?;
        }
        Ok(())
    }
}

/// A time in the unit that suits it.
fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".into(),
        _ if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.3} s"),
    }
}
