//! What came of a build.

use evener_schedule::{Report, Trace};

/// What came of a build, and how it went.
#[derive(Debug, Clone)]
pub struct Built<T> {
    pub(super) value: T,
    pub(super) leaves: u64,
    pub(super) leaves_per_item: Option<u64>,
    pub(super) report: Option<Report>,
    pub(super) trace: Trace,
}

impl<T> Built<T> {
    /// What was built.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// What was built, to keep.
    pub fn into_value(self) -> T {
        self.value
    }

    /// What was built, to keep, and how it went.
    pub fn split(self) -> (T, Built<()>) {
        let Built { value, leaves, leaves_per_item, report, trace } = self;
        (value, Built { value: (), leaves, leaves_per_item, report, trace })
    }

    /// How many leaves there were.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Who did what. An item is a block of leaves. Nothing where no run of the pool was needed: for few leaves, and for
    /// those that are on a device already. What comes piece by piece has one report of all runs: items and times are
    /// added up.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// How many leaves, or hashes of leaves, an item of the report has. Nothing where there is no report, or where items
    /// are of several sizes.
    pub fn leaves_per_item(&self) -> Option<u64> {
        self.leaves_per_item
    }

    /// What every lane did, when; empty unless [`Builder::trace`](crate::Builder::trace) asked for it.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// What came of it without a run of the pool.
    pub(super) fn without_run(value: T, leaves: u64) -> Built<T> {
        Built { value, leaves, leaves_per_item: None, report: None, trace: Trace::default() }
    }

    pub(super) fn map<U>(self, function: impl FnOnce(T) -> U) -> Built<U> {
        let Built { value, leaves, leaves_per_item, report, trace } = self;
        Built { value: function(value), leaves, leaves_per_item, report, trace }
    }
}
