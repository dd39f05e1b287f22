//! Devices of other processes and machines: a worker there, a client here, and the protocol between them.
//!
//! A *worker* serves the devices of its machine over two pipes ([`serve`]); a *client* ([`RemoteHost`]) makes devices of
//! them that work as any other. Who starts the worker and how the pipes get there is up to a [`Connector`].
//!
//! # The protocol
//!
//! - Both sides greet each other with the version, which must be the same. Frames follow, with lengths, numbers and
//!   checksums (the layout is in `frame.rs`, the messages in `message.rs`). A frame that is malformed, too long, corrupted
//!   or out of order, and a message that does not fit what was sent before, end the connection with an error that says
//!   so.
//! - The client numbers everything: devices that it opens, buffers, kernels, streams, events, transfers. So it can name
//!   a thing in the next message without an answer to the last. It waits for answers only where a call must return an
//!   error itself: opening, allocating, compiling, and what a user asks for.
//! - Operations of streams are sent without waiting, together with the event, flush or wait that starts them. Events,
//!   timestamps and errors come back as the device reaches them: a chunk (upload, launch, download, event) is one burst
//!   in each direction.
//! - Copies of more than 16 KiB (`INLINE_BYTES`) are announced by their operation, and follow in pieces behind small
//!   messages (`outbox.rs`). Pieces are compressed (LZ4) where that was measured to be faster (`compression.rs`).
//! - **Back-pressure**, for each stream: the client has at most 4 MiB of operations and 16 MiB of
//!   uploads in flight (`OPERATION_WINDOW`, `DATA_WINDOW`), until the worker credits what it has finished. The worker holds
//!   at most 16 MiB of downloads, which the client's reading thread puts into the memory that waits for them. Calls
//!   wait when more than 64 MiB of a stream's uploads (`DATA_QUEUE`) are not credited yet.
//! - Both sides send a sign of life each second, from a thread that does nothing else: a long kernel, a driver that blocks
//!   and a slow link with much to carry are no silence. A worker that is silent for 20 s (`SILENCE`) counts as lost. One
//!   that handles a single message for two minutes (`STUCK`) sends no more signs: no call waits for it for ever.
//! - A lost connection is [`Error::Lost`](crate::Error::Lost) for every call. Opening the device again connects again.
//!
//! # Trust
//!
//! The transport authenticates: the pipes of a process that the user has started, such as `ssh`. A worker runs the
//! kernels of its client, as the client's user; a client believes the results of its worker. Checksums find faults, not
//! attacks.

mod client;
mod compression;
mod frame;
mod message;
mod outbox;
#[doc(hidden)]
pub mod registry;
#[cfg(test)]
mod test;
mod wire_kernel;
mod worker;

use std::time::Duration;

pub use self::{
    client::{Connector, Pipes, ReadPipe, RemoteHost, WorkerHandle, WritePipe},
    frame::VERSION,
    registry::program_hash,
    worker::serve,
};

/// Uploads of at most this many bytes are part of their operation's frame. Downloads of at most this many are written
/// together with the event after them.
const INLINE_BYTES: u64 = 16 << 10;

/// Size of one copy on the worker's device. Larger ones are made of several.
const TRANSFER_BYTES: usize = 4 << 20;

/// Maximum bytes of a stream's operations in flight to the worker. One that is larger than the rest of the window is sent
/// when less than [`OPERATION_CREDIT`] is in flight.
const OPERATION_WINDOW: u64 = 4 << 20;

/// Bytes of a stream's finished operations that the worker gathers before it credits them. So the client may count up to
/// this many as in flight, although nothing is.
const OPERATION_CREDIT: u64 = OPERATION_WINDOW / 4;

/// Whether a stream with these many bytes of operations in flight has to wait before it sends these many more.
fn exceeds_operation_window(in_flight: u64, more: u64) -> bool {
    in_flight >= OPERATION_CREDIT && in_flight.saturating_add(more) > OPERATION_WINDOW
}

/// How long a worker may take to handle a message before it counts as hung. Shorter in unit tests, which wait for it.
const STUCK: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 120 });

/// Maximum bytes of a stream's copies that the worker holds, in each direction.
const DATA_WINDOW: u64 = 16 << 20;

/// Maximum bytes of a stream's uploads that the client has queued or sent without credit.
const DATA_QUEUE: u64 = 64 << 20;

/// Maximum number of a client's streams in a worker.
const MAX_STREAMS: usize = 1024;

/// Maximum number of a client's opened devices in a worker.
const MAX_OPENINGS: usize = 1024;

/// Maximum number of a client's objects in a worker: buffers, programs, bound kernels, graphs, events and timestamps.
const MAX_OBJECTS: usize = 1 << 20;

/// Maximum number of requests that a worker answers at once.
const MAX_REQUESTS: usize = 4096;

/// Time between two signs of life.
const ALIVE: Duration = Duration::from_secs(1);

/// How long a worker may be silent. Shorter in unit tests, which wait for it.
const SILENCE: Duration = Duration::from_secs(if cfg!(test) { 8 } else { 20 });
