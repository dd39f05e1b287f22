//! Runs of functions and items that are borrowed, on the processor's cores.
#![allow(unsafe_code)]

use std::{any::type_name, ops::Range};

use super::{Mapped, Pool};
use crate::{error::RunError, task::borrowed};

impl Pool {
    /// Calls a function for every item, on the processor's cores, and gives the results in the items' order. Both may
    /// borrow.
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
