//! Runs a kernel's chunks: uploads, a launch, downloads.

use std::{
    marker::PhantomData,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use bytemuck::Pod;
use evener_device::{
    Api, Argument, BoundKernel, Buffer, Device, DeviceKind, Direction, Error, Features, HostBuffer, Program,
    Result, StagingBuffer, Stream, Timestamp, copy_parallel,
};

use super::{ArraySpec, KernelTask, Role};
use crate::task::{Chunk, Resident, Results, Task, arrays::LentArray, resident::Tables, task_error};

/// Maximum host memory for staging a chunk's items or results. Pinning memory takes long, and chunks of this size are long
/// enough to hide the cost of a launch.
const STAGING_BYTES: u64 = 16 << 20;

/// The state of one worker: its stream, and buffers on host and device for the largest chunk so far.
#[derive(Debug)]
pub struct KernelState<I, O> {
    device: Device,
    program: Program,
    stream: Stream,
    tables: Arc<Tables>,
    buffers: Option<ChunkBuffers>,
    /// Whether the device has timestamps for uploads, and for downloads.
    times_uploads: bool,
    times_downloads: bool,
    /// Copies have a multiple of this many bytes.
    alignment: usize,
    max_items: u64,
    /// Whether the device is a partition of a card.
    shares_card: bool,
    /// Number of items of the last kernel, and how long it took.
    last: Option<(usize, Duration)>,
    types: PhantomData<fn(I) -> O>,
}

/// The partitions of a card share a copy engine, and a download that waits for its kernel blocks the other partitions'.
/// So a download behind a kernel that takes longer than this is queued only once the kernel has ended.
const LONG_KERNEL: Duration = Duration::from_micros(500);

/// Buffers for chunks of up to `items` items, bound to the kernel with its tables.
#[derive(Debug)]
struct ChunkBuffers {
    items: usize,
    array_buffers: Vec<ArrayBuffer>,
    tables: Vec<u64>,
    bound: BoundKernel,
}

/// The memory of one input or output.
#[derive(Debug)]
struct ArrayBuffer {
    /// The number of the task's array.
    array: usize,
    item_bytes: usize,
    buffer: Buffer<u8>,
    argument: Argument,
    /// Host memory of an input on its way to the device, or of an output on its way back.
    up: Option<StagingBuffer<u8>>,
    down: Option<HostBuffer<u8>>,
}

impl<I, O> KernelState<I, O> {
    /// Returns buffers for at least `items` items: the present ones, or larger ones.
    fn buffers(&mut self, specs: &[ArraySpec], items: usize) -> Result<ChunkBuffers> {
        let tables: Vec<u64> = specs.iter().filter_map(ArraySpec::table).map(|table| table.id).collect();
        let (items, array_buffers) = match self.buffers.take().filter(|buffers| buffers.items >= items) {
            Some(buffers) if buffers.tables == tables => return Ok(buffers),
            Some(buffers) => (buffers.items, buffers.array_buffers),
            None => {
                // Rounded up: chunks grow, and each growth is an allocation.
                let items = items.next_power_of_two().max(256.min(self.max_items as usize));
                let specs = specs.iter().enumerate().filter(|(_, spec)| spec.table().is_none());
                let array_buffers = specs.map(|(index, spec)| self.allocate(index, spec, items));
                (items, array_buffers.collect::<Result<_>>()?)
            }
        };
        let mut own = array_buffers.iter().map(|array| array.argument.clone());
        let argument = |spec: &ArraySpec| match spec.table() {
            Some(table) => Some(self.tables.get(&self.device, table)),
            None => own.next().map(Ok),
        };
        let arguments = specs.iter().filter_map(argument).collect::<Result<Vec<_>>>()?;
        let bound = self.program.bind(&arguments)?;
        Ok(ChunkBuffers { items, array_buffers, tables, bound })
    }

    fn allocate(&self, index: usize, spec: &ArraySpec, items: usize) -> Result<ArrayBuffer> {
        // Copies need not end where the last item does.
        let elements = (items * spec.width).next_multiple_of(self.alignment);
        let (buffer, argument) = (spec.allocate)(&self.device, elements)?;
        let (mut up, mut down) = (None, None);
        match spec.role {
            Role::Input => up = Some(self.device.staging_buffer(buffer.len())?),
            _ => down = Some(self.device.host_buffer(buffer.len(), Direction::Download)?),
        }
        Ok(ArrayBuffer {
            array: index,
            item_bytes: spec.width * spec.element.bytes,
            buffer,
            argument,
            up,
            down,
        })
    }

    /// Rounds a number of bytes up to the device's copy alignment.
    fn padded(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.alignment)
    }

    /// Whether a kernel over this many items may take longer than `LONG_KERNEL`, by the last kernel.
    fn may_take_long(&self, items: usize) -> bool {
        self.last.is_none_or(|(count, took)| {
            took.mul_f64((items as f64 / count.max(1) as f64).max(1.0)) > LONG_KERNEL
        })
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
        let timestamps =
            device.describe().kind != DeviceKind::Cpu && has.features.contains(Features::TIMESTAMPS);
        let (up, down): (Vec<u64>, Vec<u64>) = self.arrays.iter().map(ArraySpec::item_bytes).unzip();
        let item_bytes = up.iter().sum::<u64>().max(down.iter().sum());
        let max_bytes = has.max_binding_bytes.min(has.max_buffer_bytes).min(STAGING_BYTES);
        let by_size = max_bytes / item_bytes.max(1);
        let by_threads = u64::from(has.max_groups[0]).saturating_mul(self.kernel.workgroup_threads());
        // Buffers have powers of two as sizes.
        let most = by_size.min(by_threads).min(u64::from(u32::MAX)).max(1);
        let program = device.compile(&self.kernel)?;
        let tables = resident.get_or_make(|| Ok(Tables::default()))?;
        for table in self.arrays.iter().filter_map(ArraySpec::table) {
            tables.get(device, table)?;
        }
        Ok(KernelState {
            program,
            stream: device.stream()?,
            tables,
            device: device.clone(),
            buffers: None,
            times_uploads: timestamps,
            // With other APIs, the timestamp behind a download waits in the device's only queue for the other chunk's
            // kernel, and the device would idle between kernels.
            times_downloads: timestamps && device.describe().api == Api::Cuda,
            alignment: has.copy_alignment.max(1) as usize,
            max_items: 1 << most.ilog2(),
            shares_card: device.describe().part_of.is_some() && device.describe().kind != DeviceKind::Cpu,
            last: None,
            types: PhantomData,
        })
    }

    fn max_items(&self, state: &KernelState<I, O>) -> u64 {
        state.max_items
    }

    fn run<'s>(
        &self,
        state: &'s mut KernelState<I, O>,
        chunk: &Chunk<'_, I>,
        results: &mut Results<'s, O>,
    ) -> Result<()> {
        if self.lent.is_none() {
            let message = "the task declares inputs and outputs: run it with `map_arrays`".to_owned();
            return Err(task_error(state.device.id(), format!("running task `{}`", self.name()), message));
        }
        let count = chunk.len();
        let mut buffers = state.buffers(&self.arrays, count)?;
        let (start, timed, mut before) = (Instant::now(), state.times_uploads, None);
        let (mut uploads, mut is_first) = (Vec::with_capacity(buffers.array_buffers.len()), true);
        for array in &mut buffers.array_buffers {
            let Some(up) = array.up.take() else { continue };
            let (bytes, array) = (count * array.item_bytes, &*array);
            let padded = state.padded(bytes);
            let upload = state.stream.upload_staged(up, padded, &array.buffer, |stream, part, memory| {
                // The items are borrowed while one staging buffer is filled, never while the host waits for a device.
                // The padding of the last one is old data.
                let part = part.start..part.end.min(bytes);
                self.copy(array, chunk, part.clone(), &mut memory[..part.len()])?;
                if std::mem::take(&mut is_first) {
                    chunk.add_copy_time(Direction::Upload, start.elapsed());
                    before = timed.then(|| stream.timestamp()).transpose()?;
                }
                Ok(())
            })?;
            uploads.push(upload);
        }
        let uploaded = state.timestamp(before.is_some())?;
        let params = (self.params)(state.device.id(), chunk.range());
        // `max_items` keeps the number within `u32`.
        let groups = self.kernel.groups_for(count as u64) as u32;
        let launched = Instant::now();
        state.stream.launch(&buffers.bound, groups, &params)?;
        if state.shares_card && state.may_take_long(count) {
            state.stream.wait()?;
        }
        let computed = state.timestamp(state.times_downloads)?;
        let mut downloads = Vec::with_capacity(buffers.array_buffers.len());
        for array in &mut buffers.array_buffers {
            let Some(down) = array.down.take() else { continue };
            let part = array.buffer.slice(..state.padded(count * array.item_bytes))?;
            downloads.push(state.stream.download_host(&part, down)?);
        }
        let after = state.timestamp(state.times_downloads)?;
        let (mut uploads, mut downloads) = (uploads.into_iter(), downloads.into_iter());
        // The last download ends last: once the host has waited for it, all others have ended.
        for array in buffers.array_buffers.iter_mut().rev() {
            if !matches!(self.arrays[array.array].role, Role::Input) {
                array.down = downloads.next_back().map(|down| down.wait()).transpose()?;
            }
        }
        for array in buffers.array_buffers.iter_mut().rev() {
            if matches!(self.arrays[array.array].role, Role::Input) {
                array.up = uploads.next_back().map(|up| up.wait()).transpose()?;
            }
        }
        state.last = Some((count, launched.elapsed()));
        if after.is_some() {
            // The last timestamp is behind the download, and so far the host has waited for the download only.
            state.stream.wait()?;
        }
        for (direction, begin, end) in
            [(Direction::Upload, before, uploaded), (Direction::Download, computed, after)]
        {
            // A missing timestamp costs the report a figure; the results are complete.
            if let (Some(begin), Some(end)) = (begin, end)
                && let Ok(time) = end.since(&begin)
            {
                chunk.add_copy_time(direction, time);
            }
        }
        self.deliver(&state.device, state.buffers.insert(buffers), chunk, results)
    }
}

impl<I: Pod, O: Pod, P: Pod> KernelTask<I, O, P> {
    /// The caller's input or output; `None` for the run's items and results.
    fn lent(&self, array: usize) -> Option<LentArray> {
        *self.lent.as_ref()?.get(array)?
    }

    /// Copies bytes of the chunk's range of an input.
    #[allow(unsafe_code)]
    fn copy(
        &self,
        array: &ArrayBuffer,
        chunk: &Chunk<'_, I>,
        part: Range<usize>,
        to: &mut [u8],
    ) -> Result<()> {
        let first = chunk.range().start as usize * array.item_bytes;
        chunk.read(|items| match self.lent(array.array) {
            // SAFETY: this runs inside `Chunk::read`, during which the caller of `lend` keeps the inputs alive and
            // unchanged.
            Some(input) => copy_parallel(unsafe { input.read(first + part.start..first + part.end) }, to),
            None => copy_parallel(&bytemuck::cast_slice(items)[part], to),
        })
    }

    /// Delivers the results that a device has copied to the host: lends the run's results, or sets how accepted outputs
    /// are written to the caller's arrays.
    #[allow(unsafe_code)]
    fn deliver<'s>(
        &self,
        device: &Device,
        buffers: &'s ChunkBuffers,
        chunk: &Chunk<'_, I>,
        results: &mut Results<'s, O>,
    ) -> Result<()> {
        let (mut outputs, first) = (Vec::new(), chunk.range().start as usize);
        for array in &buffers.array_buffers {
            let Some(down) = &array.down else { continue };
            let bytes = &down.as_slice()[..chunk.len() * array.item_bytes];
            match self.lent(array.array) {
                Some(output) => outputs.push((output, array.item_bytes, bytes)),
                // Results without bytes have nothing to copy.
                None if size_of::<O>() == 0 => {}
                None => {
                    // The run's results are the task's only output.
                    let all = bytemuck::try_cast_slice(bytes).map_err(|_| Error::Unsupported {
                        device: device.id().clone(),
                        operation: "reading results".into(),
                        detail: format!(
                            "{} needs an alignment of {} bytes, and its host memory has less",
                            std::any::type_name::<O>(),
                            align_of::<O>()
                        ),
                    })?;
                    results.lend(all);
                    return Ok(());
                }
            }
        }
        // The run's own results are empty values.
        results.extend(std::iter::repeat_n(O::zeroed(), chunk.len()));
        results.on_accept(move |range| {
            for (output, item_bytes, bytes) in &outputs {
                let bytes = &bytes[range.start * item_bytes..range.end * item_bytes];
                // SAFETY: while results are accepted, the caller of `lend` keeps the outputs alive and unused; and the
                // results of an item are accepted once.
                unsafe { output.write((first + range.start) * item_bytes, bytes) };
            }
        });
        Ok(())
    }
}
