//! A duration as a number of seconds, for `#[serde(with = "…")]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Writes the seconds, with their fraction.
pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}

/// Reads the seconds. Fails if they are negative or too many for a `Duration`.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(serde::de::Error::custom)
}
