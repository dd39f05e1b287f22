//! A run whose lanes are worker processes.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use evener_schedule::{
    Activity, DeviceReport, Settings, Trace,
    decide::{
        self, Answer, DeviceLanes, Expected, FailureKind, LaneChunk, LaneSpec, LaneState,
        MAX_DIVISIBLE_ITEMS, Outcome, Recorder, Shares, Time, Verdict,
    },
};
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
};

use crate::claims::{Claims, SharedClaims};

/// The decisions of a run over worker processes, each a lane with one chunk in flight. The caller reports what the workers
/// did, and does what the run answers. No item is ever handed to two workers at once: the end is evened out by stealing.
#[pyclass(module = "evener._evener")]
pub(crate) struct Run {
    run: decide::Run,
    recorder: Recorder,
    start: Instant,
    items: u64,
    lanes: Vec<LaneRecord>,
    /// When the run was first seen to have ended.
    end: Option<Time>,
}

/// One lane: a worker's claims, while there is a worker, and its chunk.
struct LaneRecord {
    claims: Option<SharedClaims>,
    chunk: Option<(LaneChunk, Time)>,
}

/// What a worker does next.
#[derive(IntoPyObject)]
enum Next {
    /// Run the items from the first to the second number.
    Run((u64, u64)),
    /// Ask again after this many seconds, or when something has happened before.
    Wait(f64),
}

/// A worker asks again after this many seconds at the latest, if only an event can change the answer.
const LONGEST_WAIT: f64 = 3600.0;

#[pymethods]
impl Run {
    /// Creates a run over this many items, or one to which items are added until it is closed, with `lanes` workers.
    /// `seconds_per_item` is the expected time of an item, if it is known. A run without end should keep no trace.
    #[new]
    #[pyo3(signature = (lanes, items=None, seconds_per_item=None, keeps_trace=true))]
    fn new(
        lanes: usize,
        items: Option<u64>,
        seconds_per_item: Option<f64>,
        keeps_trace: bool,
    ) -> PyResult<Run> {
        if lanes == 0 {
            return Err(PyValueError::new_err("a run needs at least one worker"));
        }
        let expected = seconds_per_item
            .filter(|seconds| *seconds > 0.0 && seconds.is_finite())
            .map(|seconds_per_item| Expected { seconds_per_item, overhead_seconds: None, largest: 1.0 });
        let spec = LaneSpec {
            depth: 1,
            max_items: Some(MAX_DIVISIBLE_ITEMS),
            may_hang: false,
            divisible: true,
            expected,
            ..LaneSpec::default()
        };
        let specs = vec![spec; lanes];
        // Starting a process takes longer than the usual first quarantine, and what kills a worker is most often the item.
        let settings = Settings {
            speculative_copies: false,
            first_quarantine: Duration::from_millis(10),
            max_quarantine: Duration::from_secs(1),
            ..Settings::default()
        };
        let run = match items {
            Some(items) => decide::Run::new(items, &specs, &Shares::Pulled, settings),
            None => decide::Run::open_ended(&specs, settings),
        };
        let none = || LaneRecord { claims: None, chunk: None };
        Ok(Run {
            run,
            recorder: Recorder::new(lanes, keeps_trace),
            start: Instant::now(),
            items: items.unwrap_or(0),
            lanes: std::iter::repeat_with(none).take(lanes).collect(),
            end: None,
        })
    }

    /// Gives a lane a worker that is ready for chunks.
    fn attach(&mut self, lane: usize, claims: &Claims) -> PyResult<()> {
        let now = self.now();
        self.lane(lane)?.claims = Some(claims.shared());
        self.recorder.ready(lane, now);
        Ok(())
    }

    /// A lane's worker asks for work. Returns the range of its items, how many seconds to wait, or `None` if the run has
    /// ended.
    fn ask(&mut self, lane: usize) -> PyResult<Option<Next>> {
        let record = self.lane(lane)?;
        if record.chunk.is_some() {
            return Err(PyRuntimeError::new_err(format!("lane {lane} has a chunk")));
        }
        if record.claims.is_none() {
            return Err(PyRuntimeError::new_err(format!("lane {lane} has no worker")));
        }
        let now = self.now();
        let mut answer = match self.steal_most(lane, now) {
            Some(answer) => answer,
            None => {
                self.note_progress(now);
                self.run.ask(lane, now)
            }
        };
        while let Answer::Steal { from, fraction, max_items } = answer {
            let taken = self.steal(from, fraction, max_items);
            answer = self.run.stolen(lane, from, taken, now);
        }
        Ok(match answer {
            Answer::Run(chunk) => {
                let range = (chunk.items.start, chunk.items.end);
                let record = self.lane(lane)?;
                if let Some(claims) = &record.claims {
                    claims.begin(range.1 - range.0);
                }
                record.chunk = Some((chunk, now));
                Some(Next::Run(range))
            }
            Answer::Wait { until } => {
                let wait = until.map_or(LONGEST_WAIT, |until| until.saturating_sub(now).as_secs_f64());
                Some(Next::Wait(wait))
            }
            Answer::Ended | Answer::Steal { .. } => None,
        })
    }

    /// A lane's worker has ended its chunk. Returns the items that it kept: others may have stolen some, and it may have given
    /// some back.
    fn ended(&mut self, lane: usize) -> PyResult<(u64, u64)> {
        let now = self.now();
        let (mut chunk, began, kept) = self.take_chunk(lane)?;
        if self.run.outcome().is_some() {
            // Nobody wants the results any more.
            self.recorder.wasted(&chunk, Activity::Dropped, began, now);
            return Ok((chunk.items.start, chunk.items.start));
        }
        let kept = kept.max(1);
        self.run.shrink(chunk.id, chunk.items.start + kept, now);
        chunk.items.end = chunk.items.start + kept;
        self.accept(&chunk, began, now)?;
        Ok((chunk.items.start, chunk.items.end))
    }

    /// A lane's worker has died, after it delivered the results of the items before `delivered`. All others of its chunk are
    /// given back, and the lane gets no work for a while. Returns the rest of its chunk: the items from the first to the
    /// second number.
    fn died(&mut self, lane: usize, delivered: u64) -> PyResult<Option<(u64, u64)>> {
        let now = self.now();
        let record = self.lane(lane)?;
        if record.chunk.is_none() {
            record.claims = None;
            self.run.lane_failed(lane, FailureKind::Untrusted, now);
            self.recorder.update_lane_states(&self.run, now);
            return Ok(None);
        }
        let (mut chunk, began, kept) = self.take_chunk(lane)?;
        self.lane(lane)?.claims = None;
        let end = chunk.items.start + kept;
        let delivered = delivered.clamp(chunk.items.start, end);
        if delivered > chunk.items.start {
            self.run.shrink(chunk.id, delivered, now);
            chunk.items.end = delivered;
            self.accept(&chunk, began, now)?;
            self.run.lane_failed(lane, FailureKind::Untrusted, now);
        } else {
            self.recorder.wasted(&chunk, Activity::Failure, began, now);
            self.run.chunk_failed(chunk.id, FailureKind::Untrusted, now);
        }
        self.recorder.update_lane_states(&self.run, now);
        Ok((delivered < end).then_some((delivered, end)))
    }

    /// A lane can never have a worker in this run.
    fn retire(&mut self, lane: usize) -> PyResult<()> {
        let now = self.now();
        self.lane(lane)?.claims = None;
        self.run.lane_failed(lane, FailureKind::Unable, now);
        self.recorder.update_lane_states(&self.run, now);
        Ok(())
    }

    /// Adds items to a run that was created without their number.
    fn grow(&mut self, items: u64) {
        self.items += items;
        self.run.grow(items);
    }

    /// Declares that no more items will come.
    fn close(&mut self) {
        self.run.close();
        self.note_end();
    }

    /// Ends the run: every worker ends its chunk after its present item.
    fn stop(&mut self) {
        self.run.stop();
        self.note_end();
        for record in self.lanes.iter().filter(|record| record.chunk.is_some()) {
            if let Some(claims) = &record.claims {
                claims.claims().end_run();
            }
        }
    }

    /// Ends a run whose lanes have all failed and do not come back.
    fn check(&mut self) {
        let now = self.now();
        self.run.overdue(now);
        self.note_end();
    }

    /// Seconds until the next call of `check`, if one is due.
    fn next_check(&self) -> Option<f64> {
        let deadline = self.run.next_deadline()?;
        Some(deadline.saturating_sub(self.now()).as_secs_f64())
    }

    /// How the run has ended: `complete`, `stopped` or `no worker left`. `None` while it goes on.
    #[getter]
    fn outcome(&self) -> Option<&'static str> {
        self.run.outcome().map(|outcome| match outcome {
            Outcome::Complete => "complete",
            Outcome::Stopped => "stopped",
            Outcome::NoLaneLeft | Outcome::TaskFailed(_) => "no worker left",
        })
    }

    /// The number of items so far.
    #[getter]
    fn items(&self) -> u64 {
        self.items
    }

    /// The number of items with a result.
    #[getter]
    fn done(&self) -> u64 {
        self.run.done()
    }

    /// Whether every item is handed out.
    #[getter]
    fn is_drained(&self) -> bool {
        self.run.is_drained()
    }

    /// Seconds since the run began.
    #[getter]
    fn seconds(&self) -> f64 {
        self.now().as_secs_f64()
    }

    /// The state of a lane: `healthy`, `quarantined` or `retired`.
    fn state(&mut self, lane: usize) -> PyResult<&'static str> {
        self.lane(lane)?;
        Ok(match self.run.state(lane) {
            LaneState::Healthy => "healthy",
            LaneState::Quarantined { .. } => "quarantined",
            LaneState::Retired => "retired",
        })
    }

    /// Items per second of all workers together, once it is known.
    #[getter]
    fn rate(&self) -> Option<f64> {
        let rates: Vec<f64> = (0..self.lanes.len()).filter_map(|lane| self.run.rate(lane)).collect();
        (!rates.is_empty()).then(|| rates.iter().sum())
    }

    /// Mean seconds per item of the workers that have ended a chunk, overhead included.
    #[getter]
    fn seconds_per_item(&self) -> Option<f64> {
        let lanes = (0..self.lanes.len()).filter_map(|lane| self.run.learned(lane));
        let all: Vec<f64> = lanes.map(|learned| learned.seconds_per_item).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    /// The report of the run, as JSON and as text. `devices` names each lane's device: lanes that follow each other and have
    /// the same name are one device. `failures` has the errors of each device, and `home` the items that the caller ran
    /// itself, and the seconds that they took.
    #[pyo3(signature = (label, devices, failures, home=(0, 0.0)))]
    fn report(
        &self,
        label: &str,
        devices: Vec<String>,
        failures: Vec<(String, String)>,
        home: (u64, f64),
    ) -> PyResult<(String, String)> {
        let device_lanes = self.device_lanes(&devices)?;
        let wall = self.end.unwrap_or_else(|| self.now());
        let mut report = self.recorder.report(&self.run, &device_lanes, self.items, wall, None);
        for device in &mut report.devices {
            let own = failures.iter().filter(|(id, _)| *id == device.id);
            device.failures = own.map(|(_, failure)| failure.clone()).collect();
        }
        report.task = Some(label.into());
        if home.0 > 0 {
            report.devices.insert(0, home_report(home));
            report.items += home.0;
            report.done += home.0;
            report.wall_s += home.1;
            report.ideal_s += home.1;
        }
        let json =
            serde_json::to_string(&report).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok((json, report.to_string()))
    }

    /// The trace of the run, as a JSON document that Perfetto opens. It can be taken once.
    fn trace(&mut self, label: &str, lanes: Vec<String>) -> String {
        let spans = self.recorder.take_spans();
        Trace { task: label.into(), lanes, spans }.to_json().to_string()
    }
}

impl Run {
    fn now(&self) -> Time {
        self.start.elapsed()
    }

    fn note_end(&mut self) {
        if self.run.outcome().is_some() && self.end.is_none() {
            self.end = Some(self.now());
        }
    }

    fn lane(&mut self, lane: usize) -> PyResult<&mut LaneRecord> {
        let count = self.lanes.len();
        let missing = || PyValueError::new_err(format!("there is no lane {lane}: there are {count}"));
        self.lanes.get_mut(lane).ok_or_else(missing)
    }

    /// Takes a lane's chunk: the chunk, when it was handed out, and how many of its items are still its own.
    fn take_chunk(&mut self, lane: usize) -> PyResult<(LaneChunk, Time, u64)> {
        let record = self.lane(lane)?;
        let none = || PyRuntimeError::new_err(format!("lane {lane} has no chunk"));
        let (chunk, began) = record.chunk.take().ok_or_else(none)?;
        let all = chunk.items.end - chunk.items.start;
        let kept = record.claims.as_ref().map_or(all, |claims| u64::from(claims.claims().end()));
        Ok((chunk, began, kept.min(all)))
    }

    /// Accepts the results of a chunk.
    fn accept(&mut self, chunk: &LaneChunk, began: Time, now: Time) -> PyResult<()> {
        let took = self.recorder.took(chunk.lane, began, now);
        let verdict = self.run.chunk_ended(chunk.id, took, now);
        let count = chunk.items.end - chunk.items.start;
        self.recorder.ended(chunk, began, (count, count), (Duration::ZERO, Duration::ZERO), now);
        self.recorder.update_lane_states(&self.run, now);
        self.note_end();
        match verdict {
            Verdict::Accept => Ok(()),
            // The run has ended, and needs no more results.
            _ if self.run.outcome().is_some() => Ok(()),
            other => {
                let items = &chunk.items;
                let text = format!("items {}..{} were handed out twice: {other:?}", items.start, items.end);
                Err(PyRuntimeError::new_err(text))
            }
        }
    }

    /// Steals half of the unclaimed items of the worker that has most of them, if the run leaves the choice to its driver.
    fn steal_most(&mut self, lane: usize, now: Time) -> Option<Answer> {
        let least = self.run.min_steal_items(lane)?;
        let unclaimed = |record: &LaneRecord| {
            let (chunk, claims) = (record.chunk.as_ref()?, record.claims.as_ref()?);
            Some((claims.claims().unclaimed(), chunk.0.id))
        };
        let most = self.lanes.iter().filter_map(unclaimed).max();
        let from = most.filter(|(unclaimed, from)| *unclaimed >= least && self.run.can_be_stolen_from(*from));
        let taken = from.and_then(|(_, from)| Some((from, self.steal(from, 0.5, u64::MAX)?)));
        match taken {
            Some((from, items)) => Some(self.run.stolen(lane, from, Some(items), now)),
            None => {
                let until = self.run.found_nothing(lane, now)?;
                Some(Answer::Wait { until: Some(until) })
            }
        }
    }

    /// Takes items that its worker has not claimed from the end of a chunk.
    fn steal(&self, from: u64, fraction: f64, max_items: u64) -> Option<Range<u64>> {
        let has = |record: &&LaneRecord| record.chunk.as_ref().is_some_and(|(chunk, _)| chunk.id == from);
        let victim = self.lanes.iter().find(has)?;
        let (chunk, claims) = (&victim.chunk.as_ref()?.0, victim.claims.as_ref()?);
        let taken = claims.claims().steal(fraction, max_items, 1)?;
        Some(chunk.items.start + u64::from(taken.start)..chunk.items.start + u64::from(taken.end))
    }

    /// Reports the workers' progress to the run, if it may decide to steal next.
    fn note_progress(&mut self, now: Time) {
        if !self.run.may_steal(now) {
            return;
        }
        for record in &self.lanes {
            if let (Some((chunk, _)), Some(claims)) = (&record.chunk, &record.claims) {
                let begun = chunk.items.start + u64::from(claims.claims().claimed());
                self.run.note_begun(chunk.id, begun, now);
            }
        }
    }

    /// The devices of the lanes.
    fn device_lanes(&self, devices: &[String]) -> PyResult<Vec<DeviceLanes>> {
        if devices.len() != self.lanes.len() {
            let text = format!("{} names for {} lanes", devices.len(), self.lanes.len());
            return Err(PyValueError::new_err(text));
        }
        let mut all: Vec<DeviceLanes> = Vec::new();
        for (lane, id) in devices.iter().enumerate() {
            match all.last_mut() {
                Some(last) if last.id == *id => last.lanes.end = lane + 1,
                _ => all.push(DeviceLanes { id: id.clone(), lanes: lane..lane + 1 }),
            }
        }
        Ok(all)
    }
}

/// The report of the calling process, which ran the first items itself.
fn home_report((items, seconds): (u64, f64)) -> DeviceReport {
    DeviceReport {
        id: "home".into(),
        items,
        chunks: 1,
        busy_s: seconds,
        copy_s: 0.0,
        idle_s: 0.0,
        startup_s: 0.0,
        quarantined_s: 0.0,
        rate: (seconds > 0.0).then(|| items as f64 / seconds),
        retries: 0,
        speculative: 0,
        steals: 0,
        dropped: 0,
        quarantines: 0,
        hangs: 0,
        state: "healthy".into(),
        failures: Vec::new(),
    }
}
