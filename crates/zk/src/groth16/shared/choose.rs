//! The choice between a proof on one device and one that several devices share.

use std::time::Duration;

/// The fraction of the time of proofs that may be spent on trying the way that was slower so far.
const TRIAL_FRACTION: f64 = 0.02;
/// The weight of the last proof in the expected time.
const RECENT: f64 = 0.4;
/// A slower proof than this many times the expected time counts as one of this time: otherwise one proof that was interrupted,
/// or that the host had to compute again, would rule its way out for thousands of proofs.
const MAX_SLOWDOWN: f64 = 2.0;
/// Proofs of a way that are timed before it is judged.
const ENOUGH: u32 = 2;
/// Proofs during which devices were still being prepared count after so many in a row.
const MAX_UNSETTLED: u32 = 4;

/// How a single proof is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Split {
    /// By whichever of the two was faster for earlier proofs. The other one is tried from time to time, for at most 2 % of
    /// the time.
    #[default]
    Auto,
    /// By one device.
    Whole,
    /// By all devices together: the sums of the proof are divided among them by their measured rates.
    Shared,
}

/// One of the two ways to make a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Way {
    Whole,
    Shared,
}

/// Chooses between the two ways by their measured times. It has no clock of its own.
#[derive(Debug, Default)]
pub(in super::super) struct Chooser {
    whole: Times,
    shared: Times,
    /// Seconds that trials of the slower way may cost.
    budget: f64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Times {
    /// Expected seconds.
    expected: f64,
    counted: u32,
    unsettled: u32,
}

impl Chooser {
    /// Returns how the next proof should be made. While devices are still being prepared, they are not waited for.
    pub(in super::super) fn choose(&self, is_preparing: bool) -> Way {
        if self.whole.counted < ENOUGH || is_preparing && self.shared.unsettled < MAX_UNSETTLED {
            return Way::Whole;
        }
        if self.shared.counted < ENOUGH {
            return Way::Shared;
        }
        let difference = self.shared.expected - self.whole.expected;
        let (faster, slower) =
            if difference < 0.0 { (Way::Shared, Way::Whole) } else { (Way::Whole, Way::Shared) };
        if self.budget >= difference.abs() { slower } else { faster }
    }

    /// Learns the time of a proof. `is_settled` says whether no device was being prepared during it.
    pub(in super::super) fn record(&mut self, way: Way, took: Duration, is_settled: bool) {
        let took = took.as_secs_f64();
        let (own, other) = match way {
            Way::Whole => (&mut self.whole, self.shared),
            Way::Shared => (&mut self.shared, self.whole),
        };
        if !is_settled && own.unsettled < MAX_UNSETTLED {
            own.unsettled += 1;
            return;
        }
        own.unsettled = 0;
        own.expected = match own.counted {
            0 => took,
            // The first proofs may contain what happens once, such as the allocation of memory: the fastest counts.
            counted if counted < ENOUGH => own.expected.min(took),
            _ => own.expected + (took.min(own.expected * MAX_SLOWDOWN) - own.expected) * RECENT,
        };
        own.counted += 1;
        if other.counted < ENOUGH {
            return;
        }
        // A trial uses up what it cost, and every proof earns a little. At most one trial is saved up for.
        let cost = (took - other.expected).max(0.0);
        let difference = (self.shared.expected - self.whole.expected).abs();
        self.budget = (self.budget - cost + took * TRIAL_FRACTION).clamp(0.0, difference);
    }
}

#[cfg(test)]
mod test {
    use ark_std::rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    fn milliseconds(time: f64) -> Duration {
        Duration::from_secs_f64(time / 1e3)
    }

    /// Makes proofs of which each way takes so long, and returns how many were shared, and the time of all.
    fn prove(chooser: &mut Chooser, proofs: usize, mut takes: impl FnMut(Way) -> f64) -> (usize, f64) {
        let (mut shared, mut total) = (0, 0.0);
        for _ in 0..proofs {
            let way = chooser.choose(false);
            let time = takes(way);
            shared += usize::from(way == Way::Shared);
            total += time;
            chooser.record(way, milliseconds(time), true);
        }
        (shared, total)
    }

    #[test]
    fn the_first_proofs_are_whole_and_then_both_ways_are_measured() {
        let mut chooser = Chooser::default();
        let ways: Vec<Way> = (0..4)
            .map(|_| {
                let way = chooser.choose(false);
                chooser.record(way, milliseconds(10.0), true);
                way
            })
            .collect();
        assert_eq!(ways, [Way::Whole, Way::Whole, Way::Shared, Way::Shared]);
    }

    #[test]
    fn times_while_devices_are_prepared_do_not_count_for_long() {
        let mut chooser = Chooser::default();
        prove(&mut chooser, 2, |_| 10.0);
        for _ in 0..MAX_UNSETTLED {
            assert_eq!(chooser.choose(false), Way::Shared);
            assert_eq!(chooser.choose(true), Way::Whole, "no proof waits for a device");
            chooser.record(Way::Shared, milliseconds(1000.0), false);
        }
        assert_eq!(chooser.shared.counted, 0);
        assert_eq!(chooser.choose(true), Way::Shared, "a device that is never ready is not waited for");
        chooser.record(Way::Shared, milliseconds(5.0), false);
        assert_eq!(chooser.shared.counted, 1);
    }

    #[test]
    fn one_slow_proof_does_not_rule_out_the_faster_way() {
        for slow in [0, 1, 7] {
            let (mut chooser, mut shared) = (Chooser::default(), 0);
            prove(&mut chooser, 60, |way| {
                shared += usize::from(way == Way::Shared);
                match way {
                    Way::Whole => 20.0,
                    Way::Shared if shared == slow + 1 => 3000.0,
                    Way::Shared => 10.0,
                }
            });
            let (used, _) = prove(&mut chooser, 100, |way| if way == Way::Whole { 20.0 } else { 10.0 });
            assert!(used > 90, "shared proof {slow} was slow, and then {used} of 100 are shared");
        }
    }

    /// Whatever the two ways take, the slower one is tried, and all trials together cost little. If the order of the two
    /// changes, that is noticed.
    #[test]
    fn the_faster_way_is_used_and_trials_cost_little() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let whole = 10f64.powf(random.gen_range(0.0..3.0));
            let shared = whole * 2f64.powf(random.gen_range(-3.0..3.0));
            let noise = random.gen_range(0.0..0.05);
            let mut takes = |way, factor: f64| {
                let time = if way == Way::Whole { whole } else { shared * factor };
                time * (1.0 + random.gen_range(-noise..=noise))
            };
            let mut chooser = Chooser::default();
            let proofs = 2000;
            let (tried, total) = prove(&mut chooser, proofs, |way| takes(way, 1.0));
            let best = whole.min(shared) * proofs as f64;
            let first = 2.0 * (whole - shared).abs();
            let bound = best * (1.0 + noise) * (1.0 + 2.0 * TRIAL_FRACTION) + first + whole.max(shared) * 2.0;
            assert!(total <= bound, "seed {seed}: {total} ms, at most {bound} are allowed");
            assert!((2..=proofs - 2).contains(&tried), "seed {seed}: both ways are tried: {tried}");
            // Now the other way is twice as fast as the one that was best.
            let factor = if shared < whole { 2.0 * whole / shared } else { whole / shared / 2.0 };
            prove(&mut chooser, 3000, |way| takes(way, factor));
            let (used, _) = prove(&mut chooser, 100, |way| takes(way, factor));
            let now_shared = shared * factor < whole;
            assert_eq!(used > 50, now_shared, "seed {seed}: {used} of 100 shared");
        }
    }
}
