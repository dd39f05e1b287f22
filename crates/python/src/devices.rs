//! The devices of this machine.

use evener_device::Inventory;
use pyo3::{exceptions::PyRuntimeError, prelude::*};

/// The devices of this machine, and why others are absent, as JSON: `{"devices": […], "absent": […]}`.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<String> {
    let inventory = py.detach(Inventory::discover);
    let devices: Vec<_> = inventory.devices().iter().map(|device| device.describe()).collect();
    let all = serde_json::json!({ "devices": devices, "absent": inventory.absent() });
    serde_json::to_string(&all).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}
