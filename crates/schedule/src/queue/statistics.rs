//! The statistics of a queue.

use std::time::Duration;

use evener_device::DeviceId;
use serde::Serialize;

use crate::balancer::BalancerStatistics;

/// The pieces of a queue so far, and at the moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueStatistics {
    /// Pieces without a result: queued, or running.
    pub outstanding: usize,
    /// Pieces that wait for any device.
    pub queued: usize,
    /// The balancer's moves, and how often it moved nothing, by reason.
    pub balancer: BalancerStatistics,
    /// The devices that have code for the task.
    pub devices: Vec<QueueDeviceStatistics>,
}

/// The statistics of one device of a queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueDeviceStatistics {
    /// The device.
    pub device: DeviceId,
    /// Pieces that wait for this device, their home.
    pub queued: usize,
    /// Batches that it runs, including those that another device has finished meanwhile.
    pub active: usize,
    /// Pieces that it has finished.
    pub done: u64,
    /// Pieces that failed on it, by an error of the device or of the task.
    pub failed: u64,
    /// Pieces of speculative copies that it began for stragglers on other devices. Those that it finished first are
    /// also in `done`.
    pub copied: u64,
    /// Pieces that the balancer moved to it.
    pub moved_in: u64,
    /// Pieces that the balancer moved away from it.
    pub moved_out: u64,
    /// Mean time of its recent pieces, or `None` before the first.
    pub mean: Option<Duration>,
    /// Whether it gets work; a device that failed does not, until a canary has succeeded.
    pub is_working: bool,
}
