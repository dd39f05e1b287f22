//! The items of a run, and the destination of its results.

use std::{collections::BTreeMap, ops::Range, sync::Mutex};

use evener_device::{Error, Result};

use super::Window;
use crate::{
    contain::{ContainedDrop, contain},
    sync::lock,
    task::{Items, LentItems, ResultSlots, Results, Task},
};

/// The items of a run, and the destination of its results.
pub(crate) trait RunData<T: Task>: Send + Sync + 'static {
    /// The slots of the results, if each item has one.
    fn slots(&self) -> Option<&ResultSlots<T::Output>> {
        None
    }

    /// The window of a stream, if the items come from one.
    fn window(&self) -> Option<&Window<T::Input>> {
        None
    }

    /// Calls `use_them` with a chunk's items. Fails if the run has ended, or other workers' results for them were accepted.
    fn with_items<R>(
        &self,
        range: &Range<u64>,
        use_them: impl FnOnce(Items<'_, T::Input>) -> Result<R>,
    ) -> Result<R>;

    /// Keeps the results of a chunk's accepted units. `first` is the chunk's first unit. The caller holds the slots, if
    /// there are any.
    fn keep(&self, first: u64, results: Results<'_, T::Output>, accepted: &[Range<u64>]);
}

/// The indices of units in their chunk's results.
fn part(first: u64, units: &Range<u64>) -> Range<usize> {
    (units.start - first) as usize..(units.end - first) as usize
}

/// The caller's slice, and a slot for each result.
pub(crate) struct SliceData<T: Task> {
    pub(crate) items: LentItems<T::Input>,
    pub(crate) results: ResultSlots<T::Output>,
}

impl<T: Task> RunData<T> for SliceData<T> {
    fn slots(&self) -> Option<&ResultSlots<T::Output>> {
        Some(&self.results)
    }

    fn with_items<R>(
        &self,
        _: &Range<u64>,
        use_them: impl FnOnce(Items<'_, T::Input>) -> Result<R>,
    ) -> Result<R> {
        use_them(Items::Lent(&self.items))
    }

    fn keep(&self, first: u64, results: Results<'_, T::Output>, accepted: &[Range<u64>]) {
        // SAFETY: `finish`, the only caller, holds the slots, so they are valid; `Run` accepts each unit once, so no other
        // worker has its slot.
        #[allow(unsafe_code)]
        let slots =
            |units: &Range<u64>| unsafe { self.results.slice(units.start as usize..units.end as usize) };
        let parts = accepted.iter().map(|units| (part(first, units), slots(units)));
        // All parts are moved before the other results are dropped, which runs the user's code.
        contain(|| results.move_ranges(parts));
    }
}

/// The items of a stream, and results that are delivered in their order.
pub(crate) struct StreamData<T: Task> {
    pub(crate) window: Window<T::Input>,
    /// Results that were not delivered yet, by the number of the first.
    pub(crate) results: Mutex<BTreeMap<u64, Vec<T::Output>>>,
}

impl<T: Task> RunData<T> for StreamData<T> {
    fn window(&self) -> Option<&Window<T::Input>> {
        Some(&self.window)
    }

    fn with_items<R>(
        &self,
        range: &Range<u64>,
        use_them: impl FnOnce(Items<'_, T::Input>) -> Result<R>,
    ) -> Result<R> {
        // Items whose results were accepted from another worker may be gone.
        // Dropping the last share of the items runs the user's code.
        let shared = ContainedDrop::new(self.window.chunk(range.start));
        let items = shared.get().and_then(|chunk| chunk.as_ref()?.get(range));
        use_them(Items::Slice(items.ok_or(Error::Ended)?))
    }

    fn keep(&self, first: u64, mut results: Results<'_, T::Output>, accepted: &[Range<u64>]) {
        let mut results = results.take();
        // From the end, so that each part can be split off. Dropping the others runs the user's code.
        let (mut parts, mut others) = (Vec::new(), Vec::new());
        for units in accepted.iter().rev() {
            others.push(results.split_off(part(first, units).end));
            parts.push((units.start, results.split_off(part(first, units).start)));
        }
        lock(&self.results).extend(parts);
        contain(|| drop((results, others)));
    }
}
