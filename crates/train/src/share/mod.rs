//! Shares: which device takes how many samples of a batch.
//!
//! [`SpeedModel`] predicts a device's time, [`DriftWindow`] follows its speed, [`solve`] finds the batches that end
//! together, and [`Planner`] decides who takes part and when to change. None of them has a clock or a random source:
//! ranks that tell their planners the same times get the same plan, bit for bit.

mod drift;
mod model;
mod planner;
mod probe;
mod solve;
#[cfg(test)]
mod test;

pub use drift::{DriftWindow, WINDOW};
pub use model::{MAX_SPEED_RATIO, Probe, SpeedModel};
pub use planner::{LeftOut, Plan, PlanChange, PlanSettings, Planner};
pub use probe::{ProbePlan, ProbeStep};
pub use solve::{Candidate, Exchange, solve};
