//! The element type of a buffer as a value, for programs that learn it at run time.

use std::{any::TypeId, ffi::c_long, fmt};

use bytemuck::Pod;

/// An element type that has a [`DType`].
pub trait WithDType: Pod {
    /// The type as a value.
    const DTYPE: DType;
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $element:ty, $text:literal;)*) => {
        /// An element type as a value, as in Python's buffer protocol, NumPy and DLPack.
        ///
        /// ```
        /// use evener_device::{DType, WithDType};
        ///
        /// assert_eq!(f32::DTYPE, DType::F32);
        /// assert_eq!((DType::Bf16.bytes(), DType::Bf16.name()), (2, "bf16"));
        /// assert_eq!("i64".parse(), Ok(DType::I64));
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DType {
            $($(#[$doc])* $name,)*
        }

        impl DType {
            /// All types.
            pub const ALL: &[DType] = &[$(DType::$name),*];

            /// The size of an element in bytes.
            pub const fn bytes(self) -> u64 {
                match self { $(DType::$name => size_of::<$element>() as u64,)* }
            }

            /// Its name: `f32`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$name => $text,)* }
            }

            /// Returns the Rust type and its name.
            pub(crate) fn element(self) -> (TypeId, &'static str) {
                match self {
                    $(DType::$name => (TypeId::of::<$element>(), std::any::type_name::<$element>()),)*
                }
            }
        }

        $(impl WithDType for $element {
            const DTYPE: DType = DType::$name;
        })*
    };
}

dtypes! {
    /// `u8`.
    U8 = u8, "u8";
    /// `u16`.
    U16 = u16, "u16";
    /// `u32`.
    U32 = u32, "u32";
    /// `u64`.
    U64 = u64, "u64";
    /// `i8`.
    I8 = i8, "i8";
    /// `i16`.
    I16 = i16, "i16";
    /// `i32`.
    I32 = i32, "i32";
    /// `i64`.
    I64 = i64, "i64";
    /// 16-bit IEEE floating point: [`half::f16`].
    F16 = half::f16, "f16";
    /// 16-bit brain floating point: [`half::bf16`].
    Bf16 = half::bf16, "bf16";
    /// `f32`.
    F32 = f32, "f32";
    /// `f64`.
    F64 = f64, "f64";
}

impl DType {
    /// The format of one element in Python's buffer protocol, in native byte order; `None` for `bf16`, which the protocol
    /// does not have.
    pub const fn buffer_format(self) -> Option<&'static str> {
        Some(match self {
            DType::U8 => "B",
            DType::U16 => "H",
            DType::U32 => "I",
            DType::U64 => "Q",
            DType::I8 => "b",
            DType::I16 => "h",
            DType::I32 => "i",
            DType::I64 => "q",
            DType::F16 => "e",
            DType::F32 => "f",
            DType::F64 => "d",
            DType::Bf16 => return None,
        })
    }

    /// Returns the type of a format in Python's buffer protocol; `None` if the format has several fields, is not a
    /// number, or has the other byte order.
    pub fn from_buffer_format(format: &str) -> Option<DType> {
        let foreign = if cfg!(target_endian = "little") { ['>', '!'] } else { ['<', '<'] };
        if format.starts_with(foreign) {
            return None;
        }
        let is_native = !format.starts_with(['=', '<', '>', '!']);
        let code = format.trim_start_matches(['@', '=', '<', '>', '!']);
        if format.len() > code.len() + 1 {
            return None;
        }
        // A C `long` has the platform's size in native formats, and 4 bytes otherwise.
        let is_long_64 = is_native && size_of::<c_long>() == 8;
        match code {
            "L" => Some(if is_long_64 { DType::U64 } else { DType::U32 }),
            "l" => Some(if is_long_64 { DType::I64 } else { DType::I32 }),
            code => DType::ALL.iter().copied().find(|dtype| dtype.buffer_format() == Some(code)),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a text that names no [`DType`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown element type `{0}`: use one of u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64")]
pub struct UnknownDType(String);

impl std::str::FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        let found = DType::ALL.iter().copied().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| UnknownDType(name.to_owned()))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_and_a_buffer_format_lead_back_to_the_same_type() {
        for &dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            if let Some(format) = dtype.buffer_format() {
                assert_eq!(DType::from_buffer_format(format), Some(dtype));
                assert_eq!(DType::from_buffer_format(&format!("@{format}")), Some(dtype));
                assert_eq!(DType::from_buffer_format(&format!("={format}")), Some(dtype));
            }
        }
        assert_eq!(DType::Bf16.buffer_format(), None);
        assert_eq!(
            "float32".parse::<DType>().unwrap_err().to_string(),
            "unknown element type `float32`: use one of u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64"
        );
    }

    #[test]
    fn formats_other_than_a_single_native_number_are_refused() {
        let foreign = if cfg!(target_endian = "little") { ">i" } else { "<i" };
        for format in ["", "@", "ii", "2f", "?", "c", "==i", "=@i", "Zf", "T{i:x:}", foreign] {
            assert_eq!(DType::from_buffer_format(format), None, "{format}");
        }
        let long = if size_of::<c_long>() == 8 { DType::I64 } else { DType::I32 };
        assert_eq!(DType::from_buffer_format("l"), Some(long));
        assert_eq!(DType::from_buffer_format("=l"), Some(DType::I32));
    }
}
