//! Evener.
pub use evener_device as device;
