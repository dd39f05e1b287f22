//! Access to a card's primary context for other libraries in the process.

use std::{any::Any, ffi::c_void};

use super::{
    context::{self, DeviceContext},
    memory::CudaMemory,
};
use crate::{backend::Region, error::Result};

/// The primary context of an open CUDA device, for other libraries in the process: NCCL, cuBLAS, a kernel that another
/// compiler made.
///
/// All users of a card in a process share its primary context, and a fault in a kernel breaks it for all of them. Calls
/// made under [`enter`](PrimaryContext::enter) follow the same rules as Evener's own: nothing reaches the driver once the
/// device is lost, the context is not released during a call, and the context that was current to the thread before is
/// current to it afterwards.
///
/// [`Buffer::cuda_context`](crate::Buffer::cuda_context) returns it. It keeps the device open.
#[derive(Debug, Clone)]
pub struct PrimaryContext {
    context: DeviceContext,
}

/// Permission to call the driver, or a library on top of it: the context is alive and current to this thread while the
/// guard lives.
///
/// Drop the guards of a thread in reverse order of their creation, as local variables are. Do not hold a guard during a long
/// wait: a lost device can be opened again only once every guard is dropped.
pub struct ContextGuard<'a>(context::DriverGuard<'a>);

impl PrimaryContext {
    /// Enters the context. Fails at once, without a call to the driver, if the device was lost. `operation` is what the
    /// caller is about to do, for error messages.
    pub fn enter(&self, operation: &'static str) -> Result<ContextGuard<'_>> {
        self.context.enter_pushing(operation).map(ContextGuard)
    }

    /// The driver's handle (`CUcontext`).
    pub fn as_raw(&self) -> *mut c_void {
        self.context.primary.as_raw().cast()
    }
}

impl ContextGuard<'_> {
    /// Turns a result of the driver (`CUresult`) into an error. A code that says that the context is broken loses the
    /// device, for Evener's own calls too.
    pub fn check(&self, code: i32) -> Result<()> {
        self.0.check(code)
    }
}

impl std::fmt::Debug for ContextGuard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ContextGuard")
    }
}

/// Returns the context of a region, if the region is in a card's memory.
pub(crate) fn context_of(region: &Region) -> Option<PrimaryContext> {
    let memory = (&*region.memory as &dyn Any).downcast_ref::<CudaMemory>()?;
    Some(PrimaryContext { context: memory.context().clone() })
}
