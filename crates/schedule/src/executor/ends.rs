//! Where the items of a run come from, and where its results go.

use std::{collections::BTreeMap, ops::Range, sync::Mutex};

use evener_device::{Error, Result};

use super::Window;
use crate::{
    contain::contain,
    sync::lock,
    task::{Items, LentItems, ResultSlots, Results, Task},
};

/// Where the items of a run come from, and where its results go.
pub(crate) trait Ends<T: Task>: Send + Sync + 'static {
    /// The places of the results, where they are written to those.
    fn slots(&self) -> Option<&ResultSlots<T::Output>> {
        None
    }

    /// The items, where they come one after another.
    fn window(&self) -> Option<&Window<T::Input>> {
        None
    }

    /// Has a worker use a chunk's items. Fails where the run, or those who have done them, need them no more.
    fn with_items<R>(
        &self,
        range: &Range<u64>,
        use_them: impl FnOnce(Items<'_, T::Input>) -> Result<R>,
    ) -> Result<R>;

    /// Keeps the results of those units that were accepted, of a chunk with this first one. The slots, where there are any,
    /// are held.
    fn keep(&self, first: u64, results: Results<'_, T::Output>, accepted: &[Range<u64>]);
}

/// Which of a chunk's results are those of some units.
fn part(first: u64, units: &Range<u64>) -> Range<usize> {
    (units.start - first) as usize..(units.end - first) as usize
}

/// A slice of the caller's, and as many results.
pub(crate) struct Slice<T: Task> {
    pub(crate) items: LentItems<T::Input>,
    pub(crate) results: ResultSlots<T::Output>,
}

impl<T: Task> Ends<T> for Slice<T> {
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
        // SAFETY: the slots are held by `finish`; a unit is accepted once, so nobody else has its slot.
        #[allow(unsafe_code)]
        let slots =
            |units: &Range<u64>| unsafe { self.results.slice(units.start as usize..units.end as usize) };
        let parts = accepted.iter().map(|units| (part(first, units), slots(units)));
        // All parts are moved before the other results are dropped, which is the user's code.
        contain(|| results.move_ranges(parts));
    }
}

/// Items that come one after another, and results that are given in their order.
pub(crate) struct Stream<T: Task> {
    pub(crate) window: Window<T::Input>,
    /// Results that were not given yet, by the number of the first.
    pub(crate) results: Mutex<BTreeMap<u64, Vec<T::Output>>>,
}

/// Items of a stream that a worker shares. Dropping the last share of them is the user's code.
struct Owned<T>(Option<T>);

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        let items = self.0.take();
        contain(|| drop(items));
    }
}

impl<T: Task> Ends<T> for Stream<T> {
    fn window(&self) -> Option<&Window<T::Input>> {
        Some(&self.window)
    }

    fn with_items<R>(
        &self,
        range: &Range<u64>,
        use_them: impl FnOnce(Items<'_, T::Input>) -> Result<R>,
    ) -> Result<R> {
        // What was accepted from another worker may be gone.
        let shared = Owned(self.window.chunk(range.start));
        let items = shared.0.as_ref().and_then(|chunk| chunk.get(range));
        use_them(Items::Slice(items.ok_or(Error::Ended)?))
    }

    fn keep(&self, first: u64, mut results: Results<'_, T::Output>, accepted: &[Range<u64>]) {
        let mut results = results.take();
        // From the end, so that each part is what is left there. Dropping the others is the user's code.
        let (mut parts, mut others) = (Vec::new(), Vec::new());
        for units in accepted.iter().rev() {
            others.push(results.split_off(part(first, units).end));
            parts.push((units.start, results.split_off(part(first, units).start)));
        }
        lock(&self.results).extend(parts);
        contain(|| drop((results, others)));
    }
}
