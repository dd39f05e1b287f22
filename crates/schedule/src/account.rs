//! What a run did, written down while it goes: who was busy when, and what the report is made of.

use std::time::Duration;

use crate::{
    report::{DeviceReport, Report, Speedup},
    run::{Chunk, Outcome, Purpose, Run, State, Time},
    trace::{Activity, Span},
};

/// The book of one run. Times are those of whoever drives it, real or virtual.
#[derive(Debug)]
pub(crate) struct Account {
    lanes: Vec<LaneAccount>,
    /// What every lane did; not kept where nobody wants to see it.
    spans: Option<Vec<Span>>,
}

#[derive(Debug, Clone, Default)]
struct LaneAccount {
    /// Items whose results were accepted.
    items: u64,
    busy: Duration,
    /// The part of the busy time whose results were not accepted.
    in_vain: Duration,
    copying: Duration,
    /// When it was ready for its first chunk.
    ready: Option<Time>,
    last_end: Time,
    /// Since when it is not trusted, where it is not, and how long it was not before.
    left: Option<Time>,
    away: Duration,
}

/// One device of a report: its name, and which lanes are its own.
#[derive(Debug, Clone)]
pub(crate) struct DeviceLanes {
    pub(crate) id: String,
    pub(crate) lanes: std::ops::Range<usize>,
}

impl Account {
    pub(crate) fn new(lanes: usize, keep_spans: bool) -> Self {
        Account { lanes: vec![LaneAccount::default(); lanes], spans: keep_spans.then(Vec::new) }
    }

    /// A lane is ready for chunks.
    pub(crate) fn ready(&mut self, lane: usize, now: Time) {
        self.lanes[lane].ready.get_or_insert(now);
    }

    /// How long a chunk that ends now has kept its lane: since it began, or since the one before it ended.
    pub(crate) fn took(&self, lane: usize, began: Time, now: Time) -> Duration {
        now.saturating_sub(began.max(self.lanes[lane].last_end))
    }

    /// A chunk has ended well, and the results of so many of its items were accepted.
    pub(crate) fn ended(&mut self, chunk: &Chunk, began: Time, accepted: u64, now: Time) {
        let took = self.took(chunk.lane, began, now);
        let lane = &mut self.lanes[chunk.lane];
        lane.busy += took;
        lane.last_end = now;
        lane.items += accepted;
        if accepted == 0 {
            lane.in_vain += took;
        }
        let activity = match chunk.purpose {
            _ if accepted == 0 => Activity::Dropped,
            Purpose::Rescue => Activity::Rescue,
            _ => Activity::Work,
        };
        self.span(chunk, activity, now.saturating_sub(took), now);
    }

    /// A chunk has failed or its lane was given up on; or it was in hand when its items were done, and is dropped.
    pub(crate) fn in_vain(&mut self, chunk: &Chunk, activity: Activity, began: Time, now: Time) {
        let took = self.took(chunk.lane, began, now);
        let lane = &mut self.lanes[chunk.lane];
        lane.busy += took;
        lane.in_vain += took;
        lane.last_end = now;
        self.span(chunk, activity, began, now);
    }

    /// So much of a lane's time went into copies.
    pub(crate) fn copied(&mut self, lane: usize, time: Duration) {
        self.lanes[lane].copying += time;
    }

    /// A chunk's items were copied to the device first, and its results from it last.
    pub(crate) fn copies(&mut self, chunk: &Chunk, (began, now): (Time, Time), up: Duration, down: Duration) {
        self.copied(chunk.lane, up + down);
        for (from, time) in [(began, up), (now.saturating_sub(down), down)] {
            if !time.is_zero() {
                self.span(chunk, Activity::Copy, from, from + time);
            }
        }
    }

    fn span(&mut self, chunk: &Chunk, activity: Activity, from: Time, until: Time) {
        if let Some(spans) = &mut self.spans {
            spans.push(Span { lane: chunk.lane, activity, items: chunk.items.clone(), from, until });
        }
    }

    /// Looks which lanes are trusted.
    pub(crate) fn look_at_trust(&mut self, run: &Run, now: Time) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            match (run.state(index), lane.left) {
                (State::Healthy, Some(since)) => {
                    lane.away += now.saturating_sub(since);
                    lane.left = None;
                }
                (State::Quarantined { .. } | State::Retired, None) => lane.left = Some(now),
                _ => {}
            }
        }
    }

    /// Counts for so many more lanes.
    pub(crate) fn add_lanes(&mut self, count: usize) {
        self.lanes.extend(std::iter::repeat_n(LaneAccount::default(), count));
    }

    /// Items of a lane whose results were accepted.
    pub(crate) fn items(&self, lane: usize) -> u64 {
        self.lanes[lane].items
    }

    /// What every lane did, where that was kept.
    pub(crate) fn take_spans(&mut self) -> Vec<Span> {
        self.spans.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The report of a run of so many items that has ended. Without an ideal time of the driver's own, it is that of
    /// the rates which the devices showed.
    pub(crate) fn report(
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

    /// The latest time at which the run could have ended, from the moment when its last item was handed out: after the
    /// longest time that items which were in flight then were in flight in all, and what the driver took to notice the
    /// end. `run/README.md` has the proof.
    fn latest_end(&self, run: &Run, wall: Time) -> Option<Time> {
        let tail = run.tail();
        let noticing = wall.saturating_sub(run.last_accepted());
        Some(tail.drained?.saturating_add(tail.longest).saturating_add(noticing))
    }

    fn device_report(&self, run: &Run, device: &DeviceLanes, wall: Time) -> DeviceReport {
        let lanes = &self.lanes[device.lanes.clone()];
        let tallies = &run.tallies()[device.lanes.clone()];
        // Times are means over the lanes: a processor whose cores were all busy all the time was busy all the time.
        let mean = |time: fn(&LaneAccount) -> Duration| {
            lanes.iter().map(|lane| time(lane).as_secs_f64()).sum::<f64>() / lanes.len().max(1) as f64
        };
        let busy_s = mean(|lane| lane.busy).min(wall.as_secs_f64());
        let away_s = mean(|lane| lane.away)
            + lanes
                .iter()
                .filter_map(|lane| Some(wall.saturating_sub(lane.left?).as_secs_f64()))
                .sum::<f64>()
                / lanes.len().max(1) as f64;
        let startup_s = lanes.iter().filter_map(|lane| lane.ready).min().unwrap_or_default().as_secs_f64();
        let items: u64 = lanes.iter().map(|lane| lane.items).sum();
        // Work in vain says nothing about how fast a device is.
        let useful = |lane: &LaneAccount| lane.busy.saturating_sub(lane.in_vain).as_secs_f64();
        let rates = lanes.iter().filter(|lane| lane.items > 0 && useful(lane) > 0.0);
        let rate: f64 = rates.map(|lane| lane.items as f64 / useful(lane)).sum();
        let sum = |count: fn(&crate::run::Tally) -> u64| tallies.iter().map(count).sum::<u64>();
        let states: Vec<State> = device.lanes.clone().map(|lane| run.state(lane)).collect();
        let state = match states.as_slice() {
            all if all.contains(&State::Healthy) => "healthy",
            all if all.iter().all(|state| *state == State::Retired) => "retired",
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
            away_s,
            rate: (rate > 0.0).then_some(rate),
            retries: sum(|tally| tally.retries),
            rescues: sum(|tally| tally.rescues),
            steals: sum(|tally| tally.steals),
            dropped: sum(|tally| tally.dropped),
            quarantines: sum(|tally| tally.quarantines),
            state: state.into(),
        }
    }
}
