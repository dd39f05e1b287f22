//! What collectives carry: the nine element types.

use std::fmt;

use half::{bf16, f16};

/// The type of an element, as ranks tell one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum ElementType {
    /// 32-bit floating point.
    F32 = 1,
    /// 64-bit floating point.
    F64,
    /// 16-bit IEEE floating point; reduced in f32.
    F16,
    /// 16-bit brain floating point; reduced in f32.
    Bf16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// Byte.
    U8,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit unsigned integer.
    U64,
}

impl ElementType {
    /// All of them.
    pub const ALL: [ElementType; 9] = [
        ElementType::F32,
        ElementType::F64,
        ElementType::F16,
        ElementType::Bf16,
        ElementType::I32,
        ElementType::I64,
        ElementType::U8,
        ElementType::U32,
        ElementType::U64,
    ];

    /// How many bytes one element takes.
    pub fn bytes(self) -> usize {
        match self {
            ElementType::U8 => 1,
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::F32 | ElementType::I32 | ElementType::U32 => 4,
            ElementType::F64 | ElementType::I64 | ElementType::U64 => 8,
        }
    }

    /// Whether it is floating point.
    pub fn is_float(self) -> bool {
        matches!(self, ElementType::F32 | ElementType::F64 | ElementType::F16 | ElementType::Bf16)
    }

    /// The type of this number, as it travels between ranks.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| *it as u8 == number)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ElementType::F32 => "f32",
            ElementType::F64 => "f64",
            ElementType::F16 => "f16",
            ElementType::Bf16 => "bf16",
            ElementType::I32 => "i32",
            ElementType::I64 => "i64",
            ElementType::U8 => "u8",
            ElementType::U32 => "u32",
            ElementType::U64 => "u64",
        })
    }
}

/// An element that collectives carry.
pub trait Element: bytemuck::Pod + Send + Sync + PartialEq + fmt::Debug + sealed::Sealed {
    /// Which one it is.
    const TYPE: ElementType;
}

/// An element of which a weighted mean can be had.
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
