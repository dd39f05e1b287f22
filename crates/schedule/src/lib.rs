//! Who does which items, when?
//!
//! Every decision is made by a plain state machine with no thread, clock, device or random source of its own: it is
//! told what happened and answers with what to do. So the same code runs real devices in real time and virtual
//! devices in virtual time, and a property test can drive it with anything.

mod account;
pub mod balancer;
mod contain;
mod error;
mod executor;
pub mod hybrid;
mod least_squares;
mod partition;
mod pool;
mod progress;
mod queue;
mod report;
mod run;
pub mod sim;
mod strategy;
mod task;
mod trace;

pub use error::{Done, RunError};
pub use partition::{dynamic, equal, proportional};
pub use pool::{Cancel, DeviceStatistics, Job, MapStream, Mapped, Pool, PoolBuilder, Reduced};
pub use progress::Progress;
pub use queue::{
    Handle, Queue, QueueBuilder, QueueDevice, QueueError, QueueStatistics, Submission, TrySubmitError,
};
pub use report::{Calibrated, DeviceReport, LeftOut, Report, Speedup};
pub use run::Settings;
pub use strategy::Strategy;
pub use task::{
    AnyFunction, Arrays, BoxClosure, Chunk, Closure, KernelParams, KernelState, KernelTask, Resident,
    Results, Task,
};

/// The decisions of a run, for whoever drives it with devices of their own.
pub mod decide {
    pub use crate::run::{
        Answer, Chunk, Costs, Expected, Failure, LaneIndex, LaneSpec, Outcome, Purpose, Run, Shares, State,
        Tail, Tally, Time, Verdict,
    };
}

pub use trace::{Activity, Span, Trace};
