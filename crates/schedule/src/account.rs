//! What a run did, written down while it goes: who was busy when, and what the report is made of.

use std::time::Duration;

use crate::{
    report::{DeviceReport, Report},
    run::{Chunk, Purpose, Run, State, Time, Verdict},
    trace::{Activity, Span},
};

/// The book of one run. Times are those of whoever drives it, real or virtual.
#[derive(Debug)]
pub(crate) struct Account {
    lanes: Vec<LaneAccount>,
    /// Since when everything has been handed out, and the longest chunk that was in flight then.
    drained: Option<Time>,
    longest: Duration,
    /// What every lane did; not kept where nobody wants to see it.
    spans: Option<Vec<Span>>,
}

#[derive(Debug, Clone, Default)]
struct LaneAccount {
    /// Items whose results were accepted.
    items: u64,
    busy: Duration,
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
        Account {
            lanes: vec![LaneAccount::default(); lanes],
            drained: None,
            longest: Duration::ZERO,
            spans: keep_spans.then(Vec::new),
        }
    }

    /// A lane is ready for chunks.
    pub(crate) fn ready(&mut self, lane: usize, now: Time) {
        self.lanes[lane].ready.get_or_insert(now);
    }

    /// How long a chunk that ends now has kept its lane: since it began, or since the one before it ended.
    pub(crate) fn took(&self, lane: usize, began: Time, now: Time) -> Duration {
        now.saturating_sub(began.max(self.lanes[lane].last_end))
    }

    /// A chunk of so many items has ended well.
    pub(crate) fn ended(&mut self, chunk: &Chunk, began: Time, verdict: Verdict, items: u64, now: Time) {
        let took = self.took(chunk.lane, began, now);
        let lane = &mut self.lanes[chunk.lane];
        lane.busy += took;
        lane.last_end = now;
        lane.items += if verdict == Verdict::Accept { items } else { 0 };
        if verdict == Verdict::Accept && self.drained.is_some_and(|drained| began <= drained) {
            self.longest = self.longest.max(now.saturating_sub(began));
        }
        let activity = match verdict {
            Verdict::Drop => Activity::Dropped,
            Verdict::Accept if chunk.purpose == Purpose::Rescue => Activity::Rescue,
            Verdict::Accept => Activity::Work,
        };
        self.span(chunk, activity, now.saturating_sub(took), now);
    }

    /// A chunk has failed, or its lane was given up on.
    pub(crate) fn failed(&mut self, chunk: &Chunk, began: Time, now: Time) {
        self.in_vain(chunk, Activity::Failure, began, now);
    }

    /// A chunk was in hand when the run ended.
    pub(crate) fn unfinished(&mut self, chunk: &Chunk, began: Time, now: Time) {
        self.in_vain(chunk, Activity::Dropped, began, now);
    }

    fn in_vain(&mut self, chunk: &Chunk, activity: Activity, began: Time, now: Time) {
        let took = self.took(chunk.lane, began, now);
        let lane = &mut self.lanes[chunk.lane];
        lane.busy += took;
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

    /// Looks whether everything has been handed out.
    pub(crate) fn look(&mut self, run: &Run, now: Time) {
        match (run.is_drained(), self.drained) {
            (true, None) => self.drained = Some(now),
            (false, Some(_)) => {
                self.drained = None;
                self.longest = Duration::ZERO;
            }
            _ => {}
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
        let waits: Vec<f64> = devices.iter().map(|device| self.waited_for(device, wall)).collect();
        let devices: Vec<DeviceReport> =
            devices.iter().map(|device| self.device_report(run, device, wall)).collect();
        // What was there to work with, and what of it was trusted.
        let all: f64 = devices.iter().filter_map(|device| device.rate).sum();
        let trusted: f64 =
            devices.iter().filter_map(|it| Some(it.rate? * (1.0 - it.away_s / wall_s).max(0.0))).sum();
        let done: u64 = devices.iter().map(|device| device.items).sum();
        let measured = if all > 0.0 { items as f64 / all } else { wall_s };
        let ideal_s = ideal.unwrap_or(measured).min(wall_s.max(f64::MIN_POSITIVE));
        // Before a lane is ready it does nothing, however much there is to do.
        let lost: f64 = devices.iter().zip(waits).filter_map(|(it, wait)| Some(it.rate? * wait)).sum();
        let certain =
            if trusted > 0.0 { (items as f64 + lost) / trusted + self.longest.as_secs_f64() } else { wall_s };
        let share = |time: f64| if time > 0.0 { (ideal_s / time).min(1.0) } else { 1.0 };
        Report {
            task: None,
            strategy: None,
            items,
            done,
            wall_s,
            ideal_s,
            efficiency: share(wall_s),
            bound: share(certain),
            calibrated: None,
            predicted_s: None,
            devices,
            left_out: Vec::new(),
        }
    }

    /// How long a device's lanes took to be ready, in the mean.
    fn waited_for(&self, device: &DeviceLanes, wall: Time) -> f64 {
        let lanes = &self.lanes[device.lanes.clone()];
        if lanes.iter().all(|lane| lane.ready.is_none()) {
            return 0.0;
        }
        let waits = lanes.iter().map(|lane| lane.ready.unwrap_or(wall).as_secs_f64());
        waits.sum::<f64>() / lanes.len() as f64
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
        let rates = lanes.iter().filter(|lane| lane.items > 0 && !lane.busy.is_zero());
        let rate: f64 = rates.map(|lane| lane.items as f64 / lane.busy.as_secs_f64()).sum();
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
            dropped: sum(|tally| tally.dropped),
            quarantines: sum(|tally| tally.quarantines),
            state: state.into(),
        }
    }
}
