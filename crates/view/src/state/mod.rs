//! Folds events into what a view shows: a state machine without a thread or a clock.
//!
//! Its memory is bounded, whatever the events are and however long it runs: the constants of this module say by how much.
//! Events may be lost, doubled or out of order. Then counters are wrong until the run's next
//! [status](evener_schedule::events::EventKind::Status), and [`Program::lost_events`] says that events were lost.

mod delta;
mod program;
mod recent;
mod run;
#[cfg(test)]
mod test;
mod totals;
mod words;

use evener_schedule::{
    LeftOut,
    decide::Purpose,
    events::{Event, EventKind, RunKind, RunStatus},
};

pub use self::{
    delta::{Delta, DeviceDelta, LaneDelta, RunDelta, Update},
    program::{
        Bar, BarKind, ChunkInHand, DeviceState, DeviceTotals, DeviceView, LaneView, LogLine, PastRun,
        Program, RunEnding, RunSummary, RunView,
    },
    totals::{Counters, MAX_TASKS, MAX_TOTALS, OTHER, TaskTotals},
};
use self::{recent::Recent, run::RunFold, totals::Totals};

/// Maximum runs and queues that are shown and have not ended. Those of which nothing was heard for longest make room.
pub const MAX_RUNS: usize = 64;
/// Maximum runs that are shown and have ended.
pub const MAX_ENDED: usize = 8;
/// Maximum past runs with their reports, and devices in all of their reports.
pub const MAX_PAST: usize = 32;
/// Maximum devices in the reports of all past runs together, unless a single report has more.
pub const MAX_PAST_DEVICES: usize = 8_192;
/// Maximum lines of the log.
pub const MAX_LOG: usize = 256;
/// Maximum lanes of a run that are shown.
pub const MAX_LANES: usize = 4_096;
/// Maximum chunks that a lane shows in hand.
pub const MAX_IN_HAND: usize = 64;
/// Maximum bars of a lane.
pub const MAX_BARS_OF_LANE: usize = 256;
/// Maximum bars of a run, unless it has so many lanes that each keeps its least number, 8.
pub const MAX_BARS_OF_RUN: usize = 16_384;
/// Samples of a device's throughput.
pub const HISTORY: usize = 120;
/// Seconds between two samples of a device's throughput.
pub const SAMPLE_S: f64 = 0.5;

/// The shortest run whose end is in the log, in seconds, unless it failed: there may be thousands of shorter ones a second.
const LOGGED_FROM_S: f64 = 0.1;
/// Seconds between two lines about speculative copies.
const SPECULATIVE_LINE_S: f64 = 1.0;

/// What a program does, folded from its events.
#[derive(Debug)]
pub struct State {
    pid: u32,
    name: String,
    version: u64,
    unix_s: f64,
    lost_events: u64,
    runs: Vec<RunFold>,
    past: Recent<PastRun>,
    log: Recent<LogLine>,
    totals: Totals,
    /// The task, devices and left-out devices of the last run whose beginning is in the log.
    last_begun: Option<(String, Vec<String>, Vec<LeftOut>)>,
    last_speculative_unix_s: f64,
}

impl State {
    /// The state of a program of which nothing is known yet.
    pub fn new(pid: u32, name: String) -> Self {
        State {
            pid,
            name,
            version: 0,
            unix_s: 0.0,
            lost_events: 0,
            runs: Vec::new(),
            past: Recent::new(MAX_PAST),
            log: Recent::new(MAX_LOG),
            totals: Totals::default(),
            last_begun: None,
            last_speculative_unix_s: f64::MIN,
        }
    }

    /// Takes over an event, which was read at this time.
    pub fn fold(&mut self, event: &Event, unix_s: f64) {
        self.version += 1;
        self.unix_s = self.unix_s.max(unix_s);
        let (version, unix_s, at) = (self.version, self.unix_s, event.at);
        if let EventKind::Status(status) = &event.kind {
            return self.status(event, status);
        }
        let Some(run) = self.runs.iter_mut().find(|run| run.summary.id == event.run) else { return };
        let ends_late = run.ended_unseen && matches!(event.kind, EventKind::RunEnded(_));
        if run.summary.ended.is_some() && !ends_late {
            return;
        }
        let mut line = None;
        match &event.kind {
            EventKind::Status(_) => {}
            EventKind::Prepared { lane, took } => run.prepared(*lane, *took, at, version),
            EventKind::ChunkBegan(chunk) => {
                run.chunk_began(*chunk, at, version);
                if chunk.purpose == Purpose::Speculative
                    && unix_s - self.last_speculative_unix_s >= SPECULATIVE_LINE_S
                    && let Some(device) = run.device_of(chunk.lane)
                {
                    self.last_speculative_unix_s = unix_s;
                    line = Some((words::speculative(device, chunk.first, chunk.items), false));
                }
            }
            EventKind::ChunkEnded { chunk, accepted, busy, took } => {
                run.chunk_ended(*chunk, *accepted, (*busy, *took), at, version)
            }
            EventKind::ChunkParts { lane, more } => run.chunk_parts(*lane, *more, version),
            EventKind::ChunkLost { chunk, failed, busy, took } => {
                run.chunk_lost(*chunk, *failed, (*busy, *took), at, version)
            }
            EventKind::Lane { lane, state, retries, quarantines, hangs } => {
                let is_new = run.lane_state(*lane, *state, (*retries, *quarantines, *hangs), version);
                if is_new && let Some(device) = run.device_of(*lane) {
                    let is_failure = *state != evener_schedule::decide::LaneState::Healthy;
                    line = Some((words::state(device, *state, at), is_failure));
                }
            }
            EventKind::Error { device, reason } => {
                run.error(device, reason, version);
                line = Some((words::failed(device, reason), true));
            }
            EventKind::Progress(progress) => run.progress(progress),
            EventKind::Queue(progress) => run.summary.queue = Some(*progress),
            EventKind::RunEnded(end) => {
                if std::mem::take(&mut run.ended_unseen) {
                    self.totals.take_back(run, version);
                }
                run.end(end, version, unix_s);
                if end.error.is_some() || at.as_secs_f64() >= LOGGED_FROM_S {
                    line = Some((words::ended(&run.summary.task, end, at), end.error.is_some()));
                }
                let past = PastRun { summary: run.summary.clone(), report: end.report.clone() };
                self.past.push(version, past);
                self.totals.add(run, Some(end.error.is_some()), version);
            }
        }
        run.heard(at, version);
        if let Some((text, is_failure)) = line {
            self.log(event.run, text, is_failure);
        }
        if matches!(event.kind, EventKind::RunEnded(_)) {
            self.forget_ended();
        }
    }

    fn log(&mut self, run: u64, text: String, is_failure: bool) {
        let text = words::short(&text);
        self.log.push(self.version, LogLine { unix_s: self.unix_s, run, text, is_failure });
    }

    /// Takes over the whole status of a run.
    fn status(&mut self, event: &Event, status: &RunStatus) {
        let (version, unix_s) = (self.version, self.unix_s);
        // A status that was overtaken by the run's end.
        if self.past.iter().any(|past| past.summary.id == event.run) {
            return;
        }
        let known = self.runs.iter_mut().find(|run| run.summary.id == event.run);
        if let Some(run) = known {
            if run.ended_unseen {
                self.totals.take_back(run, version);
            }
            run.summary.ended = None;
            run.ended_unseen = false;
            let joined = run.set_status(status, event.at, version);
            for device in joined {
                self.log(event.run, words::joined(&device), false);
            }
            return;
        }
        self.runs.push(RunFold::new(event.run, status, event.at, version, unix_s));
        let devices: Vec<String> = status.devices.iter().map(|device| device.id.clone()).collect();
        let begun = (status.task.clone(), devices, status.left_out.clone());
        // A task that runs a thousand times a second is in the log once, and again when its devices change.
        if self.last_begun.as_ref() != Some(&begun) {
            self.log(event.run, words::began(status), false);
            for left_out in &status.left_out {
                self.log(event.run, words::left_out(left_out), false);
            }
            self.last_begun = Some(begun);
        }
        let active = self.runs.iter().filter(|run| run.summary.ended.is_none());
        if active.clone().count() > MAX_RUNS {
            let quietest = active.min_by_key(|run| run.changed).map(|run| run.summary.id);
            self.runs.retain(|run| Some(run.summary.id) != quietest);
        }
    }

    /// Lets time pass, which updates rates, and samples the throughput. Call it some times a second.
    pub fn tick(&mut self, unix_s: f64) {
        let since_s = unix_s - self.unix_s;
        self.unix_s = self.unix_s.max(unix_s);
        if self.runs.iter().all(|run| run.summary.ended.is_some()) {
            return;
        }
        self.version += 1;
        let (version, unix_s) = (self.version, self.unix_s);
        let mut has_ended = false;
        for run in &mut self.runs {
            let may_be_silent = run.summary.kind != RunKind::Map;
            if run.tick(since_s, version, unix_s, may_be_silent) {
                self.totals.add(run, None, version);
                has_ended = true;
            }
        }
        if has_ended {
            self.forget_ended();
        }
    }

    /// Removes the oldest runs that have ended, if there are too many.
    fn forget_ended(&mut self) {
        let ended = self.runs.iter().filter(|run| run.summary.ended.is_some()).count();
        let mut surplus = ended.saturating_sub(MAX_ENDED);
        self.runs.retain(|run| {
            let goes = surplus > 0 && run.summary.ended.is_some();
            surplus -= usize::from(goes);
            !goes
        });
        let devices = |past: &PastRun| past.report.as_ref().map_or(0, |report| report.devices.len());
        while self.past.len() > 1 && self.past.iter().map(devices).sum::<usize>() > MAX_PAST_DEVICES {
            self.past.pop_oldest();
        }
    }

    /// Sets how many events were lost in all.
    pub fn set_lost(&mut self, events: u64) {
        if events != self.lost_events {
            self.version += 1;
            self.lost_events = events;
        }
    }

    /// The version, which grows with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether a run of this number is there that has not ended. Queues cannot be cancelled.
    pub fn is_cancellable(&self, run: u64) -> bool {
        let is_run = |it: &RunSummary| it.id == run && it.ended.is_none() && it.kind != RunKind::Queue;
        self.runs.iter().any(|it| is_run(&it.summary))
    }

    /// All of it.
    pub fn snapshot(&self) -> Program {
        Program {
            pid: self.pid,
            name: self.name.clone(),
            version: self.version,
            unix_s: self.unix_s,
            lost_events: self.lost_events,
            runs: self.runs.iter().map(RunFold::view).collect(),
            past: self.past.all(),
            log: self.log.all(),
            totals: self.totals.all(),
        }
    }

    /// What has changed since a version, which is not larger than the present one.
    pub fn delta_since(&self, version: u64) -> Delta {
        let changed = || self.runs.iter().filter(|run| run.changed > version);
        let is_new = |run: &&RunFold| run.is_new_since(version);
        Delta {
            from: version,
            version: self.version,
            unix_s: self.unix_s,
            lost_events: self.lost_events,
            shown: self.runs.iter().map(|run| run.summary.id).collect(),
            new_runs: changed().filter(is_new).map(RunFold::view).collect(),
            runs: changed().filter(|run| !is_new(run)).map(|run| run.delta(version)).collect(),
            kept_past: self.past.iter().map(|past| past.summary.id).collect(),
            past: self.past.since(version),
            log: self.log.since(version),
            totals: self.totals.since(version),
        }
    }

    /// What a view that has seen a version is sent next: nothing if nothing has changed, and all of it at first.
    pub fn update_since(&self, version: Option<u64>) -> Option<Update> {
        match version {
            None => Some(Update::Snapshot(Box::new(self.snapshot()))),
            Some(version) if version == self.version => None,
            Some(version) if version > self.version => Some(Update::Snapshot(Box::new(self.snapshot()))),
            Some(version) => Some(Update::Delta(Box::new(self.delta_since(version)))),
        }
    }
}
