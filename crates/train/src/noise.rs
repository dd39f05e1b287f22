//! The noise scale of gradients, and what follows for batch and learning rate.

use serde::{Deserialize, Serialize};

/// Weight of a new step in the averages.
const NEW: f64 = 0.05;

/// One rank's gradient in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankGradient {
    /// Samples, or tokens, that it is the mean of.
    pub weight: f64,
    /// Its squared norm.
    pub norm_squared: f64,
}

/// Estimates the variance of one sample's gradient, S, and the squared norm of the true gradient, |G|². Both are
/// averaged apart, because the quotient of single estimates is biased and may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct NoiseScale {
    variance: f64,
    gradient: f64,
    /// Weight that the averages have gathered: 1 after many steps.
    gathered: f64,
}

impl NoiseScale {
    /// Adds a step: the gradients of the ranks, and the squared norm of their mean. Ignores steps with fewer than two
    /// ranks, or with numbers that are not finite.
    pub fn add(&mut self, ranks: &[RankGradient], mean_norm_squared: f64) {
        let taking_part: Vec<_> = ranks.iter().filter(|rank| rank.weight > 0.0).collect();
        let batch: f64 = taking_part.iter().map(|rank| rank.weight).sum();
        if taking_part.len() < 2 {
            return;
        }
        let within: f64 = taking_part.iter().map(|rank| rank.weight / batch * rank.norm_squared).sum();
        let variance = batch / (taking_part.len() - 1) as f64 * (within - mean_norm_squared);
        let gradient = mean_norm_squared - variance / batch;
        if !(variance.is_finite() && gradient.is_finite()) {
            return;
        }
        self.variance += NEW * (variance - self.variance);
        self.gradient += NEW * (gradient - self.gradient);
        self.gathered += NEW * (1.0 - self.gathered);
    }

    /// Returns the noise scale S / |G|²: the batch at which noise and gradient are equally strong. `None` until the
    /// estimates are positive.
    pub fn scale(&self) -> Option<f64> {
        let known = self.gathered > 0.0 && self.variance > 0.0 && self.gradient > 0.0;
        known.then(|| self.variance / self.gradient).filter(|scale| scale.is_finite())
    }

    /// Returns the batch to grow to: the noise scale, at most twice the current batch and at most `most`, and never less
    /// than the current one.
    pub fn grown_batch(&self, batch: u64, most: u64) -> u64 {
        let wanted = self.scale().unwrap_or(0.0).min(most as f64) as u64;
        wanted.min(batch.saturating_mul(2)).max(batch)
    }

    /// Returns the factor for the learning rate after the batch has grown from `first` to `batch`: between 1 and
    /// `batch / first`.
    pub fn learning_rate_gain(&self, first: u64, batch: u64, rule: GainRule) -> f64 {
        let (first, batch) = (first.max(1) as f64, batch.max(1) as f64);
        if batch <= first {
            return 1.0;
        }
        let gain = self.scale().map_or(1.0, |scale| (scale / first + 1.0) / (scale / batch + 1.0));
        match rule {
            GainRule::Linear => gain,
            GainRule::SquareRoot => gain.sqrt(),
        }
    }
}

/// How an optimizer's learning rate follows the gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum GainRule {
    /// As it is: for SGD.
    #[default]
    Linear,
    /// Its square root: for Adam and other optimizers that divide by the gradient's size.
    SquareRoot,
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::SplitMix;

    /// Gradients around a true one, each the mean of `weight` samples with unit variance in every dimension.
    fn ranks(random: &mut SplitMix, truth: &[f64], weights: &[f64]) -> (Vec<RankGradient>, f64) {
        let mut mean = vec![0.0; truth.len()];
        let total: f64 = weights.iter().sum();
        let mut ranks = Vec::new();
        for &weight in weights {
            // The sum of twelve uniform numbers is nearly normal.
            let mut normal = || (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
            let gradient: Vec<f64> = truth.iter().map(|it| it + normal() / weight.sqrt()).collect();
            mean.iter_mut().zip(&gradient).for_each(|(mean, it)| *mean += weight / total * it);
            ranks.push(RankGradient { weight, norm_squared: gradient.iter().map(|it| it * it).sum() });
        }
        (ranks, mean.iter().map(|it| it * it).sum())
    }

    #[test]
    fn the_scale_of_known_gradients_is_found_with_unequal_batches() {
        let (dimensions, strength) = (50, 0.2f64);
        let truth = vec![strength; dimensions];
        let expected = dimensions as f64 / (dimensions as f64 * strength * strength);
        let mut random = SplitMix(7);
        let mut noise = NoiseScale::default();
        let mut scales = Vec::new();
        for _ in 0..2000 {
            let (ranks, mean) = ranks(&mut random, &truth, &[25.0, 10.0, 3.0]);
            noise.add(&ranks, mean);
            scales.extend(noise.scale());
        }
        let mean = scales[200..].iter().sum::<f64>() / (scales.len() - 200) as f64;
        assert!((mean / expected - 1.0).abs() < 0.15, "{mean} is not {expected}");
    }

    #[test]
    fn one_rank_alone_tells_nothing() {
        let mut noise = NoiseScale::default();
        noise.add(&[RankGradient { weight: 8.0, norm_squared: 3.0 }], 3.0);
        assert_eq!((noise.scale(), noise.grown_batch(64, 1000)), (None, 64));
        assert_eq!(noise.learning_rate_gain(64, 128, GainRule::Linear), 1.0);
    }

    proptest! {
        #[test]
        fn batch_and_learning_rate_stay_in_their_bounds(
            steps in prop::collection::vec(
                (0.0..100.0f64, prop_oneof![Just(f64::NAN), Just(f64::INFINITY), 0.0..1e9f64], 0.0..1e9f64), 0..30),
            batch in 1..1000u64,
            most in 1..5000u64,
        ) {
            let mut noise = NoiseScale::default();
            for (weight, one, other) in steps {
                let ranks = [RankGradient { weight, norm_squared: one }, RankGradient { weight: 3.0, norm_squared: other }];
                noise.add(&ranks, other);
                let grown = noise.grown_batch(batch, most);
                prop_assert!(grown >= batch && grown <= batch * 2 && grown <= most.max(batch));
                for rule in [GainRule::Linear, GainRule::SquareRoot] {
                    let gain = noise.learning_rate_gain(batch, grown, rule);
                    prop_assert!(gain >= 1.0 && gain <= grown as f64 / batch as f64 * (1.0 + 1e-12), "{}", gain);
                }
            }
        }
    }
}
