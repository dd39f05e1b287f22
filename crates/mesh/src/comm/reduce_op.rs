//! How elements of several ranks become one.

use super::named::named;

named! {
    /// How elements of several ranks become one. The order is fixed by rank, ((x₀ ∘ x₁) ∘ x₂) ∘ …, so that every rank
    /// gets the same bits and every run gives the same bits; f16 and bf16 are reduced in f32 and rounded once.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ReduceOp {
        /// Their sum. Integers wrap around on overflow.
        Sum = "sum",
        /// Their product. Integers wrap around on overflow.
        Product = "product",
        /// The least. Where any is NaN the result is NaN; of zeros of both signs, the lowest rank's.
        Min = "min",
        /// The greatest. Where any is NaN the result is NaN; of zeros of both signs, the lowest rank's.
        Max = "max",
        /// Their mean. Of integers, the exact mean without its fraction: it never overflows, and rounds towards zero.
        Average = "average",
    }
}
