//! The meaning of the driver's result codes.

use std::{ffi::c_int, time::Duration};

use cudarc::driver::sys::CUresult;

use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// The code for "no such entry point".
pub(super) const NOT_FOUND: c_int = CUresult::CUDA_ERROR_NOT_FOUND as c_int;

/// The code for "not done yet".
pub(super) const NOT_READY: c_int = CUresult::CUDA_ERROR_NOT_READY as c_int;

/// What a code means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorClass {
    /// There was not enough memory.
    OutOfMemory,
    /// The context is broken: every later call would fail too.
    Lost,
    /// The driver ended a kernel that ran for too long, and the context with it.
    KernelTimedOut,
    /// This call was refused; others may succeed.
    Refused,
}

/// Returns the meaning of an error code. An unknown code, from a newer driver, counts as `Refused`: if the context is broken,
/// the next call fails too.
pub(super) fn meaning(code: c_int) -> ErrorClass {
    use CUresult as Code;
    const LOST: &[CUresult] = &[
        Code::CUDA_ERROR_DEINITIALIZED,
        Code::CUDA_ERROR_DEVICE_UNAVAILABLE,
        Code::CUDA_ERROR_NO_DEVICE,
        Code::CUDA_ERROR_DEVICE_NOT_LICENSED,
        Code::CUDA_ERROR_INVALID_CONTEXT,
        Code::CUDA_ERROR_ECC_UNCORRECTABLE,
        Code::CUDA_ERROR_NVLINK_UNCORRECTABLE,
        Code::CUDA_ERROR_CONTAINED,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS,
        Code::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        Code::CUDA_ERROR_ASSERT,
        Code::CUDA_ERROR_HARDWARE_STACK_ERROR,
        Code::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        Code::CUDA_ERROR_MISALIGNED_ADDRESS,
        Code::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        Code::CUDA_ERROR_INVALID_PC,
        Code::CUDA_ERROR_LAUNCH_FAILED,
        Code::CUDA_ERROR_TENSOR_MEMORY_LEAK,
        Code::CUDA_ERROR_SYSTEM_NOT_READY,
        Code::CUDA_ERROR_MPS_RPC_FAILURE,
        Code::CUDA_ERROR_MPS_CLIENT_TERMINATED,
        Code::CUDA_ERROR_EXTERNAL_DEVICE,
        Code::CUDA_ERROR_UNKNOWN,
    ];
    if code == Code::CUDA_ERROR_OUT_OF_MEMORY as c_int {
        ErrorClass::OutOfMemory
    } else if code == Code::CUDA_ERROR_LAUNCH_TIMEOUT as c_int {
        ErrorClass::KernelTimedOut
    } else if LOST.iter().any(|&lost| code == lost as c_int) {
        ErrorClass::Lost
    } else {
        ErrorClass::Refused
    }
}

/// Returns the error for a code. `text` is the driver's description; `requested` is the size of the allocation, or 0.
pub(super) fn error(
    device: &DeviceId,
    operation: String,
    code: c_int,
    text: String,
    requested: u64,
) -> Error {
    match meaning(code) {
        ErrorClass::OutOfMemory => {
            let device = device.clone();
            Error::OutOfMemory { device, operation, requested, available: None, detail: text }
        }
        ErrorClass::Lost => Error::lost(device, operation, text),
        // The driver does not report how long the kernel ran.
        ErrorClass::KernelTimedOut => Error::TimedOut {
            device: device.clone(),
            operation: format!("{operation} ({text})"),
            after: Duration::ZERO,
        },
        ErrorClass::Refused => Error::unsupported(device, operation, text),
    }
}

/// Returns the error for an object of another device, or of an earlier opening of this one.
pub(super) fn wrong_device<T>(device: &DeviceId, operation: &str, what: &str) -> Result<T> {
    Err(Error::unsupported(
        device,
        operation,
        format!("the {what} belongs to another device, or to an earlier opening of this one"),
    ))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_fault_loses_the_device_and_a_full_memory_does_not() {
        assert_eq!(meaning(700), ErrorClass::Lost);
        assert_eq!(meaning(719), ErrorClass::Lost);
        assert_eq!(meaning(702), ErrorClass::KernelTimedOut);
        assert_eq!(meaning(2), ErrorClass::OutOfMemory);
        assert_eq!(meaning(1), ErrorClass::Refused);
        assert_eq!(meaning(123_456), ErrorClass::Refused, "a code of a driver yet to come");
        assert_eq!((NOT_FOUND, NOT_READY), (500, 600));
    }
}
