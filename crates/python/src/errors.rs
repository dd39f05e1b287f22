//! Errors of the other crates as Python's exceptions.

use evener_device::Error as DeviceCrateError;
use evener_schedule::RunError;
use pyo3::{
    PyErr, create_exception,
    exceptions::{PyIndexError, PyMemoryError, PyOSError, PyRuntimeError, PyValueError},
};

create_exception!(
    evener._evener,
    DeviceError,
    PyRuntimeError,
    "A device failed, and no other could do its work."
);
create_exception!(
    evener._evener,
    NoDevice,
    DeviceError,
    "There is no device with this name, or none that has code for the work."
);
create_exception!(
    evener._evener,
    KernelError,
    DeviceError,
    "A kernel does not compile. The message has the compiler's log."
);
create_exception!(
    evener._evener,
    InvalidProof,
    PyValueError,
    "A proof is not valid for this root, or for these public inputs."
);

/// The exception of a device's error.
pub(crate) fn from_device(error: &DeviceCrateError) -> PyErr {
    let text = error.to_string();
    match error {
        DeviceCrateError::WillNotCompile { .. } => KernelError::new_err(text),
        DeviceCrateError::Selection { .. } => NoDevice::new_err(text),
        DeviceCrateError::OutOfMemory { .. } => PyMemoryError::new_err(text),
        _ => DeviceError::new_err(text),
    }
}

/// The exception of a run's error.
pub(crate) fn from_run(error: &RunError) -> PyErr {
    let text = error.to_string();
    match error {
        RunError::ArrayMismatch { .. } | RunError::SameHardware { .. } => PyValueError::new_err(text),
        RunError::NoUsableDevice { .. } | RunError::NoDevices => NoDevice::new_err(text),
        RunError::ResultsTooLarge { .. } => PyMemoryError::new_err(text),
        RunError::Device(error) => from_device(error),
        RunError::NoDeviceLeft { failures, .. } => {
            let is_compiler =
                |error: &DeviceCrateError| matches!(error, DeviceCrateError::WillNotCompile { .. });
            match failures.iter().all(is_compiler) && !failures.is_empty() {
                true => KernelError::new_err(text),
                false => DeviceError::new_err(text),
            }
        }
        _ => DeviceError::new_err(text),
    }
}

/// The exception of a Merkle tree's error.
pub(crate) fn from_merkle(error: &evener_merkle::Error) -> PyErr {
    use evener_merkle::Error;
    let text = error.to_string();
    match error {
        Error::Run(error) => from_run(error),
        Error::Device(error) => from_device(error),
        Error::LeafOutOfRange { .. } => PyIndexError::new_err(text),
        Error::RootMismatch { .. } | Error::MalformedProof { .. } => InvalidProof::new_err(text),
        Error::UnknownName { .. }
        | Error::UnsupportedScheme { .. }
        | Error::NoLeaves { .. }
        | Error::PartialLeaf { .. }
        | Error::NoLeavesToProve
        | Error::InvalidDigest { .. } => PyValueError::new_err(text),
        Error::File { source: Some(error), .. } => from_file(error, text),
        Error::File { .. } => PyOSError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// The exception of a Groth16 error.
pub(crate) fn from_zk(error: &evener_zk::Error) -> PyErr {
    use evener_zk::Error;
    let text = error.to_string();
    match error {
        Error::Run(error) => from_run(error),
        Error::Device(error) => from_device(error),
        Error::File { error, .. } => from_file(error, text),
        Error::InvalidProof => InvalidProof::new_err(text),
        Error::Randomness { .. } => PyOSError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}

/// The exception of a file's error. With a number, Python makes `FileNotFoundError` and the like of it.
fn from_file(error: &std::io::Error, text: String) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, text)),
        None => PyOSError::new_err(text),
    }
}
