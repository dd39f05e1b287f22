//! The points of a key on the devices of a pool.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
};

use evener_device::{Device, Result as DeviceResult};
use evener_schedule::Resident;

/// What the workers of a device share, for all jobs of a prover: whole proofs and shared ones use the same points.
#[derive(Debug, Default)]
pub(super) struct KeyCache {
    /// The shared data of each device, as it was opened last.
    devices: Mutex<Vec<(Device, Resident)>>,
    /// Number of workers that are being prepared.
    preparing: AtomicUsize,
    /// Number of preparations that have begun.
    preparations: AtomicU64,
}

impl KeyCache {
    /// Prepares a worker with the shared data of a device. The data of an earlier opening of the same device is dropped.
    pub(super) fn prepare<R>(
        &self,
        device: &Device,
        prepare: impl FnOnce(&Resident) -> DeviceResult<R>,
    ) -> DeviceResult<R> {
        self.preparations.fetch_add(1, SeqCst);
        self.preparing.fetch_add(1, SeqCst);
        let _until_done = Preparing(&self.preparing);
        prepare(&self.resident(device))
    }

    fn resident(&self, device: &Device) -> Resident {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, resident)) = devices.iter().find(|(known, _)| known.is_clone_of(device)) {
            return resident.clone();
        }
        let (outdated, mut current): (Vec<_>, Vec<_>) =
            devices.drain(..).partition(|(known, _)| known.id() == device.id());
        let resident = Resident::default();
        current.push((device.clone(), resident.clone()));
        *devices = current;
        drop(devices);
        // Freeing a key's points may take long.
        drop(outdated);
        resident
    }

    /// Returns the number of preparations that have begun, or `None` while one is under way.
    pub(super) fn settled_preparations(&self) -> Option<u64> {
        (self.preparing.load(SeqCst) == 0).then(|| self.preparations.load(SeqCst))
    }
}

/// A preparation that is under way, until this is dropped: also if it panics.
struct Preparing<'a>(&'a AtomicUsize);

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn workers_of_one_opening_share_data_and_those_of_a_reopened_device_do_not() {
        let (cache, device) = (KeyCache::default(), Device::cpu());
        let made = |device: &Device, value: u32| {
            cache.prepare(device, |resident| resident.get_or_make(|| Ok(value))).unwrap()
        };
        let first = made(&device, 1);
        assert!(Arc::ptr_eq(&first, &made(&device.clone(), 2)));
        let reopened = device.reopened();
        assert_eq!(*made(&reopened, 3), 3);
        assert_eq!(Arc::strong_count(&first), 1, "the data of the earlier opening is dropped");
        assert_eq!(cache.settled_preparations(), Some(3));
        let during = cache.prepare(&reopened, |_| Ok(cache.settled_preparations())).unwrap();
        assert_eq!((during, cache.settled_preparations()), (None, Some(4)));
    }

    #[test]
    fn a_preparation_that_panics_is_over() {
        let cache = KeyCache::default();
        let panics = || cache.prepare(&Device::cpu(), |_| -> DeviceResult<()> { panic!("on purpose") });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!(cache.settled_preparations(), Some(1));
    }
}
