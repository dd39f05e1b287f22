//! The totals of several builds.

use std::time::Duration;

use evener_schedule::RunTotals;

use super::Built;

/// The totals of consecutive builds.
#[derive(Debug, Default)]
pub(super) struct BuildTotals {
    runs: RunTotals,
    /// The number of leaves of an item; `None` if items have several sizes.
    leaves_per_item: Option<u64>,
}

impl BuildTotals {
    /// Adds a build that began `began` after the first one.
    pub(super) fn add<T>(&mut self, built: &Built<T>, began: Duration) {
        let Some(report) = &built.report else { return };
        let is_alike = self.runs.report().is_none() || self.leaves_per_item == built.leaves_per_item;
        self.leaves_per_item = built.leaves_per_item.filter(|_| is_alike);
        self.runs.add(report, &built.trace, began);
    }

    /// Attaches the totals to a root. There is no report if there was no run.
    pub(super) fn finish<T>(self, value: T, leaves: u64) -> Built<T> {
        let (report, trace) = self.runs.into_parts();
        Built { value, leaves, leaves_per_item: self.leaves_per_item, report, trace }
    }
}

#[cfg(test)]
mod test {
    use evener_device::Device;
    use evener_schedule::{Pool, Report};

    use super::*;
    use crate::{builder::Builder, leaves::Leaves};

    #[test]
    fn runs_add_up() {
        let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
        let builder = Builder::new(&pool).trace();
        let bytes = vec![0; 32 << 16];
        let leaves = Leaves::fixed_size(&bytes, 32).unwrap();
        let (a, b) = (builder.root(&leaves).unwrap(), builder.root(&leaves).unwrap());
        let mut sum = BuildTotals::default();
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
