//! A time as a number of seconds, for `#[serde(with = "…")]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Writes the seconds, with their fraction.
pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}

/// Reads them. Fails where they are no time: negative, or more than a time can be.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(serde::de::Error::custom)
}
