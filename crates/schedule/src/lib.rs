//! The scheduler: which device runs which items, and when.
//!
//! Plain state machines make every decision. They have no thread, clock, device or random source of their own: their driver
//! reports events and does what they answer. So the same code runs real devices in real time and virtual devices in virtual
//! time, and a property test can drive it with any events.

pub mod balancer;
mod contain;
mod error;
pub mod events;
mod executor;
pub mod hybrid;
mod least_squares;
mod partition;
mod pool;
mod progress;
mod queue;
mod recorder;
mod report;
mod run;
pub mod sim;
mod strategy;
mod sync;
mod task;
mod trace;

pub use error::{DoneItems, RunError};
pub use partition::{dynamic, equal, proportional};
pub use pool::{Cancel, DeviceStatistics, Job, MapStream, Mapped, Pool, PoolBuilder, Reduced};
pub use progress::Progress;
pub use queue::{
    Handle, Queue, QueueBuilder, QueueDeviceStatistics, QueueError, QueueStatistics, Submission,
    TrySubmitError,
};
pub use report::{Calibrated, DeviceReport, LeftOut, Report, RunTotals, Speedup};
pub use run::Settings;
pub use strategy::Strategy;
pub use task::{
    AnyFunction, Arrays, BoxClosure, Chunk, Closure, KernelParams, KernelState, KernelTask, Resident,
    Results, Task,
};

#[doc(hidden)]
pub use task::task_fns;

/// The decisions of a run, for programs that drive it with devices of their own.
pub mod decide {
    pub use crate::{
        recorder::{DeviceLanes, Recorder},
        run::{
            Answer, Costs, EndBound, Expected, FailureKind, LaneChunk, LaneIndex, LaneSpec, LaneState,
            Outcome, Purpose, Run, Shares, Tally, Time, Verdict,
        },
        task::{Claims, MAX_DIVISIBLE_ITEMS},
    };
}

pub use trace::{Activity, Span, Trace};

#[cfg(test)]
mod test {
    use std::{fs, path::Path};

    /// The code of a module and its submodules, without comments and indentation.
    fn code(path: &Path) -> String {
        if let Ok(folder) = fs::read_dir(path) {
            return folder.map(|entry| code(&entry.unwrap().path())).collect();
        }
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect()
    }

    #[test]
    fn no_layer_uses_one_above_it() {
        const LAYERS: [&str; 5] = ["run", "task", "executor", "pool", "queue"];
        for (index, layer) in LAYERS.iter().enumerate() {
            let code = code(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(layer));
            let uses = code.split("crate::").skip(1).filter_map(|path| path.split(';').next());
            let paths = uses.flat_map(|path| path.split(['{', ',', '(', ' ']));
            let modules: Vec<&str> = paths.filter_map(|path| path.split("::").next()).collect();
            let above = LAYERS[index + 1..].iter().find(|above| modules.contains(above));
            assert_eq!(above, None, "`{layer}` uses a layer above it");
        }
    }
}
