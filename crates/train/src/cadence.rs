//! Cadence: how many local steps ranks make between two exchanges.

use serde::{Deserialize, Serialize};

/// Rounds in a row with a growing spread, after which the number of local steps is halved.
const RISES: u32 = 3;

/// Decides the number of local steps. It is the same for all ranks; 1 is lockstep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cadence {
    steps: u64,
    most: u64,
    target: f64,
    spread: Option<f64>,
    rises: u32,
}

/// What a round of local steps and one exchange has shown. All ranks report the same numbers to their cadence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Round {
    /// Seconds of the exchange.
    pub exchange_s: f64,
    /// Seconds of the round's compute on the rank that took longest.
    pub compute_s: f64,
    /// Spread of the ranks' parameters, relative to how far their mean has moved.
    pub spread: f64,
}

impl Cadence {
    /// Creates a cadence that begins with one step. It grows until the exchange takes at most `target` of the compute
    /// time, and never beyond `most` steps.
    pub fn new(target: f64, most: u64) -> Self {
        let target = if target.is_finite() && target > 0.0 { target } else { 0.1 };
        Cadence { steps: 1, most: most.max(1), target, spread: None, rises: 0 }
    }

    /// Returns the number of local steps of the next round.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Takes the outcome of a round of [`steps`](Cadence::steps) steps. The number at most doubles.
    pub fn observe(&mut self, round: &Round) {
        let rises = self.spread.is_some_and(|before| round.spread > before) && round.spread.is_finite();
        self.rises = if rises { self.rises + 1 } else { 0 };
        if round.spread.is_finite() {
            self.spread = Some(round.spread);
        }
        if self.rises >= RISES {
            self.rises = 0;
            self.steps = (self.steps / 2).max(1);
            return;
        }
        let ratio = round.exchange_s / round.compute_s;
        if ratio.is_finite() && ratio > self.target {
            let wanted = (self.steps as f64 * ratio / self.target).ceil() as u64;
            self.steps = wanted.min(self.steps.saturating_mul(2)).min(self.most).max(self.steps);
        }
    }
}

/// The step that is made with the mean of the ranks' changes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub enum OuterStep {
    /// Takes the mean of the parameters.
    #[default]
    Identity,
    /// Nesterov's momentum on the mean change: 0.7 and 0.9 are usual.
    Nesterov {
        /// Factor of the change.
        learning_rate: f64,
        /// Part of the momentum that is kept.
        momentum: f64,
    },
}

impl OuterStep {
    /// Nesterov's momentum with the usual numbers.
    pub const NESTEROV: OuterStep = OuterStep::Nesterov { learning_rate: 0.7, momentum: 0.9 };

    /// Turns the mean change of one parameter into the step to make, and updates its momentum.
    pub fn step(&self, change: f64, momentum_of: &mut f64) -> f64 {
        match *self {
            OuterStep::Identity => change,
            OuterStep::Nesterov { learning_rate, momentum } => {
                *momentum_of = momentum * *momentum_of + change;
                learning_rate * (change + momentum * *momentum_of)
            }
        }
    }

    /// Returns whether it keeps a momentum.
    pub fn has_momentum(&self) -> bool {
        *self != OuterStep::Identity
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn round(exchange_s: f64, steps: u64, spread: f64) -> Round {
        Round { exchange_s, compute_s: steps as f64 * 0.1, spread }
    }

    #[test]
    fn it_grows_twofold_a_round_until_the_exchange_is_a_tenth() {
        let mut cadence = Cadence::new(0.1, 1000);
        let mut seen = vec![1];
        for _ in 0..8 {
            cadence.observe(&round(0.2, cadence.steps(), 0.1));
            seen.push(cadence.steps());
        }
        assert_eq!(seen, [1, 2, 4, 8, 16, 20, 20, 20, 20]);
    }

    #[test]
    fn a_cheap_exchange_stays_in_lockstep() {
        let mut cadence = Cadence::new(0.1, 1000);
        (0..100).for_each(|_| cadence.observe(&round(0.009, cadence.steps(), 0.1)));
        assert_eq!(cadence.steps(), 1);
    }

    #[test]
    fn three_rounds_of_growing_spread_halve_it() {
        let mut cadence = Cadence::new(0.1, 1000);
        (0..5).for_each(|_| cadence.observe(&round(0.2, cadence.steps(), 0.1)));
        assert_eq!(cadence.steps(), 20);
        [0.2, 0.3].iter().for_each(|spread| cadence.observe(&round(0.2, 20, *spread)));
        assert_eq!(cadence.steps(), 20);
        cadence.observe(&round(0.2, 20, 0.4));
        assert_eq!(cadence.steps(), 10);
    }

    #[test]
    fn momentum_carries_on_and_identity_takes_the_mean() {
        let (mut none, mut kept) = (0.0, 0.0);
        assert_eq!(OuterStep::Identity.step(1.0, &mut none), 1.0);
        assert!((OuterStep::NESTEROV.step(1.0, &mut kept) - 0.7 * 1.9).abs() < 1e-12);
        assert!(OuterStep::NESTEROV.step(0.0, &mut kept) > 0.0 && none == 0.0);
    }

    proptest! {
        #[test]
        fn it_never_leaves_its_bounds_nor_more_than_doubles(
            rounds in prop::collection::vec(
                (prop_oneof![Just(f64::NAN), 0.0..10.0f64], 0.0..10.0f64, prop_oneof![Just(f64::NAN), 0.0..1.0f64]), 0..100),
            most in 1..50u64,
        ) {
            let mut cadence = Cadence::new(0.1, most);
            for (exchange_s, compute_s, spread) in rounds {
                let before = cadence.steps();
                cadence.observe(&Round { exchange_s, compute_s, spread });
                prop_assert!((1..=most).contains(&cadence.steps()));
                prop_assert!(cadence.steps() <= before * 2 && cadence.steps() * 2 + 1 >= before);
            }
        }
    }
}
