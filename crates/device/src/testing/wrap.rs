//! The wrapper: each back-end trait over another implementation of it.

use std::{
    any::Any,
    ops::Range,
    sync::{Arc, Mutex, OnceLock, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use super::{State, lock};
use crate::{
    backend::{
        Backend, BoundKernel, Contents, Direction, Event, Graph, HostMemory, Memory, MemoryUsage, Program,
        RecordedLaunch, Region, SharedMemory, Source, StreamBackend, Timestamp,
    },
    describe::{Capabilities, Description},
    device::Device,
    error::{Error, Result},
    kernel::Kernel,
};

pub(super) fn device(under: &Device, state: Arc<State>) -> Device {
    Device::from_source(Arc::new(FaultySource { under: under.source().clone(), state }))
}

#[derive(Debug)]
struct FaultySource {
    under: Arc<dyn Source>,
    state: Arc<State>,
}

impl Source for FaultySource {
    fn describe(&self) -> &Description {
        self.under.describe()
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        let opening = self.state.openings.fetch_add(1, SeqCst) + 1;
        let hold = Hold { state: self.state.clone(), opening };
        hold.operation("opening the device")?;
        Ok(Arc::new(FaultyBackend { under: self.under.open()?, hold }))
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        self.under.split(sizes)
    }

    fn bind_thread(&self, index: usize) {
        self.under.bind_thread(index);
    }
}

/// One opening of the wrapped device: a loss ends this opening, not the next.
#[derive(Debug, Clone)]
struct Hold {
    state: Arc<State>,
    opening: u64,
}

impl Hold {
    fn operation(&self, name: &str) -> Result<()> {
        self.state.operation(self.opening, name)
    }

    /// An operation that the host waits for: it hangs with the device.
    fn blocking_operation(&self, name: &str) -> Result<()> {
        self.operation(name)?;
        self.state.wait_while_hung(name, None)
    }
}

#[derive(Debug)]
struct FaultyBackend {
    under: Arc<dyn Backend>,
    hold: Hold,
}

impl Backend for FaultyBackend {
    fn capabilities(&self) -> &Capabilities {
        self.under.capabilities()
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Arc<dyn Memory>> {
        self.hold.blocking_operation("allocating a buffer")?;
        self.under.allocate(bytes, contents)
    }

    #[cfg(feature = "wgpu")]
    fn adopt_wgpu(&self, buffer: &wgpu::Buffer) -> Result<Option<Arc<dyn Memory>>> {
        self.hold.blocking_operation("adopting a buffer")?;
        self.under.adopt_wgpu(buffer)
    }

    fn allocate_host(&self, bytes: u64, direction: Direction) -> Result<Box<dyn HostMemory>> {
        self.hold.blocking_operation("allocating host memory")?;
        Ok(Box::new(FaultyHostMemory { under: self.under.allocate_host(bytes, direction)?, corrupt: false }))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Program>> {
        self.hold.blocking_operation("compiling a kernel")?;
        self.under.compile(kernel)
    }

    fn stream(&self) -> Result<Box<dyn StreamBackend>> {
        self.hold.blocking_operation("making a stream")?;
        Ok(Box::new(FaultyStream {
            under: self.under.stream()?,
            hold: self.hold.clone(),
            busy_since: None,
            last: None,
            reached: Arc::default(),
        }))
    }

    fn memory(&self) -> MemoryUsage {
        self.under.memory()
    }

    fn trim(&self) {
        self.under.trim();
    }
}

#[derive(Debug)]
struct FaultyHostMemory {
    under: Box<dyn HostMemory>,
    corrupt: bool,
}

impl HostMemory for FaultyHostMemory {
    fn bytes(&self) -> &[u8] {
        self.under.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.under.bytes_mut()
    }

    fn reclaim(&mut self) -> Result<()> {
        self.under.reclaim()?;
        if std::mem::take(&mut self.corrupt) {
            let bytes = self.under.bytes_mut();
            let middle = bytes.len() / 2;
            if let Some(byte) = bytes.get_mut(middle) {
                *byte ^= 1;
            }
        }
        Ok(())
    }

    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        self.under.share()
    }
}

#[derive(Debug)]
struct FaultyStream {
    under: Box<dyn StreamBackend>,
    hold: Hold,
    /// When the work began that no event has closed yet.
    busy_since: Option<Instant>,
    last: Option<Arc<FaultyEvent>>,
    /// When the latest of its events that was waited for was reached, slowed down.
    reached: Arc<Mutex<Option<(u64, Instant)>>>,
}

impl FaultyStream {
    fn operation(&mut self, name: &str) -> Result<()> {
        self.busy_since.get_or_insert_with(Instant::now);
        self.hold.operation(name).inspect_err(|_| self.busy_since = None)
    }

    fn close(&mut self) -> Result<Arc<FaultyEvent>> {
        let event = Arc::new(FaultyEvent {
            under: self.under.record_event()?,
            hold: self.hold.clone(),
            began: self.busy_since.take().unwrap_or_else(Instant::now),
            before: self.last.as_ref().and_then(|last| last.slow_end.get().copied()),
            slow_end: OnceLock::new(),
            number: self.last.as_ref().map_or(0, |last| last.number + 1),
            reached: self.reached.clone(),
        });
        self.last = Some(event.clone());
        Ok(event)
    }
}

impl StreamBackend for FaultyStream {
    fn upload(&mut self, from: &mut dyn HostMemory, range: Range<u64>, to: &Region) -> Result<()> {
        self.operation("uploading")?;
        self.under.upload(under_host(from, &self.hold)?, range, to)
    }

    fn upload_shared(
        &mut self,
        from: &Arc<dyn SharedMemory>,
        range: Range<u64>,
        to: &Region,
    ) -> Result<bool> {
        self.operation("uploading")?;
        self.under.upload_shared(from, range, to)
    }

    fn download(&mut self, from: &Region, to: &mut dyn HostMemory, offset: u64) -> Result<()> {
        self.operation("downloading")?;
        if let Some(faulty) = (&mut *to as &mut dyn Any).downcast_mut::<FaultyHostMemory>() {
            faulty.corrupt |= self.hold.state.corrupt_next.swap(false, SeqCst);
        }
        self.under.download(from, under_host(to, &self.hold)?, offset)
    }

    fn copy(&mut self, from: &Region, to: &Region) -> Result<()> {
        self.operation("copying")?;
        self.under.copy(from, to)
    }

    fn zero(&mut self, region: &Region) -> Result<()> {
        self.operation("zeroing")?;
        self.under.zero(region)
    }

    fn fill(&mut self, region: &Region, pattern: &[u8]) -> Result<bool> {
        self.operation("filling")?;
        self.under.fill(region, pattern)
    }

    fn launch(&mut self, bound: &Arc<dyn BoundKernel>, groups: [u32; 3], params: &[u8]) -> Result<()> {
        self.operation("launching a kernel")?;
        self.under.launch(bound, groups, params)
    }

    fn record_graph(&mut self, launches: &[RecordedLaunch]) -> Result<Option<Arc<dyn Graph>>> {
        self.operation("recording launches")?;
        self.under.record_graph(launches)
    }

    fn replay(&mut self, graph: &Arc<dyn Graph>) -> Result<bool> {
        self.operation("launching what was recorded")?;
        self.under.replay(graph)
    }

    fn timestamp(&mut self) -> Result<Arc<dyn Timestamp>> {
        self.operation("reading the clock")?;
        self.under.timestamp()
    }

    fn record_event(&mut self) -> Result<Arc<dyn Event>> {
        self.operation("marking a stream")?;
        Ok(self.close()?)
    }

    fn wait_event(&mut self, event: &Arc<dyn Event>) -> Result<()> {
        self.operation("waiting for another stream")?;
        match (&**event as &dyn Any).downcast_ref::<FaultyEvent>() {
            Some(faulty) => self.under.wait_event(&faulty.under),
            None => self.under.wait_event(event),
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.operation("flushing a stream")?;
        self.under.flush()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.operation("waiting for a stream")?;
        let event = self.close()?;
        event.wait_slowed(timeout)?;
        // The stream under it reports, and forgets, its own failures only when it is itself waited for.
        self.under.wait(timeout)
    }
}

/// The host memory that the back end under the wrapper made.
fn under_host<'a>(memory: &'a mut dyn HostMemory, hold: &Hold) -> Result<&'a mut dyn HostMemory> {
    match (memory as &mut dyn Any).downcast_mut::<FaultyHostMemory>() {
        Some(faulty) => Ok(&mut *faulty.under),
        None => {
            let detail = "the host memory was made for another device";
            Err(Error::unsupported(&hold.state.device, "copying", detail))
        }
    }
}

/// An event that is reached later than the one under it, by the factor that the device is slowed down by.
#[derive(Debug)]
struct FaultyEvent {
    under: Arc<dyn Event>,
    hold: Hold,
    /// When the work before it began.
    began: Instant,
    /// When the event before it in the stream was reached, slowed down.
    before: Option<Instant>,
    /// When this event is reached, slowed down: set when the one under it is seen to be reached.
    slow_end: OnceLock<Instant>,
    /// Its number in the stream.
    number: u64,
    reached: Arc<Mutex<Option<(u64, Instant)>>>,
}

impl FaultyEvent {
    fn slow_end(&self) -> Instant {
        *self.slow_end.get_or_init(|| {
            let mut reached = lock(&self.reached);
            // One that comes earlier in the stream than one that was reached was reached before it: the time that the
            // host has slept for that one is not this one's.
            if let Some((number, when)) = *reached
                && number > self.number
            {
                return when;
            }
            let now = Instant::now();
            let began = self.before.map_or(self.began, |before| before.max(self.began));
            let end = began + now.saturating_duration_since(began).mul_f64(self.hold.state.slowness());
            *reached = Some((self.number, end));
            end
        })
    }

    fn wait_slowed(&self, timeout: Option<Duration>) -> Result<()> {
        const NAME: &str = "waiting for a stream";
        let start = Instant::now();
        let left = || timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        let state = &self.hold.state;
        state.check_lost(self.hold.opening, NAME)?;
        state.wait_while_hung(NAME, timeout)?;
        self.under.wait(left())?;
        let rest = self.slow_end().saturating_duration_since(Instant::now());
        if let (Some(left), Some(timeout)) = (left(), timeout)
            && rest > left
        {
            std::thread::sleep(left);
            let (device, operation) = (state.device.clone(), NAME.to_owned());
            return Err(Error::TimedOut { device, operation, after: timeout });
        }
        std::thread::sleep(rest);
        // A device that was killed while the host waited gives no result.
        state.check_lost(self.hold.opening, NAME)
    }
}

impl Event for FaultyEvent {
    fn is_done(&self) -> Result<bool> {
        self.hold.state.check_lost(self.hold.opening, "asking for an event")?;
        if self.hold.state.is_hung() || !self.under.is_done()? {
            return Ok(false);
        }
        Ok(self.slow_end() <= Instant::now())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        self.hold.operation("waiting for an event")?;
        self.wait_slowed(timeout)
    }
}
