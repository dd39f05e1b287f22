//! Enums whose variants have a number, which ranks exchange, and a name.

/// Defines an enum whose variants have names, and numbers from 1 in their order.
macro_rules! named {
    ($(#[$about:meta])* $visible:vis enum $kind:ident {
        $(#[$first_doc:meta])* $first:ident = $first_name:literal,
        $($(#[$doc:meta])* $variant:ident = $name:literal,)*
    }) => {
        $(#[$about])*
        #[repr(u8)]
        $visible enum $kind {
            $(#[$first_doc])* $first = 1,
            $($(#[$doc])* $variant,)*
        }

        impl $kind {
            /// All variants.
            $visible const ALL: [$kind; [$first_name, $($name),*].len()] = [$kind::$first, $($kind::$variant),*];

            pub(crate) fn from_number(number: u8) -> Option<Self> {
                Self::ALL.into_iter().find(|it| *it as u8 == number)
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $kind::$first => $first_name, $($kind::$variant => $name,)* })
            }
        }
    };
}
pub(super) use named;
