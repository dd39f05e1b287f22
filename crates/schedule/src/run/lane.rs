//! What is known about one lane: how fast it is, what it has in hand, and whether it is to be trusted.

use std::time::Duration;

use super::{Expected, LaneSpec, Time, quarantine::Quarantine};
use crate::least_squares::Sums;

/// More chunks in flight than this hide nothing more.
const MAX_DEPTH: usize = 16;

/// One lane, as the decisions see it.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) quarantine: Quarantine,
    /// Whether the next chunk is to show that it is well again.
    pub(super) on_trial: bool,
    /// Whether it has asked for work: until then its device may still be made ready, and nobody knows for how long.
    pub(super) has_asked: bool,
    pub(super) in_flight: usize,
    /// What the items of all its chunks in flight cost.
    pub(super) load: f64,
    /// It has looked for something to steal since its last chunk, and found nothing.
    pub(super) found_nothing: bool,
    /// When it finished its last chunk, or was given one after it had none.
    pub(super) busy_since: Time,
    /// How many chunks it may have in hand at once.
    pub(super) depth: usize,
    pub(super) may_hang: bool,
    /// Whether other lanes can steal what it has not begun of a chunk.
    pub(super) divisible: bool,
    /// How strong it is compared with the other lanes, by what is known before it has done anything.
    pub(super) score: f64,
    /// Seconds that a chunk costs beside its items, by what is known before it has done anything.
    pub(super) launch: f64,
    /// The most items of a chunk.
    pub(super) max_items: u64,
    /// The most items of a chunk since one took longer than the user's limit: half as many then, and twice as many with
    /// every chunk that is well within it.
    pub(super) max_within_limit: u64,
    /// The most items that it can be given at once. Where it does chunks in parts of this size, a chunk may have more.
    pub(super) at_once: u64,
    does_parts: bool,
    /// The cost of the largest chunk that it has finished.
    pub(super) largest: f64,
    /// Its share of a fixed split, while nobody has taken it.
    pub(super) share: Option<std::ops::Range<u64>>,
    speed: Speed,
    /// What a chunk costs it, once that is known: worked out whenever it has learned something.
    pub(super) pace: Option<Pace>,
}

/// Time per item over all chunks, recent ones weighted more: as in adaptive weighted factoring, but with weights that
/// fall off geometrically, so that a lane whose speed has changed is known again after a few chunks.
#[derive(Debug, Clone, Copy, Default)]
struct Speed {
    /// The weights of all chunks together.
    chunks: f64,
    weighted_time: f64,
    weighted_items: f64,
    /// How many chunks in a row took far longer than expected, or far shorter: then it is negative.
    surprises: i32,
    line: Line,
    /// Whether this run's own chunks count.
    is_measured: bool,
    expected: Option<Expected>,
}

impl Speed {
    /// What was expected counts as a small part of a large chunk: a few small chunks that happened to be cheap or dear
    /// do not say more.
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

    /// Time per item where each chunk costs so much beside its items. Where items are unlike, a line through small
    /// chunks says far too little.
    fn without(&self, overhead: f64) -> f64 {
        ((self.weighted_time - overhead * self.chunks) / self.weighted_items.max(f64::MIN_POSITIVE)).max(0.0)
    }
}

/// The line `time = overhead + cost × time an item` through all chunks, by least squares of the relative error: so small
/// chunks settle the overhead, and one that something disturbed counts little.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    sums: Sums,
    /// The shortest time of any chunk, which no chunk's overhead can be above.
    shortest: Option<f64>,
}

impl Line {
    /// Shorter times than this are noise of the clock.
    const SHORTEST: f64 = 1e-7;

    fn add(&mut self, cost: f64, took: f64) {
        self.sums.add(cost, took, took.max(Self::SHORTEST).powi(-2));
        self.shortest = Some(self.shortest.map_or(took, |shortest| shortest.min(took)));
    }

    /// What a chunk costs beside its items, and what each of them adds; nothing where all chunks were of one size, so
    /// that it cannot be told.
    fn solve(&self) -> Option<(f64, f64)> {
        let (overhead, each) = self.sums.solve(1e-9)?;
        // Where a lane's speed has changed, the line is far from all of them.
        let most = self.shortest.unwrap_or(f64::INFINITY);
        Some((overhead.clamp(0.0, most), each.max(0.0)))
    }
}

impl Lane {
    /// A lane that is given so many items at once. Where chunks may be done in parts, one that others can steal from is
    /// given larger chunks: there is nothing to be gained by asking for each part.
    pub(super) fn new(spec: &LaneSpec, at_once: Option<u64>, in_parts: bool) -> Self {
        let does_parts = in_parts && spec.divisible && !spec.may_hang;
        let (most, at_once) = (spec.max_items.unwrap_or(u64::MAX), at_once.unwrap_or(u64::MAX));
        let usable = |it: &Expected| it.seconds_per_item > 0.0 && it.seconds_per_item.is_finite();
        let expected = spec.expected.filter(usable);
        let mut lane = Lane {
            quarantine: Quarantine::new(),
            on_trial: false,
            has_asked: false,
            in_flight: 0,
            load: 0.0,
            found_nothing: false,
            busy_since: Time::ZERO,
            depth: spec.depth.clamp(1, MAX_DEPTH),
            may_hang: spec.may_hang,
            divisible: spec.divisible,
            score: if spec.score.is_finite() { spec.score.max(1e-9) } else { 1.0 },
            launch: if spec.launch_seconds.is_finite() { spec.launch_seconds.max(0.0) } else { 0.0 },
            max_items: if does_parts { most } else { most.min(at_once) }.max(1),
            at_once: if does_parts { at_once.max(1) } else { u64::MAX },
            does_parts,
            max_within_limit: u64::MAX,
            largest: expected.map_or(0.0, |it| it.largest.max(0.0)),
            share: None,
            speed: Speed { line: line_of(expected), ..Speed::of(expected) },
            pace: None,
        };
        lane.pace = lane.current_pace();
        lane
    }

    /// It has room for at most so many items at once.
    pub(super) fn limit(&mut self, items: u64) {
        let limit = if self.does_parts { &mut self.at_once } else { &mut self.max_items };
        *limit = (*limit).min(items.max(1));
    }

    /// A chunk that kept its lane busy for this part of its time had it to itself.
    const ALONE: f64 = 0.9;
    /// Of chunks that take less than this, in seconds, what each costs beside its items is a large part.
    const BRIEF: f64 = 2e-3;
    /// What the chunks before count when another one has ended.
    const FADING: f64 = 0.9;
    /// The same after chunks that took so many times longer or shorter than expected, one after another.
    const FADING_FAST: f64 = 0.4;
    const SURPRISE: f64 = 1.5;

    /// A chunk of so much cost has ended that kept the lane busy for so long, and took so long in all: more, where the
    /// lane had another one in hand.
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
        // One chunk may have had dear items; several in a row show that the lane's speed has changed.
        let fading = if speed.surprises.abs() > 1 { Self::FADING_FAST } else { Self::FADING };
        speed.chunks = speed.chunks * fading + 1.0;
        speed.weighted_time = speed.weighted_time * fading + took;
        speed.weighted_items = speed.weighted_items * fading + cost;
        // What waited behind another chunk, or was done meanwhile, says nothing about what a chunk costs; but where all
        // are brief, and take turns, each shows what it adds. Which are brief is asked of their size: those that happened
        // to be over soon say too little.
        let latency = latency.as_secs_f64();
        let likely = cost * speed.weighted_time / speed.weighted_items.max(f64::MIN_POSITIVE);
        let takes_turns = likely < Self::BRIEF && took * 2.0 * self.depth as f64 >= latency;
        if took >= latency * Self::ALONE || takes_turns {
            speed.line.add(cost, took);
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

    /// Seconds that a chunk costs beside its items.
    pub(super) fn overhead(&self) -> f64 {
        self.speed.line.solve().map_or(self.launch, |(overhead, _)| overhead)
    }

    /// Whether chunks of more than one size have told what a chunk costs beside its items.
    pub(super) fn knows_overhead(&self) -> bool {
        self.speed.line.solve().is_some()
    }

    fn current_pace(&self) -> Option<Pace> {
        let each = self.seconds_per_item()?;
        let overhead = self.overhead();
        if self.speed.is_measured {
            let mean_chunk = self.speed.weighted_items / self.speed.chunks;
            // A chunk that waited for another, or whose items were cheap, may say that all of it was overhead.
            let overhead = overhead.min(each * mean_chunk);
            let slope = self.speed.line.solve().map_or(0.0, |(_, slope)| slope);
            return Some(Pace {
                overhead,
                each: self.speed.without(overhead).max(slope.min(each)).max(1e-15),
            });
        }
        let largest = self.speed.expected.map_or(1.0, |expected| expected.largest).max(1.0);
        Some(Pace { overhead, each: (each - overhead / largest).max(each * 0.01).max(1e-15) })
    }

    /// What a chunk would cost this lane if a lane of score 1 needed so many seconds an item.
    pub(super) fn guess(&self, seconds_per_score: f64) -> Pace {
        Pace { overhead: self.launch, each: (seconds_per_score / self.score).max(1e-15) }
    }

    /// What it has shown, for the next run of the same task.
    pub(super) fn learned(&self) -> Option<Expected> {
        self.speed.is_measured.then(|| Expected {
            seconds_per_item: self.seconds_per_item().unwrap_or(f64::INFINITY),
            overhead_seconds: self.speed.line.solve().map(|(overhead, _)| overhead),
            largest: self.largest,
        })
    }

    /// Whether it may be given a chunk at this time.
    pub(super) fn has_room(&self, now: Time) -> bool {
        // One chunk at a time while it has to show that it is well.
        let depth = if self.on_trial || !self.is_healthy() { 1 } else { self.depth };
        (self.is_healthy() || self.quarantine.may_be_tried(now)) && self.in_flight < depth
    }

    /// A chunk of so much cost is handed to it.
    pub(super) fn begin(&mut self, cost: f64, now: Time) {
        if self.in_flight == 0 {
            self.busy_since = now;
        }
        self.has_asked = true;
        self.found_nothing = false;
        self.in_flight += 1;
        self.load += cost;
    }

    /// A chunk of so much cost is out of its hands.
    pub(super) fn end(&mut self, cost: f64, now: Time) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.load = if self.in_flight == 0 { 0.0 } else { (self.load - cost).max(0.0) };
        self.busy_since = now;
    }

    /// How long it will probably take until it is done with what it has in hand. What is late already may take as long
    /// again as it is late.
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
}

/// What a chunk costs a lane, in seconds: so much by itself, and so much for each item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pace {
    pub(super) overhead: f64,
    pub(super) each: f64,
}

impl Pace {
    /// How long a chunk of so much cost takes.
    pub(super) fn time_of(self, cost: f64) -> f64 {
        self.overhead + self.each * cost
    }
}

/// What was known before counts as two chunks: one without items, and the largest.
fn line_of(expected: Option<Expected>) -> Line {
    let mut line = Line::default();
    if let Some(Expected { seconds_per_item, overhead_seconds: Some(overhead), largest }) = expected {
        let overhead = overhead.max(0.0);
        line.add(0.0, overhead);
        line.add(largest.max(1.0), overhead.max(largest.max(1.0) * seconds_per_item));
        // What was believed before does not bound what this run shows.
        line.shortest = None;
    }
    line
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
    fn what_a_chunk_costs_is_told_by_chunks_of_two_sizes() {
        assert!(!lane_of(&[(10.0, 120), (10.0, 120)]).knows_overhead());
        let lane = lane_of(&[(10.0, 120), (110.0, 320)]);
        assert!((lane.overhead() - 100e-6).abs() < 1e-9, "{}", lane.overhead());
        let pace = lane.pace.unwrap();
        assert!((pace.time_of(100.0) - 300e-6).abs() < 1e-6, "{pace:?}");
    }

    #[test]
    fn waiting_behind_another_chunk_is_not_taken_for_overhead() {
        let mut lane = lane_of(&[(1.0, 50)]);
        for cost in [4000.0, 3000.0, 2000.0, 1000.0] {
            let took = Duration::from_micros(cost as u64 * 10);
            lane.learn(cost, took, took + Duration::from_millis(40));
        }
        assert!(lane.overhead() <= 50e-6, "{}", lane.overhead());
    }

    #[test]
    fn what_each_chunk_costs_shows_in_a_lane_with_several_in_hand() {
        let spec = LaneSpec { depth: 2, ..LaneSpec::default() };
        let mut lane = Lane::new(&spec, None, true);
        // 90 microseconds a chunk and 2 an item; two are always in hand, and once two end together.
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
    fn unlike_items_are_not_taken_for_overhead() {
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
    fn a_change_of_speed_is_not_taken_for_overhead() {
        let lane =
            lane_of(&[(1.0, 50), (1000.0, 10_000), (4000.0, 40_000), (1000.0, 90_000), (900.0, 80_000)]);
        assert!(lane.overhead() <= 50e-6, "{}", lane.overhead());
    }
}
