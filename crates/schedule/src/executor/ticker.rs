//! Interrupts a thread that works on a lane while it should also look after the run.
//!
//! The thread that starts a short run works on a lane itself. Where its chunk turns out to take long, it would notice
//! neither the deadline nor a cancellation. So a thread of the whole process asks it to yield every few milliseconds.

use std::{
    sync::{Arc, Condvar, Mutex, Weak},
    time::Duration,
};

use evener_device::affinity::unbound;

use crate::{
    sync::{lock, wait},
    task::Claims,
};

/// So often a thread is interrupted.
const INTERVAL: Duration = Duration::from_millis(10);
/// With nothing to interrupt for so many intervals, the ticker sleeps until it is woken.
const IDLE_INTERVALS: u32 = 100;

/// Has a worker asked to yield every few milliseconds for as long as this lives.
pub(super) struct Ticks(Arc<Claims>);

struct Ticker {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    claims: Vec<Weak<Claims>>,
    /// The thread waits until it is woken.
    asleep: bool,
    started: bool,
}

static TICKER: Ticker = Ticker {
    state: Mutex::new(State { claims: Vec::new(), asleep: false, started: false }),
    wake: Condvar::new(),
};

impl Ticks {
    pub(super) fn begin(claims: &Arc<Claims>) -> Self {
        let mut state = lock(&TICKER.state);
        state.claims.push(Arc::downgrade(claims));
        if !state.started {
            let thread = std::thread::Builder::new().name("evener-ticker".into());
            // Without the thread, the run is looked after once its own chunk has ended.
            state.started = unbound(|| thread.spawn(|| TICKER.tick())).is_ok();
        }
        if state.asleep {
            TICKER.wake.notify_one();
        }
        Ticks(claims.clone())
    }
}

impl Drop for Ticks {
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
                state.asleep = true;
                while state.claims.is_empty() {
                    state = wait(&self.wake, state);
                }
                state.asleep = false;
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
        let ticks = Ticks::begin(&claims);
        while !claims.is_interrupted() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(ticks);
        claims.begin(10);
        std::thread::sleep(INTERVAL * 3);
        assert!(!claims.is_interrupted());
    }
}
