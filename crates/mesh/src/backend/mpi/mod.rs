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

mod header;
#[cfg(target_os = "linux")]
mod host;
pub(crate) mod library;
mod member;
mod part;
mod session;
mod signal;
mod stream;
mod wire;
mod word;

use std::{
    collections::{HashMap, HashSet},
    ffi::c_int,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use library::Either;
use member::Member;
use wire::Wire;
use word::Ear;

use super::{Endpoint, Failure, Transport, wait::Wait};

/// The world of this process's MPI. It is opened once: MPI cannot be started again after it has ended.
/// Ending it waits so long for the other ranks.
pub(crate) fn world(goodbye: Duration) -> Result<Arc<dyn Transport>, String> {
    static OPENED: OnceLock<()> = OnceLock::new();
    if OPENED.set(()).is_err() {
        return Err("it has been opened before in this process".into());
    }
    let mut wire = match library::open()? {
        Either::Wide(library) => wire::start(library)?,
        Either::Narrow(library) => wire::start(library)?,
    };
    let (rank, size, version, highest_tag) = (wire.rank, wire.size, wire.version.clone(), wire.highest_tag);
    let ear = Ear::new(&mut wire).map_err(|why| format!("{why:?}"))?;
    let shared = Shared {
        line: Mutex::new(Line { wire, ear }),
        wanted: AtomicUsize::new(0),
        groups: Mutex::default(),
        goodbye,
        panicked: AtomicBool::new(false),
    };
    Ok(Arc::new(Place { shared: Arc::new(shared), rank, size, version, highest_tag }))
}

/// What all groups of this process share.
#[derive(Debug)]
struct Shared {
    /// One thread at a time calls MPI.
    line: Mutex<Line>,
    /// How many threads want to.
    wanted: AtomicUsize,
    groups: Mutex<Groups>,
    /// How long the end waits for the other ranks.
    goodbye: Duration,
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
struct Line {
    wire: Wire,
    ear: Ear,
}

impl Line {
    /// Hears what there is to hear.
    fn listen(&mut self) -> Result<(), Failure> {
        self.ear.listen(&mut self.wire)
    }
}

impl Shared {
    #[inline]
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.try_lock().unwrap_or_else(|_| self.wait_for_line())
    }

    #[cold]
    fn wait_for_line(&self) -> MutexGuard<'_, Line> {
        // A line is never left half-done: tickets that were being used stay where they are.
        self.wanted.fetch_add(1, SeqCst);
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, SeqCst);
        line
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Line { wire, ear } = self.line.get_mut().unwrap_or_else(PoisonError::into_inner);
        if *self.panicked.get_mut() || wire.messages.has_ended() {
            return;
        }
        // Ending MPI waits for all ranks, for ever where one of them is gone. So each tells all that it is about to, and
        // hears meanwhile what others said before.
        let (rank, size) = (wire.rank, wire.size);
        let mut awaited = Vec::new();
        for other in (0..size).filter(|other| *other != rank) {
            let (goodbye, answer) = (wire.take(), wire.take());
            if wire.receive(answer, Some(other), GOODBYES).is_ok() {
                awaited.push((other, answer));
            }
            let _ = wire.send(goodbye, 0, other, GOODBYES);
        }
        let wait = Wait::begin();
        loop {
            awaited.retain(|(_, answer)| !wire.is_done(*answer).unwrap_or(false));
            let _ = ear.listen(wire);
            if awaited.is_empty() {
                break;
            }
            if wait.has_taken(self.goodbye) {
                let missing: Vec<_> = awaited.iter().map(|(rank, _)| *rank).collect();
                tracing::warn!("MPI is not ended: ranks {missing:?} still use it after {:?}", self.goodbye);
                return;
            }
            wait.pause();
        }
        ear.close(wire);
        wire.messages.finish();
    }
}

#[derive(Debug)]
struct Place {
    shared: Arc<Shared>,
    rank: usize,
    size: usize,
    version: String,
    highest_tag: c_int,
}

/// Tags that a group has.
const TAGS: c_int = 3;
/// Tags that are no group's.
const GOODBYES: c_int = 0;
const WORDS: c_int = 1;

impl Transport for Place {
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
        let places = (self.highest_tag / TAGS - 1).max(1) as u64;
        let tag = TAGS + (identity % places) as c_int * TAGS;
        if !groups.tags.insert(tag) {
            let detail = "its messages could not be told from another group's: give it another name".into();
            return Err(Failure::Library { library: "MPI", operation: "choosing a tag".into(), detail });
        }
        drop(groups);
        Ok(Box::new(Member::join(self.shared.clone(), ranks.to_vec(), member, tag, identity)))
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
