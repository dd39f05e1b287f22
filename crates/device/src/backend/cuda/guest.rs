//! The way into a card's context for other libraries in the process.

use std::{any::Any, ffi::c_void};

use super::{
    context::{self, Hold},
    memory::CudaMemory,
};
use crate::{backend::Region, error::Result};

/// The context of an open CUDA device, for other libraries in the process: NCCL, cuBLAS, a kernel that another compiler
/// made.
///
/// All users of a card in a process share its primary context, and a fault in a kernel breaks it for all of them. What
/// goes through [`enter`](Context::enter) is under the same rule as Evener's own calls: nothing reaches the driver once
/// the device is lost, the context is not let go of while a call is under way, and the context that was current to the
/// thread before is current to it afterwards.
///
/// [`Buffer::cuda_context`](crate::Buffer::cuda_context) gives it. It keeps the device open.
#[derive(Debug, Clone)]
pub struct Context {
    hold: Hold,
}

/// Leave to call the driver, or a library on top of it: the context is alive and current to this thread until this is
/// dropped.
///
/// Entries are left in the reverse order on each thread, which their lifetimes see to where they are local variables. Wait
/// for long outside of one: a lost device can be opened again only once every entry was left.
pub struct Entered<'a>(context::Entered<'a>);

impl Context {
    /// Enters the context. Fails at once, without reaching the driver, where the device was lost. `operation` is what the
    /// caller is about to do, for error messages.
    pub fn enter(&self, operation: &'static str) -> Result<Entered<'_>> {
        self.hold.enter_pushing(operation).map(Entered)
    }

    /// The driver's handle (`CUcontext`).
    pub fn as_raw(&self) -> *mut c_void {
        self.hold.context.as_raw().cast()
    }
}

impl Entered<'_> {
    /// Turns a result of the driver (`CUresult`) into an error. A code that says that the context is beyond use loses the
    /// device, for Evener's own calls too.
    pub fn check(&self, code: i32) -> Result<()> {
        self.0.check(code)
    }
}

impl std::fmt::Debug for Entered<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entered")
    }
}

/// The context of a region, where it is of a card's memory.
pub(crate) fn context_of(region: &Region) -> Option<Context> {
    let memory = (&*region.memory as &dyn Any).downcast_ref::<CudaMemory>()?;
    Some(Context { hold: memory.hold().clone() })
}
