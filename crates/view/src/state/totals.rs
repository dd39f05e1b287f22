//! What the runs of each task add up to once they have ended, for counters that never fall.

use serde::{Deserialize, Serialize};

use super::{program::DeviceTotals, run::RunFold};

/// Maximum tasks whose totals are kept apart. Those of further tasks are summed under the name [`OTHER`].
pub const MAX_TASKS: usize = 64;
/// Maximum devices in the totals of all tasks. Those of further devices are summed under the name [`OTHER`].
pub const MAX_TOTALS: usize = 8_192;
/// The name of what is summed because there is too much of it.
pub const OTHER: &str = "other";

/// What the runs of a task that have ended did. With the runs that have not ended, it is all that the program did since a
/// view was first attached to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskTotals {
    /// The task's name.
    pub task: String,
    /// Runs that have ended without an error.
    pub succeeded: u64,
    /// Runs that failed or were cancelled. Runs whose end was not seen count neither here nor there.
    pub failed: u64,
    /// Pieces that were submitted to its queues.
    #[serde(default)]
    pub submitted: u64,
    /// What each device did in them.
    pub devices: Vec<(String, Counters)>,
}

/// The counters of a device that only grow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
pub struct Counters {
    /// Items whose results were accepted.
    pub items: u64,
    /// Chunks that it finished.
    pub chunks: u64,
    /// Mean time of its lanes with a chunk in flight.
    pub busy_s: f64,
    /// Chunks that failed on it and were done again.
    pub retries: u64,
    /// Speculative copies whose results were accepted from it.
    pub speculative: u64,
    /// Chunks that it stole.
    pub steals: u64,
    /// Chunks whose results were dropped.
    pub dropped: u64,
    /// How often it was quarantined.
    pub quarantines: u64,
    /// How often that was because a chunk had hung.
    pub hangs: u64,
}

impl Counters {
    /// Adds what a device did.
    pub fn add(&mut self, other: &Counters) {
        self.combine(other, u64::saturating_add);
        self.busy_s += other.busy_s;
    }

    /// Takes back what was added.
    fn subtract(&mut self, other: &Counters) {
        self.combine(other, u64::saturating_sub);
        self.busy_s = (self.busy_s - other.busy_s).max(0.0);
    }

    fn combine(&mut self, other: &Counters, with: fn(u64, u64) -> u64) {
        self.items = with(self.items, other.items);
        self.chunks = with(self.chunks, other.chunks);
        self.retries = with(self.retries, other.retries);
        self.speculative = with(self.speculative, other.speculative);
        self.steals = with(self.steals, other.steals);
        self.dropped = with(self.dropped, other.dropped);
        self.quarantines = with(self.quarantines, other.quarantines);
        self.hangs = with(self.hangs, other.hangs);
    }
}

impl From<&DeviceTotals> for Counters {
    fn from(totals: &DeviceTotals) -> Self {
        let &DeviceTotals {
            items,
            chunks,
            busy_s,
            retries,
            speculative,
            steals,
            dropped,
            quarantines,
            hangs,
            ..
        } = totals;
        // Sums of such numbers are exact, so that no order of adding them makes a counter fall.
        let busy_s = (busy_s * 1_048_576.0).round() / 1_048_576.0;
        Counters { items, chunks, busy_s, retries, speculative, steals, dropped, quarantines, hangs }
    }
}

/// The totals of all tasks, each with the version in which it changed last.
#[derive(Debug, Default)]
pub(super) struct Totals {
    tasks: Vec<(u64, TaskTotals)>,
}

impl Totals {
    /// Adds a run that has ended. Whether it has failed is not known of a run whose end was not seen.
    pub(super) fn add(&mut self, run: &RunFold, has_failed: Option<bool>, version: u64) {
        let mut count: usize = self.tasks.iter().map(|(_, task)| task.devices.len()).sum();
        let task = self.task(&run.summary.task, version);
        match has_failed {
            Some(true) => task.failed += 1,
            Some(false) => task.succeeded += 1,
            None => {}
        }
        task.submitted = task.submitted.saturating_add(submitted(run));
        let devices = run.counters();
        for (index, (id, counters)) in devices.iter().enumerate() {
            let index = position(&task.devices, index, id).unwrap_or_else(|| {
                let id = if count < MAX_TOTALS { id.as_str() } else { OTHER };
                let other = task.devices.iter().position(|(known, _)| known == id);
                other.unwrap_or_else(|| {
                    count += 1;
                    task.devices.push((id.into(), Counters::default()));
                    task.devices.len() - 1
                })
            });
            task.devices[index].1.add(counters);
        }
    }

    /// Takes back a run that was assumed to have ended.
    pub(super) fn take_back(&mut self, run: &RunFold, version: u64) {
        let task = self.task(&run.summary.task, version);
        task.submitted = task.submitted.saturating_sub(submitted(run));
        let devices = run.counters();
        for (index, (id, counters)) in devices.iter().enumerate() {
            let known = position(&task.devices, index, id);
            let index = known.or_else(|| task.devices.iter().position(|(id, _)| id == OTHER));
            if let Some(index) = index {
                task.devices[index].1.subtract(counters);
            }
        }
    }

    /// The totals of a task, which are about to change.
    fn task(&mut self, name: &str, version: u64) -> &mut TaskTotals {
        let find = |tasks: &[(u64, TaskTotals)], name: &str| tasks.iter().position(|(_, it)| it.task == name);
        let mut index = find(&self.tasks, name);
        if index.is_none() {
            // The last place is that of all others.
            let name = if self.tasks.len() + 1 < MAX_TASKS { name } else { OTHER };
            index = find(&self.tasks, name);
            if index.is_none() {
                let task = TaskTotals { task: name.into(), succeeded: 0, failed: 0, submitted: 0, devices: Vec::new() };
                self.tasks.push((version, task));
            }
        }
        let index = index.unwrap_or(self.tasks.len() - 1);
        self.tasks[index].0 = version;
        &mut self.tasks[index].1
    }

    /// The totals of the tasks that have changed since a version.
    pub(super) fn since(&self, version: u64) -> Vec<TaskTotals> {
        self.tasks.iter().filter(|(changed, _)| *changed > version).map(|(_, task)| task.clone()).collect()
    }

    pub(super) fn all(&self) -> Vec<TaskTotals> {
        self.tasks.iter().map(|(_, task)| task.clone()).collect()
    }
}

/// The pieces that were submitted to a queue; none of a run.
fn submitted(run: &RunFold) -> u64 {
    run.summary.queue.map_or(0, |queue| queue.submitted)
}

/// The index of a device, which is likely the same as in the run.
fn position(devices: &[(String, Counters)], likely: usize, id: &str) -> Option<usize> {
    match devices.get(likely) {
        Some((known, _)) if known == id => Some(likely),
        _ => devices.iter().position(|(known, _)| known == id),
    }
}

/// Replaces the totals of tasks that have changed.
pub(super) fn replace(totals: &mut Vec<TaskTotals>, changed: Vec<TaskTotals>) {
    for task in changed {
        match totals.iter_mut().find(|known| known.task == task.task) {
            Some(known) => *known = task,
            None => totals.push(task),
        }
    }
}
