//! Statistics of a pool's devices, and their ranking.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use evener_device::{Device, DeviceId, Telemetry};
use serde::Serialize;

use super::Pool;
use crate::executor::PoolDevice;

/// The statistics of one device of a pool, over all runs and queues.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceStatistics {
    /// The device.
    pub device: DeviceId,
    /// Chunks and pieces in flight.
    pub active: u64,
    /// Pieces that wait for the device in a queue.
    pub queued: u64,
    /// Finished chunks and pieces.
    pub done: u64,
    /// Failed chunks and pieces.
    pub failed: u64,
    /// Mean time of a chunk or piece, or `None` before the first.
    pub mean: Option<Duration>,
    /// Utilization of the hardware by all processes, if it is known. That of a processor or an Intel GPU is counted between
    /// two reads, of which the first is at the pool's creation: it is known after [`Telemetry::UTILIZATION_WINDOW`].
    pub utilization: Option<f64>,
    /// Free memory of the device, if it is known.
    pub memory_free_bytes: Option<u64>,
    /// Memory of the device that this process uses.
    pub memory_used_bytes: u64,
}

impl Pool {
    /// Returns the statistics of every device. Runs in flight are not slowed down, because only counters are shared
    /// with them; reading the hardware takes up to some milliseconds, and waits for nothing.
    pub fn statistics(&self) -> Vec<DeviceStatistics> {
        self.inner().devices.iter().map(|device| statistics(device)).collect()
    }

    /// The device with the highest score × (1 − utilization) at this moment.
    pub fn best(&self) -> Device {
        // A pool has at least one device.
        self.best_n(1).remove(0)
    }

    /// The `count` devices with the highest score × (1 − utilization) at this moment, the best first; all devices for
    /// 0. A device without a known utilization counts as idle.
    pub fn best_n(&self, count: usize) -> Vec<Device> {
        let rank = |device: &Arc<PoolDevice>| {
            let (opened, _) = device.device();
            (device.score * (1.0 - opened.telemetry().utilization.unwrap_or(0.0)), opened)
        };
        let mut ranked: Vec<(f64, Device)> = self.inner().devices.iter().map(rank).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let count = if count == 0 { ranked.len() } else { count };
        ranked.into_iter().take(count).map(|(_, device)| device).collect()
    }
}

fn statistics(device: &PoolDevice) -> DeviceStatistics {
    let (opened, _) = device.device();
    let counters = &device.counters;
    let Telemetry { utilization, memory_free_bytes, .. } = opened.telemetry();
    DeviceStatistics {
        device: device.id.clone(),
        active: counters.active(),
        queued: counters.queued.load(Relaxed),
        done: counters.done.load(Relaxed),
        failed: counters.failed.load(Relaxed),
        mean: counters.mean(),
        utilization,
        memory_free_bytes,
        memory_used_bytes: opened.memory().in_use_bytes,
    }
}
