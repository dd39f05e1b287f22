//! The simulator: the very same decisions as in a real run, on virtual devices in virtual time.

mod cost;
mod device;
#[cfg(test)]
mod fuzz;
mod scenario;
#[cfg(test)]
mod test;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    ops::Range,
    time::Duration,
};

pub use self::scenario::{Cost, Device, Event, Scenario, What};
use self::{
    cost::{Costs, Random},
    device::{Condition, Virtual},
};
use crate::{
    account::{Account, DeviceLanes},
    report::Report,
    run::{Answer, Chunk, Failure, LaneSpec, Outcome, Run, Settings, State, Time, Verdict},
    strategy::Strategy,
    trace::{Activity, Trace},
};

/// When somebody looks for the first time whether a device has hung, and the longest time between two looks.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// How a simulated run went.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Who did what.
    pub report: Report,
    /// How it ended.
    pub outcome: Outcome,
    /// What every device did, when.
    pub trace: Trace,
}

/// What the clock has in store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// A device's first chunk ends, unless its version has changed.
    End { lane: usize, version: u64 },
    /// The n-th event of the scenario.
    Event(usize),
    /// A lane asks.
    Ask(usize),
    /// Somebody may have hung.
    Deadline,
}

/// Simulates a run, from its beginning to its end.
pub fn simulate(scenario: &Scenario, strategy: Strategy, settings: Settings) -> Simulation {
    let mut simulator = Simulator::new(scenario, strategy, settings);
    simulator.run();
    simulator.finish()
}

struct Simulator<'a> {
    scenario: &'a Scenario,
    costs: Costs,
    devices: Vec<Virtual>,
    run: Run,
    alarms: BinaryHeap<Reverse<(Time, Alarm)>>,
    /// Lanes that were told to wait.
    waiting: Vec<bool>,
    /// When each lane asks next by itself.
    next_ask: Vec<Option<Time>>,
    now: Time,
    /// When each chunk was handed out.
    began: HashMap<u64, Time>,
    account: Account,
    /// The devices' capacity, from each of these times on.
    capacities: Vec<(Time, f64)>,
}

impl<'a> Simulator<'a> {
    fn new(scenario: &'a Scenario, strategy: Strategy, settings: Settings) -> Self {
        let mut random = Random(scenario.seed ^ 0xD1B5_4A32_D192_ED03);
        let mut names = scenario.names();
        let mut devices = Vec::new();
        for device in &scenario.devices {
            for _ in 0..device.count {
                let rate = match device.rate_up_to {
                    None => device.rate,
                    Some(most) => device.rate * (most / device.rate).powf(random.unit()),
                };
                let id = names.next().unwrap_or_default();
                let own = Random(
                    scenario.seed.wrapping_add(devices.len() as u64).wrapping_mul(0xA076_1D64_78BD_642F),
                );
                devices.push(Virtual::new(Device { id, rate, ..device.clone() }, own));
            }
        }
        drop(names);
        let lanes: Vec<_> = devices
            .iter()
            .map(|device| LaneSpec {
                depth: device.spec.depth,
                divisible: device.spec.divisible,
                score: device.spec.rate,
                launch_seconds: device.spec.launch_s,
                expected: Some(device.expected(scenario.items)),
                ..LaneSpec::default()
            })
            .collect();
        let rates: Vec<f64> = devices.iter().map(|device| device.spec.rate).collect();
        let scores: Vec<(f64, f64)> =
            devices.iter().map(|device| (device.spec.rate, device.spec.utilization)).collect();
        let shares = strategy.shares(scenario.items, &scores, &vec![1; devices.len()]);
        let events = scenario.events.iter().enumerate();
        let mut alarms: BinaryHeap<_> =
            events.map(|(index, event)| Reverse((event.at(), Alarm::Event(index)))).collect();
        alarms.extend((0..devices.len()).map(|lane| Reverse((Time::ZERO, Alarm::Ask(lane)))));
        alarms.push(Reverse((FIRST_LOOK, Alarm::Deadline)));
        Simulator {
            costs: Costs::new(scenario.items, scenario.cost, scenario.seed),
            run: Run::new(scenario.items, &lanes, &shares, settings),
            waiting: vec![false; devices.len()],
            next_ask: vec![Some(Time::ZERO); devices.len()],
            account: Account::new(devices.len(), true),
            capacities: vec![(Time::ZERO, rates.iter().sum())],
            scenario,
            devices,
            alarms,
            now: Time::ZERO,
            began: HashMap::new(),
        }
    }

    fn run(&mut self) {
        while self.run.outcome().is_none() {
            let Some(Reverse((now, alarm))) = self.alarms.pop() else { break };
            self.now = now;
            match alarm {
                Alarm::End { lane, version } if self.devices[lane].version == version => self.end(lane),
                Alarm::End { .. } => {}
                Alarm::Event(index) => self.happen(index),
                Alarm::Ask(lane) if self.next_ask[lane] == Some(now) => self.ask(lane),
                // It was told to ask at another time since.
                Alarm::Ask(_) => {}
                Alarm::Deadline => self.look_for_hung(),
            }
        }
    }

    /// Has a lane ask until it has its hands full.
    fn ask(&mut self, lane: usize) {
        self.waiting[lane] = false;
        self.next_ask[lane] = None;
        let mut answer = self.ask_run(lane);
        loop {
            answer = match answer {
                Answer::Steal { from, part, most } => {
                    let taken = self.steal(from, part, most);
                    self.run.stolen(lane, from, taken, self.now)
                }
                Answer::Run(chunk) => {
                    self.began.insert(chunk.id, self.now);
                    self.account.ready(lane, self.now);
                    let device = &mut self.devices[lane];
                    let items = chunk.items.end - chunk.items.start;
                    let too_large = device.spec.memory_items.is_some_and(|most| items > most);
                    if device.condition == Condition::Dead {
                        self.fail(chunk.id, Failure::Untrusted);
                        return self.ask_later(lane);
                    }
                    if too_large {
                        self.fail(chunk.id, Failure::TooLarge);
                        if self.run.state(lane) != State::Healthy {
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
                    // A lane with chunks in hand asks again when one of them ends.
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
        self.alarms.push(Reverse((when, Alarm::Ask(lane))));
    }

    fn ask_later(&mut self, lane: usize) {
        if let State::Quarantined { until } = self.run.state(lane) {
            self.ask_at(lane, until);
        }
    }

    /// Takes items from a chunk that its device has not begun.
    /// Asks what a lane is to do, and says before how far the others have come, as the threads of a run do.
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

    fn steal(&mut self, from: u64, part: f64, most: u64) -> Option<Range<u64>> {
        let lane = (0..self.devices.len()).find(|&lane| self.devices[lane].has(from))?;
        let taken = self.devices[lane].give_up(from, part, most, &self.costs, self.now);
        self.set_end(lane);
        taken
    }

    fn set_end(&mut self, lane: usize) {
        if let Some(end) = self.devices[lane].next_end() {
            let version = self.devices[lane].version;
            self.alarms.push(Reverse((end.max(self.now), Alarm::End { lane, version })));
        }
    }

    fn end(&mut self, lane: usize) {
        let Some((chunk, took)) = self.devices[lane].end(self.now) else { return };
        let began = self.began.remove(&chunk.id).unwrap_or(self.now);
        let verdict = self.run.ended(chunk.id, took, self.now.saturating_sub(began), self.now);
        let accepted = match &verdict {
            Verdict::Accept => chunk.items.end - chunk.items.start,
            Verdict::AcceptPart(parts) => parts.iter().map(|part| part.end - part.start).sum(),
            Verdict::Drop => 0,
        };
        self.account.ended(&chunk, began, accepted, self.now);
        self.account.look_at_trust(&self.run, self.now);
        self.set_end(lane);
        self.ask(lane);
    }

    fn happen(&mut self, index: usize) {
        let event = &self.scenario.events[index];
        let Some(lane) = self.devices.iter().position(|device| device.spec.id == event.device) else {
            return;
        };
        for chunk in self.devices[lane].happen(event.what, self.now) {
            self.fail(chunk.id, Failure::Untrusted);
            self.trace_failure(chunk);
        }
        self.capacities.push((self.now, self.devices.iter().map(Virtual::capacity).sum()));
        self.set_end(lane);
        self.ask_later(lane);
    }

    fn fail(&mut self, chunk: u64, failure: Failure) {
        self.run.failed(chunk, failure, self.now);
        self.account.look_at_trust(&self.run, self.now);
        self.wake();
    }

    fn look_for_hung(&mut self) {
        if !self.run.overdue(self.now).is_empty() {
            self.account.look_at_trust(&self.run, self.now);
            for lane in 0..self.devices.len() {
                if self.run.state(lane) != State::Healthy && !self.devices[lane].is_idle() {
                    // Whoever runs the lane opens its device afresh.
                    for chunk in self.devices[lane].let_go(self.now) {
                        self.trace_failure(chunk);
                    }
                    self.ask_later(lane);
                }
            }
            self.wake();
        }
        // As often as the executor does at first, and ever more rarely in runs that take long.
        let least = self.now + FIRST_LOOK.max(self.now / 200);
        let next = self.run.next_deadline().map_or(least, |deadline| deadline.max(least));
        self.alarms.push(Reverse((next.min(least + LONGEST_LOOK.max(self.now / 20)), Alarm::Deadline)));
    }

    fn trace_failure(&mut self, chunk: Chunk) {
        let began = self.began.remove(&chunk.id).unwrap_or(self.now);
        self.account.in_vain(&chunk, Activity::Failure, began, self.now);
    }

    /// Items were given back: whoever waits may have them.
    fn wake(&mut self) {
        for lane in 0..self.waiting.len() {
            if std::mem::take(&mut self.waiting[lane]) {
                self.ask_at(lane, self.now);
            }
        }
    }

    /// How long the work takes when no device is ever idle.
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
            // What is in hand at the end kept its device busy until then.
            for chunk in device.let_go(self.now) {
                let began = self.began.remove(&chunk.id).unwrap_or(self.now);
                self.account.in_vain(&chunk, Activity::Dropped, began, self.now);
            }
            self.account.copied(lane, device.copied);
        }
        let names = || self.devices.iter().map(|device| device.spec.id.clone());
        let lanes = |(index, id)| DeviceLanes { id, lanes: index..index + 1 };
        let devices: Vec<DeviceLanes> = names().enumerate().map(lanes).collect();
        let ideal = Some(self.ideal());
        let report = self.account.report(&self.run, &devices, self.scenario.items, self.now, ideal);
        let outcome = self.run.outcome().cloned().unwrap_or(Outcome::NoLaneLeft);
        let trace = Trace { lanes: names().collect(), spans: self.account.take_spans() };
        Simulation { report, outcome, trace }
    }
}
