//! The devices of this machine.

use std::{thread, time::Duration};

use evener_device::{DeviceKind, Inventory, Telemetry};
use pyo3::{exceptions::PyRuntimeError, prelude::*};

use crate::interrupt::run_detached;

/// The devices of this machine, and why others are absent, as JSON: `{"devices": […], "absent": […]}`. Each device has its
/// `telemetry`. With `utilization`, waits until the processor's counters say something.
#[pyfunction]
#[pyo3(signature = (utilization = false))]
pub(crate) fn devices(py: Python<'_>, utilization: bool) -> PyResult<String> {
    let text = run_detached(py, move || {
        let inventory = Inventory::discover();
        if utilization {
            inventory.devices().iter().for_each(|device| Telemetry::begin(device.describe()));
            let counts = |kind| !matches!(kind, DeviceKind::Software);
            if inventory.devices().iter().any(|device| counts(device.describe().kind)) {
                thread::sleep(Telemetry::UTILIZATION_WINDOW + Duration::from_millis(10));
            }
        }
        let described = |device: &evener_device::Device| {
            let mut described = serde_json::to_value(device.describe())?;
            described["telemetry"] = serde_json::to_value(device.telemetry())?;
            Ok(described)
        };
        let devices: Result<Vec<_>, serde_json::Error> = inventory.devices().iter().map(described).collect();
        serde_json::to_string(&serde_json::json!({ "devices": devices?, "absent": inventory.absent() }))
    })?;
    text.map_err(|error| PyRuntimeError::new_err(error.to_string()))
}
