//! The wrapper: an implementation of each back-end trait that injects faults and calls another implementation.

use std::{
    any::Any,
    ops::Range,
    sync::{Arc, Mutex, OnceLock, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use super::{FaultInjector, lock};
use crate::{
    backend::{
        Backend, BoundKernelBackend, Contents, Direction, EventBackend, GraphBackend, HostMemory, Memory,
        MemoryUsage, ProgramBackend, RecordedLaunch, Region, SharedMemory, Source, StreamBackend,
        TimestampBackend,
    },
    describe::{Capabilities, Description},
    device::Device,
    error::{Error, Result},
    kernel::Kernel,
};

pub(super) fn device(inner: &Device, injector: Arc<FaultInjector>) -> Device {
    Device::from_source(Arc::new(FaultySource { inner: inner.source().clone(), injector }))
}

#[derive(Debug)]
struct FaultySource {
    inner: Arc<dyn Source>,
    injector: Arc<FaultInjector>,
}

impl Source for FaultySource {
    fn describe(&self) -> &Description {
        self.inner.describe()
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        let number = self.injector.openings.fetch_add(1, SeqCst) + 1;
        let opening = Opening { injector: self.injector.clone(), number };
        opening.operation("opening the device")?;
        Ok(Arc::new(FaultyBackend { inner: self.inner.open()?, opening }))
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        self.inner.split(sizes)
    }

    fn bind_thread(&self, index: usize) {
        self.inner.bind_thread(index);
    }

    fn is_there(&self) -> bool {
        self.inner.is_there()
    }

    fn available_until(&self) -> Option<Instant> {
        self.inner.available_until()
    }
}

/// One opening of the wrapped device: a loss ends this opening, not the next.
#[derive(Debug, Clone)]
struct Opening {
    injector: Arc<FaultInjector>,
    number: u64,
}

impl Opening {
    fn operation(&self, name: &str) -> Result<()> {
        self.injector.operation(self.number, name)
    }

    /// An operation that the host waits for: it hangs while the device hangs.
    fn blocking_operation(&self, name: &str) -> Result<()> {
        self.operation(name)?;
        self.injector.wait_while_hung(name, None)
    }
}

#[derive(Debug)]
struct FaultyBackend {
    inner: Arc<dyn Backend>,
    opening: Opening,
}

impl Backend for FaultyBackend {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Arc<dyn Memory>> {
        self.opening.blocking_operation("allocating a buffer")?;
        self.inner.allocate(bytes, contents)
    }

    #[cfg(feature = "wgpu")]
    fn adopt_wgpu(&self, buffer: &wgpu::Buffer) -> Result<Option<Arc<dyn Memory>>> {
        self.opening.blocking_operation("adopting a buffer")?;
        self.inner.adopt_wgpu(buffer)
    }

    fn allocate_host(&self, bytes: u64, direction: Direction) -> Result<Box<dyn HostMemory>> {
        self.opening.blocking_operation("allocating host memory")?;
        Ok(Box::new(FaultyHostMemory { inner: self.inner.allocate_host(bytes, direction)?, corrupt: false }))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn ProgramBackend>> {
        self.opening.blocking_operation("compiling a kernel")?;
        self.inner.compile(kernel)
    }

    fn stream(&self) -> Result<Box<dyn StreamBackend>> {
        self.opening.blocking_operation("making a stream")?;
        Ok(Box::new(FaultyStream {
            inner: self.inner.stream()?,
            opening: self.opening.clone(),
            busy_since: None,
            last: None,
            reached: Arc::default(),
        }))
    }

    fn memory(&self) -> MemoryUsage {
        self.inner.memory()
    }

    fn trim(&self) {
        self.inner.trim();
    }
}

#[derive(Debug)]
struct FaultyHostMemory {
    inner: Box<dyn HostMemory>,
    corrupt: bool,
}

impl HostMemory for FaultyHostMemory {
    fn bytes(&self) -> &[u8] {
        self.inner.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.inner.bytes_mut()
    }

    fn reclaim(&mut self) -> Result<()> {
        self.inner.reclaim()?;
        if std::mem::take(&mut self.corrupt) {
            let bytes = self.inner.bytes_mut();
            let middle = bytes.len() / 2;
            if let Some(byte) = bytes.get_mut(middle) {
                *byte ^= 1;
            }
        }
        Ok(())
    }

    fn zero_on_release(&mut self) {
        self.inner.zero_on_release();
    }

    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        self.inner.share()
    }
}

#[derive(Debug)]
struct FaultyStream {
    inner: Box<dyn StreamBackend>,
    opening: Opening,
    /// When the work since the last event began.
    busy_since: Option<Instant>,
    last: Option<Arc<FaultyEvent>>,
    /// The number of the latest event that was waited for, and its slowed-down end.
    reached: Arc<Mutex<Option<(u64, Instant)>>>,
}

impl FaultyStream {
    fn operation(&mut self, name: &str) -> Result<()> {
        self.busy_since.get_or_insert_with(Instant::now);
        self.opening.operation(name).inspect_err(|_| self.busy_since = None)
    }

    fn close(&mut self) -> Result<Arc<FaultyEvent>> {
        let event = Arc::new(FaultyEvent {
            inner: self.inner.record_event()?,
            opening: self.opening.clone(),
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
        self.inner.upload(inner_host(from, &self.opening)?, range, to)
    }

    fn upload_shared(
        &mut self,
        from: &Arc<dyn SharedMemory>,
        range: Range<u64>,
        to: &Region,
    ) -> Result<bool> {
        self.operation("uploading")?;
        self.inner.upload_shared(from, range, to)
    }

    fn download(&mut self, from: &Region, to: &mut dyn HostMemory, offset: u64) -> Result<()> {
        self.operation("downloading")?;
        if let Some(faulty) = (&mut *to as &mut dyn Any).downcast_mut::<FaultyHostMemory>() {
            faulty.corrupt |= self.opening.injector.corrupt_next.swap(false, SeqCst);
        }
        self.inner.download(from, inner_host(to, &self.opening)?, offset)
    }

    fn copy(&mut self, from: &Region, to: &Region) -> Result<()> {
        self.operation("copying")?;
        self.inner.copy(from, to)
    }

    fn zero(&mut self, region: &Region) -> Result<()> {
        self.operation("zeroing")?;
        self.inner.zero(region)
    }

    fn fill(&mut self, region: &Region, pattern: &[u8]) -> Result<bool> {
        self.operation("filling")?;
        self.inner.fill(region, pattern)
    }

    fn check_kernel(&self, bound: &Arc<dyn BoundKernelBackend>) -> Result<()> {
        self.inner.check_kernel(bound)
    }

    fn launch(&mut self, bound: &Arc<dyn BoundKernelBackend>, groups: [u32; 3], params: &[u8]) -> Result<()> {
        self.operation("launching a kernel")?;
        self.inner.launch(bound, groups, params)
    }

    fn record_graph(&mut self, launches: &[RecordedLaunch]) -> Result<Option<Arc<dyn GraphBackend>>> {
        self.operation("recording a graph")?;
        self.inner.record_graph(launches)
    }

    fn replay(&mut self, graph: &Arc<dyn GraphBackend>) -> Result<bool> {
        self.operation("replaying a graph")?;
        self.inner.replay(graph)
    }

    fn timestamp(&mut self) -> Result<Arc<dyn TimestampBackend>> {
        self.operation("reading the clock")?;
        self.inner.timestamp()
    }

    fn record_event(&mut self) -> Result<Arc<dyn EventBackend>> {
        self.operation("recording an event")?;
        Ok(self.close()?)
    }

    fn wait_event(&mut self, event: &Arc<dyn EventBackend>) -> Result<()> {
        self.operation("waiting for another stream")?;
        match (&**event as &dyn Any).downcast_ref::<FaultyEvent>() {
            Some(faulty) => self.inner.wait_event(&faulty.inner),
            None => self.inner.wait_event(event),
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.operation("flushing a stream")?;
        self.inner.flush()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.operation("waiting for a stream")?;
        let event = self.close()?;
        event.wait_slowed(timeout)?;
        // The inner stream returns and clears its own error only in `wait`.
        self.inner.wait(timeout)
    }
}

/// Returns the host memory that the inner back end made.
fn inner_host<'a>(memory: &'a mut dyn HostMemory, opening: &Opening) -> Result<&'a mut dyn HostMemory> {
    match (memory as &mut dyn Any).downcast_mut::<FaultyHostMemory>() {
        Some(faulty) => Ok(&mut *faulty.inner),
        None => {
            let detail = "the host memory belongs to another device";
            Err(Error::unsupported(&opening.injector.device, "copying", detail))
        }
    }
}

/// An event that is reached later than the inner one, by the device's slowdown factor.
#[derive(Debug)]
struct FaultyEvent {
    inner: Arc<dyn EventBackend>,
    opening: Opening,
    /// When the work before it began.
    began: Instant,
    /// The slowed-down end of the event before it in the stream.
    before: Option<Instant>,
    /// The slowed-down end of this event, set once the inner event is seen to be reached.
    slow_end: OnceLock<Instant>,
    /// Its number in the stream.
    number: u64,
    reached: Arc<Mutex<Option<(u64, Instant)>>>,
}

impl FaultyEvent {
    fn slow_end(&self) -> Instant {
        *self.slow_end.get_or_init(|| {
            let mut reached = lock(&self.reached);
            // A later event of the stream was reached before this one was waited for. This one was reached no later, and
            // the time that the host slept for the other does not count again.
            if let Some((number, when)) = *reached
                && number > self.number
            {
                return when;
            }
            let now = Instant::now();
            let began = self.before.map_or(self.began, |before| before.max(self.began));
            let end = began + now.saturating_duration_since(began).mul_f64(self.opening.injector.slowness());
            *reached = Some((self.number, end));
            end
        })
    }

    fn wait_slowed(&self, timeout: Option<Duration>) -> Result<()> {
        const NAME: &str = "waiting for a stream";
        let start = Instant::now();
        let left = || timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        let injector = &self.opening.injector;
        injector.check_lost(self.opening.number, NAME)?;
        injector.wait_while_hung(NAME, timeout)?;
        self.inner.wait(left())?;
        let rest = self.slow_end().saturating_duration_since(Instant::now());
        if let (Some(left), Some(timeout)) = (left(), timeout)
            && rest > left
        {
            std::thread::sleep(left);
            let (device, operation) = (injector.device.clone(), NAME.to_owned());
            return Err(Error::TimedOut { device, operation, after: timeout });
        }
        std::thread::sleep(rest);
        // A device that was killed during the wait returns no result.
        injector.check_lost(self.opening.number, NAME)
    }
}

impl EventBackend for FaultyEvent {
    fn is_done(&self) -> Result<bool> {
        self.opening.injector.check_lost(self.opening.number, "querying an event")?;
        if self.opening.injector.is_hung() || !self.inner.is_done()? {
            return Ok(false);
        }
        Ok(self.slow_end() <= Instant::now())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        self.opening.operation("waiting for an event")?;
        self.wait_slowed(timeout)
    }
}
