//! No CUDA devices: the crate is built without the feature `cuda`.

use crate::discover::Found;

/// Finds no cards.
pub(crate) fn find() -> Found {
    Found::nothing("cuda", "left out of this build (feature `cuda`)")
}

/// Returns false: there is no CUDA compiler in this build.
pub(crate) fn compiles_kernels() -> bool {
    false
}

/// A card's primary context. Its types have no values in a build without the feature `cuda`.
pub(crate) mod primary_context {
    use std::{convert::Infallible, ffi::c_void, marker::PhantomData};

    use crate::{backend::Region, error::Result};

    /// The primary context of an open CUDA device. It has no values in a build without the feature `cuda`.
    #[derive(Debug, Clone)]
    pub enum PrimaryContext {}

    /// Permission to call the driver. It has no values in a build without the feature `cuda`.
    #[derive(Debug)]
    pub enum ContextGuard<'a> {
        #[doc(hidden)]
        Never(Infallible, PhantomData<&'a ()>),
    }

    impl PrimaryContext {
        /// Enters the context.
        pub fn enter(&self, _: &'static str) -> Result<ContextGuard<'_>> {
            match *self {}
        }

        /// The driver's handle (`CUcontext`).
        pub fn as_raw(&self) -> *mut c_void {
            match *self {}
        }
    }

    impl ContextGuard<'_> {
        /// Turns a result of the driver (`CUresult`) into an error.
        pub fn check(&self, _: i32) -> Result<()> {
            match *self {
                ContextGuard::Never(never, _) => match never {},
            }
        }
    }

    /// Returns `None`: no region is in a card's memory.
    pub(crate) fn context_of(_: &Region) -> Option<PrimaryContext> {
        None
    }
}
