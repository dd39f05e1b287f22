//! The client's side: the devices of a worker as devices of this program.
//!
//! A thread reads answers into the slots that calls wait for, so that a lost connection ends every wait. Calls put what
//! they send into the outbox. A call may write small messages itself, and so wait for a full pipe: at most until the
//! worker counts as lost and is ended, which breaks the pipe.

mod connection;
mod device;
mod memory;
mod stream;

pub use self::{
    connection::{Connector, Pipes, ReadPipe, WorkerHandle, WritePipe},
    device::RemoteHost,
};
