//! The memory of messages: allocated once, used again, and never freed.

use std::{
    alloc::{Layout, alloc, handle_alloc_error},
    collections::VecDeque,
    ops::Range,
    ptr::NonNull,
};

use super::messenger::Request;

/// Bytes of a message: a header and a piece of a vector.
pub(super) const HEADER_BYTES: usize = 32;
pub(super) const PIECE_BYTES: usize = 512 << 10;
/// Bytes of a buffer: enough for a message, or for several shorter ones.
pub(super) const BUFFER_BYTES: usize = STRIDE - BEFORE;
/// Padding before the message, so that its data starts at a cache line and is aligned for every element type.
const BEFORE: usize = 64 - HEADER_BYTES;
/// Bytes from one buffer to the next: whole cache lines.
const STRIDE: usize = PIECE_BYTES + (160 << 10);
/// Bytes of a huge page, which holds several buffers: the kernel pins and copies it faster than small pages.
const CHUNK_BYTES: usize = 2 << 20;

/// The index of a message's buffer.
pub(super) type MessageId = usize;

/// Allocates zeroed memory for buffers, in a huge page if the system has one.
fn allocate_chunk() -> NonNull<u8> {
    // SAFETY: the size is not 0, and is that of the memory that is zeroed; the alignment is a power of two.
    unsafe {
        let layout = Layout::from_size_align_unchecked(CHUNK_BYTES, CHUNK_BYTES);
        let Some(start) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        libc::madvise(start.as_ptr().cast(), CHUNK_BYTES, libc::MADV_HUGEPAGE);
        start.write_bytes(0, CHUNK_BYTES);
        start
    }
}

pub(super) struct MessageBuffer {
    /// Never freed: MPI may access it as long as the process lives. Not a reference: a persistent request has a pointer
    /// to it, which must stay valid while this rank reads and writes the memory between two messages.
    memory: NonNull<[u8; BUFFER_BYTES]>,
    /// The request in flight, or the null request.
    pub(super) request: Request,
    pub(super) receives: bool,
    /// The message is started in many calls: it is only freed by
    /// [`Messenger::release_prepared`](super::messenger::Messenger::release_prepared).
    pub(super) is_prepared: bool,
    /// The persistent request of a prepared message, or the null request.
    pub(super) persistent: Request,
    /// Whether the buffer is for long messages to send.
    is_long: bool,
    /// Where the message starts, and where the next one of a buffer for long messages may.
    pub(super) start: usize,
    next: usize,
}

// SAFETY: the memory belongs to this buffer alone, and to MPI, which any thread may call.
unsafe impl Send for MessageBuffer {}

impl MessageBuffer {
    /// Returns the memory, of which no message is in flight.
    #[inline]
    pub(super) fn bytes(&mut self) -> &mut [u8; BUFFER_BYTES] {
        // SAFETY: the memory is initialized and never freed. MPI does not access it now, and no other buffer ever does.
        unsafe { self.memory.as_mut() }
    }

    /// Returns the address of a range of the memory, for MPI. No message is in flight.
    #[inline]
    pub(super) fn address(&mut self, range: Range<usize>) -> *mut u8 {
        let start = range.start;
        // Only a check: an address that comes from a reference is invalid after the next reference to the memory.
        let _ = &self.bytes()[range];
        self.memory.as_ptr().cast::<u8>().wrapping_add(start)
    }
}

/// All buffers, and which of them are free or abandoned to MPI.
///
/// The last buffer that was freed is used first: its memory is in this core's cache. Not so for long messages to send,
/// which MPI libraries let the core of another rank on this host read in place. A core that writes memory which another
/// core has in its cache waits several times as long as for memory that no core has. So long messages go through all
/// of their buffers in turn: by the time that one returns to the same place, other data has displaced the old message
/// from the other core's cache.
#[derive(Default)]
pub(super) struct BufferCache {
    pub(super) all: Vec<MessageBuffer>,
    free: Vec<MessageId>,
    free_long: VecDeque<MessageId>,
    pub(super) abandoned: Vec<MessageId>,
}

impl BufferCache {
    #[inline]
    pub(super) fn take(&mut self) -> Option<MessageId> {
        self.free.pop()
    }

    /// Returns a buffer for a long message to send, with the place of the message.
    pub(super) fn take_long(&mut self, bytes: usize) -> Option<MessageId> {
        let message = self.free_long.pop_front()?;
        let buffer = &mut self.all[message];
        buffer.start = if buffer.next + bytes > BUFFER_BYTES { 0 } else { buffer.next };
        // Data starts at a cache line everywhere.
        buffer.next = (buffer.start + bytes).next_multiple_of(64);
        Some(message)
    }

    /// Frees a buffer that no message uses.
    #[inline]
    pub(super) fn give_back(&mut self, message: MessageId) {
        if self.all[message].is_long {
            self.free_long.push_back(message);
        } else {
            self.free.push(message);
        }
    }

    pub(super) fn allocate(&mut self, none: Request, is_long: bool) {
        let (first, chunk) = (self.all.len(), allocate_chunk());
        self.all.extend((0..CHUNK_BYTES / STRIDE).map(|index| MessageBuffer {
            // SAFETY: so many buffers fit the chunk.
            memory: unsafe { chunk.add(index * STRIDE + BEFORE) }.cast(),
            request: none,
            receives: false,
            is_prepared: false,
            persistent: none,
            is_long,
            start: 0,
            next: 0,
        }));
        (first..self.all.len()).for_each(|message| self.give_back(message));
    }

    /// Returns the number of buffers that are neither free nor abandoned.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.all.len() - self.free.len() - self.free_long.len() - self.abandoned.len()
    }
}

#[cfg(test)]
mod test {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_messages_have_their_place_alone_and_in_one_buffer() {
        // For all cases: buffers are never freed.
        let buffers = RefCell::new(BufferCache::default());
        let step = (1..=HEADER_BYTES + PIECE_BYTES, any::<bool>(), 0..12usize);
        proptest!(ProptestConfig::with_cases(300), |(steps in prop::collection::vec(step, 1..60))| {
            let buffers = &mut *buffers.borrow_mut();
            let mut used: Vec<(MessageId, *mut u8, usize)> = Vec::new();
            for (bytes, gives_back, which) in steps {
                if used.len() == 12 || gives_back && !used.is_empty() {
                    buffers.give_back(used.swap_remove(which % used.len()).0);
                }
                if buffers.free_long.is_empty() {
                    buffers.allocate(0, true);
                }
                let message = buffers.take_long(bytes).unwrap();
                let buffer = &buffers.all[message];
                prop_assert!(buffer.start.is_multiple_of(64) && buffer.start + bytes <= BUFFER_BYTES);
                let start = buffer.memory.as_ptr().cast::<u8>().wrapping_add(buffer.start);
                for (other, other_start, len) in &used {
                    prop_assert_ne!(*other, message);
                    let is_before = start.wrapping_add(bytes) <= *other_start;
                    prop_assert!(is_before || other_start.wrapping_add(*len) <= start);
                }
                used.push((message, start, bytes));
                prop_assert_eq!(buffers.in_use(), used.len());
            }
            used.iter().for_each(|(message, ..)| buffers.give_back(*message));
        });
        assert_eq!(buffers.borrow().all.len(), 12, "more buffers than messages at once");
    }

    #[test]
    fn a_long_message_returns_to_a_place_only_after_most_of_the_memory_was_written() {
        for bytes in
            [8 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10].map(|it| HEADER_BYTES + it)
        {
            let mut buffers = BufferCache::default();
            buffers.allocate(0, true);
            let mut starts = std::collections::HashSet::new();
            loop {
                let message = buffers.take_long(bytes).unwrap();
                let buffer = &buffers.all[message];
                if !starts.insert(buffer.memory.as_ptr().cast::<u8>().wrapping_add(buffer.start)) {
                    break;
                }
                buffers.give_back(message);
            }
            assert!(starts.len() * bytes >= CHUNK_BYTES * 3 / 4, "{bytes}: {}", starts.len());
        }
    }

    #[test]
    fn the_last_buffer_that_was_freed_is_used_first_for_short_messages() {
        let mut buffers = BufferCache::default();
        buffers.allocate(0, false);
        let (first, second) = (buffers.take().unwrap(), buffers.take().unwrap());
        buffers.give_back(second);
        buffers.give_back(first);
        assert_eq!(buffers.take(), Some(first));
    }
}
