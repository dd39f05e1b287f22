//! The outbox of one side of a connection: what is to be sent, and the thread that sends it.
//!
//! Messages of the *order* are sent first, in the order in which they were put. Each stream has a *lane* of its own for
//! large copies and for what must come after them. When the order is empty, lanes take turns, a frame each: a message
//! waits for at most one piece of a copy, and a lane for one frame of each other lane. A lane sends data only as far as
//! it has credit. The order cannot hold the lanes up for long, because operations need credit too.

use std::{
    collections::{BTreeMap, VecDeque},
    io::Write,
    ops::Bound::{Excluded, Unbounded},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{
    frame::{FrameWriter, MAX_PAYLOAD},
    message::Id,
};

/// Bytes of a copy. Dropping it returns the memory to its owner.
pub(super) type Payload = Box<dyn AsRef<[u8]> + Send>;

/// Encodes the message of a piece: the number of the transfer, and the offset of the piece in it.
pub(super) type EncodePiece = fn(Id, u64) -> Vec<u8>;

/// Messages of the order that the writer takes at once.
const MAX_BATCH: usize = 64;

/// What is to be sent.
#[derive(Debug)]
pub(super) struct Outbox {
    state: Mutex<State>,
    /// There is something to send, or the outbox was closed.
    filled: Condvar,
    encode_piece: EncodePiece,
}

#[derive(Debug, Default)]
struct State {
    closed: Option<Closed>,
    order: VecDeque<Message>,
    lanes: BTreeMap<Id, Lane>,
    /// The lane that was served last.
    last: Id,
}

#[derive(Debug)]
struct Closed {
    reason: String,
    last_words: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Message {
    encoded: Vec<u8>,
    payload: Vec<u8>,
}

#[derive(Debug)]
struct Lane {
    items: VecDeque<Item>,
    /// Bytes of payload that the lane may send.
    credit: u64,
    /// Whether the lane ends when it is empty.
    is_closing: bool,
}

#[derive(Debug)]
enum Item {
    Message(Vec<u8>),
    Copy(Copy),
}

/// A copy that is sent in pieces.
pub(super) struct Copy {
    pub(super) transfer: Id,
    /// The offset of the first byte of the payload in the transfer.
    pub(super) offset: u64,
    pub(super) payload: Payload,
    /// Bytes of the payload that were sent.
    pub(super) sent: usize,
}

impl std::fmt::Debug for Copy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Copy({} bytes of transfer {})", (*self.payload).as_ref().len(), self.transfer)
    }
}

impl Copy {
    fn next_piece(&self) -> &[u8] {
        let rest = &(*self.payload).as_ref()[self.sent..];
        &rest[..rest.len().min(MAX_PAYLOAD)]
    }
}

/// The frames that the writer sends next.
#[derive(Debug)]
struct Turn {
    messages: Vec<Message>,
    lane: Option<(Id, Item)>,
}

impl Outbox {
    pub(super) fn new(encode_piece: EncodePiece) -> Self {
        Outbox { state: Mutex::default(), filled: Condvar::new(), encode_piece }
    }

    // No code under this lock can panic between two changes that belong together.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the writer. Fails with the reason if the outbox is closed.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, String> {
        let mut state = self.lock();
        if let Some(closed) = &state.closed {
            return Err(closed.reason.clone());
        }
        let changed = change(&mut state);
        drop(state);
        self.filled.notify_one();
        Ok(changed)
    }

    /// Puts a message at the end of the order.
    pub(super) fn put(&self, encoded: Vec<u8>, payload: Vec<u8>) -> Result<(), String> {
        self.change(|state| state.order.push_back(Message { encoded, payload }))
    }

    /// Puts a message at the end of the order without waking the writer: it is sent with the next one.
    pub(super) fn put_lazily(&self, encoded: Vec<u8>) {
        let mut state = self.lock();
        if state.closed.is_none() {
            state.order.push_back(Message { encoded, payload: Vec::new() });
        }
    }

    /// Adds a lane with this many bytes of credit.
    pub(super) fn open_lane(&self, lane: Id, credit: u64) -> Result<(), String> {
        let new = Lane { items: VecDeque::new(), credit, is_closing: false };
        self.change(|state| drop(state.lanes.insert(lane, new)))
    }

    /// Removes a lane once it is empty.
    pub(super) fn close_lane(&self, id: Id) {
        // A closed outbox has no lanes.
        let _ = self.change(|state| {
            if let Some(lane) = state.lanes.get_mut(&id) {
                lane.is_closing = true;
                state.remove_if_finished(id);
            }
        });
    }

    /// Puts a message at the end of a lane.
    pub(super) fn put_in_lane(&self, lane: Id, encoded: Vec<u8>) -> Result<(), String> {
        self.put_item(lane, Item::Message(encoded))
    }

    /// Puts a copy at the end of a lane.
    pub(super) fn put_copy(&self, lane: Id, copy: Copy) -> Result<(), String> {
        self.put_item(lane, Item::Copy(copy))
    }

    fn put_item(&self, lane: Id, item: Item) -> Result<(), String> {
        self.change(|state| match state.lanes.get_mut(&lane) {
            Some(lane) => {
                lane.items.push_back(item);
                Ok(())
            }
            None => Err("the stream was closed".to_owned()),
        })?
    }

    /// Adds to the credit of a lane, if it is still there.
    pub(super) fn add_credit(&self, lane: Id, bytes: u64) {
        // Nothing is sent after the outbox was closed.
        let _ = self.change(|state| {
            if let Some(lane) = state.lanes.get_mut(&lane) {
                lane.credit = lane.credit.saturating_add(bytes);
            }
        });
    }

    /// Drops everything that is not sent yet, and lets the writer end after a last message. Only the first call counts.
    pub(super) fn close(&self, reason: impl Into<String>, last_words: Option<Vec<u8>>) {
        let mut state = self.lock();
        if state.closed.is_some() {
            return;
        }
        state.closed = Some(Closed { reason: reason.into(), last_words });
        let dropped = (std::mem::take(&mut state.order), std::mem::take(&mut state.lanes));
        drop(state);
        self.filled.notify_one();
        // Returns memory to its owners, who have locks of their own.
        drop(dropped);
    }

    /// Writes what is put until the outbox is closed or the pipe breaks, which is an error.
    pub(super) fn run<W: Write>(&self, writer: &mut FrameWriter<W>) -> std::io::Result<()> {
        loop {
            let Turn { messages, lane } = match self.next_turn() {
                Ok(turn) => turn,
                Err(last_words) => {
                    if let Some(encoded) = last_words {
                        writer.write(&encoded, &[])?;
                    }
                    return writer.flush();
                }
            };
            for Message { encoded, payload } in messages {
                writer.write(&encoded, &payload)?;
            }
            match lane {
                Some((_, Item::Message(encoded))) => writer.write(&encoded, &[])?,
                Some((id, Item::Copy(mut copy))) => {
                    let piece = copy.next_piece();
                    let encoded = (self.encode_piece)(copy.transfer, copy.offset + copy.sent as u64);
                    writer.write(&encoded, piece)?;
                    copy.sent += piece.len();
                    self.put_back(id, copy);
                }
                None => {}
            }
            if self.is_idle() {
                writer.flush()?;
            }
        }
    }

    /// Waits for the next frames. Fails with the last message when the outbox is closed.
    fn next_turn(&self) -> Result<Turn, Option<Vec<u8>>> {
        let mut state = self.lock();
        loop {
            if let Some(closed) = &mut state.closed {
                return Err(closed.last_words.take());
            }
            let count = state.order.len().min(MAX_BATCH);
            let messages: Vec<Message> = state.order.drain(..count).collect();
            // A copy comes after the operation that announces it.
            let lane = if state.order.is_empty() { state.take_from_lane() } else { None };
            if !messages.is_empty() || lane.is_some() {
                return Ok(Turn { messages, lane });
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the rest of a copy to the front of its lane, or drops it if all of it was sent.
    fn put_back(&self, id: Id, copy: Copy) {
        let mut state = self.lock();
        let is_sent = copy.sent >= (*copy.payload).as_ref().len();
        match state.lanes.get_mut(&id) {
            Some(lane) if !is_sent => lane.items.push_front(Item::Copy(copy)),
            _ => {
                state.remove_if_finished(id);
                drop(state);
                drop(copy);
            }
        }
    }

    fn is_idle(&self) -> bool {
        let state = self.lock();
        state.order.is_empty() && !state.lanes.values().any(Lane::can_send)
    }
}

impl State {
    /// Takes the next item of the lane after the last one that can send something.
    fn take_from_lane(&mut self) -> Option<(Id, Item)> {
        let after = self.lanes.range((Excluded(self.last), Unbounded));
        let id = after.chain(self.lanes.range(..=self.last)).find(|(_, lane)| lane.can_send()).map(|(id, _)| *id)?;
        self.last = id;
        let lane = self.lanes.get_mut(&id)?;
        let item = lane.items.pop_front()?;
        if let Item::Copy(copy) = &item {
            lane.credit -= copy.next_piece().len() as u64;
        } else {
            self.remove_if_finished(id);
        }
        Some((id, item))
    }

    fn remove_if_finished(&mut self, id: Id) {
        if self.lanes.get(&id).is_some_and(|lane| lane.is_closing && lane.items.is_empty()) {
            self.lanes.remove(&id);
        }
    }
}

impl Lane {
    fn can_send(&self) -> bool {
        match self.items.front() {
            Some(Item::Message(_)) => true,
            Some(Item::Copy(copy)) => copy.next_piece().len() as u64 <= self.credit,
            None => false,
        }
    }
}
