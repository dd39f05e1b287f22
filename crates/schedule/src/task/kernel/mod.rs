//! A kernel as a task: with one result an item, or with several inputs and outputs.

mod state;

use std::{fmt, marker::PhantomData, ops::Range, sync::Arc};

use bytemuck::{Pod, Zeroable};
use evener_device::{Argument, Buffer, Device, DeviceId, Kernel, Result};

pub use self::state::KernelState;
use super::{
    arrays::{Arrays, Element, LentArray},
    resident::Table,
    unique,
};

/// A kernel that reads an array of items and writes an array of as many results, as a task.
///
/// The kernel declares `reads::<I>()`, `writes::<O>()` and [`params::<KernelParams>()`](KernelParams), in this order,
/// and has one thread an item. It is told how many items there are, since the last workgroup may reach past them, and
/// which item is the first.
///
/// The kernel must write the result of every item. A device's buffer of results is not what the caller gave, and is used
/// again for the next chunk: an element that the kernel leaves unwritten has unspecified contents, such as the result of
/// another item, and one that it reads before writing has too.
///
/// Items and results may be of a type without bytes, such as `()`: the kernel's buffer is empty then. Types aligned to more
/// than 64 bytes are refused.
///
/// Both buffers have room for at least `count` items, and threads past them may be launched: that is what the promise of
/// a CUDA body ([`Kernel::cuda`]) is about here.
///
/// ```
/// use evener_device::{Device, Kernel};
/// use evener_schedule::{KernelParams, KernelTask, Pool};
///
/// let double = Kernel::new("twice")
///     .reads::<u32>()
///     .writes::<u32>()
///     .params::<KernelParams>()
///     .rust(|launch| {
///         let count = launch.params::<KernelParams>()?.count as usize;
///         let (input, output) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
///         for (out, value) in output[..count].iter_mut().zip(input) {
///             *out = 2 * value;
///         }
///         Ok(())
///     });
/// // SAFETY: threads past the last item do nothing.
/// let double = unsafe { double.cuda(r#"
///     struct Params { unsigned long long first; unsigned count; unsigned pad; };
///     extern "C" __global__ void twice(const unsigned *in, unsigned *out, Params p) {
///         unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
///         if (i < p.count) out[i] = 2 * in[i];
///     }"#) };
/// let task = KernelTask::<u32, u32>::new(&double);
/// let pool = Pool::new([Device::cpu()])?;
/// assert_eq!(pool.map(&task, &[1, 2, 3])?.results(), [2, 4, 6]);
/// # Ok::<(), evener_schedule::RunError>(())
/// ```
///
/// A kernel with other arrays than one of items and one of results begins with [`arrays`](KernelTask::arrays). Data that
/// every item reads is a [`table`](KernelTask::table), and numbers that change from run to run are
/// [`parameters`](KernelTask::parameters).
pub struct KernelTask<I, O, P = KernelParams> {
    kernel: Arc<Kernel>,
    /// What the kernel's buffers are, in the order of their declaration.
    arrays: Vec<Array>,
    params: Arc<Params<P>>,
    /// The inputs and outputs of one run, by the number of the array. Those that are not there are the run's items and
    /// its results. Nothing where they are still to be given.
    lent: Option<Arc<[Option<LentArray>]>>,
    /// The kernel's, with the sizes of the arrays.
    fingerprint: u64,
    /// What tells it and its clones from all others in this program. With other parameters or tables it is the same.
    id: u64,
    types: PhantomData<fn(I) -> O>,
}

/// What a kernel is told on a device about items with these numbers.
type Params<P> = dyn Fn(&DeviceId, Range<u64>) -> P + Send + Sync;

/// Makes a buffer for so many elements: its bytes, and what the kernel is given.
type Allocate = fn(&Device, usize) -> Result<(Buffer<u8>, Argument)>;

/// One of a kernel's buffers.
#[derive(Clone)]
struct Array {
    role: Role,
    element: Element,
    /// How many elements an item has.
    width: usize,
    allocate: Allocate,
}

/// What a kernel's buffer is.
#[derive(Clone)]
enum Role {
    Input,
    Output,
    Table(Table),
}

impl Array {
    fn new<T: Pod>(role: Role, width: usize) -> Self {
        let allocate = |device: &Device, elements| {
            let buffer = device.buffer_uninit::<T>(elements)?;
            Ok((buffer.cast()?, buffer.arg()))
        };
        Array { role, element: Element::of::<T>(), width, allocate }
    }

    /// The bytes of an item that go to the device, and that come back.
    fn item_bytes(&self) -> (u64, u64) {
        let bytes = (self.width as u64).saturating_mul(self.element.bytes as u64);
        match self.role {
            Role::Input => (bytes, 0),
            Role::Output => (0, bytes),
            Role::Table(_) => (0, 0),
        }
    }

    fn table(&self) -> Option<&Table> {
        if let Role::Table(table) = &self.role { Some(table) } else { None }
    }
}

/// What a [`KernelTask`]'s kernel is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct KernelParams {
    /// The number of the chunk's first item in the run: its low and high half.
    pub first: [u32; 2],
    /// How many items the chunk has.
    pub count: u32,
    /// Nothing: it makes the size a multiple of eight.
    pub padding: u32,
}

impl From<Range<u64>> for KernelParams {
    fn from(items: Range<u64>) -> Self {
        let first = [items.start as u32, (items.start >> 32) as u32];
        KernelParams { first, count: (items.end - items.start) as u32, padding: 0 }
    }
}

impl<I: Pod, O: Pod> KernelTask<I, O> {
    /// A task that runs a kernel, which must write the result of every item.
    pub fn new(kernel: &Kernel) -> Self {
        KernelTask::with_params(kernel, |_, items| items.into())
    }
}

impl KernelTask<(), ()> {
    /// A task whose arrays are declared one after another with [`input`](Self::input), [`output`](Self::output) and
    /// [`table`](Self::table). They are the kernel's buffers in this order; the kernel itself declares none. It has one
    /// thread an item, and is told the same as that of [`KernelTask::new`]. [`Pool::map_arrays`](crate::Pool::map_arrays)
    /// runs it.
    ///
    /// A chunk's launch sees the part of each input and output that belongs to the chunk's items: thread `i`, counted from
    /// the chunk's first item, has the elements from `i * width` on. These buffers have room for at least
    /// `count * width` elements. The kernel must write all elements of an output that belong to its items, and finds
    /// nothing of the caller's there: what it leaves unwritten is unspecified.
    pub fn arrays(kernel: &Kernel) -> Self {
        let kernel = kernel.clone().params::<KernelParams>();
        KernelTask::of(&kernel, Vec::new(), None, Arc::new(|_: &DeviceId, items: Range<u64>| items.into()))
    }
}

impl<P: Pod> KernelTask<(), (), P> {
    /// Declares the kernel's next buffer as an input with one element an item.
    pub fn input<T: Pod>(self) -> Self {
        self.input_rows::<T>(1)
    }

    /// Declares the kernel's next buffer as an input with so many elements an item.
    pub fn input_rows<T: Pod>(self, width: usize) -> Self {
        self.declare::<T>(Role::Input, width)
    }

    /// Declares the kernel's next buffer as an output with one element an item. The kernel must write every element; it
    /// does not see what the caller's slice holds, and an element that it leaves unwritten is unspecified.
    pub fn output<T: Pod>(self) -> Self {
        self.output_rows::<T>(1)
    }

    /// Declares the kernel's next buffer as an output with so many elements an item: the results are a matrix with a row
    /// an item, row by row. As with [`output`](Self::output), the kernel must write every element.
    pub fn output_rows<T: Pod>(self, width: usize) -> Self {
        self.declare::<T>(Role::Output, width)
    }

    /// The same with the inputs and outputs of a run, and the number of its items. Says what does not fit.
    ///
    /// # Safety
    /// For as long as a chunk of a run of this task can be [read](super::Chunk::read), the inputs must be there and not change;
    /// and for as long as its results can be kept, the outputs must be there, and nobody else may touch them.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn lend(&self, arrays: Arrays<'_>) -> Result<(Self, usize), String> {
        let (mut inputs, mut outputs) = (arrays.inputs.iter().enumerate(), arrays.outputs.iter().enumerate());
        let (mut lent, mut items) = (Vec::new(), None);
        for Array { role, element, width, .. } in &self.arrays {
            let (what, given) = match role {
                Role::Input => ("input", inputs.next()),
                Role::Output => ("output", outputs.next()),
                Role::Table(_) => {
                    lent.push(None);
                    continue;
                }
            };
            let Some((number, &array)) = given else { return Err(format!("there are too few {what}s")) };
            let name = format!("{what} {number}");
            if array.element != *element {
                return Err(format!(
                    "{name} is declared as {}, given as {}",
                    element.name, array.element.name
                ));
            }
            if *width == 0 || !array.len.is_multiple_of(*width) {
                return Err(format!("{name} has {} elements, which are no rows of {width}", array.len));
            }
            let (count, first) = items.get_or_insert((array.len / width, name.clone()));
            if *count != array.len / width {
                return Err(format!("{first} has {count} items, {name} has {}", array.len / width));
            }
            lent.push(Some(array));
        }
        if inputs.next().is_some() || outputs.next().is_some() {
            return Err("there are more inputs or outputs than are declared".into());
        }
        let Some((count, _)) = items else { return Err("no inputs or outputs are declared".into()) };
        Ok((KernelTask { lent: Some(lent.into()), ..self.clone() }, count))
    }
}

impl<I: Pod, O: Pod, P: Pod> KernelTask<I, O, P> {
    /// A task that runs a kernel with parameters of its own, told which device it is and the numbers of the chunk's
    /// items. How many there are must be among them.
    pub fn with_params(
        kernel: &Kernel,
        params: impl Fn(&DeviceId, Range<u64>) -> P + Send + Sync + 'static,
    ) -> Self {
        let arrays = vec![Array::new::<I>(Role::Input, 1), Array::new::<O>(Role::Output, 1)];
        KernelTask::of(kernel, arrays, Some(Arc::default()), Arc::new(params))
    }

    fn of(
        kernel: &Kernel,
        arrays: Vec<Array>,
        lent: Option<Arc<[Option<LentArray>]>>,
        params: Arc<Params<P>>,
    ) -> Self {
        let (fingerprint, id) = (kernel.fingerprint(), unique());
        KernelTask {
            kernel: Arc::new(kernel.clone()),
            arrays,
            params,
            lent,
            fingerprint,
            id,
            types: PhantomData,
        }
    }

    /// Declares the kernel's next buffer.
    fn declare<T: Pod>(mut self, role: Role, width: usize) -> Self {
        let kernel = (*self.kernel).clone();
        let is_written = matches!(role, Role::Output);
        self.kernel = Arc::new(if is_written { kernel.writes::<T>() } else { kernel.reads::<T>() });
        let array = Array::new::<T>(role, width);
        let (up, down) = array.item_bytes();
        self.fingerprint =
            self.fingerprint.wrapping_mul(31).wrapping_add(up).wrapping_mul(31).wrapping_add(down);
        self.arrays.push(array);
        self.id = unique();
        self
    }

    /// Declares the kernel's next buffer as a table: an array that every item may read all of. It is copied to each device
    /// once, and stays there for as long as the job, or until [`Pool::release`](crate::Pool::release). It may be empty, and
    /// has at most [`max_binding_bytes`](evener_device::Capabilities::max_binding_bytes) of a device: devices where it is
    /// larger refuse it.
    ///
    /// Where there is a table of this name already, the new one takes its place: kernels stay compiled, and the other
    /// tables stay where they are. It must have elements of the same type, or every device refuses it when it runs. The memory
    /// of the old one is free once every worker of the device has seen the new one.
    ///
    /// ```
    /// use evener_device::{Device, Kernel};
    /// use evener_schedule::{KernelParams, KernelTask, Pool};
    ///
    /// let kernel = Kernel::new("look_up").reads::<u32>().writes::<f32>().params::<KernelParams>().rust(|launch| {
    ///     let count = launch.params::<KernelParams>()?.count as usize;
    ///     let (items, results, table) = (launch.read::<u32>(0)?, launch.write(1)?, launch.read::<f32>(2)?);
    ///     for (result, &item) in results[..count].iter_mut().zip(items) {
    ///         *result = table[item as usize];
    ///     }
    ///     Ok(())
    /// });
    /// let task = KernelTask::<u32, f32>::new(&kernel).table("prices", vec![9.5f32, 3.25, 7.0]);
    /// let pool = Pool::new([Device::cpu()])?;
    /// assert_eq!(pool.map(&task, &[2, 0, 2])?.results(), [7.0, 9.5, 7.0]);
    /// let task = task.table("prices", vec![1.0f32, 2.0, 3.0]);
    /// assert_eq!(pool.map(&task, &[2, 0, 2])?.results(), [3.0, 1.0, 3.0]);
    /// # Ok::<(), evener_schedule::RunError>(())
    /// ```
    pub fn table<T: Pod>(mut self, name: &str, data: impl AsRef<[T]> + Send + Sync + 'static) -> Self {
        let role = Role::Table(Table::new(name, data));
        match self.arrays.iter_mut().find(|array| array.table().is_some_and(|it| &*it.name == name)) {
            None => self.declare::<T>(role, 0),
            Some(array) => {
                array.role = role;
                self
            }
        }
    }

    /// The same task with these parameters for the kernel. They begin with [`KernelParams`], which are set for each chunk;
    /// the rest is as given here. What was made on the devices is the same for all parameters of one type.
    ///
    /// ```
    /// use bytemuck::{Pod, Zeroable};
    /// use evener_device::{Device, Kernel};
    /// use evener_schedule::{KernelParams, KernelTask, Pool};
    ///
    /// #[derive(Clone, Copy, Default, Pod, Zeroable)]
    /// #[repr(C)]
    /// struct Scale {
    ///     chunk: KernelParams,
    ///     factor: u32,
    /// }
    ///
    /// let kernel = Kernel::new("scale").reads::<u32>().writes::<u32>().params::<Scale>().rust(|launch| {
    ///     let Scale { chunk, factor } = launch.params()?;
    ///     let (items, results) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
    ///     for (result, item) in results[..chunk.count as usize].iter_mut().zip(items) {
    ///         *result = factor * item;
    ///     }
    ///     Ok(())
    /// });
    /// let task = KernelTask::<u32, u32>::new(&kernel).parameters(Scale::default());
    /// let job = Pool::new([Device::cpu()])?.job(&task);
    /// for factor in 1..4 {
    ///     let run = job.parameters(Scale { factor, ..Scale::default() }).map(&[10, 20])?;
    ///     assert_eq!(run.results(), [10 * factor, 20 * factor]);
    /// }
    /// # Ok::<(), evener_schedule::RunError>(())
    /// ```
    pub fn parameters<Q: Pod + Send + Sync>(&self, parameters: Q) -> KernelTask<I, O, Q> {
        const { assert!(size_of::<Q>() >= size_of::<KernelParams>(), "they begin with KernelParams") };
        let params = move |_: &DeviceId, items: Range<u64>| {
            let (mut all, chunk) = (parameters, KernelParams::from(items));
            bytemuck::bytes_of_mut(&mut all)[..size_of_val(&chunk)]
                .copy_from_slice(bytemuck::bytes_of(&chunk));
            all
        };
        KernelTask {
            kernel: Arc::new((*self.kernel).clone().params::<Q>()),
            arrays: self.arrays.clone(),
            params: Arc::new(params),
            lent: self.lent.clone(),
            fingerprint: self.fingerprint,
            id: self.id,
            types: PhantomData,
        }
    }
}

impl<I, O, P> Clone for KernelTask<I, O, P> {
    fn clone(&self) -> Self {
        let KernelTask { kernel, arrays, params, lent, fingerprint, id, types } = self;
        let (kernel, arrays, params, lent) = (kernel.clone(), arrays.clone(), params.clone(), lent.clone());
        KernelTask { kernel, arrays, params, lent, fingerprint: *fingerprint, id: *id, types: *types }
    }
}

impl<I, O, P> fmt::Debug for KernelTask<I, O, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelTask({})", self.kernel.name())
    }
}
