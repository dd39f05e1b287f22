//! What one device's runs of one task say: time = startup + items × time an item.
//!
//! Runs are of very different sizes, and the time of a small one is nearly all overhead. So times are never averaged;
//! a line is fitted through them, by least squares of the *relative* error. Measured times scatter in proportion to
//! themselves, so that is how much each tells: small runs settle the overhead, large ones the time of an item.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::joint::Line;
use crate::least_squares::Sums;

/// What one device did in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) items: u64,
    pub(super) busy: Duration,
    pub(super) startup: Duration,
    /// Whether it had to be made ready first.
    pub(super) cold: bool,
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
    line: Solution,
    /// The most items it did in a run.
    largest: f64,
    /// The longest that it took part in a run without doing an item, startup included.
    in_vain: f64,
}

impl Fit {
    /// The line of a device that has to be made ready first, or not. Nothing, where no run says how long items take.
    pub(super) fn of(samples: &[Sample], cold: bool) -> Option<Fit> {
        let points = weigh(samples);
        let largest = points.iter().map(|point| point.items).reduce(f64::max)?;
        let mut line = Solution::of(&points, |point| point.seconds);
        for _ in 0..8 {
            // Relative to what the line says rather than to what was measured: otherwise a time that came out short
            // would count for more than one that came out long, and a device that has become slower would not be
            // believed for a long time.
            line = Solution::of(&points, |point| line.overhead + line.per_item * point.items);
        }
        let startup = startup(samples, cold);
        let vain = samples.iter().filter(|sample| sample.items == 0 && sample.cold == cold);
        let in_vain = vain.map(|sample| sample.startup.saturating_add(sample.busy)).max().unwrap_or_default();
        Some(Fit { startup, line, largest, in_vain: in_vain.as_secs_f64() })
    }

    /// The line as it is most likely.
    pub(super) fn likely(&self) -> Line {
        self.with(self.line.per_item)
    }

    /// The line for about as many items as it has done. Where the runs were too much of one size to tell overhead
    /// from items, it is as little overhead as they allow: that keeps a device in the runs that it has done well in.
    /// But not less than it has worked in vain, or it would keep better ones out of small runs that it does not
    /// finish an item of, and so never learn.
    pub(super) fn near(&self) -> Line {
        let Solution { overhead, per_item, error, tilt } = self.line;
        let most = if self.is_trusted() { 0.0 } else { (overhead / tilt).min(2.0 * error) };
        let not_in_vain = (self.startup + overhead - self.in_vain) / tilt;
        self.with(per_item + not_in_vain.min(most).max(-per_item).max(-2.0 * error))
    }

    /// The line for many more items than it has done. Where its runs were too small to tell the time of an item, the
    /// guess is taken as far as they allow it and as it is the faster one, or the fastest that they allow: a device
    /// that may be fast is tried, and one run then settles it.
    pub(super) fn beyond(&self, guess: Option<f64>) -> Line {
        if self.is_trusted() {
            return self.likely();
        }
        let least = (self.line.per_item - 2.0 * self.line.error).max(0.0);
        self.with(guess.unwrap_or(0.0).min(self.line.per_item).max(least))
    }

    /// Whether so many items are far more than it has done in any run that is remembered.
    pub(super) fn is_beyond(&self, items: f64) -> bool {
        items > self.largest * 4.0
    }

    /// Seconds an item, as well as the runs say it.
    pub(super) fn per_item(&self) -> Option<f64> {
        Some(self.line.per_item).filter(|per_item| *per_item > 0.0)
    }

    /// Seconds an item, where the runs say it well enough to judge other devices by it.
    pub(super) fn trusted_per_item(&self) -> Option<f64> {
        self.per_item().filter(|_| self.is_trusted())
    }

    fn is_trusted(&self) -> bool {
        self.line.error * 4.0 <= self.line.per_item
    }

    /// The line with another time an item, and the overhead that explains the runs best with it.
    fn with(&self, per_item: f64) -> Line {
        let overhead = self.line.overhead + self.line.tilt * (self.line.per_item - per_item);
        Line::new(self.startup + overhead.max(0.0), per_item)
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

/// Seconds until a device is ready that never did an item: at least as long as it is known to have had none done.
/// Zero where it never took part.
pub(super) fn without_an_item(samples: &[Sample], cold: bool) -> f64 {
    mean(samples, cold, |sample| sample.startup.saturating_add(sample.busy))
}

/// Seconds until a device is ready that has to be made ready first, or not. Zero where it never took part so.
pub(super) fn startup(samples: &[Sample], cold: bool) -> f64 {
    mean(samples, cold, |sample| sample.startup)
}

/// The mean of times that do not depend on the number of items, in seconds, the last ones weighing most; of runs that
/// began alike, cold or not.
fn mean(samples: &[Sample], cold: bool, time: impl Fn(&Sample) -> Duration) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (later, sample) in samples.iter().rev().filter(|sample| sample.cold == cold).enumerate() {
        let weight = faded(later);
        sum += weight * time(sample).as_secs_f64();
        weights += weight;
    }
    if weights > 0.0 { sum / weights } else { 0.0 }
}

/// One weighted least-squares line.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Solution {
    overhead: f64,
    per_item: f64,
    /// Standard error of `per_item`; infinite where all runs are of one size and short.
    error: f64,
    /// How much less overhead explains the runs as well, for each second more an item.
    tilt: f64,
}

impl Solution {
    /// Minimises Σ weight × ((overhead + per_item × items − seconds) / scale)², with a weak pull of the overhead
    /// towards zero, for values that are not negative.
    fn of(points: &[Point], scale: impl Fn(&Point) -> f64) -> Solution {
        let weight = |point: &Point| point.weight / scale(point).max(SHORTEST).powi(2);
        let mut sums = Sums::default();
        points.iter().for_each(|point| sums.add(point.items, point.seconds, weight(point)));
        sums.pull((SCATTER / USUAL_OVERHEAD).powi(2));
        let solved = sums.solve(1e-12);
        let (mut overhead, mut per_item) = solved.unwrap_or((0.0, sums.per_item()));
        if overhead < 0.0 {
            (overhead, per_item) = (0.0, sums.per_item());
        }
        if per_item < 0.0 {
            (overhead, per_item) = (sums.overhead(), 0.0);
        }
        let miss =
            |point: &Point| weight(point) * (overhead + per_item * point.items - point.seconds).powi(2);
        let weights: f64 = points.iter().map(|point| point.weight).sum();
        let scatter = (points.iter().map(miss).sum::<f64>() / weights).sqrt().max(SCATTER);
        let error = if solved.is_some() { scatter * sums.error() } else { f64::INFINITY };
        Solution { overhead, per_item, error, tilt: sums.tilt() }
    }
}
