//! Makes pools.

use std::{borrow::Borrow, path::PathBuf, sync::Arc};

use evener_device::{Device, Inventory, Telemetry, cache_folder};

use super::{Inner, Options, Pool, shared_model::SharedModel};
use crate::{error::RunError, executor::PoolDevice, run::Settings, strategy::Strategy};

/// Makes a [`Pool`]: sets its devices, the defaults of its runs, and the file of learned times.
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
    /// Sets the devices. Default: all devices of this machine, or those that the variable `EVENER_DEVICES` names.
    pub fn devices<D: Borrow<Device>>(mut self, devices: impl IntoIterator<Item = D>) -> Self {
        self.devices = Some(devices.into_iter().map(|device| device.borrow().clone()).collect());
        self
    }

    /// Sets how items are divided among devices. A job may override it.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.options.strategy = strategy;
        self
    }

    /// Sets the tuning parameters. A job may override them.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.options.settings = settings;
        self
    }

    /// Sets the file in which learned times are kept, or none. Default: a file in the user's cache folder.
    pub fn keep_history_at(mut self, path: Option<PathBuf>) -> Self {
        self.history = path;
        self
    }

    /// Makes the pool. Fails if there are no devices, or if two of them
    /// [are the same hardware](Device::shares_hardware_with).
    pub fn build(self) -> Result<Pool, RunError> {
        let devices = match self.devices {
            Some(devices) => devices,
            None => Inventory::discover().select_or_default(None)?,
        };
        if devices.is_empty() {
            return Err(RunError::NoDevices);
        }
        for (index, second) in devices.iter().enumerate() {
            if let Some(first) = devices[..index].iter().find(|first| first.shares_hardware_with(second)) {
                let (first, second) = (first.id().clone(), second.id().clone());
                return Err(RunError::SameHardware { first, second });
            }
        }
        // Utilization is counted from here on: the first run need not wait for it.
        devices.iter().for_each(|device| Telemetry::begin(device.describe()));
        let device = |(index, device)| Arc::new(PoolDevice::new(index, device));
        let devices = devices.into_iter().enumerate().map(device).collect();
        let (cached, model) = (Default::default(), Arc::new(SharedModel::new(self.history)));
        Ok(Pool { inner: Arc::new(Inner { devices, options: self.options, cached, model }) })
    }
}
