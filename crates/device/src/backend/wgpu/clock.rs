//! The device's own clock.
//!
//! A stream writes the clock into the slots of a [`Kit`]. When it submits, the slots are copied to where the
//! host can read them, and when that has ended the readings go to the timestamps and the kit to the next
//! stream that asks.

use std::{
    any::Any,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use wgpu::{Buffer, BufferDescriptor, BufferUsages, CommandEncoder, QuerySet, QuerySetDescriptor, QueryType};

use super::{
    super::{Direction, Timestamp},
    hold::Hold,
    host::Staged,
};
use crate::{
    describe::Features,
    error::{Error, Result},
};

const OPERATION: &str = "reading a timestamp";

/// How many times a kit can be written to before it must be submitted.
const SLOTS: u32 = 64;

/// The kits that wait to be used again, and what a tick is worth.
#[derive(Debug)]
pub(super) struct Clock {
    kits: Arc<Mutex<Vec<Kit>>>,
    ns_per_tick: f64,
}

impl Clock {
    pub(super) fn new(queue: &wgpu::Queue) -> Self {
        Clock { kits: Arc::default(), ns_per_tick: f64::from(queue.get_timestamp_period()) }
    }
}

/// Slots for readings, and the way from there to the host.
#[derive(Debug)]
struct Kit {
    slots: QuerySet,
    resolved: Buffer,
    readable: Staged,
}

impl Kit {
    fn make(hold: &Hold) -> Result<Self> {
        let size = u64::from(SLOTS) * size_of::<u64>() as u64;
        let readable = hold.make_staging(OPERATION, size, Direction::Download)?;
        hold.attempt(OPERATION, || Kit {
            slots: hold.device.create_query_set(&QuerySetDescriptor {
                label: None,
                ty: QueryType::Timestamp,
                count: SLOTS,
            }),
            resolved: hold.device.create_buffer(&BufferDescriptor {
                label: None,
                size,
                usage: BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            }),
            readable,
        })
    }
}

/// The readings of one submission, once they are there.
type Readings = Arc<OnceLock<Vec<u64>>>;

/// The readings that a stream has written and not yet submitted.
#[derive(Debug)]
pub(super) struct Pending {
    kit: Kit,
    used: u32,
    readings: Readings,
}

impl Pending {
    pub(super) fn begin(hold: &Hold) -> Result<Self> {
        if !hold.capabilities.features.contains(Features::TIMESTAMPS) {
            return Err(Error::unsupported(
                &hold.id,
                OPERATION,
                "its clock cannot be read between operations",
            ));
        }
        let shelved = hold.clock.kits.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let kit = shelved.map_or_else(|| Kit::make(hold), Ok)?;
        Ok(Pending { kit, used: 0, readings: Readings::default() })
    }

    /// Whether there is no slot left.
    pub(super) fn is_full(&self) -> bool {
        self.used == SLOTS
    }

    /// Reads the clock at this point of the encoder.
    pub(super) fn write(&mut self, hold: &Arc<Hold>, encoder: &mut CommandEncoder) -> WgpuTimestamp {
        encoder.write_timestamp(&self.kit.slots, self.used);
        self.used += 1;
        WgpuTimestamp { hold: hold.clone(), readings: self.readings.clone(), slot: self.used as usize - 1 }
    }

    /// The last thing before the encoder is submitted.
    pub(super) fn resolve(&self, encoder: &mut CommandEncoder) {
        let Kit { slots, resolved, readable } = &self.kit;
        encoder.resolve_query_set(slots, 0..self.used, resolved, 0);
        encoder.copy_buffer_to_buffer(resolved, 0, &readable.buffer, 0, u64::from(self.used) * 8);
    }

    /// The first thing after the encoder was submitted.
    pub(super) fn collect(self, hold: &Hold) {
        let Pending { kit: Kit { slots, resolved, readable }, used, readings } = self;
        let kits = hold.clock.kits.clone();
        readable.when_idle(&hold.queue, Direction::Download, move |readable| {
            // Where there is none the device is lost, and the timestamps stay without a reading.
            let Some(readable) = readable else { return };
            let Some(bytes) = readable.read(used as usize * 8) else { return };
            let _ = readings.set(bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect());
            kits.lock().unwrap_or_else(PoisonError::into_inner).push(Kit { slots, resolved, readable });
        });
    }
}

/// A reading of the device's clock.
#[derive(Debug)]
pub(super) struct WgpuTimestamp {
    hold: Arc<Hold>,
    readings: Readings,
    slot: usize,
}

impl WgpuTimestamp {
    fn ticks(&self) -> Option<u64> {
        self.readings.get()?.get(self.slot).copied()
    }
}

impl Timestamp for WgpuTimestamp {
    fn since(&self, earlier: &dyn Timestamp) -> Result<Duration> {
        let earlier = (earlier as &dyn Any).downcast_ref::<WgpuTimestamp>();
        let earlier = earlier.filter(|earlier| Arc::ptr_eq(&earlier.hold, &self.hold));
        let refuse = |detail: &str| Err(Error::unsupported(&self.hold.id, OPERATION, detail));
        let Some(earlier) = earlier else { return refuse("compare timestamps of one device") };
        if self.ticks().is_none() || earlier.ticks().is_none() {
            self.hold.poll(OPERATION)?;
        }
        let (Some(from), Some(to)) = (earlier.ticks(), self.ticks()) else {
            return refuse("wait for the stream first");
        };
        Ok(Duration::from_nanos((to.saturating_sub(from) as f64 * self.hold.clock.ns_per_tick) as u64))
    }
}
