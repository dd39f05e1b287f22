//! Fixed splits: how many items each device gets, decided before the run begins.

/// Splits items equally between devices. The first devices get one item of the remainder each.
///
/// ```
/// assert_eq!(evener_schedule::equal(10, 3), [4, 3, 3]);
/// ```
pub fn equal(items: u64, devices: usize) -> Vec<u64> {
    let count = devices as u64;
    (0..count).map(|index| items / count + u64::from(index < items % count)).collect()
}

/// Splits items by score, with the largest-remainder method: each device gets its exact share rounded down, and the rest goes
/// one each to those that lost most by the rounding, the first of equals first. Scores that are not positive count as zero;
/// if all are zero, the split is [`equal`].
///
/// ```
/// assert_eq!(evener_schedule::proportional(1000, &[95.0, 80.0]), [543, 457]);
/// ```
pub fn proportional(items: u64, scores: &[f64]) -> Vec<u64> {
    let weights: Vec<f64> =
        scores.iter().map(|&score| if score.is_finite() { score.max(0.0) } else { 0.0 }).collect();
    let total: f64 = weights.iter().sum();
    if total <= 0.0 || !total.is_finite() {
        return equal(items, scores.len());
    }
    let exact = weights.iter().map(|weight| items as f64 * (weight / total));
    let mut shares: Vec<(u64, f64)> = exact.map(|exact| (exact as u64, exact.fract())).collect();
    // Rounding of large products can assign one item too many, or leave more than one each.
    let mut assigned: u64 = shares.iter().map(|share| share.0).sum();
    for share in shares.iter_mut().rev() {
        let excess = assigned.saturating_sub(items).min(share.0);
        share.0 -= excess;
        assigned -= excess;
    }
    let mut order: Vec<usize> = (0..shares.len()).filter(|&index| weights[index] > 0.0).collect();
    order.sort_by(|&a, &b| shares[b].1.total_cmp(&shares[a].1).then(a.cmp(&b)));
    for &index in order.iter().cycle().take((items - assigned) as usize) {
        shares[index].0 += 1;
    }
    shares.into_iter().map(|share| share.0).collect()
}

/// Splits items by score × (1 − utilization), from pairs of the two, as [`proportional`] does. If all devices are fully
/// busy, by score alone.
///
/// ```
/// // Weights 9.5 and 56.
/// assert_eq!(evener_schedule::dynamic(131, &[(95.0, 0.9), (80.0, 0.3)]), [19, 112]);
/// ```
pub fn dynamic(items: u64, devices: &[(f64, f64)]) -> Vec<u64> {
    let weights: Vec<f64> =
        devices.iter().map(|(score, utilization)| score * (1.0 - utilization.clamp(0.0, 1.0))).collect();
    if weights.iter().any(|&weight| weight > 0.0) {
        return proportional(items, &weights);
    }
    proportional(items, &devices.iter().map(|(score, _)| *score).collect::<Vec<_>>())
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_devices_get_no_items() {
        assert!(equal(10, 0).is_empty());
        assert!(proportional(10, &[]).is_empty());
        assert!(dynamic(10, &[]).is_empty());
    }

    #[test]
    fn unusable_scores_give_equal_shares() {
        assert_eq!(proportional(10, &[0.0, -1.0, f64::NAN]), [4, 3, 3]);
        assert_eq!(dynamic(9, &[(1.0, 1.0), (2.0, 1.0)]), [3, 6], "all are busy: by score");
    }

    proptest! {
        #[test]
        fn every_item_is_assigned_once_and_close_to_the_exact_share(
            items in 0u64..1 << 50,
            scores in prop::collection::vec(prop_oneof![Just(0.0), 1e-3f64..1e6], 1..40),
        ) {
            let shares = proportional(items, &scores);
            prop_assert_eq!(shares.iter().sum::<u64>(), items);
            let total: f64 = scores.iter().sum();
            for (share, score) in shares.iter().zip(&scores).filter(|_| total > 0.0) {
                let exact = items as f64 * score / total;
                prop_assert!((*share as f64 - exact).abs() <= 1.0 + exact * 1e-12, "{share} for {exact}");
            }
        }
    }
}
