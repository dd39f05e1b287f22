//! Asks the thread that watches a run to yield when it runs a chunk itself.
//!
//! The thread that starts a short run also runs chunks of a lane. During a long chunk it would notice neither the deadline
//! nor a cancellation. So one thread per process asks it to yield every few milliseconds.

use std::{
    sync::{Arc, Condvar, Mutex, Weak},
    time::Duration,
};

use evener_device::affinity::unbound;

use crate::{
    sync::{lock, wait},
    task::Claims,
};

/// The time between requests to yield.
const INTERVAL: Duration = Duration::from_millis(10);
/// After this many intervals without a worker, the ticker thread parks.
const IDLE_INTERVALS: u32 = 100;

/// Asks a worker to yield every few milliseconds until it is dropped.
pub(super) struct YieldTicks(Arc<Claims>);

struct Ticker {
    state: Mutex<TickerState>,
    wake: Condvar,
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
};

impl YieldTicks {
    pub(super) fn begin(claims: &Arc<Claims>) -> Self {
        let mut state = lock(&TICKER.state);
        state.claims.push(Arc::downgrade(claims));
        if !state.started {
            let thread = std::thread::Builder::new().name("evener-ticker".into());
            // Without the thread, the run is checked when its own chunk has ended.
            state.started = unbound(|| thread.spawn(|| TICKER.tick())).is_ok();
        }
        if state.parked {
            TICKER.wake.notify_one();
        }
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
    fn tick(&self) {
        let mut idle = 0;
        let mut state = lock(&self.state);
        loop {
            if idle >= IDLE_INTERVALS {
                state.parked = true;
                while state.claims.is_empty() {
                    state = wait(&self.wake, state);
                }
                state.parked = false;
            }
            drop(state);
            std::thread::sleep(INTERVAL);
            state = lock(&self.state);
            idle = if state.claims.is_empty() { idle + 1 } else { 0 };
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
}
