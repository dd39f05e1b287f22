//! How elements of several ranks become one.

use std::fmt;

/// How elements of several ranks become one. The order is fixed by rank, ((x₀ ∘ x₁) ∘ x₂) ∘ …, so that every rank
/// gets the same bits and every run gives the same bits; f16 and bf16 are reduced in f32 and rounded once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Operation {
    /// Their sum. Integers wrap around on overflow.
    Sum = 1,
    /// Their product. Integers wrap around on overflow.
    Product,
    /// The least. Where any is NaN the result is NaN; of zeros of both signs, the lowest rank's.
    Min,
    /// The greatest. Where any is NaN the result is NaN; of zeros of both signs, the lowest rank's.
    Max,
    /// Their mean. Of integers, the exact mean without its fraction: it never overflows, and rounds towards zero.
    Average,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 5] =
        [Operation::Sum, Operation::Product, Operation::Min, Operation::Max, Operation::Average];

    /// The operation of this number, as it travels between ranks.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| *it as u8 == number)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Sum => "sum",
            Operation::Product => "product",
            Operation::Min => "min",
            Operation::Max => "max",
            Operation::Average => "average",
        })
    }
}
