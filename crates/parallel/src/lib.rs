//! Runs the loops of `#[parallel]` functions on every device.
//!
//! `evener::parallel` re-exports this crate, with the attributes. The chapter `docs/parallel.md` has the rules.

mod choice;
mod devices;
mod params;
mod plan;
mod reduce;
mod rows;
mod scope;
mod space;
mod threads;

pub use evener_macros::{function, parallel};

pub use self::scope::{LoopReport, On, Run};

/// What the attributes expand to. Not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use evener_device::{BoxError, Launch};
    pub use evener_schedule::{Arrays, KernelTask};

    pub use crate::{
        devices::{each, kernel, zeroed},
        params::Params,
        plan::{Loop, Plan},
        reduce::{Slot, Sum, Terms},
        rows::{ReadRows, Rows, covers, restore, rows, rows_mut},
        space::Space,
        threads::resume,
    };
}

/// All of this crate under the name that the facade gives it, beside the attribute of the same name.
pub mod parallel {
    pub use crate::*;
}
#[doc(hidden)]
pub use evener_schedule::Pool;
