//! Records what the lanes of a run do, for its report and its trace.

use std::{ops::Range, time::Duration};

use crate::{
    events::{DeviceStatus, EventKind, LaneStatus, RunEvents, lane_number},
    report::{DeviceReport, Report, Speedup},
    run::{LaneChunk, LaneState, Outcome, Purpose, Run, Time},
    trace::{Activity, Span},
};

/// The record of one run. Its times are the driver's, real or virtual.
#[derive(Debug)]
pub struct Recorder {
    lanes: Vec<LaneTimes>,
    /// The spans of all lanes, if the caller wants a trace.
    spans: Option<Vec<Span>>,
    /// The events of the run, if views can follow it.
    events: Option<RunEvents>,
}

#[derive(Debug, Clone, Default)]
struct LaneTimes {
    /// Items whose results were accepted.
    items: u64,
    busy: Duration,
    /// The part of the busy time without accepted results.
    wasted: Duration,
    copying: Duration,
    /// When it was ready for its first chunk.
    ready: Option<Time>,
    last_end: Time,
    /// Since when it is quarantined or retired, if it is, and how long it was before.
    quarantined_since: Option<Time>,
    quarantined: Duration,
    /// The failures that readers of the events know of: state, retries, quarantines and hangs.
    told: Option<(LaneState, u64, u64, u64)>,
}

impl LaneTimes {
    /// Items per second of busy time. Wasted work says nothing about the speed of a device.
    fn rate(&self) -> Option<f64> {
        let useful = self.busy.saturating_sub(self.wasted).as_secs_f64();
        (self.items > 0 && useful > 0.0).then(|| self.items as f64 / useful)
    }
}

/// A device of a report: its name and its lanes.
#[derive(Debug, Clone)]
pub struct DeviceLanes {
    /// Its name.
    pub id: String,
    /// Its lanes.
    pub lanes: std::ops::Range<usize>,
}

impl Recorder {
    /// Creates the record of a run with this many lanes. Only with `keep_spans` does the run have a trace.
    pub fn new(lanes: usize, keep_spans: bool) -> Self {
        Recorder { lanes: vec![LaneTimes::default(); lanes], spans: keep_spans.then(Vec::new), events: None }
    }

    /// Returns the record with events, so that views can follow the run.
    pub fn with_events(mut self, events: RunEvents) -> Self {
        self.events = Some(events);
        self
    }

    /// The events of the run, if it has any.
    pub fn events(&mut self) -> Option<&mut RunEvents> {
        self.events.as_mut()
    }

    /// Writes an event, if readers follow the run.
    fn event(&self, now: Time, kind: impl FnOnce(&RunEvents) -> EventKind) {
        if let Some(events) = self.events.as_ref().filter(|events| events.is_followed()) {
            events.write(now, || kind(events));
        }
    }

    /// Records that a chunk was handed out.
    pub fn began(&self, chunk: &LaneChunk, now: Time) {
        self.event(now, |events| EventKind::ChunkBegan(events.chunk(chunk)));
    }

    /// Records that a chunk failed on its lane before it ran.
    pub fn refused(&self, chunk: &LaneChunk, now: Time) {
        let (busy, took) = (Duration::ZERO, Duration::ZERO);
        self.event(now, |events| EventKind::ChunkLost {
            chunk: events.chunk(chunk),
            failed: true,
            busy,
            took,
        });
    }

    /// Records that the task was called several times for the chunk that has just ended.
    pub fn done_in_parts(&self, lane: usize, parts: u64, now: Time) {
        if parts > 1 {
            self.event(now, |_| EventKind::ChunkParts { lane: lane_number(lane), more: parts - 1 });
        }
    }

    /// Records an error of a device, for the readers of the events.
    pub fn error(&self, device: &str, error: &dyn std::fmt::Display, now: Time) {
        self.event(now, |_| EventKind::Error { device: device.into(), reason: error.to_string().into() });
    }

    /// The lanes of devices at this moment, for a [status](crate::events::RunStatus). `in_flight` are the chunks in flight,
    /// and since when.
    pub fn status(
        &self,
        run: &Run,
        devices: &[DeviceLanes],
        in_flight: &[(&LaneChunk, Time)],
    ) -> Vec<DeviceStatus> {
        let lane = |index: usize| {
            let of_lane = in_flight.iter().filter(|(chunk, _)| chunk.lane == index);
            let chunk =
                |(chunk, since): &(&LaneChunk, Time)| Some((self.events.as_ref()?.chunk(chunk), *since));
            LaneStatus {
                state: run.state(index),
                tally: run.tallies()[index],
                items: self.lanes[index].items,
                busy: self.lanes[index].busy,
                wasted: self.lanes[index].wasted,
                in_flight: of_lane.filter_map(chunk).collect(),
            }
        };
        let status = |device: &DeviceLanes| DeviceStatus {
            id: device.id.clone(),
            lanes: device.lanes.clone().map(lane).collect(),
        };
        devices.iter().map(status).collect()
    }

    /// The efficiency so far, and the one that is guaranteed, once all of `items` are handed out: as the
    /// [report](Recorder::report) has them at the end.
    pub fn efficiency_so_far(&self, run: &Run, items: u64, now: Time) -> (Option<f64>, Option<f64>) {
        let rate: f64 = self.lanes.iter().filter_map(LaneTimes::rate).sum();
        let done: u64 = self.lanes.iter().map(|lane| lane.items).sum();
        if rate <= 0.0 || done == 0 || now.is_zero() {
            return (None, None);
        }
        let share = |items: u64, time: Time| (items as f64 / rate / time.as_secs_f64().max(1e-9)).min(1.0);
        let end = self.latest_end(run, run.last_accepted());
        (Some(share(done, now)), end.map(|end| share(items, end)))
    }

    /// Records that a lane is ready for chunks.
    pub fn ready(&mut self, lane: usize, now: Time) {
        self.lanes[lane].ready.get_or_insert(now);
    }

    /// How long a chunk that ends now has kept its lane busy: since it began, or since the one before it ended.
    pub fn took(&self, lane: usize, began: Time, now: Time) -> Duration {
        now.saturating_sub(began.max(self.lanes[lane].last_end))
    }

    /// The whole process was suspended for this long: the time counts as no lane's work.
    pub(crate) fn note_suspension(&mut self, gap: Duration, now: Time) {
        for lane in &mut self.lanes {
            lane.last_end = lane.last_end.saturating_add(gap).min(now);
        }
    }

    /// Records a chunk that ended without an error: how many items it computed, how many of them were accepted, and how long
    /// its copies to and from the device took.
    pub fn ended(
        &mut self,
        chunk: &LaneChunk,
        began: Time,
        (computed, accepted): (u64, u64),
        (upload, download): (Duration, Duration),
        now: Time,
    ) {
        let took = self.took(chunk.lane, began, now);
        self.event(now, |events| EventKind::ChunkEnded {
            chunk: events.chunk(chunk),
            accepted,
            busy: took,
            took: now.saturating_sub(began),
        });
        let lane = &mut self.lanes[chunk.lane];
        lane.busy += took;
        lane.last_end = now;
        lane.items += accepted;
        lane.copying += upload + download;
        if accepted == 0 {
            lane.wasted += took;
        }
        let activity = match chunk.purpose {
            _ if accepted == 0 => Activity::Dropped,
            Purpose::Speculative => Activity::Speculative,
            _ => Activity::Work,
        };
        self.span(|| Span {
            accepted,
            duplicates: computed.saturating_sub(accepted),
            upload,
            download,
            ..bare_span(chunk.lane, activity, chunk.items.clone(), (began, now))
        });
    }

    /// Records a chunk without accepted results: it failed, its lane was given up on, or it was dropped.
    pub fn wasted(&mut self, chunk: &LaneChunk, activity: Activity, began: Time, now: Time) {
        let took = self.took(chunk.lane, began, now);
        self.event(now, |events| EventKind::ChunkLost {
            chunk: events.chunk(chunk),
            failed: activity == Activity::Failure,
            busy: took,
            took: now.saturating_sub(began),
        });
        let lane = &mut self.lanes[chunk.lane];
        lane.busy += took;
        lane.wasted += took;
        lane.last_end = now;
        self.span(|| bare_span(chunk.lane, activity, chunk.items.clone(), (began, now)));
    }

    /// Adds time of a lane's copies.
    pub(crate) fn copied(&mut self, lane: usize, time: Duration) {
        self.lanes[lane].copying += time;
    }

    /// Records that a worker prepared a lane's device.
    pub fn prepared(&mut self, lane: usize, began: Time, now: Time) {
        self.event(now, |_| EventKind::Prepared { lane: lane_number(lane), took: now.saturating_sub(began) });
        self.span(|| bare_span(lane, Activity::Preparation, 0..0, (began, now)));
    }

    /// Adds a span, if the caller wants a trace.
    fn span(&mut self, span: impl FnOnce() -> Span) {
        if let Some(spans) = &mut self.spans {
            spans.push(span());
        }
    }

    /// Records which lanes are quarantined or retired.
    pub fn update_lane_states(&mut self, run: &Run, now: Time) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            match (run.state(index), lane.quarantined_since) {
                (LaneState::Healthy, Some(since)) => {
                    lane.quarantined += now.saturating_sub(since);
                    lane.quarantined_since = None;
                }
                (LaneState::Quarantined { .. } | LaneState::Retired, None) => {
                    lane.quarantined_since = Some(now)
                }
                _ => {}
            }
        }
        self.tell_failures(run, now);
    }

    /// Writes the states and failures of lanes that readers do not know of.
    fn tell_failures(&mut self, run: &Run, now: Time) {
        let Some(events) = self.events.as_ref().filter(|events| events.is_followed()) else { return };
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let (state, tally) = (run.state(index), run.tallies()[index]);
            let failures = (state, tally.retries, tally.quarantines, tally.hangs);
            if lane.told.unwrap_or((LaneState::Healthy, 0, 0, 0)) != failures {
                lane.told = Some(failures);
                let (_, retries, quarantines, hangs) = failures;
                let lane = lane_number(index);
                events.write(now, || EventKind::Lane { lane, state, retries, quarantines, hangs });
            }
        }
    }

    /// Adds lanes.
    pub(crate) fn add_lanes(&mut self, count: usize) {
        self.lanes.extend(std::iter::repeat_n(LaneTimes::default(), count));
    }

    /// The items whose results were accepted from a lane.
    pub(crate) fn items(&self, lane: usize) -> u64 {
        self.lanes[lane].items
    }

    /// Takes the spans of all lanes, if they were kept.
    pub fn take_spans(&mut self) -> Vec<Span> {
        self.spans.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The report of a run that has ended. Without an ideal time of the driver's, it is computed from the rates that the
    /// devices had.
    pub fn report(
        &self,
        run: &Run,
        devices: &[DeviceLanes],
        items: u64,
        wall: Time,
        ideal: Option<f64>,
    ) -> Report {
        let wall_s = wall.as_secs_f64();
        let devices: Vec<DeviceReport> =
            devices.iter().map(|device| self.device_report(run, device, wall)).collect();
        let all: f64 = devices.iter().filter_map(|device| device.rate).sum();
        let done: u64 = devices.iter().map(|device| device.items).sum();
        let measured = if all > 0.0 { items as f64 / all } else { wall_s };
        let ideal_s = ideal.unwrap_or(measured).min(wall_s.max(f64::MIN_POSITIVE));
        let is_complete = run.outcome() == Some(&Outcome::Complete);
        let share = |time: f64| if time > 0.0 { (ideal_s / time).min(1.0) } else { 1.0 };
        let fastest = devices.iter().filter(|device| device.rate.is_some());
        let fastest = fastest.max_by(|a, b| a.rate.unwrap_or(0.0).total_cmp(&b.rate.unwrap_or(0.0)));
        let speedup = fastest.filter(|_| is_complete && wall_s > 0.0).and_then(|device| {
            let alone_s = items as f64 / device.rate?;
            Some(Speedup { device: device.id.clone(), alone_s, times: alone_s / wall_s })
        });
        Report {
            task: None,
            strategy: None,
            items,
            done,
            wall_s,
            ideal_s,
            efficiency: is_complete.then(|| share(wall_s)),
            bound: self.latest_end(run, wall).filter(|_| is_complete).map(|end| share(end.as_secs_f64())),
            speedup,
            calibrated: None,
            predicted_s: None,
            devices,
            left_out: Vec::new(),
        }
    }

    /// The latest time at which the run could have ended: when its last item was handed out, plus the longest time in flight
    /// of the items in flight then, plus the time that the driver took to notice the end. `run/README.md` has the proof.
    fn latest_end(&self, run: &Run, wall: Time) -> Option<Time> {
        let end = run.end_bound();
        let noticing = wall.saturating_sub(run.last_accepted());
        Some(end.all_handed_out_at?.saturating_add(end.longest_in_flight).saturating_add(noticing))
    }

    fn device_report(&self, run: &Run, device: &DeviceLanes, wall: Time) -> DeviceReport {
        let lanes = &self.lanes[device.lanes.clone()];
        let tallies = &run.tallies()[device.lanes.clone()];
        // Times are means over the lanes: a processor is busy all the time if all of its cores are.
        let mean = |time: fn(&LaneTimes) -> Duration| {
            lanes.iter().map(|lane| time(lane).as_secs_f64()).sum::<f64>() / lanes.len().max(1) as f64
        };
        let busy_s = mean(|lane| lane.busy).min(wall.as_secs_f64());
        let quarantined_s = mean(|lane| lane.quarantined)
            + lanes
                .iter()
                .filter_map(|lane| Some(wall.saturating_sub(lane.quarantined_since?).as_secs_f64()))
                .sum::<f64>()
                / lanes.len().max(1) as f64;
        let startup_s = lanes.iter().filter_map(|lane| lane.ready).min().unwrap_or_default().as_secs_f64();
        let items: u64 = lanes.iter().map(|lane| lane.items).sum();
        let rate: f64 = lanes.iter().filter_map(LaneTimes::rate).sum();
        let sum = |count: fn(&crate::run::Tally) -> u64| tallies.iter().map(count).sum::<u64>();
        let states: Vec<LaneState> = device.lanes.clone().map(|lane| run.state(lane)).collect();
        let state = match states.as_slice() {
            // A run without items has no lanes.
            all if all.is_empty() || all.contains(&LaneState::Healthy) => "healthy",
            all if all.iter().all(|state| *state == LaneState::Retired) => "retired",
            _ => "quarantined",
        };
        DeviceReport {
            id: device.id.clone(),
            items,
            chunks: sum(|tally| tally.chunks),
            busy_s,
            copy_s: mean(|lane| lane.copying),
            idle_s: (wall.as_secs_f64() - busy_s).max(0.0),
            startup_s,
            quarantined_s,
            rate: (rate > 0.0).then_some(rate),
            retries: sum(|tally| tally.retries),
            speculative: sum(|tally| tally.speculative),
            steals: sum(|tally| tally.steals),
            dropped: sum(|tally| tally.dropped),
            quarantines: sum(|tally| tally.quarantines),
            hangs: sum(|tally| tally.hangs),
            state: state.into(),
            failures: Vec::new(),
        }
    }
}

/// A span without accepted results and without copies.
fn bare_span(lane: usize, activity: Activity, items: Range<u64>, (from, until): (Time, Time)) -> Span {
    let none = Duration::ZERO;
    Span { lane, activity, items, accepted: 0, duplicates: 0, from, until, upload: none, download: none }
}
