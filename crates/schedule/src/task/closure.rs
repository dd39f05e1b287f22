//! Plain Rust code as a task, for the processor's cores.

use std::{
    fmt,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use evener_device::{BoxError, Device, DeviceId, Error, Kind, Result};

use super::{Chunk, Task};

/// A Rust function of one item, as a task. It runs on the processor's cores.
///
/// ```
/// use evener_device::Device;
/// use evener_schedule::{Closure, Pool};
///
/// let square = Closure::new("square", |&number: &u64| number * number);
/// let pool = Pool::new([Device::cpu()])?;
/// assert_eq!(pool.map(&square, &[1, 2, 3])?.results(), [1, 4, 9]);
/// # Ok::<(), evener_schedule::RunError>(())
/// ```
pub struct Closure<I, O, F> {
    name: Arc<str>,
    function: Arc<F>,
    types: PhantomData<fn(&I) -> O>,
}

impl<I, O> Closure<I, O, ()> {
    /// A task that gives each item to a function. A panic in it ends the run with an error that names the item.
    pub fn new<F>(name: &str, function: F) -> Closure<I, O, impl Fn(&I) -> Result<O, BoxError> + Send + Sync>
    where
        F: Fn(&I) -> O + Send + Sync + 'static,
    {
        Closure::fallible(name, move |item: &I| Ok(function(item)))
    }

    /// A task that gives each item to a function that may fail. An error ends the run, and names the item.
    pub fn fallible<F>(name: &str, function: F) -> Closure<I, O, F>
    where
        F: Fn(&I) -> Result<O, BoxError> + Send + Sync + 'static,
    {
        Closure { name: name.into(), function: Arc::new(function), types: PhantomData }
    }
}

impl<I, O, F> Clone for Closure<I, O, F> {
    fn clone(&self) -> Self {
        Closure { name: self.name.clone(), function: self.function.clone(), types: PhantomData }
    }
}

impl<I, O, F> fmt::Debug for Closure<I, O, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Closure({})", self.name)
    }
}

impl<I, O, F> Task for Closure<I, O, F>
where
    I: Send + Sync + 'static,
    O: Send + 'static,
    F: Fn(&I) -> Result<O, BoxError> + Send + Sync + 'static,
{
    type Input = I;
    type Output = O;
    type State = DeviceId;

    fn name(&self) -> &str {
        &self.name
    }

    fn can_use(&self, device: &Device) -> bool {
        device.describe().kind == Kind::Cpu
    }

    fn prepare(&self, device: &Device) -> Result<DeviceId> {
        Ok(device.id().clone())
    }

    fn run(&self, device: &mut DeviceId, chunk: &Chunk<'_, I>, results: &mut Vec<O>) -> Result<()> {
        chunk.read(|items| {
            results.reserve(items.len());
            // Caught here and not only outside, so that the item can be named.
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                for item in items {
                    results.push((self.function)(item)?);
                }
                Ok(())
            }));
            let message = match outcome {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => {
                    let error: BoxError = error;
                    error.to_string()
                }
                Err(panic) => crate::executor::panic_message(&*panic),
            };
            let item = chunk.range().start + results.len() as u64;
            Err(Error::Task {
                device: device.clone(),
                operation: format!("task `{}` on item {item}", self.name),
                item: Some(item),
                message,
            })
        })?
    }
}
