//! Which way a loop is run: a decision without clock or threads, told how long earlier runs took.

use std::time::Duration;

/// A way to run a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// On the calling thread.
    Plain,
    /// On the processor's cores.
    Threads,
    /// On every device of the pool.
    Devices,
}

/// Sizes are kept apart by their number of bits.
const SIZES: usize = 64;

/// A loop shorter than this is not worth waking threads for.
const THREADS_PAY: f64 = 30e-6;

/// A loop shorter than this is not worth a device.
const DEVICES_PAY: f64 = 2e-3;

/// After so many runs of one size, another way is tried again.
const TRY_AGAIN: u32 = 256;

/// What is known of a loop: the time per iteration of each way and size.
#[derive(Debug)]
pub(crate) struct Choice {
    seconds_per_iteration: [[Option<f64>; SIZES]; 3],
    runs: [u32; SIZES],
}

impl Choice {
    pub(crate) const fn new() -> Self {
        Choice { seconds_per_iteration: [[None; SIZES]; 3], runs: [0; SIZES] }
    }

    fn size(count: usize) -> usize {
        (usize::BITS - count.leading_zeros()) as usize % SIZES
    }

    /// The time that a way is expected to take: from runs of this size, or from the nearest within a factor of 16.
    fn expected(&self, way: Way, count: usize) -> Option<f64> {
        let (size, known) = (Self::size(count), &self.seconds_per_iteration[way as usize]);
        let near = (0..=4usize).find_map(|step| {
            let below = size.checked_sub(step).and_then(|size| known[size]);
            below.or_else(|| known.get(size + step).copied().flatten())
        });
        near.map(|seconds| seconds * count as f64)
    }

    /// Decides how to run this many iterations.
    pub(crate) fn choose(&mut self, count: usize, allowed: &[Way]) -> Way {
        let size = Self::size(count);
        self.runs[size] = self.runs[size].wrapping_add(1);
        let may = |way: &Way| allowed.contains(way);
        let known: Vec<(Way, f64)> =
            allowed.iter().filter_map(|way| Some((*way, self.expected(*way, count)?))).collect();
        let Some(&(best, time)) = known.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else {
            // Nothing is known: the plain loop shows what an iteration costs, unless there are many.
            let is_short = count < 1 << 14;
            return match is_short && may(&Way::Plain) {
                true => Way::Plain,
                false if may(&Way::Threads) => Way::Threads,
                false => allowed.first().copied().unwrap_or(Way::Plain),
            };
        };
        let is_known = |way: Way| known.iter().any(|(it, _)| *it == way);
        for (way, pays) in [(Way::Threads, THREADS_PAY), (Way::Devices, DEVICES_PAY)] {
            if may(&way) && time > pays && (!is_known(way) || self.runs[size].is_multiple_of(TRY_AGAIN)) {
                return way;
            }
        }
        best
    }

    /// Learns how long a run took.
    pub(crate) fn learn(&mut self, way: Way, count: usize, took: Duration) {
        let seconds = took.as_secs_f64() / count.max(1) as f64;
        let known = &mut self.seconds_per_iteration[way as usize][Self::size(count)];
        // The first run on a device includes compiling.
        *known = Some(known.map_or(seconds, |before| before.min(0.7 * before + 0.3 * seconds)));
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const ALL: &[Way] = &[Way::Plain, Way::Threads, Way::Devices];

    /// Runs a loop of this size often, with these times per iteration and per start.
    fn settle(choice: &mut Choice, count: usize, costs: [(f64, f64); 3]) -> Vec<Way> {
        let mut chosen = Vec::new();
        for _ in 0..200 {
            let way = choice.choose(count, ALL);
            let (start, each) = costs[way as usize];
            choice.learn(way, count, Duration::from_secs_f64(start + each * count as f64));
            chosen.push(way);
        }
        chosen
    }

    #[test]
    fn short_loops_stay_on_the_calling_thread() {
        let chosen = settle(&mut Choice::new(), 100, [(0.0, 1e-9), (20e-6, 1e-9), (1e-3, 1e-10)]);
        assert!(chosen.iter().all(|way| *way == Way::Plain));
    }

    #[test]
    fn long_loops_come_to_the_fastest_way() {
        let chosen = settle(&mut Choice::new(), 10_000_000, [(0.0, 4e-9), (20e-6, 1e-9), (1e-3, 2e-10)]);
        assert!(chosen[20..].iter().all(|way| *way == Way::Devices));
        let chosen = settle(&mut Choice::new(), 10_000_000, [(0.0, 4e-9), (20e-6, 1e-9), (1e-3, 3e-9)]);
        assert!(chosen[20..].iter().filter(|way| **way == Way::Threads).count() > 170);
    }

    #[test]
    fn only_allowed_ways_are_chosen() {
        let mut choice = Choice::new();
        let mut seed = 1u64;
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let allowed = &ALL[..1 + (seed >> 40) as usize % 3];
            let count = 1 << ((seed >> 50) % 30);
            let way = choice.choose(count, allowed);
            assert!(allowed.contains(&way));
            choice.learn(way, count, Duration::from_nanos((seed >> 20) % 1_000_000_000));
        }
    }
}
