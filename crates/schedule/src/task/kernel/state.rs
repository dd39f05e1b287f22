//! How a kernel's chunks are run: copies there, a launch, copies back.

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

use super::{Array, KernelTask, Role};
use crate::task::{Chunk, Resident, Results, Task, arrays::LentArray, resident::Tables, task_error};

/// The most host memory that a chunk's items or results are staged in. Pinning memory takes long, and chunks of this size
/// are long enough to hide what a launch costs.
const STAGING_BYTES: u64 = 16 << 20;

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
    max_items: u64,
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
    bound: BoundKernel,
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
                let items = items.next_power_of_two().max(256.min(self.max_items as usize));
                let columns = arrays.iter().enumerate().filter(|(_, array)| array.table().is_none());
                let columns = columns.map(|(index, array)| self.column(index, array, items));
                (items, columns.collect::<Result<_>>()?)
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
        // Copies need not end where the last item does.
        let elements = (items * array.width).next_multiple_of(self.alignment);
        let (buffer, argument) = (array.allocate)(&self.device, elements)?;
        let (mut up, mut down) = (None, None);
        match array.role {
            Role::Input => up = Some(self.device.staging_buffer(buffer.len())?),
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
        let timestamps =
            device.describe().kind != DeviceKind::Cpu && has.features.contains(Features::TIMESTAMPS);
        let (up, down): (Vec<u64>, Vec<u64>) = self.arrays.iter().map(Array::item_bytes).unzip();
        let item_bytes = up.iter().sum::<u64>().max(down.iter().sum());
        let max_bytes = has.max_binding_bytes.min(has.max_buffer_bytes).min(STAGING_BYTES);
        let by_size = max_bytes / item_bytes.max(1);
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
            let message = "it has arrays of its own: run it with `map_arrays`".to_owned();
            return Err(task_error(state.device.id(), format!("task `{}`", self.name()), message));
        }
        let count = chunk.len();
        let mut room = state.room(&self.arrays, count)?;
        let (start, timed, mut before) = (Instant::now(), state.times_uploads, None);
        let (mut ups, mut is_first) = (Vec::with_capacity(room.columns.len()), true);
        for column in &mut room.columns {
            let Some(up) = column.up.take() else { continue };
            let (bytes, column) = (count * column.item_bytes, &*column);
            let padded = state.padded(bytes);
            let upload = state.stream.upload_staged(up, padded, &column.buffer, |stream, part, memory| {
                // The items are lent for the moment of a piece, and never while a device is waited for. What pads the
                // last piece is whatever is there.
                let part = part.start..part.end.min(bytes);
                self.copy(column, chunk, part.clone(), &mut memory[..part.len()])?;
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
        // It fits: `max_items` saw to it.
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
        // The last download ends last: once it was waited for, nothing else has to be.
        for column in room.columns.iter_mut().rev() {
            if !matches!(self.arrays[column.array].role, Role::Input) {
                column.down = downs.next_back().map(|down| down.wait()).transpose()?;
            }
        }
        for column in room.columns.iter_mut().rev() {
            if matches!(self.arrays[column.array].role, Role::Input) {
                column.up = ups.next_back().map(|up| up.wait()).transpose()?;
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
    /// An input or output that is lent; nothing for the run's items and its results.
    fn lent(&self, array: usize) -> Option<LentArray> {
        *self.lent.as_ref()?.get(array)?
    }

    /// Copies some bytes of the chunk's items in one of the inputs.
    #[allow(unsafe_code)]
    fn copy(&self, column: &Column, chunk: &Chunk<'_, I>, part: Range<usize>, to: &mut [u8]) -> Result<()> {
        let first = chunk.range().start as usize * column.item_bytes;
        chunk.read(|items| match self.lent(column.array) {
            // SAFETY: the chunk can be read, so the inputs are there, as the caller of `lend` has promised.
            Some(input) => copy_parallel(unsafe { input.read(first + part.start..first + part.end) }, to),
            None => copy_parallel(&bytemuck::cast_slice(items)[part], to),
        })
    }

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
        let (mut outputs, first) = (Vec::new(), chunk.range().start as usize);
        for column in &room.columns {
            let Some(down) = &column.down else { continue };
            let bytes = &down.as_slice()[..chunk.len() * column.item_bytes];
            match self.lent(column.array) {
                Some(output) => outputs.push((output, column.item_bytes, bytes)),
                // Results without bytes are all alike.
                None if size_of::<O>() == 0 => {}
                None => {
                    // It is the only one.
                    let all = bytemuck::try_cast_slice(bytes).map_err(|_| Error::Unsupported {
                        device: device.id().clone(),
                        operation: "reading results".into(),
                        detail: format!(
                            "{} is aligned to {} bytes, which its host memory is not",
                            std::any::type_name::<O>(),
                            align_of::<O>()
                        ),
                    })?;
                    results.lend(all);
                    return Ok(());
                }
            }
        }
        // What the run itself keeps of an item is nothing.
        results.extend(std::iter::repeat_n(O::zeroed(), chunk.len()));
        results.when_kept(move |part| {
            for (output, item_bytes, bytes) in &outputs {
                let bytes = &bytes[part.start * item_bytes..part.end * item_bytes];
                // SAFETY: the results are kept, so the outputs are there, as the caller of `lend` has promised; and those
                // of an item are kept once.
                unsafe { output.write((first + part.start) * item_bytes, bytes) };
            }
        });
        Ok(())
    }
}
