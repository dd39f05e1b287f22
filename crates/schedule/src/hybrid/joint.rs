//! The time that a set of devices takes together, and the devices that help.

/// A device alone: ready after `startup` seconds, then one item each `per_item` seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CostLine {
    pub(super) startup: f64,
    pub(super) per_item: f64,
}

impl CostLine {
    /// Makes a line of bounded numbers: not negative, not infinite, and no item in no time.
    pub(super) fn new(startup: f64, per_item: f64) -> CostLine {
        const MAX_SECONDS: f64 = 1e20;
        const SHORTEST_ITEM: f64 = 1e-15;
        let bounded = |seconds: f64, least: f64| {
            if seconds.is_nan() { MAX_SECONDS } else { seconds.clamp(least, MAX_SECONDS) }
        };
        CostLine { startup: bounded(startup, 0.0), per_item: bounded(per_item, SHORTEST_ITEM) }
    }

    pub(super) fn seconds(&self, items: u64) -> f64 {
        self.startup + items as f64 * self.per_item
    }

    /// Number of whole items done by a time. An item that ends at that very time is done, in spite of rounding.
    fn items_by(&self, seconds: f64) -> f64 {
        let items = (seconds - self.startup) / self.per_item;
        (items * (1.0 + 1e-12) + 1e-9).floor().max(0.0)
    }
}

/// The work of a set of devices together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JointPlan {
    /// Seconds until the last item is done.
    pub(super) seconds: f64,
    /// Items of each device; zero means that the run is no slower without it. Numbers up to 2^53 are exact.
    pub(super) items: Vec<f64>,
}

/// The shortest time in which some subset of the devices does all items, and the items of each device.
///
/// By time T, device i has done floor((T − startup_i) / per_item_i) items, or none if that is negative, and a set is
/// done at the smallest T for which the sum over its members reaches the number of items. Every term is at least
/// zero, so one more member never lowers the sum at any T and never makes the smallest T larger: no subset beats the
/// whole set. Members whose term is zero at that T can leave without changing the sum, so the members that are worth
/// using are exactly those that finish an item by then, startup_i + per_item_i ≤ T. No search over subsets is needed.
pub(super) fn fastest(lines: &[CostLine], items: u64) -> JointPlan {
    if lines.is_empty() || items == 0 {
        return JointPlan { seconds: 0.0, items: vec![0.0; lines.len()] };
    }
    let wanted = items as f64;
    let done_by = |seconds: f64| lines.iter().map(|line| line.items_by(seconds)).sum::<f64>();
    // The best device alone needs this long, so the set needs no longer.
    let mut late = lines.iter().map(|line| line.seconds(items)).fold(f64::INFINITY, f64::min);
    let mut early = 0.0;
    // Each step halves the interval; a double has no more bits after this many.
    for _ in 0..200 {
        let middle = early + (late - early) / 2.0;
        if middle <= early || middle >= late {
            break;
        }
        if done_by(middle) >= wanted {
            late = middle;
        } else {
            early = middle;
        }
    }
    let mut counts: Vec<f64> = lines.iter().map(|line| line.items_by(late)).collect();
    give_back(&mut counts, lines, wanted);
    if counts.iter().all(|&count| count == 0.0) {
        // The startup is so long that the time of the items is lost in rounding.
        let alone = |index: &usize| lines[*index].seconds(items);
        let best = (0..lines.len()).min_by(|a, b| alone(a).total_cmp(&alone(b)));
        best.into_iter().for_each(|index| counts[index] = wanted);
    }
    JointPlan { seconds: late, items: counts }
}

/// If several devices finish an item at the same last moment, more items are done than needed. The excess is taken from
/// the devices with the fewest items first, so that as few devices as possible are used, the slower of equals first.
fn give_back(counts: &mut [f64], lines: &[CostLine], wanted: f64) {
    let mut excess = counts.iter().sum::<f64>() - wanted;
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by(|&a, &b| {
        let slowness = |device: usize| lines[device].startup + lines[device].per_item;
        counts[a].total_cmp(&counts[b]).then(slowness(b).total_cmp(&slowness(a))).then(b.cmp(&a))
    });
    for device in order {
        if excess < 1.0 {
            break;
        }
        if counts[device] >= 1.0 {
            counts[device] -= 1.0;
            excess -= 1.0;
        }
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    /// Item by item, each to the device that would finish it first.
    fn one_by_one(lines: &[CostLine], items: u64) -> f64 {
        let mut next: Vec<f64> = lines.iter().map(|line| line.startup + line.per_item).collect();
        let mut last = 0.0;
        for _ in 0..items {
            let first = (0..lines.len()).min_by(|&a, &b| next[a].total_cmp(&next[b])).unwrap();
            last = next[first];
            next[first] += lines[first].per_item;
        }
        last
    }

    fn members(lines: &[CostLine], subset: u32) -> Vec<CostLine> {
        let is_member = |index: &usize| subset & (1 << index) != 0;
        (0..lines.len()).filter(is_member).map(|index| lines[index]).collect()
    }

    #[test]
    fn of_two_equal_devices_one_does_a_single_item() {
        let line = CostLine::new(0.5, 0.25);
        let joint = fastest(&[line, line], 1);
        assert_eq!(joint.items, [1.0, 0.0]);
        assert!((joint.seconds - 0.75).abs() < 1e-8);
    }

    #[test]
    fn a_run_without_items_or_devices_takes_no_time() {
        assert_eq!(fastest(&[], 5).seconds, 0.0);
        assert_eq!(fastest(&[CostLine::new(1.0, 1.0)], 0), JointPlan { seconds: 0.0, items: vec![0.0] });
    }

    proptest! {
        #[test]
        fn no_subset_is_faster_and_those_in_use_are_enough(
            parts in prop::collection::vec((prop_oneof![Just(0.0), 0.0f64..10.0], 1e-3f64..10.0), 1..7),
            items in 1u64..80,
        ) {
            let lines: Vec<CostLine> = parts.iter().map(|&(a, b)| CostLine::new(a, b)).collect();
            let joint = fastest(&lines, items);
            let subsets = 1..1u32 << lines.len();
            let best = subsets.map(|subset| one_by_one(&members(&lines, subset), items)).fold(1e300, f64::min);
            prop_assert!((joint.seconds - best).abs() <= best * 1e-6, "{} against {best}", joint.seconds);
            prop_assert_eq!(joint.items.iter().sum::<f64>(), items as f64);
            let in_use = (0..lines.len()).filter(|&index| joint.items[index] > 0.0);
            let alone = one_by_one(&members(&lines, in_use.map(|index| 1 << index).sum()), items);
            prop_assert!((alone - best).abs() <= best * 1e-6, "{alone} against {best}");
        }

        #[test]
        fn a_large_run_takes_what_the_rates_together_take(
            parts in prop::collection::vec((0.0f64..10.0, 1e-9f64..1e-3), 1..7),
            items in 1_000_000_000u64..1 << 50,
        ) {
            // Without the rounding to whole items: Σ max(0, (T − startup) / per_item) = items.
            let lines: Vec<CostLine> = parts.iter().map(|&(a, b)| CostLine::new(a, b)).collect();
            let joint = fastest(&lines, items);
            let done = |line: &CostLine| ((joint.seconds - line.startup) / line.per_item).max(0.0);
            let together: f64 = lines.iter().map(done).sum();
            prop_assert!((together / items as f64 - 1.0).abs() < 1e-6);
        }

        #[test]
        fn every_input_gives_a_valid_time(
            parts in prop::collection::vec((prop::num::f64::ANY, prop::num::f64::ANY), 0..7),
            items in prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), 0u64..5],
        ) {
            let lines: Vec<CostLine> = parts.iter().map(|&(a, b)| CostLine::new(a, b)).collect();
            let joint = fastest(&lines, items);
            prop_assert!(joint.seconds >= 0.0 && joint.seconds.is_finite());
            prop_assert!(joint.items.iter().all(|items| items.is_finite() && *items >= 0.0));
            prop_assert_eq!(joint.items.iter().any(|&items| items > 0.0), items > 0 && !lines.is_empty());
        }
    }
}
