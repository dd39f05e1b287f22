//! The two threads of a stream: one queues operations on the device, and one waits for what has an end to report.

use std::{
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use crate::{
    Event, Graph, Stream, Timestamp, Transfer,
    backend::Direction,
    buffer::{Buffer, HostBuffer},
    describe::Api,
    device::Device,
    error::{Error, Result},
    kernel::BoundKernel,
    remote::{
        DATA_WINDOW, OPERATION_CREDIT, OPERATION_WINDOW, TRANSFER_BYTES, exceeds_operation_window,
        frame::encode,
        message::{Clock, Id, ToClient, WireError},
        outbox::{Copy, Outbox},
    },
};

/// An operation whose objects were found.
#[derive(Debug)]
pub(super) enum Step {
    /// An operation that failed already.
    Failed(Error),
    Upload {
        to: Buffer<u8>,
        data: Vec<u8>,
    },
    UploadArrived {
        to: Result<Buffer<u8>>,
        arrived: Receiver<Arrived>,
    },
    Download {
        from: Result<Buffer<u8>>,
        transfer: Id,
    },
    Copy {
        from: Buffer<u8>,
        to: Buffer<u8>,
    },
    Zero(Buffer<u8>),
    Fill {
        region: Buffer<u8>,
        pattern: Vec<u8>,
    },
    Launch(FoundLaunch),
    Record {
        slot: Arc<Recorded<Arc<Graph>>>,
        launches: Vec<FoundLaunch>,
    },
    Replay(Arc<Recorded<Arc<Graph>>>),
    Timestamp {
        id: Id,
        slot: Arc<OnceLock<Timestamp>>,
    },
    Event {
        id: Id,
        slot: Arc<Recorded<Event>>,
    },
    WaitEvent(Arc<Recorded<Event>>),
    Flush,
    Wait {
        id: Id,
    },
}

/// A launch whose bound kernel was found.
#[derive(Debug)]
pub(super) struct FoundLaunch {
    pub(super) bound: BoundKernel,
    pub(super) groups: [u32; 3],
    pub(super) params: Vec<u8>,
}

/// The data of an upload, complete.
#[derive(Debug)]
pub(super) struct Arrived {
    /// `None` if there was no memory for it.
    pub(super) host: Option<HostBuffer<u8>>,
    pub(super) bytes: usize,
}

/// An event or a graph, once its stream's thread has recorded it. Streams wait for what was sent before: so no two threads
/// wait for each other.
#[derive(Debug)]
pub(super) struct Recorded<T> {
    value: Mutex<Option<Result<T>>>,
    recorded: Condvar,
}

impl<T> Default for Recorded<T> {
    fn default() -> Self {
        Recorded { value: Mutex::new(None), recorded: Condvar::new() }
    }
}

impl<T: Clone> Recorded<T> {
    pub(super) fn set(&self, value: Result<T>) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.recorded.notify_all();
    }

    fn wait(&self) -> Result<T> {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let value = self.recorded.wait_while(value, |value| value.is_none());
        value.unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Err(Error::Ended))
    }
}

/// The bytes of a stream that the client may not send again yet.
#[derive(Debug, Default)]
struct InFlight {
    operations: AtomicU64,
    data: AtomicU64,
}

/// A stream, as the thread that reads sees it. Dropping it ends the stream's threads when they are done.
#[derive(Debug)]
pub(super) struct StreamHandle {
    pub(super) device: Device,
    steps: Sender<(Step, u64)>,
    in_flight: Arc<InFlight>,
}

impl StreamHandle {
    pub(super) fn start(id: Id, device: Device, outbox: Arc<Outbox>) -> Result<Self, String> {
        let (steps, queue) = channel();
        let (finishing, ends) = channel();
        let in_flight = Arc::new(InFlight::default());
        let report = Arc::new(Report {
            stream: id,
            outbox,
            in_flight: in_flight.clone(),
            credit: Mutex::default(),
            abandoned: Mutex::default(),
            unfinished: AtomicUsize::new(0),
        });
        let (reporter, window) = (report.clone(), Arc::new(DownloadWindow::default()));
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            let started = thread::Builder::new().name(format!("evener-{}-{name}", device.id())).spawn(body);
            started.map(drop).map_err(|why| format!("a thread cannot be started: {why}"))
        };
        spawn(
            "finish",
            Box::new(move || {
                let _guard = EndOnPanic(reporter.clone());
                finish(&ends, &reporter);
            }),
        )?;
        let on = device.clone();
        spawn(
            "queue",
            Box::new(move || {
                let _guard = EndOnPanic(report.clone());
                let mut queueing = Queueing {
                    stream: on.stream_for_thread(),
                    device: on,
                    failure: None,
                    clocks: Vec::new(),
                    last_timestamp: None,
                    finishing,
                    report,
                    window,
                };
                for (step, bytes) in queue {
                    queueing.run(step);
                    queueing.report.credit(bytes, 0);
                }
            }),
        )?;
        Ok(StreamHandle { device, steps, in_flight })
    }

    pub(super) fn queue(&self, step: Step, bytes: u64) -> Result<(), String> {
        self.steps.send((step, bytes)).map_err(|_| "the thread of a stream has ended".to_owned())
    }

    /// Counts an operation of the client.
    pub(super) fn take_credit(&self, bytes: u64) -> Result<(), String> {
        match exceeds_operation_window(self.in_flight.operations.fetch_add(bytes, SeqCst), bytes) {
            false => Ok(()),
            true => Err(format!("more than {OPERATION_WINDOW} bytes of operations in flight")),
        }
    }

    pub(super) fn uploads(&self) -> UploadWindow {
        UploadWindow(self.in_flight.clone())
    }
}

/// The bytes of a stream's uploads that the worker holds.
#[derive(Debug)]
pub(super) struct UploadWindow(Arc<InFlight>);

impl UploadWindow {
    /// Counts data of the client.
    pub(super) fn take_credit(&self, bytes: u64) -> Result<(), String> {
        match self.0.data.fetch_add(bytes, SeqCst) + bytes <= DATA_WINDOW {
            true => Ok(()),
            false => Err(format!("more than {DATA_WINDOW} bytes of uploads in flight")),
        }
    }
}

/// Ends the connection if a stream's thread panics: the client would wait for its events forever.
struct EndOnPanic(Arc<Report>);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            let reason = "a thread of the worker panicked";
            self.0.outbox.close(reason, encode(&ToClient::Ended { reason: reason.into() }).ok());
        }
    }
}

/// What the two threads tell the client.
#[derive(Debug)]
struct Report {
    stream: Id,
    outbox: Arc<Outbox>,
    in_flight: Arc<InFlight>,
    /// Credit that was not sent yet.
    credit: Mutex<(u64, u64)>,
    /// The last download that failed. Its other parts come next, and the client knows it no more.
    abandoned: Mutex<Option<Id>>,
    /// What was handed to the thread that waits, and is not reported yet.
    unfinished: AtomicUsize,
}

impl Report {
    /// Sends a message behind all data that was sent before.
    fn send(&self, message: &ToClient) {
        // After the connection's end nobody waits for it.
        let _ = encode(message).map(|encoded| self.outbox.put_in_lane(self.stream, encoded));
    }

    fn reached(&self, event: Id, outcome: Result<()>, clocks: Vec<PendingClock>) {
        let read = |PendingClock { id, reading, previous }: PendingClock| {
            let since_previous = match (reading.get(), previous.as_ref().and_then(|previous| previous.get()))
            {
                (Some(later), Some(earlier)) => later.since(earlier).ok(),
                (Some(_), None) => Some(Duration::ZERO),
                (None, _) => None,
            };
            Clock { timestamp: id, since_previous }
        };
        let clocks = clocks.into_iter().map(read).collect();
        let outcome = outcome.map_err(|error| WireError::from(&error));
        self.send(&ToClient::Reached { event, outcome, clocks });
    }

    /// Lets the client send these many bytes more. Small amounts are gathered.
    fn credit(&self, operations: u64, data: u64) {
        let mut credit = self.credit.lock().unwrap_or_else(PoisonError::into_inner);
        credit.0 += operations;
        credit.1 += data;
        if credit.0 < OPERATION_CREDIT && credit.1 < DATA_WINDOW / 8 {
            return;
        }
        let (operations, data) = std::mem::take(&mut *credit);
        // Before the client can use it.
        self.in_flight.operations.fetch_sub(operations, SeqCst);
        self.in_flight.data.fetch_sub(data, SeqCst);
        let message = ToClient::Credit { stream: self.stream, operations, data };
        let _ = encode(&message).map(|encoded| self.outbox.put(encoded));
    }
}

/// Bytes of downloads that wait to be sent.
#[derive(Debug, Default)]
struct DownloadWindow {
    bytes: Mutex<usize>,
    sent: Condvar,
}

impl DownloadWindow {
    fn take(self: &Arc<Self>, bytes: usize) -> DownloadPermit {
        let waiting = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |waiting: &mut usize| *waiting + bytes > DATA_WINDOW as usize;
        *self.sent.wait_while(waiting, is_full).unwrap_or_else(PoisonError::into_inner) += bytes;
        DownloadPermit { window: self.clone(), bytes }
    }
}

/// The right to hold these many bytes of a download.
#[derive(Debug)]
struct DownloadPermit {
    window: Arc<DownloadWindow>,
    bytes: usize,
}

impl Drop for DownloadPermit {
    fn drop(&mut self) {
        *self.window.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.window.sent.notify_one();
    }
}

/// A part of a download that is sent.
#[derive(Debug)]
struct Downloaded {
    host: HostBuffer<u8>,
    permit: DownloadPermit,
}

impl AsRef<[u8]> for Downloaded {
    fn as_ref(&self) -> &[u8] {
        &self.host.as_slice()[..self.permit.bytes]
    }
}

/// A timestamp that was queued, and the one before it in the stream.
#[derive(Debug)]
struct PendingClock {
    id: Id,
    reading: Arc<OnceLock<Timestamp>>,
    previous: Option<Arc<OnceLock<Timestamp>>>,
}

/// Something in flight on the device whose end is to be reported.
enum InOrder {
    Upload { transfer: Transfer<u8>, bytes: usize },
    Download { transfer: Transfer<u8>, permit: DownloadPermit, id: Id, offset: u64 },
    Abandoned { id: Id },
    Event { id: Id, event: Result<Event>, clocks: Vec<PendingClock> },
    Waited { id: Id, outcome: Result<()>, clocks: Vec<PendingClock> },
}

/// The thread that queues operations.
struct Queueing {
    device: Device,
    /// The stream, or why there is none.
    stream: Result<Stream>,
    /// The first error since the last wait. Operations after it are skipped.
    failure: Option<Error>,
    /// Timestamps since the last event.
    clocks: Vec<PendingClock>,
    last_timestamp: Option<Arc<OnceLock<Timestamp>>>,
    finishing: Sender<InOrder>,
    report: Arc<Report>,
    window: Arc<DownloadWindow>,
}

impl Queueing {
    fn run(&mut self, step: Step) {
        match step {
            Step::Event { id, slot } => self.event(id, &slot),
            Step::Wait { id } => self.wait(id),
            Step::Record { slot, launches } => {
                // Other streams may wait for it, so an error is recorded too.
                let graph = self.record(&launches);
                if let Err(error) = &graph {
                    self.failure.get_or_insert_with(|| error.clone());
                }
                slot.set(graph);
            }
            // The data arrives, and is given credit for, even if it is not used.
            Step::UploadArrived { to, arrived } => self.upload_arrived(to, &arrived),
            Step::Download { from, transfer } => {
                let outcome = from.and_then(|from| self.download(&from, transfer));
                if let Err(error) = outcome {
                    self.failure.get_or_insert(error);
                    self.finish(InOrder::Abandoned { id: transfer });
                }
            }
            Step::Timestamp { id, slot } => self.timestamp(id, slot),
            step => {
                if self.failure.is_none()
                    && let Err(error) = self.run_on_device(step)
                {
                    self.failure = Some(error);
                }
            }
        }
    }

    fn stream(&mut self) -> Result<&mut Stream> {
        self.stream.as_mut().map_err(|error| error.clone())
    }

    /// Reports something that has ended, or hands it to the other thread, which ends after this one. Only a processor is
    /// asked, whose operations have ended when they are queued: a GPU has hardly begun, and wgpu may panic if two threads
    /// poll a device at once and one of them asks for a submission that is still running.
    fn finish(&self, in_order: InOrder) {
        let is_asked = self.device.describe().api == Api::Cpu || matches!(in_order, InOrder::Waited { .. });
        if is_asked && self.report.unfinished.load(SeqCst) == 0 && in_order.has_ended() {
            return self.report.end(in_order);
        }
        self.report.unfinished.fetch_add(1, SeqCst);
        let _ = self.finishing.send(in_order);
    }

    fn run_on_device(&mut self, step: Step) -> Result<()> {
        let stream = self.stream()?;
        match step {
            Step::Failed(error) => Err(error),
            Step::Upload { to, data } => stream.upload(&data, &to),
            Step::Copy { from, to } => stream.copy(&from, &to),
            Step::Zero(region) => stream.zero(&region),
            Step::Fill { region, pattern } => stream.fill_bytes(&region, &pattern),
            Step::Launch(FoundLaunch { bound, groups, params }) => {
                stream.launch_bytes(&bound, groups, &params)
            }
            Step::Replay(slot) => stream.replay(&*slot.wait()?),
            Step::WaitEvent(slot) => stream.wait_event(&slot.wait()?),
            Step::Flush => stream.flush(),
            Step::Event { .. }
            | Step::Wait { .. }
            | Step::Timestamp { .. }
            | Step::Record { .. }
            | Step::UploadArrived { .. }
            | Step::Download { .. } => Ok(()),
        }
    }

    /// Reads the clock. The client waits for the outcome, and so learns of a timestamp that fails or is skipped.
    fn timestamp(&mut self, id: Id, reading: Arc<OnceLock<Timestamp>>) {
        let mut previous = None;
        if self.failure.is_none() {
            match self.stream().and_then(Stream::timestamp) {
                Ok(timestamp) => {
                    // Only this thread sets it, once.
                    let _ = reading.set(timestamp);
                    previous = self.last_timestamp.replace(reading.clone());
                }
                Err(error) => self.failure = Some(error),
            }
        }
        self.clocks.push(PendingClock { id, reading, previous });
    }

    fn record(&mut self, launches: &[FoundLaunch]) -> Result<Arc<Graph>> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let graph = self.stream()?.record_graph(|recorder| {
            launches.iter().try_for_each(|FoundLaunch { bound, groups, params }| {
                recorder.launch_bytes(bound, *groups, params)
            })
        })?;
        Ok(Arc::new(graph))
    }

    fn upload_arrived(&mut self, to: Result<Buffer<u8>>, arrived: &Receiver<Arrived>) {
        // The connection ended before the data came.
        let Ok(Arrived { host, bytes }) = arrived.recv() else { return };
        let outcome = match (&self.failure, to, host) {
            (Some(_), ..) => None,
            (None, Err(error), _) => Some(Err(error)),
            (None, Ok(_), None) => Some(Err(Error::OutOfMemory {
                device: self.device.id().clone(),
                operation: "uploading".into(),
                requested: bytes as u64,
                available: None,
                detail: "no host memory on the worker's machine".into(),
            })),
            (None, Ok(to), Some(host)) => {
                Some(self.stream().and_then(|stream| stream.upload_host_prefix(host, bytes, &to)))
            }
        };
        match outcome {
            Some(Ok(transfer)) => self.finish(InOrder::Upload { transfer, bytes }),
            Some(Err(error)) => {
                self.failure = Some(error);
                self.report.credit(0, bytes as u64);
            }
            None => self.report.credit(0, bytes as u64),
        }
    }

    fn download(&mut self, from: &Buffer<u8>, id: Id) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        for start in (0..from.len()).step_by(TRANSFER_BYTES) {
            let part = from.slice(start..from.len().min(start + TRANSFER_BYTES))?;
            let permit = self.window.take(part.len());
            let host = self.device.host_buffer(part.len(), Direction::Download)?;
            let transfer = self.stream()?.download_host(&part, host)?;
            self.finish(InOrder::Download { transfer, permit, id, offset: start as u64 });
        }
        Ok(())
    }

    fn event(&mut self, id: Id, slot: &Recorded<Event>) {
        let event = match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => self.stream().and_then(Stream::record_event),
        };
        slot.set(event.clone());
        let clocks = std::mem::take(&mut self.clocks);
        self.finish(InOrder::Event { id, event, clocks });
    }

    /// Waits for the device here: the client waits too, and queues nothing meanwhile.
    fn wait(&mut self, id: Id) {
        let waited = self.stream().and_then(Stream::wait);
        let outcome = self.failure.take().map_or(waited, Err);
        let clocks = std::mem::take(&mut self.clocks);
        // Behind the downloads before it.
        self.finish(InOrder::Waited { id, outcome, clocks });
    }
}

impl InOrder {
    /// Whether there is nothing to wait for. An error is an end too.
    fn has_ended(&self) -> bool {
        match self {
            InOrder::Upload { transfer, .. } | InOrder::Download { transfer, .. } => {
                transfer.is_done().unwrap_or(true)
            }
            InOrder::Event { event, .. } => event.as_ref().map_or(Ok(true), Event::is_done).unwrap_or(true),
            InOrder::Abandoned { .. } | InOrder::Waited { .. } => true,
        }
    }
}

impl Report {
    /// Waits for an operation, and reports its end.
    fn end(&self, end: InOrder) {
        match end {
            InOrder::Upload { transfer, bytes } => {
                // An error is reported by the next event.
                drop(transfer.wait());
                self.credit(0, bytes as u64);
            }
            InOrder::Download { transfer, permit, id, offset } => match transfer.wait() {
                Ok(host) => {
                    let payload = Box::new(Downloaded { host, permit });
                    let copy = Copy { transfer: id, offset, payload, sent: 0 };
                    // After the connection's end nobody waits for it.
                    let _ = self.outbox.put_copy(self.stream, copy);
                }
                // The parts after it fail too, so the client gets no wrong offset.
                Err(_) => self.abandon(id),
            },
            InOrder::Abandoned { id } => self.abandon(id),
            InOrder::Event { id, event, clocks } => {
                self.reached(id, event.and_then(|event| event.wait()), clocks);
            }
            InOrder::Waited { id, outcome, clocks } => self.reached(id, outcome, clocks),
        }
    }

    /// Tells the client once that a download has failed.
    fn abandon(&self, id: Id) {
        let before = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).replace(id);
        if before != Some(id) {
            self.send(&ToClient::Abandoned { transfer: id });
        }
    }
}

/// The thread that waits for operations, in their order.
fn finish(ends: &Receiver<InOrder>, report: &Report) {
    for end in ends {
        report.end(end);
        report.unfinished.fetch_sub(1, SeqCst);
    }
    report.outbox.close_lane(report.stream);
}
