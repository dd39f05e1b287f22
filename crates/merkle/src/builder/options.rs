//! The options of a builder's runs.

use std::{sync::Arc, time::Duration};

use evener_schedule::{Cancel, Job, Progress, Settings, Strategy};

use super::Builder;
use crate::{
    subtree::LeafFormat,
    task::{BlockOutput, BlockTask},
};

type Listener = Arc<dyn Fn(&Progress) + Send + Sync>;

/// The options of a builder's runs; the pool's own apply where an option is not set.
#[derive(Default, Clone)]
pub(super) struct BuilderOptions {
    strategy: Option<Strategy>,
    settings: Option<Settings>,
    all_devices: bool,
    trace: bool,
    cancel: Option<Cancel>,
    deadline: Option<Duration>,
    bar: bool,
    listener: Option<Listener>,
}

impl Builder {
    /// Sets the strategy that shares out blocks, instead of the pool's.
    pub fn strategy(self, strategy: Strategy) -> Self {
        self.with(|options| options.strategy = Some(strategy))
    }

    /// Sets the scheduler's settings, instead of the pool's.
    pub fn settings(self, settings: Settings) -> Self {
        self.with(|options| options.settings = Some(settings))
    }

    /// Uses all devices, including those that are not expected to make the run faster.
    pub fn all_devices(self) -> Self {
        self.with(|options| options.all_devices = true)
    }

    /// Records a trace, which [`Built::trace`](crate::Built::trace) returns.
    pub fn trace(self) -> Self {
        self.with(|options| options.trace = true)
    }

    /// Sets the token that cancels builds.
    pub fn cancel(self, cancel: &Cancel) -> Self {
        self.with(|options| options.cancel = Some(cancel.clone()))
    }

    /// Fails a build that takes longer than this.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|options| options.deadline = Some(deadline))
    }

    /// Draws a progress bar on standard error for builds that take longer than a second, if it is a terminal.
    pub fn progress_bar(self) -> Self {
        self.with(|options| options.bar = true)
    }

    /// Calls `tell` with the progress of a build, ten times a second and at its end. An item is a block of leaves.
    pub fn on_progress(self, tell: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.with(|options| options.listener = Some(Arc::new(tell)))
    }

    /// Changes an option, and drops the jobs that were created with the old ones.
    fn with(mut self, set: impl FnOnce(&mut BuilderOptions)) -> Self {
        set(&mut self.options);
        self.root_jobs.get_mut().clear();
        self.node_jobs.get_mut().clear();
        self
    }

    pub(super) fn new_job<O: BlockOutput>(
        &self,
        format: LeafFormat,
        height: u32,
    ) -> Job<'static, BlockTask<O>> {
        let BuilderOptions { strategy, settings, all_devices, trace, cancel, deadline, bar, listener } =
            self.options.clone();
        let mut job = self.pool.job(&BlockTask::<O>::new(format, height));
        if let Some(strategy) = strategy {
            job = job.strategy(strategy);
        }
        if let Some(settings) = settings {
            job = job.settings(settings);
        }
        if all_devices {
            job = job.all_devices();
        }
        if trace {
            job = job.trace();
        }
        if let Some(cancel) = cancel {
            job = job.cancel(&cancel);
        }
        if let Some(deadline) = deadline {
            job = job.deadline(deadline);
        }
        match listener {
            Some(listener) => job.on_progress(move |progress| listener(progress)),
            None if bar => job.progress_bar(),
            None => job,
        }
    }
}
