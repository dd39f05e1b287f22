//! A stand-in for `transfer` on systems without Vulkan.

use std::{sync::Arc, time::Duration};

use wgpu::{Adapter, Buffer, BufferUsages, CommandBuffer, Device, DeviceDescriptor, Queue, SubmissionIndex};

use super::{host::StagingBlock, memory::DeviceBlock, open_device::TransferError};

/// A queue for downloads. It has no values on this system.
#[derive(Debug)]
pub(super) enum TransferQueue {}

/// Returns `None`: there is no queue family for transfers.
pub(super) fn family(_: &Adapter) -> Option<u32> {
    None
}

/// Returns `None`: the adapter is not a Vulkan adapter.
pub(super) fn request(
    _: &Adapter,
    _: Option<u32>,
    _: &DeviceDescriptor<'_>,
) -> Option<Result<(Device, Queue), String>> {
    None
}

impl TransferQueue {
    pub(super) fn new(_: &Adapter, _: &Device, _: Option<u32>) -> Result<Self, String> {
        Err("there is no transfer queue".into())
    }

    pub(super) fn submit(&self, _: &Queue, _: Option<CommandBuffer>, _: u64) -> (SubmissionIndex, u64) {
        match *self {}
    }

    pub(super) fn download(
        &self,
        _: u64,
        _: (&Arc<DeviceBlock>, u64),
        _: &Arc<StagingBlock>,
        _: u64,
    ) -> Result<u64, TransferError> {
        match *self {}
    }

    pub(super) fn wait(&self, _: u64, _: Duration) -> Result<bool, TransferError> {
        match *self {}
    }

    pub(super) fn wait_for_all(&self, _: Duration) -> Result<bool, TransferError> {
        match *self {}
    }

    pub(super) fn make_buffer(&self, _: &Device, _: u64, _: BufferUsages) -> Result<Buffer, TransferError> {
        match *self {}
    }
}
