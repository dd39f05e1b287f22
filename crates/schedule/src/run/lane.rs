//! The state of one lane: its speed, its chunks in flight, and its quarantine.

use std::time::Duration;

use super::{Expected, LaneSpec, Time, quarantine::Quarantine};
use crate::least_squares::Sums;

/// Time before the end of a lane's device in which it computes nothing: clocks differ, and copies take their time.
const END_MARGIN: Duration = Duration::from_secs(2);
/// The part of the time before that end that a chunk may be expected to take: it may take longer.
const END_CAUTION: f64 = 0.5;

/// Maximum chunks in flight on a lane.
const MAX_DEPTH: usize = 16;

/// One lane of a run.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) quarantine: Quarantine,
    /// Whether its next chunk is a canary.
    pub(super) on_trial: bool,
    /// Whether it has asked for work: until then its device is being prepared, for an unknown time.
    pub(super) has_asked: bool,
    /// Whether its device is still to come.
    pub(super) is_awaited: bool,
    /// When its device is taken away, if that is known.
    pub(super) ends_at: Option<Time>,
    pub(super) in_flight: usize,
    /// The cost of all its chunks in flight.
    pub(super) load: f64,
    /// Whether it has found nothing to steal since its last chunk.
    pub(super) found_nothing: bool,
    /// When it finished its last chunk, or got one after it had none.
    pub(super) busy_since: Time,
    /// Maximum chunks in flight.
    pub(super) depth: usize,
    pub(super) may_hang: bool,
    /// Whether other lanes can steal items of a chunk that it has not begun.
    pub(super) divisible: bool,
    /// Its strength relative to other lanes, used until its speed is measured.
    pub(super) score: f64,
    /// Overhead of a chunk in seconds, used until it is measured.
    pub(super) launch: f64,
    /// Maximum items in a chunk.
    pub(super) max_items: u64,
    /// Maximum items in a chunk since one exceeded the user's limit: half of that one, doubled by every chunk that takes less
    /// than a quarter of the limit.
    pub(super) max_within_limit: u64,
    /// Maximum items per call of the task. If the lane splits chunks into parts of this size, a chunk may have more.
    pub(super) at_once: u64,
    splits_chunks: bool,
    regrowth: Regrowth,
    /// The cost of the largest chunk that it has finished.
    pub(super) largest: f64,
    /// The part of its share of a fixed split that is not handed out.
    pub(super) share: Option<std::ops::Range<u64>>,
    speed: Speed,
    /// Its pace, once known: computed after every chunk.
    pub(super) pace: Option<Pace>,
}

/// How the maximum number of items at once grows back after a chunk did not fit into memory.
#[derive(Debug, Clone, Copy)]
struct Regrowth {
    /// The maximum without that failure.
    full: u64,
    /// Chunks of the present maximum that fit since it changed, and how many of them double it.
    fitted: u32,
    needed: u32,
    has_grown: bool,
}

impl Regrowth {
    /// Chunks that double the maximum after the first failure. Each failure after it has grown doubles this number, up to the
    /// second: other programs may free memory, but trying costs a chunk.
    const FIRST: u32 = 8;
    const MOST: u32 = 1024;
}

/// Time per item over all chunks, recent ones weighted more: as in adaptive weighted factoring, but with weights that decay
/// geometrically, so that a change of speed is known after a few chunks.
#[derive(Debug, Clone, Copy, Default)]
struct Speed {
    /// The sum of the weights of all chunks.
    chunks: f64,
    weighted_time: f64,
    weighted_items: f64,
    /// How many chunks in a row took far longer than expected. Negative if they took far less.
    surprises: i32,
    fit: CostFit,
    /// Whether a chunk of this run was measured.
    is_measured: bool,
    expected: Option<Expected>,
}

impl Speed {
    /// Starts from earlier measurements, with the weight of a small part of a large chunk: more than that of a few small chunks
    /// that happen to be cheap or expensive.
    fn of(expected: Option<Expected>) -> Speed {
        let Some(Expected { seconds_per_item, largest, .. }) = expected else { return Speed::default() };
        let items = largest.max(1.0) / 16.0;
        Speed {
            chunks: 1.0 / 16.0,
            weighted_time: items * seconds_per_item,
            weighted_items: items,
            expected,
            ..Speed::default()
        }
    }

    /// Time per item after subtracting this overhead from each chunk. With unequal items, a line through small chunks gives
    /// far too little.
    fn seconds_per_item_without(&self, overhead: f64) -> f64 {
        ((self.weighted_time - overhead * self.chunks) / self.weighted_items.max(f64::MIN_POSITIVE)).max(0.0)
    }
}

/// The line `time = overhead + cost × time per item` through all chunks, by least squares of the relative error: small
/// chunks determine the overhead, and a disturbed one counts little.
#[derive(Debug, Clone, Copy, Default)]
struct CostFit {
    sums: Sums,
    /// The shortest time of any chunk, which is an upper bound of the overhead.
    shortest: Option<f64>,
}

impl CostFit {
    /// Shorter times than this, in seconds, are noise of the clock.
    const SHORTEST: f64 = 1e-7;

    fn add(&mut self, cost: f64, took: f64) {
        self.sums.add(cost, took, took.max(Self::SHORTEST).powi(-2));
        self.shortest = Some(self.shortest.map_or(took, |shortest| shortest.min(took)));
    }

    /// The overhead of a chunk and the time per item, or `None` if all chunks had the same size.
    fn solve(&self) -> Option<(f64, f64)> {
        let (overhead, each) = self.sums.solve(1e-9)?;
        // After a change of speed, the line fits no chunk.
        let most = self.shortest.unwrap_or(f64::INFINITY);
        Some((overhead.clamp(0.0, most), each.max(0.0)))
    }
}

impl Lane {
    /// Creates a lane with at most `at_once` items per call of the task. With `in_parts`, a lane that others can steal from
    /// gets larger chunks, and splits them itself.
    pub(super) fn new(spec: &LaneSpec, at_once: Option<u64>, in_parts: bool) -> Self {
        let splits_chunks = in_parts && spec.divisible && !spec.may_hang;
        let (most, at_once) = (spec.max_items.unwrap_or(u64::MAX), at_once.unwrap_or(u64::MAX));
        let usable = |it: &Expected| it.seconds_per_item > 0.0 && it.seconds_per_item.is_finite();
        let expected = spec.expected.filter(usable);
        let mut lane = Lane {
            quarantine: Quarantine::new(),
            on_trial: false,
            has_asked: false,
            is_awaited: false,
            ends_at: None,
            in_flight: 0,
            load: 0.0,
            found_nothing: false,
            busy_since: Time::ZERO,
            depth: spec.depth.clamp(1, MAX_DEPTH),
            may_hang: spec.may_hang,
            divisible: spec.divisible,
            score: if spec.score.is_finite() { spec.score.max(1e-9) } else { 1.0 },
            launch: if spec.launch_seconds.is_finite() { spec.launch_seconds.max(0.0) } else { 0.0 },
            max_items: if splits_chunks { most } else { most.min(at_once) }.max(1),
            at_once: if splits_chunks { at_once.max(1) } else { u64::MAX },
            splits_chunks,
            regrowth: Regrowth { full: u64::MAX, fitted: 0, needed: Regrowth::FIRST, has_grown: false },
            max_within_limit: u64::MAX,
            largest: expected.map_or(0.0, |it| it.largest.max(0.0)),
            share: None,
            speed: Speed { fit: cost_fit_of(expected), ..Speed::of(expected) },
            pace: None,
        };
        lane.regrowth.full = *lane.most_at_once();
        lane.pace = lane.current_pace();
        lane
    }

    /// The maximum number of items at once.
    fn most_at_once(&mut self) -> &mut u64 {
        if self.splits_chunks { &mut self.at_once } else { &mut self.max_items }
    }

    /// Lowers the maximum number of items at once for the rest of the run.
    pub(super) fn limit(&mut self, items: u64) {
        self.regrowth.full = self.regrowth.full.min(items.max(1));
        let full = self.regrowth.full;
        let most = self.most_at_once();
        *most = full.min(*most);
    }

    /// Lowers the maximum number of items at once, because more did not fit into memory. It [grows](Lane::note_fit) again.
    pub(super) fn shrink(&mut self, items: u64) {
        let most = self.most_at_once();
        *most = items.max(1).min(*most);
        self.regrowth.fitted = 0;
        if std::mem::take(&mut self.regrowth.has_grown) {
            self.regrowth.needed = (self.regrowth.needed * 2).min(Regrowth::MOST);
        }
    }

    /// Doubles the maximum that [`shrink`](Lane::shrink) has lowered once enough chunks of that size have fitted.
    pub(super) fn note_fit(&mut self, items: u64) {
        let most = *self.most_at_once();
        if most >= self.regrowth.full || items < most {
            return;
        }
        self.regrowth.fitted += 1;
        if self.regrowth.fitted >= self.regrowth.needed {
            (self.regrowth.fitted, self.regrowth.has_grown) = (0, true);
            *self.most_at_once() = most.saturating_mul(2).min(self.regrowth.full);
        }
    }

    /// A chunk that kept its lane busy for this part of its time ran alone.
    const ALONE: f64 = 0.9;
    /// Of chunks that take less than this, in seconds, overhead is a large part.
    const BRIEF: f64 = 2e-3;
    /// The factor of the weights of earlier chunks when another one ends.
    const DECAY: f64 = 0.9;
    /// The same after several chunks in a row that took far longer or shorter than expected, by the factor below.
    const FAST_DECAY: f64 = 0.4;
    const SURPRISE: f64 = 1.5;

    /// Learns from a chunk that kept the lane busy for `took` and ended `latency` after it was handed out.
    pub(super) fn learn(&mut self, cost: f64, took: Duration, latency: Duration) {
        let took = took.as_secs_f64().max(1e-9);
        let expected = self.pace.map_or(took, |pace| pace.time_of(cost));
        let speed = &mut self.speed;
        speed.is_measured = true;
        speed.surprises = match took / expected {
            slow if slow > Self::SURPRISE => speed.surprises.max(0) + 1,
            fast if fast < Self::SURPRISE.recip() => speed.surprises.min(0) - 1,
            _ => 0,
        };
        // One chunk may have had expensive items; several in a row show a change of speed.
        let decay = if speed.surprises.abs() > 1 { Self::FAST_DECAY } else { Self::DECAY };
        speed.chunks = speed.chunks * decay + 1.0;
        speed.weighted_time = speed.weighted_time * decay + took;
        speed.weighted_items = speed.weighted_items * decay + cost;
        // A chunk that overlapped another one does not show the overhead, except if all are brief and take turns. The
        // expected time decides which are brief: chunks that happened to end soon would bias the overhead down.
        let latency = latency.as_secs_f64();
        let likely = cost * speed.weighted_time / speed.weighted_items.max(f64::MIN_POSITIVE);
        let takes_turns = likely < Self::BRIEF && took * 2.0 * self.depth as f64 >= latency;
        if took >= latency * Self::ALONE || takes_turns {
            speed.fit.add(cost, took);
        }
        self.largest = self.largest.max(cost);
        self.pace = self.current_pace();
    }

    /// Seconds per item of mean cost, overhead included, once it is known.
    pub(super) fn seconds_per_item(&self) -> Option<f64> {
        let Speed { weighted_time, weighted_items, .. } = self.speed;
        (weighted_items > 0.0).then(|| weighted_time / weighted_items)
    }

    /// Items of mean cost per second, once it is known.
    pub(super) fn rate(&self) -> Option<f64> {
        self.seconds_per_item().map(f64::recip)
    }

    /// Overhead of a chunk in seconds.
    pub(super) fn overhead(&self) -> f64 {
        self.speed.fit.solve().map_or(self.launch, |(overhead, _)| overhead)
    }

    /// Whether chunks of different sizes have shown the overhead.
    pub(super) fn knows_overhead(&self) -> bool {
        self.speed.fit.solve().is_some()
    }

    fn current_pace(&self) -> Option<Pace> {
        let each = self.seconds_per_item()?;
        let overhead = self.overhead();
        if self.speed.is_measured {
            let mean_chunk = self.speed.weighted_items / self.speed.chunks;
            // The measured overhead is at most the mean time of a chunk.
            let overhead = overhead.min(each * mean_chunk);
            let slope = self.speed.fit.solve().map_or(0.0, |(_, slope)| slope);
            return Some(Pace {
                overhead,
                each: self.speed.seconds_per_item_without(overhead).max(slope.min(each)).max(1e-15),
            });
        }
        let largest = self.speed.expected.map_or(1.0, |expected| expected.largest).max(1.0);
        Some(Pace { overhead, each: (each - overhead / largest).max(each * 0.01).max(1e-15) })
    }

    /// The pace of this lane if a lane of score 1 takes this many seconds per item.
    pub(super) fn guess(&self, seconds_per_score: f64) -> Pace {
        Pace { overhead: self.launch, each: (seconds_per_score / self.score).max(1e-15) }
    }

    /// Its measurements, for the next run of the same task.
    pub(super) fn learned(&self) -> Option<Expected> {
        self.speed.is_measured.then(|| Expected {
            seconds_per_item: self.seconds_per_item().unwrap_or(f64::INFINITY),
            overhead_seconds: self.speed.fit.solve().map(|(overhead, _)| overhead),
            largest: self.largest,
        })
    }

    /// Whether it can take a chunk now.
    pub(super) fn can_take_chunk(&self, now: Time) -> bool {
        // One chunk at a time while it is on trial.
        let depth = if self.on_trial || !self.is_healthy() { 1 } else { self.depth };
        (self.is_healthy() || self.quarantine.may_be_tried(now)) && self.in_flight < depth
    }

    /// Adds a chunk in flight.
    pub(super) fn add_in_flight(&mut self, cost: f64, now: Time) {
        if self.in_flight == 0 {
            self.busy_since = now;
        }
        self.has_asked = true;
        self.found_nothing = false;
        self.in_flight += 1;
        self.load += cost;
    }

    /// Removes a chunk in flight.
    pub(super) fn remove_in_flight(&mut self, cost: f64, now: Time) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.load = if self.in_flight == 0 { 0.0 } else { (self.load - cost).max(0.0) };
        self.busy_since = now;
    }

    /// Estimated seconds until its chunks in flight end. Chunks that are late already may take as long again as they are late.
    pub(super) fn backlog(&self, pace: Pace, now: Time) -> f64 {
        if self.in_flight == 0 {
            return 0.0;
        }
        let all = pace.overhead * self.in_flight as f64 + pace.each * self.load;
        (all - now.saturating_sub(self.busy_since).as_secs_f64()).abs()
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.quarantine.is_healthy()
    }

    /// Seconds for further chunks before its device is taken away. Infinite if it stays.
    fn seconds_before_end(&self, pace: Option<Pace>, now: Time) -> f64 {
        let Some(end) = self.ends_at else { return f64::INFINITY };
        let left = end.saturating_sub(now).saturating_sub(END_MARGIN).as_secs_f64();
        // The chunks in flight come first.
        left - pace.map_or(0.0, |pace| self.backlog(pace, now))
    }

    /// The cost of the largest chunk that ends before its device is taken away. Infinite if the device stays, and less than 1
    /// if no item would end in time.
    pub(super) fn most_before_end(&self, pace: Option<Pace>, now: Time) -> f64 {
        let left = self.seconds_before_end(pace, now);
        match pace {
            _ if left <= 0.0 => 0.0,
            Some(pace) if left.is_finite() => (left * END_CAUTION - pace.overhead) / pace.each,
            // The first chunk of a lane is small.
            _ => f64::INFINITY,
        }
    }

    /// Whether it may get another chunk now or later: it is healthy, and its device is not about to be taken away.
    pub(super) fn takes_work(&self, now: Time) -> bool {
        self.is_healthy() && (self.ends_at.is_none() || self.most_before_end(self.pace, now) >= 1.0)
    }
}

/// The time that a chunk takes a lane, in seconds: a fixed overhead, and a time per item of mean cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pace {
    pub(super) overhead: f64,
    pub(super) each: f64,
}

impl Pace {
    /// The time of a chunk of this cost.
    pub(super) fn time_of(self, cost: f64) -> f64 {
        self.overhead + self.each * cost
    }
}

/// Earlier measurements count as two chunks: one without items, and the largest.
fn cost_fit_of(expected: Option<Expected>) -> CostFit {
    let mut fit = CostFit::default();
    if let Some(Expected { seconds_per_item, overhead_seconds: Some(overhead), largest }) = expected {
        let overhead = overhead.max(0.0);
        fit.add(0.0, overhead);
        fit.add(largest.max(1.0), overhead.max(largest.max(1.0) * seconds_per_item));
        // Earlier measurements are no bound for those of this run.
        fit.shortest = None;
    }
    fit
}

#[cfg(test)]
mod test {
    use super::*;

    fn lane_of(chunks: &[(f64, u64)]) -> Lane {
        let mut lane = Lane::new(&LaneSpec::default(), None, true);
        for &(cost, microseconds) in chunks {
            let took = Duration::from_micros(microseconds);
            lane.learn(cost, took, took);
        }
        lane
    }

    #[test]
    fn chunks_of_two_sizes_show_the_overhead() {
        assert!(!lane_of(&[(10.0, 120), (10.0, 120)]).knows_overhead());
        let lane = lane_of(&[(10.0, 120), (110.0, 320)]);
        assert!((lane.overhead() - 100e-6).abs() < 1e-9, "{}", lane.overhead());
        let pace = lane.pace.unwrap();
        assert!((pace.time_of(100.0) - 300e-6).abs() < 1e-6, "{pace:?}");
    }

    #[test]
    fn waiting_behind_another_chunk_is_not_counted_as_overhead() {
        let mut lane = lane_of(&[(1.0, 50)]);
        for cost in [4000.0, 3000.0, 2000.0, 1000.0] {
            let took = Duration::from_micros(cost as u64 * 10);
            lane.learn(cost, took, took + Duration::from_millis(40));
        }
        assert!(lane.overhead() <= 50e-6, "{}", lane.overhead());
    }

    #[test]
    fn the_overhead_shows_in_a_lane_with_several_chunks_in_flight() {
        let spec = LaneSpec { depth: 2, ..LaneSpec::default() };
        let mut lane = Lane::new(&spec, None, true);
        // 90 microseconds per chunk and 2 per item; two are always in flight, and once two end together.
        for (cost, took) in
            [(20.0, 130), (20.0, 1), (40.0, 170), (60.0, 210), (20.0, 130), (5.0, 100), (1.0, 92)]
        {
            let took = Duration::from_micros(took);
            lane.learn(cost, took, (took * 2).max(Duration::from_micros(180)));
        }
        let overhead = lane.overhead() * 1e6;
        assert!((60.0..95.0).contains(&overhead), "{overhead}");
    }

    #[test]
    fn unequal_items_are_not_counted_as_overhead() {
        let lane = lane_of(&[(16.0, 18_600), (25.0, 35_200), (2.0, 1_500), (1.0, 110), (1.0, 2_700)]);
        let pace = lane.pace.unwrap();
        assert!(pace.time_of(1.0) > 200e-6, "{pace:?}");
    }

    #[test]
    fn a_change_of_speed_is_known_after_a_few_chunks() {
        let mut chunks = vec![(100.0, 1_000); 30];
        chunks.extend([(100.0, 20_000); 8]);
        let spi = lane_of(&chunks).seconds_per_item().unwrap();
        assert!(spi > 0.5 * 200e-6, "{spi}");
    }

    #[test]
    fn a_change_of_speed_is_not_counted_as_overhead() {
        let lane =
            lane_of(&[(1.0, 50), (1000.0, 10_000), (4000.0, 40_000), (1000.0, 90_000), (900.0, 80_000)]);
        assert!(lane.overhead() <= 50e-6, "{}", lane.overhead());
    }
}
