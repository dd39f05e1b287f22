//! What a program's runs add up to, by task and device.

use std::collections::BTreeMap;

use super::{
    DEVICE_BUSY, DEVICE_CHUNKS, DEVICE_DROPPED, DEVICE_HANGS, DEVICE_IN_HAND, DEVICE_ITEMS,
    DEVICE_QUARANTINES, DEVICE_RETRIES, DEVICE_SPECULATIVE, DEVICE_STATE, DEVICE_STEALS, LAST_BOUND,
    LAST_EFFICIENCY, LAST_TIME, Metrics, QUEUE_LENGTH, QUEUE_OUTSTANDING, QUEUE_SUBMITTED, RUN_BOUND,
    RUN_DONE, RUN_EFFICIENCY, RUN_ELAPSED, RUN_ITEMS, RUN_PROGRESS, RUN_RATE, RUN_REMAINING, RUNS_ACTIVE,
    RUNS_ENDED, labels,
};
use crate::state::{Counters, DeviceState, DeviceView, MAX_TASKS, OTHER, Program, RunSummary};

/// Maximum length of a task's name in a label, in characters.
const MAX_NAME: usize = 100;

/// The tasks of a program.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    pub(super) by_name: BTreeMap<String, Task>,
}

/// What the runs of a task add up to.
#[derive(Debug, Default)]
pub(super) struct Task {
    succeeded: u64,
    failed: u64,
    /// Pieces that were submitted to queues that have ended.
    submitted: u64,
    active: Vec<RunSummary>,
    last: Option<RunSummary>,
    devices: BTreeMap<String, Device>,
}

#[derive(Debug, Default)]
struct Device {
    counters: Counters,
    in_hand: u64,
    /// The worst state in the active runs, if there are any.
    state: Option<DeviceState>,
}

impl Tasks {
    /// Adds up a program's runs. `room` is the number of devices that may be added.
    pub(super) fn of(program: &Program, room: &mut usize) -> Tasks {
        let mut tasks = Tasks::default();
        for totals in &program.totals {
            let task = tasks.task(&totals.task);
            task.succeeded += totals.succeeded;
            task.failed += totals.failed;
            task.submitted = task.submitted.saturating_add(totals.submitted);
            for (id, counters) in &totals.devices {
                task.device(id, room).counters.add(counters);
            }
        }
        // The newest is last.
        for past in &program.past {
            tasks.task(&past.summary.task).last = Some(past.summary.clone());
        }
        for run in program.active() {
            let task = tasks.task(&run.summary.task);
            task.active.push(run.summary.clone());
            for DeviceView { id, totals, .. } in &run.devices {
                let device = task.device(id, room);
                device.counters.add(&Counters::from(totals));
                device.in_hand = device.in_hand.saturating_add(totals.in_hand);
                let is_worse = device.state.is_none_or(|known| rank(totals.state) > rank(known));
                if is_worse {
                    device.state = Some(totals.state);
                }
            }
        }
        tasks
    }

    fn task(&mut self, name: &str) -> &mut Task {
        let mut name: String = name.chars().take(MAX_NAME).collect();
        if !self.by_name.contains_key(&name) && self.by_name.len() + 1 >= MAX_TASKS {
            name = OTHER.into();
        }
        self.by_name.entry(name).or_default()
    }
}

/// The worst state has the highest rank.
fn rank(state: DeviceState) -> u8 {
    match state {
        DeviceState::Healthy => 0,
        DeviceState::Quarantined { .. } => 1,
        DeviceState::Retired => 2,
    }
}

impl Task {
    fn device(&mut self, id: &str, room: &mut usize) -> &mut Device {
        if !self.devices.contains_key(id) && *room == 0 {
            return self.devices.entry(OTHER.into()).or_default();
        }
        self.devices.entry(id.into()).or_insert_with(|| {
            *room -= 1;
            Device::default()
        })
    }

    /// Adds the task's metrics.
    pub(super) fn add_to(&self, metrics: &mut Metrics, of_task: &[(&str, &str); 3]) {
        let [pid, program, task] = *of_task;
        let task_labels = labels(of_task);
        metrics.add(&RUNS_ACTIVE, &task_labels, self.active.len() as f64);
        for (result, count) in [("ok", self.succeeded), ("error", self.failed)] {
            metrics.add(&RUNS_ENDED, &labels(&[pid, program, task, ("result", result)]), count as f64);
        }
        let queues = || self.active.iter().filter_map(|run| run.queue.as_ref());
        let submitted = queues().map(|queue| queue.submitted).fold(self.submitted, u64::saturating_add);
        if submitted > 0 || queues().next().is_some() {
            metrics.add(&QUEUE_SUBMITTED, &task_labels, submitted as f64);
        }
        if !self.active.is_empty() {
            self.add_active(metrics, &task_labels);
        }
        if let Some(last) = &self.last {
            metrics.add_if(&LAST_EFFICIENCY, &task_labels, last.efficiency);
            metrics.add_if(&LAST_BOUND, &task_labels, last.bound);
            metrics.add(&LAST_TIME, &task_labels, last.elapsed_s);
        }
        for (id, device) in &self.devices {
            device.add_to(metrics, &[pid, program, task, ("device", id)]);
        }
    }

    /// Adds what is only known of runs that have not ended.
    fn add_active(&self, metrics: &mut Metrics, of_task: &str) {
        let active = || self.active.iter();
        let sum = |value: fn(&RunSummary) -> f64| active().map(value).sum::<f64>();
        let largest = |value: fn(&RunSummary) -> Option<f64>| active().filter_map(value).reduce(f64::max);
        let smallest = |value: fn(&RunSummary) -> Option<f64>| active().filter_map(value).reduce(f64::min);
        let known = || active().filter_map(|run| Some((run.done as f64, run.items? as f64)));
        let items: f64 = known().map(|(_, items)| items).sum();
        metrics.add(&RUN_DONE, of_task, sum(|run| run.done as f64));
        metrics.add(&RUN_RATE, of_task, sum(|run| run.items_per_second));
        metrics.add_if(&RUN_ITEMS, of_task, known().next().map(|_| items));
        if items > 0.0 {
            let done: f64 = known().map(|(done, _)| done).sum();
            metrics.add(&RUN_PROGRESS, of_task, done / items);
        }
        metrics.add_if(&RUN_ELAPSED, of_task, largest(|run| Some(run.elapsed_s)));
        metrics.add_if(&RUN_REMAINING, of_task, largest(|run| run.remaining_s));
        metrics.add_if(&RUN_EFFICIENCY, of_task, smallest(|run| run.efficiency));
        metrics.add_if(&RUN_BOUND, of_task, smallest(|run| run.bound));
        if active().any(|run| run.queue.is_some()) {
            let pieces = |value: fn(&evener_schedule::events::QueueProgress) -> u64| {
                active().filter_map(|run| run.queue.as_ref()).map(value).fold(0, u64::saturating_add) as f64
            };
            metrics.add(&QUEUE_LENGTH, of_task, pieces(|queue| queue.queued));
            metrics.add(&QUEUE_OUTSTANDING, of_task, pieces(|queue| queue.outstanding));
        }
    }
}

impl Device {
    fn add_to(&self, metrics: &mut Metrics, of_device: &[(&str, &str); 4]) {
        let (counters, all) = (&self.counters, labels(of_device));
        let counts = [
            (&DEVICE_ITEMS, counters.items),
            (&DEVICE_CHUNKS, counters.chunks),
            (&DEVICE_RETRIES, counters.retries),
            (&DEVICE_SPECULATIVE, counters.speculative),
            (&DEVICE_STEALS, counters.steals),
            (&DEVICE_DROPPED, counters.dropped),
            (&DEVICE_QUARANTINES, counters.quarantines),
            (&DEVICE_HANGS, counters.hangs),
        ];
        for (family, count) in counts {
            metrics.add(family, &all, count as f64);
        }
        metrics.add(&DEVICE_BUSY, &all, counters.busy_s);
        let Some(state) = self.state else { return };
        metrics.add(&DEVICE_IN_HAND, &all, self.in_hand as f64);
        let [pid, program, task, device] = *of_device;
        for (number, name) in ["healthy", "quarantined", "retired"].into_iter().enumerate() {
            let is = f64::from(usize::from(rank(state)) == number);
            metrics.add(&DEVICE_STATE, &labels(&[pid, program, task, device, ("state", name)]), is);
        }
    }
}
