//! What a builder's runs are like.

use std::{sync::Arc, time::Duration};

use evener_schedule::{Cancel, Job, Progress, Settings, Strategy};

use super::Builder;
use crate::{
    subtree::Format,
    task::{BlockTask, Outcome},
};

type Listener = Arc<dyn Fn(&Progress) + Send + Sync>;

#[derive(Default, Clone)]
pub(super) struct Options {
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
    /// Sets how blocks are shared out, where the pool's own way is not to be used.
    pub fn strategy(self, strategy: Strategy) -> Self {
        self.with(|options| options.strategy = Some(strategy))
    }

    /// Sets what can be tuned, where the pool's own settings are not to be used.
    pub fn settings(self, settings: Settings) -> Self {
        self.with(|options| options.settings = Some(settings))
    }

    /// Uses all devices, also those that are expected to make no difference.
    pub fn all_devices(self) -> Self {
        self.with(|options| options.all_devices = true)
    }

    /// Keeps what every lane did, for [`Built::trace`](crate::Built::trace).
    pub fn trace(self) -> Self {
        self.with(|options| options.trace = true)
    }

    /// Lets builds be cancelled.
    pub fn cancel(self, cancel: &Cancel) -> Self {
        self.with(|options| options.cancel = Some(cancel.clone()))
    }

    /// Ends a build that takes longer.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|options| options.deadline = Some(deadline))
    }

    /// Draws a bar on standard error for builds that take longer than a second; nothing where it is no terminal.
    pub fn progress_bar(self) -> Self {
        self.with(|options| options.bar = true)
    }

    /// Tells how far a build has come, ten times a second and at its end. An item is a block of leaves.
    pub fn on_progress(self, tell: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.with(|options| options.listener = Some(Arc::new(tell)))
    }

    /// Jobs are made with the options that there are then.
    fn with(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(&mut self.options);
        self.root_jobs.get_mut().clear();
        self.node_jobs.get_mut().clear();
        self
    }

    pub(super) fn new_job<O: Outcome>(&self, format: Format, height: u32) -> Job<'static, BlockTask<O>> {
        let Options { strategy, settings, all_devices, trace, cancel, deadline, bar, listener } =
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
