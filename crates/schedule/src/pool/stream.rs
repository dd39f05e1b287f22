//! A task over items that come one after another.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{Shelf, execute::Lanes, job::Job, lock};
use crate::{
    account::Account,
    error::RunError,
    executor::{Control, Feed, Outlet, Shared, Window},
    run::{Outcome, Run},
    task::Task,
};

/// So many items at most are taken ahead of what has been asked for.
const WINDOW: usize = 1 << 16;
/// So many are taken at once, before looking whether results have come.
const GULP: usize = 1 << 10;

/// The results of a task over items that come one after another, in their order.
///
/// Items are taken from their source when a result is asked for, on the thread that asks, and only as many as are
/// worked on or wait to be asked for: whoever asks slowly slows everything down to that, and memory is bounded. An error
/// is the last thing that it gives.
pub struct MapStream<'i, T: Task> {
    shared: Arc<Shared<T>>,
    source: Option<Box<dyn Iterator<Item = T::Input> + 'i>>,
    control: Control<'static>,
    /// Items taken from the source.
    taken: u64,
    /// Results that were given, or are about to be.
    given: u64,
    ready: VecDeque<T::Output>,
    ended: bool,
}

impl<'i, T: Task> MapStream<'i, T>
where
    T::Input: Clone,
{
    pub(super) fn new(
        job: &Job<'_, T>,
        lanes: Lanes,
        source: Box<dyn Iterator<Item = T::Input> + 'i>,
    ) -> Result<Self, RunError> {
        let Lanes { seats, specs, .. } = lanes;
        let hands: Vec<usize> = specs.iter().map(|spec| spec.depth).collect();
        let window = Window {
            first: 0,
            items: VecDeque::new(),
            copy: |items, range| items.range(range).cloned().collect(),
        };
        let shelf: Arc<Shelf<T::State>> = job.shelf.clone();
        let shared = Arc::new(Shared::new(
            job.task.clone(),
            Run::open(&specs, job.settings),
            Account::new(specs.len(), false),
            seats,
            Feed::Window(Mutex::new(window)),
            Outlet::InOrder(Mutex::new(BTreeMap::new())),
            None,
            (1, u64::MAX),
            shelf,
        ));
        shared.begin(&hands);
        let control = Control {
            cancel: job.cancel.as_ref().map(|cancel| cancel.0.clone()),
            deadline: job.deadline,
            reporter: None,
            prepare_limit: job.prepare_limit,
        };
        let source = Some(source);
        Ok(MapStream { shared, source, control, taken: 0, given: 0, ready: VecDeque::new(), ended: false })
    }
}

impl<T: Task> MapStream<'_, T> {
    /// Takes items from the source, as many as there is room for, up to a gulp. Says whether it took any.
    fn take_items(&mut self) -> bool {
        let Some(source) = &mut self.source else { return false };
        let room = WINDOW.saturating_sub((self.taken - self.given) as usize).min(GULP);
        if room == 0 {
            return false;
        }
        let gulp: Vec<T::Input> = source.take(room).collect();
        let (count, has_ended) = (gulp.len() as u64, gulp.len() < room);
        if let Feed::Window(window) = &self.shared.feed {
            lock(window).items.extend(gulp);
        }
        self.taken += count;
        let mut core = self.shared.core();
        core.run.grow(count);
        if has_ended {
            core.run.close();
            self.source = None;
        }
        drop(core);
        self.shared.wake_all();
        count > 0
    }

    /// Moves results that are next in order to where they are given from. Says whether there were any.
    fn take_results(&mut self) -> bool {
        let Outlet::InOrder(waiting) = &self.shared.results else { return false };
        let mut waiting = lock(waiting);
        let next = self.given + self.ready.len() as u64;
        let Some(results) = waiting.remove(&next) else { return false };
        drop(waiting);
        let until = next + results.len() as u64;
        self.ready.extend(results);
        // Their items are not needed any more.
        if let Feed::Window(window) = &self.shared.feed {
            let mut window = lock(window);
            let past = until.saturating_sub(window.first) as usize;
            window.items.drain(..past);
            window.first = until;
        }
        true
    }

    /// Whether it is to end although there is more to give: looked at before every result, since whoever asks slowly may
    /// never find that there is nothing to give. What has come to its end is given.
    fn is_over(&self) -> bool {
        self.control.is_over(|| self.shared.now())
            && self.shared.core().run.outcome() != Some(&Outcome::Complete)
    }
}

impl<T: Task> Iterator for MapStream<'_, T> {
    type Item = Result<T::Output, RunError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // An error is the last thing that it gives, whatever comes after it.
            if self.ended {
                return None;
            }
            if !self.is_over() {
                if let Some(result) = self.ready.pop_front() {
                    self.given += 1;
                    return Some(Ok(result));
                }
                if self.take_results() || self.take_items() {
                    continue;
                }
            }
            let shared = self.shared.clone();
            let mut core = shared.core();
            let stopped = shared.glance(&mut core, &self.control);
            match shared.ending(&mut core, stopped, self.taken) {
                // The last results may have come since they were looked for.
                Some(Ok(())) if self.given + (self.ready.len() as u64) < self.taken => {
                    drop(core);
                    std::thread::yield_now();
                }
                Some(outcome) => {
                    self.ended = true;
                    if let Err(error) = outcome {
                        return Some(Err(error));
                    }
                }
                None => drop(shared.wait_for_news(core, Duration::from_millis(10))),
            }
        }
    }
}

impl<T: Task> Drop for MapStream<'_, T> {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl<T: Task> fmt::Debug for MapStream<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapStream")
            .field("taken", &self.taken)
            .field("given", &self.given)
            .finish_non_exhaustive()
    }
}
