//! An open device: the state that its streams, buffers and kernels share.

use std::{
    mem::ManuallyDrop,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use wgpu::{BufferUsages, CommandBuffer, ErrorFilter, PollError, PollStatus, PollType, SubmissionIndex};

use super::{
    super::{Memory, block_cache::BlockCache},
    clock::Clock,
    failure::{DeviceFailure, catch_fatal_error, catch_panic, translate, watch},
    host::StagingCaches,
    idle::{self, RawDevice},
    mapped_memory::HostAllocator,
    program::Modules,
    transfer::TransferQueue,
};
use crate::{
    affinity::unbound,
    describe::{Capabilities, DeviceId, DeviceKind},
    error::{Error, Result},
};

/// Downloads of at least this many bytes use the transfer queue: shorter ones take less time than synchronizing two
/// queues. Device memory of at least this size is created for both queues.
pub(super) const TRANSFER_BYTES: u64 = 1 << 20;

/// How often a wait for a download checks whether the device is lost.
const LOSS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Why the transfer queue did not perform an operation.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(target_vendor = "apple", allow(dead_code, reason = "there is no such queue"))]
pub(super) enum TransferError {
    /// There is not enough memory, on the host or on the device. The queue still works.
    OutOfMemory,
    /// The device is lost, for this reason.
    Lost(String),
}

/// An open device: wgpu's device and queue, cached memory and compiled modules, and the errors that its callbacks
/// reported.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) id: DeviceId,
    pub(super) kind: DeviceKind,
    pub(super) capabilities: Capabilities,
    pub(super) device: wgpu::Device,
    /// Whether the `wgpu::Device` is the caller's, who may submit, poll, set callbacks and destroy it at any time.
    pub(super) is_external: bool,
    /// Runs submissions in order. Apart from the caller of an external device, this is its only user.
    pub(super) queue: wgpu::Queue,
    pub(super) failure: Arc<DeviceFailure>,
    pub(super) cache: Arc<BlockCache<wgpu::Buffer>>,
    /// The queue for large downloads, if the device has one.
    pub(super) transfers: Option<Arc<TransferQueue>>,
    pub(super) staging: StagingCaches,
    /// Allocates the host memory of a Vulkan device; `None` for other APIs.
    pub(super) host_allocator: Option<Arc<HostAllocator>>,
    /// Held during calls in which wgpu may destroy buffers, and while the host copies from or to wgpu's mapped memory.
    pub(super) mapping_lock: Mutex<()>,
    pub(super) modules: Mutex<Modules>,
    /// Memory whose `wgpu::Buffer` the caller has too: adopted from the caller, or handed out. Adopting such a buffer
    /// again returns the same memory.
    pub(super) shared_with_caller: Mutex<Vec<Weak<dyn Memory>>>,
    /// The device's part of the key of compiled pipelines on disk, if the device supports them.
    pub(super) pipeline_key: Option<String>,
    pub(super) clock: Clock,
}

impl OpenDevice {
    /// Returns an error that was reported outside of a call since the last check.
    pub(super) fn check(&self, operation: &str) -> Result<()> {
        self.failure.check(&self.id, operation)
    }

    /// Runs calls to wgpu and returns the first error that they reported. An external device uses error scopes, because
    /// its error callback belongs to the caller.
    pub(super) fn watch<T>(&self, calls: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
        if !self.is_external {
            return watch(calls);
        }
        // Scopes are dropped in reverse order, even if the calls unwind.
        let memory = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let internal = self.device.push_error_scope(ErrorFilter::Internal);
        let validation = self.device.push_error_scope(ErrorFilter::Validation);
        let made = calls();
        let validation = pollster::block_on(validation.pop());
        let internal = pollster::block_on(internal.pop());
        let memory = pollster::block_on(memory.pop());
        (made, memory.or(validation).or(internal))
    }

    /// Runs calls to wgpu, and returns an error if any of them failed.
    pub(super) fn attempt<T>(&self, operation: &str, calls: impl FnOnce() -> T) -> Result<T> {
        self.check(operation)?;
        let (made, error) = self.watch(calls);
        match error {
            Some(error) => Err(translate(error, &self.id, operation, 0)),
            // wgpu reports no error to calls on a lost device, but their results are unusable.
            None => self.check(operation).map(|()| made),
        }
    }

    /// Processes finished work: wgpu frees memory and runs callbacks.
    pub(super) fn poll(&self, operation: &str) -> Result<PollStatus> {
        match self.poll_with(operation, PollType::Poll)? {
            Ok(status) => Ok(status),
            Err(why) => Err(Error::lost(&self.id, operation, why.to_string())),
        }
    }

    /// Submits to wgpu's queue, after the download of the number `after` (0 for none). Returns the submission and its
    /// number.
    pub(super) fn submit(&self, commands: Option<CommandBuffer>, after: u64) -> (SubmissionIndex, u64) {
        match &self.transfers {
            Some(transfers) => transfers.submit(&self.queue, commands, after),
            None => {
                let _lock = self.lock_mappings();
                (self.queue.submit(commands), 0)
            }
        }
    }

    /// Locks out calls that may destroy mapped buffers of a lost device, for access to such a buffer. Not needed where
    /// the host memory does not belong to wgpu.
    pub(super) fn lock_mappings(&self) -> Option<MutexGuard<'_, ()>> {
        self.host_allocator
            .is_none()
            .then(|| self.mapping_lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether device memory of this size is created for the transfer queue too.
    pub(super) fn is_made_for_transfers(&self, bytes: u64) -> bool {
        self.transfers.is_some() && bytes >= TRANSFER_BYTES
    }

    /// Creates a buffer in device memory that both queues may use. Returns `None` if there is not enough memory.
    pub(super) fn make_shared_buffer(
        &self,
        operation: &str,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<Option<wgpu::Buffer>> {
        self.check(operation)?;
        let Some(transfers) = self.transfers.as_ref().filter(|_| bytes <= self.capabilities.max_buffer_bytes)
        else {
            return Ok(None);
        };
        let (made, error) = self.watch(|| transfers.make_buffer(&self.device, bytes, usage));
        match (made, error) {
            (_, Some(error)) => Err(translate(error, &self.id, operation, bytes)),
            (Ok(buffer), None) => Ok(Some(buffer)),
            (Err(TransferError::OutOfMemory), None) => Ok(None),
            (Err(why), None) => Err(self.transfer_failed(operation, why)),
        }
    }

    /// Turns an error of the transfer queue into an `Error`.
    pub(super) fn transfer_failed(&self, operation: &str, why: TransferError) -> Error {
        match why {
            TransferError::OutOfMemory => Error::OutOfMemory {
                device: self.id.clone(),
                operation: operation.into(),
                requested: 0,
                available: None,
                detail: "limited by the driver's memory for the transfer queue".into(),
            },
            TransferError::Lost(reason) => {
                let reason = format!("the transfer queue failed: {reason}");
                self.failure.lose(&reason);
                Error::lost(&self.id, operation, reason)
            }
        }
    }

    /// Waits for a download on the transfer queue. Returns false on timeout.
    pub(super) fn wait_download(
        &self,
        operation: &str,
        number: u64,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        let Some(transfers) = self.transfers.as_ref().filter(|_| number > 0) else { return Ok(true) };
        let began = Instant::now();
        loop {
            self.check(operation)?;
            let left = timeout.map_or(LOSS_CHECK_INTERVAL, |limit| {
                limit.saturating_sub(began.elapsed()).min(LOSS_CHECK_INTERVAL)
            });
            match transfers.wait(number, left) {
                Ok(true) => return Ok(true),
                Ok(false) if timeout.is_some_and(|limit| began.elapsed() >= limit) => return Ok(false),
                Ok(false) => {}
                Err(why) => return Err(self.transfer_failed(operation, why)),
            }
        }
    }

    /// Waits for a submission. Returns false on timeout.
    pub(super) fn wait_submission(
        &self,
        operation: &str,
        submission: &SubmissionIndex,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        let began = Instant::now();
        // A long wait under the lock would keep other threads from it, so the device is polled instead.
        let at_once = self.host_allocator.is_none().then_some(Duration::ZERO);
        loop {
            let slice = at_once.or(timeout);
            let wait = PollType::Wait { submission_index: Some(submission.clone()), timeout: slice };
            match self.poll_with(operation, wait)? {
                Ok(_) => return Ok(true),
                Err(PollError::Timeout) if timeout.is_some_and(|limit| began.elapsed() >= limit) => {
                    return Ok(false);
                }
                Err(PollError::Timeout) if at_once.is_some() => back_off(began.elapsed()),
                Err(PollError::Timeout) => {}
                Err(PollError::WrongSubmissionIndex(..)) => {
                    let detail = "the device did not accept the submission";
                    return Err(Error::lost(&self.id, operation, detail));
                }
            }
        }
    }

    /// Polls the device, unless it is known to be lost. If it is lost and this is not yet known, wgpu destroys all
    /// buffers: host memory is either not in them ([`super::mapped_memory`]) or accessed only under the lock that is held
    /// here. Unwinds if a callback of an external device's caller panics.
    fn poll_with(&self, operation: &str, how: PollType) -> Result<Result<PollStatus, PollError>> {
        let _lock = self.lock_mappings();
        self.check(operation)?;
        let poll = || self.device.poll(how);
        let polled = if self.is_external { catch_fatal_error(poll) } else { catch_panic(poll) };
        // Copies that have finished may have returned more staging memory than is kept.
        self.staging.free_excess();
        match polled {
            Ok(outcome) => self.check(operation).map(|()| outcome),
            Err(message) => {
                self.failure.lose(&message);
                Err(Error::lost(&self.id, operation, message))
            }
        }
    }

    pub(super) fn trim(&self) {
        drop(self.cache.clear());
        self.staging.clear();
        // wgpu frees the buffers in its next poll, whose errors do not matter here.
        let _ = self.poll("freeing cached memory");
    }

    /// Frees cached memory, also of the other openings of this device.
    pub(super) fn trim_all(&self) {
        self.trim();
        for other in idle::open_handles(&self.id).iter().filter(|other| !std::ptr::eq(&***other, self)) {
            other.trim();
        }
    }

    pub(super) fn modules(&self) -> MutexGuard<'_, Modules> {
        // No code under this lock can panic between two changes that belong together.
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Yields between two polls for a submission, or sleeps if the wait has been long.
fn back_off(waited: Duration) {
    match waited < Duration::from_micros(100) {
        true => std::thread::yield_now(),
        false => std::thread::sleep(Duration::from_micros(50)),
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        if self.is_external {
            // wgpu keeps the resources of submitted work alive.
            return idle::unregister(&self.id);
        }
        let raw = RawDevice {
            device: self.device.clone(),
            queue: self.queue.clone(),
            failure: self.failure.clone(),
            transfers: self.transfers.clone(),
        };
        let downloaded =
            |limit| move |transfers: &Arc<TransferQueue>| matches!(transfers.wait_for_all(limit), Ok(true));
        if matches!(self.poll("closing the device"), Ok(PollStatus::QueueEmpty))
            && raw.transfers.iter().all(downloaded(Duration::ZERO))
        {
            return idle::put(&self.id, raw);
        }
        if self.failure.is_lost() {
            return idle::abandon(raw);
        }
        // Work is still in flight: another thread waits for it.
        let (id, raw) = (self.id.clone(), ManuallyDrop::new(raw));
        let wait = move || {
            let raw = ManuallyDrop::into_inner(raw);
            let ended = catch_panic(|| raw.device.poll(PollType::wait_indefinitely()));
            let downloaded = raw.transfers.iter().all(downloaded(Duration::MAX));
            if matches!(ended, Ok(Ok(_))) && downloaded { idle::put(&id, raw) } else { idle::abandon(raw) }
        };
        let thread = std::thread::Builder::new().name(format!("evener-{}-closing", self.id));
        // If no thread can be started, dropping the closure leaks the device.
        let _ = unbound(|| thread.spawn(wait));
    }
}
