//! Timestamps, which a stream writes into the slots of a [`TimestampQueries`].
//!
//! When the stream submits, the slots are copied to host memory. When that copy has finished, the readings go to the
//! timestamps, and the `TimestampQueries` is free for the next stream.

use std::{
    any::Any,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use wgpu::{Buffer, BufferDescriptor, BufferUsages, CommandEncoder, QuerySet, QuerySetDescriptor, QueryType};

use super::{
    super::{Direction, TimestampBackend},
    host::StagingMemory,
    open_device::OpenDevice,
};
use crate::{
    describe::Features,
    error::{Error, Result},
};

const OPERATION: &str = "reading a timestamp";

/// Number of timestamps in a `TimestampQueries`.
const SLOTS: u32 = 64;

/// The free `TimestampQueries`, and the duration of a tick.
#[derive(Debug)]
pub(super) struct Clock {
    free_queries: Arc<Mutex<Vec<TimestampQueries>>>,
    ns_per_tick: f64,
}

impl Clock {
    pub(super) fn new(queue: &wgpu::Queue) -> Self {
        Clock { free_queries: Arc::default(), ns_per_tick: f64::from(queue.get_timestamp_period()) }
    }
}

/// Slots for timestamps, and the buffers through which they reach the host.
#[derive(Debug)]
struct TimestampQueries {
    slots: QuerySet,
    resolved: Buffer,
    readable: StagingMemory,
}

impl TimestampQueries {
    fn make(open: &OpenDevice) -> Result<Self> {
        let size = u64::from(SLOTS) * size_of::<u64>() as u64;
        let readable = open.make_staging(OPERATION, size, Direction::Download)?;
        open.attempt(OPERATION, || TimestampQueries {
            slots: open.device.create_query_set(&QuerySetDescriptor {
                label: None,
                ty: QueryType::Timestamp,
                count: SLOTS,
            }),
            resolved: open.device.create_buffer(&BufferDescriptor {
                label: None,
                size,
                usage: BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            }),
            readable,
        })
    }
}

/// The readings of one submission, once it has finished.
type Readings = Arc<OnceLock<Vec<u64>>>;

/// The timestamps that a stream has recorded and not yet submitted.
#[derive(Debug)]
pub(super) struct PendingTimestamps {
    queries: TimestampQueries,
    used: u32,
    readings: Readings,
}

impl PendingTimestamps {
    pub(super) fn begin(open: &OpenDevice) -> Result<Self> {
        if !open.capabilities.features.contains(Features::TIMESTAMPS) {
            return Err(Error::unsupported(&open.id, OPERATION, "the device has no timestamps"));
        }
        let free = open.clock.free_queries.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let queries = free.map_or_else(|| TimestampQueries::make(open), Ok)?;
        Ok(PendingTimestamps { queries, used: 0, readings: Readings::default() })
    }

    pub(super) fn is_full(&self) -> bool {
        self.used == SLOTS
    }

    pub(super) fn write(&mut self, open: &Arc<OpenDevice>, encoder: &mut CommandEncoder) -> WgpuTimestamp {
        encoder.write_timestamp(&self.queries.slots, self.used);
        self.used += 1;
        WgpuTimestamp { open: open.clone(), readings: self.readings.clone(), slot: self.used as usize - 1 }
    }

    /// Records the copy of the readings to host memory. Called last, before the encoder is submitted.
    pub(super) fn resolve(&self, encoder: &mut CommandEncoder) {
        let TimestampQueries { slots, resolved, readable } = &self.queries;
        encoder.resolve_query_set(slots, 0..self.used, resolved, 0);
        encoder.copy_buffer_to_buffer(resolved, 0, &readable.buffer, 0, u64::from(self.used) * 8);
        StagingMemory::make_visible_to_host(&readable.buffer, readable.mapped.as_ref(), encoder);
    }

    /// Collects the readings when the submission has finished. Called right after it was made.
    pub(super) fn collect(self, open: &OpenDevice) {
        let PendingTimestamps { queries: TimestampQueries { slots, resolved, readable }, used, readings } =
            self;
        let free_queries = open.clock.free_queries.clone();
        readable.when_idle(&open.queue, Direction::Download, move |readable| {
            // `None` means that the device is lost: the timestamps then have no reading.
            let Some(readable) = readable else { return };
            let Some(bytes) = readable.read(used as usize * 8) else { return };
            let _ = readings.set(bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect());
            free_queries.lock().unwrap_or_else(PoisonError::into_inner).push(TimestampQueries {
                slots,
                resolved,
                readable,
            });
        });
    }
}

/// A reading of the device's clock.
#[derive(Debug)]
pub(super) struct WgpuTimestamp {
    open: Arc<OpenDevice>,
    readings: Readings,
    slot: usize,
}

impl WgpuTimestamp {
    fn ticks(&self) -> Option<u64> {
        self.readings.get()?.get(self.slot).copied()
    }
}

impl TimestampBackend for WgpuTimestamp {
    fn since(&self, earlier: &dyn TimestampBackend) -> Result<Duration> {
        let earlier = (earlier as &dyn Any).downcast_ref::<WgpuTimestamp>();
        let earlier = earlier.filter(|earlier| Arc::ptr_eq(&earlier.open, &self.open));
        let refuse = |detail: &str| Err(Error::unsupported(&self.open.id, OPERATION, detail));
        let Some(earlier) = earlier else { return refuse("the timestamps belong to different devices") };
        if self.ticks().is_none() || earlier.ticks().is_none() {
            self.open.poll(OPERATION)?;
        }
        let (Some(from), Some(to)) = (earlier.ticks(), self.ticks()) else {
            return refuse("not reached yet: wait for the stream first");
        };
        Ok(Duration::from_nanos((to.saturating_sub(from) as f64 * self.open.clock.ns_per_tick) as u64))
    }
}
