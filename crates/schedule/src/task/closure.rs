//! Plain Rust code as a task, for the processor's cores.

use std::{
    fmt,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use evener_device::{BoxError, Device, DeviceId, Error, Kind, Result};

use super::{Chunk, Results, Task};

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

/// So many items are done between two looks at whether they are still wanted.
const BLOCK: usize = 1024;

/// What a closure does with some items: it appends a result an item, up to the first that fails.
pub trait OfChunk<I, O>:
    Fn(&[I], &mut Results<'_, O>) -> Result<(), BoxError> + Send + Sync + 'static
{
}

impl<I, O, F: Fn(&[I], &mut Results<'_, O>) -> Result<(), BoxError> + Send + Sync + 'static> OfChunk<I, O>
    for F
{
}

impl<I, O> Closure<I, O, ()> {
    /// A task that gives each item to a function. A panic in it ends the run with an error that names the item.
    pub fn new<F>(name: &str, function: F) -> Closure<I, O, impl OfChunk<I, O>>
    where
        F: Fn(&I) -> O + Send + Sync + 'static,
    {
        // `extend` keeps count of what is there even when the function panics.
        Closure::of_chunks(name, move |items: &[I], results: &mut Results<'_, O>| {
            results.extend(items.iter().map(&function));
            Ok(())
        })
    }

    /// A task that gives each item to a function that may fail. An error ends the run, and names the item.
    pub fn fallible<F>(name: &str, function: F) -> Closure<I, O, impl OfChunk<I, O>>
    where
        F: Fn(&I) -> Result<O, BoxError> + Send + Sync + 'static,
    {
        Closure::of_chunks(name, move |items: &[I], results: &mut Results<'_, O>| {
            for item in items {
                results.push(function(item)?);
            }
            Ok(())
        })
    }

    /// A task that turns some items, a thousand or so at most, into as many results at once: for code that is faster so.
    /// One core works on each chunk, and others on others.
    pub fn of_chunks<F: OfChunk<I, O>>(name: &str, function: F) -> Closure<I, O, F> {
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
    F: OfChunk<I, O>,
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

    fn may_hang(&self, _: &Device) -> bool {
        false
    }

    fn run(&self, device: &mut DeviceId, chunk: &Chunk<'_, I>, results: &mut Results<'_, O>) -> Result<()> {
        chunk.read(|items| {
            // Caught here and not only outside, so that the item can be named.
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                for block in items.chunks(BLOCK) {
                    // The run waits for this, even where nobody needs it any more.
                    if chunk.is_over() {
                        break;
                    }
                    (self.function)(block, results)?;
                }
                Ok(())
            }));
            if chunk.is_over() {
                return Err(Error::Ended);
            }
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
