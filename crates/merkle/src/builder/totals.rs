//! The totals of several runs.

use std::time::Duration;

use evener_schedule::{DeviceReport, Report, Trace};

use super::Built;

/// The totals of several consecutive runs.
#[derive(Debug, Default)]
pub(super) struct RunTotals {
    report: Option<Report>,
    /// The sum of the runs' guaranteed maximum times; `None` if one of them has no bound.
    max_wall_s: Option<f64>,
    /// The number of leaves of an item; `None` if items have several sizes.
    leaves_per_item: Option<u64>,
    trace: Trace,
}

impl RunTotals {
    /// Adds a run that began `began` after the first one.
    pub(super) fn add<T>(&mut self, built: &Built<T>, began: Duration) {
        let trace = &built.trace;
        if let Some(report) = &built.report {
            let is_alike = self.report.is_none() || self.leaves_per_item == built.leaves_per_item;
            self.leaves_per_item = built.leaves_per_item.filter(|_| is_alike);
            let max_wall_s = report.bound.map(|bound| report.ideal_s / bound.max(f64::MIN_POSITIVE));
            match &mut self.report {
                None => {
                    self.max_wall_s = max_wall_s;
                    self.report = Some(report.clone());
                }
                Some(sum) => {
                    self.max_wall_s = self.max_wall_s.zip(max_wall_s).map(|(sum, more)| sum + more);
                    add(sum, report, self.max_wall_s);
                }
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

    /// Attaches the totals to a root. There is no report if there was no run.
    pub(super) fn finish<T>(self, value: T, leaves: u64) -> Built<T> {
        let RunTotals { report, leaves_per_item, trace, .. } = self;
        Built { value, leaves, leaves_per_item, report, trace }
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
    sum.state.clone_from(&more.state);
    // As of one run, the last eight.
    sum.failures.extend(more.failures.iter().cloned());
    sum.failures.drain(..sum.failures.len().saturating_sub(8));
}

#[cfg(test)]
mod test {
    use evener_device::Device;
    use evener_schedule::Pool;

    use super::*;
    use crate::{builder::Builder, leaves::Leaves};

    #[test]
    fn runs_add_up() {
        let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
        let builder = Builder::new(&pool).trace();
        let bytes = vec![0; 32 << 16];
        let leaves = Leaves::fixed_size(&bytes, 32).unwrap();
        let (a, b) = (builder.root(&leaves).unwrap(), builder.root(&leaves).unwrap());
        let mut sum = RunTotals::default();
        sum.add(&a, Duration::ZERO);
        sum.add(&b, Duration::from_secs(1));
        let built = sum.finish((), 2 << 16);
        let (report, trace) = (built.report().unwrap(), built.trace());
        let (a_report, b_report) = (a.report().unwrap(), b.report().unwrap());
        assert_eq!(report.items, 2 * a_report.items);
        assert_eq!(report.devices.iter().map(|it| it.items).sum::<u64>(), report.items);
        assert!((report.wall_s - a_report.wall_s - b_report.wall_s).abs() < 1e-9);
        let of = |report: &Report| report.efficiency.unwrap();
        let (low, high) = (of(a_report).min(of(b_report)), of(a_report).max(of(b_report)));
        assert!((low..=high).contains(&of(report)), "{low} {} {high}", of(report));
        assert_eq!(trace.spans.len(), a.trace().spans.len() + b.trace().spans.len());
        assert!(trace.spans.iter().any(|span| span.from >= Duration::from_secs(1)));
    }
}
