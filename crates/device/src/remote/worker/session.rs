//! One client's openings, objects and streams.

use std::{
    collections::HashMap,
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc::{Sender, channel},
    },
    thread,
};

use super::stream::{Arrived, FoundLaunch, Recorded, Step, StreamHandle, UploadWindow};
use crate::{
    Event, Graph, Timestamp,
    backend::Direction,
    buffer::{Argument, Buffer, HostBuffer},
    describe::{Description, DeviceId},
    device::Device,
    discover::Inventory,
    error::{Error, Result},
    kernel::{BoundKernel, Program},
    remote::{
        MAX_OBJECTS, MAX_OPENINGS, MAX_REQUESTS, MAX_STREAMS, TRANSFER_BYTES,
        frame::{FrameReader, encode},
        message::{Answer, Ask, DevicePath, Id, Operation, Span, ToClient, ToWorker, WireError, WireLaunch},
        outbox::Outbox,
        wire_kernel::from_wire,
    },
};

/// Something that the client has a number of.
#[derive(Debug, Clone)]
pub(super) enum Object {
    Memory(Buffer<u8>),
    Program(Program),
    /// A bound kernel, or why the buffers could not be bound.
    Bound(Result<BoundKernel>),
    Event(Arc<Recorded<Event>>),
    Graph(Arc<Recorded<Arc<Graph>>>),
    Timestamp(Arc<OnceLock<Timestamp>>),
}

/// The objects of a client, which the threads of its openings add to.
type Objects = Arc<Mutex<HashMap<Id, Object>>>;

fn lock(objects: &Objects) -> MutexGuard<'_, HashMap<Id, Object>> {
    objects.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An opened device, and the thread that answers requests about it.
#[derive(Debug)]
struct Opening {
    device: Device,
    requests: Sender<Box<dyn FnOnce() + Send>>,
}

/// An upload whose data arrives.
#[derive(Debug)]
struct Incoming {
    /// Where it is counted: the stream itself may be closed before its data is there.
    window: UploadWindow,
    device: Device,
    bytes: usize,
    received: usize,
    /// Allocated when the first piece arrives.
    host: Option<HostBuffer<u8>>,
    arrived: Sender<Arrived>,
}

pub(super) struct Session {
    inventory: Arc<Inventory>,
    outbox: Arc<Outbox>,
    /// Opened devices: shared with the threads that open them.
    openings: Arc<Mutex<HashMap<Id, Arc<Opening>>>>,
    objects: Objects,
    streams: HashMap<Id, StreamHandle>,
    incoming: HashMap<Id, Incoming>,
    /// Requests that are being answered.
    requests: Arc<AtomicUsize>,
    turns: Arc<Turns>,
}

/// How many messages the thread that reads has begun to handle, and how many it has handled.
#[derive(Debug, Default)]
pub(super) struct Turns {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Turns {
    /// Returns the number of the message that is being handled.
    pub(super) fn current(&self) -> Option<u64> {
        let ended = self.ended.load(SeqCst);
        let begun = self.begun.load(SeqCst);
        (begun > ended).then_some(begun)
    }
}

/// Answers a request once. One that panics is answered too, for the client would wait for it forever.
struct Reply {
    request: Id,
    outbox: Arc<Outbox>,
    /// Requests that are being answered.
    requests: Arc<AtomicUsize>,
    is_sent: bool,
}

impl Reply {
    fn send(mut self, answer: Result<Answer>) {
        self.put(answer.map_err(|error| WireError::from(&error)));
    }

    fn put(&mut self, answer: Result<Answer, WireError>) {
        self.is_sent = true;
        self.requests.fetch_sub(1, SeqCst);
        let request = self.request;
        let encoded = encode(&ToClient::Answer { request, answer }).or_else(|why| {
            let detail = format!("the worker's answer cannot be sent: {why}");
            encode(&ToClient::Answer { request, answer: Err(WireError::Other { detail }) })
        });
        // After the connection's end nobody waits for it.
        let _ = encoded.map(|encoded| self.outbox.put(encoded));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_sent && thread::panicking() {
            let detail = "the worker panicked: its standard error says why".into();
            self.put(Err(WireError::Other { detail }));
        }
    }
}

/// Why the client's message ends the connection.
type Violation = String;

impl Session {
    pub(super) fn new(inventory: Inventory, outbox: Outbox) -> Self {
        Session {
            inventory: Arc::new(inventory),
            outbox: Arc::new(outbox),
            openings: Arc::default(),
            objects: Arc::default(),
            streams: HashMap::new(),
            incoming: HashMap::new(),
            requests: Arc::default(),
            turns: Arc::default(),
        }
    }

    pub(super) fn turns(&self) -> Arc<Turns> {
        self.turns.clone()
    }

    pub(super) fn outbox(&self) -> Arc<Outbox> {
        self.outbox.clone()
    }

    /// Handles messages until the client closes its pipe.
    pub(super) fn run(&mut self, reader: &mut FrameReader<impl Read>) -> Result<(), Violation> {
        while let Some(frame) = reader.next::<ToWorker>().map_err(|why| why.to_string())? {
            let (message_bytes, payload_bytes) = (frame.message_bytes, frame.payload_bytes);
            self.turns.begun.fetch_add(1, SeqCst);
            match frame.message {
                ToWorker::Data { transfer, offset } => {
                    self.receive(reader, transfer, offset, payload_bytes)?;
                }
                ToWorker::Run { stream, operation } => {
                    let mut payload = vec![0; payload_bytes];
                    reader.payload(&mut payload).map_err(|why| why.to_string())?;
                    let bytes = (message_bytes + payload_bytes) as u64;
                    self.queue(stream, operation, payload, bytes)?;
                }
                _ if payload_bytes > 0 => return Err("a message with a payload that has none".into()),
                message => self.handle(message)?,
            }
            self.turns.ended.fetch_add(1, SeqCst);
        }
        Ok(())
    }

    fn handle(&mut self, message: ToWorker) -> Result<(), Violation> {
        match message {
            // The pipe has counted its bytes.
            ToWorker::Alive => {}
            ToWorker::Request { request, ask } => self.answer(request, ask)?,
            ToWorker::Close { opening } => {
                let closed = self.openings.lock().unwrap_or_else(PoisonError::into_inner).remove(&opening);
                // Closing a device may take long, and others are opened meanwhile.
                drop(closed);
            }
            // The client drops the numbers of things that could not be made, too.
            ToWorker::Drop { object } => {
                let dropped = lock(&self.objects).remove(&object);
                drop(dropped);
            }
            ToWorker::Bind { program, bound, arguments } => {
                let Object::Program(program) = self.object(program)? else {
                    return Err("something that is not a program is bound".into());
                };
                let regions =
                    arguments.into_iter().map(|span| self.buffer(span)).collect::<Result<Vec<_>, _>>()?;
                let outcome = regions.into_iter().collect::<Result<Vec<_>>>();
                let outcome = outcome.and_then(|buffers| bind(&program, &buffers));
                self.add(bound, Object::Bound(outcome))?;
            }
            ToWorker::OpenStream { opening, stream } => {
                if self.streams.len() >= MAX_STREAMS {
                    return Err(format!("more than {MAX_STREAMS} streams"));
                }
                let device = self.opening(opening)?.device.clone();
                self.outbox.open_lane(stream, u64::MAX)?;
                let handle = StreamHandle::start(stream, device, self.outbox.clone())?;
                if self.streams.insert(stream, handle).is_some() {
                    return Err("a stream has the number of another".into());
                }
            }
            ToWorker::CloseStream { stream } => {
                self.streams.remove(&stream).ok_or("an unknown stream is closed")?;
            }
            ToWorker::Run { .. } | ToWorker::Data { .. } => {}
        }
        Ok(())
    }

    fn opening(&self, id: Id) -> Result<Arc<Opening>, Violation> {
        let openings = self.openings.lock().unwrap_or_else(PoisonError::into_inner);
        openings.get(&id).cloned().ok_or_else(|| "an opening that does not exist".into())
    }

    fn object(&self, id: Id) -> Result<Object, Violation> {
        lock(&self.objects).get(&id).cloned().ok_or_else(|| format!("object {id} does not exist"))
    }

    fn add(&self, id: Id, object: Object) -> Result<(), Violation> {
        let mut objects = lock(&self.objects);
        if objects.len() >= MAX_OBJECTS {
            return Err(format!("more than {MAX_OBJECTS} objects"));
        }
        match objects.insert(id, object) {
            None => Ok(()),
            Some(_) => Err(format!("object {id} exists already")),
        }
    }

    /// Returns a range of a buffer. A range out of bounds is an error of the operation.
    fn buffer(&self, span: Span) -> Result<Result<Buffer<u8>>, Violation> {
        let Object::Memory(memory) = self.object(span.memory)? else {
            return Err("something that is not a buffer is used as one".into());
        };
        let end = span.offset.saturating_add(span.bytes);
        Ok(memory.slice(span.offset as usize..usize::try_from(end).unwrap_or(usize::MAX)))
    }

    fn launch(&self, launch: WireLaunch) -> Result<Result<FoundLaunch>, Violation> {
        let Object::Bound(bound) = self.object(launch.bound)? else {
            return Err("something that is not a bound kernel is launched".into());
        };
        let WireLaunch { groups, params, .. } = launch;
        Ok(bound.map(|bound| FoundLaunch { bound, groups, params }))
    }

    /// Hands an operation to its stream.
    fn queue(
        &mut self,
        stream: Id,
        operation: Operation,
        payload: Vec<u8>,
        bytes: u64,
    ) -> Result<(), Violation> {
        let is_inline_upload = matches!(operation, Operation::Upload { transfer: None, .. });
        if !payload.is_empty() && !is_inline_upload {
            return Err("an operation with a payload that has none".into());
        }
        let step = match operation {
            Operation::Upload { to, transfer: None } => {
                self.buffer(to)?.map(|to| Step::Upload { to, data: payload })
            }
            Operation::Upload { to, transfer: Some(transfer) } => {
                if to.bytes == 0 || to.bytes > TRANSFER_BYTES as u64 {
                    return Err(format!("a transfer of {} bytes", to.bytes));
                }
                let (sender, arrived) = channel();
                let stream = self.streams.get(&stream).ok_or("an operation of an unknown stream")?;
                let incoming = Incoming {
                    window: stream.uploads(),
                    device: stream.device.clone(),
                    bytes: to.bytes as usize,
                    received: 0,
                    host: None,
                    arrived: sender,
                };
                if self.incoming.len() >= MAX_OBJECTS || self.incoming.insert(transfer, incoming).is_some() {
                    return Err("a transfer has the number of another".into());
                }
                // The data arrives even if it has no place.
                Ok(Step::UploadArrived { to: self.buffer(to)?, arrived })
            }
            Operation::Download { from, transfer } => {
                Ok(Step::Download { from: self.buffer(from)?, transfer })
            }
            Operation::Copy { from, to } => match (self.buffer(from)?, self.buffer(to)?) {
                (Ok(from), Ok(to)) => Ok(Step::Copy { from, to }),
                (Err(error), _) | (_, Err(error)) => Err(error),
            },
            Operation::Zero { region } => self.buffer(region)?.map(Step::Zero),
            Operation::Fill { region, pattern } => {
                self.buffer(region)?.map(|region| Step::Fill { region, pattern })
            }
            Operation::Launch(launch) => self.launch(launch)?.map(Step::Launch),
            Operation::Record { graph, launches } => {
                let slot = Arc::new(Recorded::default());
                self.add(graph, Object::Graph(slot.clone()))?;
                let launches = launches.into_iter().map(|launch| self.launch(launch));
                let launches =
                    launches.collect::<Result<Vec<_>, _>>()?.into_iter().collect::<Result<Vec<_>>>();
                match launches {
                    Ok(launches) => Ok(Step::Record { slot, launches }),
                    Err(error) => {
                        slot.set(Err(error.clone()));
                        Err(error)
                    }
                }
            }
            Operation::Replay { graph } => match self.object(graph)? {
                Object::Graph(slot) => Ok(Step::Replay(slot)),
                _ => return Err("something that is not a graph is replayed".into()),
            },
            Operation::Timestamp { timestamp } => {
                let slot = Arc::new(OnceLock::new());
                self.add(timestamp, Object::Timestamp(slot.clone()))?;
                Ok(Step::Timestamp { id: timestamp, slot })
            }
            Operation::Event { event } => {
                let slot = Arc::new(Recorded::default());
                self.add(event, Object::Event(slot.clone()))?;
                Ok(Step::Event { id: event, slot })
            }
            Operation::WaitEvent { event } => match self.object(event)? {
                Object::Event(slot) => Ok(Step::WaitEvent(slot)),
                _ => return Err("something that is not an event is waited for".into()),
            },
            Operation::Flush => Ok(Step::Flush),
            Operation::Wait { event } => Ok(Step::Wait { id: event }),
        };
        let stream = self.streams.get(&stream).ok_or("an operation of an unknown stream")?;
        stream.take_credit(bytes)?;
        stream.queue(step.unwrap_or_else(Step::Failed), bytes)
    }

    /// Reads a piece of an upload.
    fn receive(
        &mut self,
        reader: &mut FrameReader<impl Read>,
        transfer: Id,
        offset: u64,
        bytes: usize,
    ) -> Result<(), Violation> {
        let incoming = self.incoming.get_mut(&transfer).ok_or("data of an unknown transfer")?;
        if offset != incoming.received as u64 || bytes == 0 || bytes > incoming.bytes - incoming.received {
            return Err("data at another offset than expected".into());
        }
        incoming.window.take_credit(bytes as u64)?;
        if incoming.received == 0 {
            incoming.host = incoming.device.host_buffer(incoming.bytes, Direction::Upload).ok();
        }
        let range = incoming.received..incoming.received + bytes;
        match &mut incoming.host {
            Some(host) => reader.payload(&mut host.as_mut_slice()[range]),
            // No memory for it: the stream reports that it got none.
            None => reader.payload(&mut vec![0; bytes]),
        }
        .map_err(|why| why.to_string())?;
        incoming.received += bytes;
        if incoming.received == incoming.bytes
            && let Some(Incoming { host, bytes, arrived, .. }) = self.incoming.remove(&transfer)
        {
            // The stream's thread may have ended with an error that the client learns by itself.
            let _ = arrived.send(Arrived { host, bytes });
        }
        Ok(())
    }

    /// Answers a request, on a thread that may wait for the device.
    fn answer(&mut self, request: Id, ask: Ask) -> Result<(), Violation> {
        if self.requests.fetch_add(1, SeqCst) >= MAX_REQUESTS {
            return Err(format!("more than {MAX_REQUESTS} requests at once"));
        }
        let (outbox, requests) = (self.outbox.clone(), self.requests.clone());
        let reply = Reply { request, outbox, requests, is_sent: false };
        let objects = self.objects.clone();
        let add = move |id: Id, object: Object, device: &DeviceId| {
            let mut objects = lock(&objects);
            if objects.len() >= MAX_OBJECTS || objects.contains_key(&id) {
                let detail = format!("object {id} exists already, or there are more than {MAX_OBJECTS}");
                return Err(Error::unsupported(device, "adding an object", detail));
            }
            objects.insert(id, object);
            Ok(())
        };
        match ask {
            Ask::Devices => {
                let inventory = self.inventory.clone();
                start(move || reply.send(Ok(describe(inventory.devices(), &inventory))))?;
            }
            Ask::Split { device, sizes } => {
                let inventory = self.inventory.clone();
                start(move || {
                    let parts = find(&inventory, &device).and_then(|device| device.split(&sizes));
                    reply.send(parts.map(|parts| describe(&parts, &inventory)));
                })?;
            }
            Ask::Open { device, opening } => {
                let (inventory, openings) = (self.inventory.clone(), self.openings.clone());
                start(move || reply.send(open(&inventory, &device, opening, &openings)))?;
            }
            Ask::Compile { opening, program, kernel } => {
                let device = self.opening(opening)?.device.clone();
                start(move || {
                    let compiled = from_wire(kernel, device.id()).and_then(|kernel| device.compile(&kernel));
                    reply.send(compiled.and_then(|compiled| {
                        let body = compiled.body().to_owned();
                        add(program, Object::Program(compiled), device.id())?;
                        Ok(Answer::Compiled { body })
                    }));
                })?;
            }
            Ask::Allocate { opening, memory, bytes, is_zeroed } => {
                self.on_opening(opening, move |device| {
                    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
                    let allocated = if is_zeroed { device.buffer(len) } else { device.buffer_uninit(len) };
                    let added = allocated.and_then(|buffer| add(memory, Object::Memory(buffer), device.id()));
                    reply.send(added.map(|()| Answer::Done));
                })?
            }
            Ask::WithWorkgroup { opening, bound, new, workgroup, shared_bytes } => {
                let Object::Bound(bound) = self.object(bound)? else {
                    return Err("something that is not a bound kernel is sized".into());
                };
                self.on_opening(opening, move |device| {
                    let sized = bound.and_then(|bound| bound.with_workgroup(workgroup, shared_bytes));
                    let added = sized.and_then(|sized| add(new, Object::Bound(Ok(sized)), device.id()));
                    reply.send(added.map(|()| Answer::Done));
                })?;
            }
            Ask::Occupancy { opening, bound } => {
                let Object::Bound(bound) = self.object(bound)? else {
                    return Err("something that is not a bound kernel is asked for".into());
                };
                self.on_opening(opening, move |_| {
                    reply.send(bound.and_then(|bound| bound.occupancy()).map(Answer::Occupancy));
                })?;
            }
            Ask::Since { opening, later, earlier } => {
                let (Object::Timestamp(later), Object::Timestamp(earlier)) =
                    (self.object(later)?, self.object(earlier)?)
                else {
                    return Err("something that is not a timestamp is compared".into());
                };
                self.on_opening(opening, move |device| {
                    let unread = || Error::unsupported(device.id(), "reading a timestamp", "it failed");
                    let since = match (later.get(), earlier.get()) {
                        (Some(later), Some(earlier)) => later.since(earlier),
                        _ => Err(unread()),
                    };
                    reply.send(since.map(Answer::Since));
                })?;
            }
            Ask::Memory { opening } => {
                self.on_opening(opening, move |device| reply.send(Ok(Answer::Memory(device.memory()))))?;
            }
            Ask::Trim { opening } => self.on_opening(opening, move |device| {
                device.trim();
                reply.send(Ok(Answer::Done));
            })?,
        }
        Ok(())
    }

    /// Runs something on the thread of an opened device.
    fn on_opening(
        &self,
        opening: Id,
        request: impl FnOnce(&Device) + Send + 'static,
    ) -> Result<(), Violation> {
        let opening = self.opening(opening)?;
        let device = opening.device.clone();
        let sent = opening.requests.send(Box::new(move || request(&device)));
        sent.map_err(|_| "the thread of an opened device has ended".to_owned())
    }
}

/// Starts a thread for a request that may take long.
fn start(request: impl FnOnce() + Send + 'static) -> Result<(), Violation> {
    let builder = thread::Builder::new().name("evener-worker-request".into());
    builder.spawn(request).map(drop).map_err(|why| format!("a thread cannot be started: {why}"))
}

/// Binds buffers. The client has compared their types with the kernel's.
fn bind(program: &Program, buffers: &[Buffer<u8>]) -> Result<BoundKernel> {
    let argument = |(index, buffer): (usize, &Buffer<u8>)| {
        let argument = buffer.arg();
        match program.kernel().bindings().get(index) {
            Some(binding) => {
                Argument { element: binding.element, element_name: binding.element_name, ..argument }
            }
            None => argument,
        }
    };
    let arguments: Vec<Argument> = buffers.iter().enumerate().map(argument).collect();
    program.bind(&arguments)
}

fn describe(devices: &[Device], inventory: &Inventory) -> Answer {
    let descriptions: Vec<&Description> = devices.iter().map(Device::describe).collect();
    // Numbers and texts can always be written.
    let json = |value: Result<String, serde_json::Error>| value.unwrap_or_default();
    Answer::Devices {
        devices: json(serde_json::to_string(&descriptions)),
        absent: json(serde_json::to_string(inventory.absent())),
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

/// Finds a device, or a partition of it.
fn find(inventory: &Inventory, path: &DevicePath) -> Result<Device> {
    let absent =
        |detail: &str| Err(Error::lost(&DeviceId::from(path.id.as_str()), "finding the device", detail));
    let Some(mut device) = inventory.views().find(|device| device.id().as_str() == path.id).cloned() else {
        return absent("the machine does not have it any more");
    };
    for (sizes, index) in &path.splits {
        match device.split(sizes)?.get(*index as usize) {
            Some(part) => device = part.clone(),
            None => return absent("there is no such partition"),
        }
    }
    Ok(device)
}

fn open(
    inventory: &Inventory,
    path: &DevicePath,
    opening: Id,
    openings: &Mutex<HashMap<Id, Arc<Opening>>>,
) -> Result<Answer> {
    let device = find(inventory, path)?.reopened();
    let capabilities = device.capabilities()?;
    let (requests, queue) = channel::<Box<dyn FnOnce() + Send>>();
    let started = thread::Builder::new().name(format!("evener-{}-requests", device.id())).spawn(move || {
        for request in queue {
            // A request that panics is answered, and the next one is not held up.
            let _ = catch_unwind(AssertUnwindSafe(request));
        }
    });
    started.map_err(|why| Error::lost(device.id(), "opening the device", why.to_string()))?;
    let mut openings = openings.lock().unwrap_or_else(PoisonError::into_inner);
    if openings.len() >= MAX_OPENINGS || openings.contains_key(&opening) {
        return Err(Error::unsupported(device.id(), "opening the device", "it is open too often"));
    }
    openings.insert(opening, Arc::new(Opening { device, requests }));
    Ok(Answer::Opened(capabilities))
}
