//! The nine element types of collectives.

use std::fmt;

use half::{bf16, f16};

use super::named::named;

named! {
    /// The type of a collective's elements at run time: one of nine of the types of [`DType`](evener_device::DType). Ranks
    /// send its number to one another.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum CollectiveDType {
        /// 32-bit floating point.
        F32 = "f32",
        /// 64-bit floating point.
        F64 = "f64",
        /// 16-bit IEEE floating point; reduced in f32.
        F16 = "f16",
        /// 16-bit brain floating point; reduced in f32.
        Bf16 = "bf16",
        /// 32-bit signed integer.
        I32 = "i32",
        /// 64-bit signed integer.
        I64 = "i64",
        /// Byte.
        U8 = "u8",
        /// 32-bit unsigned integer.
        U32 = "u32",
        /// 64-bit unsigned integer.
        U64 = "u64",
    }
}

impl CollectiveDType {
    /// Returns the size of an element in bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        match self {
            CollectiveDType::U8 => 1,
            CollectiveDType::F16 | CollectiveDType::Bf16 => 2,
            CollectiveDType::F32 | CollectiveDType::I32 | CollectiveDType::U32 => 4,
            CollectiveDType::F64 | CollectiveDType::I64 | CollectiveDType::U64 => 8,
        }
    }

    /// Returns whether this is a floating-point type.
    #[inline]
    pub fn is_float(self) -> bool {
        matches!(
            self,
            CollectiveDType::F32 | CollectiveDType::F64 | CollectiveDType::F16 | CollectiveDType::Bf16
        )
    }
}

/// An element type of collectives.
pub trait Element: bytemuck::Pod + Send + Sync + PartialEq + fmt::Debug + sealed::Sealed {
    /// The type at run time.
    const TYPE: CollectiveDType;
}

/// An element type that supports the weighted all-reduce.
pub trait FloatElement: Element {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($element:ty => $name:ident),*) => {$(
        impl sealed::Sealed for $element {}
        impl Element for $element {
            const TYPE: CollectiveDType = CollectiveDType::$name;
        }
    )*};
}
elements!(f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16, i32 => I32, i64 => I64, u8 => U8, u32 => U32, u64 => U64);

impl FloatElement for f32 {}
impl FloatElement for f64 {}
impl FloatElement for f16 {}
impl FloatElement for bf16 {}
