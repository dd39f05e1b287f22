//! No CUDA devices: the crate is built without the feature `cuda`.

use crate::discover::Found;

/// No cards.
pub(crate) fn find() -> Found {
    Found::nothing("cuda", "left out of this build (feature `cuda`)")
}

/// Nothing is compiled for cards.
pub(crate) fn compiles_kernels() -> bool {
    false
}

/// The way into a card's context, of which there is none.
pub(crate) mod guest {
    use std::{convert::Infallible, ffi::c_void, marker::PhantomData};

    use crate::{backend::Region, error::Result};

    /// The context of an open CUDA device, of which there is none in a build without the feature `cuda`.
    #[derive(Debug, Clone)]
    pub enum Context {}

    /// Leave to call the driver, which nobody has.
    #[derive(Debug)]
    pub enum Entered<'a> {
        #[doc(hidden)]
        Never(Infallible, PhantomData<&'a ()>),
    }

    impl Context {
        /// Enters the context.
        pub fn enter(&self, _: &'static str) -> Result<Entered<'_>> {
            match *self {}
        }

        /// The driver's handle (`CUcontext`).
        pub fn as_raw(&self) -> *mut c_void {
            match *self {}
        }
    }

    impl Entered<'_> {
        /// Turns a result of the driver (`CUresult`) into an error.
        pub fn check(&self, _: i32) -> Result<()> {
            match *self {
                Entered::Never(never, _) => match never {},
            }
        }
    }

    /// Nothing: no region is of a card's memory.
    pub(crate) fn context_of(_: &Region) -> Option<Context> {
        None
    }
}
