//! The event stream: runs write to it while somebody reads it.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use super::{
    Event,
    ring::{Found, Ring},
};
use crate::sync::lock;

/// Number of events that the ring keeps: what a thousand lanes write in some ten milliseconds.
const CAPACITY: usize = 1 << 15;

/// Maximum cancel requests that wait for their run. Requests for runs that have ended are never taken.
const MAX_REQUESTS: usize = 256;

/// A stream of the scheduler's decisions, with any number of readers.
///
/// While no reader is attached, each place that could write an event costs one relaxed load of an atomic. A reader never
/// slows a run down: writers do not wait, and a reader that falls behind by more than the ring holds loses events and is told
/// how many.
///
/// A reader begins in the middle of runs. So each run writes its whole [status](super::RunStatus) before its next event
/// when a reader attaches, or when a reader that has lost events asks for it ([`EventReader::ask_for_status`]).
pub struct EventStream {
    /// Zero while no reader is attached. Otherwise it changes whenever runs are to write their status.
    generation: AtomicU64,
    /// The last generation that was used.
    last_generation: Mutex<u64>,
    readers: AtomicUsize,
    ring: OnceLock<Ring>,
    /// What may do nothing for long, and so writes its status when it is asked.
    followed: Mutex<Vec<Weak<dyn Followed>>>,
    /// Number of the requests below: runs read it without the lock.
    waiting_requests: AtomicUsize,
    /// Runs that somebody has asked to cancel.
    requests: Mutex<BTreeSet<u64>>,
}

/// A queue, or the run of an iterator: it may do nothing for long, and still be there.
pub(crate) trait Followed: Send + Sync {
    /// Writes the status, if readers do not know it.
    fn tell_status(&self);
}

/// The stream of this process: its pools' runs and queues write to it.
pub fn stream() -> &'static EventStream {
    static STREAM: EventStream = EventStream::new();
    &STREAM
}

impl EventStream {
    /// Makes a stream of its own. The runs of a pool write to that of the process, [`stream`].
    pub const fn new() -> Self {
        EventStream {
            generation: AtomicU64::new(0),
            last_generation: Mutex::new(0),
            readers: AtomicUsize::new(0),
            ring: OnceLock::new(),
            followed: Mutex::new(Vec::new()),
            waiting_requests: AtomicUsize::new(0),
            requests: Mutex::new(BTreeSet::new()),
        }
    }

    /// Attaches a reader, which sees the events from now on.
    pub fn attach(&'static self) -> EventReader {
        let ring = self.ring.get_or_init(|| Ring::new(CAPACITY));
        let mut last = lock(&self.last_generation);
        self.readers.fetch_add(1, SeqCst);
        let next = ring.head();
        let reader = EventReader { stream: self, ring, next, written_before: next, lost: 0 };
        *last += 1;
        self.generation.store(*last, SeqCst);
        drop(last);
        self.tell_all_status();
        reader
    }

    /// Adds what writes its status when a reader attaches. A run that is checked all the time need not be added.
    pub(crate) fn register<F: Followed + 'static>(&self, it: Weak<F>) {
        let mut followed = lock(&self.followed);
        followed.retain(|it| it.strong_count() > 0);
        followed.push(it);
    }

    /// Lets what was registered write its status.
    fn tell_all_status(&self) {
        // Their locks are taken without this one.
        let followed: Vec<Arc<dyn Followed>> =
            lock(&self.followed).iter().filter_map(Weak::upgrade).collect();
        followed.iter().for_each(|it| it.tell_status());
    }

    /// Whether a reader is attached.
    pub fn is_followed(&self) -> bool {
        self.generation() != 0
    }

    /// Asks a run of this process to end, as [`Cancel`](crate::Cancel) does. The run takes the request within some
    /// milliseconds. Does nothing if the run has ended.
    pub fn request_cancel(&self, run: u64) {
        let mut requests = lock(&self.requests);
        if requests.len() >= MAX_REQUESTS {
            // Runs are numbered in order, so the first one is the likeliest to have ended.
            requests.pop_first();
        }
        requests.insert(run);
        self.waiting_requests.store(requests.len(), SeqCst);
    }

    /// Whether somebody has asked to cancel this run.
    pub fn is_cancel_requested(&self, run: u64) -> bool {
        self.waiting_requests.load(Relaxed) > 0 && lock(&self.requests).contains(&run)
    }

    /// Drops the request to cancel a run that has ended.
    pub(crate) fn forget_request(&self, run: u64) {
        if self.waiting_requests.load(Relaxed) > 0 {
            let mut requests = lock(&self.requests);
            requests.remove(&run);
            self.waiting_requests.store(requests.len(), SeqCst);
        }
    }

    /// The current generation; zero if no reader is attached.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Writes an event, if a reader is attached.
    pub fn publish(&self, event: Event) {
        if self.is_followed()
            && let Some(ring) = self.ring.get()
        {
            ring.push(event);
        }
    }

    /// Makes all runs write their status before their next event.
    fn ask_for_status(&self) {
        let mut last = lock(&self.last_generation);
        *last += 1;
        if self.readers.load(SeqCst) > 0 {
            self.generation.store(*last, SeqCst);
        }
        drop(last);
        self.tell_all_status();
    }

    fn detach(&self) {
        let _last = lock(&self.last_generation);
        if self.readers.fetch_sub(1, SeqCst) == 1 {
            self.generation.store(0, SeqCst);
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("generation", &self.generation()).finish_non_exhaustive()
    }
}

impl Default for EventStream {
    fn default() -> Self {
        EventStream::new()
    }
}

/// A reader of an [`EventStream`], at its own pace. The stream is written as long as it lives.
#[derive(Debug)]
pub struct EventReader {
    stream: &'static EventStream,
    ring: &'static Ring,
    /// The number of the next event.
    next: u64,
    /// What is missing before this number was dropped: it was missing at an earlier read, and writing takes nanoseconds.
    written_before: u64,

    lost: u64,
}

impl EventReader {
    /// Appends up to `max` events that were written since the last read, in order, without waiting for any. Returns whether
    /// there may be more.
    pub fn read(&mut self, max: usize, events: &mut Vec<Event>) -> bool {
        let head = self.ring.head();
        let oldest = head.saturating_sub(self.ring.capacity());
        if self.next < oldest {
            self.lost += oldest - self.next;
            self.next = oldest;
        }
        for _ in 0..max {
            if self.next >= head {
                return false;
            }
            match self.ring.get(self.next) {
                Found::Event(event) => events.push(event),
                Found::Overwritten => self.lost += 1,
                Found::Missing if self.next < self.written_before => self.lost += 1,
                Found::Missing => {
                    self.written_before = head;
                    return false;
                }
            }
            self.next += 1;
        }
        self.next < head
    }

    /// Events that this reader has lost so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Makes every run write its [status](super::RunStatus) before its next event, so that a reader that has lost events
    /// knows again what is going on.
    pub fn ask_for_status(&self) {
        self.stream.ask_for_status();
    }

    /// The stream that it reads.
    pub fn stream(&self) -> &'static EventStream {
        self.stream
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        self.stream.detach();
    }
}
