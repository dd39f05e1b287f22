//! How a multi-scalar multiplication is cut into windows and buckets.

/// Bits of a scalar, and one more for the carry of signed digits.
const SCALAR_BITS: u32 = 255;

/// Products of a mixed addition in XYZZ coordinates.
const PRODUCTS_PER_ENTRY: u64 = 10;

/// Products for each bucket in the reduction: two additions in XYZZ coordinates.
const PRODUCTS_PER_BUCKET: u64 = 28;

/// Widths of windows, in bits, that the kernels support.
pub(super) const WINDOW_BITS: std::ops::RangeInclusive<u32> = 4..=22;

/// Maximum number of buckets: what one workgroup can scan.
pub(super) const MAX_BUCKETS: u64 = 2048 * 2048;

/// Minimum number of entries that a thread adds up.
pub(super) const MIN_SEGMENT: u32 = 8;

/// The windows of a multi-scalar multiplication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Width of a window.
    pub(super) window_bits: u32,
    /// Number of windows.
    pub(super) windows: u32,
    /// Whether all windows share one set of buckets, because the points of each window are precomputed.
    pub(super) is_shared: bool,
}

impl Plan {
    pub(super) fn new(window_bits: u32, is_shared: bool) -> Plan {
        Plan { window_bits, windows: SCALAR_BITS.div_ceil(window_bits), is_shared }
    }

    /// Returns the plan with the fewest products for a number of points, with at most `max_buckets` buckets.
    pub(super) fn best(points: u64, is_shared: bool, max_buckets: u64) -> Plan {
        let products = |plan: &Plan| {
            points * u64::from(plan.windows) * PRODUCTS_PER_ENTRY + plan.buckets() * PRODUCTS_PER_BUCKET
        };
        WINDOW_BITS
            .map(|window_bits| Plan::new(window_bits, is_shared))
            .filter(|plan| plan.buckets() <= max_buckets.min(MAX_BUCKETS))
            .min_by_key(products)
            .unwrap_or(Plan::new(*WINDOW_BITS.start(), is_shared))
    }

    /// Sets of buckets: one for each window, or one for all.
    pub(super) fn sets(&self) -> u32 {
        if self.is_shared { 1 } else { self.windows }
    }

    /// Buckets of all sets.
    pub(super) fn buckets(&self) -> u64 {
        u64::from(self.sets()) << self.depth()
    }

    /// Levels of the tree over a set's buckets.
    pub(super) fn depth(&self) -> u32 {
        self.window_bits - 1
    }

    /// Points in memory for each base.
    pub(super) fn points_per_base(&self) -> u64 {
        if self.is_shared { self.windows.into() } else { 1 }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn windows_hold_all_bits_and_the_carry() {
        for bits in WINDOW_BITS {
            let plan = Plan::new(bits, false);
            assert!(
                plan.windows * bits >= SCALAR_BITS && (plan.windows - 1) * bits < SCALAR_BITS,
                "{plan:?}"
            );
        }
    }

    #[test]
    fn wider_windows_are_chosen_for_more_points() {
        assert_eq!(Plan::best(1 << 20, true, u64::MAX), Plan::new(20, true));
        assert_eq!(Plan::best(1 << 20, false, u64::MAX), Plan::new(16, false));
        for is_shared in [false, true] {
            let widths: Vec<_> =
                (0..26).map(|log| Plan::best(1 << log, is_shared, u64::MAX).window_bits).collect();
            assert!(widths.is_sorted(), "{widths:?}");
        }
    }

    #[test]
    fn a_limit_on_buckets_is_kept() {
        for max in [1 << 9, 1 << 12, 1 << 16] {
            for is_shared in [false, true] {
                assert!(Plan::best(1 << 24, is_shared, max).buckets() <= max);
            }
        }
    }
}
