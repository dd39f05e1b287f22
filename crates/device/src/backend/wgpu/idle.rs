//! Devices that are open and that nobody has.
//!
//! A device that is closed in good order is kept, and the next opening takes it. That is faster by far, and it
//! is safer: NVIDIA's driver 580 can lock up, with every thread that uses Vulkan, when a device is destroyed while
//! others are in use. So no device is ever destroyed: no more of them are kept than were ever open at once, and a
//! lost one is left to the end of the process.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak},
};

use super::{failure::Failure, hold::Hold, transfer::TransferQueue};
use crate::describe::DeviceId;

/// An open device, with what its callbacks report to.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) failure: Arc<Failure>,
    pub(super) transfers: Option<Arc<TransferQueue>>,
}

fn kept() -> MutexGuard<'static, HashMap<DeviceId, Vec<Opened>>> {
    static KEPT: LazyLock<Mutex<HashMap<DeviceId, Vec<Opened>>>> = LazyLock::new(Mutex::default);
    // Nothing is left half-done under this lock.
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes note of an opening, so that others of the same device can have it give up what it keeps for reuse.
pub(super) fn note(hold: &Arc<Hold>) {
    let mut open = open();
    let all = open.entry(hold.id.clone()).or_default();
    all.retain(|hold| hold.strong_count() > 0);
    all.push(Arc::downgrade(hold));
}

/// Forgets a device of the caller's, whose id is not used again once its last opening is gone.
pub(super) fn forget(id: &DeviceId) {
    let mut open = open();
    if open.get(id).is_some_and(|all| all.iter().all(|hold| hold.strong_count() == 0)) {
        open.remove(id);
    }
}

/// The present openings of a device.
pub(super) fn openings(id: &DeviceId) -> Vec<Arc<Hold>> {
    open().get(id).into_iter().flatten().filter_map(Weak::upgrade).collect()
}

fn open() -> MutexGuard<'static, HashMap<DeviceId, Vec<Weak<Hold>>>> {
    static OPEN: LazyLock<Mutex<HashMap<DeviceId, Vec<Weak<Hold>>>>> = LazyLock::new(Mutex::default);
    // Nothing is left half-done under this lock.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device of this id that nobody has and that was not lost meanwhile.
pub(super) fn take(id: &DeviceId) -> Option<Opened> {
    let mut kept = kept();
    let all = kept.get_mut(id)?;
    while let Some(opened) = all.pop() {
        if !opened.failure.is_lost() {
            return Some(opened);
        }
        abandon(opened);
    }
    None
}

/// Keeps a device whose work has all ended.
pub(super) fn put(id: &DeviceId, opened: Opened) {
    if opened.failure.is_lost() {
        return abandon(opened);
    }
    opened.failure.forget();
    kept().entry(id.clone()).or_default().push(opened);
}

/// Leaves a lost device to the end of the process.
pub(super) fn abandon(opened: Opened) {
    std::mem::forget(opened);
}
