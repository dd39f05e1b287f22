//! TOML files, for Pythons that cannot read them.

use pyo3::{exceptions::PyValueError, prelude::*};

/// Reads a TOML document. Returns it as JSON. Python has a parser of its own from 3.11 on; this package needs 3.9.
#[pyfunction]
pub(crate) fn toml_to_json(text: &str) -> PyResult<String> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| PyValueError::new_err(error.to_string()))?;
    serde_json::to_string(&table).map_err(|error| PyValueError::new_err(error.to_string()))
}
