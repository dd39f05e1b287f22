//! A kernel as a task: with one result per item, or with several inputs and outputs.

mod state;

use std::{fmt, marker::PhantomData, ops::Range, sync::Arc};

use bytemuck::{Pod, Zeroable};
use evener_device::{Argument, Buffer, Device, DeviceId, Kernel, Result};

pub use self::state::KernelState;
use super::{
    arrays::{Arrays, ElementType, LentArray},
    resident::Table,
    unique_id,
};

/// A kernel that reads an array of items and writes an array of as many results, as a task.
///
/// The kernel declares `reads::<I>()`, `writes::<O>()` and [`params::<KernelParams>()`](KernelParams), in this order,
/// and has one thread per item. Its parameters give the number of items, because the last workgroup may reach past them,
/// and the number of the first item.
///
/// The kernel must write the result of every item. A device's buffer of results does not have the caller's contents, and
/// is used again for the next chunk: an element that the kernel does not write, or reads before it writes it, is
/// unspecified, and may be the result of another item.
///
/// Items and results may have a type without bytes, such as `()`: the kernel's buffer is empty then. Types with an alignment
/// of more than 64 bytes are refused.
///
/// Both buffers have at least `count` elements, and threads past them may be launched: a CUDA body ([`Kernel::cuda`])
/// must not use elements past them.
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
/// A task with several inputs or outputs begins with [`arrays`](KernelTask::arrays). Data that every item reads is a
/// [`table`](KernelTask::table), and numbers that change from run to run are [`parameters`](KernelTask::parameters).
pub struct KernelTask<I, O, P = KernelParams> {
    kernel: Arc<Kernel>,
    /// The kernel's buffers, in the order of their declaration.
    arrays: Vec<ArraySpec>,
    params: Arc<MakeParams<P>>,
    /// The caller's inputs and outputs of one run, by the number of the array; missing ones are the run's items and
    /// results. `None` before `lend`, for a task with declared arrays.
    lent: Option<Arc<[Option<LentArray>]>>,
    /// The kernel's fingerprint, with the sizes of the arrays.
    fingerprint: u64,
    /// The same for the task's clones, also with other parameters or tables; different for every other task.
    id: u64,
    types: PhantomData<fn(I) -> O>,
}

/// Makes the kernel's parameters for a range of items on a device.
type MakeParams<P> = dyn Fn(&DeviceId, Range<u64>) -> P + Send + Sync;

/// Allocates a buffer of this many elements. Returns its bytes and the kernel argument.
type Allocate = fn(&Device, usize) -> Result<(Buffer<u8>, Argument)>;

/// The declaration of one of a kernel's buffers.
#[derive(Clone)]
struct ArraySpec {
    role: Role,
    element: ElementType,
    /// Number of elements per item.
    width: usize,
    allocate: Allocate,
}

/// The role of a kernel's buffer.
#[derive(Clone)]
enum Role {
    Input,
    Output,
    Table(Table),
}

impl ArraySpec {
    fn new<T: Pod>(role: Role, width: usize) -> Self {
        let allocate = |device: &Device, elements| {
            let buffer = device.buffer_uninit::<T>(elements)?;
            Ok((buffer.cast()?, buffer.arg()))
        };
        ArraySpec { role, element: ElementType::of::<T>(), width, allocate }
    }

    /// Bytes per item that are copied to the device, and back.
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

/// The parameters of a [`KernelTask`]'s kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct KernelParams {
    /// The number of the chunk's first item in the run: its low and high half.
    pub first: [u32; 2],
    /// Number of items in the chunk.
    pub count: u32,
    /// Unused: makes the size a multiple of eight.
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
    /// thread per item, and the parameters of [`KernelTask::new`]. [`Pool::map_arrays`](crate::Pool::map_arrays) runs it.
    ///
    /// A launch has the chunk's range of each input and output: thread `i`, counted from the chunk's first item, has the
    /// elements from `i * width` on. These buffers have at least `count * width` elements. The kernel must write all
    /// elements of its items in an output, and does not see the caller's: an element that it leaves unwritten is unspecified.
    pub fn arrays(kernel: &Kernel) -> Self {
        let kernel = kernel.clone().params::<KernelParams>();
        KernelTask::of(&kernel, Vec::new(), None, Arc::new(|_: &DeviceId, items: Range<u64>| items.into()))
    }
}

impl<P: Pod> KernelTask<(), (), P> {
    /// Declares the kernel's next buffer as an input with one element per item.
    pub fn input<T: Pod>(self) -> Self {
        self.input_rows::<T>(1)
    }

    /// Declares the kernel's next buffer as an input with `width` elements per item.
    pub fn input_rows<T: Pod>(self, width: usize) -> Self {
        self.declare::<T>(Role::Input, width)
    }

    /// Declares the kernel's next buffer as an output with one element per item. The kernel must write every element. It
    /// does not see the contents of the caller's slice, and an element that it leaves unwritten is unspecified.
    pub fn output<T: Pod>(self) -> Self {
        self.output_rows::<T>(1)
    }

    /// Declares the kernel's next buffer as an output with `width` elements per item: a row-major matrix with one row
    /// per item. As with [`output`](Self::output), the kernel must write every element.
    pub fn output_rows<T: Pod>(self, width: usize) -> Self {
        self.declare::<T>(Role::Output, width)
    }

    /// Returns the task with the inputs and outputs of a run, and the number of items. Fails with a message if they do not
    /// match the declarations.
    ///
    /// # Safety
    /// As long as a chunk of a run of this task can be [read](super::Chunk::read), the inputs must live and not change. As
    /// long as its results can be accepted, the outputs must live, and nothing else may use them.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn lend(&self, arrays: Arrays<'_>) -> Result<(Self, usize), String> {
        let (mut inputs, mut outputs) = (arrays.inputs.iter().enumerate(), arrays.outputs.iter().enumerate());
        let (mut lent, mut items) = (Vec::new(), None);
        for ArraySpec { role, element, width, .. } in &self.arrays {
            let (kind, next) = match role {
                Role::Input => ("input", inputs.next()),
                Role::Output => ("output", outputs.next()),
                Role::Table(_) => {
                    lent.push(None);
                    continue;
                }
            };
            let Some((number, &array)) = next else {
                return Err(format!("fewer {kind}s than declared"));
            };
            let name = format!("{kind} {number}");
            if array.element != *element {
                let (declared, found) = (element.name, array.element.name);
                return Err(format!("{name} has elements of type {found}, declared as {declared}"));
            }
            if *width == 0 || !array.len.is_multiple_of(*width) {
                return Err(format!(
                    "{name} has {} elements, not a multiple of its row of {width}",
                    array.len
                ));
            }
            let (count, first) = items.get_or_insert((array.len / width, name.clone()));
            if *count != array.len / width {
                return Err(format!("{first} has {count} items, but {name} has {}", array.len / width));
            }
            lent.push(Some(array));
        }
        if inputs.next().is_some() || outputs.next().is_some() {
            return Err("more inputs or outputs than declared".into());
        }
        let Some((count, _)) = items else { return Err("the task declares no inputs or outputs".into()) };
        Ok((KernelTask { lent: Some(lent.into()), ..self.clone() }, count))
    }
}

impl<I: Pod, O: Pod, P: Pod> KernelTask<I, O, P> {
    /// A task that runs a kernel with custom parameters, made from the device and the range of the chunk's items. They
    /// must include the number of items.
    pub fn with_params(
        kernel: &Kernel,
        params: impl Fn(&DeviceId, Range<u64>) -> P + Send + Sync + 'static,
    ) -> Self {
        let arrays = vec![ArraySpec::new::<I>(Role::Input, 1), ArraySpec::new::<O>(Role::Output, 1)];
        KernelTask::of(kernel, arrays, Some(Arc::default()), Arc::new(params))
    }

    fn of(
        kernel: &Kernel,
        arrays: Vec<ArraySpec>,
        lent: Option<Arc<[Option<LentArray>]>>,
        params: Arc<MakeParams<P>>,
    ) -> Self {
        let (fingerprint, id) = (kernel.fingerprint(), unique_id());
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
        let array = ArraySpec::new::<T>(role, width);
        let (up, down) = array.item_bytes();
        self.fingerprint =
            self.fingerprint.wrapping_mul(31).wrapping_add(up).wrapping_mul(31).wrapping_add(down);
        self.arrays.push(array);
        self.id = unique_id();
        self
    }

    /// Declares the kernel's next buffer as a table: an array that is the same for every item. It is copied to each device
    /// once, and stays there as long as the job, or until [`Pool::release`](crate::Pool::release). It may be empty. A device
    /// refuses a table larger than its [`max_binding_bytes`](evener_device::Capabilities::max_binding_bytes).
    ///
    /// A table replaces an earlier one of the same name; kernels stay compiled, and the other tables stay on the devices.
    /// Its elements must have the same type, or every device refuses the run. The old table's memory is freed once every
    /// worker of the device has used the new one.
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

    /// Returns the task with other kernel parameters. They begin with [`KernelParams`], which are set for each chunk; the
    /// rest is copied. Tasks that differ in their parameters only share compiled kernels and buffers.
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
        const { assert!(size_of::<Q>() >= size_of::<KernelParams>(), "parameters begin with KernelParams") };
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
