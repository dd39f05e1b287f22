//! What a queue has done so far.

use std::time::Duration;

use evener_device::DeviceId;
use serde::Serialize;

use crate::balancer::BalancerStatistics;

/// What a queue has done so far, and what it is doing now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueStatistics {
    /// Pieces that were submitted and have no answer yet: queued, or worked on.
    pub outstanding: usize,
    /// Pieces that wait for the first device that can take them.
    pub queued: usize,
    /// What the balancer moved from device to device, and how often it was asked and moved nothing.
    pub balancer: BalancerStatistics,
    /// The devices that have code for the task.
    pub devices: Vec<QueueDevice>,
}

/// What one device has done for a queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueDevice {
    /// The device.
    pub device: DeviceId,
    /// Pieces that wait for it, because it is their home.
    pub queued: usize,
    /// Batches of pieces that it works on, among them those that another device has done meanwhile.
    pub active: usize,
    /// Pieces that it has done.
    pub done: u64,
    /// Pieces that failed on it, by its own fault or by theirs.
    pub failed: u64,
    /// Pieces that it began with because they took long on another device. Those that it did first are among `done`.
    pub copied: u64,
    /// Pieces that the balancer brought it.
    pub received: u64,
    /// Pieces that the balancer took from it.
    pub gave: u64,
    /// How long a piece took of late, on average; nothing while there is none.
    pub mean: Option<Duration>,
    /// Whether it is given work; one that failed is not, until it has shown that it is well.
    pub working: bool,
}
