//! Virtual time at the pace of real time.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::run::Time;

/// How early a step may happen: so few sleeps keep the processor free, and nobody sees two milliseconds.
const EARLY: Duration = Duration::from_millis(2);
/// Maximum time of a sleep: a view that attaches meanwhile, or cancels the run, waits that long.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// Paces a [followed simulation](super::simulate_followed) by the clock.
///
/// ```
/// use evener_schedule::{Settings, Strategy, events::RunEvents};
/// use evener_schedule::sim::{RealTime, Scenario, simulate_followed};
///
/// let scenario = Scenario::from_toml("items = 100\n[[device]]\nid = 'gpu'\nrate = 1000.0\n")?;
/// let (start, mut real_time) = (std::time::Instant::now(), RealTime::new(2.0));
/// let events = RunEvents::of_process(scenario.items);
/// let mut pace = |until| real_time.pass(until);
/// let run = simulate_followed(&scenario, Strategy::Adaptive, Settings::default(), events, &mut pace);
/// assert!(run.report.wall_s >= 0.1);
/// assert!(start.elapsed().as_secs_f64() >= 0.04, "at twice the speed");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
pub struct RealTime {
    start: Instant,
    speed: f64,
}

impl RealTime {
    /// Time that passes from now on, `speed` times as fast as the clock. A speed that is not a positive number counts as 1.
    pub fn new(speed: f64) -> Self {
        let speed = if speed.is_finite() && speed > 0.0 { speed } else { 1.0 };
        RealTime { start: Instant::now(), speed }
    }

    /// Sleeps until a virtual time, but only for some milliseconds, and returns the virtual time of now. It is `until` if that
    /// has come.
    pub fn pass(&mut self, until: Time) -> Time {
        // A virtual time may be so far away that its real time overflows.
        let real = Duration::try_from_secs_f64(until.as_secs_f64() / self.speed).unwrap_or(Duration::MAX);
        let left = real.saturating_sub(self.start.elapsed());
        if left <= EARLY {
            return until;
        }
        thread::sleep(left.min(MAX_SLEEP));
        let passed = Duration::try_from_secs_f64(self.start.elapsed().as_secs_f64() * self.speed);
        passed.unwrap_or(until).min(until)
    }
}
