//! The simulator: the decisions of a real run, on virtual devices in virtual time.

mod cost;
mod device;
#[cfg(test)]
mod fuzz;
mod real_time;
mod scenario;
#[cfg(test)]
mod test;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    ops::Range,
    sync::Arc,
    time::Duration,
};

pub use self::real_time::RealTime;
pub use self::scenario::{Cost, DeviceSpec, EventKind, LinkSpec, Scenario, ScenarioEvent};
use self::{
    cost::{ItemCosts, Rng},
    device::{Condition, VirtualDevice},
};
use crate::{
    events::{self, RunEnd, RunEvents, RunKind, RunProgress, RunStatus},
    recorder::{DeviceLanes, Recorder},
    report::Report,
    run::{Answer, FailureKind, LaneChunk, LaneSpec, LaneState, Outcome, Run, Settings, Time, Verdict},
    strategy::Strategy,
    trace::{Activity, Trace},
};

/// The time of the first check for hung devices, and the maximum time between two checks.
const FIRST_HANG_CHECK: Duration = Duration::from_millis(10);
const MAX_HANG_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The result of a simulated run.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// What each device did.
    pub report: Report,
    /// How the run ended.
    pub outcome: Outcome,
    /// What each device did, and when.
    pub trace: Trace,
}

/// An event in virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    /// A device's first chunk ends, if the device's version has not changed since.
    End { lane: usize, version: u64 },
    /// An event of the scenario, by its index.
    Scenario(usize),
    /// A lane asks for work.
    Ask(usize),
    /// Check for hung devices.
    HangCheck,
}

/// Simulates a run, from its beginning to its end.
pub fn simulate(scenario: &Scenario, strategy: Strategy, settings: Settings) -> Simulation {
    let mut simulator = Simulator::new(scenario, strategy, settings);
    simulator.run();
    simulator.finish()
}

/// As [`simulate`], with events that views can follow, and that a view can cancel.
///
/// `pace` is called with the virtual time of the next step, and returns the time that it has let pass: one that sleeps, as
/// [`RealTime`] does, lets the run be seen as it would be. If it returns an earlier time, readers that have attached are told
/// the run's status, and it is called again.
pub fn simulate_followed(
    scenario: &Scenario,
    strategy: Strategy,
    settings: Settings,
    events: RunEvents,
    pace: &mut dyn FnMut(Time) -> Time,
) -> Simulation {
    let mut simulator = Simulator::new(scenario, strategy, settings);
    simulator.recorder = Recorder::new(simulator.devices.len(), true).with_events(events);
    simulator.pace = Some(pace);
    simulator.tell_status();
    simulator.run();
    simulator.finish()
}

struct Simulator<'a> {
    /// Lets time pass until the next step, and returns the time that has passed.
    pace: Option<&'a mut dyn FnMut(Time) -> Time>,
    strategy: &'static str,
    scenario: &'a Scenario,
    costs: ItemCosts,
    devices: Vec<VirtualDevice>,
    run: Run,
    pending: BinaryHeap<Reverse<(Time, SimEvent)>>,
    /// Whether each lane waits for work.
    waiting: Vec<bool>,
    /// When each lane asks next.
    next_ask: Vec<Option<Time>>,
    now: Time,
    /// When each chunk was handed out.
    began: HashMap<u64, Time>,
    recorder: Recorder,
    /// The items per second of all devices, from each of these times on.
    capacities: Vec<(Time, f64)>,
}

impl<'a> Simulator<'a> {
    fn new(scenario: &'a Scenario, strategy: Strategy, mut settings: Settings) -> Self {
        let limits = [settings.max_items, scenario.max_items];
        settings.max_items = limits.into_iter().flatten().min();
        let mut rng = Rng(scenario.seed ^ 0xD1B5_4A32_D192_ED03);
        let mut names = scenario.names();
        let mut devices = Vec::new();
        for device in &scenario.devices {
            for _ in 0..device.count {
                let rate = match device.rate_up_to {
                    None => device.rate,
                    Some(most) => device.rate * (most / device.rate).powf(rng.unit()),
                };
                let id = names.next().unwrap_or_default();
                let own =
                    Rng(scenario.seed.wrapping_add(devices.len() as u64).wrapping_mul(0xA076_1D64_78BD_642F));
                devices.push(VirtualDevice::new(DeviceSpec { id, rate, ..device.clone() }, own));
            }
        }
        drop(names);
        let lanes: Vec<_> = devices
            .iter()
            .map(|device| LaneSpec {
                depth: device.spec.depth,
                divisible: device.spec.divisible,
                score: device.capacity(scenario.bytes_per_item),
                launch_seconds: device.spec.launch_s,
                expected: Some(device.expected(scenario.items, scenario.bytes_per_item)),
                ..LaneSpec::default()
            })
            .collect();
        let capacity: f64 = devices.iter().map(|device| device.capacity(scenario.bytes_per_item)).sum();
        let scores: Vec<(f64, f64)> =
            devices.iter().map(|device| (device.spec.rate, device.spec.utilization)).collect();
        let shares = strategy.shares(scenario.items, &scores, &vec![1; devices.len()]);
        let events = scenario.events.iter().enumerate();
        let mut pending: BinaryHeap<_> =
            events.map(|(index, event)| Reverse((event.at(), SimEvent::Scenario(index)))).collect();
        pending.extend((0..devices.len()).map(|lane| Reverse((Time::ZERO, SimEvent::Ask(lane)))));
        pending.push(Reverse((FIRST_HANG_CHECK, SimEvent::HangCheck)));
        Simulator {
            costs: ItemCosts::new(scenario.items, scenario.cost, scenario.seed),
            run: Run::new(scenario.items, &lanes, &shares, settings),
            waiting: vec![false; devices.len()],
            next_ask: vec![Some(Time::ZERO); devices.len()],
            recorder: Recorder::new(devices.len(), true),
            pace: None,
            strategy: strategy.name(),
            capacities: vec![(Time::ZERO, capacity)],
            scenario,
            devices,
            pending,
            now: Time::ZERO,
            began: HashMap::new(),
        }
    }

    fn run(&mut self) {
        while self.step() {
            self.tell_status();
        }
    }

    /// Lets time pass until the next step. Returns false if the run was cancelled meanwhile.
    fn wait(&mut self, until: Time) -> bool {
        let Some(pace) = self.pace.take() else { return true };
        loop {
            let reached = pace(until);
            if self.recorder.events().is_some_and(|events| events.is_cancel_requested()) {
                self.now = reached.clamp(self.now, until);
                self.run.stop();
                return false;
            }
            if reached >= until {
                break;
            }
            self.now = reached.max(self.now);
            self.tell_status();
        }
        self.pace = Some(pace);
        true
    }

    /// Lets the next event happen. Returns false once the run has ended.
    fn step(&mut self) -> bool {
        if self.run.outcome().is_some() {
            return false;
        }
        let Some(Reverse((now, event))) = self.pending.pop() else { return false };
        if !self.wait(now) {
            return false;
        }
        self.now = now;
        match event {
            SimEvent::End { lane, version } if self.devices[lane].version == version => self.end(lane),
            SimEvent::End { .. } => {}
            SimEvent::Scenario(index) => self.apply(index),
            SimEvent::Ask(lane) if self.next_ask[lane] == Some(now) => self.ask(lane),
            // The lane asks at another time since.
            SimEvent::Ask(_) => {}
            SimEvent::HangCheck => self.check_for_hung(),
        }
        true
    }

    /// Writes the status and the progress of the run to its events, if readers need them.
    fn tell_status(&mut self) {
        let now = self.now;
        let Some(events) = self.recorder.events() else { return };
        let (needs_status, is_progress_due) = (events.needs_status(), events.is_progress_due(now));
        if needs_status {
            let in_flight = self.devices.iter().flat_map(|device| device.in_flight());
            let since = |chunk: &LaneChunk| self.began.get(&chunk.id).copied().unwrap_or(now);
            let in_flight: Vec<_> = in_flight.map(|chunk| (chunk, since(chunk))).collect();
            let status = RunStatus {
                task: "items".into(),
                kind: RunKind::Map,
                strategy: self.strategy,
                items: Some(self.scenario.items),
                predicted: None,
                devices: self.recorder.status(&self.run, &self.device_lanes(), &in_flight),
                left_out: Vec::new(),
            };
            if let Some(events) = self.recorder.events() {
                events.status(now, || status);
            }
        } else if is_progress_due {
            let items = self.scenario.items;
            let (efficiency, bound) = self.recorder.efficiency_so_far(&self.run, items, now);
            let (done, items) = (self.run.done(), Some(items));
            let progress = RunProgress { done, items, efficiency, bound, waiting_for: None };
            if let Some(events) = self.recorder.events() {
                events.write(now, || events::EventKind::Progress(progress));
            }
        }
    }

    fn device_lanes(&self) -> Vec<DeviceLanes> {
        let names = self.devices.iter().map(|device| device.spec.id.clone());
        names.enumerate().map(|(index, id)| DeviceLanes { id, lanes: index..index + 1 }).collect()
    }

    /// Asks for a lane until it has as many chunks in flight as it can.
    fn ask(&mut self, lane: usize) {
        self.waiting[lane] = false;
        self.next_ask[lane] = None;
        let mut answer = self.ask_run(lane);
        loop {
            answer = match answer {
                Answer::Steal { from, fraction, max_items } => {
                    let taken = self.steal(from, fraction, max_items);
                    self.run.stolen(lane, from, taken, self.now)
                }
                Answer::Run(chunk) => {
                    self.began.insert(chunk.id, self.now);
                    self.recorder.ready(lane, self.now);
                    self.recorder.began(&chunk, self.now);
                    let device = &mut self.devices[lane];
                    let items = chunk.items.end - chunk.items.start;
                    let too_large = device.spec.memory_items.is_some_and(|most| items > most);
                    if device.condition == Condition::Dead {
                        self.recorder.refused(&chunk, self.now);
                        self.fail(chunk.id, FailureKind::Untrusted);
                        return self.ask_later(lane);
                    }
                    if too_large {
                        self.recorder.refused(&chunk, self.now);
                        self.fail(chunk.id, FailureKind::TooLarge);
                        if self.run.state(lane) != LaneState::Healthy {
                            return self.ask_later(lane);
                        }
                        answer = self.ask_run(lane);
                        continue;
                    }
                    let (cost, bytes) =
                        (self.costs.of(&chunk.items), (items * self.scenario.bytes_per_item) as f64);
                    device.take(chunk, cost, bytes, self.now);
                    self.set_end(lane);
                    self.ask_run(lane)
                }
                Answer::Wait { until } => {
                    self.waiting[lane] = true;
                    // A lane with chunks in flight asks again when one of them ends.
                    if let Some(until) = until {
                        self.ask_at(lane, until);
                    }
                    return;
                }
                Answer::Ended => return,
            }
        }
    }

    fn ask_at(&mut self, lane: usize, when: Time) {
        let when = when.max(self.now);
        self.next_ask[lane] = Some(when);
        self.pending.push(Reverse((when, SimEvent::Ask(lane))));
    }

    fn ask_later(&mut self, lane: usize) {
        if let LaneState::Quarantined { until } = self.run.state(lane) {
            self.ask_at(lane, until);
        }
    }

    /// Asks the run for a lane, after it has reported the progress of the others, as the executor does.
    fn ask_run(&mut self, lane: usize) -> Answer {
        if self.run.may_steal(self.now) {
            for device in self.devices.iter().filter(|device| device.spec.divisible) {
                if let Some((chunk, begun)) = device.progress(&self.costs, self.now) {
                    self.run.note_begun(chunk, begun, self.now);
                }
            }
        }
        self.run.ask(lane, self.now)
    }

    /// Takes items that its device has not begun from a chunk.
    fn steal(&mut self, from: u64, fraction: f64, max_items: u64) -> Option<Range<u64>> {
        let lane = (0..self.devices.len()).find(|&lane| self.devices[lane].has(from))?;
        let taken = self.devices[lane].release(from, fraction, max_items, &self.costs, self.now);
        self.set_end(lane);
        taken
    }

    fn set_end(&mut self, lane: usize) {
        if let Some(end) = self.devices[lane].next_end() {
            let version = self.devices[lane].version;
            self.pending.push(Reverse((end.max(self.now), SimEvent::End { lane, version })));
        }
    }

    fn end(&mut self, lane: usize) {
        let Some((chunk, took)) = self.devices[lane].end(self.now) else { return };
        let began = self.began.remove(&chunk.id).unwrap_or(self.now);
        let verdict =
            self.run.chunk_ended_with_latency(chunk.id, took, self.now.saturating_sub(began), self.now);
        let computed = chunk.items.end - chunk.items.start;
        let accepted = match &verdict {
            Verdict::Accept => computed,
            Verdict::AcceptPart(parts) => parts.iter().map(|part| part.end - part.start).sum(),
            Verdict::Drop => 0,
        };
        self.recorder.ended(&chunk, began, (computed, accepted), Default::default(), self.now);
        self.recorder.update_lane_states(&self.run, self.now);
        self.set_end(lane);
        self.ask(lane);
    }

    /// Applies an event of the scenario.
    fn apply(&mut self, index: usize) {
        let event = &self.scenario.events[index];
        let Some(lane) = self.devices.iter().position(|device| device.spec.id == event.device) else {
            return;
        };
        for chunk in self.devices[lane].apply(event.kind, self.now) {
            self.fail(chunk.id, FailureKind::Untrusted);
            self.trace_failure(chunk);
        }
        let bytes = self.scenario.bytes_per_item;
        self.capacities.push((self.now, self.devices.iter().map(|device| device.capacity(bytes)).sum()));
        self.set_end(lane);
        self.ask_later(lane);
    }

    fn fail(&mut self, chunk: u64, failure: FailureKind) {
        self.run.chunk_failed(chunk, failure, self.now);
        self.recorder.update_lane_states(&self.run, self.now);
        self.wake();
    }

    fn check_for_hung(&mut self) {
        if !self.run.overdue(self.now).is_empty() {
            self.recorder.update_lane_states(&self.run, self.now);
            for lane in 0..self.devices.len() {
                if self.run.state(lane) != LaneState::Healthy && !self.devices[lane].is_idle() {
                    // The executor would reopen the device.
                    for chunk in self.devices[lane].drop_chunks(self.now) {
                        self.trace_failure(chunk);
                    }
                    self.ask_later(lane);
                }
            }
            self.wake();
        }
        // As often as the executor at first, and less often in long runs.
        let least = self.now + FIRST_HANG_CHECK.max(self.now / 200);
        let next = self.run.next_deadline().map_or(least, |deadline| deadline.max(least));
        self.pending.push(Reverse((
            next.min(least + MAX_HANG_CHECK_INTERVAL.max(self.now / 20)),
            SimEvent::HangCheck,
        )));
    }

    fn trace_failure(&mut self, chunk: LaneChunk) {
        let began = self.began.remove(&chunk.id).unwrap_or(self.now);
        self.recorder.wasted(&chunk, Activity::Failure, began, self.now);
    }

    /// Wakes waiting lanes: items may have been given back.
    fn wake(&mut self) {
        for lane in 0..self.waiting.len() {
            if std::mem::take(&mut self.waiting[lane]) {
                self.ask_at(lane, self.now);
            }
        }
    }

    /// Seconds of the run if no device is ever idle.
    fn ideal(&self) -> f64 {
        let mut left = self.costs.all();
        for (index, &(from, capacity)) in self.capacities.iter().enumerate() {
            let until = self.capacities.get(index + 1).map_or(f64::INFINITY, |next| next.0.as_secs_f64());
            let from = from.as_secs_f64();
            if left <= capacity * (until - from) {
                return from + left / capacity;
            }
            left -= capacity * (until - from);
        }
        f64::INFINITY
    }

    fn finish(mut self) -> Simulation {
        for (lane, device) in self.devices.iter_mut().enumerate() {
            // A chunk in flight at the end kept its device busy until then.
            for chunk in device.drop_chunks(self.now) {
                let began = self.began.remove(&chunk.id).unwrap_or(self.now);
                self.recorder.wasted(&chunk, Activity::Dropped, began, self.now);
            }
            self.recorder.copied(lane, device.copied);
        }
        // A reader that has just come, or has asked for it, would otherwise not see the end.
        self.tell_status();
        let devices = self.device_lanes();
        let ideal = Some(self.ideal());
        let report = self.recorder.report(&self.run, &devices, self.scenario.items, self.now, ideal);
        let outcome = self.run.outcome().cloned().unwrap_or(Outcome::NoLaneLeft);
        if let Some(events) = self.recorder.events() {
            let error = match &outcome {
                Outcome::Complete => None,
                Outcome::TaskFailed(items) => {
                    Some(format!("the task failed on items {}..{}", items.start, items.end))
                }
                Outcome::NoLaneLeft => Some("no device is left to do the remaining items".into()),
                Outcome::Stopped => Some("the run was cancelled".into()),
            };
            let end = || RunEnd { error, report: Some(report.clone()) };
            events.write(self.now, || events::EventKind::RunEnded(Arc::new(end())));
            events.forget_cancel_request();
        }
        let lanes = self.devices.iter().map(|device| device.spec.id.clone()).collect();
        let spans = self.recorder.take_spans();
        let trace = Trace { task: "items".into(), lanes, spans };
        Simulation { report, outcome, trace }
    }
}
