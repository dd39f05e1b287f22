//! How a pool is made.

use std::{borrow::Borrow, path::PathBuf, sync::Arc};

use evener_device::{Device, Inventory, cache_folder};

use super::{Inner, Options, Pool, chooser::Chooser};
use crate::{error::RunError, executor::PoolDevice, run::Settings, strategy::Strategy};

/// Makes a [`Pool`]: its devices, what runs begin with, and where it keeps what it learns.
///
/// ```
/// use evener_device::Device;
/// use evener_schedule::{Closure, Pool, Strategy};
///
/// let pool = Pool::builder().devices([Device::cpu()]).strategy(Strategy::Adaptive).keep_history_at(None).build()?;
/// let square = Closure::new("square", |&number: &u64| number * number);
/// assert_eq!(pool.map(&square, &[1, 2, 3])?.results(), [1, 4, 9]);
/// # Ok::<(), evener_schedule::RunError>(())
/// ```
#[derive(Debug)]
pub struct PoolBuilder {
    devices: Option<Vec<Device>>,
    options: Options,
    history: Option<PathBuf>,
}

impl Default for PoolBuilder {
    fn default() -> Self {
        let history = cache_folder().map(|folder| folder.join("runs.json"));
        PoolBuilder { devices: None, options: Options::default(), history }
    }
}

impl PoolBuilder {
    /// Sets the devices: all of this machine, or those that the variable `EVENER_DEVICES` names, unless said otherwise.
    pub fn devices<D: Borrow<Device>>(mut self, devices: impl IntoIterator<Item = D>) -> Self {
        self.devices = Some(devices.into_iter().map(|device| device.borrow().clone()).collect());
        self
    }

    /// Sets how items are shared out, where a job does not say otherwise.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.options.strategy = strategy;
        self
    }

    /// Sets what can be tuned, where a job does not say otherwise.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.options.settings = settings;
        self
    }

    /// Keeps what is learned about the devices in a file of one's own, or nowhere; the user's cache folder has it
    /// otherwise.
    pub fn keep_history_at(mut self, path: Option<PathBuf>) -> Self {
        self.history = path;
        self
    }

    /// Makes the pool. Fails where it has no devices.
    pub fn build(self) -> Result<Pool, RunError> {
        let devices = match self.devices {
            Some(devices) => devices,
            None => Inventory::discover().select_or_default(None)?,
        };
        if devices.is_empty() {
            return Err(RunError::NoDevices);
        }
        let seat = |(index, device)| Arc::new(PoolDevice::new(index, device));
        let seats = devices.into_iter().enumerate().map(seat).collect();
        let (kept, chooser) = (Default::default(), Arc::new(Chooser::new(self.history)));
        Ok(Pool { inner: Arc::new(Inner { seats, options: self.options, kept, chooser }) })
    }
}
