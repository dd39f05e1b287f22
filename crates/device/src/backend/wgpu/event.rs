//! Events: points in a stream.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
    time::{Duration, Instant},
};

use wgpu::SubmissionIndex;

use super::{super::EventBackend, open_device::OpenDevice};
use crate::error::{Error, Result};

const OPERATION: &str = "waiting for a stream";

/// The end of a submission. Any number of threads may wait for it at once.
#[derive(Debug)]
pub(super) struct WgpuEvent {
    pub(super) open: Arc<OpenDevice>,
    /// `None` if nothing was submitted before it.
    submission: Option<SubmissionIndex>,
    /// The stream's last download on the transfer queue, or 0.
    pub(super) download: u64,
    is_done: AtomicBool,
}

impl WgpuEvent {
    pub(super) fn new(open: Arc<OpenDevice>, submission: Option<SubmissionIndex>, download: u64) -> Self {
        let is_done = AtomicBool::new(submission.is_none() && download == 0);
        WgpuEvent { open, submission, download, is_done }
    }

    fn reached(&self, timeout: Option<Duration>) -> Result<bool> {
        if self.is_done.load(Acquire) {
            return self.open.check(OPERATION).map(|()| true);
        }
        let began = Instant::now();
        if !self.open.wait_download(OPERATION, self.download, timeout)? {
            return Ok(false);
        }
        let left = timeout.map(|limit| limit.saturating_sub(began.elapsed()));
        let is_done = match &self.submission {
            Some(submission) => self.open.wait_submission(OPERATION, submission, left)?,
            None => true,
        };
        self.is_done.store(is_done, Release);
        Ok(is_done)
    }
}

impl EventBackend for WgpuEvent {
    fn is_done(&self) -> Result<bool> {
        self.reached(Some(Duration::ZERO))
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        if self.reached(timeout)? {
            return Ok(());
        }
        Err(Error::TimedOut {
            device: self.open.id.clone(),
            operation: OPERATION.into(),
            after: timeout.unwrap_or_default(),
        })
    }
}
