//! The outbox of one side of a connection: what is to be sent, and who sends it.
//!
//! A thread that has something urgent writes it itself if nobody else is writing, and what was put before along with it.
//! The outbox's own thread writes large copies, and what was put while another thread wrote.
//!
//! Messages of the *order* are sent first, in the order in which they were put. Each stream has a *lane* of its own for
//! large copies and for what must come after them. When the order is empty, lanes take turns, a frame each: a message
//! waits for at most one piece of a copy, and a lane for one frame of each other lane. A lane sends data only as far as
//! it has credit. The order cannot hold the lanes up for long, because operations need credit too.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    ops::Bound::{Excluded, Unbounded},
    sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError},
};

use super::{
    INLINE_BYTES, WritePipe,
    frame::{FrameWriter, MAX_PAYLOAD},
    message::Id,
};

/// Writes frames to the other side.
pub(super) type PipeWriter = FrameWriter<Box<dyn WritePipe>>;

/// Bytes of a copy. Dropping it returns the memory to its owner.
pub(super) type Payload = Box<dyn AsRef<[u8]> + Send>;

/// Encodes the message of a piece: the number of the transfer, and the offset of the piece in it.
pub(super) type EncodePiece = fn(Id, u64) -> Vec<u8>;

/// Messages that are written at once.
const MAX_BATCH: usize = 64;

/// Bytes of messages that wait for an urgent one, at most.
const MAX_LAZY: usize = 64 << 10;

/// What is to be sent.
#[derive(Debug)]
pub(super) struct Outbox {
    state: Mutex<State>,
    /// There is something for the outbox's thread to send, or the outbox was closed.
    filled: Condvar,
    /// Locked before messages are taken from the state, so that frames are written in their order. `None` after the end.
    writer: Mutex<Option<PipeWriter>>,
    encode_piece: EncodePiece,
}

#[derive(Debug, Default)]
struct State {
    closed: Option<Closed>,
    order: VecDeque<Message>,
    /// Bytes in the order.
    waiting: usize,
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
    /// Whether a piece of its first copy is being written.
    is_sending: bool,
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

/// What is written next.
#[derive(Debug)]
enum Turn {
    Messages(Vec<Message>),
    Piece(Id, Copy),
}

/// Whether a turn may be a piece of a copy that takes long to write.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Allowed {
    Messages,
    All,
}

impl Outbox {
    pub(super) fn new(writer: PipeWriter, encode_piece: EncodePiece) -> Self {
        let writer = Mutex::new(Some(writer));
        Outbox { state: Mutex::default(), filled: Condvar::new(), writer, encode_piece }
    }

    // No code under this lock can panic between two changes that belong together.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state. Fails with the reason if the outbox is closed.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, String> {
        let mut state = self.lock();
        match &state.closed {
            Some(closed) => Err(closed.reason.clone()),
            None => Ok(change(&mut state)),
        }
    }

    /// Puts a message at the end of the order, and sends it and all before it.
    pub(super) fn put(&self, encoded: Vec<u8>) -> Result<(), String> {
        self.change(|state| state.push(encoded, Vec::new()))?;
        self.send_messages();
        Ok(())
    }

    /// Puts a message at the end of the order, for the outbox's thread to send: the caller never waits for a full pipe.
    pub(super) fn put_for_thread(&self, encoded: Vec<u8>) -> Result<(), String> {
        self.change(|state| state.push(encoded, Vec::new()))?;
        self.filled.notify_one();
        Ok(())
    }

    /// Puts a message at the end of the order. It is sent with the next urgent one, or when many wait.
    pub(super) fn put_lazily(&self, encoded: Vec<u8>, payload: Vec<u8>) -> Result<(), String> {
        let waiting = self.change(|state| {
            state.push(encoded, payload);
            state.waiting
        })?;
        if waiting > MAX_LAZY {
            self.send_messages();
        }
        Ok(())
    }

    /// Writes all messages, unless another thread is writing: then the outbox's thread does it next.
    fn send_messages(&self) {
        let mut guard = match self.writer.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // The lock orders this after the thread's last look at the state.
                drop(self.lock());
                self.filled.notify_one();
                return;
            }
        };
        let Some(writer) = &mut *guard else { return };
        let written = loop {
            // The state is not locked while something is written.
            let turn = self.lock().next_turn(Allowed::Messages);
            match turn.map(|turn| self.write(writer, turn)) {
                Some(Ok(())) => {}
                Some(Err(why)) => break Err(why),
                None => break writer.flush(),
            }
        };
        drop(guard);
        match written {
            // What was put meanwhile, and copies.
            Ok(()) if !self.is_idle() => self.filled.notify_one(),
            Ok(()) => {}
            Err(why) => self.close(format!("the connection broke: {why}"), None),
        }
    }

    /// Adds a lane with this many bytes of credit.
    pub(super) fn open_lane(&self, lane: Id, credit: u64) -> Result<(), String> {
        let new = Lane { items: VecDeque::new(), credit, is_closing: false, is_sending: false };
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

    /// Puts a message at the end of a lane, and sends it if nothing is before it.
    pub(super) fn put_in_lane(&self, lane: Id, encoded: Vec<u8>) -> Result<(), String> {
        self.put_item(lane, Item::Message(encoded))?;
        self.send_messages();
        Ok(())
    }

    /// Puts a copy at the end of a lane. The outbox's thread sends it, or a small one the thread whose message comes next:
    /// both are then one write.
    pub(super) fn put_copy(&self, lane: Id, copy: Copy) -> Result<(), String> {
        self.put_item(lane, Item::Copy(copy))?;
        self.filled.notify_one();
        Ok(())
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
        self.filled.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed.is_some()
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

    /// Writes until the outbox is closed. Returns the reason.
    pub(super) fn run(&self) -> String {
        loop {
            let state = self.lock();
            let is_waiting = |state: &mut State| state.closed.is_none() && state.is_idle();
            drop(self.filled.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner));
            let mut guard = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(writer) = &mut *guard else { return "closed".into() };
            let mut state = self.lock();
            if let Some(Closed { reason, last_words }) = &mut state.closed {
                let (reason, last_words) = (reason.clone(), last_words.take());
                drop(state);
                // Dropping the writer closes the pipe. Nobody waits for the outcome.
                let _ = last_words.map(|encoded| writer.write(&encoded, &[]).and_then(|()| writer.flush()));
                *guard = None;
                return reason;
            }
            // Another thread may have written everything meanwhile.
            let turn = state.next_turn(Allowed::All);
            drop(state);
            let outcome = turn.map_or(Ok(()), |turn| self.write(writer, turn));
            let outcome = match outcome {
                Ok(()) if self.is_idle() => writer.flush(),
                outcome => outcome,
            };
            drop(guard);
            if let Err(why) = outcome {
                self.close(format!("the connection broke: {why}"), None);
            }
        }
    }

    fn write(&self, writer: &mut PipeWriter, turn: Turn) -> io::Result<()> {
        match turn {
            Turn::Messages(messages) => {
                messages.iter().try_for_each(|message| writer.write(&message.encoded, &message.payload))
            }
            Turn::Piece(lane, mut copy) => {
                let piece = copy.next_piece();
                let encoded = (self.encode_piece)(copy.transfer, copy.offset + copy.sent as u64);
                writer.write_piece(&encoded, piece)?;
                copy.sent += piece.len();
                self.put_back(lane, copy);
                Ok(())
            }
        }
    }

    /// Returns the rest of a copy to the front of its lane, or drops it if all of it was sent.
    fn put_back(&self, id: Id, copy: Copy) {
        let mut state = self.lock();
        let is_sent = copy.sent >= (*copy.payload).as_ref().len();
        if let Some(lane) = state.lanes.get_mut(&id) {
            lane.is_sending = false;
        }
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
        self.lock().is_idle()
    }
}

impl State {
    fn push(&mut self, encoded: Vec<u8>, payload: Vec<u8>) {
        self.waiting += encoded.len() + payload.len();
        self.order.push_back(Message { encoded, payload });
    }

    /// Whether nothing can be sent. Messages that wait for an urgent one can.
    fn is_idle(&self) -> bool {
        self.order.is_empty() && !self.lanes.values().any(|lane| lane.can_send(Allowed::All))
    }

    /// Takes what is to be written next: messages of the order, and then the next item of a lane.
    fn next_turn(&mut self, allowed: Allowed) -> Option<Turn> {
        if !self.order.is_empty() {
            let count = self.order.len().min(MAX_BATCH);
            let messages: Vec<Message> = self.order.drain(..count).collect();
            self.waiting -= messages.iter().map(|it| it.encoded.len() + it.payload.len()).sum::<usize>();
            return Some(Turn::Messages(messages));
        }
        // The lane after the last one that can send something.
        let after = self.lanes.range((Excluded(self.last), Unbounded));
        let mut lanes = after.chain(self.lanes.range(..=self.last));
        let id = *lanes.find(|(_, lane)| lane.can_send(allowed))?.0;
        self.last = id;
        let lane = self.lanes.get_mut(&id)?;
        match lane.items.pop_front()? {
            Item::Message(encoded) => {
                self.remove_if_finished(id);
                Some(Turn::Messages(vec![Message { encoded, payload: Vec::new() }]))
            }
            Item::Copy(copy) => {
                lane.credit -= copy.next_piece().len() as u64;
                // Until it is put back, nothing behind it may be sent.
                lane.is_sending = true;
                Some(Turn::Piece(id, copy))
            }
        }
    }

    fn remove_if_finished(&mut self, id: Id) {
        if self
            .lanes
            .get(&id)
            .is_some_and(|lane| lane.is_closing && !lane.is_sending && lane.items.is_empty())
        {
            self.lanes.remove(&id);
        }
    }
}

impl Lane {
    fn can_send(&self, allowed: Allowed) -> bool {
        match self.items.front() {
            _ if self.is_sending => false,
            Some(Item::Message(_)) => true,
            Some(Item::Copy(copy)) => {
                let bytes = copy.next_piece().len() as u64;
                bytes <= self.credit && (allowed == Allowed::All || bytes <= INLINE_BYTES)
            }
            None => false,
        }
    }
}
