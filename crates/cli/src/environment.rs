//! Environment variables that libraries read when they start.
#![allow(unsafe_code)]

/// The variable with the number of hardware queues into which CUDA puts the work of all streams of a card.
const CUDA_QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// The largest number of queues that CUDA accepts.
const MAX_CUDA_QUEUES: &str = "32";

/// Has CUDA use as many queues as it can, unless the user has set a number.
///
/// By default a card has 8. Streams that share a queue wait for each other, so with more streams than queues a fast
/// partition of a card waits for a slow one.
///
/// # Safety
/// No other thread may be running.
pub(crate) unsafe fn use_all_cuda_queues() {
    if std::env::var_os(CUDA_QUEUES).is_none() {
        // SAFETY: without another thread, none reads the environment now.
        unsafe { std::env::set_var(CUDA_QUEUES, MAX_CUDA_QUEUES) };
    }
}
