//! A task that is made of closures.

use std::sync::Arc;

use evener_device::{Device, Result};

use super::{Chunk, Closure, Results, Task};

type Prepare<S> = dyn Fn(&Device) -> Result<S> + Send + Sync;
type RunChunk<I, O, S> = dyn Fn(&mut S, &Chunk<'_, I>, &mut Results<'_, O>) -> Result<()> + Send + Sync;

/// A task that calls closures, on any device. The fields that [`new`](TestTask::new) does not take have the defaults of
/// [`Task`].
pub(crate) struct TestTask<I, O, S> {
    pub(crate) name: &'static str,
    pub(crate) prepare: Arc<Prepare<S>>,
    pub(crate) run: Arc<RunChunk<I, O, S>>,
    /// Number of workers of each device; `None` is the default.
    pub(crate) workers: Option<usize>,
    pub(crate) max_items: u64,
    pub(crate) may_hang: bool,
    pub(crate) is_divisible: bool,
}

impl<I, O, S> TestTask<I, O, S> {
    pub(crate) fn new(
        name: &'static str,
        prepare: impl Fn(&Device) -> Result<S> + Send + Sync + 'static,
        run: impl Fn(&mut S, &Chunk<'_, I>, &mut Results<'_, O>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        TestTask {
            name,
            prepare: Arc::new(prepare),
            run: Arc::new(run),
            workers: None,
            max_items: u64::MAX,
            may_hang: true,
            is_divisible: false,
        }
    }
}

impl<I, O, S> Clone for TestTask<I, O, S> {
    fn clone(&self) -> Self {
        TestTask { prepare: self.prepare.clone(), run: self.run.clone(), ..*self }
    }
}

impl<I, O, S> Task for TestTask<I, O, S>
where
    I: Send + Sync + 'static,
    O: Send + 'static,
    S: Send + 'static,
{
    type Input = I;
    type Output = O;
    type State = S;

    fn name(&self) -> &str {
        self.name
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, device: &Device) -> Result<S> {
        (self.prepare)(device)
    }

    fn run(&self, state: &mut S, chunk: &Chunk<'_, I>, results: &mut Results<'_, O>) -> Result<()> {
        (self.run)(state, chunk, results)
    }

    fn workers(&self, device: &Device) -> usize {
        // A closure has the default number of workers.
        self.workers.unwrap_or_else(|| Closure::new("any", |(): &()| ()).workers(device))
    }

    fn max_items(&self, _: &S) -> u64 {
        self.max_items
    }

    fn may_hang(&self, _: &Device) -> bool {
        self.may_hang
    }

    fn is_divisible(&self, _: &Device) -> bool {
        self.is_divisible
    }
}
