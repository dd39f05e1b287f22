//! Plain Rust code as a task, for the processor's cores.

use std::{
    fmt,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use evener_device::{BoxError, Device, DeviceId, DeviceKind, Error, Result, SharedError};

use super::{Chunk, Claims, Results, Task};
use crate::contain::panic_message;

/// A Rust function as a task for the processor's cores.
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

/// Maximum number of items claimed at once. The worker gives back those that are not begun when another lane is idle.
const MAX_CLAIMED: usize = 4096;
/// Maximum number of items in a slice, which cannot be given back.
const MAX_SLICE: usize = 1024;
/// Target time of the items claimed at once. Other lanes cannot steal them before the worker has given them back.
/// Claiming and reading the clock take about 0.1 microseconds.
const CLAIM_TIME: Duration = Duration::from_micros(25);
/// Target time of a slice: functions of slices are faster with larger ones.
const SLICE_TIME: Duration = Duration::from_micros(200);

/// The function of a [`Closure`]: it appends one result per item, up to the first that fails. Functions of single items
/// stop between items when the worker is interrupted.
pub trait ChunkFunction<I, O>: Send + Sync + 'static {
    /// Target time and maximum number of the items claimed at once.
    #[doc(hidden)]
    fn limits(&self) -> (Duration, usize) {
        (CLAIM_TIME, MAX_CLAIMED)
    }

    /// Runs a block of items, at least its first. Returns how many it has begun.
    #[doc(hidden)]
    fn run(&self, block: ClaimedItems<'_, '_, I, O>) -> Result<usize, BoxError>;
}

/// Items that were claimed together.
#[doc(hidden)]
pub struct ClaimedItems<'b, 'r, I, O> {
    /// The first item's number in the run.
    pub(super) first: u64,
    pub(super) items: &'b [I],
    pub(super) results: &'b mut Results<'r, O>,
    claims: &'b Claims,
}

impl<I, O> ClaimedItems<'_, '_, I, O> {
    /// Calls a function with each item until the worker is interrupted. Returns how many it has begun.
    pub(super) fn fill(self, function: impl Fn(&I) -> O) -> usize {
        self.results.fill(self.items, function, || !self.claims.is_interrupted())
    }
}

/// A function of one item that cannot fail.
struct PerItem<F>(F);

impl<I, O, F: Fn(&I) -> O + Send + Sync + 'static> ChunkFunction<I, O> for PerItem<F> {
    fn run(&self, block: ClaimedItems<'_, '_, I, O>) -> Result<usize, BoxError> {
        Ok(block.fill(&self.0))
    }
}

/// A function of one item that may fail.
struct FalliblePerItem<F>(F);

impl<I, O, F: Fn(&I) -> Result<O, BoxError> + Send + Sync + 'static> ChunkFunction<I, O>
    for FalliblePerItem<F>
{
    fn run(&self, block: ClaimedItems<'_, '_, I, O>) -> Result<usize, BoxError> {
        for (index, item) in block.items.iter().enumerate() {
            if index > 0 && block.claims.is_interrupted() {
                return Ok(index);
            }
            block.results.push((self.0)(item)?);
        }
        Ok(block.items.len())
    }
}

/// A function of several items at once.
struct PerSlice<F>(F);

impl<I, O, F> ChunkFunction<I, O> for PerSlice<F>
where
    F: Fn(&[I], &mut Results<'_, O>) -> Result<(), BoxError> + Send + Sync + 'static,
{
    fn limits(&self) -> (Duration, usize) {
        (SLICE_TIME, MAX_SLICE)
    }

    fn run(&self, block: ClaimedItems<'_, '_, I, O>) -> Result<usize, BoxError> {
        (self.0)(block.items, block.results)?;
        Ok(block.items.len())
    }
}

/// A boxed function of a [`Closure`].
pub struct AnyFunction<I, O>(Box<dyn ChunkFunction<I, O>>);

impl<I: 'static, O: 'static> ChunkFunction<I, O> for AnyFunction<I, O> {
    fn limits(&self) -> (Duration, usize) {
        self.0.limits()
    }

    fn run(&self, block: ClaimedItems<'_, '_, I, O>) -> Result<usize, BoxError> {
        self.0.run(block)
    }
}

/// A [`Closure`] with a type that can be named, for fields and return types: see [`Closure::boxed`].
pub type BoxClosure<I, O> = Closure<I, O, AnyFunction<I, O>>;

impl<I, O> Closure<I, O, ()> {
    /// A task that calls a function with each item. A panic ends the run with an error that names the item.
    pub fn new<F>(name: &str, function: F) -> Closure<I, O, impl ChunkFunction<I, O>>
    where
        F: Fn(&I) -> O + Send + Sync + 'static,
    {
        Closure::of(name, PerItem(function))
    }

    /// A task that calls a fallible function with each item. An error ends the run, with the item's number.
    pub fn fallible<F>(name: &str, function: F) -> Closure<I, O, impl ChunkFunction<I, O>>
    where
        F: Fn(&I) -> Result<O, BoxError> + Send + Sync + 'static,
    {
        Closure::of(name, FalliblePerItem(function))
    }

    /// A task that calls a function with slices of up to 1,024 items, for code that is faster with many items at once.
    /// The function adds one result per item. Slices grow until one takes about 200 microseconds, and are not
    /// interrupted.
    pub fn of_chunks<F>(name: &str, function: F) -> Closure<I, O, impl ChunkFunction<I, O>>
    where
        F: Fn(&[I], &mut Results<'_, O>) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        Closure::of(name, PerSlice(function))
    }

    pub(super) fn of<F: ChunkFunction<I, O>>(name: &str, function: F) -> Closure<I, O, F> {
        Closure { name: name.into(), function: Arc::new(function), types: PhantomData }
    }

    /// [`Closure::new`] with a type that can be named, for a field or a return type.
    ///
    /// ```
    /// use evener_schedule::{BoxClosure, Closure, Pool};
    ///
    /// struct Server {
    ///     pool: Pool,
    ///     length: BoxClosure<String, usize>,
    /// }
    ///
    /// let pool = Pool::new([evener_device::Device::cpu()])?;
    /// let server = Server { pool, length: Closure::boxed("length", String::len) };
    /// assert_eq!(server.pool.map(&server.length, &["four".to_owned()])?.results(), [4]);
    /// # Ok::<(), evener_schedule::RunError>(())
    /// ```
    pub fn boxed<F>(name: &str, function: F) -> BoxClosure<I, O>
    where
        F: Fn(&I) -> O + Send + Sync + 'static,
        I: 'static,
        O: 'static,
    {
        Closure::of(name, AnyFunction(Box::new(PerItem(function))))
    }
}

impl<I, O, F> Clone for Closure<I, O, F> {
    fn clone(&self) -> Self {
        Closure { name: self.name.clone(), function: self.function.clone(), types: PhantomData }
    }
}

impl<I, O> fmt::Debug for AnyFunction<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyFunction")
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
    F: ChunkFunction<I, O>,
{
    type Input = I;
    type Output = O;
    type State = DeviceId;

    fn name(&self) -> &str {
        &self.name
    }

    fn state_id(&self) -> Option<u64> {
        Some(0)
    }

    fn can_use(&self, device: &Device) -> bool {
        device.describe().kind == DeviceKind::Cpu
    }

    fn prepare(&self, device: &Device) -> Result<DeviceId> {
        Ok(device.id().clone())
    }

    fn may_hang(&self, _: &Device) -> bool {
        false
    }

    fn is_divisible(&self, _: &Device) -> bool {
        true
    }

    fn run(&self, device: &mut DeviceId, chunk: &Chunk<'_, I>, results: &mut Results<'_, O>) -> Result<()> {
        chunk.read(|items| {
            // Caught here and not only in `run_chunk`, so that the error can name the item.
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let (long, most) = self.function.limits();
                let claims = chunk.claims();
                let (mut size, mut begin) = (1, Instant::now());
                while let Some(block) = chunk.claim(results, size) {
                    let (first, items) = (chunk.range().start + block.start as u64, &items[block.clone()]);
                    let begun = self.function.run(ClaimedItems { first, items, results, claims })?;
                    let end = Instant::now();
                    size = match end - begin {
                        short if short < long => size * 2,
                        enough if enough < long * 2 => size,
                        far_too_long if far_too_long > long * 16 => 1,
                        _ => size / 2,
                    };
                    size = size.clamp(1, most);
                    begin = end;
                    if begun < block.len() {
                        // Another lane is idle, or the run has ended.
                        chunk.unclaim(results, block.start + begun);
                        size = 1;
                    }
                }
                Ok(())
            }));
            if chunk.is_over() {
                return Err(Error::Ended);
            }
            let (message, source): (String, Option<BoxError>) = match outcome {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => {
                    let error: BoxError = error;
                    (error.to_string(), Some(error))
                }
                Err(panic) => (panic_message(&*panic), None),
            };
            let item = chunk.range().start + results.len() as u64;
            Err(Error::Task {
                device: device.clone(),
                operation: format!("running task `{}` on {}", self.name, chunk.name_of(item)),
                item: Some(item),
                message,
                source: source.map(SharedError::new),
            })
        })?
    }
}
