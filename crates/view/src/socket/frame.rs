//! Messages on a socket: each is its length in four bytes, the least significant first, and a JSON document.
//!
//! JSON, because reports leave fields out that they do not have, which a format without field names cannot, because a view
//! and a program may be of different versions, and because a web page gets the same updates. At ten updates a second, its
//! size does not matter.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};

/// Writes a message, and fails if that takes longer than a limit, however slowly the other end reads.
pub(super) fn write(stream: &mut UnixStream, message: &impl Serialize, limit: Duration) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).map_err(|_| invalid("a message is too long"))?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    let (start, mut written) = (Instant::now(), 0);
    while written < frame.len() {
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the other end reads too slowly"));
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(&frame[written..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Puts the bytes that arrive together to messages.
pub(super) struct Frames {
    received: Vec<u8>,
    /// Maximum length of a message.
    max: usize,
}

impl Frames {
    pub(super) fn new(max: usize) -> Self {
        Frames { received: Vec::new(), max }
    }

    /// Reads what has arrived, and waits for it up to the stream's timeout. Fails at the end of the stream.
    pub(super) fn receive(&mut self, stream: &mut UnixStream) -> io::Result<()> {
        let mut bytes = [0; 65_536];
        match stream.read(&mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.received.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the next message that has arrived whole. Fails if it is too long, or no such message.
    pub(super) fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let Some(length) = self.received.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.max {
            return Err(invalid("a message is too long"));
        }
        let Some(message) = self.received.get(4..4 + length) else { return Ok(None) };
        let message = serde_json::from_slice(message)?;
        self.received.drain(..4 + length);
        Ok(Some(message))
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
