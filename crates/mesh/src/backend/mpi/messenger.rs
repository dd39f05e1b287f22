//! Messages through an MPI library, sent and received from buffers of the messenger.
//!
//! A started message cannot always be cancelled: MPI may access its memory as long as the process lives. So MPI never
//! gets the caller's memory. Messages use cached buffers, and a message that does not end keeps its buffer for ever.

use std::{
    ffi::{c_char, c_int},
    fmt::Debug,
    ops::Range,
};

use super::{
    buffers::{BUFFER_BYTES, BufferCache, HEADER_BYTES, MessageBuffer, MessageId},
    library::{Library, MpiHandle},
    signal::SavedAction,
    stores::StoreChoice,
};
use crate::backend::TransportFailure;

/// Open MPI sends messages up to this size by a shorter way, but not from persistent requests.
const INLINE_BYTES: usize = 256;
/// The number of an MPI request.
pub(super) type Request = usize;

/// MPI's number of an error. Small, so that results are returned in registers.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorCode(pub(super) c_int);

/// What a request does. A persistent one is inactive until it is started, and again when its message has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    Send,
    Receive,
    PersistentSend,
    PersistentReceive,
}

impl RequestKind {
    /// Returns the name of MPI's function.
    fn function(self) -> &'static str {
        match self {
            RequestKind::Send => "MPI_Isend",
            RequestKind::Receive => "MPI_Irecv",
            RequestKind::PersistentSend => "MPI_Send_init",
            RequestKind::PersistentReceive => "MPI_Recv_init",
        }
    }
}

/// The message functions of an MPI library, for either width of handles.
///
/// # Safety
/// A buffer has `bytes`, is not accessed until its message has ended, and is not freed before a persistent request is.
/// Requests come from this trait, and have not ended.
pub(super) trait MessageLibrary: Send {
    /// Makes a request to send to a rank, or to receive from a rank, or from any if `peer` is `None`.
    unsafe fn request(
        &self,
        kind: RequestKind,
        buffer: *mut u8,
        bytes: usize,
        peer: Option<usize>,
        tag: c_int,
    ) -> Result<Request, ErrorCode>;
    /// Starts an inactive persistent request, and may replace it.
    unsafe fn start(&self, request: &mut Request) -> Result<(), ErrorCode>;
    /// Frees an inactive persistent request.
    unsafe fn free(&self, request: Request);
    /// Returns whether a message that no receive has matched has arrived from a rank.
    fn has_arrived(&self, from: usize, tag: c_int) -> Result<bool, ErrorCode>;
    /// Returns whether a request has ended, and if so replaces it by the null request, unless it is persistent.
    unsafe fn test(&self, request: &mut Request) -> Result<bool, ErrorCode>;
    /// Cancels a receive that no message has matched; otherwise does nothing.
    unsafe fn cancel(&self, request: Request);
    /// Returns the failure of a function.
    fn failure(&self, function: &str, code: ErrorCode) -> TransportFailure;
    fn finish(&mut self);
    /// Returns whether MPI is finalized: no function of it may be called any more.
    fn has_ended(&self) -> bool;
}

/// Sends and receives messages, each in a buffer of its own.
pub(super) struct Messenger {
    pub(super) library: Box<dyn MessageLibrary>,
    pub(super) none: Request,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) version: String,
    pub(super) highest_tag: c_int,
    /// Maximum bytes of a message that is sent eagerly on one host, without a rendezvous, which takes several times as
    /// long.
    pub(super) eager_bytes: usize,
    pub(super) buffers: BufferCache,
    pub(super) stores: StoreChoice,
}

impl Messenger {
    /// Returns the bytes of the pieces in which a vector goes fastest, without headers. They are a multiple of every
    /// element's bytes, unless the vector is one piece.
    #[inline]
    pub(super) fn bare_piece_bytes(&self, vector_bytes: usize) -> usize {
        if vector_bytes <= self.eager_bytes {
            vector_bytes
        } else {
            vector_bytes.div_ceil(vector_bytes.div_ceil(self.eager_bytes)).next_multiple_of(64)
        }
    }

    /// Returns a free buffer, for a message to receive or a short one to send.
    #[inline]
    pub(super) fn take(&mut self) -> MessageId {
        match self.buffers.take() {
            Some(message) => message,
            None => self.find_buffer(false, BufferCache::take),
        }
    }

    /// Returns a free buffer for a message of so many bytes to send, whose place is [`outgoing`](Self::outgoing).
    #[inline]
    pub(super) fn take_to_send(&mut self, bytes: usize) -> MessageId {
        if bytes <= self.eager_bytes {
            return self.take();
        }
        match self.buffers.take_long(bytes) {
            Some(message) => message,
            None => self.find_buffer(true, |buffers| buffers.take_long(bytes)),
        }
    }

    #[cold]
    fn find_buffer(
        &mut self,
        is_long: bool,
        take: impl Fn(&mut BufferCache) -> Option<MessageId>,
    ) -> MessageId {
        // Abandoned messages may have ended since.
        for message in std::mem::take(&mut self.buffers.abandoned) {
            if self.is_done(message).unwrap_or(false) {
                self.free_persistent(message);
                self.buffers.give_back(message);
            } else {
                self.buffers.abandoned.push(message);
            }
        }
        loop {
            if let Some(message) = take(&mut self.buffers) {
                return message;
            }
            self.buffers.allocate(self.none, is_long);
        }
    }

    #[inline]
    pub(super) fn buffer(&mut self, message: MessageId) -> &mut [u8; BUFFER_BYTES] {
        let buffer = &mut self.buffers.all[message];
        debug_assert!(buffer.request == self.none, "a message is in flight in this buffer");
        debug_assert!(buffer.start == 0, "the message is at another place of its buffer");
        buffer.bytes()
    }

    /// Returns the place of a message to send.
    #[inline]
    pub(super) fn outgoing(&mut self, message: MessageId) -> &mut [u8] {
        let buffer = &mut self.buffers.all[message];
        debug_assert!(buffer.request == self.none, "a message is in flight in this buffer");
        let start = buffer.start;
        &mut buffer.bytes()[start..]
    }

    /// Makes a request for a range of a message's buffer.
    #[inline(always)]
    fn request(
        &mut self,
        kind: RequestKind,
        message: MessageId,
        range: Range<usize>,
        peer: Option<usize>,
        tag: c_int,
    ) -> Result<Request, TransportFailure> {
        let (buffer, bytes) = (&mut self.buffers.all[message], range.len());
        buffer.receives = matches!(kind, RequestKind::Receive | RequestKind::PersistentReceive);
        let address = buffer.address(range);
        // SAFETY: the range is within the buffer, which is never freed, and is not accessed while a message is in flight,
        // until `is_done` says that it has ended. No rank sends more than a buffer holds.
        let made = unsafe { self.library.request(kind, address, bytes, peer, tag) };
        made.map_err(|code| self.library.failure(kind.function(), code))
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        message: MessageId,
        bytes: usize,
        to: usize,
        tag: c_int,
    ) -> Result<(), TransportFailure> {
        let start = self.buffers.all[message].start;
        let request = self.request(RequestKind::Send, message, start..start + bytes, Some(to), tag)?;
        self.buffers.all[message].request = request;
        Ok(())
    }

    /// Creates a message without a header, which is then started in every call: that takes less time than a new one.
    pub(super) fn prepare_send(
        &mut self,
        bytes: usize,
        to: usize,
        tag: c_int,
    ) -> Result<MessageId, TransportFailure> {
        self.prepare((bytes > INLINE_BYTES).then_some(RequestKind::PersistentSend), bytes, to, tag)
    }

    /// As [`prepare_send`](Self::prepare_send), for a message to receive.
    pub(super) fn prepare_receive(&mut self, from: usize, tag: c_int) -> Result<MessageId, TransportFailure> {
        self.prepare(Some(RequestKind::PersistentReceive), BUFFER_BYTES - HEADER_BYTES, from, tag)
    }

    /// Prepares a message with a persistent request, or with none.
    fn prepare(
        &mut self,
        kind: Option<RequestKind>,
        bytes: usize,
        peer: usize,
        tag: c_int,
    ) -> Result<MessageId, TransportFailure> {
        let message = self.take();
        self.buffers.all[message].is_prepared = true;
        if let Some(kind) = kind {
            let range = HEADER_BYTES..HEADER_BYTES + bytes;
            match self.request(kind, message, range, Some(peer), tag) {
                Ok(persistent) => self.buffers.all[message].persistent = persistent,
                Err(failure) => {
                    self.release_prepared(message);
                    return Err(failure);
                }
            }
        }
        Ok(message)
    }

    /// Sends the data of a prepared message that is not in flight. All arguments are those it was prepared with.
    #[inline]
    pub(super) fn start_send(
        &mut self,
        message: MessageId,
        bytes: usize,
        to: usize,
        tag: c_int,
    ) -> Result<(), TransportFailure> {
        if bytes > INLINE_BYTES {
            return self.start(message);
        }
        let range = HEADER_BYTES..HEADER_BYTES + bytes;
        self.buffers.all[message].request = self.request(RequestKind::Send, message, range, Some(to), tag)?;
        Ok(())
    }

    /// Starts a message with a persistent request that is not in flight.
    #[inline(always)]
    pub(super) fn start(&mut self, message: MessageId) -> Result<(), TransportFailure> {
        let buffer = &mut self.buffers.all[message];
        debug_assert!(buffer.request == self.none && buffer.persistent != self.none);
        // SAFETY: the request is persistent and inactive: it is not the null request, and no request is in flight.
        let started = unsafe { self.library.start(&mut buffer.persistent) };
        started.map_err(|code| self.library.failure("MPI_Start", code))?;
        buffer.request = buffer.persistent;
        Ok(())
    }

    /// Releases a prepared message; if it is in flight, once it has ended.
    pub(super) fn release_prepared(&mut self, message: MessageId) {
        self.buffers.all[message].is_prepared = false;
        match self.is_done(message) {
            Ok(true) => {
                self.free_persistent(message);
                self.give_back(message);
            }
            _ => self.buffers.abandoned.push(message),
        }
    }

    /// Frees the persistent request of a message that is not in flight, if it has one.
    fn free_persistent(&mut self, message: MessageId) {
        let request = std::mem::replace(&mut self.buffers.all[message].persistent, self.none);
        if request != self.none {
            // SAFETY: the request is persistent and inactive, and is not used again.
            unsafe { self.library.free(request) };
        }
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        message: MessageId,
        from: Option<usize>,
        tag: c_int,
    ) -> Result<(), TransportFailure> {
        let request = self.request(RequestKind::Receive, message, 0..BUFFER_BYTES, from, tag)?;
        self.buffers.all[message].request = request;
        Ok(())
    }

    /// Returns whether a message that no receive has matched has arrived from a rank.
    pub(super) fn has_arrived(&mut self, from: usize, tag: c_int) -> Result<bool, TransportFailure> {
        self.library.has_arrived(from, tag).map_err(|code| self.library.failure("MPI_Iprobe", code))
    }

    /// Returns whether a message has ended. Then the caller may access its buffer.
    #[inline]
    pub(super) fn is_done(&mut self, message: MessageId) -> Result<bool, TransportFailure> {
        let buffer = &mut self.buffers.all[message];
        if buffer.request == self.none {
            return Ok(true);
        }
        // SAFETY: this messenger made the request, and it has not ended: it is not the null request.
        let done = unsafe { self.library.test(&mut buffer.request) };
        let done = done.map_err(|code| self.library.failure("MPI_Test", code))?;
        if done {
            buffer.request = self.none;
        }
        Ok(done)
    }

    /// Frees a buffer without a message in flight, unless the message is prepared.
    #[inline]
    pub(super) fn give_back(&mut self, message: MessageId) {
        if !self.buffers.all[message].is_prepared {
            self.buffers.give_back(message);
        }
    }

    /// Cancels a message, and abandons its buffer to MPI if it does not end. A prepared message is still to be released.
    pub(super) fn abandon(&mut self, message: MessageId) {
        let MessageBuffer { request, receives, is_prepared, .. } = self.buffers.all[message];
        if request != self.none && receives {
            // SAFETY: the request has not ended: it is not the null request.
            unsafe { self.library.cancel(request) };
        }
        match self.is_done(message) {
            Ok(true) => self.give_back(message),
            _ if is_prepared => {}
            _ => self.buffers.abandoned.push(message),
        }
    }
}

struct Mpi<H: MpiHandle> {
    library: Library<H>,
    comm: H,
    /// MPI was initialized here, and not by the program.
    ours: bool,
    /// The action of the launcher's signal before MPI was initialized here.
    signal: Option<SavedAction>,
}

/// Initializes MPI, unless the program has, and duplicates its world communicator, together with all other ranks.
pub(super) fn start<H: MpiHandle>(library: Library<H>) -> Result<Messenger, String> {
    let (none, version) = (library.constants.null_request.number(), library.version.clone());
    // Measured, minus the library's own header. Only MPICH handles signals.
    let eager_bytes = if library.takes_signals { 8192 - 64 } else { 4096 - 64 };
    let mut mpi = Mpi { comm: library.constants.world, library, ours: false, signal: None };
    let begun = mpi.begin();
    let (rank, size, highest_tag) = begun.inspect_err(|_| mpi.finish())?;
    // The minimum that the MPI standard guarantees.
    let highest_tag = highest_tag.unwrap_or(32_767);
    let (library, buffers, stores) = (Box::new(mpi), BufferCache::default(), StoreChoice::default());
    Ok(Messenger { library, none, rank, size, version, highest_tag, eager_bytes, buffers, stores })
}

impl<H: MpiHandle> Mpi<H> {
    /// Returns this rank's number, the number of ranks, and the maximum tag if the library has the attribute.
    fn begin(&mut self) -> Result<(usize, usize, Option<c_int>), String> {
        let (calls, constants) = (self.library.calls, self.library.constants);
        let library = &self.library;
        let check = |code: c_int, what: &str| {
            if code == 0 { Ok(()) } else { Err(format!("{what}: {}", error_text(library, code))) }
        };
        if self.has_ended() {
            return Err("the program has finalized MPI, which cannot be initialized again".into());
        }
        let (mut running, mut threads, mut rank, mut size) = (0, 0, 0, 0);
        let (mut bound, mut found): (*mut c_int, c_int) = (std::ptr::null_mut(), 0);
        // SAFETY: the calls are in the order that the MPI standard requires; all pointers are to live variables, and
        // MPI accepts null arguments.
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
                // If the program initialized MPI, it chooses the error handler of its communicators.
                let code = (calls.comm_set_errhandler)(constants.world, constants.errors_return);
                check(code, "MPI_Comm_set_errhandler")?;
            } else {
                check((calls.query_thread)(&mut threads), "MPI_Query_thread")?;
            }
            if threads < constants.thread_serialized {
                return Err(if self.ours {
                    "the library does not support MPI_THREAD_SERIALIZED".into()
                } else {
                    "the program initialized MPI for one thread: call MPI_Init_thread with MPI_THREAD_MULTIPLE, or \
                     with MPI_THREAD_SERIALIZED if the program does not call MPI during collectives"
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
        // SAFETY: if the attribute is found, it is the address of an integer.
        let highest_tag = (found != 0 && !bound.is_null()).then(|| unsafe { *bound });
        Ok((rank as usize, size as usize, highest_tag))
    }
}

#[inline]
fn check<R>(code: c_int, result: R) -> Result<R, ErrorCode> {
    if code == 0 { Ok(result) } else { Err(ErrorCode(code)) }
}

fn error_text<H: MpiHandle>(library: &Library<H>, code: c_int) -> String {
    let (mut text, mut len) = ([0u8; 1024], 0);
    // SAFETY: MPI error texts are at most 512 bytes.
    unsafe { (library.calls.error_string)(code, text.as_mut_ptr().cast::<c_char>(), &mut len) };
    String::from_utf8_lossy(&text[..len.clamp(0, 1024) as usize]).into_owned()
}

impl<H: MpiHandle> MessageLibrary for Mpi<H> {
    unsafe fn request(
        &self,
        kind: RequestKind,
        buffer: *mut u8,
        bytes: usize,
        peer: Option<usize>,
        tag: c_int,
    ) -> Result<Request, ErrorCode> {
        let Library { calls, constants, .. } = &self.library;
        let call = match kind {
            RequestKind::Send => calls.isend,
            RequestKind::Receive => calls.irecv,
            RequestKind::PersistentSend => calls.send_init,
            RequestKind::PersistentReceive => calls.recv_init,
        };
        let (peer, mut request) =
            (peer.map_or(constants.any_source, |rank| rank as c_int), constants.null_request);
        // SAFETY: the caller promises that the buffer has `bytes`, and is not moved or accessed while a message is in flight.
        let code = unsafe {
            call(buffer.cast(), bytes as c_int, constants.byte, peer, tag, self.comm, &mut request)
        };
        check(code, request.number())
    }

    unsafe fn start(&self, request: &mut Request) -> Result<(), ErrorCode> {
        let mut handle = H::of(*request);
        // SAFETY: `request` is persistent, came from this trait, and is inactive.
        let code = unsafe { (self.library.calls.start)(&mut handle) };
        *request = handle.number();
        check(code, ())
    }

    unsafe fn free(&self, request: Request) {
        // SAFETY: `request` is persistent, came from this trait, and is inactive.
        unsafe { (self.library.calls.request_free)(&mut H::of(request)) };
    }

    fn has_arrived(&self, from: usize, tag: c_int) -> Result<bool, ErrorCode> {
        let (Library { calls, constants, .. }, mut found) = (&self.library, 0);
        // SAFETY: the pointer is to a live variable; the status is `MPI_STATUS_IGNORE`.
        let code =
            unsafe { (calls.iprobe)(from as c_int, tag, self.comm, &mut found, constants.status_ignore) };
        check(code, found != 0)
    }

    unsafe fn test(&self, request: &mut Request) -> Result<bool, ErrorCode> {
        let (mut handle, mut done) = (H::of(*request), 0);
        let status = self.library.constants.status_ignore;
        // SAFETY: `request` came from this trait and has not ended; the status is `MPI_STATUS_IGNORE`.
        let code = unsafe { (self.library.calls.test)(&mut handle, &mut done, status) };
        *request = handle.number();
        check(code, done != 0)
    }

    unsafe fn cancel(&self, request: Request) {
        // SAFETY: `request` came from this trait and has not ended.
        unsafe { (self.library.calls.cancel)(&mut H::of(request)) };
    }

    #[cold]
    fn failure(&self, function: &str, ErrorCode(code): ErrorCode) -> TransportFailure {
        let detail = error_text(&self.library, code);
        TransportFailure::Library { library: "MPI", operation: function.into(), detail }
    }

    fn finish(&mut self) {
        if self.ours {
            // SAFETY: MPI was initialized here, and is not used again.
            unsafe { (self.library.calls.finalize)() };
        } else if self.comm != self.library.constants.world {
            // SAFETY: the communicator was duplicated here, and is not used again.
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
        write!(f, "Messenger({}, rank {} of {})", self.version, self.rank, self.size)
    }
}
