//! A kernel with one result an item, as a task.

use std::{
    fmt,
    marker::PhantomData,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytemuck::{Pod, Zeroable};
use evener_device::{
    Api, Bound, Buffer, Device, DeviceId, Direction, Features, HostBuffer, Kernel, Kind, Program, Result,
    StagingBuffer, Stream, Timestamp, copy_parallel,
};

use super::{Chunk, Results, Task};

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
pub struct KernelTask<I, O, P = KernelParams> {
    kernel: Arc<Kernel>,
    params: Arc<Params<P>>,
    /// The kernel's.
    fingerprint: u64,
    /// What tells it and its clones from all others in this program.
    id: u64,
    types: PhantomData<fn(I) -> O>,
}

/// What a kernel is told on a device about items with these numbers.
type Params<P> = dyn Fn(&DeviceId, Range<u64>) -> P + Send + Sync;

/// The most host memory that a chunk's items or results are staged in. Pinning memory takes long, and chunks of this size
/// are long enough to hide what a launch costs.
const STAGING_BYTES: u64 = 16 << 20;

/// What a [`KernelTask`]'s kernel is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct KernelParams {
    /// The number of the chunk's first item in the run: its low and high half.
    pub first: [u32; 2],
    /// How many items the chunk has.
    pub count: u32,
    /// Nothing: it makes the size a multiple of eight.
    pub padding: u32,
}

impl<I: Pod, O: Pod> KernelTask<I, O> {
    /// A task that runs a kernel.
    pub fn new(kernel: &Kernel) -> Self {
        KernelTask::with_params(kernel, |_, items| KernelParams {
            first: [items.start as u32, (items.start >> 32) as u32],
            count: (items.end - items.start) as u32,
            padding: 0,
        })
    }
}

impl<I: Pod, O: Pod, P: Pod> KernelTask<I, O, P> {
    /// A task that runs a kernel with parameters of its own, told which device it is and the numbers of the chunk's
    /// items. How many there are must be among them.
    pub fn with_params(
        kernel: &Kernel,
        params: impl Fn(&DeviceId, Range<u64>) -> P + Send + Sync + 'static,
    ) -> Self {
        static TASKS: AtomicU64 = AtomicU64::new(0);
        let (kernel, params) = (Arc::new(kernel.clone()), Arc::new(params));
        let (fingerprint, id) = (kernel.fingerprint(), TASKS.fetch_add(1, Relaxed));
        KernelTask { kernel, params, fingerprint, id, types: PhantomData }
    }
}

impl<I, O, P> Clone for KernelTask<I, O, P> {
    fn clone(&self) -> Self {
        let (kernel, params) = (self.kernel.clone(), self.params.clone());
        KernelTask { kernel, params, fingerprint: self.fingerprint, id: self.id, types: PhantomData }
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
    room: Option<Room<I, O>>,
    /// Whether the device tells when its uploads began and ended, and its downloads.
    times_uploads: bool,
    times_downloads: bool,
    /// Copies are of a multiple of so many elements.
    alignment: usize,
    most_items: u64,
    /// Whether others use the same card.
    shares_card: bool,
    /// How many items the last kernel had, and how long it took.
    last: Option<(usize, Duration)>,
}

/// A download that waits for its kernel holds up those of a card's other partitions, on the engine that they share. So
/// behind a kernel that takes longer than this, it is queued only once the kernel has ended.
const LONG: Duration = Duration::from_micros(500);

#[derive(Debug)]
struct Room<I, O> {
    items: usize,
    input: Buffer<I>,
    output: Buffer<O>,
    up: StagingBuffer<I>,
    down: HostBuffer<O>,
    bound: Bound,
}

impl<I: Pod, O: Pod> KernelState<I, O> {
    /// Memory for so many items: what there is, or more.
    fn room(&mut self, items: usize) -> Result<Room<I, O>> {
        if let Some(room) = self.room.take().filter(|room| room.items >= items) {
            return Ok(room);
        }
        // A little more than asked for: sizes grow, and each growth is an allocation.
        let items = items.next_power_of_two().max(256.min(self.most_items as usize)).max(self.padded(1));
        let (input, output) = (self.device.buffer_any(items)?, self.device.buffer_any(items)?);
        let bound = self.program.bind(&[Buffer::arg(&input), Buffer::arg(&output)])?;
        let up = self.device.staging_buffer(items)?;
        let down = self.device.host_buffer(items, Direction::Download)?;
        Ok(Room { items, input, output, up, down, bound })
    }

    /// So many elements that copies begin and end where the device wants them to.
    fn padded(&self, items: usize) -> usize {
        items.next_multiple_of(self.alignment)
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
        let has = device.capabilities()?;
        let timestamps = device.describe().kind != Kind::Cpu && has.features.contains(Features::TIMESTAMPS);
        let by_size = has.max_binding_bytes.min(has.max_buffer_bytes).min(STAGING_BYTES)
            / size_of::<I>().max(size_of::<O>()).max(1) as u64;
        let by_threads = u64::from(has.max_groups[0]).saturating_mul(self.kernel.workgroup_threads());
        // Room is made in powers of two.
        let most = by_size.min(by_threads).min(u64::from(u32::MAX)).max(1);
        Ok(KernelState {
            program: device.compile(&self.kernel)?,
            stream: device.stream()?,
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
        let count = chunk.len();
        let mut room = state.room(count)?;
        let padded = state.padded(count);
        let (start, timed, mut before) = (Instant::now(), state.times_uploads, None);
        let up = state.stream.upload_staged(room.up, padded, &room.input, |stream, part, memory| {
            // The items are lent for the moment of a piece, and never while a device is waited for. What pads the last
            // piece is whatever is there.
            let items = part.start..part.end.min(count);
            chunk.read(|all| copy_parallel(&all[items.clone()], &mut memory[..items.len()]))?;
            if part.start == 0 {
                chunk.spent_copying(Direction::Upload, start.elapsed());
                before = timed.then(|| stream.timestamp()).transpose()?;
            }
            Ok(())
        })?;
        let uploaded = state.timestamp(state.times_uploads)?;
        let params = (self.params)(state.device.id(), chunk.range());
        // It fits: `most_items` saw to it.
        let groups = self.kernel.groups_for(count as u64) as u32;
        let launched = Instant::now();
        state.stream.launch(&room.bound, groups, &params)?;
        if state.shares_card && state.may_take_long(count) {
            state.stream.wait()?;
        }
        let computed = state.timestamp(state.times_downloads)?;
        let part = room.output.slice(..padded)?;
        let down = state.stream.download_host(&part, room.down)?;
        let after = state.timestamp(state.times_downloads)?;
        room.down = down.wait()?;
        room.up = up.wait()?;
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
        results.lend(&state.room.insert(room).down.as_slice()[..count]);
        Ok(())
    }
}
