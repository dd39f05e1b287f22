//! Events, and what is built on them: events, timestamps, and knowing how far a stream has come.

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
    context::Entered,
    driver::SUCCESS,
    errors::{self, NOT_READY},
    open::Open,
};
use crate::{
    backend::{Event, Timestamp},
    error::{Error, Result},
};

/// How many operations of a stream are known to have ended: all up to this one, counted from 1.
#[derive(Debug, Default)]
pub(super) struct Progress(AtomicU64);

impl Progress {
    pub(super) fn ended(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Everything up to this operation was seen to have ended.
    pub(super) fn reach(&self, operation: u64) {
        self.0.fetch_max(operation, Release);
    }
}

/// Whether events read the clock. Those that do not are cheaper to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timing {
    Off,
    On,
}

/// A driver's event.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawEvent(CUevent);

// SAFETY: an event may be used from any thread in whose context it is.
unsafe impl Send for RawEvent {}
// SAFETY: as above; the driver locks events itself.
unsafe impl Sync for RawEvent {}

/// Events that wait to be used again. One whose last recording has not been reached yet may be recorded anew:
/// whoever waits for it on the device waits for what it stood for when the wait was queued.
#[derive(Debug, Default)]
pub(super) struct EventPool {
    plain: Mutex<Vec<RawEvent>>,
    timing: Mutex<Vec<RawEvent>>,
}

impl EventPool {
    fn of(&self, timing: Timing) -> &Mutex<Vec<RawEvent>> {
        if timing == Timing::On { &self.timing } else { &self.plain }
    }

    /// Destroys all of them.
    pub(super) fn clear(&self, entered: &Entered<'_>) {
        for pool in [&self.plain, &self.timing] {
            for event in std::mem::take(&mut *pool.lock().unwrap_or_else(PoisonError::into_inner)) {
                // SAFETY: the event is of this context, and nobody else has it.
                unsafe { (entered.driver.event_destroy)(event.0) };
            }
        }
    }
}

/// An event that returns to its pool when dropped.
#[derive(Debug)]
pub(super) struct PooledEvent {
    raw: RawEvent,
    timing: Timing,
    open: Arc<Open>,
}

impl PooledEvent {
    /// An event that is reached when everything queued in the stream so far has ended.
    pub(super) fn record(
        open: &Arc<Open>,
        entered: &Entered<'_>,
        timing: Timing,
        stream: CUstream,
    ) -> Result<Self> {
        let pooled = open.events.of(timing).lock().unwrap_or_else(PoisonError::into_inner).pop();
        let raw = match pooled {
            Some(raw) => raw,
            None => {
                let flags = match timing {
                    Timing::Off => CUevent_flags::CU_EVENT_DISABLE_TIMING,
                    Timing::On => CUevent_flags::CU_EVENT_DEFAULT,
                };
                let mut raw = std::ptr::null_mut();
                // SAFETY: the context is current; the pointer is to a live pointer.
                entered.check(unsafe { (entered.driver.event_create)(&mut raw, flags as u32) })?;
                RawEvent(raw)
            }
        };
        let event = PooledEvent { raw, timing, open: open.clone() };
        // SAFETY: event and stream are alive and of this context.
        entered.check(unsafe { (entered.driver.event_record)(event.raw.0, stream) })?;
        Ok(event)
    }

    /// Whether it was reached.
    pub(super) fn query(&self, entered: &Entered<'_>) -> Result<bool> {
        // SAFETY: the event is alive and of this context.
        ready(entered, unsafe { (entered.driver.event_query)(self.raw.0) })
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        // After a loss the handle is dead, and the pool is never asked again.
        self.open.events.of(self.timing).lock().unwrap_or_else(PoisonError::into_inner).push(self.raw);
    }
}

/// Whether a query says that all is done.
pub(super) fn ready(entered: &Entered<'_>, code: i32) -> Result<bool> {
    match code {
        SUCCESS => Ok(true),
        NOT_READY => Ok(false),
        code => entered.check(code).map(|()| true),
    }
}

/// Asks until the answer is yes, ever less often, so that a short wait ends at once and a long one leaves the
/// core to others. Says whether the answer came before the timeout.
pub(super) fn poll(timeout: Option<Duration>, mut done: impl FnMut() -> Result<bool>) -> Result<bool> {
    const SPIN: Duration = Duration::from_micros(50);
    // A sleep lasts some 60 µs longer than asked: only a wait this long does not feel it.
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
            // A sleep of a sixty-fourth of the wait so far makes the wait at most that much longer.
            std::thread::sleep((waited / 64).min(LONGEST_SLEEP));
        }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(super) struct CudaEvent {
    pub(super) event: Arc<PooledEvent>,
    pub(super) progress: Arc<Progress>,
    /// The last operation before it.
    pub(super) operation: u64,
}

impl CudaEvent {
    /// The event, if it is of a stream in the same context as `open`.
    pub(super) fn of<'a>(event: &'a Arc<dyn Event>, open: &Open) -> Result<&'a CudaEvent> {
        match (&**event as &dyn Any).downcast_ref::<CudaEvent>() {
            Some(event) if event.event.open.hold.shares_context(&open.hold) => Ok(event),
            _ => errors::foreign(&open.hold.id, "waiting for an event", "event"),
        }
    }

    /// Has the stream wait for it.
    pub(super) fn hold_back(&self, entered: &Entered<'_>, stream: CUstream) -> Result<()> {
        // SAFETY: both are alive and of this context. The driver notes what the event stands for now, so it
        // may be dropped or recorded anew afterwards.
        entered.check(unsafe { (entered.driver.stream_wait_event)(stream, self.event.raw.0, 0) })
    }
}

impl Event for CudaEvent {
    fn is_done(&self) -> Result<bool> {
        if self.progress.ended() >= self.operation {
            return Ok(true);
        }
        let done = self.event.query(&self.event.open.hold.enter("waiting for an event")?)?;
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

pub(super) fn timed_out(open: &Open, operation: &str, timeout: Option<Duration>) -> Error {
    Error::TimedOut {
        device: open.hold.id.clone(),
        operation: operation.into(),
        after: timeout.unwrap_or_default(),
    }
}

/// A reading of the device's clock, to about half a microsecond.
#[derive(Debug)]
pub(super) struct CudaTimestamp(pub(super) PooledEvent);

impl Timestamp for CudaTimestamp {
    fn since(&self, earlier: &dyn Timestamp) -> Result<Duration> {
        let open = &self.0.open;
        let operation = "reading a timestamp";
        let earlier = match (earlier as &dyn Any).downcast_ref::<CudaTimestamp>() {
            Some(earlier) if earlier.0.open.hold.shares_context(&open.hold) => &earlier.0,
            _ => return errors::foreign(&open.hold.id, operation, "earlier timestamp"),
        };
        let entered = open.hold.enter(operation)?;
        if !(earlier.query(&entered)? && self.0.query(&entered)?) {
            return Err(Error::unsupported(&open.hold.id, operation, "wait for the stream first"));
        }
        let mut milliseconds = 0f32;
        // SAFETY: both events are alive, of this context, recorded, reached, and made to read the clock.
        let code =
            unsafe { (entered.driver.event_elapsed_time)(&mut milliseconds, earlier.raw.0, self.0.raw.0) };
        entered.check(code)?;
        // Two readings in one tick can come out a hair below zero.
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn progress_only_goes_forward() {
        let progress = Progress::default();
        progress.reach(7);
        progress.reach(3);
        assert_eq!(progress.ended(), 7);
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
        assert!(poll(Some(Duration::ZERO), || Ok(true)).unwrap(), "asks once however short the timeout");
    }
}
