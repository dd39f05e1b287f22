//! Points in a stream.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
    time::Duration,
};

use wgpu::SubmissionIndex;

use super::{super::Mark, hold::Hold};
use crate::error::{Error, Result};

const OPERATION: &str = "waiting for a stream";

/// The end of a submission. Any number of threads may wait for it, each on the driver, at once.
#[derive(Debug)]
pub(super) struct WgpuMark {
    pub(super) hold: Arc<Hold>,
    /// None where nothing had been submitted.
    submission: Option<SubmissionIndex>,
    is_done: AtomicBool,
}

impl WgpuMark {
    pub(super) fn new(hold: Arc<Hold>, submission: Option<SubmissionIndex>) -> Self {
        let is_done = AtomicBool::new(submission.is_none());
        WgpuMark { hold, submission, is_done }
    }

    fn reached(&self, timeout: Option<Duration>) -> Result<bool> {
        if self.is_done.load(Acquire) {
            return self.hold.check(OPERATION).map(|()| true);
        }
        let Some(submission) = &self.submission else { return Ok(true) };
        let is_done = self.hold.reached(OPERATION, submission, timeout)?;
        self.is_done.store(is_done, Release);
        Ok(is_done)
    }
}

impl Mark for WgpuMark {
    fn is_done(&self) -> Result<bool> {
        self.reached(Some(Duration::ZERO))
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        if self.reached(timeout)? {
            return Ok(());
        }
        Err(Error::TimedOut {
            device: self.hold.id.clone(),
            operation: OPERATION.into(),
            after: timeout.unwrap_or_default(),
        })
    }
}
