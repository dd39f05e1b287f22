//! Events and timestamps of a stream, and the progress that is learned from them.

use std::{
    any::Any,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::{Duration, Instant},
};

use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};

use super::{
    context::DriverGuard,
    driver::SUCCESS,
    errors::{self, NOT_READY},
    open::OpenDevice,
};
use crate::{
    backend::{EventBackend, TimestampBackend},
    error::{Error, Result},
};

/// The number of a stream's operations that are known to have finished. Operations are numbered from 1.
#[derive(Debug, Default)]
pub(super) struct StreamProgress(AtomicU64);

impl StreamProgress {
    pub(super) fn finished(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Notes that all operations up to this one have finished.
    pub(super) fn reach(&self, operation: u64) {
        self.0.fetch_max(operation, Release);
    }
}

/// Whether an event reads the device's clock. Waiting is cheaper for events that do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventTiming {
    Off,
    On,
}

/// The driver's handle of an event.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawEvent(CUevent);

// SAFETY: the driver allows an event in any thread to which the event's context is current.
unsafe impl Send for RawEvent {}
// SAFETY: as for `Send`; the driver locks events itself.
unsafe impl Sync for RawEvent {}

/// Events for reuse. An event may be recorded again before its last recording is reached: a stream that waits for it waits
/// for the recording that was the latest when the wait was queued.
#[derive(Debug, Default)]
pub(super) struct EventPool {
    plain: Mutex<Vec<RawEvent>>,
    timing: Mutex<Vec<RawEvent>>,
}

impl EventPool {
    fn of(&self, timing: EventTiming) -> &Mutex<Vec<RawEvent>> {
        if timing == EventTiming::On { &self.timing } else { &self.plain }
    }

    pub(super) fn clear(&self, guard: &DriverGuard<'_>) {
        for pool in [&self.plain, &self.timing] {
            for event in std::mem::take(&mut *pool.lock().unwrap_or_else(PoisonError::into_inner)) {
                // SAFETY: the event was created in this context, and the pool was its only owner.
                unsafe { (guard.driver.event_destroy)(event.0) };
            }
        }
    }
}

/// An event that returns to its pool when dropped.
#[derive(Debug)]
pub(super) struct PooledEvent {
    raw: RawEvent,
    timing: EventTiming,
    open: Arc<OpenDevice>,
}

impl PooledEvent {
    /// Records an event behind all operations queued in the stream so far.
    pub(super) fn record(
        open: &Arc<OpenDevice>,
        guard: &DriverGuard<'_>,
        timing: EventTiming,
        stream: CUstream,
    ) -> Result<Self> {
        let pooled = open.events.of(timing).lock().unwrap_or_else(PoisonError::into_inner).pop();
        let raw = match pooled {
            Some(raw) => raw,
            None => {
                let flags = match timing {
                    EventTiming::Off => CUevent_flags::CU_EVENT_DISABLE_TIMING,
                    EventTiming::On => CUevent_flags::CU_EVENT_DEFAULT,
                };
                let mut raw = std::ptr::null_mut();
                // SAFETY: the guard's context is current; the pointer is to a live pointer.
                guard.check(unsafe { (guard.driver.event_create)(&mut raw, flags as u32) })?;
                RawEvent(raw)
            }
        };
        let event = PooledEvent { raw, timing, open: open.clone() };
        // SAFETY: event and stream are alive and were created in this context.
        guard.check(unsafe { (guard.driver.event_record)(event.raw.0, stream) })?;
        Ok(event)
    }

    pub(super) fn query(&self, guard: &DriverGuard<'_>) -> Result<bool> {
        // SAFETY: the event is alive and was created in this context.
        ready(guard, unsafe { (guard.driver.event_query)(self.raw.0) })
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        // After a loss the handle is invalid, but then the pool is never used again.
        self.open.events.of(self.timing).lock().unwrap_or_else(PoisonError::into_inner).push(self.raw);
    }
}

/// Turns the result of a query into whether the work has finished.
pub(super) fn ready(guard: &DriverGuard<'_>, code: i32) -> Result<bool> {
    match code {
        SUCCESS => Ok(true),
        NOT_READY => Ok(false),
        code => guard.check(code).map(|()| true),
    }
}

/// Calls `done` until it returns true: spins first, then yields, then sleeps, so that a short wait ends at once and a long
/// one leaves the core to other threads. Returns false on timeout.
pub(super) fn poll(timeout: Option<Duration>, mut done: impl FnMut() -> Result<bool>) -> Result<bool> {
    let start = Instant::now();
    loop {
        if done()? {
            return Ok(true);
        }
        let waited = start.elapsed();
        if timeout.is_some_and(|timeout| waited >= timeout) {
            return Ok(false);
        }
        match CORES.pause(waited, EPOCH.elapsed()) {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => {
                std::thread::yield_now();
                CORES.yielded(start.elapsed() - waited, EPOCH.elapsed());
            }
            Pause::Sleep(time) => sleep(time),
        }
    }
}

/// What a waiting thread does before it polls again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    Sleep(Duration),
}

/// Whether other threads wait for the cores of threads that poll.
///
/// If a core is free, a thread that yields runs again at once. If another thread waits for the core, that one runs for its
/// whole slice, which is milliseconds. A thread that sleeps runs again as soon as its time is over, because the system
/// prefers threads that have slept to those that compute. So a thread that polls yields only while no yield took long.
#[derive(Debug)]
struct CoreUse {
    /// When the last long yield ended, in microseconds since [`EPOCH`]; 0 without one.
    busy_at: AtomicU64,
}

/// The cores of this machine.
static CORES: CoreUse = CoreUse { busy_at: AtomicU64::new(0) };
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

impl CoreUse {
    const SPIN: Duration = Duration::from_micros(50);
    /// A sleep lasts longer than asked, which only a wait of this length hides.
    const YIELD: Duration = Duration::from_millis(20);
    /// A yield that takes this long has let another thread run.
    const LONG_YIELD: Duration = Duration::from_micros(200);
    /// For so long after such a yield, no thread yields.
    const BUSY: Duration = Duration::from_secs(1);
    const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
    const LONGEST_SLEEP: Duration = Duration::from_micros(200);

    /// Returns what a thread does that has waited this long. `now` is the time since [`EPOCH`].
    fn pause(&self, waited: Duration, now: Duration) -> Pause {
        if waited < Self::SPIN {
            return Pause::Spin;
        }
        let busy_at = self.busy_at.load(Relaxed);
        let is_busy = busy_at > 0 && now.saturating_sub(Duration::from_micros(busy_at)) < Self::BUSY;
        if waited < Self::YIELD && !is_busy {
            return Pause::Yield;
        }
        // Sleeping for a sixty-fourth of the time waited so far prolongs the wait by at most that fraction.
        Pause::Sleep((waited / 64).clamp(Self::SHORTEST_SLEEP, Self::LONGEST_SLEEP))
    }

    /// Learns how long a yield took.
    fn yielded(&self, took: Duration, now: Duration) {
        if took >= Self::LONG_YIELD {
            self.busy_at.store((now.as_micros() as u64).max(1), Relaxed);
        }
    }
}

/// Sleeps for a time that may be short. By default, Linux lets a thread sleep for 50 µs longer than it asks. The thread may
/// be the user's, so its setting is restored.
fn sleep(time: Duration) {
    #[cfg(target_os = "linux")]
    {
        use std::num::NonZeroU64;

        use rustix::thread::{current_timer_slack, set_current_timer_slack};
        const PRECISE: Option<NonZeroU64> = NonZeroU64::new(1_000);
        // If the system refuses, sleeps are longer.
        let before = current_timer_slack().ok().and_then(NonZeroU64::new);
        let is_precise = before.is_some() && set_current_timer_slack(PRECISE).is_ok();
        std::thread::sleep(time);
        if is_precise {
            let _ = set_current_timer_slack(before);
        }
    }
    #[cfg(not(target_os = "linux"))]
    std::thread::sleep(time);
}

/// A point in a stream.
#[derive(Debug)]
pub(super) struct CudaEvent {
    pub(super) event: Arc<PooledEvent>,
    pub(super) progress: Arc<StreamProgress>,
    /// The number of the last operation before it.
    pub(super) operation: u64,
}

impl CudaEvent {
    /// Returns the event if it belongs to a stream in the same context as `open`.
    pub(super) fn of<'a>(event: &'a Arc<dyn EventBackend>, open: &OpenDevice) -> Result<&'a CudaEvent> {
        match (&**event as &dyn Any).downcast_ref::<CudaEvent>() {
            Some(event) if event.event.open.context.is_same_context(&open.context) => Ok(event),
            _ => errors::wrong_device(&open.context.id, "waiting for an event", "event"),
        }
    }

    pub(super) fn make_stream_wait(&self, guard: &DriverGuard<'_>, stream: CUstream) -> Result<()> {
        // SAFETY: both are alive and were created in this context. The driver captures the event's latest recording now, so
        // the event may be dropped or recorded again afterwards.
        guard.check(unsafe { (guard.driver.stream_wait_event)(stream, self.event.raw.0, 0) })
    }
}

impl EventBackend for CudaEvent {
    fn is_done(&self) -> Result<bool> {
        if self.progress.finished() >= self.operation {
            return Ok(true);
        }
        let done = self.event.query(&self.event.open.context.enter("waiting for an event")?)?;
        if done {
            self.progress.reach(self.operation);
        }
        Ok(done)
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        if poll(timeout, || self.is_done())? {
            return Ok(());
        }
        Err(timed_out(&self.event.open, "waiting for an event", timeout))
    }
}

pub(super) fn timed_out(open: &OpenDevice, operation: &str, timeout: Option<Duration>) -> Error {
    Error::TimedOut {
        device: open.context.id.clone(),
        operation: operation.into(),
        after: timeout.unwrap_or_default(),
    }
}

/// A reading of the device's clock, to about half a microsecond.
#[derive(Debug)]
pub(super) struct CudaTimestamp(pub(super) PooledEvent);

impl TimestampBackend for CudaTimestamp {
    fn since(&self, earlier: &dyn TimestampBackend) -> Result<Duration> {
        let open = &self.0.open;
        let operation = "reading a timestamp";
        let earlier = match (earlier as &dyn Any).downcast_ref::<CudaTimestamp>() {
            Some(earlier) if earlier.0.open.context.is_same_context(&open.context) => &earlier.0,
            _ => return errors::wrong_device(&open.context.id, operation, "earlier timestamp"),
        };
        let guard = open.context.enter(operation)?;
        if !(earlier.query(&guard)? && self.0.query(&guard)?) {
            return Err(Error::unsupported(
                &open.context.id,
                operation,
                "not reached yet: wait for the stream first",
            ));
        }
        let mut milliseconds = 0f32;
        // SAFETY: both events are alive, were created in this context with `EventTiming::On`, and have been reached.
        let code =
            unsafe { (guard.driver.event_elapsed_time)(&mut milliseconds, earlier.raw.0, self.0.raw.0) };
        guard.check(code)?;
        // Two readings within one tick can differ by slightly less than zero.
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn progress_only_goes_forward() {
        let progress = StreamProgress::default();
        progress.reach(7);
        progress.reach(3);
        assert_eq!(progress.finished(), 7);
    }

    #[test]
    fn a_waiting_thread_yields_only_while_no_other_thread_waits_for_the_core() {
        let cores = CoreUse { busy_at: AtomicU64::new(0) };
        let [micro, milli]: [fn(u64) -> Duration; 2] = [Duration::from_micros, Duration::from_millis];
        assert_eq!(cores.pause(micro(10), Duration::ZERO), Pause::Spin);
        for waited in [micro(50), milli(1), milli(19)] {
            assert_eq!(cores.pause(waited, milli(20)), Pause::Yield, "{waited:?}");
        }
        cores.yielded(micro(1), milli(30));
        assert_eq!(cores.pause(milli(1), milli(30)), Pause::Yield, "the core was free");
        cores.yielded(milli(3), milli(40));
        assert_eq!(cores.pause(micro(10), milli(40)), Pause::Spin);
        for (waited, sleep) in [(micro(60), micro(20)), (micro(6400), micro(100)), (milli(50), micro(200))] {
            assert_eq!(cores.pause(waited, milli(1_000)), Pause::Sleep(sleep), "{waited:?}");
        }
        // After a while it yields again, and learns whether the core is still in use.
        assert_eq!(cores.pause(milli(1), milli(1_040)), Pause::Yield);
        assert_eq!(cores.pause(milli(20), milli(1_040)), Pause::Sleep(micro(200)));
    }

    #[test]
    fn a_wait_ends_with_the_answer_or_with_the_timeout() {
        let mut asked = 0;
        let answer = poll(None, || {
            asked += 1;
            Ok(asked == 1000)
        });
        assert!(answer.unwrap());
        let start = Instant::now();
        assert!(!poll(Some(Duration::from_millis(20)), || Ok(false)).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert!(poll(Some(Duration::ZERO), || Ok(true)).unwrap(), "polls once however short the timeout");
    }
}
