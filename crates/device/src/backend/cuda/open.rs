//! An open card, or an open partition of one: its memory, its streams, its compiled kernels.

use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cudarc::driver::sys::{CUstream, CUstream_flags};

use super::{
    card::Card,
    context::{Entered, Hold},
    event::{self, EventPool, PooledEvent},
    memory::{CudaHostMemory, CudaMemory, DeviceBlock, HostBlock},
    partition::Green,
    program::{self, Modules},
    stream::{CudaStream, KeptAlive},
};
use crate::{
    backend::{
        Address, Backend, Contents, Direction, HostMemory, Memory, MemoryUsage, Program, Region,
        StreamBackend, cpu::pinned_cap, shelf::Shelf,
    },
    describe::Capabilities,
    error::{Error, Result},
    kernel::Kernel,
};

/// So long zeroing a new buffer may take: a card that does not answer must not hang the host.
const ZEROING: Duration = Duration::from_secs(60);

/// So long closing waits for work that nobody waited for.
const CLOSING: Duration = Duration::from_millis(200);

/// So many idle streams are kept for reuse.
const IDLE_STREAMS: usize = 8;

/// A shelf keeps this part of the card's memory at most.
const SHELVED_PART: u64 = 4;

/// What everything that was made from one opening shares.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) hold: Hold,
    pub(super) card: Arc<Card>,
    pub(super) device_shelf: Shelf<DeviceBlock>,
    pub(super) host_shelf: Shelf<HostBlock>,
    pub(super) events: EventPool,
    pub(super) modules: Modules,
    idle: Mutex<Vec<RawStream>>,
    graves: Mutex<Vec<Grave>>,
    /// The multiprocessors that its streams run on, where these are not all. Destroyed after its streams.
    green: Option<Arc<Green>>,
}

/// A driver's stream with no work in it.
#[derive(Debug)]
pub(super) struct RawStream(pub(super) CUstream);

// SAFETY: a stream may be used from any thread in whose context it is.
unsafe impl Send for RawStream {}
// SAFETY: as above; the driver locks streams itself.
unsafe impl Sync for RawStream {}

/// What a stream left behind that was dropped with work under way: it lives until that work has ended.
#[derive(Debug)]
pub(super) struct Grave {
    pub(super) end: PooledEvent,
    pub(super) _kept: KeptAlive,
}

impl Open {
    /// An idle stream, or a new one.
    pub(super) fn take_stream(&self, entered: &Entered<'_>) -> Result<RawStream> {
        if let Some(stream) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(stream);
        }
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut raw = std::ptr::null_mut();
        match &self.green {
            Some(green) => green.stream(entered, flags, &mut raw)?,
            // SAFETY: the context is current; the pointer is to a live pointer.
            None => entered.check(unsafe { (entered.driver.stream_create)(&mut raw, flags) })?,
        }
        Ok(RawStream(raw))
    }

    /// Takes back a stream that has no work in it.
    pub(super) fn return_stream(&self, stream: RawStream) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_STREAMS {
            return idle.push(stream);
        }
        drop(idle);
        if let Ok(entered) = self.hold.enter("closing a stream") {
            // SAFETY: the stream is of this context, and nobody else has it.
            unsafe { (entered.driver.stream_destroy)(stream.0) };
        }
    }

    /// Keeps what a dropped stream's work still uses.
    pub(super) fn bury(&self, grave: Grave) {
        self.graves.lock().unwrap_or_else(PoisonError::into_inner).push(grave);
    }

    /// Lets go of what dropped streams left behind, where their work has ended. Says whether nothing is left.
    pub(super) fn sweep(&self) -> bool {
        let ended: Vec<Grave>;
        let left;
        {
            let mut graves = self.graves.lock().unwrap_or_else(PoisonError::into_inner);
            if graves.is_empty() {
                return true;
            }
            // After a loss nothing runs any more, and letting go touches nothing.
            let entered = self.hold.enter("closing a stream").ok();
            let has_ended = |grave: &mut Grave| match &entered {
                Some(entered) => grave.end.query(entered).unwrap_or(self.hold.context.is_lost()),
                None => true,
            };
            ended = graves.extract_if(.., has_ended).collect();
            left = graves.len();
        }
        // Outside the lock: what is let go may be the last of much else.
        drop(ended);
        left == 0
    }

    /// Gives back what is on the shelves above their caps. Freeing waits for work under way, which dropping a buffer must
    /// not, so this is done when a new block is asked for.
    pub(super) fn free_excess(&self, entered: &Entered<'_>) {
        if self.hold.context.is_stuck() {
            return;
        }
        self.device_shelf.excess().into_iter().for_each(|block| block.free(entered));
        self.host_shelf.excess().into_iter().for_each(|block| block.free(entered));
    }

    /// Gives back the memory on the shelves of everything that has this card open: they share its memory.
    pub(super) fn clear_all_shelves(&self, entered: &Entered<'_>) {
        self.clear_shelves(entered);
        for open in self.hold.context.openings().iter().filter(|open| !std::ptr::eq(&***open, self)) {
            open.clear_shelves(entered);
        }
    }

    /// Gives the memory on the shelves back.
    pub(super) fn clear_shelves(&self, entered: &Entered<'_>) {
        self.sweep();
        if self.hold.context.is_stuck() {
            return;
        }
        self.device_shelf.clear().into_iter().for_each(|block| block.free(entered));
        self.host_shelf.clear().into_iter().for_each(|block| block.free(entered));
    }
}

impl Drop for Open {
    // Nothing made from it is left, so nothing of it is in use. After a loss the driver has nothing of it either.
    fn drop(&mut self) {
        if self.hold.context.is_stuck() {
            return;
        }
        let Ok(entered) = self.hold.enter("closing it") else { return };
        for stream in std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            // SAFETY: the stream is of this context, and nobody else has it.
            unsafe { (entered.driver.stream_destroy)(stream.0) };
        }
        self.clear_shelves(&entered);
        self.events.clear(&entered);
        self.modules.clear(&entered);
    }
}

/// An open card or partition.
#[derive(Debug)]
pub(super) struct CudaBackend {
    open: Arc<Open>,
}

impl CudaBackend {
    /// Opens a card, or the part of it that `green` is. Fails with `Lost` where the card does not work.
    pub(super) fn open(hold: Hold, card: Arc<Card>, green: Option<Arc<Green>>) -> Result<Self> {
        let open = Arc::new(Open {
            hold,
            device_shelf: Shelf::new(card.capabilities.max_buffer_bytes / SHELVED_PART),
            card,
            host_shelf: Shelf::new(pinned_cap()),
            events: EventPool::default(),
            modules: Modules::default(),
            idle: Mutex::default(),
            graves: Mutex::default(),
            green,
        });
        open.hold.context.note(&open);
        // A context that was lost and made anew shows here whether it works. The stream is used later.
        let entered = open.hold.enter("opening it")?;
        let stream = open.take_stream(&entered)?;
        // SAFETY: the stream is alive and of this context.
        event::ready(&entered, unsafe { (entered.driver.stream_query)(stream.0) })?;
        drop(entered);
        open.return_stream(stream);
        Ok(CudaBackend { open })
    }

    /// Fills a new buffer with zeros, and waits for that.
    fn zero(&self, memory: Arc<dyn Memory>) -> Result<Arc<dyn Memory>> {
        let bytes = memory.bytes();
        if bytes == 0 {
            return Ok(memory);
        }
        let mut stream = CudaStream::new(&self.open)?;
        // Should the wait fail, the stream keeps the memory for as long as it is needed.
        stream.zero(&Region { memory: memory.clone(), offset: 0, bytes })?;
        stream.wait(Some(ZEROING))?;
        Ok(memory)
    }
}

impl Backend for CudaBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.open.card.capabilities
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Arc<dyn Memory>> {
        self.open.sweep();
        let memory: Arc<dyn Memory> = Arc::new(CudaMemory::allocate(&self.open, bytes)?);
        match contents {
            Contents::Zeroed => self.zero(memory),
            Contents::Any => Ok(memory),
        }
    }

    unsafe fn adopt(
        &self,
        address: Address,
        bytes: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Option<Arc<dyn Memory>>> {
        let Address::Cuda { ordinal, address } = address else { return Ok(None) };
        let mine = self.open.card.ordinal;
        if let Some(other) = ordinal.filter(|&ordinal| ordinal != mine) {
            let detail = format!("the memory is on CUDA's device {other}, this is its device {mine}");
            return Err(Error::unsupported(&self.open.hold.id, "adopting memory", detail));
        }
        // Nothing is asked of the driver, and nothing may be adopted once the device is lost.
        drop(self.open.hold.enter("adopting memory")?);
        Ok(Some(Arc::new(CudaMemory::adopt(&self.open, address, bytes, owner))))
    }

    fn allocate_host(&self, bytes: u64, _: Direction) -> Result<Box<dyn HostMemory>> {
        self.open.sweep();
        Ok(Box::new(CudaHostMemory::allocate(&self.open, bytes)?))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Program>> {
        program::compile(&self.open, kernel)
    }

    fn stream(&self) -> Result<Box<dyn StreamBackend>> {
        self.open.sweep();
        Ok(Box::new(CudaStream::new(&self.open)?))
    }

    fn memory(&self) -> MemoryUsage {
        self.open.device_shelf.memory_use().with_pinned(self.open.host_shelf.memory_use())
    }

    fn trim(&self) {
        if let Ok(entered) = self.open.hold.enter("giving memory back") {
            self.open.clear_shelves(&entered);
        }
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // What is left after that is kept, if need be until the process ends, rather than be freed under a
        // kernel that still runs.
        if !matches!(event::poll(Some(CLOSING), || Ok(self.open.sweep())), Ok(true)) {
            self.open.hold.context.keep_stuck(self.open.clone());
        }
    }
}
