//! The client's side: the devices of a worker as devices of this program.
//!
//! No call does input or output itself: a thread writes what calls put into the outbox, and a thread reads answers into
//! the slots that calls wait for. So a pipe that blocks holds no call up once the connection is found to be lost.

mod connection;
mod device;
mod memory;
mod stream;

pub use self::{
    connection::{Connector, Pipes, ReadPipe, WorkerHandle, WritePipe},
    device::RemoteHost,
};
