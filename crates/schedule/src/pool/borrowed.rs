//! Runs of functions, arrays and places for results that are borrowed.
#![allow(unsafe_code)]

use std::{any::type_name, ops::Range};

use bytemuck::Pod;

use super::{Job, Mapped, Pool};
use crate::{
    error::RunError,
    report::Report,
    task::{Arrays, KernelTask, Slots, Task, borrowed},
};

impl Pool {
    /// Calls a function for every item, on the processor's cores, and gives the results in the items' order. Both may
    /// borrow.
    ///
    /// The function may itself call the pool. Each such call is a run of its own with threads of its own, which the pool
    /// keeps, so a recursive function needs more threads with every level. In deep recursion, call the pool on the first
    /// few levels only, and loop on the calling thread below them.
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

    /// Calls a function for every number of a range, on the processor's cores, and gives the results in their order. The
    /// function may borrow, and no items have to be made. Errors count items from the beginning of the range.
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
    /// // Results that are arrays are the rows of a matrix, which lie one after another.
    /// let rows = pool.map_range(0..3, |row| [row, 10 * row])?;
    /// assert_eq!(rows.results().as_flattened(), [0, 0, 1, 10, 2, 20]);
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
        // SAFETY: `map` returns, or unwinds, only once its items cannot be read any more, and the job goes with it: what the pool
        // keeps of it for the next call is what was learned, and not the task.
        let task = unsafe { borrowed(name, &function) };
        self.kept_job(&task).map(&vec![(); count])
    }
}

impl<'a, T: Task> Job<'a, T> {
    /// As [`Pool::map_into`].
    pub fn map_into(&self, items: &[T::Input], results: &mut [T::Output]) -> Result<Report, RunError>
    where
        T::Output: Copy,
    {
        if items.len() != results.len() {
            let message = format!("{} items with room for {} results", items.len(), results.len());
            return Err(RunError::Arrays { task: self.task.name().into(), message });
        }
        // SAFETY: a run returns, or unwinds, only once nobody can write results any more.
        let slots = |_| unsafe { Slots::lent(results) };
        Ok(self.execute_with(self.options.settings, items, 1, None, None, slots)?.report)
    }
}

impl<'a, I: Pod + Send + Sync, O: Pod + Send + Sync, P: Pod + Send + Sync> Job<'a, KernelTask<I, O, P>> {
    /// The same job with other [parameters](KernelTask::parameters) for the kernel.
    pub fn parameters(&self, parameters: P) -> Job<'a, KernelTask<I, O, P>> {
        self.with_task(&self.task.parameters(parameters))
    }
}

impl<P: Pod> Job<'_, KernelTask<(), (), P>> {
    /// As [`Pool::map_arrays`].
    pub fn map_arrays(&self, arrays: Arrays<'_>) -> Result<Report, RunError> {
        // SAFETY: a run returns, or unwinds, only once its items cannot be read and no results can be kept any more; the
        // job goes with it.
        let lent = unsafe { self.task.lend(arrays) };
        let (task, count) =
            lent.map_err(|message| RunError::Arrays { task: self.task.name().into(), message })?;
        Ok(self.with_task(&task).map(&vec![(); count])?.report)
    }
}
