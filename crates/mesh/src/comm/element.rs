//! The nine element types of collectives.

use std::fmt;

use half::{bf16, f16};

use super::named::named;

named! {
    /// The type of an element.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ElementType {
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

impl ElementType {
    /// Returns the size of an element in bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        match self {
            ElementType::U8 => 1,
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::F32 | ElementType::I32 | ElementType::U32 => 4,
            ElementType::F64 | ElementType::I64 | ElementType::U64 => 8,
        }
    }

    /// Returns whether this is a floating-point type.
    #[inline]
    pub fn is_float(self) -> bool {
        matches!(self, ElementType::F32 | ElementType::F64 | ElementType::F16 | ElementType::Bf16)
    }
}

/// An element type of collectives.
pub trait Element: bytemuck::Pod + Send + Sync + PartialEq + fmt::Debug + sealed::Sealed {
    /// The type at run time.
    const TYPE: ElementType;
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
            const TYPE: ElementType = ElementType::$name;
        }
    )*};
}
elements!(f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16, i32 => I32, i64 => I64, u8 => U8, u32 => U32, u64 => U64);

impl FloatElement for f32 {}
impl FloatElement for f64 {}
impl FloatElement for f16 {}
impl FloatElement for bf16 {}
