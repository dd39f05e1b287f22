//! The hardware's counters, read once a second while somebody looks.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::limits::{HARDWARE_EVERY, WAIT_FOR_HARDWARE};
use crate::hardware::DeviceHardware;

/// Reads the counters. It is made on the thread that calls it, since finding the devices takes a while.
pub(super) type Read = Box<dyn FnMut() -> Vec<DeviceHardware>>;

/// One reading.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    pub(super) devices: Arc<Vec<DeviceHardware>>,
    /// When it was made.
    at: Option<Instant>,
}

/// The last reading, and the thread that makes the next.
#[derive(Debug, Clone)]
pub(super) struct Counters {
    readings: watch::Receiver<Reading>,
    /// When somebody looked last.
    looked: Arc<watch::Sender<Instant>>,
}

/// How long the counters are read after somebody has looked.
const LOOKED_FOR: Duration = Duration::from_secs(3);

impl Counters {
    /// Starts the thread, which ends when the last handle is dropped. It finds the devices when somebody looks first.
    pub(super) fn start(make: impl FnOnce() -> Read + Send + 'static) -> std::io::Result<Counters> {
        let (send, readings) = watch::channel(Reading::default());
        let (looked, mut look) = watch::channel(Instant::now());
        let read = move || {
            evener_device::affinity::lower_priority();
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
                return;
            };
            // The first look.
            if runtime.block_on(look.changed()).is_err() {
                return;
            }
            let mut read = make();
            loop {
                let devices = read();
                let reading = Reading { devices: Arc::new(devices), at: Some(Instant::now()) };
                if send.send(reading).is_err() {
                    return;
                }
                thread::sleep(HARDWARE_EVERY);
                let is_watched = look.borrow_and_update().elapsed() < LOOKED_FOR;
                // An error means that nobody is left to look.
                if look.has_changed().is_err() || (!is_watched && runtime.block_on(look.changed()).is_err()) {
                    return;
                }
            }
        };
        thread::Builder::new().name("evener-hardware".into()).spawn(read)?;
        Ok(Counters { readings, looked: Arc::new(looked) })
    }

    /// The last reading, however old it is. Asks for the next.
    pub(super) fn last(&self) -> Reading {
        self.looked.send_replace(Instant::now());
        self.readings.borrow().clone()
    }

    /// A reading of the last seconds; waits for it, but not for long.
    pub(super) async fn recent(&self) -> Reading {
        let is_recent = |it: &Reading| it.at.is_some_and(|at| at.elapsed() < 2 * HARDWARE_EVERY);
        self.looked.send_replace(Instant::now());
        let mut readings = self.readings.clone();
        let wait = tokio::time::timeout(WAIT_FOR_HARDWARE, readings.wait_for(is_recent));
        match wait.await {
            Ok(Ok(reading)) => reading.clone(),
            _ => self.readings.borrow().clone(),
        }
    }
}

impl Reading {
    /// Whether it is another one than this.
    pub(super) fn is_newer_than(&self, at: &mut Option<Instant>) -> bool {
        let is_newer = self.at > *at;
        *at = self.at;
        is_newer
    }
}
