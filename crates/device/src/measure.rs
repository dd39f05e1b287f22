//! How strong is it: rates measured by running small kernels and copies on the device.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    device::Device,
    error::{Error, Result},
};

/// What a device was measured to do. Which of these counts depends on the task: integer multiplies for field
/// arithmetic, multiply-adds for tensors, bandwidths for work on data that lives on the host.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// 32-bit integer multiplies a second.
    pub int32_multiplies_per_s: f64,
    /// 32-bit floating-point multiply-adds a second.
    pub f32_multiply_adds_per_s: f64,
    /// Bytes read plus bytes written in device memory a second.
    pub memory_bytes_per_s: f64,
    /// Bytes a second from the host to the device.
    pub upload_bytes_per_s: f64,
    /// Bytes a second from the device to the host.
    pub download_bytes_per_s: f64,
    /// The time from launching an empty kernel to knowing that it has ended, in seconds.
    #[serde(rename = "launch_latency_s", with = "seconds")]
    pub launch_latency: Duration,
}

/// Placeholder, to be replaced: measures nothing.
pub fn measure(device: &Device) -> Result<Rates> {
    Err(Error::unsupported(device.id(), "measuring", "not written yet"))
}

/// Placeholder, to be replaced: remembers nothing.
pub fn known_rates(_: &Device) -> Option<Rates> {
    None
}

/// Placeholder, to be replaced: remembers nothing.
pub fn remember_rates(_: &Device, _: &Rates) -> Result<()> {
    Ok(())
}

mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(duration.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}
