//! The messages of the protocol.

use std::{borrow::Cow, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    backend::MemoryUsage,
    describe::{Capabilities, DeviceId, Features},
    error::{Error, SharedError},
};

/// The number of an object, a request or a transfer. The client numbers all of them, from one counter.
pub(super) type Id = u64;

/// A device of the worker: its id there, and the splits that lead to a partition of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DevicePath {
    pub(super) id: String,
    /// The sizes of each split, and the index of the partition that was taken.
    pub(super) splits: Vec<(Vec<u32>, u32)>,
}

/// A range of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) memory: Id,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// From the client to the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum ToWorker {
    /// Asks for a sign of life.
    Ping,
    /// Asks for something that the client waits for. [`ToClient::Answer`] has the same number.
    Request { request: Id, ask: Ask },
    /// Drops an opened device.
    Close { opening: Id },
    /// Drops a buffer, program, bound kernel, graph, event or timestamp.
    Drop { object: Id },
    /// Binds buffers to a program. An error is reported by the launches of the bound kernel.
    Bind { program: Id, bound: Id, arguments: Vec<Span> },
    /// Creates a stream.
    OpenStream { opening: Id, stream: Id },
    /// Drops a stream, once its operations have been queued on the device.
    CloseStream { stream: Id },
    /// Queues an operation. Its payload is that of a small upload. The frame's bytes count against the stream's
    /// [`OPERATION_WINDOW`](super::OPERATION_WINDOW).
    Run { stream: Id, operation: Operation },
    /// A piece of an upload, in the payload, which counts against the stream's [`DATA_WINDOW`](super::DATA_WINDOW).
    Data { transfer: Id, offset: u64 },
}

/// What a client asks for and waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Describes the devices.
    Devices,
    /// Describes the partitions that a device would be split into.
    Split { device: DevicePath, sizes: Vec<u32> },
    /// Opens a device.
    Open { device: DevicePath, opening: Id },
    /// Allocates a buffer.
    Allocate { opening: Id, memory: Id, bytes: u64, is_zeroed: bool },
    /// Compiles a kernel.
    Compile { opening: Id, program: Id, kernel: WireKernel },
    /// Makes a bound kernel with another workgroup.
    WithWorkgroup { opening: Id, bound: Id, new: Id, workgroup: [u32; 3], shared_bytes: u32 },
    /// Asks how many workgroups a compute unit runs at once.
    Occupancy { opening: Id, bound: Id },
    /// Asks for the time between two timestamps of different streams.
    Since { opening: Id, later: Id, earlier: Id },
    /// Asks for the bytes in use.
    Memory { opening: Id },
    /// Frees cached memory.
    Trim { opening: Id },
}

/// An operation of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Operation {
    /// Copies the payload, or else what comes as [`ToWorker::Data`] under this number.
    Upload {
        to: Span,
        transfer: Option<Id>,
    },
    /// Copies to the client, as [`ToClient::Data`] under this number.
    Download {
        from: Span,
        transfer: Id,
    },
    Copy {
        from: Span,
        to: Span,
    },
    Zero {
        region: Span,
    },
    Fill {
        region: Span,
        pattern: Vec<u8>,
    },
    Launch(WireLaunch),
    Record {
        graph: Id,
        launches: Vec<WireLaunch>,
    },
    Replay {
        graph: Id,
    },
    Timestamp {
        timestamp: Id,
    },
    /// Records an event, which [`ToClient::Reached`] reports.
    Event {
        event: Id,
    },
    WaitEvent {
        event: Id,
    },
    Flush,
    /// Waits for all operations before, reports their error and forgets it. [`ToClient::Reached`] has this number.
    Wait {
        event: Id,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct WireLaunch {
    pub(super) bound: Id,
    pub(super) groups: [u32; 3],
    pub(super) params: Vec<u8>,
}

/// A kernel, with the body that the device can use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct WireKernel {
    pub(super) name: String,
    /// Whether each buffer is written, and the name of its element type.
    pub(super) bindings: Vec<(bool, Cow<'static, str>)>,
    pub(super) params_bytes: u32,
    pub(super) workgroup: [u32; 3],
    pub(super) shared_bytes: u32,
    pub(super) body: WireBody,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum WireBody {
    /// The kernel has no body for the device.
    None,
    Cuda {
        text: Cow<'static, str>,
        defines: Vec<(String, String)>,
        headers: Vec<(String, Cow<'static, str>)>,
        options: Vec<String>,
    },
    Wgsl(Vec<WireWgsl>),
    /// A function that makes the kernel, in a worker of the same program.
    Rust {
        /// The hash of the client's executable.
        program: [u8; 32],
        /// The client's version of Evener.
        version: Cow<'static, str>,
        function: Cow<'static, str>,
        arguments: Vec<u8>,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct WireWgsl {
    pub(super) needs: Features,
    pub(super) source: Cow<'static, str>,
    pub(super) is_checked: bool,
    pub(super) constants: Vec<(String, f64)>,
}

/// From the worker to the client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum ToClient {
    /// A sign of life.
    Pong,
    /// Answers a request.
    Answer { request: Id, answer: Result<Answer, WireError> },
    /// An event was reached, or a wait has ended. All downloads of the stream before it have been sent.
    Reached { event: Id, outcome: Result<(), WireError>, clocks: Vec<Clock> },
    /// The worker is done with these many bytes of operations and of uploads.
    Credit { stream: Id, operations: u64, data: u64 },
    /// A piece of a download, in the payload.
    Data { transfer: Id, offset: u64 },
    /// A download that failed: no more of it comes. The next event reports the error.
    Abandoned { transfer: Id },
    /// The worker ends the connection.
    Ended { reason: String },
}

/// A timestamp that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Clock {
    pub(super) timestamp: Id,
    /// The time since the one before it in the same stream, or zero for the first; `None` if it could not be read.
    pub(super) since_previous: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    /// Descriptions, and why other devices are absent, as JSON: unlike the rest, these may differ between versions.
    Devices {
        devices: String,
        absent: String,
    },
    Opened(Capabilities),
    /// The body that was compiled.
    Compiled {
        body: String,
    },
    Occupancy(Option<u32>),
    Since(Duration),
    Memory(MemoryUsage),
}

/// An [`Error`] in transit. Devices have the worker's ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum WireError {
    Lost {
        device: String,
        operation: String,
        detail: String,
    },
    OutOfMemory {
        device: String,
        operation: String,
        requested: u64,
        available: Option<u64>,
        detail: String,
    },
    TimedOut {
        device: String,
        operation: String,
        after: Duration,
    },
    WillNotCompile {
        device: String,
        kernel: String,
        body: String,
        log: String,
    },
    BadResult {
        device: String,
        operation: String,
        detail: String,
    },
    Task {
        device: String,
        operation: String,
        item: Option<u64>,
        message: String,
        cause: Option<String>,
    },
    Unsupported {
        device: String,
        operation: String,
        detail: String,
    },
    Split {
        device: String,
        sizes: Vec<u32>,
        detail: String,
    },
    /// An error of no device.
    Other {
        detail: String,
    },
}

impl From<&Error> for WireError {
    fn from(error: &Error) -> Self {
        let text = |text: &str| text.to_owned();
        let id = |id: &DeviceId| id.as_str().to_owned();
        match error {
            Error::Lost { device, operation, detail } => {
                WireError::Lost { device: id(device), operation: text(operation), detail: text(detail) }
            }
            Error::OutOfMemory { device, operation, requested, available, detail } => {
                WireError::OutOfMemory {
                    device: id(device),
                    operation: text(operation),
                    requested: *requested,
                    available: *available,
                    detail: text(detail),
                }
            }
            Error::TimedOut { device, operation, after } => {
                WireError::TimedOut { device: id(device), operation: text(operation), after: *after }
            }
            Error::WillNotCompile { device, kernel, body, log } => WireError::WillNotCompile {
                device: id(device),
                kernel: text(kernel),
                body: text(body),
                log: text(log),
            },
            Error::BadResult { device, operation, detail } => {
                WireError::BadResult { device: id(device), operation: text(operation), detail: text(detail) }
            }
            Error::Task { device, operation, item, message, source } => WireError::Task {
                device: id(device),
                operation: text(operation),
                item: *item,
                message: text(message),
                cause: source.as_ref().map(ToString::to_string),
            },
            Error::Unsupported { device, operation, detail } => WireError::Unsupported {
                device: id(device),
                operation: text(operation),
                detail: text(detail),
            },
            Error::Split { device, sizes, detail } => {
                WireError::Split { device: id(device), sizes: sizes.clone(), detail: text(detail) }
            }
            Error::Ended | Error::Selection { .. } | Error::File { .. } => {
                WireError::Other { detail: error.to_string() }
            }
        }
    }
}

impl WireError {
    /// Returns the error with the host's name in front of the device's id. The error of a user's code arrives as its text.
    pub(super) fn into_error(self, host: &str, asked: &DeviceId) -> Error {
        let id = |device: String| DeviceId::from(format!("{host}/{device}"));
        match self {
            WireError::Lost { device, operation, detail } => {
                Error::Lost { device: id(device), operation, detail }
            }
            WireError::OutOfMemory { device, operation, requested, available, detail } => {
                Error::OutOfMemory { device: id(device), operation, requested, available, detail }
            }
            WireError::TimedOut { device, operation, after } => {
                Error::TimedOut { device: id(device), operation, after }
            }
            WireError::WillNotCompile { device, kernel, body, log } => {
                Error::WillNotCompile { device: id(device), kernel, body, log }
            }
            WireError::BadResult { device, operation, detail } => {
                Error::BadResult { device: id(device), operation, detail }
            }
            WireError::Task { device, operation, item, message, cause } => Error::Task {
                device: id(device),
                operation,
                item,
                message,
                source: cause.map(SharedError::new),
            },
            WireError::Unsupported { device, operation, detail } => {
                Error::Unsupported { device: id(device), operation, detail }
            }
            WireError::Split { device, sizes, detail } => Error::Split { device: id(device), sizes, detail },
            WireError::Other { detail } => Error::unsupported(asked, "working", detail),
        }
    }
}
