//! Events and timestamps of a stream, and the progress that is learned from them.

use std::{
    any::Any,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
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
    const SPIN: Duration = Duration::from_micros(50);
    // A sleep lasts some 60 µs longer than asked, which only a wait of this length hides.
    const YIELD: Duration = Duration::from_millis(20);
    const LONGEST_SLEEP: Duration = Duration::from_micros(200);
    let start = Instant::now();
    loop {
        if done()? {
            return Ok(true);
        }
        let waited = start.elapsed();
        if timeout.is_some_and(|timeout| waited >= timeout) {
            return Ok(false);
        }
        if waited < SPIN {
            std::hint::spin_loop();
        } else if waited < YIELD {
            std::thread::yield_now();
        } else {
            // Sleeping for a sixty-fourth of the time waited so far prolongs the wait by at most that fraction.
            std::thread::sleep((waited / 64).min(LONGEST_SLEEP));
        }
    }
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
