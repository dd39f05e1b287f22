//! The totals of several runs.

use std::time::Duration;

use super::{DeviceReport, Report};
use crate::trace::Trace;

/// The totals of consecutive runs: one report and one trace.
#[derive(Debug, Clone, Default)]
pub struct RunTotals {
    report: Option<Report>,
    /// The sum of the runs' guaranteed maximum times; `None` if one of them has no bound.
    max_wall_s: Option<f64>,
    trace: Trace,
}

impl RunTotals {
    /// Adds a run that began `began` after the first one.
    pub fn add(&mut self, report: &Report, trace: &Trace, began: Duration) {
        let max_wall_s = report.bound.map(|bound| report.ideal_s / bound.max(f64::MIN_POSITIVE));
        match &mut self.report {
            None => {
                self.max_wall_s = max_wall_s;
                self.report = Some(report.clone());
                self.trace.task.clone_from(&trace.task);
            }
            Some(sum) => {
                self.max_wall_s = self.max_wall_s.zip(max_wall_s).map(|(sum, more)| sum + more);
                add(sum, report, self.max_wall_s);
            }
        }
        // The lanes can differ from run to run.
        let indices: Vec<usize> = trace.lanes.iter().map(|name| self.lane(name, &trace.lanes)).collect();
        self.trace.spans.extend(trace.spans.iter().cloned().map(|mut span| {
            span.lane = indices[span.lane];
            span.from += began;
            span.until += began;
            span
        }));
    }

    fn lane(&mut self, name: &str, of: &[String]) -> usize {
        if self.trace.lanes.is_empty() {
            self.trace.lanes = of.to_vec();
        }
        self.trace.lanes.iter().position(|lane| lane == name).unwrap_or_else(|| {
            self.trace.lanes.push(name.into());
            self.trace.lanes.len() - 1
        })
    }

    /// The totals of all runs; `None` if there was no run.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Takes the totals apart: report and trace.
    pub fn into_parts(self) -> (Option<Report>, Trace) {
        (self.report, self.trace)
    }
}

fn add(sum: &mut Report, more: &Report, max_wall_s: Option<f64>) {
    sum.items += more.items;
    sum.done += more.done;
    sum.wall_s += more.wall_s;
    sum.ideal_s += more.ideal_s;
    let efficiency = sum.ideal_s / sum.wall_s.max(f64::MIN_POSITIVE);
    sum.efficiency = sum.efficiency.zip(more.efficiency).map(|_| efficiency);
    sum.bound = max_wall_s.map(|max_wall_s| (sum.ideal_s / max_wall_s.max(f64::MIN_POSITIVE)).min(1.0));
    // These compare one run with single devices, and cannot be added up.
    sum.speedup = None;
    sum.calibrated = None;
    sum.predicted_s = sum.predicted_s.zip(more.predicted_s).map(|(a, b)| a + b);
    for device in &more.devices {
        match sum.devices.iter_mut().find(|it| it.id == device.id) {
            Some(it) => add_device(it, device),
            None => sum.devices.push(device.clone()),
        }
    }
    let new = more.left_out.iter().filter(|out| !sum.left_out.contains(out)).cloned().collect::<Vec<_>>();
    sum.left_out.extend(new);
}

fn add_device(sum: &mut DeviceReport, more: &DeviceReport) {
    // The rate over both runs is all items over the sum of the times at each run's rate.
    let working_s = |it: &DeviceReport| it.rate.map_or(0.0, |rate| it.items as f64 / rate);
    let working_s = working_s(sum) + working_s(more);
    sum.items += more.items;
    sum.rate = (working_s > 0.0).then(|| sum.items as f64 / working_s);
    sum.chunks += more.chunks;
    sum.busy_s += more.busy_s;
    sum.copy_s += more.copy_s;
    sum.idle_s += more.idle_s;
    sum.quarantined_s += more.quarantined_s;
    sum.retries += more.retries;
    sum.speculative += more.speculative;
    sum.steals += more.steals;
    sum.dropped += more.dropped;
    sum.quarantines += more.quarantines;
    sum.hangs += more.hangs;
    sum.state.clone_from(&more.state);
    // As of one run, the last eight.
    sum.failures.extend(more.failures.iter().cloned());
    sum.failures.drain(..sum.failures.len().saturating_sub(8));
}
