//! The state of one run or queue, folded from its events.

use std::{ops::Range, time::Duration};

use evener_schedule::{
    LeftOut,
    decide::{LaneState, Purpose, Tally, Time},
    events::{ChunkEvent, LaneStatus, RunEnd, RunProgress, RunStatus},
};

use super::{
    HISTORY, MAX_BARS_OF_LANE, MAX_BARS_OF_RUN, MAX_IN_HAND, MAX_LANES, SAMPLE_S,
    delta::{DeviceDelta, LaneDelta, RunDelta},
    program::{
        Bar, BarKind, ChunkInHand, DeviceState, DeviceTotals, DeviceView, LaneView, RunEnding, RunSummary,
        RunView,
    },
    recent::Recent,
    totals::Counters,
    words,
};

/// A run of which nothing is heard for this many seconds, although it should tell its progress, has ended unseen.
const SILENT_S: f64 = 30.0;

/// The state of one run or queue.
#[derive(Debug)]
pub(super) struct RunFold {
    pub(super) summary: RunSummary,
    /// The version in which its devices changed last, and in which anything did.
    shape: u64,
    pub(super) changed: u64,
    devices: Vec<DeviceFold>,
    lanes: Vec<LaneFold>,
    left_out: Vec<LeftOut>,
    max_bars: usize,
    /// Items that are done, as the run told last: more than were accepted.
    told_done: u64,
    /// When the throughput was sampled last.
    sampled_unix_s: f64,
    /// Seconds without an event.
    silent_s: f64,
    /// Whether its end was assumed, and not told.
    pub(super) ended_unseen: bool,
}

#[derive(Debug)]
struct DeviceFold {
    id: String,
    lanes: Range<usize>,
    last_error: Option<String>,
    throughput: Recent<f64>,
    /// The accepted items at the last sample.
    sampled_items: u64,
    changed: u64,
}

#[derive(Debug)]
struct LaneFold {
    device: usize,
    state: LaneState,
    in_hand: Vec<ChunkInHand>,
    bars: Recent<Bar>,
    tally: Tally,
    items: u64,
    busy: Duration,
    wasted: Duration,
    changed: u64,
}

impl RunFold {
    /// A run whose status was told at `at`, which is now.
    pub(super) fn new(id: u64, status: &RunStatus, at: Time, version: u64, unix_s: f64) -> Self {
        let summary = RunSummary {
            id,
            task: words::short(&status.task),
            kind: status.kind,
            strategy: status.strategy.into(),
            began_unix_s: unix_s - at.as_secs_f64(),
            elapsed_s: at.as_secs_f64(),
            items: status.items,
            done: 0,
            items_per_second: 0.0,
            remaining_s: None,
            predicted_s: status.predicted.map(|time| time.as_secs_f64()),
            efficiency: None,
            bound: None,
            waiting_for: None,
            queue: None,
            ended: None,
        };
        let mut run = RunFold {
            summary,
            shape: version,
            changed: version,
            devices: Vec::new(),
            lanes: Vec::new(),
            left_out: Vec::new(),
            max_bars: MAX_BARS_OF_LANE,
            told_done: 0,
            sampled_unix_s: unix_s,
            silent_s: 0.0,
            ended_unseen: false,
        };
        run.set_status(status, at, version);
        // The items before the first sample count for none.
        for device in 0..run.devices.len() {
            run.devices[device].sampled_items = run.items_of(device);
        }
        run
    }

    /// Takes over a status. Returns the devices that are new.
    pub(super) fn set_status(&mut self, status: &RunStatus, at: Time, version: u64) -> Vec<String> {
        let (old_devices, old_lanes) = (std::mem::take(&mut self.devices), std::mem::take(&mut self.lanes));
        let count: usize = status.devices.iter().map(|device| device.lanes.len()).sum();
        self.max_bars = (MAX_BARS_OF_RUN / count.max(1)).clamp(8, MAX_BARS_OF_LANE);
        let mut old_devices: Vec<Option<DeviceFold>> = old_devices.into_iter().map(Some).collect();
        let mut old_lanes: Vec<Option<LaneFold>> = old_lanes.into_iter().map(Some).collect();
        let mut new = Vec::new();
        for (index, device) in status.devices.iter().enumerate() {
            if self.lanes.len() + device.lanes.len() > MAX_LANES {
                break;
            }
            let lanes = self.lanes.len()..self.lanes.len() + device.lanes.len();
            let known = old_devices.get_mut(index).and_then(Option::take);
            let known = known.filter(|known| known.id == device.id && known.lanes == lanes);
            if known.is_none() {
                new.push(device.id.clone());
            }
            for (lane, status) in lanes.clone().zip(&device.lanes) {
                let bars = old_lanes.get_mut(lane).and_then(Option::take).filter(|_| known.is_some());
                let bars = bars.map_or_else(|| Recent::new(self.max_bars), |lane| lane.bars);
                self.lanes.push(LaneFold::new(index, status, bars, version));
            }
            let (last_error, throughput, sampled_items) = match known {
                Some(known) => (known.last_error, known.throughput, known.sampled_items),
                None => (None, Recent::new(HISTORY), 0),
            };
            let id = device.id.clone();
            self.devices.push(DeviceFold {
                id,
                lanes,
                last_error,
                throughput,
                sampled_items,
                changed: version,
            });
        }
        self.left_out = status.left_out.clone();
        self.summary.items = status.items.or(self.summary.items);
        self.shape = version;
        self.heard(at, version);
        new
    }

    /// Notes that an event came.
    pub(super) fn heard(&mut self, at: Time, version: u64) {
        self.changed = version;
        self.silent_s = 0.0;
        self.summary.elapsed_s = self.summary.elapsed_s.max(at.as_secs_f64());
        self.update_rate();
    }

    /// Lets time pass. Returns whether the run has ended unseen.
    pub(super) fn tick(&mut self, since_s: f64, version: u64, unix_s: f64, may_be_silent: bool) -> bool {
        if self.summary.ended.is_some() {
            return false;
        }
        // A process that was stopped hears nothing of its runs.
        self.silent_s += since_s.clamp(0.0, 1.0);
        self.summary.elapsed_s = self.summary.elapsed_s.max(unix_s - self.summary.began_unix_s);
        self.update_rate();
        self.changed = version;
        let since_sample = unix_s - self.sampled_unix_s;
        if since_sample >= SAMPLE_S {
            self.sampled_unix_s = unix_s;
            for device in 0..self.devices.len() {
                let items = self.items_of(device);
                let it = &mut self.devices[device];
                let new = items.saturating_sub(std::mem::replace(&mut it.sampled_items, items));
                it.throughput.push(version, new as f64 / since_sample);
                it.changed = version;
            }
        }
        if !may_be_silent && self.silent_s > SILENT_S {
            let error = Some("its end was not seen, because events were lost".into());
            self.summary.ended = Some(RunEnding { unix_s, error });
            self.ended_unseen = true;
        }
        self.ended_unseen
    }

    /// Updates what follows from the items that are done and the time.
    fn update_rate(&mut self) {
        let accepted: u64 = self.lanes.iter().map(|lane| lane.items).fold(0, u64::saturating_add);
        let it = &mut self.summary;
        it.done = accepted.max(self.told_done).min(it.items.unwrap_or(u64::MAX));
        it.items_per_second = if it.elapsed_s > 0.0 { it.done as f64 / it.elapsed_s } else { 0.0 };
        let left = it.items.map(|items| items.saturating_sub(it.done) as f64 / it.items_per_second);
        it.remaining_s = left.filter(|left| left.is_finite() && it.ended.is_none());
    }

    fn items_of(&self, device: usize) -> u64 {
        let lanes = self.devices[device].lanes.clone();
        self.lanes[lanes].iter().map(|lane| lane.items).fold(0, u64::saturating_add)
    }

    /// The name of a lane's device.
    pub(super) fn device_of(&self, lane: u32) -> Option<&str> {
        let device = self.lanes.get(lane as usize)?.device;
        Some(self.devices.get(device)?.id.as_str())
    }

    /// A lane, which is about to change.
    fn lane(&mut self, lane: u32, version: u64) -> Option<&mut LaneFold> {
        let it = self.lanes.get_mut(lane as usize)?;
        it.changed = version;
        if let Some(device) = self.devices.get_mut(it.device) {
            device.changed = version;
        }
        Some(it)
    }

    pub(super) fn prepared(&mut self, lane: u32, took: Duration, at: Time, version: u64) {
        if let Some(lane) = self.lane(lane, version) {
            lane.bar(BarKind::Preparation, 0, 0, took, at, version);
        }
    }

    pub(super) fn chunk_began(&mut self, chunk: ChunkEvent, at: Time, version: u64) {
        let Some(lane) = self.lane(chunk.lane, version) else { return };
        lane.take(chunk.chunk);
        if lane.in_hand.len() >= MAX_IN_HAND {
            lane.in_hand.remove(0);
        }
        lane.in_hand.push(in_hand(&chunk, at));
        add(&mut lane.tally.steals, chunk.purpose == Purpose::Steal);
    }

    pub(super) fn chunk_ended(
        &mut self,
        chunk: ChunkEvent,
        accepted: u64,
        (busy, took): (Duration, Duration),
        at: Time,
        version: u64,
    ) {
        let Some(lane) = self.lane(chunk.lane, version) else { return };
        lane.take(chunk.chunk);
        let is_dropped = accepted == 0;
        let kind = if is_dropped { BarKind::Dropped } else { bar_kind(chunk.purpose) };
        lane.bar(kind, chunk.first, chunk.items, took, at, version);
        lane.items = lane.items.saturating_add(accepted);
        lane.add_time(busy, is_dropped);
        add(&mut lane.tally.chunks, true);
        add(&mut lane.tally.dropped, is_dropped);
        add(&mut lane.tally.speculative, !is_dropped && chunk.purpose == Purpose::Speculative);
    }

    /// The task was called several times for one chunk.
    pub(super) fn chunk_parts(&mut self, lane: u32, more: u64, version: u64) {
        if let Some(lane) = self.lane(lane, version) {
            lane.tally.chunks = lane.tally.chunks.saturating_add(more);
        }
    }

    pub(super) fn chunk_lost(
        &mut self,
        chunk: ChunkEvent,
        failed: bool,
        (busy, took): (Duration, Duration),
        at: Time,
        version: u64,
    ) {
        let Some(lane) = self.lane(chunk.lane, version) else { return };
        lane.take(chunk.chunk);
        let kind = if failed { BarKind::Failure } else { BarKind::Dropped };
        lane.bar(kind, chunk.first, chunk.items, took, at, version);
        lane.add_time(busy, true);
    }

    /// Takes over a lane's state and failures. Returns whether the state is another one than before.
    pub(super) fn lane_state(
        &mut self,
        lane: u32,
        state: LaneState,
        (retries, quarantines, hangs): (u64, u64, u64),
        version: u64,
    ) -> bool {
        let Some(lane) = self.lane(lane, version) else { return false };
        lane.tally = Tally { retries, quarantines, hangs, ..lane.tally };
        std::mem::replace(&mut lane.state, state) != state
    }

    pub(super) fn error(&mut self, device: &str, reason: &str, version: u64) {
        if let Some(device) = self.devices.iter_mut().find(|it| it.id == device) {
            device.last_error = Some(words::short(reason));
            device.changed = version;
        }
    }

    pub(super) fn progress(&mut self, progress: &RunProgress) {
        // Items that a worker has begun may be given back.
        self.told_done = self.told_done.max(progress.done);
        let finite = |number: Option<f64>| number.filter(|number| number.is_finite());
        let it = &mut self.summary;
        it.items = progress.items.or(it.items);
        (it.efficiency, it.bound) = (finite(progress.efficiency), finite(progress.bound));
        it.waiting_for = progress.waiting_for.as_deref().map(words::short);
    }

    /// The run has ended: its report says what it did.
    pub(super) fn end(&mut self, end: &RunEnd, version: u64, unix_s: f64) {
        for lane in self.lanes.iter_mut().filter(|lane| !lane.in_hand.is_empty()) {
            lane.in_hand.clear();
            lane.changed = version;
            if let Some(device) = self.devices.get_mut(lane.device) {
                device.changed = version;
            }
        }
        let it = &mut self.summary;
        it.ended = Some(RunEnding { unix_s, error: end.error.as_deref().map(words::short) });
        it.waiting_for = None;
        if let Some(report) = &end.report {
            it.items = Some(report.items);
            it.elapsed_s = report.wall_s;
            (it.efficiency, it.bound) = (report.efficiency, report.bound);
            self.told_done = report.done;
        }
        self.update_rate();
    }

    /// The run as a view shows it.
    pub(super) fn view(&self) -> RunView {
        let lane = |lane: &LaneFold| LaneView {
            state: state(lane.state),
            in_hand: lane.in_hand.clone(),
            bars: lane.bars.all(),
        };
        let device = |it: &DeviceFold| DeviceView {
            id: it.id.clone(),
            totals: self.totals(it),
            throughput: it.throughput.all(),
            lanes: self.lanes[it.lanes.clone()].iter().map(lane).collect(),
        };
        RunView {
            summary: self.summary.clone(),
            devices: self.devices.iter().map(device).collect(),
            left_out: self.left_out.clone(),
            max_bars: self.max_bars,
        }
    }

    /// Whether its devices are others than in a version, so that a delta does not suffice.
    pub(super) fn is_new_since(&self, version: u64) -> bool {
        self.shape > version
    }

    /// What has changed since a version.
    pub(super) fn delta(&self, version: u64) -> RunDelta {
        let lane = |(index, lane): (usize, &LaneFold)| LaneDelta {
            lane: index,
            state: state(lane.state),
            in_hand: lane.in_hand.clone(),
            bars: lane.bars.since(version),
        };
        let device = |(index, it): (usize, &DeviceFold)| {
            let lanes = self.lanes[it.lanes.clone()].iter().enumerate();
            DeviceDelta {
                device: index,
                totals: self.totals(it),
                throughput: it.throughput.since(version),
                lanes: lanes.filter(|(_, lane)| lane.changed > version).map(lane).collect(),
            }
        };
        let changed = self.devices.iter().enumerate().filter(|(_, it)| it.changed > version);
        RunDelta { summary: self.summary.clone(), devices: changed.map(device).collect() }
    }

    /// What each device has done.
    pub(super) fn counters(&self) -> Vec<(String, Counters)> {
        self.devices.iter().map(|it| (it.id.clone(), Counters::from(&self.totals(it)))).collect()
    }

    fn totals(&self, device: &DeviceFold) -> DeviceTotals {
        let lanes = &self.lanes[device.lanes.clone()];
        let sum = |count: fn(&Tally) -> u64| {
            lanes.iter().map(|lane| count(&lane.tally)).fold(0, u64::saturating_add)
        };
        let rate: f64 = lanes.iter().filter_map(LaneFold::rate).sum();
        let busy_s: f64 = lanes.iter().map(|lane| lane.busy.as_secs_f64()).sum();
        let in_hand = lanes.iter().flat_map(|lane| &lane.in_hand).map(|chunk| chunk.items);
        DeviceTotals {
            state: device_state(lanes),
            items: lanes.iter().map(|lane| lane.items).fold(0, u64::saturating_add),
            chunks: sum(|tally| tally.chunks),
            in_hand: in_hand.fold(0, u64::saturating_add),
            items_per_second: (rate > 0.0 && rate.is_finite()).then_some(rate),
            busy_s: busy_s / lanes.len().max(1) as f64,
            retries: sum(|tally| tally.retries),
            speculative: sum(|tally| tally.speculative),
            steals: sum(|tally| tally.steals),
            dropped: sum(|tally| tally.dropped),
            quarantines: sum(|tally| tally.quarantines),
            hangs: sum(|tally| tally.hangs),
            last_error: device.last_error.clone(),
        }
    }
}

impl LaneFold {
    fn new(device: usize, status: &LaneStatus, bars: Recent<Bar>, version: u64) -> Self {
        let in_flight = status.in_flight.iter().take(MAX_IN_HAND);
        LaneFold {
            device,
            state: status.state,
            in_hand: in_flight.map(|(chunk, since)| in_hand(chunk, *since)).collect(),
            bars,
            tally: status.tally,
            items: status.items,
            busy: status.busy,
            wasted: status.wasted,
            changed: version,
        }
    }

    /// Takes a chunk out of the lane's hands.
    fn take(&mut self, chunk: u64) {
        self.in_hand.retain(|it| it.chunk != chunk);
    }

    fn bar(&mut self, kind: BarKind, first: u64, items: u64, took: Duration, at: Time, version: u64) {
        let (from_s, until_s) = (at.saturating_sub(took).as_secs_f64(), at.as_secs_f64());
        self.bars.push(version, Bar { kind, first, items, from_s, until_s });
    }

    fn add_time(&mut self, busy: Duration, is_wasted: bool) {
        self.busy = self.busy.saturating_add(busy);
        if is_wasted {
            self.wasted = self.wasted.saturating_add(busy);
        }
    }

    /// Items per second of busy time.
    fn rate(&self) -> Option<f64> {
        let useful = self.busy.saturating_sub(self.wasted).as_secs_f64();
        (self.items > 0 && useful > 0.0).then(|| self.items as f64 / useful)
    }
}

/// Counts what happened, if it did.
fn add(count: &mut u64, happened: bool) {
    *count = count.saturating_add(u64::from(happened));
}

fn in_hand(chunk: &ChunkEvent, since: Time) -> ChunkInHand {
    let ChunkEvent { chunk, first, items, purpose, .. } = *chunk;
    ChunkInHand { chunk, first, items, kind: bar_kind(purpose), since_s: since.as_secs_f64() }
}

fn bar_kind(purpose: Purpose) -> BarKind {
    match purpose {
        Purpose::Work => BarKind::Work,
        Purpose::Speculative => BarKind::Speculative,
        Purpose::Steal => BarKind::Steal,
        Purpose::Canary => BarKind::Canary,
    }
}

fn state(state: LaneState) -> DeviceState {
    match state {
        LaneState::Healthy => DeviceState::Healthy,
        LaneState::Quarantined { until } => DeviceState::Quarantined { until_s: until.as_secs_f64() },
        LaneState::Retired => DeviceState::Retired,
    }
}

/// The state of a device, as its report has it.
fn device_state(lanes: &[LaneFold]) -> DeviceState {
    if lanes.is_empty() || lanes.iter().any(|lane| lane.state == LaneState::Healthy) {
        return DeviceState::Healthy;
    }
    let until = lanes.iter().filter_map(|lane| match lane.state {
        LaneState::Quarantined { until } => Some(until),
        LaneState::Healthy | LaneState::Retired => None,
    });
    until.min().map_or(DeviceState::Retired, |until| state(LaneState::Quarantined { until }))
}
