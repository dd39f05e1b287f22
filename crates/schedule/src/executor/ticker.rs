//! A thread that ticks every few milliseconds while runs are in progress. One per process.
//!
//! It does two things:
//! - It asks threads to yield that watch a run and run a chunk of it themselves. The thread that starts a short run also
//!   runs chunks of a lane; during a long chunk it would notice neither the deadline nor a cancellation.
//! - It measures for how long the whole process was suspended ([`Heartbeat`]). No other thread can: a run's thread may be
//!   in the user's code for any time.

use std::{
    sync::{
        Arc, Condvar, LazyLock, Mutex, Weak,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Acquire, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use evener_device::affinity::unbound;

use crate::{
    sync::{lock, wait},
    task::Claims,
};

/// The time between ticks.
const INTERVAL: Duration = Duration::from_millis(10);
/// A tick that is late by this much shows that the whole process was suspended.
pub(super) const SUSPENDED_AFTER: Duration = Duration::from_millis(250);
/// After this many ticks without a run, the thread parks.
const IDLE_INTERVALS: u32 = 100;

/// Asks a worker to yield every few milliseconds until it is dropped.
pub(super) struct YieldTicks(Arc<Claims>);

/// Keeps the ticker thread going until it is dropped: a run is in progress.
#[derive(Debug)]
pub(crate) struct RunTicks(());

/// How long the process was suspended: stopped by a signal, or with its machine.
///
/// A thread beats at every tick. Times are nanoseconds since [`EPOCH`]. `suspended` is increased before `last`, so a thread
/// that reads a new `last` also reads the gap before it.
#[derive(Debug)]
struct Heartbeat {
    /// The last beat, or `NOT_BEATING`.
    last: AtomicU64,
    suspended: AtomicU64,
    /// Held by a thread that adds a gap, so that each gap is added once.
    adding: Mutex<()>,
}

/// No thread beats, so nothing is known about suspensions.
const NOT_BEATING: u64 = u64::MAX;

impl Heartbeat {
    const fn new() -> Self {
        Heartbeat { last: AtomicU64::new(NOT_BEATING), suspended: AtomicU64::new(0), adding: Mutex::new(()) }
    }

    fn start(&self, now: u64) {
        self.last.store(now, SeqCst);
    }

    fn stop(&self) {
        self.last.store(NOT_BEATING, SeqCst);
    }

    fn is_stopped(&self) -> bool {
        self.last.load(SeqCst) == NOT_BEATING
    }

    fn beat(&self, now: u64) {
        self.suspended_until(now);
        self.last.fetch_max(now, SeqCst);
    }

    /// The total time of suspensions until now, including one that just ended: the calling thread may run before the
    /// thread that beats.
    fn suspended_until(&self, now: u64) -> u64 {
        const INTERVAL_NS: u64 = INTERVAL.as_nanos() as u64;
        const LATE_NS: u64 = INTERVAL_NS + SUSPENDED_AFTER.as_nanos() as u64;
        let is_late = |last: u64| now.saturating_sub(last) > LATE_NS;
        if is_late(self.last.load(Acquire)) {
            let _adding = lock(&self.adding);
            let last = self.last.load(Acquire);
            if is_late(last) {
                self.suspended.fetch_add(now - last - INTERVAL_NS, SeqCst);
                // Unless the heartbeat was stopped meanwhile.
                let _ = self.last.compare_exchange(last, now, SeqCst, SeqCst);
            }
        }
        self.suspended.load(Acquire)
    }
}

/// The zero of the heartbeat's times.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

static HEARTBEAT: Heartbeat = Heartbeat::new();

/// Nanoseconds since [`EPOCH`].
fn nanoseconds(time: Instant) -> u64 {
    time.saturating_duration_since(*EPOCH).as_nanos() as u64
}

/// Reads how long the process was suspended, for a run that started at some time.
#[derive(Debug)]
pub(super) struct SuspensionClock {
    start: u64,
}

impl SuspensionClock {
    pub(super) fn new(start: Instant) -> Self {
        SuspensionClock { start: nanoseconds(start) }
    }

    /// Nanoseconds for which the process was suspended, before `since_start` of the run and since any earlier time at which
    /// a run was in progress.
    pub(super) fn suspended_until(&self, since_start: Duration) -> u64 {
        HEARTBEAT.suspended_until(self.start + since_start.as_nanos() as u64)
    }
}

struct Ticker {
    state: Mutex<TickerState>,
    wake: Condvar,
    /// Runs in progress.
    runs: AtomicUsize,
}

struct TickerState {
    claims: Vec<Weak<Claims>>,
    /// Whether the thread is parked.
    parked: bool,
    started: bool,
}

static TICKER: Ticker = Ticker {
    state: Mutex::new(TickerState { claims: Vec::new(), parked: false, started: false }),
    wake: Condvar::new(),
    runs: AtomicUsize::new(0),
};

impl RunTicks {
    pub(crate) fn begin() -> Self {
        // This is counted before the heartbeat is read, and the thread stops the heartbeat before it reads the count: it
        // sees this run, or this thread sees that it has to be woken.
        TICKER.runs.fetch_add(1, SeqCst);
        if HEARTBEAT.is_stopped() {
            TICKER.start_or_wake(&mut lock(&TICKER.state));
        }
        RunTicks(())
    }
}

impl Drop for RunTicks {
    fn drop(&mut self) {
        TICKER.runs.fetch_sub(1, SeqCst);
    }
}

impl YieldTicks {
    pub(super) fn begin(claims: &Arc<Claims>) -> Self {
        let mut state = lock(&TICKER.state);
        state.claims.push(Arc::downgrade(claims));
        TICKER.start_or_wake(&mut state);
        YieldTicks(claims.clone())
    }
}

impl Drop for YieldTicks {
    fn drop(&mut self) {
        let own = Arc::downgrade(&self.0);
        lock(&TICKER.state).claims.retain(|claims| !claims.ptr_eq(&own));
    }
}

impl Ticker {
    /// Starts the thread, or wakes it if it is parked.
    fn start_or_wake(&'static self, state: &mut TickerState) {
        if !state.started {
            let thread = std::thread::Builder::new().name("evener-ticker".into());
            // Without the thread, the run is checked when its own chunk has ended, and no suspension is noticed.
            state.started = unbound(|| thread.spawn(|| self.tick())).is_ok();
            if state.started {
                HEARTBEAT.start(nanoseconds(Instant::now()));
            }
        }
        if std::mem::take(&mut state.parked) {
            HEARTBEAT.start(nanoseconds(Instant::now()));
            self.wake.notify_one();
        }
    }

    fn tick(&self) {
        let mut idle = 0;
        let mut state = lock(&self.state);
        loop {
            if idle >= IDLE_INTERVALS {
                HEARTBEAT.stop();
                if state.claims.is_empty() && self.runs.load(SeqCst) == 0 {
                    state.parked = true;
                    while state.parked {
                        state = wait(&self.wake, state);
                    }
                } else {
                    HEARTBEAT.start(nanoseconds(Instant::now()));
                }
                idle = 0;
            }
            drop(state);
            std::thread::sleep(INTERVAL);
            HEARTBEAT.beat(nanoseconds(Instant::now()));
            state = lock(&self.state);
            let is_idle = state.claims.is_empty() && self.runs.load(SeqCst) == 0;
            idle = if is_idle { idle + 1 } else { 0 };
            state.claims.iter().filter_map(Weak::upgrade).for_each(|claims| claims.ask_to_yield());
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_worker_is_asked_to_yield_until_it_is_done() {
        let claims = Arc::new(Claims::default());
        claims.begin(10);
        let ticks = YieldTicks::begin(&claims);
        while !claims.is_interrupted() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(ticks);
        claims.begin(10);
        std::thread::sleep(INTERVAL * 3);
        assert!(!claims.is_interrupted());
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn only_a_late_beat_is_a_suspension_and_it_is_counted_once() {
        let heartbeat = Heartbeat::new();
        assert_eq!(heartbeat.suspended_until(90_000 * MS), 0, "no thread beats");
        heartbeat.start(90_000 * MS);
        for now in (90_010..91_000).step_by(10) {
            heartbeat.beat(now * MS);
        }
        assert_eq!(heartbeat.suspended_until(91_200 * MS), 0, "late, as on a busy machine");
        // The process is stopped after the beat at 90.99 s for a minute. A worker runs first afterwards.
        assert_eq!(heartbeat.suspended_until(151_000 * MS), 60_000 * MS);
        heartbeat.beat(151_001 * MS);
        assert_eq!(heartbeat.suspended_until(151_002 * MS), 60_000 * MS);
        // And once more; the ticker runs first.
        heartbeat.beat(152_011 * MS);
        assert_eq!(heartbeat.suspended_until(152_012 * MS), 61_000 * MS);
    }

    #[test]
    fn a_thread_that_reads_a_suspension_late_does_not_count_it_again() {
        let heartbeat = Heartbeat::new();
        heartbeat.start(0);
        heartbeat.beat(5_010 * MS);
        assert_eq!(heartbeat.suspended_until(5_005 * MS), 5_000 * MS, "its clock was read before the beat");
        heartbeat.stop();
        heartbeat.beat(90_000 * MS);
        assert!(heartbeat.is_stopped());
        assert_eq!(heartbeat.suspended_until(95_000 * MS), 5_000 * MS, "no thread beats");
    }
}
