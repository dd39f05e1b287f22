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
    /// A sign of life, each second.
    Alive,
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
    /// A sign of life, each second.
    Alive,
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
        /// The version of Evener there.
        version: String,
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

#[cfg(test)]
mod test {
    use super::{super::frame::*, *};

    /// One message of each kind, with the same contents every time.
    fn samples() -> (Vec<ToWorker>, Vec<ToClient>) {
        let path = || DevicePath { id: "cpu".into(), splits: vec![(vec![1, 300], 1)] };
        let span = |memory| Span { memory, offset: 2, bytes: 70_000 };
        let launch = || WireLaunch { bound: 5, groups: [1, 2, 3], params: vec![4, 5] };
        let wgsl = || WireWgsl {
            needs: Features::INT64,
            source: "w".into(),
            is_checked: true,
            constants: vec![("c".into(), 1.5)],
        };
        let texts = || vec![("a".into(), "b".into())];
        let bodies = [
            WireBody::None,
            WireBody::Cuda {
                text: "t".into(),
                defines: texts(),
                headers: vec![("h".into(), "i".into())],
                options: vec!["o".into()],
            },
            WireBody::Wgsl(vec![wgsl()]),
            WireBody::Rust {
                program: [7; 32],
                version: "1".into(),
                function: "f".into(),
                arguments: vec![8],
            },
        ];
        let kernel = |body| WireKernel {
            name: "k".into(),
            bindings: vec![(true, "u32".into())],
            params_bytes: 4,
            workgroup: [1, 2, 3],
            shared_bytes: 9,
            body,
        };
        let compile = |body| Ask::Compile { opening: 1, program: 2, kernel: kernel(body) };
        let asks = [
            Ask::Devices,
            Ask::Split { device: path(), sizes: vec![1, 2] },
            Ask::Open { device: path(), opening: 1 },
            Ask::Allocate { opening: 1, memory: 2, bytes: 3, is_zeroed: true },
            Ask::WithWorkgroup { opening: 1, bound: 2, new: 3, workgroup: [4, 5, 6], shared_bytes: 7 },
            Ask::Occupancy { opening: 1, bound: 2 },
            Ask::Since { opening: 1, later: 2, earlier: 3 },
            Ask::Memory { opening: 1 },
            Ask::Trim { opening: 1 },
        ];
        let operations = [
            Operation::Upload { to: span(1), transfer: None },
            Operation::Upload { to: span(1), transfer: Some(2) },
            Operation::Download { from: span(1), transfer: 2 },
            Operation::Copy { from: span(1), to: span(2) },
            Operation::Zero { region: span(1) },
            Operation::Fill { region: span(1), pattern: vec![2] },
            Operation::Launch(launch()),
            Operation::Record { graph: 1, launches: vec![launch()] },
            Operation::Replay { graph: 1 },
            Operation::Timestamp { timestamp: 1 },
            Operation::Event { event: 1 },
            Operation::WaitEvent { event: 1 },
            Operation::Flush,
            Operation::Wait { event: 1 },
        ];
        let others = [
            ToWorker::Alive,
            ToWorker::Close { opening: 1 },
            ToWorker::Drop { object: 1 },
            ToWorker::Bind { program: 1, bound: 2, arguments: vec![span(3)] },
            ToWorker::OpenStream { opening: 1, stream: 2 },
            ToWorker::CloseStream { stream: 1 },
            ToWorker::Data { transfer: 1, offset: 70_000 },
        ];
        let request = |ask| ToWorker::Request { request: 300, ask };
        let run = |operation| ToWorker::Run { stream: 300, operation };
        let asks = asks.into_iter().chain(bodies.map(compile)).map(request);
        let to_worker = asks.chain(operations.map(run)).chain(others).collect();

        let capabilities = Capabilities {
            features: Features::TIMESTAMPS,
            max_buffer_bytes: 1,
            max_binding_bytes: 2,
            max_bindings: 3,
            max_params_bytes: 4,
            max_workgroup: [5, 6, 7],
            max_workgroup_threads: 8,
            max_groups: [9, 10, 11],
            max_shared_bytes: 12,
            subgroup_size: Some(13),
            binding_alignment: 14,
            copy_alignment: 15,
        };
        let memory = MemoryUsage {
            in_use_bytes: 1,
            peak_bytes: 2,
            cached_bytes: 3,
            pinned_bytes: 4,
            pinned_cached_bytes: 5,
        };
        let answers = [
            Answer::Done,
            Answer::Devices { devices: "d".into(), absent: "a".into(), version: "v".into() },
            Answer::Opened(capabilities),
            Answer::Compiled { body: "b".into() },
            Answer::Occupancy(Some(1)),
            Answer::Since(Duration::from_millis(1500)),
            Answer::Memory(memory),
        ];
        let device = || "d".to_owned();
        let text = || "t".to_owned();
        let errors = [
            WireError::Lost { device: device(), operation: text(), detail: text() },
            WireError::OutOfMemory {
                device: device(),
                operation: text(),
                requested: 1,
                available: Some(2),
                detail: text(),
            },
            WireError::TimedOut { device: device(), operation: text(), after: Duration::from_millis(1) },
            WireError::WillNotCompile { device: device(), kernel: text(), body: text(), log: text() },
            WireError::BadResult { device: device(), operation: text(), detail: text() },
            WireError::Task {
                device: device(),
                operation: text(),
                item: Some(1),
                message: text(),
                cause: Some(text()),
            },
            WireError::Unsupported { device: device(), operation: text(), detail: text() },
            WireError::Split { device: device(), sizes: vec![1], detail: text() },
            WireError::Other { detail: text() },
        ];
        let others = [
            ToClient::Alive,
            ToClient::Reached {
                event: 1,
                outcome: Ok(()),
                clocks: vec![Clock { timestamp: 2, since_previous: Some(Duration::from_secs(3)) }],
            },
            ToClient::Credit { stream: 1, operations: 2, data: 3 },
            ToClient::Data { transfer: 1, offset: 70_000 },
            ToClient::Abandoned { transfer: 1 },
            ToClient::Ended { reason: text() },
        ];
        let answers = answers.map(Ok).into_iter().chain(errors.map(Err));
        let answers = answers.map(|answer| ToClient::Answer { request: 300, answer });
        (to_worker, answers.chain(others).collect())
    }

    #[test]
    fn messages_that_are_encoded_otherwise_have_another_version() {
        let (to_worker, to_client) = samples();
        let mut writer = FrameWriter::new(Vec::new());
        writer.preamble().unwrap();
        let payload = [1, 2, 3];
        for message in &to_worker {
            writer.write(&encode(message).unwrap(), &payload).unwrap();
        }
        for message in &to_client {
            writer.write(&encode(message).unwrap(), &payload).unwrap();
        }
        writer.flush().unwrap();
        let written = writer.into_inner();
        // Without the byte order, which follows the preamble and the version.
        let rest = PREAMBLE.len() + 8;
        let found = (VERSION, written.len(), crc32fast::hash(&written[rest..]));
        assert_eq!(
            found,
            (3, 2332, 1_645_696_214),
            "raise VERSION if the protocol was released, and change this line"
        );
    }
}
