//! The ledger: which samples have been trained on, and which come next.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Hands out every sample exactly once an epoch, in an order that depends on the seed and the epoch alone.
///
/// A step takes the next samples of the epoch's permutation, cut among the ranks in rank order. The cursor moves only
/// when the step is committed, which is after its exchange: until then the same samples can be cut again, for example
/// because a rank has died. All ranks run an equal ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    samples: u64,
    batch: u64,
    seed: u64,
    epoch: u64,
    cursor: u64,
    /// The order of the current epoch, which follows from the seed and the epoch.
    #[serde(skip)]
    order: Vec<u64>,
}

/// The shares of a step do not add up to its samples.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("shares {shares:?} add up to {sum}, but the step has {samples} samples")]
pub struct WrongShares {
    shares: Vec<u64>,
    sum: u64,
    samples: u64,
}

impl Ledger {
    /// Creates a ledger at the start of epoch 0. A batch of 0 is taken as 1.
    pub fn new(samples: u64, batch: u64, seed: u64) -> Self {
        let order = permutation(samples, seed, 0);
        Ledger { samples, batch: batch.max(1), seed, epoch: 0, cursor: 0, order }
    }

    /// Computes the order again, which is not written with the rest of the state.
    pub fn restore(&mut self) {
        self.order = permutation(self.samples, self.seed, self.epoch);
    }

    /// Returns the epoch that the next step belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of samples of this epoch that are committed.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Returns the number of samples in an epoch.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the samples per step.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// Changes the samples per step, from the next step on.
    pub fn set_batch(&mut self, batch: u64) {
        self.batch = batch.max(1);
    }

    /// Returns the positions of the next `steps` steps within the epoch: fewer samples at the end of an epoch.
    pub fn pending(&self, steps: u64) -> Range<u64> {
        self.cursor..self.cursor.saturating_add(self.batch.saturating_mul(steps.max(1))).min(self.samples)
    }

    /// Cuts a range of positions among the ranks, in rank order. A share of 0 is an empty range.
    pub fn cut(range: Range<u64>, shares: &[u64]) -> Result<Vec<Range<u64>>, WrongShares> {
        let sum = shares.iter().fold(0u64, |sum, share| sum.saturating_add(*share));
        let samples = range.end - range.start;
        if sum != samples {
            return Err(WrongShares { shares: shares.to_vec(), sum, samples });
        }
        let mut start = range.start;
        Ok(shares
            .iter()
            .map(|share| {
                let piece = start..start + share;
                start = piece.end;
                piece
            })
            .collect())
    }

    /// Returns the samples at these positions of the current epoch.
    pub fn at(&self, positions: Range<u64>) -> &[u64] {
        &self.order[positions.start as usize..positions.end as usize]
    }

    /// Commits all samples before a position. The next epoch begins when none is left.
    pub fn commit(&mut self, end: u64) {
        self.cursor = end.min(self.samples);
        if self.cursor == self.samples {
            self.epoch += 1;
            self.cursor = 0;
            self.order = permutation(self.samples, self.seed, self.epoch);
        }
    }
}

/// Returns the order of an epoch: Fisher and Yates' shuffle, with random numbers from the seed and the epoch. The bits
/// are part of the checkpoint's meaning, so they never change.
fn permutation(samples: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let mut random = SplitMix(SplitMix(seed ^ epoch.wrapping_mul(0xD1B5_4A32_D192_ED03)).next());
    let mut order: Vec<u64> = (0..samples).collect();
    for index in (1..order.len()).rev() {
        // The upper half of a product is uniform up to one part in 2^64 / samples.
        let other = ((random.next() as u128 * (index as u128 + 1)) >> 64) as usize;
        order.swap(index, other);
    }
    order
}

/// The generator SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    /// Returns a number from 0 up to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn epochs_and_seeds_have_different_orders_and_the_same_ones_repeat() {
        let orders: Vec<_> =
            [(1, 0), (1, 1), (2, 0)].map(|(seed, epoch)| permutation(100, seed, epoch)).into();
        assert_ne!(orders[0], orders[1]);
        assert_ne!(orders[0], orders[2]);
        assert_eq!(orders[0], permutation(100, 1, 0));
        assert_eq!(permutation(0, 1, 0), Vec::<u64>::new());
    }

    #[test]
    fn the_order_of_a_seed_is_the_same_in_every_version() {
        assert_eq!(permutation(8, 17, 3), PINNED);
    }

    const PINNED: [u64; 8] = [2, 1, 0, 6, 5, 4, 3, 7];

    #[test]
    fn shares_that_do_not_add_up_are_refused() {
        assert!(Ledger::cut(0..10, &[4, 5]).is_err());
        assert_eq!(Ledger::cut(10..15, &[4, 0, 1]).unwrap(), [10..14, 14..14, 14..15]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Ranks die and return at any step, before or after the cut; the ledger may be written and read at any step.
        #[test]
        fn every_sample_is_committed_exactly_once_an_epoch(
            samples in 0..70u64,
            batch in 1..20u64,
            ranks in 1..8usize,
            seed: u64,
            events in prop::collection::vec((0..5u8, any::<u64>()), 0..60),
        ) {
            let mut ledger = Ledger::new(samples, batch, seed);
            let mut events = events.into_iter();
            let mut alive = vec![true; ranks];
            for epoch in 0..3 {
                let mut seen = vec![0; samples as usize];
                while ledger.epoch() == epoch {
                    let range = ledger.pending(1);
                    let mut done = Vec::new();
                    loop {
                        let (what, which) = events.next().unwrap_or((9, 3));
                        let rank = which as usize % ranks;
                        // Unequal shares of those that are alive.
                        let here: Vec<_> = (0..ranks).filter(|it| alive[*it]).collect();
                        let mut shares = vec![0; ranks];
                        for sample in 0..range.end - range.start {
                            let weight = which.rotate_left(sample as u32) % 7;
                            shares[here[weight as usize % here.len()]] += 1;
                        }
                        let cut = Ledger::cut(range.clone(), &shares).unwrap();
                        done.clear();
                        cut.iter().for_each(|piece| done.extend_from_slice(ledger.at(piece.clone())));
                        match what {
                            // A death before the commit: the same range is cut again.
                            0 if here.len() > 1 && alive[rank] => alive[rank] = false,
                            1 => { alive[rank] = true; break }
                            2 => {
                                let text = serde_json::to_string(&ledger).unwrap();
                                ledger = serde_json::from_str(&text).unwrap();
                                ledger.restore();
                            }
                            3 => { ledger.set_batch(1 + which % 30); break }
                            _ => break,
                        }
                    }
                    done.iter().for_each(|sample| seen[*sample as usize] += 1);
                    ledger.commit(range.end);
                }
                prop_assert!(seen.iter().all(|count| *count == 1), "{:?}", seen);
            }
        }
    }
}
