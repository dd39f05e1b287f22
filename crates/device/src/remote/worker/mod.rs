//! The worker's side: serves the devices of its machine to one client.
//!
//! The thread that reads finds the objects that a message names and hands operations to their stream's thread, so that
//! every object is known when its operations are queued and dropped when they are done, in whichever order the streams
//! run. Each opened device has a thread for requests, and each stream has two: one queues operations on the device, and
//! one waits for them. A device that hangs therefore holds up none but its own calls. A thread of its own sends signs of
//! life, which no driver can hold up.

mod session;
mod stream;

use std::{
    io::Read,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use self::session::{Session, Turns};
use super::{
    ALIVE, STUCK, WritePipe,
    frame::{FrameReader, FrameWriter, VERSION, encode},
    message::ToClient,
    outbox::Outbox,
};
use crate::discover::Inventory;

/// Serves these devices to the client at the other end of two pipes, until the client closes them. Fails with the reason
/// if the connection breaks or the client does what the protocol does not allow; the client is told the same.
///
/// Work that is in flight then goes on: a worker process ends, and its devices with it.
pub fn serve(inventory: Inventory, input: impl Read, output: impl WritePipe + 'static) -> Result<(), String> {
    let mut writer = FrameWriter::new(Box::new(output) as Box<dyn WritePipe>);
    let mut reader = FrameReader::new(input);
    writer.preamble().map_err(|why| why.to_string())?;
    let version = reader.exact_preamble().map_err(|why| why.to_string())?;
    if version != VERSION {
        // The client compares the versions too, and tells its user.
        return Err(format!("the client has version {version} of the protocol, and this worker {VERSION}"));
    }
    let mut session = Session::new(
        inventory,
        Outbox::new(writer, |transfer, offset| {
            // The encoding of two numbers does not fail.
            encode(&ToClient::Data { transfer, offset }).unwrap_or_default()
        }),
    );
    let outbox = session.outbox();
    let writing = outbox.clone();
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        thread::Builder::new()
            .name(format!("evener-worker-{name}"))
            .spawn(body)
            .map_err(|why| why.to_string())
    };
    let writer = spawn("writer", Box::new(move || drop(writing.run())))?;
    let (alive, turns) = (Arc::downgrade(&outbox), session.turns());
    spawn("alive", Box::new(move || send_signs_of_life(&alive, &turns)))?;
    let outcome = session.run(&mut reader);
    let reason = outcome.as_ref().err().cloned().unwrap_or_else(|| "the client closed the connection".into());
    let last_words = encode(&ToClient::Ended { reason: reason.clone() }).ok();
    outbox.close(reason, last_words.filter(|_| outcome.is_err()));
    // The writer may be stuck in a pipe that nobody reads: it ends with the process.
    if outcome.is_ok() {
        drop(writer);
    } else {
        let start = Instant::now();
        while !writer.is_finished() && start.elapsed() < Duration::from_secs(1) {
            thread::sleep(Duration::from_millis(1));
        }
    }
    outcome
}

/// Sends a sign of life each second, until the outbox is closed, or the thread that reads is stuck in a message.
fn send_signs_of_life(outbox: &Weak<Outbox>, turns: &Turns) {
    let (mut before, mut since) = (None, Duration::ZERO);
    while since < STUCK {
        thread::sleep(ALIVE);
        let turn = turns.current();
        since = if turn.is_some() && turn == before { since + ALIVE } else { Duration::ZERO };
        before = turn;
        let (Some(outbox), Ok(alive)) = (outbox.upgrade(), encode(&ToClient::Alive)) else { return };
        if outbox.put_for_thread(alive).is_err() {
            return;
        }
    }
}
