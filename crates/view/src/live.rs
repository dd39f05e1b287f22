//! The view of this process: its events, folded as they come.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant, SystemTime},
};

use evener_schedule::events::{EventReader, EventStream, stream};

use crate::state::{Program, State, Update};

/// Time between two reads of the events: short enough that the ring does not overflow when events come fast.
const READ_EVERY: Duration = Duration::from_millis(50);
const READ_OFTEN_EVERY: Duration = Duration::from_millis(5);
/// Number of events at one read from which reads are more frequent.
const MANY: usize = 2_000;
/// Events that are folded at once.
const BATCH: usize = 512;
/// Maximum reads of a batch at once: about all that the stream keeps.
const MAX_READS: usize = 128;
/// Time between two requests for the status of all runs, after events were lost.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// What this process does now. The events are read as long as a handle lives; a clone is another handle.
///
/// ```
/// use evener_device::Device;
/// use evener_schedule::{Closure, Pool};
/// use evener_view::Live;
///
/// let live = Live::of_process()?;
/// let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build()?;
/// pool.map(&Closure::new("square", |&number: &u64| number * number), &[1, 2, 3])?;
/// live.catch_up();
/// let program = live.snapshot();
/// assert!(program.past.iter().any(|run| run.summary.task == "square"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Live {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    stream: &'static EventStream,
    inner: Mutex<Inner>,
    /// Notified after each read.
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    state: State,
    reader: EventReader,
    events: Vec<evener_schedule::events::Event>,
    lost: u64,
    asked_for_status: Option<Instant>,
}

impl Live {
    /// The view of this process: one for all who ask for it. Fails if the system gives no thread.
    pub fn of_process() -> std::io::Result<Live> {
        static RUNNING: Mutex<Weak<Shared>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = running.upgrade() {
            return Ok(Live { shared });
        }
        let live = Live::of(stream())?;
        *running = Arc::downgrade(&live.shared);
        Ok(live)
    }

    /// The view of a stream of events, for simulations and tests. Fails if the system gives no thread.
    pub fn of(stream: &'static EventStream) -> std::io::Result<Live> {
        let state = State::new(std::process::id(), program_name());
        let inner =
            Inner { state, reader: stream.attach(), events: Vec::new(), lost: 0, asked_for_status: None };
        let shared = Arc::new(Shared { stream, inner: Mutex::new(inner), changed: Condvar::new() });
        let weak = Arc::downgrade(&shared);
        thread::Builder::new().name("evener-view".into()).spawn(move || follow(&weak))?;
        Ok(Live { shared })
    }

    /// Reads the events that were written so far, without waiting for the next regular read.
    pub fn catch_up(&self) {
        // Events that are missing at the first read are written, or lost, at the second.
        self.shared.read();
        self.shared.read();
    }

    /// What the program does now.
    pub fn snapshot(&self) -> Program {
        self.shared.inner().state.snapshot()
    }

    /// What has changed since a version, if anything has; all of it without a version.
    pub fn update_since(&self, version: Option<u64>) -> Option<Update> {
        self.shared.inner().state.update_since(version)
    }

    /// Waits until something has changed since a version, but no longer than this, and returns it.
    pub fn wait_for_update(&self, version: Option<u64>, at_most: Duration) -> Option<Update> {
        let start = Instant::now();
        let mut inner = self.shared.inner();
        loop {
            let update = inner.state.update_since(version);
            let left = at_most.saturating_sub(start.elapsed());
            if update.is_some() || left.is_zero() {
                return update;
            }
            inner = self.shared.changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks a run to end, as [`Cancel`](evener_schedule::Cancel) does. Returns whether it was there. Queues cannot be
    /// cancelled.
    pub fn cancel(&self, run: u64) -> bool {
        self.catch_up();
        let is_active = self.shared.inner().state.is_cancellable(run);
        if is_active {
            self.shared.stream.request_cancel(run);
        }
        is_active
    }
}

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads and folds what was written. Returns the number of events.
    fn read(&self) -> usize {
        let (mut inner, mut count, now) = (self.inner(), 0, unix_s());
        let Inner { state, reader, events, .. } = &mut *inner;
        // Runs may write faster than this thread folds: views must not wait for it without end.
        for _ in 0..MAX_READS {
            let has_more = reader.read(BATCH, events);
            count += events.len();
            events.drain(..).for_each(|event| state.fold(&event, now));
            if !has_more {
                break;
            }
        }
        inner.heal();
        count
    }
}

impl Inner {
    /// Asks the runs for their status if events were lost, but not all the time.
    fn heal(&mut self) {
        let is_due = self.asked_for_status.is_none_or(|asked| asked.elapsed() >= STATUS_EVERY);
        if self.reader.lost() != self.lost && is_due {
            self.lost = self.reader.lost();
            self.asked_for_status = Some(Instant::now());
            self.reader.ask_for_status();
        }
        self.state.set_lost(self.reader.lost());
    }
}

/// Reads the events until no handle is left.
fn follow(shared: &Weak<Shared>) {
    let mut pause = READ_EVERY;
    let mut next_tick = Instant::now();
    loop {
        thread::sleep(pause);
        let Some(shared) = shared.upgrade() else { return };
        let count = shared.read();
        pause = if count >= MANY { READ_OFTEN_EVERY } else { READ_EVERY };
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + 2 * READ_EVERY;
            shared.inner().state.tick(unix_s());
        }
        shared.changed.notify_all();
    }
}

/// Seconds since 1970.
pub(crate) fn unix_s() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The name of the executable.
pub(crate) fn program_name() -> String {
    let path = std::env::current_exe().ok();
    let name = path.as_deref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into());
    name.unwrap_or_else(|| "unknown".into())
}
