//! Who does which items, when?
//!
//! Every decision is made by a plain state machine with no thread, clock, device or random source of its own: it is
//! told what happened and answers with what to do. So the same code runs real devices in real time and virtual
//! devices in virtual time, and a property test can drive it with anything.

mod account;
pub mod balancer;
pub mod hybrid;
mod partition;
mod report;
mod run;
pub mod sim;
mod trace;

pub use partition::{dynamic, equal, proportional};
pub use report::{Calibrated, DeviceReport, LeftOut, Report};
pub use run::{
    Answer, Chunk, Costs, Expected, Failure, LaneIndex, LaneSpec, Outcome, Purpose, Run, Settings, State,
    Strategy, Tally, Time, Verdict,
};
pub use trace::{Activity, Span, Trace};
