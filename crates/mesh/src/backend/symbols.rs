//! Functions of libraries that are loaded at run time.

/// Defines a struct of library functions and an unsafe `find`, whose caller promises that the library declares the
/// functions with these types.
macro_rules! symbols {
    ($(#[$about:meta])* $kind:ident $(<$handle:ident>)? of $library:ty {
        $($field:ident $symbol:literal ($($argument:ty),*) -> $result:ty;)*
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy)]
        pub(super) struct $kind $(<$handle>)? {$(
            pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,
        )*}

        impl $(<$handle: Copy>)? $kind $(<$handle>)? {
            unsafe fn find(library: &$library) -> Result<Self, String> {
                // SAFETY: the caller promises that the symbol has this type.
                Ok($kind {$($field: *unsafe { library.get($symbol) }.map_err(|why| why.to_string())?),*})
            }
        }
    };
}
pub(super) use symbols;
