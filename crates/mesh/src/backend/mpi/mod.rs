//! The back end for ranks that are processes, connected by an MPI library.
//!
//! A group whose ranks are all on one host uses shared memory (`host`). All other groups use point-to-point messages,
//! and none of MPI's collectives: those have no timeout, do not report which rank called something else, and may reduce
//! in any order. Every collective starts with a message from every member to every other, with the signature and the
//! first piece of data; so all members know every call before they continue, and small data needs no other message.
//! A small all-reduce that the members have agreed on before needs no signature (`small`). Longer data follows in
//! pieces, whose reduction overlaps with their transfer (`call`). A member that fails sends a leave notice (`notice`).
//!
//! The number of messages grows with the square of the members: this is for tens of ranks, not for thousands.

mod buffers;
mod call;
mod endpoint;
mod header;
#[cfg(target_os = "linux")]
mod host;
pub(crate) mod library;
mod messenger;
mod notice;
mod session;
mod signal;
mod small;
mod stores;

use std::{
    collections::HashMap,
    ffi::c_int,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use endpoint::{Group, MpiEndpoint};
use library::AnyLibrary;
use messenger::Messenger;
use notice::NoticeReceiver;

use super::{Endpoint, Transport, TransportFailure, wait::Backoff};

/// Opens the MPI world of this process, once: MPI cannot be initialized again after it was finalized. Finalizing waits
/// at most `finalize_timeout` for the other ranks.
pub(crate) fn world(finalize_timeout: Duration) -> Result<Arc<dyn Transport>, String> {
    static OPENED: OnceLock<()> = OnceLock::new();
    if OPENED.set(()).is_err() {
        return Err("MPI can be opened once per process, and has been before".into());
    }
    let mut messenger = match library::open()? {
        AnyLibrary::Wide(library) => messenger::start(library)?,
        AnyLibrary::Narrow(library) => messenger::start(library)?,
    };
    let (rank, size, version, highest_tag) =
        (messenger.rank, messenger.size, messenger.version.clone(), messenger.highest_tag);
    let notices = NoticeReceiver::new(&mut messenger).map_err(|why| why.to_string())?;
    let shared = Shared {
        connection: Mutex::new(Connection { messenger, notices }),
        waiting_threads: AtomicUsize::new(0),
        groups: Mutex::default(),
        finalize_timeout,
        panicked: AtomicBool::new(false),
    };
    Ok(Arc::new(MpiTransport { shared: Arc::new(shared), rank, size, version, highest_tag }))
}

/// The state that all groups of this process share.
#[derive(Debug)]
struct Shared {
    /// Only the thread that holds the lock calls MPI.
    connection: Mutex<Connection>,
    /// Number of threads that wait for the lock.
    waiting_threads: AtomicUsize,
    groups: Mutex<Groups>,
    finalize_timeout: Duration,
    /// This rank panicked: finalizing does not wait for other ranks.
    panicked: AtomicBool,
}

#[derive(Debug, Default)]
struct Groups {
    /// Number of groups of this name and these ranks that were joined.
    joined: HashMap<(String, Vec<usize>), u64>,
    /// The tags of all groups so far; true while a group uses them.
    tags: HashMap<c_int, bool>,
}

/// The messenger, and the leave notices received by it.
#[derive(Debug)]
struct Connection {
    messenger: Messenger,
    notices: NoticeReceiver,
}

impl Connection {
    fn receive_notices(&mut self) -> Result<(), TransportFailure> {
        self.notices.receive_notices(&mut self.messenger)
    }
}

impl Shared {
    #[inline]
    fn connection(&self) -> MutexGuard<'_, Connection> {
        match self.connection.try_lock() {
            Ok(connection) => connection,
            // Ignores poisoning: messages that were in use stay where they are.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait_for_connection(),
        }
    }

    /// Returns the connection, or `None` once MPI is finalized, which a program that initialized it may do at any time:
    /// most libraries abort the process if it then calls another function.
    fn live_connection(&self) -> Option<MutexGuard<'_, Connection>> {
        Some(self.connection()).filter(|connection| !connection.messenger.library.has_ended())
    }

    #[cold]
    fn wait_for_connection(&self) -> MutexGuard<'_, Connection> {
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
        // Finalizing MPI waits for all ranks, for ever if one of them is gone. So each rank first announces it to all
        // others, and meanwhile receives their notices.
        let (rank, size) = (messenger.rank, messenger.size);
        let mut awaited = Vec::new();
        for other in (0..size).filter(|other| *other != rank) {
            let (notice, answer) = (messenger.take(), messenger.take());
            if messenger.receive(answer, Some(other), FINALIZE_TAG).is_ok() {
                awaited.push((other, answer));
            }
            let _ = messenger.send(notice, 0, other, FINALIZE_TAG);
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
                let timeout = self.finalize_timeout;
                tracing::warn!("MPI is not finalized: ranks {missing:?} still use it after {timeout:?}");
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

const TAGS_PER_GROUP: c_int = 4;
/// Tags that belong to no group.
const FINALIZE_TAG: c_int = 0;
const NOTICE_TAG: c_int = 1;

impl MpiTransport {
    fn join_endpoint(
        &self,
        name: &str,
        ranks: &[usize],
        member: usize,
    ) -> Result<MpiEndpoint, TransportFailure> {
        let mut groups = self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let count = groups.joined.entry((name.to_owned(), ranks.to_vec())).or_default();
        *count += 1;
        // All members compute the same number without communication.
        let identity = identity(name, ranks, *count);
        let tag_ranges = (self.highest_tag / TAGS_PER_GROUP - 1).max(1) as u64;
        let tag = TAGS_PER_GROUP + (identity % tag_ranges) as c_int * TAGS_PER_GROUP;
        let earlier = groups.tags.insert(tag, true);
        if earlier == Some(true) {
            let detail = "another group uses its tag: give it another name".into();
            return Err(TransportFailure::Library {
                library: "MPI",
                operation: "choosing a tag".into(),
                detail,
            });
        }
        drop(groups);
        let group = Group { shared: self.shared.clone(), ranks: ranks.to_vec(), me: member, tag, identity };
        Ok(MpiEndpoint::join(group, earlier.is_none()))
    }
}

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

    fn join(
        &self,
        name: &str,
        ranks: &[usize],
        member: usize,
    ) -> Result<Box<dyn Endpoint>, TransportFailure> {
        Ok(Box::new(self.join_endpoint(name, ranks, member)?))
    }

    fn leave(&self, panicked: bool) {
        if panicked {
            self.shared.panicked.store(true, SeqCst);
        }
    }
}

fn identity(name: &str, ranks: &[usize], count: u64) -> u64 {
    let numbers = ranks.iter().map(|rank| *rank as u64).chain([count]).flat_map(u64::to_le_bytes);
    hash(name.bytes().chain([0]).chain(numbers))
}

/// Hashes bytes (FNV-1a).
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
