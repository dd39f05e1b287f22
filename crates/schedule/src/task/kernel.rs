//! A kernel as a task: with one result an item, or with several inputs and outputs.

use std::{
    fmt,
    marker::PhantomData,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use bytemuck::{Pod, Zeroable};
use evener_device::{
    Api, Argument, Bound, Buffer, Device, DeviceId, Direction, Error, Features, HostBuffer, Kernel, Kind,
    Program, Result, StagingBuffer, Stream, Timestamp, copy_parallel,
};

use super::{
    Chunk, Resident, Results, Task,
    arrays::{Arrays, Element, LentArrays},
    resident::{Table, Tables},
    unique,
};
use crate::executor::task_error;

/// A kernel that reads an array of items and writes an array of as many results, as a task.
///
/// The kernel declares `reads::<I>()`, `writes::<O>()` and [`params::<KernelParams>()`](KernelParams), in this order,
/// and has one thread an item. It is told how many items there are, since the last workgroup may reach past them, and
/// which item is the first.
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
    /// The inputs and outputs of one run.
    lent: Option<Arc<LentArrays>>,
    /// The kernel's, with the sizes of the arrays.
    fingerprint: u64,
    /// What tells it and its clones from all others in this program. With other parameters or tables it is the same.
    id: u64,
    types: PhantomData<fn(I) -> O>,
}

/// What a kernel is told on a device about items with these numbers.
type Params<P> = dyn Fn(&DeviceId, Range<u64>) -> P + Send + Sync;

/// One of a kernel's buffers.
#[derive(Clone)]
struct Array {
    role: Role,
    element: Element,
    /// How many elements an item has.
    width: usize,
    allocate: fn(&Device, usize) -> Result<(Buffer<u8>, Argument)>,
}

/// What a kernel's buffer is. Inputs and outputs have a number each.
#[derive(Clone)]
enum Role {
    Items,
    Results,
    Input(usize),
    Output(usize),
    Table(Table),
}

impl Array {
    fn new<T: Pod>(role: Role, width: usize) -> Self {
        let allocate = |device: &Device, elements| {
            let buffer = device.buffer_any::<T>(elements)?;
            Ok((buffer.cast()?, buffer.arg()))
        };
        Array { role, element: Element::of::<T>(), width, allocate }
    }

    /// The bytes of an item that go to the device, and that come back.
    fn item_bytes(&self) -> (u64, u64) {
        let bytes = (self.width as u64).saturating_mul(self.element.bytes as u64);
        match self.role {
            Role::Items | Role::Input(_) => (bytes, 0),
            Role::Results | Role::Output(_) => (0, bytes),
            Role::Table(_) => (0, 0),
        }
    }

    fn table(&self) -> Option<&Table> {
        if let Role::Table(table) = &self.role { Some(table) } else { None }
    }
}

/// The most host memory that a chunk's items or results are staged in. Pinning memory takes long, and chunks of this size
/// are long enough to hide what a launch costs.
const STAGING_BYTES: u64 = 16 << 20;

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
    /// A task that runs a kernel.
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
    /// `count * width` elements.
    pub fn arrays(kernel: &Kernel) -> Self {
        let kernel = kernel.clone().params::<KernelParams>();
        KernelTask::of(&kernel, Vec::new(), Arc::new(|_: &DeviceId, items: Range<u64>| items.into()))
    }
}

impl<P: Pod> KernelTask<(), (), P> {
    /// Declares the kernel's next buffer as an input with one element an item.
    pub fn input<T: Pod>(self) -> Self {
        self.input_rows::<T>(1)
    }

    /// Declares the kernel's next buffer as an input with so many elements an item.
    pub fn input_rows<T: Pod>(self, width: usize) -> Self {
        let number = self.arrays.iter().filter(|array| matches!(array.role, Role::Input(_))).count();
        self.declare::<T>(Role::Input(number), width)
    }

    /// Declares the kernel's next buffer as an output with one element an item.
    pub fn output<T: Pod>(self) -> Self {
        self.output_rows::<T>(1)
    }

    /// Declares the kernel's next buffer as an output with so many elements an item: the results are a matrix with a row
    /// an item, row by row.
    pub fn output_rows<T: Pod>(self, width: usize) -> Self {
        let number = self.arrays.iter().filter(|array| matches!(array.role, Role::Output(_))).count();
        self.declare::<T>(Role::Output(number), width)
    }

    /// The same with the inputs and outputs of a run, and the number of its items. Says what does not fit.
    ///
    /// # Safety
    /// For as long as a chunk of a run of this task can be [read](Chunk::read), the inputs must be there and not change;
    /// and for as long as its results can be kept, the outputs must be there, and nobody else may touch them.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn lend(&self, arrays: Arrays<'_>) -> Result<(Self, usize), String> {
        let inputs = arrays.inputs.iter().map(|it| (it.element, it.len)).collect::<Vec<_>>();
        let outputs = arrays.outputs.iter().map(|it| (it.element, it.len)).collect::<Vec<_>>();
        let (mut count, mut declared) = (None, (0, 0));
        for array in &self.arrays {
            let (name, given) = match array.role {
                Role::Input(number) => {
                    declared.0 += 1;
                    (format!("input {number}"), inputs.get(number))
                }
                Role::Output(number) => {
                    declared.1 += 1;
                    (format!("output {number}"), outputs.get(number))
                }
                _ => continue,
            };
            let Some(&(element, len)) = given else { return Err(format!("{name} is missing")) };
            let width = array.width;
            if element != array.element {
                return Err(format!(
                    "{name} is declared as {}, given as {}",
                    array.element.name, element.name
                ));
            }
            if width == 0 || !len.is_multiple_of(width) {
                return Err(format!("{name} has {len} elements, which are no rows of {width}"));
            }
            match count.get_or_insert((len / width, name.clone())) {
                (first, _) if *first == len / width => {}
                (first, of) => return Err(format!("{of} has {first} items, {name} has {}", len / width)),
            }
        }
        if (inputs.len(), outputs.len()) != declared {
            let given = format!("{} inputs and {} outputs", inputs.len(), outputs.len());
            return Err(format!("{given}, where {} and {} are declared", declared.0, declared.1));
        }
        let Some((count, _)) = count else { return Err("no inputs or outputs are declared".into()) };
        Ok((KernelTask { lent: Some(Arc::new(arrays.lend())), ..self.clone() }, count))
    }
}

impl<I: Pod, O: Pod, P: Pod> KernelTask<I, O, P> {
    /// A task that runs a kernel with parameters of its own, told which device it is and the numbers of the chunk's
    /// items. How many there are must be among them.
    pub fn with_params(
        kernel: &Kernel,
        params: impl Fn(&DeviceId, Range<u64>) -> P + Send + Sync + 'static,
    ) -> Self {
        let arrays = vec![Array::new::<I>(Role::Items, 1), Array::new::<O>(Role::Results, 1)];
        KernelTask::of(kernel, arrays, Arc::new(params))
    }

    fn of(kernel: &Kernel, arrays: Vec<Array>, params: Arc<Params<P>>) -> Self {
        let (fingerprint, id) = (kernel.fingerprint(), unique());
        KernelTask {
            kernel: Arc::new(kernel.clone()),
            arrays,
            params,
            lent: None,
            fingerprint,
            id,
            types: PhantomData,
        }
    }

    /// Declares the kernel's next buffer.
    fn declare<T: Pod>(mut self, role: Role, width: usize) -> Self {
        let kernel = (*self.kernel).clone();
        let is_written = matches!(role, Role::Output(_));
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
    /// once, and stays there for as long as the job, or until [`Pool::release`](crate::Pool::release).
    ///
    /// Where there is a table of this name already, the new one takes its place: kernels stay compiled, and the other
    /// tables stay where they are. The memory of the old one is free once every worker of the device has seen the new one.
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

    /// Looks at the bytes of the chunk's items in one of the arrays, of so many bytes an item.
    #[allow(unsafe_code)]
    fn read<R>(
        &self,
        role: &Role,
        chunk: &Chunk<'_, I>,
        item_bytes: usize,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let range = chunk.range().start as usize * item_bytes..chunk.range().end as usize * item_bytes;
        chunk.read(|items| match (role, &self.lent) {
            // SAFETY: the chunk can be read, so the inputs are there, as the caller of `lend` has promised.
            (Role::Input(number), Some(lent)) => look(unsafe { lent.input(*number, range) }),
            _ => look(bytemuck::cast_slice(items)),
        })
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

/// One hand on a device: its stream, and memory on both sides for the largest chunk so far.
#[derive(Debug)]
pub struct KernelState<I, O> {
    device: Device,
    program: Program,
    stream: Stream,
    tables: Arc<Tables>,
    room: Option<Room>,
    /// Whether the device tells when its uploads began and ended, and its downloads.
    times_uploads: bool,
    times_downloads: bool,
    /// Copies are of a multiple of so many bytes.
    alignment: usize,
    most_items: u64,
    /// Whether others use the same card.
    shares_card: bool,
    /// How many items the last kernel had, and how long it took.
    last: Option<(usize, Duration)>,
    types: PhantomData<fn(I) -> O>,
}

/// A download that waits for its kernel holds up those of a card's other partitions, on the engine that they share. So
/// behind a kernel that takes longer than this, it is queued only once the kernel has ended.
const LONG: Duration = Duration::from_micros(500);

/// Memory for so many items, and the tables that it is bound with.
#[derive(Debug)]
struct Room {
    items: usize,
    columns: Vec<Column>,
    tables: Vec<u64>,
    bound: Bound,
}

/// The memory of an array that has elements for each item.
#[derive(Debug)]
struct Column {
    /// Which of the task's arrays it is.
    array: usize,
    item_bytes: usize,
    buffer: Buffer<u8>,
    argument: Argument,
    /// Where elements go through on their way to the device, or come to from there.
    up: Option<StagingBuffer<u8>>,
    down: Option<HostBuffer<u8>>,
}

impl<I, O> KernelState<I, O> {
    /// Memory for so many items: what there is, or more.
    fn room(&mut self, arrays: &[Array], items: usize) -> Result<Room> {
        let tables: Vec<u64> = arrays.iter().filter_map(Array::table).map(|table| table.id).collect();
        let (items, columns) = match self.room.take().filter(|room| room.items >= items) {
            Some(room) if room.tables == tables => return Ok(room),
            Some(room) => (room.items, room.columns),
            None => {
                // A little more than asked for: sizes grow, and each growth is an allocation.
                let items =
                    items.next_power_of_two().max(256.min(self.most_items as usize)).max(self.alignment);
                let columns = arrays.iter().enumerate().filter(|(_, array)| array.table().is_none());
                (
                    items,
                    columns.map(|(index, array)| self.column(index, array, items)).collect::<Result<_>>()?,
                )
            }
        };
        let mut own = columns.iter().map(|column| column.argument.clone());
        let argument = |array: &Array| match array.table() {
            Some(table) => Some(self.tables.get(&self.device, table)),
            None => own.next().map(Ok),
        };
        let arguments = arrays.iter().filter_map(argument).collect::<Result<Vec<_>>>()?;
        let bound = self.program.bind(&arguments)?;
        Ok(Room { items, columns, tables, bound })
    }

    fn column(&self, index: usize, array: &Array, items: usize) -> Result<Column> {
        let (buffer, argument) = (array.allocate)(&self.device, items.saturating_mul(array.width))?;
        let (mut up, mut down) = (None, None);
        match array.role {
            Role::Items | Role::Input(_) => up = Some(self.device.staging_buffer(buffer.len())?),
            _ => down = Some(self.device.host_buffer(buffer.len(), Direction::Download)?),
        }
        Ok(Column { array: index, item_bytes: array.width * array.element.bytes, buffer, argument, up, down })
    }

    /// So many bytes that copies begin and end where the device wants them to.
    fn padded(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.alignment)
    }

    /// Whether a kernel over so many items may take long: no kernel of this state has shown that it will not.
    fn may_take_long(&self, items: usize) -> bool {
        self.last
            .is_none_or(|(count, took)| took.mul_f64((items as f64 / count.max(1) as f64).max(1.0)) > LONG)
    }

    fn timestamp(&mut self, is_wanted: bool) -> Result<Option<Timestamp>> {
        is_wanted.then(|| self.stream.timestamp()).transpose()
    }
}

impl<I: Pod + Send + Sync, O: Pod + Send + Sync, P: Pod> Task for KernelTask<I, O, P> {
    type Input = I;
    type Output = O;
    type State = KernelState<I, O>;

    fn name(&self) -> &str {
        self.kernel.name()
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn state_id(&self) -> Option<u64> {
        Some(self.id)
    }

    fn can_use(&self, device: &Device) -> bool {
        self.kernel.has_body_for(device.describe().api)
    }

    fn prepare(&self, device: &Device) -> Result<KernelState<I, O>> {
        self.prepare_with(device, &Resident::default())
    }

    fn prepare_with(&self, device: &Device, resident: &Resident) -> Result<KernelState<I, O>> {
        let has = device.capabilities()?;
        let timestamps = device.describe().kind != Kind::Cpu && has.features.contains(Features::TIMESTAMPS);
        let item_bytes = self.arrays.iter().map(Array::item_bytes);
        let (up, down) =
            item_bytes.fold((0u64, 0u64), |all, it| (all.0.saturating_add(it.0), all.1.saturating_add(it.1)));
        let by_size =
            has.max_binding_bytes.min(has.max_buffer_bytes).min(STAGING_BYTES) / up.max(down).max(1);
        let by_threads = u64::from(has.max_groups[0]).saturating_mul(self.kernel.workgroup_threads());
        // Room is made in powers of two.
        let most = by_size.min(by_threads).min(u64::from(u32::MAX)).max(1);
        let program = device.compile(&self.kernel)?;
        let tables = resident.get_or_make(|| Ok(Tables::default()))?;
        for table in self.arrays.iter().filter_map(Array::table) {
            tables.get(device, table)?;
        }
        Ok(KernelState {
            program,
            stream: device.stream()?,
            tables,
            device: device.clone(),
            room: None,
            times_uploads: timestamps,
            // Elsewhere the reading behind a download waits in the device's one queue for the other chunk's kernel, and
            // the chunk with it: the device would idle between kernels.
            times_downloads: timestamps && device.describe().api == Api::Cuda,
            alignment: has.copy_alignment.max(1) as usize,
            most_items: 1 << most.ilog2(),
            shares_card: device.describe().part_of.is_some() && device.describe().kind != Kind::Cpu,
            last: None,
            types: PhantomData,
        })
    }

    fn most_items(&self, state: &KernelState<I, O>) -> u64 {
        state.most_items
    }

    fn run<'s>(
        &self,
        state: &'s mut KernelState<I, O>,
        chunk: &Chunk<'_, I>,
        results: &mut Results<'s, O>,
    ) -> Result<()> {
        if self.lent.is_none()
            && self.arrays.iter().any(|it| matches!(it.role, Role::Input(_) | Role::Output(_)))
        {
            let message = "it has arrays of its own: run it with `map_arrays`".to_owned();
            return Err(task_error(state.device.id(), format!("task `{}`", self.name()), message));
        }
        let count = chunk.len();
        let mut room = state.room(&self.arrays, count)?;
        let (start, timed, mut before) = (Instant::now(), state.times_uploads, None);
        let (mut ups, mut is_first) = (Vec::with_capacity(room.columns.len()), true);
        for column in &mut room.columns {
            let Some(up) = column.up.take() else { continue };
            let (role, bytes) = (&self.arrays[column.array].role, count * column.item_bytes);
            let padded = state.padded(bytes);
            let upload = state.stream.upload_staged(up, padded, &column.buffer, |stream, part, memory| {
                // The items are lent for the moment of a piece, and never while a device is waited for. What pads the
                // last piece is whatever is there.
                let part = part.start..part.end.min(bytes);
                let copy = |all: &[u8]| copy_parallel(&all[part.clone()], &mut memory[..part.len()]);
                self.read(role, chunk, column.item_bytes, copy)?;
                if std::mem::take(&mut is_first) {
                    chunk.spent_copying(Direction::Upload, start.elapsed());
                    before = timed.then(|| stream.timestamp()).transpose()?;
                }
                Ok(())
            })?;
            ups.push(upload);
        }
        let uploaded = state.timestamp(before.is_some())?;
        let params = (self.params)(state.device.id(), chunk.range());
        // It fits: `most_items` saw to it.
        let groups = self.kernel.groups_for(count as u64) as u32;
        let launched = Instant::now();
        state.stream.launch(&room.bound, groups, &params)?;
        if state.shares_card && state.may_take_long(count) {
            state.stream.wait()?;
        }
        let computed = state.timestamp(state.times_downloads)?;
        let mut downs = Vec::with_capacity(room.columns.len());
        for column in &mut room.columns {
            let Some(down) = column.down.take() else { continue };
            let part = column.buffer.slice(..state.padded(count * column.item_bytes))?;
            downs.push(state.stream.download_host(&part, down)?);
        }
        let after = state.timestamp(state.times_downloads)?;
        let (mut ups, mut downs) = (ups.into_iter(), downs.into_iter());
        // The last download ends last.
        for column in &mut room.columns {
            match self.arrays[column.array].role {
                Role::Items | Role::Input(_) => column.up = ups.next().map(|up| up.wait()).transpose()?,
                _ => column.down = downs.next().map(|down| down.wait()).transpose()?,
            }
        }
        state.last = Some((count, launched.elapsed()));
        if after.is_some() {
            // The last reading comes after the download, which is all that has been waited for.
            state.stream.wait()?;
        }
        for (direction, begin, end) in
            [(Direction::Upload, before, uploaded), (Direction::Download, computed, after)]
        {
            // The results are there: a reading that is not costs the report a figure, never the run a device.
            if let (Some(begin), Some(end)) = (begin, end)
                && let Ok(time) = end.since(&begin)
            {
                chunk.spent_copying(direction, time);
            }
        }
        self.give(&state.device, state.room.insert(room), chunk, results)
    }
}

impl<I: Pod, O: Pod, P: Pod> KernelTask<I, O, P> {
    /// Gives the results that a device has copied to the host: lends those of the items, and says how the outputs are
    /// written where they are accepted.
    #[allow(unsafe_code)]
    fn give<'s>(
        &self,
        device: &Device,
        room: &'s Room,
        chunk: &Chunk<'_, I>,
        results: &mut Results<'s, O>,
    ) -> Result<()> {
        let (mut outputs, mut is_lent) = (Vec::new(), false);
        for column in &room.columns {
            let Some(down) = &column.down else { continue };
            let bytes = &down.as_slice()[..chunk.len() * column.item_bytes];
            match self.arrays[column.array].role {
                Role::Output(number) => outputs.push((number, column.item_bytes, bytes)),
                _ => {
                    results.lend(bytemuck::try_cast_slice(bytes).map_err(|why| Error::Unsupported {
                        device: device.id().clone(),
                        operation: "reading results".into(),
                        detail: format!("{} in host memory: {why}", std::any::type_name::<O>()),
                    })?);
                    is_lent = true;
                }
            }
        }
        if !is_lent {
            results.extend(std::iter::repeat_n(O::zeroed(), chunk.len()));
        }
        if let Some(lent) = self.lent.clone() {
            let first = chunk.range().start as usize;
            results.when_kept(move |part| {
                for (number, item_bytes, bytes) in &outputs {
                    let bytes = &bytes[part.start * item_bytes..part.end * item_bytes];
                    // SAFETY: the results are kept, so the outputs are there, as the caller of `lend` has promised; and
                    // those of an item are kept once.
                    unsafe { lent.write(*number, (first + part.start) * item_bytes, bytes) };
                }
            });
        }
        Ok(())
    }
}
