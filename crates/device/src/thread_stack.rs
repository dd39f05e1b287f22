//! The stack of the threads that run the caller's code.

use std::{env, sync::OnceLock, thread};

/// What the main thread has on most systems. The system reserves addresses for it; memory is used only as far as the stack
/// is used.
const MIN_STACK_BYTES: usize = 8 << 20;

/// Returns the size of the stack of every thread that runs the caller's code: 8 MiB, or `RUST_MIN_STACK` if that is more.
///
/// Rust gives threads 2 MiB. Code without optimisation may need more, because every intermediate value has its own place on
/// the stack: the hash functions of some crates, with all rounds in one function, take 0.7 MiB in one call.
pub fn stack_bytes() -> usize {
    static STACK_BYTES: OnceLock<usize> = OnceLock::new();
    *STACK_BYTES.get_or_init(|| at_least_the_minimum(env::var("RUST_MIN_STACK").ok().as_deref()))
}

fn at_least_the_minimum(asked: Option<&str>) -> usize {
    asked.and_then(|bytes| bytes.parse().ok()).unwrap_or(0).max(MIN_STACK_BYTES)
}

/// Returns the builder of a thread that runs the caller's code.
pub fn thread_builder(name: String) -> thread::Builder {
    thread::Builder::new().name(name).stack_size(stack_bytes())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_larger_stack_than_the_minimum_can_be_asked_for() {
        assert_eq!(at_least_the_minimum(None), MIN_STACK_BYTES);
        assert_eq!(at_least_the_minimum(Some("100")), MIN_STACK_BYTES);
        assert_eq!(at_least_the_minimum(Some("much")), MIN_STACK_BYTES);
        assert_eq!(at_least_the_minimum(Some("33554432")), 32 << 20);
    }
}
