//! The fit of one device's runs of one task: time = startup + items × time per item.
//!
//! Runs have very different sizes, and the time of a small one is nearly all overhead. So times are never averaged; a
//! line is fitted by least squares of the *relative* error. Measured times scatter in proportion to themselves, so this
//! is how much each tells: small runs the overhead, large ones the time per item.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::joint::CostLine;
use crate::least_squares::Sums;

/// One device's work in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) items: u64,
    pub(super) busy: Duration,
    pub(super) startup: Duration,
    /// Whether it had to be prepared first.
    pub(super) cold: bool,
}

/// Maximum number of samples of one device and task.
const MAX_SAMPLES: usize = 32;
/// A run counts half as much after this many later ones.
const HALF_LIFE: f64 = 4.0;
/// Minimum relative scatter of measured times, even if a few runs happen to agree better.
const SCATTER: f64 = 0.1;
/// Typical overhead of a run beyond its startup, in seconds, until runs say otherwise. With it, a single long run tells
/// the time per item.
const TYPICAL_OVERHEAD: f64 = 1.0;
/// Shorter times are noise of the clock.
const MIN_SECONDS: f64 = 1e-9;

/// Adds a sample, and drops one if there are too many: the oldest of the most frequent size, so that many small runs
/// leave the last large ones.
pub(super) fn remember(samples: &mut Vec<Sample>, sample: Sample) {
    samples.push(sample);
    while samples.len() > MAX_SAMPLES {
        let size = |sample: &Sample| sample.items.checked_ilog2().map_or(0, |log| 1 + log / 2);
        let alike =
            |index: &usize| samples.iter().filter(|other| size(other) == size(&samples[*index])).count();
        // The first of the maxima: `max_by_key` returns the last.
        let oldest = (0..samples.len()).rev().max_by_key(alike).unwrap_or(0);
        samples.remove(oldest);
    }
}

/// The cost line through a device's runs, and its precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    startup: f64,
    line: Regression,
    /// The largest number of items in a run.
    largest: f64,
    /// The longest time in a run without finishing an item, startup included.
    unproductive: f64,
}

impl Fit {
    /// Fits the runs of a device that has to be prepared first, or not. `None` if no run tells the time of items.
    pub(super) fn of(samples: &[Sample], cold: bool) -> Option<Fit> {
        let points = weigh(samples);
        let largest = points.iter().map(|point| point.items).reduce(f64::max)?;
        let mut line = Regression::of(&points, |point| point.seconds);
        for _ in 0..8 {
            // Relative to the line and not to the measurement: otherwise a time that came out short would count for
            // more than one that came out long, and a device that has become slower would not be believed for a long
            // time.
            line = Regression::of(&points, |point| line.overhead + line.per_item * point.items);
        }
        let startup = startup(samples, cold);
        let vain = samples.iter().filter(|sample| sample.items == 0 && sample.cold == cold);
        let unproductive =
            vain.map(|sample| sample.startup.saturating_add(sample.busy)).max().unwrap_or_default();
        Some(Fit { startup, line, largest, unproductive: unproductive.as_secs_f64() })
    }

    /// The most likely line.
    pub(super) fn likely(&self) -> CostLine {
        self.with(self.line.per_item)
    }

    /// The line for about as many items as in the runs. If their sizes are too similar to tell overhead from items, it
    /// has the least overhead that they allow, which keeps a device in the runs that it has done well in. But the
    /// overhead is not less than the unproductive time: otherwise the device would keep better ones out of small runs
    /// of which it finishes no item, and so never learn.
    pub(super) fn in_range(&self) -> CostLine {
        let Regression { overhead, per_item, error, tilt } = self.line;
        let most = if self.is_trusted() { 0.0 } else { (overhead / tilt).min(2.0 * error) };
        let not_in_vain = (self.startup + overhead - self.unproductive) / tilt;
        self.with(per_item + not_in_vain.min(most).max(-per_item).max(-2.0 * error))
    }

    /// The line for many more items than in the runs. If the runs were too small to tell the time per item, it is the
    /// guess, as far as the runs allow it and if it is faster, or the fastest that they allow: a device that may be
    /// fast is tried, and one run then settles it.
    pub(super) fn extrapolated(&self, guess: Option<f64>) -> CostLine {
        if self.is_trusted() {
            return self.likely();
        }
        let least = (self.line.per_item - 2.0 * self.line.error).max(0.0);
        self.with(guess.unwrap_or(0.0).min(self.line.per_item).max(least))
    }

    /// Whether this many items are far more than in any remembered run.
    pub(super) fn is_beyond(&self, items: f64) -> bool {
        items > self.largest * 4.0
    }

    /// Seconds per item, by the most likely line. `None` if the runs do not show any.
    pub(super) fn per_item(&self) -> Option<f64> {
        Some(self.line.per_item).filter(|per_item| *per_item > 0.0)
    }

    /// Seconds per item, if the runs are precise enough to judge other devices by it.
    pub(super) fn trusted_per_item(&self) -> Option<f64> {
        self.per_item().filter(|_| self.is_trusted())
    }

    fn is_trusted(&self) -> bool {
        self.line.error * 4.0 <= self.line.per_item
    }

    /// The line with another time per item, and the overhead that then explains the runs best.
    fn with(&self, per_item: f64) -> CostLine {
        let overhead = self.line.overhead + self.line.tilt * (self.line.per_item - per_item);
        CostLine::new(self.startup + overhead.max(0.0), per_item)
    }
}

#[derive(Clone, Copy, Debug)]
struct Point {
    items: f64,
    seconds: f64,
    weight: f64,
}

/// Weighs runs: each later one reduces a run's weight. Only runs of about its size or larger count as later, because
/// small runs say nothing about a large one.
fn weigh(samples: &[Sample]) -> Vec<Point> {
    let told = || samples.iter().enumerate().filter(|(_, sample)| sample.items > 0);
    let point = |(index, sample): (usize, &Sample)| {
        let later = samples[index + 1..].iter().filter(|later| later.items >= sample.items / 4).count();
        let seconds = sample.busy.as_secs_f64().max(MIN_SECONDS);
        Point { items: sample.items as f64, seconds, weight: decay(later) }
    };
    told().map(point).collect()
}

/// The weight of a run after `later` later ones.
fn decay(later: usize) -> f64 {
    0.5f64.powf(later as f64 / HALF_LIFE)
}

/// Seconds until a device without finished items is ready: at least as long as its runs without an item. Zero without
/// runs.
pub(super) fn startup_without_items(samples: &[Sample], cold: bool) -> f64 {
    mean(samples, cold, |sample| sample.startup.saturating_add(sample.busy))
}

/// Seconds until a device that has to be prepared first, or not, is ready. Zero without such runs.
pub(super) fn startup(samples: &[Sample], cold: bool) -> f64 {
    mean(samples, cold, |sample| sample.startup)
}

/// The weighted mean of times that do not depend on the number of items, in seconds, of cold runs or of warm ones.
/// Later runs count more.
fn mean(samples: &[Sample], cold: bool, time: impl Fn(&Sample) -> Duration) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (later, sample) in samples.iter().rev().filter(|sample| sample.cold == cold).enumerate() {
        let weight = decay(later);
        sum += weight * time(sample).as_secs_f64();
        weights += weight;
    }
    if weights > 0.0 { sum / weights } else { 0.0 }
}

/// One weighted least-squares line.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Regression {
    overhead: f64,
    per_item: f64,
    /// Standard error of `per_item`; infinite where all runs are of one size and short.
    error: f64,
    /// The trade-off between the two values: a line with one second more per item fits the runs as well with this many
    /// seconds less overhead.
    tilt: f64,
}

impl Regression {
    /// Minimises Σ weight × ((overhead + per_item × items − seconds) / scale)², with a weak pull of the overhead
    /// towards zero, for values that are not negative.
    fn of(points: &[Point], scale: impl Fn(&Point) -> f64) -> Regression {
        let weight = |point: &Point| point.weight / scale(point).max(MIN_SECONDS).powi(2);
        let mut sums = Sums::default();
        points.iter().for_each(|point| sums.add(point.items, point.seconds, weight(point)));
        sums.pull((SCATTER / TYPICAL_OVERHEAD).powi(2));
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
        Regression { overhead, per_item, error, tilt: sums.tilt() }
    }
}
