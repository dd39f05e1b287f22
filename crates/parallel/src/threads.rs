//! Runs the parts of a loop on the processor's cores.

use std::{
    any::Any,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use evener_schedule::Pool;

use crate::{
    choice::Way,
    plan::{Loop, lock},
    rows::Split,
    scope::{self, LoopReport},
};

/// Parts per core: uneven iterations are shared out evenly.
const PARTS_PER_CORE: usize = 16;

/// The decision to run a loop on the processor's cores.
#[derive(Debug)]
pub struct Threads {
    pub(crate) of: &'static Loop,
    pub(crate) pool: Pool,
    pub(crate) count: usize,
}

/// What the parts of a loop gave: all parts before the first that panicked, in order, and its panic.
pub struct Parts<R> {
    /// The parts, with their results.
    pub done: Vec<(Range<usize>, R)>,
    /// The panic of the first part that panicked.
    pub panic: Option<Box<dyn Any + Send>>,
}

/// Goes on with a panic.
pub fn resume(panic: Option<Box<dyn Any + Send>>) {
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

impl Threads {
    /// Calls a function with the range and the rows of each part.
    pub fn run<W: Split + Send, R: Send>(
        &self,
        count: usize,
        rows: W,
        function: impl Fn(Range<usize>, W) -> R + Sync,
    ) -> Parts<R> {
        let start = Instant::now();
        let units =
            |device: &evener_device::Device| device.describe().compute_units.unwrap_or(1).max(1) as usize;
        let cores: usize = self
            .pool
            .devices()
            .iter()
            .filter(|device| device.describe().is_local_processor())
            .map(units)
            .sum();
        let parts = (cores.max(1) * PARTS_PER_CORE).min(count).max(1);
        let bounds = |part: usize| (count as u128 * part as u128 / parts as u128) as usize;
        let mut slots = Vec::with_capacity(parts);
        let mut rest = rows;
        for part in 0..parts {
            let (own, others) = rest.split(bounds(part + 1) - bounds(part));
            slots.push(Mutex::new((Some(own), None)));
            rest = others;
        }
        // Parts after one that has panicked need not be run.
        let first_panic = AtomicUsize::new(usize::MAX);
        let run_part = |part: usize| {
            if part > first_panic.load(Relaxed) {
                return;
            }
            let Some(own) = lock(&slots[part]).0.take() else { return };
            let outcome = catch_unwind(AssertUnwindSafe(|| function(bounds(part)..bounds(part + 1), own)));
            if outcome.is_err() {
                first_panic.fetch_min(part, Relaxed);
            }
            lock(&slots[part]).1 = Some(outcome);
        };
        let outcome = self.pool.map_range(0..parts, run_part);
        // Parts that no thread has begun, after an error of the run.
        if outcome.is_err() {
            (0..parts).for_each(run_part);
        }
        let (mut done, mut panic) = (Vec::with_capacity(parts), None);
        for (part, slot) in slots.into_iter().enumerate() {
            let (_, outcome) = slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            match outcome {
                Some(Ok(result)) => done.push((bounds(part)..bounds(part + 1), result)),
                Some(Err(payload)) => {
                    panic = Some(payload);
                    break;
                }
                None => break,
            }
        }
        let took = start.elapsed();
        if panic.is_none() {
            lock(&self.of.choice).learn(Way::Threads, count, took);
        }
        scope::record(|| LoopReport {
            name: self.of.name,
            place: "processor",
            iterations: self.count,
            took,
            note: self.of.note(),
            report: outcome.ok().map(|mapped| mapped.report().clone()),
        });
        Parts { done, panic }
    }
}
