//! Messages through an MPI library: sent and received from memory of the wire's own.
//!
//! A message that was begun cannot always be taken back: MPI may read or write its memory as long as the process lives.
//! So no memory of the caller is ever given to MPI. Messages have buffers from a shelf, and one that does not end is
//! left to MPI with its buffer.

use std::{
    ffi::{c_char, c_int, c_void},
    fmt::Debug,
};

use super::{
    library::{Handle, Library},
    signal::Before,
};
use crate::backend::Failure;

/// What a message can hold: a header and a piece of a vector.
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const PIECE_BYTES: usize = 512 << 10;
const BUFFER_BYTES: usize = HEADER_BYTES + PIECE_BYTES;

/// A message's place on the wire.
pub(super) type Ticket = usize;

/// Messages between ranks, whatever the library's handles are.
pub(super) trait Wire: Send + Debug {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    fn version(&self) -> &str;
    /// The highest tag that a message may have.
    fn highest_tag(&self) -> c_int;
    /// How long a message may be that is sent without asking the receiver first, on one host. Above, it takes several
    /// times as long.
    fn eager_bytes(&self) -> usize;
    /// A buffer, to be filled and sent, or to be received into.
    fn take(&mut self) -> Ticket;
    /// What is in a buffer.
    fn buffer(&mut self, ticket: Ticket) -> &mut [u8];
    /// Begins to send the first bytes of a buffer.
    fn send(&mut self, ticket: Ticket, bytes: usize, to: usize, tag: c_int) -> Result<(), Failure>;
    /// Begins to receive into a buffer, from a rank or from whichever sends first.
    fn receive(&mut self, ticket: Ticket, from: Option<usize>, tag: c_int) -> Result<(), Failure>;
    /// Whether a message has ended. Once it has, its buffer is the caller's again.
    fn is_done(&mut self, ticket: Ticket) -> Result<bool, Failure>;
    /// Gives a buffer back whose message has ended, or which had none.
    fn give_back(&mut self, ticket: Ticket);
    /// Leaves a message and its buffer to MPI.
    fn abandon(&mut self, ticket: Ticket);
    /// Ends the use of MPI, together with all other ranks.
    fn finish(&mut self);
    /// Whether the program has ended MPI: nothing of it may be called any more.
    fn has_ended(&self) -> bool;
}

/// So much memory is had from the system at once: a large page, of which the kernel finds and pins the parts faster.
const CHUNK_BYTES: usize = 2 << 20;

/// A buffer that begins at a cache line, so that every element type is aligned in it.
#[repr(align(64))]
struct Aligned([u8; BUFFER_BYTES]);

/// Buffers in large pages, where the system has them.
fn chunk() -> &'static mut [Aligned] {
    let buffers = CHUNK_BYTES / size_of::<Aligned>();
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

struct Place<H> {
    /// Never freed: MPI may read or write it as long as the process lives.
    buffer: &'static mut Aligned,
    request: H,
    receives: bool,
}

pub(super) struct Mpi<H: Handle> {
    library: Library<H>,
    comm: H,
    rank: usize,
    size: usize,
    highest_tag: c_int,
    /// MPI was started here, and not by the program.
    ours: bool,
    /// What was done with the launcher's signal before MPI was started here.
    signal: Option<Before>,
    places: Vec<Place<H>>,
    free: Vec<Ticket>,
    abandoned: Vec<Ticket>,
}

impl<H: Handle> Mpi<H> {
    /// Starts MPI, unless the program has, and makes a communicator of its own, together with all other ranks.
    pub(super) fn start(library: Library<H>) -> Result<Self, String> {
        let mut this = Mpi {
            comm: library.constants.world,
            library,
            rank: 0,
            size: 0,
            // Every library must allow tags up to this.
            highest_tag: 32_767,
            ours: false,
            signal: None,
            places: Vec::new(),
            free: Vec::new(),
            abandoned: Vec::new(),
        };
        match this.begin() {
            Ok(()) => Ok(this),
            Err(why) => {
                this.finish();
                Err(why)
            }
        }
    }

    fn begin(&mut self) -> Result<(), String> {
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
                let before = library.takes_signals.then(Before::ask).flatten();
                let (none, none_either) = (std::ptr::null_mut(), std::ptr::null_mut());
                let wanted = constants.thread_serialized;
                check((calls.init_thread)(none, none_either, wanted, &mut threads), "MPI_Init_thread")?;
                self.ours = true;
                before.iter().for_each(Before::take_from_mpi);
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
        if found != 0 && !bound.is_null() {
            // SAFETY: where the attribute is found, it is the address of an integer.
            self.highest_tag = unsafe { *bound };
        }
        (self.rank, self.size) = (rank as usize, size as usize);
        Ok(())
    }

    fn check(&self, code: c_int, operation: &str) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let detail = error_text(&self.library, code);
        Err(Failure::Library { library: "MPI", operation: operation.into(), detail })
    }
}

fn error_text<H: Handle>(library: &Library<H>, code: c_int) -> String {
    let (mut text, mut len) = ([0u8; 1024], 0);
    // SAFETY: no library says more than 512 bytes.
    unsafe { (library.calls.error_string)(code, text.as_mut_ptr().cast::<c_char>(), &mut len) };
    String::from_utf8_lossy(&text[..len.clamp(0, 1024) as usize]).into_owned()
}

impl<H: Handle> Wire for Mpi<H> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn version(&self) -> &str {
        &self.library.version
    }

    fn highest_tag(&self) -> c_int {
        self.highest_tag
    }

    #[inline]
    fn eager_bytes(&self) -> usize {
        // Found by measuring; with room for the library's own header. MPICH is the one that takes signals.
        if self.library.takes_signals { 8192 - 64 } else { 4096 - 64 }
    }

    fn take(&mut self) -> Ticket {
        if let Some(ticket) = self.free.pop() {
            return ticket;
        }
        // What was abandoned may have ended since.
        if let Some(ticket) = self.abandoned.pop() {
            if self.is_done(ticket).unwrap_or(false) {
                return ticket;
            }
            self.abandoned.insert(0, ticket);
        }
        let (request, first) = (self.library.constants.null_request, self.places.len());
        self.places.extend(chunk().iter_mut().map(|buffer| Place { buffer, request, receives: false }));
        self.free.extend(first + 1..self.places.len());
        first
    }

    #[inline]
    fn buffer(&mut self, ticket: Ticket) -> &mut [u8] {
        let place = &mut self.places[ticket];
        debug_assert!(
            place.request == self.library.constants.null_request,
            "a message is under way in this buffer"
        );
        &mut place.buffer.0
    }

    fn send(&mut self, ticket: Ticket, bytes: usize, to: usize, tag: c_int) -> Result<(), Failure> {
        let (calls, byte, comm) = (self.library.calls, self.library.constants.byte, self.comm);
        let place = &mut self.places[ticket];
        place.receives = false;
        let bytes = bytes.min(BUFFER_BYTES) as c_int;
        // SAFETY: the buffer has so many bytes and stays where it is until the message has ended: `buffer` is not called
        // before, and places are never freed.
        let code = unsafe {
            let buffer = place.buffer.0.as_ptr().cast::<c_void>();
            (calls.isend)(buffer, bytes, byte, to as c_int, tag, comm, &mut place.request)
        };
        self.check(code, "MPI_Isend")
    }

    fn receive(&mut self, ticket: Ticket, from: Option<usize>, tag: c_int) -> Result<(), Failure> {
        let (calls, constants, comm) = (self.library.calls, self.library.constants, self.comm);
        let place = &mut self.places[ticket];
        place.receives = true;
        let from = from.map_or(constants.any_source, |rank| rank as c_int);
        // SAFETY: as for sending. Nobody sends more than a buffer holds.
        let code = unsafe {
            let buffer = place.buffer.0.as_mut_ptr().cast::<c_void>();
            (calls.irecv)(buffer, BUFFER_BYTES as c_int, constants.byte, from, tag, comm, &mut place.request)
        };
        self.check(code, "MPI_Irecv")
    }

    #[inline]
    fn is_done(&mut self, ticket: Ticket) -> Result<bool, Failure> {
        let place = &mut self.places[ticket];
        if place.request == self.library.constants.null_request {
            return Ok(true);
        }
        let mut done = 0;
        // SAFETY: the request is one that a call above gave; the status is the one to be ignored.
        let code = unsafe {
            (self.library.calls.test)(&mut place.request, &mut done, self.library.constants.status_ignore)
        };
        self.check(code, "MPI_Test")?;
        Ok(done != 0)
    }

    fn give_back(&mut self, ticket: Ticket) {
        self.free.push(ticket);
    }

    fn abandon(&mut self, ticket: Ticket) {
        if self.places[ticket].request == self.library.constants.null_request {
            return self.give_back(ticket);
        }
        if self.places[ticket].receives {
            // A receive that nothing has matched ends by this; otherwise it changes nothing.
            // SAFETY: the request is under way.
            unsafe { (self.library.calls.cancel)(&mut self.places[ticket].request) };
        }
        match self.is_done(ticket) {
            Ok(true) => self.give_back(ticket),
            _ => self.abandoned.push(ticket),
        }
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
        self.signal.take().into_iter().for_each(Before::restore);
    }

    fn has_ended(&self) -> bool {
        let mut ended = 0;
        // SAFETY: may be called at any time; the pointer is to a live variable.
        let code = unsafe { (self.library.calls.finalized)(&mut ended) };
        code != 0 || ended != 0
    }
}

impl<H: Handle> Debug for Mpi<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mpi({}, rank {} of {})", self.library.version, self.rank, self.size)
    }
}
