//! What one device's runs of one task say: time = startup + items × time an item.
//!
//! Runs are of very different sizes, and the time of a small one is nearly all overhead. So times are never averaged;
//! a line is fitted through them, by least squares of the *relative* error. Measured times scatter in proportion to
//! themselves, so that is how much each tells: small runs settle the overhead, large ones the time of an item.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::joint::Line;

/// What one device did in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) items: u64,
    pub(super) busy: Duration,
    pub(super) startup: Duration,
}

/// Runs remembered of one device and task.
const REMEMBERED: usize = 32;
/// A run counts half as much after so many later ones.
const HALF_LIFE: f64 = 4.0;
/// Measured times are taken to scatter by this part at least, even where few runs happen to agree better.
const SCATTER: f64 = 0.1;
/// The overhead of a run beyond its startup is not far above this many seconds, until runs say otherwise. It lets a
/// single long run tell the time of an item.
const USUAL_OVERHEAD: f64 = 1.0;
/// Shorter times than this are noise of the clock.
const SHORTEST: f64 = 1e-9;

/// Adds a sample and forgets one when there are too many: the oldest of the size that there are most of, so that any
/// number of small runs leaves the last large ones in memory.
pub(super) fn remember(samples: &mut Vec<Sample>, sample: Sample) {
    samples.push(sample);
    while samples.len() > REMEMBERED {
        let size = |sample: &Sample| sample.items.checked_ilog2().map_or(0, |log| 1 + log / 2);
        let alike =
            |index: &usize| samples.iter().filter(|other| size(other) == size(&samples[*index])).count();
        // The first of the largest: `max_by_key` would give the last.
        let oldest = (0..samples.len()).rev().max_by_key(alike).unwrap_or(0);
        samples.remove(oldest);
    }
}

/// The line through a device's runs, and how far it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    startup: f64,
    overhead: f64,
    per_item: f64,
    /// The least that a time per item may be without contradicting the runs.
    per_item_at_least: f64,
    /// How much less overhead explains the runs as well, for each second more an item.
    tilt: f64,
}

impl Fit {
    /// Nothing, where no run says how long items take.
    pub(super) fn of(samples: &[Sample]) -> Option<Fit> {
        let points = weigh(samples);
        if points.is_empty() {
            return None;
        }
        let mut solution = Solution::of(&points, |point| point.seconds);
        for _ in 0..8 {
            // Relative to what the line says rather than to what was measured: otherwise a time that came out short
            // would count for more than one that came out long, and a device that has become slower would not be
            // believed for a long time.
            solution = Solution::of(&points, |point| solution.overhead + solution.per_item * point.items);
        }
        let trusted = solution.error.is_finite() && solution.error * 4.0 <= solution.per_item;
        let least = (solution.per_item - 2.0 * solution.error).max(0.0);
        Some(Fit {
            startup: mean_startup(samples),
            overhead: solution.overhead,
            per_item: solution.per_item,
            per_item_at_least: if trusted { solution.per_item } else { least },
            tilt: solution.tilt,
        })
    }

    /// The line to decide by. Where the runs leave the time of an item open, the guess is taken as far as they allow
    /// it and as it is the faster one: a device that may be fast is tried, and one run then settles it.
    pub(super) fn line(&self, guess: Option<f64>) -> Line {
        let per_item = guess.unwrap_or(0.0).min(self.per_item).max(self.per_item_at_least);
        let overhead = (self.overhead + self.tilt * (self.per_item - per_item)).max(0.0);
        Line::new(self.startup + overhead, per_item)
    }

    /// Seconds an item, as well as the runs say it.
    pub(super) fn per_item(&self) -> Option<f64> {
        (self.per_item > 0.0).then_some(self.per_item)
    }

    /// Seconds an item, where the runs say it well enough to judge other devices by it.
    pub(super) fn trusted_per_item(&self) -> Option<f64> {
        self.per_item().filter(|per_item| self.per_item_at_least >= *per_item)
    }
}

#[derive(Clone, Copy, Debug)]
struct Point {
    items: f64,
    seconds: f64,
    weight: f64,
}

/// Halves the weight of a run for each so many later ones. Only runs of about its size or more count as later:
/// small runs have nothing to say about what a large one told.
fn weigh(samples: &[Sample]) -> Vec<Point> {
    let told = || samples.iter().enumerate().filter(|(_, sample)| sample.items > 0);
    let point = |(index, sample): (usize, &Sample)| {
        let later = samples[index + 1..].iter().filter(|later| later.items >= sample.items / 4).count();
        let seconds = sample.busy.as_secs_f64().max(SHORTEST);
        Point { items: sample.items as f64, seconds, weight: faded(later) }
    };
    told().map(point).collect()
}

/// The weight of a run after so many later ones.
fn faded(later: usize) -> f64 {
    0.5f64.powf(later as f64 / HALF_LIFE)
}

/// Seconds until the device is ready, whatever the number of items; zero where no run says.
pub(super) fn mean_startup(samples: &[Sample]) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (later, sample) in samples.iter().rev().enumerate() {
        let weight = faded(later);
        sum += weight * sample.startup.as_secs_f64();
        weights += weight;
    }
    if weights > 0.0 { sum / weights } else { 0.0 }
}

/// One weighted least-squares line.
#[derive(Clone, Copy, Debug)]
struct Solution {
    overhead: f64,
    per_item: f64,
    /// Standard error of `per_item`; infinite where all runs are of one size and short.
    error: f64,
    tilt: f64,
}

impl Solution {
    /// Minimises Σ weight × ((overhead + per_item × items − seconds) / scale)², with a weak pull of the overhead
    /// towards zero, for values that are not negative.
    fn of(points: &[Point], scale: impl Fn(&Point) -> f64) -> Solution {
        let (mut one, mut n, mut nn, mut y, mut ny, mut weights) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
        let weight = |point: &Point| point.weight / scale(point).max(SHORTEST).powi(2);
        for point in points {
            let weight = weight(point);
            one += weight;
            n += weight * point.items;
            nn += weight * point.items * point.items;
            y += weight * point.seconds;
            ny += weight * point.items * point.seconds;
            weights += point.weight;
        }
        one += (SCATTER / USUAL_OVERHEAD).powi(2);
        // 1 − the squared correlation of the two unknowns: zero where the runs cannot tell them apart.
        let apart = 1.0 - n / one * (n / nn);
        let distinct = apart > 1e-12;
        let (mut overhead, mut per_item) = (0.0, ny / nn);
        if distinct {
            overhead = (y - n * (ny / nn)) / (one * apart);
            per_item = (ny - n * (y / one)) / (nn * apart);
        }
        if overhead < 0.0 {
            (overhead, per_item) = (0.0, ny / nn);
        }
        if per_item < 0.0 {
            (overhead, per_item) = (y / one, 0.0);
        }
        let miss =
            |point: &Point| weight(point) * (overhead + per_item * point.items - point.seconds).powi(2);
        let scatter = (points.iter().map(miss).sum::<f64>() / weights).sqrt().max(SCATTER);
        let error = if distinct { scatter / (nn * apart).sqrt() } else { f64::INFINITY };
        Solution { overhead, per_item, error, tilt: n / one }
    }
}
