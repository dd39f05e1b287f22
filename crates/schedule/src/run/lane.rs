//! What is known about one lane: how fast it is, what it has in hand, and whether it is to be trusted.

use std::time::Duration;

use super::{Expected, LaneSpec, Time};

/// How a lane stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is given work.
    Healthy,
    /// It failed and is left alone until then; what it gets first is a small chunk that shows whether it is well.
    Quarantined {
        /// When it is tried again.
        until: Time,
    },
    /// It failed in a way that would repeat itself: it gets nothing more in this run.
    Retired,
}

/// One lane, as the decisions see it.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) state: State,
    /// Whether the next chunk is to show that it is well again.
    pub(super) on_trial: bool,
    /// Failures so far: each makes the next quarantine longer.
    pub(super) strikes: u32,
    pub(super) in_flight: usize,
    /// How many chunks it may have in hand at once.
    pub(super) depth: usize,
    pub(super) may_hang: bool,
    /// The most items that it had memory for.
    pub(super) most_items: u64,
    /// The cost of the largest chunk that it has finished.
    pub(super) largest: f64,
    /// Its share of a fixed split, while nobody has taken it.
    pub(super) share: Option<std::ops::Range<u64>>,
    speed: Speed,
}

/// Time per item, over all chunks, the k-th counted k times: adaptive weighted factoring, version E.
#[derive(Debug, Clone, Copy, Default)]
struct Speed {
    chunks: f64,
    weighted_time: f64,
    weighted_items: f64,
    line: Line,
    /// What counts until a chunk has ended.
    expected: Option<Expected>,
}

impl Speed {
    /// Time per item where each chunk costs so much beside its items. Where items are unlike, a line through small
    /// chunks says far too little.
    fn without(&self, overhead: f64) -> f64 {
        let chunks = self.chunks * (self.chunks + 1.0) / 2.0;
        ((self.weighted_time - overhead * chunks) / self.weighted_items.max(f64::MIN_POSITIVE)).max(0.0)
    }
}

/// The line `time = overhead + cost × time an item` through all chunks, by least squares of the relative error: so small
/// chunks settle the overhead, and one that something disturbed counts little.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    weights: f64,
    cost: f64,
    cost_squared: f64,
    time: f64,
    cost_time: f64,
    /// The shortest time of any chunk, which no chunk's overhead can be above.
    shortest: Option<f64>,
}

impl Line {
    /// Shorter times than this are noise of the clock.
    const SHORTEST: f64 = 1e-7;

    fn add(&mut self, cost: f64, took: f64) {
        let weight = took.max(Self::SHORTEST).powi(-2);
        self.weights += weight;
        self.cost += weight * cost;
        self.cost_squared += weight * cost * cost;
        self.time += weight * took;
        self.cost_time += weight * cost * took;
        self.shortest = Some(self.shortest.map_or(took, |shortest| shortest.min(took)));
    }

    /// What a chunk costs beside its items, and what each of them adds; nothing where all chunks were of one size, so
    /// that it cannot be told.
    fn solve(&self) -> Option<(f64, f64)> {
        let all = self.weights * self.cost_squared;
        let apart = all - self.cost * self.cost;
        if apart <= all * 1e-9 {
            return None;
        }
        let overhead = (self.time * self.cost_squared - self.cost * self.cost_time) / apart;
        let each = (self.weights * self.cost_time - self.cost * self.time) / apart;
        // Where a lane's speed has changed, the line is far from all of them.
        let most = self.shortest.unwrap_or(f64::INFINITY);
        Some((overhead.clamp(0.0, most), each.max(0.0)))
    }
}

impl Lane {
    pub(super) fn new(spec: &LaneSpec, most_items: Option<u64>) -> Self {
        let most = [spec.most_items, most_items].into_iter().flatten().min();
        let usable = |it: &Expected| it.seconds_per_item > 0.0 && it.seconds_per_item.is_finite();
        let expected = spec.expected.filter(usable);
        Lane {
            state: State::Healthy,
            on_trial: false,
            strikes: 0,
            in_flight: 0,
            depth: spec.depth.max(1),
            may_hang: spec.may_hang,
            most_items: most.unwrap_or(u64::MAX).max(1),
            largest: expected.map_or(0.0, |it| it.largest.max(0.0)),
            share: None,
            speed: Speed { expected, line: line_of(expected), ..Speed::default() },
        }
    }

    /// A chunk that kept its lane busy for this part of its time had it to itself.
    const ALONE: f64 = 0.9;
    /// Of chunks that take less than this, in seconds, what each costs beside its items is a large part.
    const BRIEF: f64 = 2e-3;

    /// A chunk of so much cost has ended that kept the lane busy for so long, and took so long in all: more, where the
    /// lane had another one in hand.
    pub(super) fn learn(&mut self, cost: f64, took: Duration, latency: Duration) {
        let took = took.as_secs_f64().max(1e-9);
        let speed = &mut self.speed;
        speed.chunks += 1.0;
        speed.weighted_time += speed.chunks * took;
        speed.weighted_items += speed.chunks * cost;
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
    }

    /// Seconds per item of mean cost, overhead included, once it is known.
    pub(super) fn seconds_per_item(&self) -> Option<f64> {
        if self.speed.weighted_items > 0.0 {
            return Some(self.speed.weighted_time / self.speed.weighted_items);
        }
        Some(self.speed.expected?.seconds_per_item)
    }

    /// Items of mean cost per second, once it is known.
    pub(super) fn rate(&self) -> Option<f64> {
        self.seconds_per_item().map(f64::recip)
    }

    /// What a chunk costs beside its items.
    pub(super) fn overhead(&self) -> f64 {
        self.speed.line.solve().map_or(0.0, |(overhead, _)| overhead)
    }

    /// Whether chunks of more than one size have told what a chunk costs beside its items.
    pub(super) fn knows_overhead(&self) -> bool {
        self.speed.line.solve().is_some()
    }

    /// How much it probably does in a chunk of so many seconds. In a short one the cost of the chunk itself counts: it
    /// is paid once, however many items there are, and the time an item of smaller chunks says too little.
    pub(super) fn done_in(&self, seconds: f64) -> Option<f64> {
        let by_rate = seconds / self.seconds_per_item()?;
        let short = |&(overhead, _): &(f64, f64)| seconds < overhead * 8.0;
        let by_line = self.speed.line.solve().filter(short);
        let by_line = by_line.map_or(0.0, |(overhead, each)| {
            (seconds - overhead) / each.max(self.speed.without(overhead)).max(1e-15)
        });
        Some(by_rate.max(by_line))
    }

    /// How long a chunk of so much cost probably takes.
    pub(super) fn estimate(&self, cost: f64) -> Option<f64> {
        Some((self.seconds_per_item()? * cost).max(self.overhead()))
    }

    /// What it has shown, for the next run of the same task.
    pub(super) fn learned(&self) -> Option<Expected> {
        (self.speed.chunks > 0.0).then(|| Expected {
            seconds_per_item: self.seconds_per_item().unwrap_or(f64::INFINITY),
            overhead_seconds: self.speed.line.solve().map(|(overhead, _)| overhead),
            largest: self.largest,
        })
    }

    /// Whether it may be given a chunk at this time.
    pub(super) fn has_room(&self, now: Time) -> bool {
        let awake = match self.state {
            State::Healthy => true,
            State::Quarantined { until } => until <= now,
            State::Retired => false,
        };
        // One chunk at a time while it has to show that it is well.
        let depth = if self.on_trial || self.state != State::Healthy { 1 } else { self.depth };
        awake && self.in_flight < depth
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
        let spec = LaneSpec { depth: 1, most_items: None, may_hang: true, expected: None };
        let mut lane = Lane::new(&spec, None);
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
        assert!((lane.done_in(300e-6).unwrap() - 100.0).abs() < 1e-6);
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
        let spec = LaneSpec { depth: 2, most_items: None, may_hang: true, expected: None };
        let mut lane = Lane::new(&spec, None);
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
        assert!(lane.done_in(200e-6).unwrap() < 1.0, "{:?}", lane.done_in(200e-6));
    }

    #[test]
    fn a_change_of_speed_is_not_taken_for_overhead() {
        let lane =
            lane_of(&[(1.0, 50), (1000.0, 10_000), (4000.0, 40_000), (1000.0, 90_000), (900.0, 80_000)]);
        assert!(lane.overhead() <= 50e-6, "{}", lane.overhead());
    }
}
