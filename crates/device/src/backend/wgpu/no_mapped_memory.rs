//! No host memory of our own, where there is no Vulkan.

use std::sync::Arc;

use wgpu::{Buffer, Device};

use super::{super::Direction, open_device::TransferError};

/// A Vulkan device as the source of host memory, of which there is none.
#[derive(Debug)]
pub(super) enum HostAllocator {}

impl HostAllocator {
    /// Nothing: the device is not Vulkan's.
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

/// Mapped host memory, of which there is none.
#[derive(Debug)]
pub(super) enum MappedMemory {}

impl MappedMemory {
    /// The bytes, of which there are none.
    ///
    /// # Safety
    /// None is needed.
    pub(super) unsafe fn slice(&self, _: usize) -> &[u8] {
        match *self {}
    }

    /// The bytes, of which there are none.
    ///
    /// # Safety
    /// None is needed.
    #[allow(clippy::mut_from_ref, reason = "there are none")]
    pub(super) unsafe fn slice_mut(&self, _: usize) -> &mut [u8] {
        match *self {}
    }
}
