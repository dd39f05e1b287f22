//! Streams of a remote device: operations are put into the outbox without waiting for an answer each.

use std::{
    any::Any,
    ops::Range,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use super::{
    connection::{Failure, NotTaken, Reading, Slot, Window},
    device::{Object, Opening, RemoteBoundKernel},
    memory::{DownloadTarget, LentPart, RemoteHostMemory, SharedPart},
};
use crate::{
    backend::{
        BoundKernelBackend, EventBackend, GraphBackend, HostMemory, RecordedLaunch, Region, SharedMemory,
        StreamBackend, TimestampBackend,
    },
    describe::Features,
    error::{Error, Result},
    remote::{
        INLINE_BYTES, TRANSFER_BYTES,
        frame::encode,
        message::{Answer, Ask, Id, Operation, Span, ToWorker, WireLaunch},
        outbox::{Copy, Payload},
    },
};

/// The name of a wait in errors.
const WAITING: &str = "waiting for a stream";

#[derive(Debug)]
pub(super) struct RemoteStream {
    opening: Arc<Opening>,
    id: Id,
    window: Arc<Window>,
    features: Features,
    /// The time on this stream's clock, which its timestamps read.
    clock: Arc<Mutex<Duration>>,
    /// A wait that timed out: the worker reports errors of operations before it with its end.
    unfinished: Option<RemoteEvent>,
}

impl RemoteStream {
    pub(super) fn open(opening: Arc<Opening>, features: Features) -> Result<Self> {
        let id = opening.connection.new_id();
        let message = ToWorker::OpenStream { opening: opening.id, stream: id };
        let opened = opening.connection.new_window(id);
        let opened = opened.and_then(|window| opening.connection.put_lazily(&message).map(|()| window));
        let window = opened.map_err(|reason| opening.lost("creating a stream", reason))?;
        Ok(RemoteStream { opening, id, window, features, clock: Arc::default(), unfinished: None })
    }

    /// Queues an operation and the data that it sends inside of its frame. It starts with the next event, flush or wait.
    fn run(&self, name: &str, operation: Operation, payload: Vec<u8>) -> Result<()> {
        self.run_with_data(name, operation, payload, 0, None)
    }

    /// Queues an operation, and announces data that follows. With a timeout, the call neither waits longer for the window
    /// nor writes to the pipe itself.
    fn run_with_data(
        &self,
        name: &str,
        operation: Operation,
        payload: Vec<u8>,
        data: u64,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let starts = matches!(operation, Operation::Event { .. } | Operation::Flush | Operation::Wait { .. });
        let encoded = encode(&ToWorker::Run { stream: self.id, operation })
            .map_err(|why| Error::unsupported(&self.opening.device, name, why.to_string()))?;
        let bytes = (encoded.len() + payload.len()) as u64;
        self.window.take(bytes, data, timeout).map_err(|why| match why {
            NotTaken::Lost(reason) => self.opening.lost(name, reason),
            NotTaken::TimedOut => self.timed_out(name, timeout.unwrap_or_default()),
        })?;
        let outbox = self.opening.connection.outbox();
        let put = match (starts, timeout) {
            (true, None) => outbox.put(encoded),
            (true, Some(_)) => outbox.put_for_thread(encoded),
            (false, _) => outbox.put_lazily(encoded, payload),
        };
        put.map_err(|reason| self.opening.lost(name, reason))
    }

    fn timed_out(&self, operation: &str, after: Duration) -> Error {
        Error::TimedOut { device: self.opening.device.clone(), operation: operation.into(), after }
    }

    /// Uploads a range of bytes, in transfers of which each is one copy for the worker's device.
    fn send(&self, to: Span, bytes: u64, part: impl Fn(Range<usize>) -> Payload) -> Result<()> {
        const NAME: &str = "uploading";
        for start in (0..bytes).step_by(TRANSFER_BYTES) {
            let end = bytes.min(start + TRANSFER_BYTES as u64);
            let to = Span { offset: to.offset + start, bytes: end - start, ..to };
            let transfer = self.opening.connection.new_id();
            let operation = Operation::Upload { to, transfer: Some(transfer) };
            self.run_with_data(NAME, operation, Vec::new(), end - start, None)?;
            let payload = part(start as usize..end as usize);
            let copy = Copy { transfer, offset: 0, payload, sent: 0 };
            let put = self.opening.connection.outbox().put_copy(self.id, copy);
            put.map_err(|reason| self.opening.lost(NAME, reason))?;
        }
        Ok(())
    }

    fn own_kernel<'a>(&self, bound: &'a Arc<dyn BoundKernelBackend>) -> Result<&'a RemoteBoundKernel> {
        let own = (&**bound as &dyn Any).downcast_ref::<RemoteBoundKernel>();
        let connection = &self.opening.connection;
        own.filter(|own| Arc::ptr_eq(&own.object.opening.connection, connection)).ok_or_else(|| {
            let detail = "the kernel belongs to another device";
            Error::unsupported(&self.opening.device, "launching a kernel", detail)
        })
    }

    fn launch_of(
        &self,
        bound: &Arc<dyn BoundKernelBackend>,
        groups: [u32; 3],
        params: &[u8],
    ) -> Result<WireLaunch> {
        Ok(WireLaunch { bound: self.own_kernel(bound)?.object.id, groups, params: params.to_vec() })
    }

    fn put_event(
        &self,
        timeout: Option<Duration>,
        operation: impl FnOnce(Id) -> Operation,
    ) -> Result<RemoteEvent> {
        const NAME: &str = "recording an event";
        let object = Object::new(&self.opening);
        let slot = self.opening.connection.expect_event(object.id);
        let slot = slot.map_err(|reason| self.opening.lost(NAME, reason))?;
        let queued = self.run_with_data(NAME, operation(object.id), Vec::new(), 0, timeout);
        if let Err(error) = queued {
            self.opening.connection.expect_no_event(object.id);
            return Err(error);
        }
        Ok(RemoteEvent { object, slot })
    }
}

impl StreamBackend for RemoteStream {
    fn upload(&mut self, from: &mut dyn HostMemory, range: Range<u64>, to: &Region) -> Result<()> {
        let to = self.opening.span(to)?;
        let from = RemoteHostMemory::of(from, &self.opening.device)?;
        let (first, bytes) = (range.start as usize, range.end - range.start);
        if bytes <= INLINE_BYTES {
            from.reclaim()?;
            let payload = from.bytes()[first..range.end as usize].to_vec();
            return self.run("uploading", Operation::Upload { to, transfer: None }, payload);
        }
        let block = Arc::new(from.lend()?);
        self.send(to, bytes, |part| {
            let range = first + part.start..first + part.end;
            Box::new(LentPart { block: block.clone(), range })
        })
    }

    fn upload_shared(
        &mut self,
        from: &Arc<dyn SharedMemory>,
        range: Range<u64>,
        to: &Region,
    ) -> Result<bool> {
        let to = self.opening.span(to)?;
        let first = range.start as usize;
        let part = |part: Range<usize>| -> Payload {
            let range = first + part.start..first + part.end;
            Box::new(SharedPart { memory: from.clone(), range })
        };
        self.send(to, range.end - range.start, part)?;
        Ok(true)
    }

    fn download(&mut self, from: &Region, to: &mut dyn HostMemory, offset: u64) -> Result<()> {
        const NAME: &str = "downloading";
        let from = self.opening.span(from)?;
        let block = RemoteHostMemory::of(to, &self.opening.device)?.lend()?;
        let range = offset as usize..(offset + from.bytes) as usize;
        let transfer = self.opening.connection.new_id();
        let expected = self.opening.connection.expect_download(transfer, DownloadTarget::new(block, range));
        expected.map_err(|reason| self.opening.lost(NAME, reason))?;
        self.run(NAME, Operation::Download { from, transfer }, Vec::new())
    }

    fn copy(&mut self, from: &Region, to: &Region) -> Result<()> {
        let (from, to) = (self.opening.span(from)?, self.opening.span(to)?);
        self.run("copying", Operation::Copy { from, to }, Vec::new())
    }

    fn zero(&mut self, region: &Region) -> Result<()> {
        let region = self.opening.span(region)?;
        self.run("zeroing", Operation::Zero { region }, Vec::new())
    }

    fn fill(&mut self, region: &Region, pattern: &[u8]) -> Result<bool> {
        let (region, pattern) = (self.opening.span(region)?, pattern.to_vec());
        self.run("filling", Operation::Fill { region, pattern }, Vec::new())?;
        Ok(true)
    }

    fn check_kernel(&self, bound: &Arc<dyn BoundKernelBackend>) -> Result<()> {
        self.own_kernel(bound).map(drop)
    }

    fn launch(&mut self, bound: &Arc<dyn BoundKernelBackend>, groups: [u32; 3], params: &[u8]) -> Result<()> {
        let launch = self.launch_of(bound, groups, params)?;
        self.run("launching a kernel", Operation::Launch(launch), Vec::new())
    }

    fn record_graph(&mut self, launches: &[RecordedLaunch]) -> Result<Option<Arc<dyn GraphBackend>>> {
        let wire = |launch: &RecordedLaunch| self.launch_of(&launch.bound, launch.groups, &launch.params);
        let launches = launches.iter().map(wire).collect::<Result<_>>()?;
        let object = Object::new(&self.opening);
        self.run("recording a graph", Operation::Record { graph: object.id, launches }, Vec::new())?;
        Ok(Some(Arc::new(RemoteGraph { object })))
    }

    fn replay(&mut self, graph: &Arc<dyn GraphBackend>) -> Result<bool> {
        let own = (&**graph as &dyn Any).downcast_ref::<RemoteGraph>();
        let connection = &self.opening.connection;
        match own.filter(|own| Arc::ptr_eq(&own.object.opening.connection, connection)) {
            Some(own) => {
                self.run("replaying a graph", Operation::Replay { graph: own.object.id }, Vec::new())?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn timestamp(&mut self) -> Result<Arc<dyn TimestampBackend>> {
        const NAME: &str = "reading the clock";
        if !self.features.contains(Features::TIMESTAMPS) {
            let detail = "the device has no timestamps";
            return Err(Error::unsupported(&self.opening.device, NAME, detail));
        }
        let object = Object::new(&self.opening);
        let reading = Arc::new(Reading { clock: self.clock.clone(), reading: OnceLock::new() });
        let expected = self.opening.connection.expect_reading(object.id, reading.clone());
        expected.map_err(|reason| self.opening.lost(NAME, reason))?;
        self.run(NAME, Operation::Timestamp { timestamp: object.id }, Vec::new())?;
        Ok(Arc::new(RemoteTimestamp { object, reading }))
    }

    fn record_event(&mut self) -> Result<Arc<dyn EventBackend>> {
        Ok(Arc::new(self.put_event(None, |event| Operation::Event { event })?))
    }

    fn wait_event(&mut self, event: &Arc<dyn EventBackend>) -> Result<()> {
        let own = (&**event as &dyn Any).downcast_ref::<RemoteEvent>();
        let connection = &self.opening.connection;
        match own.filter(|own| Arc::ptr_eq(&own.object.opening.connection, connection)) {
            Some(own) => {
                let operation = Operation::WaitEvent { event: own.object.id };
                self.run("waiting for another stream", operation, Vec::new())
            }
            None => {
                let detail = "the event belongs to another device";
                Err(Error::unsupported(&self.opening.device, "waiting for an event", detail))
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.run("flushing a stream", Operation::Flush, Vec::new())
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.map(|timeout| (Instant::now(), timeout));
        let left = || deadline.map(|(start, timeout)| timeout.saturating_sub(start.elapsed()));
        if let Some(before) = self.unfinished.take()
            && let Err(error) = before.wait(left())
        {
            if matches!(error, Error::TimedOut { .. }) {
                self.unfinished = Some(before);
            }
            return Err(error);
        }
        let wait = match self.put_event(left(), |event| Operation::Wait { event }) {
            // It was not sent, and so it does not clear an error.
            Err(Error::TimedOut { .. }) => return Err(self.timed_out(WAITING, timeout.unwrap_or_default())),
            wait => wait?,
        };
        match wait.wait(left()) {
            Err(Error::TimedOut { .. }) => {
                self.unfinished = Some(wait);
                Err(self.timed_out(WAITING, timeout.unwrap_or_default()))
            }
            outcome => outcome,
        }
    }
}

impl Drop for RemoteStream {
    fn drop(&mut self) {
        self.opening.connection.forget(&ToWorker::CloseStream { stream: self.id });
        self.opening.connection.close_window(self.id);
    }
}

#[derive(Debug)]
struct RemoteGraph {
    object: Object,
}

impl GraphBackend for RemoteGraph {}

#[derive(Debug)]
struct RemoteEvent {
    object: Object,
    slot: Arc<Slot<Result<(), Failure>>>,
}

impl RemoteEvent {
    fn outcome(&self, outcome: Result<(), Failure>) -> Result<()> {
        let Opening { connection, device, .. } = &*self.object.opening;
        outcome.map_err(|failure| connection.error(device, WAITING, failure))
    }
}

impl EventBackend for RemoteEvent {
    fn is_done(&self) -> Result<bool> {
        match self.slot.get() {
            Some(outcome) => self.outcome(outcome).map(|()| true),
            None => Ok(false),
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        match self.slot.wait(timeout) {
            Some(outcome) => self.outcome(outcome),
            None => Err(Error::TimedOut {
                device: self.object.opening.device.clone(),
                operation: WAITING.into(),
                after: timeout.unwrap_or_default(),
            }),
        }
    }
}

#[derive(Debug)]
struct RemoteTimestamp {
    object: Object,
    reading: Arc<Reading>,
}

impl TimestampBackend for RemoteTimestamp {
    fn since(&self, earlier: &dyn TimestampBackend) -> Result<Duration> {
        const NAME: &str = "reading a timestamp";
        let opening = &self.object.opening;
        let refuse = || {
            let detail = "wait for the stream first, and compare timestamps of one device";
            Error::unsupported(&opening.device, NAME, detail)
        };
        let earlier = (earlier as &dyn Any).downcast_ref::<RemoteTimestamp>().ok_or_else(refuse)?;
        let (Some(later), Some(before)) = (self.reading.reading.get(), earlier.reading.reading.get()) else {
            return Err(refuse());
        };
        if Arc::ptr_eq(&self.reading.clock, &earlier.reading.clock) {
            return Ok(later.saturating_sub(*before));
        }
        if !Arc::ptr_eq(&opening.connection, &earlier.object.opening.connection) {
            return Err(refuse());
        }
        // Only the worker can compare the clocks of two streams.
        let ask = Ask::Since { opening: opening.id, later: self.object.id, earlier: earlier.object.id };
        match opening.connection.ask(&opening.device, NAME, ask)? {
            Answer::Since(time) => Ok(time),
            _ => Err(refuse()),
        }
    }
}
