//! A connection to a worker: its threads, and what calls wait for.

use std::{
    collections::HashMap,
    fmt::Debug,
    io::{Read, Write},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use super::memory::DownloadTarget;
use crate::{
    affinity::unbound,
    describe::DeviceId,
    error::{Error, Result},
    remote::{
        ALIVE, DATA_QUEUE, DATA_WINDOW, SILENCE, exceeds_operation_window,
        frame::{FrameError, FrameReader, FrameWriter, VERSION, encode},
        message::{Answer, Ask, Clock, Id, ToClient, ToWorker, WireError},
        outbox::Outbox,
    },
};

/// Starts a worker, or reaches one that was started, each time that a connection is needed: at first, and after the one
/// before was lost.
pub trait Connector: Debug + Send + Sync {
    /// Returns the pipes of a worker, which need not have answered yet. Fails with a reason for the user.
    fn connect(&self) -> Result<Pipes, String>;

    /// Whether connecting is worth a try now. `false` while a batch system has not started the worker. Returns at once.
    fn is_there(&self) -> bool {
        true
    }

    /// When the worker will be taken away, if that is known. Returns at once.
    fn available_until(&self) -> Option<Instant> {
        None
    }
}

/// The two pipes of a worker.
#[derive(Debug)]
pub struct Pipes {
    /// What the worker writes.
    pub from_worker: Box<dyn ReadPipe>,
    /// What the worker reads.
    pub to_worker: Box<dyn WritePipe>,
    /// Ends the worker.
    pub worker: Arc<dyn WorkerHandle>,
}

/// A pipe to read from.
pub trait ReadPipe: Read + Send + Debug {}
impl<P: Read + Send + Debug> ReadPipe for P {}

/// A pipe to write to.
pub trait WritePipe: Write + Send + Debug {}
impl<P: Write + Send + Debug> WritePipe for P {}

/// The worker at the other end of a connection.
pub trait WorkerHandle: Send + Sync + Debug {
    /// Ends the worker, after which both pipes end too. Called once the connection is closed or lost.
    fn end(&self);
    /// What the worker, or the program that started it, said last, for the user to understand why a connection ended.
    fn last_words(&self) -> Option<String> {
        None
    }
}

/// A value that one thread sets and others wait for.
#[derive(Debug)]
pub(super) struct Slot<T> {
    value: Mutex<Option<T>>,
    set: Condvar,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot { value: Mutex::new(None), set: Condvar::new() }
    }
}

impl<T: Clone> Slot<T> {
    fn set(&self, value: T) {
        self.lock().get_or_insert(value);
        self.set.notify_all();
    }

    pub(super) fn get(&self) -> Option<T> {
        self.lock().clone()
    }

    /// Waits for the value, or returns `None` after the timeout.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Option<T> {
        let value = self.lock();
        let is_pending = |value: &mut Option<T>| value.is_none();
        match timeout {
            None => self.set.wait_while(value, is_pending).unwrap_or_else(PoisonError::into_inner).clone(),
            Some(timeout) => {
                let waited = self.set.wait_timeout_while(value, timeout, is_pending);
                waited.unwrap_or_else(PoisonError::into_inner).0.clone()
            }
        }
    }

    // A clone that panics leaves the value as it is.
    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error as a slot has it: of the worker, or the reason for which the connection was lost.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    Lost(String),
    Worker(WireError),
}

/// A stream's bytes in flight: sent, or waiting to be, and not yet credited by the worker.
#[derive(Debug, Default)]
pub(super) struct Window {
    state: Mutex<InFlight>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct InFlight {
    operations: u64,
    data: u64,
    lost: Option<String>,
}

/// Why a window could not be taken.
#[derive(Debug)]
pub(super) enum NotTaken {
    Lost(String),
    TimedOut,
}

impl Window {
    /// Waits until an operation, and the data that it sends, may be put: at most for the timeout.
    pub(super) fn take(&self, operations: u64, data: u64, timeout: Option<Duration>) -> Result<(), NotTaken> {
        let is_full = |state: &mut InFlight| {
            let exceeds_queue = data > 0 && state.data > 0 && state.data + data > DATA_QUEUE;
            state.lost.is_none() && (exceeds_operation_window(state.operations, operations) || exceeds_queue)
        };
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = match timeout {
            None => self.freed.wait_while(state, is_full).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self.freed.wait_timeout_while(state, timeout, is_full);
                let (state, elapsed) = waited.unwrap_or_else(PoisonError::into_inner);
                if elapsed.timed_out() {
                    return Err(NotTaken::TimedOut);
                }
                state
            }
        };
        state.operations += operations;
        state.data += data;
        state.lost.clone().map_or(Ok(()), |reason| Err(NotTaken::Lost(reason)))
    }

    fn change(&self, change: impl FnOnce(&mut InFlight)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.freed.notify_all();
    }
}

/// A timestamp of a stream, and the stream's clock: the sum of the times between its timestamps.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) clock: Arc<Mutex<Duration>>,
    pub(super) reading: OnceLock<Duration>,
}

/// What the reading thread delivers to.
#[derive(Debug, Default)]
struct Waiting {
    lost: Option<String>,
    answers: HashMap<Id, Arc<Slot<Result<Answer, Failure>>>>,
    events: HashMap<Id, Arc<Slot<Result<(), Failure>>>>,
    downloads: HashMap<Id, DownloadTarget>,
    windows: HashMap<Id, Arc<Window>>,
    readings: HashMap<Id, Arc<Reading>>,
}

/// What the calls and the threads of a connection share.
#[derive(Debug)]
struct Shared {
    outbox: Outbox,
    waiting: Mutex<Waiting>,
    /// Bytes that were received, to notice silence.
    received: AtomicU64,
    worker: Arc<dyn WorkerHandle>,
    monitor: OnceLock<Thread>,
}

/// A worker that is being started. Either the thread that starts it or the call that waits for it ends one that comes
/// too late.
#[derive(Debug)]
enum Attempt {
    Starting,
    Started(Arc<dyn WorkerHandle>),
    GivenUp,
}

/// A connection to a worker. Dropping it ends the worker.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    host: Arc<str>,
    ids: AtomicU64,
}

impl Connection {
    /// Connects to a worker and greets it. Fails with the reason, at the latest after `timeout`.
    pub(super) fn open(
        host: Arc<str>,
        connector: Arc<dyn Connector>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let attempt = Arc::new(Mutex::new(Attempt::Starting));
        let (send_outcome, outcome) = mpsc::channel();
        let starting = attempt.clone();
        let connect = move || {
            let Pipes { from_worker, to_worker, worker } = connector.connect()?;
            let started = Attempt::Started(worker.clone());
            let mut attempt = starting.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(std::mem::replace(&mut *attempt, started), Attempt::GivenUp) {
                worker.end();
                return Err("timed out".to_owned());
            }
            drop(attempt);
            greet(from_worker, to_worker, worker)
        };
        let started = unbound(|| {
            let builder = thread::Builder::new().name(format!("evener-{host}-connect"));
            builder.spawn(move || {
                if let Err(unwanted) = send_outcome.send(connect()) {
                    drop(unwanted.0.map(|shared| shared.lose("closed")));
                }
            })
        });
        started.map_err(|why| format!("a thread cannot be started: {why}"))?;
        match outcome.recv_timeout(timeout) {
            Ok(shared) => Ok(Connection { shared: shared?, host, ids: AtomicU64::new(1) }),
            Err(_) => {
                let attempt = std::mem::replace(
                    &mut *attempt.lock().unwrap_or_else(PoisonError::into_inner),
                    Attempt::GivenUp,
                );
                let words = match attempt {
                    Attempt::Started(worker) => {
                        worker.end();
                        worker.last_words()
                    }
                    Attempt::Starting | Attempt::GivenUp => None,
                };
                let words = words.map(|words| format!(" ({words})")).unwrap_or_default();
                Err(format!("no answer within {timeout:?}{words}"))
            }
        }
    }

    /// Returns a new number, for an object, a request or a transfer.
    pub(super) fn new_id(&self) -> Id {
        self.ids.fetch_add(1, Relaxed)
    }

    /// Whether calls fail, and the device has to be opened again.
    pub(super) fn is_lost(&self) -> bool {
        // A write that fails closes the outbox. The reason is looked for, and those who wait are told, a moment later.
        self.shared.outbox.is_closed() || self.shared.lock().lost.is_some()
    }

    /// Makes an error of a failure.
    pub(super) fn error(&self, device: &DeviceId, operation: &str, failure: Failure) -> Error {
        match failure {
            Failure::Worker(error) => error.into_error(&self.host, device),
            Failure::Lost(reason) => Error::lost(device, operation, reason),
        }
    }

    /// Asks the worker, and waits for its answer.
    pub(super) fn ask(&self, device: &DeviceId, operation: &str, ask: Ask) -> Result<Answer> {
        self.ask_within(device, operation, ask, None)
    }

    /// Asks the worker, and waits for its answer. Without one after the timeout, the connection is lost.
    pub(super) fn ask_within(
        &self,
        device: &DeviceId,
        operation: &str,
        ask: Ask,
        timeout: Option<Duration>,
    ) -> Result<Answer> {
        let request = self.new_id();
        let slot = Arc::new(Slot::default());
        let encoded = encode(&ToWorker::Request { request, ask })
            .map_err(|why| Error::unsupported(device, operation, why.to_string()))?;
        let asked = self.shared.register(|waiting| drop(waiting.answers.insert(request, slot.clone())));
        let outcome = match asked.and_then(|()| self.shared.outbox.put(encoded)) {
            Ok(()) => slot.wait(timeout).unwrap_or_else(|| {
                let reason = format!("no answer within {:?}", timeout.unwrap_or_default());
                self.shared.lose(reason.clone());
                Err(Failure::Lost(reason))
            }),
            Err(reason) => Err(Failure::Lost(reason)),
        };
        outcome.map_err(|failure| self.error(device, operation, failure))
    }

    /// Puts a message into the order, to be sent with the next urgent one.
    pub(super) fn put_lazily(&self, message: &ToWorker) -> Result<(), String> {
        self.shared.outbox.put_lazily(encode(message).map_err(|why| why.to_string())?, Vec::new())
    }

    /// Tells the worker, with the next message, that something was dropped.
    pub(super) fn forget(&self, message: &ToWorker) {
        // After a loss there is nothing to drop.
        let _ = self.put_lazily(message);
    }

    pub(super) fn outbox(&self) -> &Outbox {
        &self.shared.outbox
    }

    pub(super) fn new_window(&self, stream: Id) -> Result<Arc<Window>, String> {
        let window = Arc::new(Window::default());
        self.shared.register(|waiting| drop(waiting.windows.insert(stream, window.clone())))?;
        self.shared.outbox.open_lane(stream, DATA_WINDOW)?;
        Ok(window)
    }

    pub(super) fn close_window(&self, stream: Id) {
        self.shared.lock().windows.remove(&stream);
        self.shared.outbox.close_lane(stream);
    }

    pub(super) fn expect_event(&self, event: Id) -> Result<Arc<Slot<Result<(), Failure>>>, String> {
        let slot = Arc::new(Slot::default());
        self.shared.register(|waiting| drop(waiting.events.insert(event, slot.clone())))?;
        Ok(slot)
    }

    /// Forgets an event that was not sent.
    pub(super) fn expect_no_event(&self, event: Id) {
        self.shared.lock().events.remove(&event);
    }

    pub(super) fn expect_download(&self, transfer: Id, target: DownloadTarget) -> Result<(), String> {
        self.shared.register(|waiting| drop(waiting.downloads.insert(transfer, target)))
    }

    pub(super) fn expect_reading(&self, timestamp: Id, reading: Arc<Reading>) -> Result<(), String> {
        self.shared.register(|waiting| drop(waiting.readings.insert(timestamp, reading)))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.lose("the connection was closed");
    }
}

/// Exchanges greetings, and starts the threads of a connection.
fn greet(
    from_worker: Box<dyn ReadPipe>,
    to_worker: Box<dyn WritePipe>,
    worker: Arc<dyn WorkerHandle>,
) -> Result<Arc<Shared>, String> {
    // What a program says at its end, it says before it is killed.
    let last_words = || {
        let words = worker.last_words();
        worker.end();
        words
    };
    let fail = |reason: String| match last_words() {
        Some(words) => format!("{words} ({reason})"),
        None => reason,
    };
    let mut writer = FrameWriter::new(to_worker);
    // A worker of another version may have ended already: what it wrote says more than a broken pipe.
    let greeted = writer.preamble();
    let shared = Arc::new(Shared {
        outbox: Outbox::new(writer, |transfer, offset| {
            // The encoding of two numbers does not fail.
            encode(&ToWorker::Data { transfer, offset }).unwrap_or_default()
        }),
        waiting: Mutex::default(),
        received: AtomicU64::new(0),
        worker: worker.clone(),
        monitor: OnceLock::new(),
    });
    let mut reader = FrameReader::new(Counted { pipe: from_worker, shared: shared.clone() });
    let version = reader.preamble().map_err(|why| match why {
        FrameError::Io(_) => last_words().unwrap_or_else(|| "the worker ended without a greeting".into()),
        FrameError::Malformed(detail) => fail(detail),
    })?;
    match version {
        VERSION => {}
        other => {
            let newer = if other > VERSION { "newer" } else { "older" };
            worker.end();
            return Err(format!(
                "the worker has version {other} of the protocol, which is {newer} than {VERSION}: install the same \
                 version of Evener on both machines"
            ));
        }
    }
    greeted.map_err(|why| fail(why.to_string()))?;
    let (writing, reading, monitoring) = (shared.clone(), shared.clone(), Arc::downgrade(&shared));
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let builder = thread::Builder::new().name(format!("evener-remote-{name}"));
        builder.spawn(body).map_err(|why| fail(format!("a thread cannot be started: {why}")))
    };
    spawn(
        "writer",
        Box::new(move || {
            let reason = writing.outbox.run();
            // The reader finds out more about an end than the writer.
            thread::sleep(Duration::from_millis(100));
            writing.lose(reason);
        }),
    )?;
    spawn(
        "reader",
        Box::new(move || {
            let reason = reading.read(&mut reader);
            reading.lose(reason);
        }),
    )?;
    let monitor = spawn("monitor", Box::new(move || monitor(&monitoring)))?;
    // Only this call sets it.
    let _ = shared.monitor.set(monitor.thread().clone());
    Ok(shared)
}

/// Sends a sign of life each second, and gives up a worker that sends none for [`SILENCE`]. Only time in which this thread
/// runs counts, not a suspension of this process.
fn monitor(shared: &Weak<Shared>) {
    let (mut before, mut silent) = (0, Duration::ZERO);
    loop {
        thread::park_timeout(ALIVE);
        let Some(shared) = shared.upgrade() else { return };
        if shared.lock().lost.is_some() {
            return;
        }
        let received = shared.received.load(Relaxed);
        silent = if received == before { silent + ALIVE } else { Duration::ZERO };
        before = received;
        if silent > SILENCE {
            shared.lose(format!("the worker has been silent for {} s", SILENCE.as_secs()));
        } else if let Ok(alive) = encode(&ToWorker::Alive) {
            // This thread must not wait for a full pipe, which only a loss ends. The next turn finds one.
            let _ = shared.outbox.put_for_thread(alive);
        }
    }
}

/// A pipe whose bytes are counted.
struct Counted {
    pipe: Box<dyn ReadPipe>,
    shared: Arc<Shared>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.pipe.read(into)?;
        self.shared.received.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

impl Shared {
    // No code under this lock can panic between two changes that belong together.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers what is waited for. Fails with the reason if the connection is lost.
    fn register(&self, register: impl FnOnce(&mut Waiting)) -> Result<(), String> {
        let mut waiting = self.lock();
        match &waiting.lost {
            Some(reason) => Err(reason.clone()),
            None => {
                register(&mut waiting);
                Ok(())
            }
        }
    }

    /// Ends the connection: every call fails with this reason, now and later. Only the first call counts.
    fn lose(&self, reason: impl Into<String>) {
        let mut waiting = self.lock();
        if waiting.lost.is_some() {
            return;
        }
        let mut reason = reason.into();
        let lost = std::mem::take(&mut *waiting);
        // Calls that fail meanwhile get the reason without the worker's last words.
        waiting.lost = Some(reason.clone());
        drop(waiting);
        self.outbox.close(reason.clone(), None);
        self.worker.end();
        if let Some(words) = self.worker.last_words() {
            reason = format!("{reason} ({words})");
            self.lock().lost = Some(reason.clone());
        }
        lost.answers.values().for_each(|slot| slot.set(Err(Failure::Lost(reason.clone()))));
        lost.events.values().for_each(|slot| slot.set(Err(Failure::Lost(reason.clone()))));
        lost.windows.values().for_each(|window| window.change(|state| state.lost = Some(reason.clone())));
        if let Some(monitor) = self.monitor.get() {
            monitor.unpark();
        }
    }

    /// Reads until the connection ends. Returns the reason.
    fn read(&self, reader: &mut FrameReader<Counted>) -> String {
        loop {
            let message = match reader.next::<ToClient>() {
                Ok(Some(frame)) => frame,
                Ok(None) => return "the worker ended the connection".into(),
                Err(why) => return format!("the connection broke: {why}"),
            };
            let payload = message.payload_bytes;
            let delivered = match message.message {
                ToClient::Data { transfer, offset } => self.receive(reader, transfer, offset, payload),
                ToClient::Ended { reason } => return format!("the worker ended the connection: {reason}"),
                message => self.deliver(message),
            };
            if let Err(reason) = delivered {
                return format!("the connection broke: {reason}");
            }
        }
    }

    fn deliver(&self, message: ToClient) -> Result<(), String> {
        match message {
            ToClient::Alive => {}
            ToClient::Answer { request, answer } => {
                let slot = self.lock().answers.remove(&request).ok_or("an answer to no request")?;
                slot.set(answer.map_err(Failure::Worker));
            }
            ToClient::Reached { event, outcome, clocks } => {
                let mut waiting = self.lock();
                for Clock { timestamp, since_previous } in clocks {
                    let reading = waiting.readings.remove(&timestamp).ok_or("an unknown timestamp")?;
                    let mut clock = reading.clock.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(since_previous) = since_previous {
                        *clock = clock.saturating_add(since_previous);
                        // Only this thread sets it, once.
                        let _ = reading.reading.set(*clock);
                    }
                }
                let slot = waiting.events.remove(&event).ok_or("an unknown event")?;
                drop(waiting);
                slot.set(outcome.map_err(Failure::Worker));
            }
            ToClient::Credit { stream, operations, data } => {
                // The stream may be closed already.
                let window = self.lock().windows.get(&stream).cloned();
                if let Some(window) = window {
                    window.change(|state| {
                        state.operations = state.operations.saturating_sub(operations);
                        state.data = state.data.saturating_sub(data);
                    });
                }
                self.outbox.add_credit(stream, data);
            }
            ToClient::Abandoned { transfer } => {
                self.lock().downloads.remove(&transfer).ok_or("the end of an unknown download")?;
            }
            ToClient::Data { .. } | ToClient::Ended { .. } => {}
        }
        Ok(())
    }

    /// Reads a piece of a download into the memory that waits for it.
    fn receive(
        &self,
        reader: &mut FrameReader<Counted>,
        transfer: Id,
        offset: u64,
        bytes: usize,
    ) -> Result<(), String> {
        let mut target = self.lock().downloads.remove(&transfer).ok_or("data of an unknown download")?;
        let piece = target.next_piece(offset, bytes).ok_or("data at another offset than expected")?;
        reader.payload(piece).map_err(|why| why.to_string())?;
        if !target.is_complete() {
            // After a loss, the target is dropped, which returns the memory to its owner.
            let _ = self.register(|waiting| drop(waiting.downloads.insert(transfer, target)));
        }
        Ok(())
    }
}
