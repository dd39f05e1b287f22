//! The hold on an open device, which everything made from it shares.

use std::{
    mem::ManuallyDrop,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use wgpu::{BufferUsages, CommandBuffer, ErrorFilter, PollError, PollStatus, PollType, SubmissionIndex};

use super::{
    super::{Memory, shelf::Shelf},
    clock::Clock,
    failure::{Failure, catch, translate, watch},
    host::Staging,
    idle::{self, Opened},
    pages::PageSource,
    program::Modules,
    transfer::TransferQueue,
};
use crate::{
    affinity::unbound,
    describe::{Capabilities, DeviceId, DeviceKind},
    error::{Error, Result},
};

/// Downloads of at least so many bytes go to the queue for transfers: shorter ones are over before two queues have
/// agreed on whose turn it is. Device memory of at least this size is made for both queues.
pub(super) const TRANSFER_BYTES: u64 = 1 << 20;

/// How long a wait for a download lasts before the device is asked whether it is lost.
const GLANCE: Duration = Duration::from_secs(1);

/// Why the queue for transfers did not do what it was asked for.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(target_vendor = "apple", allow(dead_code, reason = "there is no such queue"))]
pub(super) enum TransferError {
    /// There is no memory for it, on the host or on the device. The queue goes on.
    OutOfMemory,
    /// The device is lost, for this reason.
    Lost(String),
}

/// An open device: wgpu's device and queue, its memory, and what has gone wrong with it.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) id: DeviceId,
    pub(super) kind: DeviceKind,
    pub(super) capabilities: Capabilities,
    pub(super) device: wgpu::Device,
    /// Whether the device is the caller's, who then submits, polls, listens for errors and destroys as it likes.
    pub(super) is_callers: bool,
    /// Runs submissions in order, one after the other has its effects. This is the only handle on it, but for a caller's.
    pub(super) queue: wgpu::Queue,
    pub(super) failure: Arc<Failure>,
    pub(super) shelf: Arc<Shelf<wgpu::Buffer>>,
    /// Where large downloads go, where the device has a queue for them.
    pub(super) transfers: Option<Arc<TransferQueue>>,
    pub(super) staging: Staging,
    /// Where the host memory of a Vulkan device comes from.
    pub(super) pages: Option<Arc<PageSource>>,
    /// Held where wgpu may destroy buffers, and where mapped memory of wgpu's is copied from and to.
    pub(super) gate: Mutex<()>,
    pub(super) modules: Mutex<Modules>,
    /// Memory whose buffer the caller has too, so that a buffer which is adopted again is the same memory.
    pub(super) known: Mutex<Vec<Weak<dyn Memory>>>,
    /// What compiled pipelines are kept under on disk, where the device gives them.
    pub(super) pipelines: Option<String>,
    pub(super) clock: Clock,
}

impl Hold {
    /// Fails with what has gone wrong since the last call, if anything.
    pub(super) fn check(&self, operation: &str) -> Result<()> {
        self.failure.check(&self.id, operation)
    }

    /// Makes calls to wgpu and returns the first error that they reported. A device of the caller's reports to an error
    /// scope, because the callback for errors is the caller's.
    pub(super) fn watch<T>(&self, calls: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
        if !self.is_callers {
            return watch(calls);
        }
        // They end in the reverse order, also where the calls unwind.
        let memory = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let internal = self.device.push_error_scope(ErrorFilter::Internal);
        let validation = self.device.push_error_scope(ErrorFilter::Validation);
        let made = calls();
        let validation = pollster::block_on(validation.pop());
        let internal = pollster::block_on(internal.pop());
        let memory = pollster::block_on(memory.pop());
        (made, memory.or(validation).or(internal))
    }

    /// Makes calls to wgpu that each succeed or are of no use.
    pub(super) fn attempt<T>(&self, operation: &str, calls: impl FnOnce() -> T) -> Result<T> {
        self.check(operation)?;
        let (made, error) = self.watch(calls);
        match error {
            Some(error) => Err(translate(error, &self.id, operation, 0)),
            // The loss of the device is not told to its calls: what was made is then of no use.
            None => self.check(operation).map(|()| made),
        }
    }

    /// Takes note of what has ended, so that memory comes free and callbacks run.
    pub(super) fn poll(&self, operation: &str) -> Result<PollStatus> {
        match self.ask(operation, PollType::Poll)? {
            Ok(status) => Ok(status),
            Err(why) => Err(Error::lost(&self.id, operation, why.to_string())),
        }
    }

    /// Submits to the queue, behind the download of this number where there is one, and gives the submission its number.
    pub(super) fn submit(&self, commands: Option<CommandBuffer>, after: u64) -> (SubmissionIndex, u64) {
        match &self.transfers {
            Some(transfers) => transfers.submit(&self.queue, commands, after),
            None => {
                let _turn = self.turn();
                (self.queue.submit(commands), 0)
            }
        }
    }

    /// The turn to call what may destroy mapped buffers of a lost device, or to touch one. None is needed where the host
    /// memory is not wgpu's.
    pub(super) fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.pages.is_none().then(|| self.gate.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether device memory of this size is made for the queue for transfers too.
    pub(super) fn is_made_for_transfers(&self, bytes: u64) -> bool {
        self.transfers.is_some() && bytes >= TRANSFER_BYTES
    }

    /// Makes a buffer in device memory that both queues may use. Nothing where there is no room.
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

    /// What the queue for transfers said, as an error.
    pub(super) fn transfer_failed(&self, operation: &str, why: TransferError) -> Error {
        match why {
            TransferError::OutOfMemory => Error::OutOfMemory {
                device: self.id.clone(),
                operation: operation.into(),
                requested: 0,
                available: None,
                detail: "the driver's memory for its queue for transfers".into(),
            },
            TransferError::Lost(reason) => {
                let reason = format!("its queue for transfers failed: {reason}");
                self.failure.lose(&reason);
                Error::lost(&self.id, operation, reason)
            }
        }
    }

    /// Waits for a download on the queue for transfers. False when it had not ended in time.
    pub(super) fn downloaded(&self, operation: &str, number: u64, timeout: Option<Duration>) -> Result<bool> {
        let Some(transfers) = self.transfers.as_ref().filter(|_| number > 0) else { return Ok(true) };
        let began = Instant::now();
        loop {
            self.check(operation)?;
            let left = timeout.map_or(GLANCE, |limit| limit.saturating_sub(began.elapsed()).min(GLANCE));
            match transfers.wait(number, left) {
                Ok(true) => return Ok(true),
                Ok(false) if timeout.is_some_and(|limit| began.elapsed() >= limit) => return Ok(false),
                Ok(false) => {}
                Err(why) => return Err(self.transfer_failed(operation, why)),
            }
        }
    }

    /// Waits for a submission. False when it had not ended in time.
    pub(super) fn reached(
        &self,
        operation: &str,
        submission: &SubmissionIndex,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        let began = Instant::now();
        // A wait that needs the turn would keep others from it.
        let at_once = self.pages.is_none().then_some(Duration::ZERO);
        loop {
            let slice = at_once.or(timeout);
            let wait = PollType::Wait { submission_index: Some(submission.clone()), timeout: slice };
            match self.ask(operation, wait)? {
                Ok(_) => return Ok(true),
                Err(PollError::Timeout) if timeout.is_some_and(|limit| began.elapsed() >= limit) => {
                    return Ok(false);
                }
                Err(PollError::Timeout) if at_once.is_some() => nap(began.elapsed()),
                Err(PollError::Timeout) => {}
                Err(PollError::WrongSubmissionIndex(..)) => {
                    let detail = "the device did not accept the work";
                    return Err(Error::lost(&self.id, operation, detail));
                }
            }
        }
    }

    /// Polls, unless the device is known to be lost. Where it is lost and not yet known to be, wgpu destroys all buffers:
    /// what the host reads is not in them ([`super::pages`]), or is touched under the lock that is held here.
    fn ask(&self, operation: &str, how: PollType) -> Result<Result<PollStatus, PollError>> {
        let _turn = self.turn();
        self.check(operation)?;
        match catch(|| self.device.poll(how)) {
            Ok(outcome) => self.check(operation).map(|()| outcome),
            Err(message) => {
                self.failure.lose(&message);
                Err(Error::lost(&self.id, operation, message))
            }
        }
    }

    /// Gives memory kept for reuse back to the driver.
    pub(super) fn trim(&self) {
        drop(self.shelf.clear());
        self.staging.clear();
        // wgpu frees a buffer when it next looks at what has ended. Whether that goes well is not asked here.
        let _ = self.poll("trimming");
    }

    /// Gives memory kept for reuse back to the driver, that of other openings of this device too.
    pub(super) fn trim_all(&self) {
        self.trim();
        for other in idle::openings(&self.id).iter().filter(|other| !std::ptr::eq(&***other, self)) {
            other.trim();
        }
    }

    pub(super) fn modules(&self) -> MutexGuard<'_, Modules> {
        // Nothing is left half-done under this lock.
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives other threads a turn between two looks at a submission, longer ones the longer it takes.
fn nap(waited: Duration) {
    match waited < Duration::from_micros(100) {
        true => std::thread::yield_now(),
        false => std::thread::sleep(Duration::from_micros(50)),
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_callers {
            // wgpu keeps what submitted work uses.
            return idle::forget(&self.id);
        }
        let opened = Opened {
            device: self.device.clone(),
            queue: self.queue.clone(),
            failure: self.failure.clone(),
            transfers: self.transfers.clone(),
        };
        let downloaded =
            |limit| move |transfers: &Arc<TransferQueue>| matches!(transfers.wait_for_all(limit), Ok(true));
        if matches!(self.poll("closing"), Ok(PollStatus::QueueEmpty))
            && opened.transfers.iter().all(downloaded(Duration::ZERO))
        {
            return idle::put(&self.id, opened);
        }
        if self.failure.is_lost() {
            return idle::abandon(opened);
        }
        // There is work left, which another thread waits for.
        let (id, opened) = (self.id.clone(), ManuallyDrop::new(opened));
        let wait = move || {
            let opened = ManuallyDrop::into_inner(opened);
            let ended = catch(|| opened.device.poll(PollType::wait_indefinitely()));
            let downloaded = opened.transfers.iter().all(downloaded(Duration::MAX));
            if matches!(ended, Ok(Ok(_))) && downloaded {
                idle::put(&id, opened)
            } else {
                idle::abandon(opened)
            }
        };
        // Without a thread to be had, the closure is dropped, and the device with it abandoned.
        let thread = std::thread::Builder::new().name(format!("evener-{}-closing", self.id));
        let _ = unbound(|| thread.spawn(wait));
    }
}
