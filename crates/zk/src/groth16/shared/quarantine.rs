//! Devices that computed a wrong part of a shared proof.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use evener_device::DeviceId;

/// How long a device is left out after its first wrong result. Each further one doubles the time.
const FIRST: Duration = Duration::from_secs(10);
const MAX_DOUBLINGS: u32 = 6;

/// The devices of a pool that take no part in shared proofs for a while.
#[derive(Debug)]
pub(super) struct Quarantine {
    devices: Vec<DeviceId>,
    entries: Mutex<HashMap<DeviceId, Entry>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    until: Instant,
    failures: u32,
}

impl Quarantine {
    pub(super) fn new(devices: impl IntoIterator<Item = DeviceId>) -> Self {
        Quarantine { devices: devices.into_iter().collect(), entries: Mutex::default() }
    }

    /// Leaves a device out from now on, for longer than the last time.
    pub(super) fn add(&self, device: &DeviceId) {
        self.add_at(device, Instant::now());
    }

    fn add_at(&self, device: &DeviceId, now: Instant) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = entries.get(device).map_or(0, |entry| entry.failures);
        let until = now + FIRST * 2u32.pow(failures.min(MAX_DOUBLINGS));
        entries.insert(device.clone(), Entry { until, failures: failures + 1 });
    }

    /// Whether a device may take part. If all are in quarantine, all may: every proof is verified.
    pub(super) fn allows(&self, device: &DeviceId) -> bool {
        self.allows_at(device, Instant::now())
    }

    fn allows_at(&self, device: &DeviceId, now: Instant) -> bool {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let is_in = |device: &DeviceId| entries.get(device).is_some_and(|entry| now < entry.until);
        !is_in(device) || self.devices.iter().all(is_in)
    }

    /// Returns the devices that are left out now.
    pub(super) fn devices(&self) -> Vec<DeviceId> {
        self.devices.iter().filter(|device| !self.allows(device)).cloned().collect()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_device_is_left_out_for_longer_each_time_unless_no_other_is_left() {
        let [one, other] = ["one", "other"].map(DeviceId::from);
        let quarantine = Quarantine::new([one.clone(), other.clone()]);
        let start = Instant::now();
        assert!(quarantine.allows_at(&one, start));
        quarantine.add_at(&one, start);
        assert!(!quarantine.allows_at(&one, start) && quarantine.allows_at(&other, start));
        assert!(quarantine.allows_at(&one, start + FIRST));
        quarantine.add_at(&one, start + FIRST);
        assert!(!quarantine.allows_at(&one, start + FIRST * 2));
        assert!(quarantine.allows_at(&one, start + FIRST * 3));
        quarantine.add_at(&other, start + FIRST * 2);
        assert!(
            quarantine.allows_at(&one, start + FIRST * 2) && quarantine.allows_at(&other, start + FIRST * 2)
        );
    }
}
