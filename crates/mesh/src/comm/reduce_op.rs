//! Reduce operations.

use super::named::named;

named! {
    /// How a reduction combines the elements of the ranks. The order is fixed by rank, ((x₀ ∘ x₁) ∘ x₂) ∘ …, so every
    /// rank and every run gets the same bits; f16 and bf16 are reduced in f32 and rounded once. Over NCCL the order is
    /// NCCL's: the same bits on every rank, but not those of the other back ends.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ReduceOp {
        /// Sum. Integers wrap around on overflow.
        Sum = "sum",
        /// Product. Integers wrap around on overflow.
        Product = "product",
        /// Minimum. NaN if any element is NaN; of zeros of both signs, the lowest rank's.
        Min = "min",
        /// Maximum. NaN if any element is NaN; of zeros of both signs, the lowest rank's.
        Max = "max",
        /// Mean. For integers the exact mean rounded towards zero, which never overflows.
        Average = "average",
    }
}
