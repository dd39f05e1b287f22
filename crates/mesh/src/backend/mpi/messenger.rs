//! Messages through an MPI library: sent and received from memory of the wire's own.
//!
//! A message that was begun cannot always be taken back: MPI may read or write its memory as long as the process lives.
//! So no memory of the caller is ever given to MPI. Messages have buffers from a shelf, and one that does not end is
//! left to MPI with its buffer.

use std::{
    ffi::{c_char, c_int},
    fmt::Debug,
};

use super::{
    library::{Library, MpiHandle},
    signal::SavedAction,
};
use crate::backend::Failure;

/// What a message can hold: a header and a piece of a vector.
pub(super) const HEADER_BYTES: usize = 32;
pub(super) const PIECE_BYTES: usize = 512 << 10;
const BUFFER_BYTES: usize = HEADER_BYTES + PIECE_BYTES;
/// So many bytes of a buffer are before the message: its data begins at a cache line, so that every element type is aligned.
const BEFORE: usize = 64 - HEADER_BYTES;

/// A message's place on the wire.
pub(super) type MessageId = usize;
/// A request of a library: the number of its handle.
pub(super) type RequestHandle = usize;

/// What a library does with messages, whatever its handles are.
///
/// # Safety
/// Of what is unsafe: a buffer has so many bytes, or where nothing is said as many as a message can have, stays where it
/// is and is left alone until its request has ended. Requests are such as were given here, and have not ended.
pub(super) trait MessageLibrary: Send {
    /// Begins to send.
    unsafe fn send(
        &self,
        buffer: *const u8,
        bytes: usize,
        to: usize,
        tag: c_int,
    ) -> Result<RequestHandle, Failure>;
    /// Begins to receive, from a rank or from whichever sends first.
    unsafe fn receive(
        &self,
        buffer: *mut u8,
        from: Option<usize>,
        tag: c_int,
    ) -> Result<RequestHandle, Failure>;
    /// Whether a request has ended. Once it has, it is replaced by the one that is none.
    unsafe fn test(&self, request: &mut RequestHandle) -> Result<bool, Failure>;
    /// Ends a receive that nothing has matched; otherwise it changes nothing.
    unsafe fn cancel(&self, request: RequestHandle);
    /// Ends the use of MPI, together with all other ranks.
    fn finish(&mut self);
    /// Whether the program has ended MPI: nothing of it may be called any more.
    fn has_ended(&self) -> bool;
}

/// So much memory is had from the system at once: a large page, of which the kernel finds and pins the parts faster.
const CHUNK_BYTES: usize = 2 << 20;

#[repr(C, align(64))]
struct AlignedBuffer {
    before: [u8; BEFORE],
    message: [u8; BUFFER_BYTES],
}

/// Buffers in large pages, where the system has them.
fn allocate_buffers() -> &'static mut [AlignedBuffer] {
    let buffers = CHUNK_BYTES / size_of::<AlignedBuffer>();
    let Ok(layout) = std::alloc::Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES) else { return &mut [] };
    // SAFETY: the layout is not empty. The memory is never freed, holds so many buffers, is aligned for them, and all of
    // them are zeros before anything else is made of it.
    unsafe {
        let start = std::alloc::alloc(layout);
        if start.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        #[cfg(target_os = "linux")]
        libc::madvise(start.cast(), CHUNK_BYTES, libc::MADV_HUGEPAGE);
        start.write_bytes(0, CHUNK_BYTES);
        std::slice::from_raw_parts_mut(start.cast(), buffers)
    }
}

struct MessageBuffer {
    /// Never freed: MPI may read or write it as long as the process lives.
    buffer: &'static mut AlignedBuffer,
    request: RequestHandle,
    receives: bool,
}

/// Messages between ranks, each in a buffer of the wire's own.
pub(super) struct Messenger {
    pub(super) library: Box<dyn MessageLibrary>,
    /// The request that is none.
    pub(super) none: RequestHandle,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The library's, for people.
    pub(super) version: String,
    /// The highest tag that a message may have.
    pub(super) highest_tag: c_int,
    /// How long a message may be that is sent without asking the receiver first, on one host. Above, it takes several
    /// times as long.
    pub(super) eager_bytes: usize,
    pub(super) buffers: BufferCache,
}

/// All buffers, and which of them are free or left to MPI.
#[derive(Default)]
pub(super) struct BufferCache {
    all: Vec<MessageBuffer>,
    free: Vec<MessageId>,
    abandoned: Vec<MessageId>,
}

impl Messenger {
    /// A buffer, to be filled and sent, or to be received into.
    #[inline]
    pub(super) fn take(&mut self) -> MessageId {
        self.buffers.free.pop().unwrap_or_else(|| self.take_or_allocate())
    }

    #[cold]
    fn take_or_allocate(&mut self) -> MessageId {
        // What was abandoned may have ended since.
        if let Some(message) = self.buffers.abandoned.pop() {
            if self.is_done(message).unwrap_or(false) {
                return message;
            }
            self.buffers.abandoned.insert(0, message);
        }
        let (request, first) = (self.none, self.buffers.all.len());
        self.buffers.all.extend(allocate_buffers().iter_mut().map(|buffer| MessageBuffer {
            buffer,
            request,
            receives: false,
        }));
        self.buffers.free.extend(first + 1..self.buffers.all.len());
        first
    }

    /// What is in a buffer.
    #[inline]
    pub(super) fn buffer(&mut self, message: MessageId) -> &mut [u8; BUFFER_BYTES] {
        let buffer = &mut self.buffers.all[message];
        debug_assert!(buffer.request == self.none, "a message is under way in this buffer");
        &mut buffer.buffer.message
    }

    /// Begins to send the first bytes of a buffer.
    #[inline]
    pub(super) fn send(
        &mut self,
        message: MessageId,
        bytes: usize,
        to: usize,
        tag: c_int,
    ) -> Result<(), Failure> {
        let buffer = &mut self.buffers.all[message];
        buffer.receives = false;
        // SAFETY: the buffer has so many bytes and stays where it is until the message has ended: `buffer` is not called
        // before, and places are never freed.
        buffer.request =
            unsafe { self.library.send(buffer.buffer.message.as_ptr(), bytes.min(BUFFER_BYTES), to, tag) }?;
        Ok(())
    }

    /// Begins to receive into a buffer, from a rank or from whichever sends first.
    #[inline]
    pub(super) fn receive(
        &mut self,
        message: MessageId,
        from: Option<usize>,
        tag: c_int,
    ) -> Result<(), Failure> {
        let buffer = &mut self.buffers.all[message];
        buffer.receives = true;
        // SAFETY: as for sending. Nobody sends more than a buffer holds.
        buffer.request = unsafe { self.library.receive(buffer.buffer.message.as_mut_ptr(), from, tag) }?;
        Ok(())
    }

    /// Whether a message has ended. Once it has, its buffer is the caller's again.
    #[inline]
    pub(super) fn is_done(&mut self, message: MessageId) -> Result<bool, Failure> {
        let buffer = &mut self.buffers.all[message];
        if buffer.request == self.none {
            return Ok(true);
        }
        // SAFETY: the request is one that a call above gave.
        unsafe { self.library.test(&mut buffer.request) }
    }

    /// Gives a buffer back whose message has ended, or which had none.
    #[inline]
    pub(super) fn give_back(&mut self, message: MessageId) {
        self.buffers.free.push(message);
    }

    /// Leaves a message and its buffer to MPI.
    pub(super) fn abandon(&mut self, message: MessageId) {
        let MessageBuffer { request, receives, .. } = self.buffers.all[message];
        if request != self.none && receives {
            // SAFETY: the request is under way.
            unsafe { self.library.cancel(request) };
        }
        match self.is_done(message) {
            Ok(true) => self.give_back(message),
            _ => self.buffers.abandoned.push(message),
        }
    }
}

/// An MPI that was started.
struct Mpi<H: MpiHandle> {
    library: Library<H>,
    comm: H,
    /// MPI was started here, and not by the program.
    ours: bool,
    /// What was done with the launcher's signal before MPI was started here.
    signal: Option<SavedAction>,
}

/// Starts MPI, unless the program has, and makes a communicator of its own, together with all other ranks.
pub(super) fn start<H: MpiHandle>(library: Library<H>) -> Result<Messenger, String> {
    let (none, version) = (library.constants.null_request.number(), library.version.clone());
    // Found by measuring; with room for the library's own header. MPICH is the one that takes signals.
    let eager_bytes = if library.takes_signals { 8192 - 64 } else { 4096 - 64 };
    let mut mpi = Mpi { comm: library.constants.world, library, ours: false, signal: None };
    let begun = mpi.begin();
    let (rank, size, highest_tag) = begun.inspect_err(|_| mpi.finish())?;
    // Every library must allow tags up to this.
    let highest_tag = highest_tag.unwrap_or(32_767);
    let (library, buffers) = (Box::new(mpi), BufferCache::default());
    Ok(Messenger { library, none, rank, size, version, highest_tag, eager_bytes, buffers })
}

impl<H: MpiHandle> Mpi<H> {
    /// Gives this rank's number, how many there are, and the highest tag where the library says.
    fn begin(&mut self) -> Result<(usize, usize, Option<c_int>), String> {
        let (calls, constants) = (self.library.calls, self.library.constants);
        let library = &self.library;
        let check = |code: c_int, what: &str| {
            if code == 0 { Ok(()) } else { Err(format!("{what}: {}", error_text(library, code))) }
        };
        if self.has_ended() {
            return Err("the program has ended MPI, which cannot be started again".into());
        }
        let (mut running, mut threads, mut rank, mut size) = (0, 0, 0, 0);
        let (mut bound, mut found): (*mut c_int, c_int) = (std::ptr::null_mut(), 0);
        // SAFETY: as the standard has it; all pointers are to live variables, and MPI takes no arguments.
        unsafe {
            check((calls.initialized)(&mut running), "MPI_Initialized")?;
            if running == 0 {
                let before = library.takes_signals.then(SavedAction::ask).flatten();
                let (none, none_either) = (std::ptr::null_mut(), std::ptr::null_mut());
                let waiting_threads = constants.thread_serialized;
                check(
                    (calls.init_thread)(none, none_either, waiting_threads, &mut threads),
                    "MPI_Init_thread",
                )?;
                self.ours = true;
                before.iter().for_each(SavedAction::override_mpi);
                self.signal = before;
                // In an MPI of the program's own, what becomes of errors on its communicators is for the program to say.
                let code = (calls.comm_set_errhandler)(constants.world, constants.errors_return);
                check(code, "MPI_Comm_set_errhandler")?;
            } else {
                check((calls.query_thread)(&mut threads), "MPI_Query_thread")?;
            }
            if threads < constants.thread_serialized {
                return Err(if self.ours {
                    "it does not allow calls from several threads (MPI_THREAD_SERIALIZED)".into()
                } else {
                    "the program has started it for calls from one thread alone: start it by MPI_Init_thread with \
                     MPI_THREAD_MULTIPLE, or with MPI_THREAD_SERIALIZED where the program makes no calls meanwhile"
                        .into()
                });
            }
            check((calls.comm_dup)(constants.world, &mut self.comm), "MPI_Comm_dup")?;
            let code = (calls.comm_set_errhandler)(self.comm, constants.errors_return);
            check(code, "MPI_Comm_set_errhandler")?;
            check((calls.comm_rank)(self.comm, &mut rank), "MPI_Comm_rank")?;
            check((calls.comm_size)(self.comm, &mut size), "MPI_Comm_size")?;
            let (key, bound) = (constants.tag_upper_bound, (&raw mut bound).cast());
            check((calls.comm_get_attr)(constants.world, key, bound, &mut found), "MPI_Comm_get_attr")?;
        }
        // SAFETY: where the attribute is found, it is the address of an integer.
        let highest_tag = (found != 0 && !bound.is_null()).then(|| unsafe { *bound });
        Ok((rank as usize, size as usize, highest_tag))
    }

    #[inline]
    fn check<R>(&self, code: c_int, operation: &str, result: R) -> Result<R, Failure> {
        if code == 0 { Ok(result) } else { Err(self.failed(code, operation)) }
    }

    #[cold]
    fn failed(&self, code: c_int, operation: &str) -> Failure {
        let detail = error_text(&self.library, code);
        Failure::Library { library: "MPI", operation: operation.into(), detail }
    }
}

fn error_text<H: MpiHandle>(library: &Library<H>, code: c_int) -> String {
    let (mut text, mut len) = ([0u8; 1024], 0);
    // SAFETY: no library says more than 512 bytes.
    unsafe { (library.calls.error_string)(code, text.as_mut_ptr().cast::<c_char>(), &mut len) };
    String::from_utf8_lossy(&text[..len.clamp(0, 1024) as usize]).into_owned()
}

impl<H: MpiHandle> MessageLibrary for Mpi<H> {
    unsafe fn send(
        &self,
        buffer: *const u8,
        bytes: usize,
        to: usize,
        tag: c_int,
    ) -> Result<RequestHandle, Failure> {
        let Library { calls, constants, .. } = &self.library;
        let (bytes, to, mut request) = (bytes as c_int, to as c_int, constants.null_request);
        // SAFETY: the caller promises it.
        let code =
            unsafe { (calls.isend)(buffer.cast(), bytes, constants.byte, to, tag, self.comm, &mut request) };
        self.check(code, "MPI_Isend", request.number())
    }

    unsafe fn receive(
        &self,
        buffer: *mut u8,
        from: Option<usize>,
        tag: c_int,
    ) -> Result<RequestHandle, Failure> {
        let Library { calls, constants, .. } = &self.library;
        let (from, mut request) =
            (from.map_or(constants.any_source, |rank| rank as c_int), constants.null_request);
        let (most, byte) = (BUFFER_BYTES as c_int, constants.byte);
        // SAFETY: the caller promises it.
        let code = unsafe { (calls.irecv)(buffer.cast(), most, byte, from, tag, self.comm, &mut request) };
        self.check(code, "MPI_Irecv", request.number())
    }

    unsafe fn test(&self, request: &mut RequestHandle) -> Result<bool, Failure> {
        let (mut handle, mut done) = (H::of(*request), 0);
        let status = self.library.constants.status_ignore;
        // SAFETY: the caller promises it; the status is the one to be ignored.
        let code = unsafe { (self.library.calls.test)(&mut handle, &mut done, status) };
        *request = handle.number();
        self.check(code, "MPI_Test", done != 0)
    }

    unsafe fn cancel(&self, request: RequestHandle) {
        // SAFETY: the caller promises it.
        unsafe { (self.library.calls.cancel)(&mut H::of(request)) };
    }

    fn finish(&mut self) {
        if self.ours {
            // SAFETY: started here, and not used again.
            unsafe { (self.library.calls.finalize)() };
        } else if self.comm != self.library.constants.world {
            // SAFETY: made here, and not used again.
            unsafe { (self.library.calls.comm_free)(&mut self.comm) };
        }
        self.ours = false;
        self.signal.take().into_iter().for_each(SavedAction::restore);
    }

    fn has_ended(&self) -> bool {
        let mut ended = 0;
        // SAFETY: may be called at any time; the pointer is to a live variable.
        let code = unsafe { (self.library.calls.finalized)(&mut ended) };
        code != 0 || ended != 0
    }
}

impl Debug for Messenger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wire({}, rank {} of {})", self.version, self.rank, self.size)
    }
}
