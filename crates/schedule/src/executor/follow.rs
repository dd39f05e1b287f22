//! What views learn of a run besides what its lanes do: its status, its progress, and its end.

use std::{sync::Arc, time::Duration};

use super::{Control, Core, RunContext, RunData, StopReason, StreamData, WorkerActivity};
use crate::{
    error::RunError,
    events::{self, EventKind, Followed, RunEnd, RunKind, RunProgress, RunStatus},
    recorder::DeviceLanes,
    report::{LeftOut, Report},
    run::Time,
    task::Task,
};

/// How the devices of a run were chosen.
#[derive(Debug, Clone)]
pub(crate) struct RunChoice {
    pub(crate) strategy: &'static str,
    pub(crate) left_out: Arc<[LeftOut]>,
    pub(crate) predicted: Option<Duration>,
}

impl<T: Task, E: RunData<T>> RunContext<T, E> {
    /// Writes the run's status if readers of the events do not know it.
    pub(super) fn tell_status(&self, core: &mut Core, now: Time) {
        if core.recorder.events().is_some_and(|events| events.needs_status()) {
            self.write_status(core, now);
        }
    }

    /// Writes the run's status again, because devices have joined it.
    pub(super) fn tell_joined(&self, core: &mut Core, now: Time) {
        if core.recorder.events().is_some_and(|events| events.is_followed()) {
            self.write_status(core, now);
        }
    }

    #[cold]
    fn write_status(&self, core: &mut Core, now: Time) {
        let in_flight = core.workers.iter().filter(|worker| !worker.abandoned);
        let in_flight = in_flight.filter_map(|worker| match &worker.activity {
            WorkerActivity::Chunk(chunk, since) => Some((chunk, *since)),
            WorkerActivity::Idle | WorkerActivity::Preparing(_) => None,
        });
        let devices = self.device_lanes(core.run.tallies().len());
        let status = core.recorder.status(&core.run, &devices, &in_flight.collect::<Vec<_>>());
        let has_joined = |left_out: &LeftOut| devices.iter().any(|device| device.id == left_out.id);
        let is_stream = self.data.window().is_some();
        let status = RunStatus {
            task: self.task.name().into(),
            kind: if is_stream { RunKind::Stream } else { RunKind::Map },
            strategy: self.choice.strategy,
            items: (!is_stream).then_some(self.items),
            predicted: self.choice.predicted,
            devices: status,
            left_out: self.choice.left_out.iter().filter(|it| !has_joined(it)).cloned().collect(),
        };
        if let Some(events) = core.recorder.events() {
            events.status(now, || status);
        }
    }

    /// The devices of the first `lanes` lanes.
    pub(crate) fn device_lanes(&self, lanes: usize) -> Vec<DeviceLanes> {
        let mut devices: Vec<DeviceLanes> = Vec::new();
        let mut last = None;
        for lane in 0..lanes {
            let device = self.device(lane);
            match devices.last_mut() {
                // The lanes of one device follow each other.
                Some(it) if last == Some(device.index) => it.lanes.end += 1,
                _ => devices.push(DeviceLanes { id: device.id.to_string(), lanes: lane..lane + 1 }),
            }
            last = Some(device.index);
        }
        devices
    }

    /// Writes the run's status or progress, if readers of the events need it.
    pub(super) fn tell_progress(&self, core: &mut Core, now: Time) {
        self.tell_status(core, now);
        if !core.recorder.events().is_some_and(|events| events.is_progress_due(now)) {
            return;
        }
        let progress = self.progress(core, now);
        let items = self.data.window().map_or(self.items, |window| window.arrived());
        let (efficiency, bound) = core.recorder.efficiency_so_far(&core.run, items, now);
        let is_growing = core.run.accepts_items();
        let progress = RunProgress {
            done: progress.done,
            items: Some(items).filter(|_| !is_growing),
            efficiency,
            bound: bound.filter(|_| !is_growing),
            waiting_for: progress.waiting_for.map(Into::into),
        };
        if let Some(events) = core.recorder.events() {
            events.write(now, || EventKind::Progress(progress));
        }
    }

    /// Writes that the run has ended. `end` is called if readers follow the run.
    pub(crate) fn tell_end(&self, core: &mut Core, end: impl FnOnce(&Core, Time) -> RunEnd) {
        let now = self.now();
        // A reader that has just come, or has asked for it, would otherwise not see the end.
        self.tell_status(core, now);
        if core.recorder.events().is_some_and(|events| events.is_followed()) {
            let end = Arc::new(end(core, now));
            if let Some(events) = core.recorder.events() {
                events.write(now, || EventKind::RunEnded(end));
            }
        }
        events::stream().forget_request(self.owner as u64);
    }

    /// Why the run has to stop, if it has to: its caller's reasons, or a request from outside.
    pub(crate) fn stop_reason(&self, control: &Control, now: impl Fn() -> Time) -> Option<StopReason> {
        let asked = || events::stream().is_cancel_requested(self.owner as u64);
        control.stop_reason(now).or_else(|| asked().then_some(StopReason::Cancelled))
    }
}

impl<T: Task> Followed for RunContext<T, StreamData<T>> {
    fn tell_status(&self) {
        let (mut core, now) = (self.core(), self.now());
        if core.run.outcome().is_none() {
            RunContext::tell_status(self, &mut core, now);
        }
    }
}

impl RunEnd {
    /// The end of a run with this result.
    pub(crate) fn new(result: &Result<(), RunError>, report: Option<Report>) -> RunEnd {
        RunEnd { error: result.as_ref().err().map(ToString::to_string), report }
    }
}
