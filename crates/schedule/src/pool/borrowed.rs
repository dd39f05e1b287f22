//! Runs with borrowed functions, arrays and result slices.
#![allow(unsafe_code)]

use std::{any::type_name, ops::Range};

use bytemuck::Pod;

use super::{Job, Mapped, Pool};
use crate::{
    error::RunError,
    report::{Report, count_of},
    task::{Arrays, KernelTask, ResultSlots, Task, borrowed_task},
};

impl Pool {
    /// Calls a function for every item, on the processor's cores, and returns the results in order. The function and
    /// the items may borrow.
    ///
    /// The function may itself call the pool. Each such call is a separate run with its own threads, which the pool
    /// keeps, so a recursive function needs more threads with every level. In deep recursion, call the pool on the first
    /// few levels only, and loop on the calling thread below them.
    ///
    /// The threads have stacks of 8 MiB, or of `RUST_MIN_STACK` bytes (an environment variable) if that is more.
    ///
    /// ```
    /// use evener_device::Device;
    /// use evener_schedule::Pool;
    ///
    /// let pool = Pool::new([Device::cpu()])?;
    /// let text = String::from("a house in the country");
    /// let words: Vec<&str> = text.split(' ').collect();
    /// let longest = words.iter().map(|word| word.len()).max().unwrap_or(0);
    /// let missing = pool.map_slice(&words, |word| longest - word.len())?;
    /// assert_eq!(missing.results(), [6, 2, 5, 4, 0]);
    /// # Ok::<(), evener_schedule::RunError>(())
    /// ```
    pub fn map_slice<I, O, F>(&self, items: &[I], function: F) -> Result<Mapped<O>, RunError>
    where
        I: Sync,
        O: Send + 'static,
        F: Fn(&I) -> O + Sync,
    {
        self.map_indices(type_name::<F>(), items.len(), |index| function(&items[index]))
    }

    /// Calls a function for every number of a range, on the processor's cores, and returns the results in order. The
    /// function may borrow. Errors count items from the beginning of the range.
    ///
    /// ```
    /// use evener_device::Device;
    /// use evener_schedule::Pool;
    ///
    /// let pool = Pool::new([Device::cpu()])?;
    /// let prices = vec![3, 1, 4, 1, 5];
    /// let changes = pool.map_range(1..prices.len(), |day| prices[day] - prices[day - 1])?;
    /// assert_eq!(changes.results(), [-2, 3, -3, 4]);
    ///
    /// // Arrays as results are the rows of a matrix, one after another.
    /// let table = pool.map_range(1..4, |number| [number, number * number])?;
    /// assert_eq!(table.results().as_flattened(), [1, 1, 2, 4, 3, 9]);
    /// # Ok::<(), evener_schedule::RunError>(())
    /// ```
    pub fn map_range<O, F>(&self, range: Range<usize>, function: F) -> Result<Mapped<O>, RunError>
    where
        O: Send + 'static,
        F: Fn(usize) -> O + Sync,
    {
        self.map_indices(type_name::<F>(), range.len(), |index| function(range.start + index))
    }

    fn map_indices<O, F>(&self, name: &str, count: usize, function: F) -> Result<Mapped<O>, RunError>
    where
        O: Send + 'static,
        F: Fn(usize) -> O + Sync,
    {
        // SAFETY: `map` returns or unwinds only once no thread can read its items, and the job is dropped with it: the
        // pool keeps what was learned for the next call, not the task.
        let task = unsafe { borrowed_task(name, &function) };
        self.cached_job(&task).map(&vec![(); count])
    }
}

impl<'a, T: Task> Job<'a, T> {
    /// As [`Pool::map_into`].
    pub fn map_into(&self, items: &[T::Input], results: &mut [T::Output]) -> Result<Report, RunError>
    where
        T::Output: Copy,
    {
        if items.len() != results.len() {
            let [items, results] = [(items.len(), "item"), (results.len(), "result")]
                .map(|(len, thing)| count_of(len as u64, thing));
            let message = format!("{items}, but {results}");
            return Err(RunError::ArrayMismatch { task: self.task.name().into(), message });
        }
        // SAFETY: a run returns or unwinds only once no thread can write results.
        let slots = |_| Ok(unsafe { ResultSlots::lent(results) });
        Ok(self.execute_with(self.options.settings, items, 1, None, None, slots)?.report)
    }
}

impl<'a, I: Pod + Send + Sync, O: Pod + Send + Sync, P: Pod + Send + Sync> Job<'a, KernelTask<I, O, P>> {
    /// Returns the job with other kernel [parameters](KernelTask::parameters).
    pub fn parameters(&self, parameters: P) -> Job<'a, KernelTask<I, O, P>> {
        self.with_task(&self.task.parameters(parameters))
    }
}

impl<P: Pod> Job<'_, KernelTask<(), (), P>> {
    /// As [`Pool::map_arrays`].
    pub fn map_arrays(&self, arrays: Arrays<'_>) -> Result<Report, RunError> {
        // SAFETY: a run returns or unwinds only once no thread can read its items or accept its results, and the job
        // with this task is dropped here.
        let lent = unsafe { self.task.lend(arrays) };
        let (task, count) =
            lent.map_err(|message| RunError::ArrayMismatch { task: self.task.name().into(), message })?;
        Ok(self.with_task(&task).map(&vec![(); count])?.report)
    }
}
