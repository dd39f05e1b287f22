//! Open wgpu devices that are not in use, and a list of those that are.
//!
//! A device that is closed without an error is kept, and the next opening takes it. That is much faster than creating one,
//! and safer: NVIDIA's driver 580 can deadlock, with every thread that uses Vulkan, when a device is destroyed while others
//! are in use. No device is therefore ever destroyed: at most as many are kept as were open at once, and a lost one stays
//! until the process ends.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak},
};

use super::{failure::DeviceFailure, open_device::OpenDevice, transfer::TransferQueue};
use crate::describe::DeviceId;

/// A wgpu device and its queues, with the state that its callbacks write to.
#[derive(Debug, Clone)]
pub(super) struct RawDevice {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) failure: Arc<DeviceFailure>,
    pub(super) transfers: Option<Arc<TransferQueue>>,
}

fn idle_devices() -> MutexGuard<'static, HashMap<DeviceId, Vec<RawDevice>>> {
    static IDLE: LazyLock<Mutex<HashMap<DeviceId, Vec<RawDevice>>>> = LazyLock::new(Mutex::default);
    // No code under this lock can panic between two changes that belong together.
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists an open device, so that other openings of the same device can make it free its cached memory.
pub(super) fn register(open: &Arc<OpenDevice>) {
    let mut devices = open_devices();
    let all = devices.entry(open.id.clone()).or_default();
    all.retain(|open| open.strong_count() > 0);
    all.push(Arc::downgrade(open));
}

/// Removes an external device from the list once its last opening is gone: its id is not used again.
pub(super) fn unregister(id: &DeviceId) {
    let mut devices = open_devices();
    if devices.get(id).is_some_and(|all| all.iter().all(|open| open.strong_count() == 0)) {
        devices.remove(id);
    }
}

/// Returns all current openings of a device.
pub(super) fn open_handles(id: &DeviceId) -> Vec<Arc<OpenDevice>> {
    open_devices().get(id).into_iter().flatten().filter_map(Weak::upgrade).collect()
}

fn open_devices() -> MutexGuard<'static, HashMap<DeviceId, Vec<Weak<OpenDevice>>>> {
    static OPEN: LazyLock<Mutex<HashMap<DeviceId, Vec<Weak<OpenDevice>>>>> = LazyLock::new(Mutex::default);
    // No code under this lock can panic between two changes that belong together.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes an idle device of this id that was not lost meanwhile.
pub(super) fn take(id: &DeviceId) -> Option<RawDevice> {
    let mut idle = idle_devices();
    let all = idle.get_mut(id)?;
    while let Some(raw) = all.pop() {
        if !raw.failure.is_lost() {
            return Some(raw);
        }
        abandon(raw);
    }
    None
}

/// Keeps a device without work in flight.
pub(super) fn put(id: &DeviceId, raw: RawDevice) {
    if raw.failure.is_lost() {
        return abandon(raw);
    }
    raw.failure.forget();
    idle_devices().entry(id.clone()).or_default().push(raw);
}

/// Leaks a lost device: it must not be destroyed.
pub(super) fn abandon(raw: RawDevice) {
    std::mem::forget(raw);
}
