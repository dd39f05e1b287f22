//! The costs of items that do not all cost the same.

use std::{ops::Range, sync::Arc};

/// The costs of items as multiples of their mean, so that a run of n items costs n.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// Prefix sums of the costs, or `None` if all items cost the same.
    before: Option<Arc<[f64]>>,
}

impl Costs {
    /// Takes one cost per item, in any unit. Numbers that are not positive count as zero.
    pub fn new(costs: &[f64]) -> Costs {
        let usable = |cost: f64| if cost.is_finite() { cost.max(0.0) } else { 0.0 };
        let total: f64 = costs.iter().copied().map(usable).sum();
        let scale = costs.len() as f64 / total;
        if total <= 0.0 || !total.is_finite() || !scale.is_finite() {
            return Costs::default();
        }
        let mut sum = 0.0;
        let mut before = Vec::with_capacity(costs.len() + 1);
        before.push(0.0);
        for &cost in costs {
            sum += usable(cost) * scale;
            before.push(sum);
        }
        Costs { before: Some(before.into()) }
    }

    /// The cost of a range.
    pub(super) fn of(&self, items: &Range<u64>) -> f64 {
        match &self.before {
            None => (items.end - items.start) as f64,
            Some(before) => {
                (before[items.end as usize] - before[items.start as usize]).max(f64::MIN_POSITIVE)
            }
        }
    }

    /// The end of the first items of a range that cost about this much together: at least one item.
    pub(super) fn end_for_cost(&self, items: &Range<u64>, cost: f64) -> u64 {
        let end = match &self.before {
            None => items.start.saturating_add(cost as u64),
            Some(before) => {
                let until = before[items.start as usize] + cost;
                let within = &before[items.start as usize..=items.end as usize];
                items.start + (within.partition_point(|&before| before <= until) as u64).saturating_sub(1)
            }
        };
        end.clamp(items.start + 1, items.end)
    }

    /// The start of the last items of a range that cost about this much together: at least one item.
    pub(super) fn start_for_cost(&self, items: &Range<u64>, cost: f64) -> u64 {
        let start = match &self.before {
            None => items.end.saturating_sub(cost as u64),
            Some(before) => {
                let from = before[items.end as usize] - cost;
                let within = &before[items.start as usize..=items.end as usize];
                items.start + within.partition_point(|&before| before < from) as u64
            }
        };
        start.clamp(items.start, items.end - 1)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn costs_are_multiples_of_the_mean_and_a_chunk_is_cut_by_them() {
        let costs = Costs::new(&[1.0, 1.0, 6.0, 0.0]);
        assert_eq!((costs.of(&(0..4)), costs.of(&(2..3))), (4.0, 3.0));
        assert_eq!(costs.end_for_cost(&(0..4), 1.0), 2);
        assert_eq!(costs.end_for_cost(&(2..4), 1.0), 3, "one at least");
        assert_eq!(costs.end_for_cost(&(2..4), 9.0), 4);
        assert_eq!(Costs::default().end_for_cost(&(2..9), 3.7), 5);
        assert_eq!(costs.start_for_cost(&(0..4), 3.0), 2);
        assert_eq!(costs.start_for_cost(&(0..2), 0.1), 1, "one at least");
        assert_eq!(Costs::default().start_for_cost(&(2..9), 3.7), 6);
    }

    #[test]
    fn unusable_costs_count_as_equal() {
        for unusable in [&[0.0, -1.0][..], &[f64::NAN], &[]] {
            assert_eq!(Costs::new(unusable).of(&(0..1)), 1.0);
        }
    }
}
