//! The result of a build.

use evener_schedule::{Report, Trace};

/// The result of a build and the report of its run.
#[derive(Debug, Clone)]
pub struct Built<T> {
    pub(super) value: T,
    pub(super) leaves: u64,
    pub(super) leaves_per_item: Option<u64>,
    pub(super) report: Option<Report>,
    pub(super) trace: Trace,
}

impl<T> Built<T> {
    /// Returns the root or tree.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns the root or tree, by value.
    pub fn into_value(self) -> T {
        self.value
    }

    /// Separates the root or tree from the report and trace.
    pub fn into_parts(self) -> (T, Built<()>) {
        let Built { value, leaves, leaves_per_item, report, trace } = self;
        (value, Built { value: (), leaves, leaves_per_item, report, trace })
    }

    /// Returns the number of leaves.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Returns the report of the run, in which an item is a block of leaves. Returns `None` if there was no run: for few
    /// leaves, and for leaves that are already on a device. A stream has one report with the totals of all its runs.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Returns the number of leaves, or leaf hashes, of an item of the report. Returns `None` if there is no report, or
    /// items have several sizes.
    pub fn leaves_per_item(&self) -> Option<u64> {
        self.leaves_per_item
    }

    /// Returns the trace of all lanes, which is empty unless [`Builder::trace`](crate::Builder::trace) was called.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Creates the result of a build without a run on the pool.
    pub(super) fn without_run(value: T, leaves: u64) -> Built<T> {
        Built { value, leaves, leaves_per_item: None, report: None, trace: Trace::default() }
    }

    pub(super) fn map<U>(self, function: impl FnOnce(T) -> U) -> Built<U> {
        let Built { value, leaves, leaves_per_item, report, trace } = self;
        Built { value: function(value), leaves, leaves_per_item, report, trace }
    }
}
