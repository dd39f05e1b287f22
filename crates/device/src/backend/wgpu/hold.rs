//! The hold on an open device, which everything made from it shares.

use std::{
    mem::ManuallyDrop,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use wgpu::{PollError, PollStatus, PollType, SubmissionIndex};

use super::{
    super::shelf::Shelf,
    clock::Clock,
    failure::{Failure, quietly, translate, watch},
    host::Staging,
    idle::{self, Opened},
    program::Modules,
};
use crate::{
    describe::{Api, Capabilities, DeviceId, Kind},
    error::{Error, Result},
};

/// An open device: wgpu's device and queue, its memory, and what has gone wrong with it.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) id: DeviceId,
    pub(super) kind: Kind,
    pub(super) api: Api,
    pub(super) capabilities: Capabilities,
    pub(super) device: wgpu::Device,
    /// Runs submissions in order, one after the other has its effects. This is the only handle on it.
    pub(super) queue: wgpu::Queue,
    pub(super) failure: Arc<Failure>,
    pub(super) shelf: Shelf<wgpu::Buffer>,
    pub(super) staging: Staging,
    pub(super) modules: Mutex<Modules>,
    pub(super) clock: Clock,
}

impl Hold {
    /// Fails with what has gone wrong since the last call, if anything.
    pub(super) fn check(&self, operation: &str) -> Result<()> {
        self.failure.check(&self.id, operation)
    }

    /// Makes calls to wgpu that each succeed or are of no use.
    pub(super) fn attempt<T>(&self, operation: &str, calls: impl FnOnce() -> T) -> Result<T> {
        self.check(operation)?;
        let (made, error) = watch(calls);
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

    /// Waits for a submission. False when it had not ended in time.
    pub(super) fn reached(
        &self,
        operation: &str,
        submission: &SubmissionIndex,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        loop {
            let wait = PollType::Wait { submission_index: Some(submission.clone()), timeout };
            match self.ask(operation, wait)? {
                Ok(_) => return Ok(true),
                Err(PollError::Timeout) if timeout.is_some() => return Ok(false),
                Err(PollError::Timeout) => {}
                Err(PollError::WrongSubmissionIndex(..)) => {
                    let detail = "the device did not accept the work";
                    return Err(Error::lost(&self.id, operation, detail));
                }
            }
        }
    }

    /// Polls, unless the device is lost. A lost device is never polled again: wgpu would free the memory
    /// that host buffers still point into.
    fn ask(&self, operation: &str, how: PollType) -> Result<Result<PollStatus, PollError>> {
        self.check(operation)?;
        match quietly(|| self.device.poll(how)) {
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

    pub(super) fn modules(&self) -> std::sync::MutexGuard<'_, Modules> {
        // Nothing is left half-done under this lock.
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let opened =
            Opened { device: self.device.clone(), queue: self.queue.clone(), failure: self.failure.clone() };
        if matches!(self.poll("closing"), Ok(PollStatus::QueueEmpty)) {
            return idle::put(&self.id, opened);
        }
        if self.failure.is_lost() {
            return idle::abandon(opened);
        }
        // There is work left, which another thread waits for.
        let (id, opened) = (self.id.clone(), ManuallyDrop::new(opened));
        let wait = move || {
            let opened = ManuallyDrop::into_inner(opened);
            let ended = quietly(|| opened.device.poll(PollType::wait_indefinitely()));
            if matches!(ended, Ok(Ok(_))) { idle::put(&id, opened) } else { idle::abandon(opened) }
        };
        // Without a thread to be had, the closure is dropped, and the device with it abandoned.
        let _ = std::thread::Builder::new().name(format!("evener-{}-closing", self.id)).spawn(wait);
    }
}
