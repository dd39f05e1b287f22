//! Errors of planning.

use crate::topology::LayoutError;

/// Why a plan cannot be proposed. The message says what to do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The sizes do not fit the devices.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The workload is invalid.
    #[error("{0}")]
    Workload(String),
    /// A device's rate, score or bandwidth is not a positive number.
    #[error("{device}: {what} is {value}: it must be a number above 0")]
    InvalidNumber {
        /// The device, or the link.
        device: String,
        /// Which number.
        what: &'static str,
        /// The value.
        value: f64,
    },
    /// Devices cannot be compared: some have no rate, and some have no score.
    #[error("the rates of {} are unknown, and not all devices have a score: measure them, or set their rates", .0.join(", "))]
    NotRated(
        /// The devices that have no rate.
        Vec<String>,
    ),
    /// Traffic is given, but devices have only scores, which are no times.
    #[error("traffic is given, and {} not measured: measure all devices, or leave the traffic out", are(.0))]
    NotMeasured(
        /// The devices that have no rate.
        Vec<String>,
    ),
    /// Traffic is given, but a bandwidth is unknown.
    #[error("traffic is given, and no bandwidth is known between {from} and {to}: add a link")]
    UnknownLink {
        /// A device.
        from: String,
        /// Another.
        to: String,
    },
    /// A link names an unknown device or machine.
    #[error("the link between {from} and {to}: there is no device or machine called {}", .missing.join(" or "))]
    UnknownLinkEnd {
        /// One end.
        from: String,
        /// The other.
        to: String,
        /// The unknown ends.
        missing: Vec<String>,
    },
    /// There are fewer layers than stages.
    #[error(
        "{stages} stages need at least as many layers, and there are {layers}: {layers} stages or fewer would fit"
    )]
    TooFewLayers {
        /// Number of layers.
        layers: usize,
        /// Number of stages.
        stages: usize,
    },
    /// No split of the layers fits the devices' memory.
    #[error("the layers do not fit the memory: {0}")]
    Memory(
        /// The required and the available memory.
        String,
    ),
}

fn are(devices: &[String]) -> String {
    match devices {
        [only] => format!("{only} was"),
        _ => format!("{} were", devices.join(", ")),
    }
}
