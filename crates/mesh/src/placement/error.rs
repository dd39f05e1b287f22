//! Why nothing can be proposed.

use crate::topology::LayoutError;

/// Why nothing can be proposed. A message says what would help.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The sizes do not fit the devices.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The work makes no sense.
    #[error("{0}")]
    Workload(String),
    /// A device's rate, score or bandwidth makes no sense.
    #[error("{device}: {what} is {value}: it must be a number above 0")]
    InvalidNumber {
        /// The device, or the link.
        device: String,
        /// Which figure.
        what: &'static str,
        /// What it is.
        value: f64,
    },
    /// Devices cannot be compared: not all were measured, and not all have a score.
    #[error("the rates of {} are not known, nor the scores of all devices: measure them, or say their rates", .0.join(", "))]
    NotRated(
        /// The devices that have no rate.
        Vec<String>,
    ),
    /// Scores say how devices compare, not how long anything takes, so traffic cannot be weighed against them.
    #[error("traffic is given, and {} not measured: measure all devices, or leave the traffic out", are(.0))]
    NotMeasured(
        /// The devices that have no rate.
        Vec<String>,
    ),
    /// Traffic is given, and nobody knows how fast it is.
    #[error("traffic is given, and no bandwidth is known between {from} and {to}: say it, as a link")]
    UnknownLink {
        /// A device.
        from: String,
        /// Another.
        to: String,
    },
    /// A link is between things that are not there.
    #[error("a link is between {from} and {to}, and there is no device or machine called {}", .missing.join(" or "))]
    UnknownLinkEnd {
        /// One end.
        from: String,
        /// The other.
        to: String,
        /// Which of them is not there.
        missing: Vec<String>,
    },
    /// Every stage needs a layer.
    #[error(
        "{stages} stages need at least as many layers, and there are {layers}: {layers} stages or fewer would fit"
    )]
    TooFewLayers {
        /// How many layers there are.
        layers: usize,
        /// How many stages there are.
        stages: usize,
    },
    /// The layers do not fit the devices' memory, however they are cut.
    #[error("the layers do not fit the memory: {0}")]
    Memory(
        /// What is needed, and what there is.
        String,
    ),
}

fn are(devices: &[String]) -> String {
    match devices {
        [only] => format!("{only} was"),
        _ => format!("{} were", devices.join(", ")),
    }
}
