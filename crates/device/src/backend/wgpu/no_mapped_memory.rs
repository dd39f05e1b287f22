//! A stand-in for `mapped_memory` on systems without Vulkan.

use std::sync::Arc;

use wgpu::{Buffer, Device};

use super::{super::Direction, open_device::TransferError};

/// Allocates host memory of a Vulkan device. It has no values on this system.
#[derive(Debug)]
pub(super) enum HostAllocator {}

impl HostAllocator {
    /// Returns `None`: the device is not a Vulkan device.
    pub(super) fn new(_: &Device) -> Option<Arc<Self>> {
        None
    }

    pub(super) fn make(
        self: &Arc<Self>,
        _: u64,
        _: Direction,
    ) -> Result<(Buffer, MappedMemory), TransferError> {
        match **self {}
    }
}

/// Mapped host memory. It has no values on this system.
#[derive(Debug)]
pub(super) enum MappedMemory {}

impl MappedMemory {
    /// Never called.
    ///
    /// # Safety
    /// None is needed.
    pub(super) unsafe fn slice(&self, _: usize) -> &[u8] {
        match *self {}
    }

    /// Never called.
    ///
    /// # Safety
    /// None is needed.
    #[allow(clippy::mut_from_ref, reason = "there are none")]
    pub(super) unsafe fn slice_mut(&self, _: usize) -> &mut [u8] {
        match *self {}
    }
}
