//! Choosing devices, and watching them.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use evener_device::{Device, DeviceId, Telemetry};
use serde::Serialize;

use super::Pool;
use crate::executor::Seat;

/// What one device of a pool has done so far, over all runs and queues, and what it is doing now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceStatistics {
    /// The device.
    pub device: DeviceId,
    /// Chunks and pieces that it works on.
    pub active: u64,
    /// Pieces that wait for it in a queue.
    pub queued: u64,
    /// Chunks and pieces that it has finished.
    pub done: u64,
    /// Chunks and pieces that failed on it.
    pub failed: u64,
    /// How long one of them took on average; nothing while there is none.
    pub mean: Option<Duration>,
    /// How busy the hardware says it is, by anyone's work; nothing where it does not say.
    pub utilization: Option<f64>,
    /// Its memory that is free, where that is known.
    pub memory_free_bytes: Option<u64>,
    /// Memory that this process holds on it.
    pub memory_used_bytes: u64,
}

impl Pool {
    /// What every device has done and is doing. It costs the runs under way nothing: all that they share with it are
    /// counters. Asking the hardware takes up to some milliseconds of the caller's time.
    pub fn statistics(&self) -> Vec<DeviceStatistics> {
        self.inner().seats.iter().map(|seat| statistics(seat)).collect()
    }

    /// The device with the highest score × (1 − utilization) at this moment.
    pub fn best(&self) -> Device {
        // A pool has at least one device.
        self.best_n(1).remove(0)
    }

    /// The best so many devices at this moment, the best first; all of them for 0. What has no utilization counts as
    /// idle.
    pub fn best_n(&self, count: usize) -> Vec<Device> {
        let rank = |seat: &Arc<Seat>| {
            let (device, _) = seat.device();
            (seat.score * (1.0 - device.telemetry().utilization.unwrap_or(0.0)), device)
        };
        let mut ranked: Vec<(f64, Device)> = self.inner().seats.iter().map(rank).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let count = if count == 0 { ranked.len() } else { count };
        ranked.into_iter().take(count).map(|(_, device)| device).collect()
    }
}

fn statistics(seat: &Seat) -> DeviceStatistics {
    let (device, _) = seat.device();
    let counters = &seat.counters;
    let Telemetry { utilization, memory_free_bytes, .. } = device.telemetry();
    DeviceStatistics {
        device: seat.id.clone(),
        active: counters.active(),
        queued: counters.queued.load(Relaxed),
        done: counters.done.load(Relaxed),
        failed: counters.failed.load(Relaxed),
        mean: counters.mean(),
        utilization,
        memory_free_bytes,
        memory_used_bytes: device.memory().in_use_bytes,
    }
}
