//! Functions of libraries that are opened at run time.

/// Defines such functions, each with its symbol, and how to find them all, which is safe where the library declares them
/// so.
macro_rules! symbols {
    ($(#[$about:meta])* $kind:ident $(<$handle:ident>)? of $library:ty {
        $($field:ident $symbol:literal ($($taken:ty),*) -> $given:ty;)*
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy)]
        pub(super) struct $kind $(<$handle>)? {$(
            pub(super) $field: unsafe extern "C" fn($($taken),*) -> $given,
        )*}

        impl $(<$handle: Copy>)? $kind $(<$handle>)? {
            unsafe fn find(library: &$library) -> Result<Self, String> {
                // SAFETY: the caller promises it.
                Ok($kind {$($field: *unsafe { library.get($symbol) }.map_err(|why| why.to_string())?),*})
            }
        }
    };
}
pub(super) use symbols;
