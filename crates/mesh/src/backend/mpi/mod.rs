//! Ranks that are processes, and exchange messages through whatever MPI is on the machine.
//!
//! A group whose ranks are all on one host meets in memory that they share (`host`). All other groups go by messages
//! between two ranks, and by none of MPI's own collectives: those cannot be given a deadline, do not say who called
//! something else, and are free to reduce in any order. Every collective then begins with a message from every
//! member to every other, which says what is called and carries the first piece of data; so all know who called what
//! before anybody goes on, and where the data is small that is all there is. What is longer follows in pieces, whose
//! reduction overlaps with their transport (`part`). A member that fails says so in a message of its own (`word`).
//!
//! How many messages a call takes grows with the square of the members: this is for tens of ranks, not for thousands.

mod call;
mod endpoint;
mod header;
#[cfg(target_os = "linux")]
mod host;
pub(crate) mod library;
mod messenger;
mod nontemporal;
mod notice;
mod session;
mod signal;

use std::{
    collections::{HashMap, HashSet},
    ffi::c_int,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use endpoint::MpiEndpoint;
use library::AnyLibrary;
use messenger::Messenger;
use notice::NoticeReceiver;

use super::{Endpoint, Failure, Transport, wait::Backoff};

/// The world of this process's MPI. It is opened once: MPI cannot be started again after it has ended.
/// Ending it waits so long for the other ranks.
pub(crate) fn world(finalize_timeout: Duration) -> Result<Arc<dyn Transport>, String> {
    static OPENED: OnceLock<()> = OnceLock::new();
    if OPENED.set(()).is_err() {
        return Err("it has been opened before in this process".into());
    }
    let mut messenger = match library::open()? {
        AnyLibrary::Wide(library) => messenger::start(library)?,
        AnyLibrary::Narrow(library) => messenger::start(library)?,
    };
    let (rank, size, version, highest_tag) =
        (messenger.rank, messenger.size, messenger.version.clone(), messenger.highest_tag);
    let notices = NoticeReceiver::new(&mut messenger).map_err(|why| format!("{why:?}"))?;
    let shared = Shared {
        connection: Mutex::new(Connection { messenger, notices }),
        waiting_threads: AtomicUsize::new(0),
        groups: Mutex::default(),
        finalize_timeout,
        panicked: AtomicBool::new(false),
    };
    Ok(Arc::new(MpiTransport { shared: Arc::new(shared), rank, size, version, highest_tag }))
}

/// What all groups of this process share.
#[derive(Debug)]
struct Shared {
    /// One thread at a time calls MPI.
    connection: Mutex<Connection>,
    /// How many threads want to.
    waiting_threads: AtomicUsize,
    groups: Mutex<Groups>,
    /// How long the end waits for the other ranks.
    finalize_timeout: Duration,
    /// This rank panicked: it is not to wait for anybody.
    panicked: AtomicBool,
}

#[derive(Debug, Default)]
struct Groups {
    /// How often groups of this name and these ranks were joined.
    joined: HashMap<(String, Vec<usize>), u64>,
    /// The first tags of the groups that there are.
    tags: HashSet<c_int>,
}

/// The wire, and what is heard on it.
#[derive(Debug)]
struct Connection {
    messenger: Messenger,
    notices: NoticeReceiver,
}

impl Connection {
    /// Hears what there is to hear.
    fn receive_notices(&mut self) -> Result<(), Failure> {
        self.notices.receive_notices(&mut self.messenger)
    }
}

impl Shared {
    #[inline]
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.try_lock().unwrap_or_else(|_| self.wait_for_connection())
    }

    #[cold]
    fn wait_for_connection(&self) -> MutexGuard<'_, Connection> {
        // A line is never left half-done: tickets that were being used stay where they are.
        self.waiting_threads.fetch_add(1, SeqCst);
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting_threads.fetch_sub(1, SeqCst);
        connection
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Connection { messenger, notices } =
            self.connection.get_mut().unwrap_or_else(PoisonError::into_inner);
        if *self.panicked.get_mut() || messenger.library.has_ended() {
            return;
        }
        // Ending MPI waits for all ranks, for ever where one of them is gone. So each tells all that it is about to, and
        // hears meanwhile what others said before.
        let (rank, size) = (messenger.rank, messenger.size);
        let mut awaited = Vec::new();
        for other in (0..size).filter(|other| *other != rank) {
            let (finalize_timeout, answer) = (messenger.take(), messenger.take());
            if messenger.receive(answer, Some(other), FINALIZE_TAG).is_ok() {
                awaited.push((other, answer));
            }
            let _ = messenger.send(finalize_timeout, 0, other, FINALIZE_TAG);
        }
        let wait = Backoff::new();
        loop {
            awaited.retain(|(_, answer)| !messenger.is_done(*answer).unwrap_or(false));
            let _ = notices.receive_notices(messenger);
            if awaited.is_empty() {
                break;
            }
            if wait.has_exceeded(self.finalize_timeout) {
                let missing: Vec<_> = awaited.iter().map(|(rank, _)| *rank).collect();
                tracing::warn!(
                    "MPI is not ended: ranks {missing:?} still use it after {:?}",
                    self.finalize_timeout
                );
                return;
            }
            wait.pause();
        }
        notices.close(messenger);
        messenger.library.finish();
    }
}

#[derive(Debug)]
struct MpiTransport {
    shared: Arc<Shared>,
    rank: usize,
    size: usize,
    version: String,
    highest_tag: c_int,
}

/// Tags that a group has.
const TAGS_PER_GROUP: c_int = 3;
/// Tags that are no group's.
const FINALIZE_TAG: c_int = 0;
const NOTICE_TAG: c_int = 1;

impl Transport for MpiTransport {
    fn name(&self) -> String {
        format!("mpi ({})", self.version)
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn join(&self, name: &str, ranks: &[usize], member: usize) -> Result<Box<dyn Endpoint>, Failure> {
        let mut groups = self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let count = groups.joined.entry((name.to_owned(), ranks.to_vec())).or_default();
        *count += 1;
        // All members find the same number without asking one another.
        let identity = identity(name, ranks, *count);
        let tag_ranges = (self.highest_tag / TAGS_PER_GROUP - 1).max(1) as u64;
        let tag = TAGS_PER_GROUP + (identity % tag_ranges) as c_int * TAGS_PER_GROUP;
        if !groups.tags.insert(tag) {
            let detail = "its messages could not be told from another group's: give it another name".into();
            return Err(Failure::Library { library: "MPI", operation: "choosing a tag".into(), detail });
        }
        drop(groups);
        Ok(Box::new(MpiEndpoint::join(self.shared.clone(), ranks.to_vec(), member, tag, identity)))
    }

    fn leave(&self, panicked: bool) {
        if panicked {
            self.shared.panicked.store(true, SeqCst);
        }
    }
}

/// A number for a group.
fn identity(name: &str, ranks: &[usize], count: u64) -> u64 {
    let numbers = ranks.iter().map(|rank| *rank as u64).chain([count]).flat_map(u64::to_le_bytes);
    hash(name.bytes().chain([0]).chain(numbers))
}

/// A number for some bytes (FNV-1a).
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
