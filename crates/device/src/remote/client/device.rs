//! A host and its devices, and an opened device with its buffers and kernels.

use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    connection::{Connection, Connector},
    memory::RemoteHostMemory,
    stream::RemoteStream,
};
use crate::{
    backend::{
        Backend, BoundKernelBackend, Contents, Direction, HostMemory, Memory, MemoryUsage, ProgramBackend,
        Region, Source, StreamBackend,
    },
    describe::{Api, Capabilities, Description, DeviceId},
    device::Device,
    discover::Absent,
    error::{Error, Result},
    kernel::Kernel,
    remote::{
        message::{Answer, Ask, DevicePath, Id, Span, ToWorker},
        wire_kernel::to_wire,
    },
};

/// Another machine, or another process, whose devices can be used.
#[derive(Debug)]
pub struct RemoteHost {
    name: String,
    version: String,
    devices: Vec<Device>,
    absent: Vec<Absent>,
    /// The devices as the worker describes them.
    descriptions: Vec<Description>,
    /// Why it is not there yet, if it is not.
    awaited: Option<String>,
}

impl RemoteHost {
    /// Connects to a worker, and asks for its devices. Their ids begin with `name` and a slash. When the connection is
    /// lost, opening a device again connects again.
    ///
    /// Fails with [`Error::Lost`] if there is no answer within `timeout`, or no worker.
    pub fn connect(name: &str, connector: Arc<dyn Connector>, timeout: Duration) -> Result<RemoteHost> {
        let id = DeviceId::from(name);
        let host = Arc::new(Host { name: name.into(), connector, timeout, current: Mutex::new(None) });
        let connection = host.connection(&id, "connecting")?;
        let answer = connection.ask_within(&id, "listing the devices", Ask::Devices, Some(timeout))?;
        let Listed { devices, absent, version } =
            listed(answer).ok_or_else(|| unexpected(&id, "listing the devices"))?;
        let descriptions = devices.clone();
        let devices = sources(&host, devices);
        Ok(RemoteHost { name: name.into(), version, devices, absent, descriptions, awaited: None })
    }

    /// A host whose worker is still to come, for the stated reason. Its devices are expected to be these, as the worker
    /// will describe them: opening one connects, and fails if the worker is not there or has no such device.
    pub fn awaited(
        name: &str,
        connector: Arc<dyn Connector>,
        timeout: Duration,
        devices: Vec<Description>,
        reason: String,
    ) -> RemoteHost {
        let host = Arc::new(Host { name: name.into(), connector, timeout, current: Mutex::new(None) });
        RemoteHost {
            name: name.into(),
            version: String::new(),
            devices: sources(&host, devices.clone()),
            absent: Vec::new(),
            descriptions: devices,
            awaited: Some(reason),
        }
    }

    /// Why the worker was not there yet, if this host is an [awaited](RemoteHost::awaited) one.
    pub fn awaited_reason(&self) -> Option<&str> {
        self.awaited.as_deref()
    }

    /// Its devices as the worker describes them, without the host's name.
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    /// The name that its devices' ids begin with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of Evener there.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Its devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The back ends and devices that it does not have.
    pub fn absent(&self) -> &[Absent] {
        &self.absent
    }
}

/// Makes devices of a worker's descriptions.
fn sources(host: &Arc<Host>, descriptions: Vec<Description>) -> Vec<Device> {
    let source = |description: Description| {
        let path = DevicePath { id: description.id.as_str().to_owned(), splits: Vec::new() };
        Device::from_source(Arc::new(RemoteSource::new(host.clone(), path, description)))
    };
    descriptions.into_iter().map(source).collect()
}

/// A worker's answer to the question for devices.
struct Listed {
    devices: Vec<Description>,
    absent: Vec<Absent>,
    version: String,
}

fn listed(answer: Answer) -> Option<Listed> {
    let Answer::Devices { devices, absent, version } = answer else { return None };
    let (devices, absent) = (serde_json::from_str(&devices).ok()?, serde_json::from_str(&absent).ok()?);
    Some(Listed { devices, absent, version })
}

fn unexpected(device: &DeviceId, operation: &str) -> Error {
    Error::lost(device, operation, "the worker's answer does not fit the question")
}

/// A host, and the connection to it while there is one.
#[derive(Debug)]
struct Host {
    name: Arc<str>,
    connector: Arc<dyn Connector>,
    timeout: Duration,
    current: Mutex<Option<Arc<Connection>>>,
}

impl Host {
    /// Returns the connection, a new one if there is none or it was lost.
    fn connection(&self, device: &DeviceId, operation: &str) -> Result<Arc<Connection>> {
        // Held while connecting, so that several devices of the host share the new connection.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = current.as_ref().filter(|connection| !connection.is_lost()) {
            return Ok(connection.clone());
        }
        *current = None;
        let opened = Connection::open(self.name.clone(), self.connector.clone(), self.timeout);
        let opened = Arc::new(opened.map_err(|reason| Error::lost(device, operation, reason))?);
        *current = Some(opened.clone());
        Ok(opened)
    }

    /// Whether there is a connection, or connecting is worth a try.
    fn is_there(&self) -> bool {
        // It is held by a thread that connects.
        let Ok(current) = self.current.try_lock() else { return true };
        let is_connected = current.as_ref().is_some_and(|connection| !connection.is_lost());
        drop(current);
        is_connected || self.connector.is_there()
    }
}

#[derive(Debug)]
struct RemoteSource {
    host: Arc<Host>,
    path: DevicePath,
    description: Description,
}

impl RemoteSource {
    /// A device with the description that its worker gave.
    fn new(host: Arc<Host>, path: DevicePath, description: Description) -> Self {
        let here = |id: &DeviceId| DeviceId::from(format!("{}/{id}", host.name));
        let description = Description {
            id: here(&description.id),
            part_of: description.part_of.as_ref().map(here),
            host: Some(host.name.as_ref().to_owned()),
            ..description
        };
        RemoteSource { host, path, description }
    }
}

impl Source for RemoteSource {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        const OPERATION: &str = "opening the device";
        let device = self.description.id.clone();
        let connection = self.host.connection(&device, OPERATION)?;
        let opening = connection.new_id();
        match connection.ask(&device, OPERATION, Ask::Open { device: self.path.clone(), opening })? {
            Answer::Opened(capabilities) => {
                let api = self.description.api;
                let opening = Arc::new(Opening { connection, device, id: opening });
                Ok(Arc::new(RemoteBackend { opening, api, capabilities }))
            }
            _ => Err(unexpected(&device, OPERATION)),
        }
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        const OPERATION: &str = "splitting the device";
        let device = &self.description.id;
        let connection = self.host.connection(device, OPERATION)?;
        let ask = Ask::Split { device: self.path.clone(), sizes: sizes.to_vec() };
        let answer = connection.ask(device, OPERATION, ask)?;
        let parts = listed(answer).ok_or_else(|| unexpected(device, OPERATION))?.devices;
        let source = |(index, description): (u32, Description)| {
            let mut path = self.path.clone();
            path.splits.push((sizes.to_vec(), index));
            Arc::new(RemoteSource::new(self.host.clone(), path, description)) as Arc<dyn Source>
        };
        Ok((0..).zip(parts).map(source).collect())
    }

    fn is_there(&self) -> bool {
        self.host.is_there()
    }

    fn available_until(&self) -> Option<Instant> {
        self.host.connector.available_until()
    }
}

/// An opened device, which the worker drops with the last thing that was made of it.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) connection: Arc<Connection>,
    pub(super) device: DeviceId,
    pub(super) id: Id,
}

impl Opening {
    fn ask(&self, operation: &str, ask: Ask) -> Result<Answer> {
        self.connection.ask(&self.device, operation, ask)
    }

    pub(super) fn lost(&self, operation: &str, reason: String) -> Error {
        Error::lost(&self.device, operation, reason)
    }

    /// Returns the number of a region's memory, which must be in the same worker.
    pub(super) fn span(&self, region: &Region) -> Result<Span> {
        let memory = (&*region.memory as &dyn Any).downcast_ref::<RemoteMemory>();
        match memory.filter(|memory| Arc::ptr_eq(&memory.object.opening.connection, &self.connection)) {
            Some(memory) => Ok(Span { memory: memory.object.id, offset: region.offset, bytes: region.bytes }),
            None => {
                let detail = "the buffer belongs to another device";
                Err(Error::unsupported(&self.device, "using a buffer", detail))
            }
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.connection.forget(&ToWorker::Close { opening: self.id });
    }
}

/// Something of the worker's, which the worker drops when this is dropped.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) opening: Arc<Opening>,
    pub(super) id: Id,
}

impl Object {
    pub(super) fn new(opening: &Arc<Opening>) -> Self {
        Object { opening: opening.clone(), id: opening.connection.new_id() }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.opening.connection.forget(&ToWorker::Drop { object: self.id });
    }
}

#[derive(Debug)]
struct RemoteMemory {
    object: Object,
    bytes: u64,
}

impl Memory for RemoteMemory {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[derive(Debug)]
struct RemoteBackend {
    opening: Arc<Opening>,
    api: Api,
    capabilities: Capabilities,
}

impl Backend for RemoteBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Arc<dyn Memory>> {
        let object = Object::new(&self.opening);
        let (opening, memory) = (self.opening.id, object.id);
        let is_zeroed = contents == Contents::Zeroed;
        let ask = Ask::Allocate { opening, memory, bytes, is_zeroed };
        self.opening.ask("allocating a buffer", ask)?;
        Ok(Arc::new(RemoteMemory { object, bytes }))
    }

    fn allocate_host(&self, bytes: u64, _: Direction) -> Result<Box<dyn HostMemory>> {
        match RemoteHostMemory::new(bytes, self.opening.device.clone()) {
            Some(memory) => Ok(Box::new(memory)),
            None => Err(Error::OutOfMemory {
                device: self.opening.device.clone(),
                operation: "allocating host memory".into(),
                requested: bytes,
                available: None,
                detail: "limited by this machine's memory".into(),
            }),
        }
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn ProgramBackend>> {
        let operation = format!("compiling kernel `{}`", kernel.name);
        let object = Object::new(&self.opening);
        let kernel = to_wire(kernel, self.api, &self.opening.device)?;
        let ask = Ask::Compile { opening: self.opening.id, program: object.id, kernel };
        match self.opening.ask(&operation, ask)? {
            Answer::Compiled { body } => Ok(Arc::new(RemoteProgram { object, body })),
            _ => Err(unexpected(&self.opening.device, &operation)),
        }
    }

    fn stream(&self) -> Result<Box<dyn StreamBackend>> {
        Ok(Box::new(RemoteStream::open(self.opening.clone(), self.capabilities.features)?))
    }

    fn memory(&self) -> MemoryUsage {
        match self.opening.ask("counting memory", Ask::Memory { opening: self.opening.id }) {
            Ok(Answer::Memory(usage)) => usage,
            _ => MemoryUsage::default(),
        }
    }

    fn trim(&self) {
        // Nothing is cached in a worker that was lost.
        let _ = self.opening.ask("freeing memory", Ask::Trim { opening: self.opening.id });
    }
}

#[derive(Debug)]
struct RemoteProgram {
    object: Object,
    body: String,
}

impl ProgramBackend for RemoteProgram {
    fn body(&self) -> &str {
        &self.body
    }

    fn bind(&self, arguments: &[Region]) -> Result<Arc<dyn BoundKernelBackend>> {
        let opening = &self.object.opening;
        let spans = arguments.iter().map(|region| opening.span(region)).collect::<Result<_>>()?;
        let object = Object::new(opening);
        let message = ToWorker::Bind { program: self.object.id, bound: object.id, arguments: spans };
        opening.connection.put_lazily(&message).map_err(|reason| opening.lost("binding a kernel", reason))?;
        Ok(Arc::new(RemoteBoundKernel { object }))
    }
}

#[derive(Debug)]
pub(super) struct RemoteBoundKernel {
    pub(super) object: Object,
}

impl BoundKernelBackend for RemoteBoundKernel {
    fn with_workgroup(&self, kernel: &Kernel) -> Result<Arc<dyn BoundKernelBackend>> {
        let opening = &self.object.opening;
        let object = Object::new(opening);
        let ask = Ask::WithWorkgroup {
            opening: opening.id,
            bound: self.object.id,
            new: object.id,
            workgroup: kernel.workgroup,
            shared_bytes: kernel.shared_bytes,
        };
        opening.ask("changing a workgroup", ask)?;
        Ok(Arc::new(RemoteBoundKernel { object }))
    }

    fn occupancy(&self) -> Result<Option<u32>> {
        const OPERATION: &str = "asking for a kernel's occupancy";
        let opening = &self.object.opening;
        match opening.ask(OPERATION, Ask::Occupancy { opening: opening.id, bound: self.object.id })? {
            Answer::Occupancy(occupancy) => Ok(occupancy),
            _ => Err(unexpected(&opening.device, OPERATION)),
        }
    }
}
