//! The size of a lane's next chunk, and its items.

use std::{ops::Range, time::Duration};

use super::{
    LaneIndex, Run, Time,
    health::ABANDON_SHARE_AFTER,
    lane::{Lane, Pace},
    len,
};

/// Chunks with less overhead than this, in seconds, are cheap: their lane gets many small ones.
const CHEAP_CHUNK: f64 = 100e-6;
/// Minimum time of a cheap chunk, as a multiple of its overhead.
const ENOUGH_OVERHEADS: f64 = 24.0;

/// Work that should take less than this is not divided: handing it to another lane takes as long.
pub(super) const MIN_STEAL: Duration = Duration::from_micros(20);

impl Run {
    /// Seconds per item for a lane of score 1, from the lanes whose pace is known. `None` if no lane's pace is known, or all
    /// are, so that it is not needed.
    pub(super) fn seconds_per_score(&self) -> Option<f64> {
        if self.lanes.iter().all(|it| it.pace.is_some()) {
            return None;
        }
        let known = self.lanes.iter().filter_map(|it| Some((it.pace?.each * it.score, 1u32)));
        let (sum, count) = known.fold((0.0, 0), |(sum, count), (each, one)| (sum + each, count + one));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// A lane's pace: measured, or estimated from its score and the pace of other lanes.
    pub(super) fn pace_of(&self, lane: &Lane, seconds_per_score: Option<f64>) -> Option<Pace> {
        lane.pace.or_else(|| Some(lane.guess(seconds_per_score?)))
    }

    /// The cost of a lane's next chunk. `None` if the other lanes will finish everything before this one finishes a single
    /// item.
    pub(super) fn size_for(&self, lane: LaneIndex, now: Time) -> Option<f64> {
        let it = &self.lanes[lane];
        let settings = &self.settings;
        let left = self.unclaimed_cost();
        let first = self.first_chunk(it);
        if it.on_trial {
            return Some(first);
        }
        if !self.adaptive {
            return Some(f64::INFINITY);
        }
        // While many chunks of the largest size are left, that is the size.
        let many = it.max_items.saturating_mul(8 * self.lanes.len() as u64);
        if self.items.saturating_sub(self.next) > many && it.pace.is_some() {
            return Some(it.max_items as f64);
        }
        if let Some(size) = self.size_among_alike(it, left, first) {
            return Some(size);
        }
        let scale = self.seconds_per_score();
        let Some(pace) = self.pace_of(it, scale) else { return Some(first) };
        let horizon = self.horizon(left, scale, now);
        // Seconds that this lane should work on the rest for all lanes to end together, without the chunk's overhead.
        let share = horizon - it.backlog(pace, now) - pace.overhead;
        if share < pace.each && self.is_sooner_elsewhere(lane, pace, scale, now) {
            return None;
        }
        if it.pace.is_none() {
            return Some(first);
        }
        let whole = self.whole_at(self.rate_of_all(scale).max(pace.each.recip()));
        // Smaller chunks balance the end better, and each costs its overhead: the size at which the two are equal.
        let balanced = (10.0 * pace.overhead * horizon).sqrt().min(share.max(0.0));
        let depth = it.depth as f64;
        let mut shortest = (whole * settings.min_fraction).max(pace.overhead * settings.min_overheads);
        let mut longest = (whole * settings.max_fraction / depth).max(settings.max_time_floor.as_secs_f64());
        // If chunks cost next to nothing, larger ones gain nothing, and may contain expensive items.
        if it.depth == 1 && !it.divisible && it.knows_overhead() && pace.overhead < CHEAP_CHUNK {
            shortest = shortest.max(pace.overhead * ENOUGH_OVERHEADS);
            longest = shortest;
        } else {
            shortest = shortest.max(balanced);
            longest = longest.max(shortest);
        }
        // Half of the rest, so that a chunk that takes longer than expected can still be made up for. A chunk that others can
        // steal from needs no reserve.
        let wanted = if it.divisible { horizon } else { horizon / 2.0 / depth };
        let mut time = wanted.clamp(shortest.min(longest), longest);
        if share > 0.0 && share < time + shortest / 2.0 {
            time = share;
        }
        // With one lane, chunks need not become small, and a short run needs only as many as the lane has in flight.
        if self.lanes.len() == 1 && !self.accepts_items {
            let is_short = whole < settings.unsplit_run_under.as_secs_f64();
            let longest = if is_short { longest.max(whole / depth) } else { longest };
            let rest = left * pace.each;
            time = if rest <= longest * 1.5 { rest } else { longest };
        }
        // Handing out less takes longer than computing it, and others can steal the rest.
        if it.divisible {
            time = time.max(MIN_STEAL.as_secs_f64().min(left * pace.each));
        }
        // The chunk may take longer than expected, so it should take a quarter of the user's limit.
        if let Some(limit) = settings.chunk_limit {
            time = time.min(limit.as_secs_f64() / 4.0);
        }
        let mut grown = (it.largest * settings.max_growth).max(first);
        // A core runs items one after another: a chunk that takes long has expensive items, and one of twice the size shows
        // the overhead of a chunk.
        if it.depth == 1 && !it.divisible && !it.knows_overhead() {
            grown = grown.min((it.largest * 2.0).max(CHEAP_CHUNK * ENOUGH_OVERHEADS / pace.each)).max(first);
        }
        // A short run may be nothing but overhead, which is unknown while all chunks had the same size.
        let tries = !it.knows_overhead() && whole < settings.max_time_floor.as_secs_f64();
        let least = if tries { it.largest * 2.0 } else { 1.0 };
        Some((time / pace.each).min(grown).max(least))
    }

    /// The cost of a chunk if all lanes run plain code that others can steal from, and this lane is about as fast as the
    /// others: an equal part of the rest. `None` otherwise. It reads no other lane, since many cores ask at once in short runs,
    /// and reading what another core has written takes long.
    fn size_among_alike(&self, lane: &Lane, left: f64, first: f64) -> Option<f64> {
        const ALIKE: f64 = 4.0;
        let is_simple = self.all_share_freely() && self.lanes.len() > 1 && self.measured_rate > 0.0;
        let own = lane.pace.filter(|_| is_simple)?.each.recip();
        let mean = self.measured_rate / f64::from(self.measured_lanes.max(1));
        if own * ALIKE < mean {
            return None;
        }
        let all = mean * self.lanes.len() as f64;
        let whole = self.whole_at(all);
        let longest = (whole * self.settings.max_fraction).max(self.settings.max_time_floor.as_secs_f64());
        let time = (left / all).min(longest).max(MIN_STEAL.as_secs_f64().min(left / own));
        Some((time * own).min((lane.largest * self.settings.max_growth).max(first)).max(1.0))
    }

    /// Whether every lane runs plain code that any other may steal from, without the user's limit for a chunk.
    pub(super) fn all_share_freely(&self) -> bool {
        self.all_divisible && self.adaptive && self.settings.chunk_limit.is_none()
    }

    /// Seconds that the whole run takes at this many items per second; of an open run, the known items that are not done.
    fn whole_at(&self, rate: f64) -> f64 {
        if self.accepts_items { (self.items - self.done) as f64 / rate } else { self.items as f64 / rate }
    }

    /// The size of a chunk for a lane of unknown speed: so small that even a lane a thousand times slower than the others does
    /// not hold up the run. A chunk that others can steal from may be larger.
    pub(super) fn first_chunk(&self, lane: &Lane) -> f64 {
        let parts = self.lanes.len() as u64 * if lane.divisible { 64 } else { 4096 };
        let parts = if lane.divisible { parts } else { parts.max(100_000) };
        (self.items / parts).max(1) as f64
    }

    /// The cost of the items that are not handed out.
    pub(super) fn unclaimed_cost(&self) -> f64 {
        let returned: f64 = self.returned.iter().map(|items| self.costs.of(items)).sum();
        let new = if self.next < self.items { self.costs.of(&(self.next..self.items)) } else { 0.0 };
        new + returned
    }

    /// Seconds until this much more work is done if all healthy lanes end together, each after its chunks in flight. A lane
    /// that is busy for longer takes no part.
    fn horizon(&self, left: f64, scale: Option<f64>, now: Time) -> f64 {
        let mut horizon = f64::INFINITY;
        // Each round leaves out lanes that would begin too late, which makes the others end sooner.
        for _ in 0..8 {
            let (mut rate, mut work) = (0.0, left);
            for it in self.lanes.iter().filter(|it| it.takes_work(now)) {
                let Some(pace) = self.pace_of(it, scale) else { continue };
                let begin = it.backlog(pace, now) + pace.overhead;
                if begin < horizon {
                    rate += pace.each.recip();
                    work += begin / pace.each;
                }
            }
            if work / rate >= horizon * (1.0 - 1e-9) {
                break;
            }
            horizon = work / rate;
        }
        horizon
    }

    /// Whether the other lanes will finish all items that are not handed out before this one would finish a single one.
    fn is_sooner_elsewhere(&self, lane: LaneIndex, pace: Pace, scale: Option<f64>, now: Time) -> bool {
        // Clearly before: of equal lanes, each would otherwise leave the item to the others.
        let end = (self.lanes[lane].backlog(pace, now) + pace.time_of(1.0)) * (1.0 - 1e-6);
        let returned: u64 = self.returned.iter().map(len).sum();
        let left = (self.items.saturating_sub(self.next) + returned) as f64;
        let mut done = 0.0;
        for (_, it) in self.lanes.iter().enumerate().filter(|(index, _)| *index != lane) {
            if it.takes_work(now)
                && let Some(pace) = self.pace_of(it, scale)
            {
                // A device that is still being prepared may take as long again as it has taken.
                let wait = if it.has_asked { it.backlog(pace, now) } else { now.as_secs_f64() };
                let time = end - wait - pace.overhead;
                done += (time / pace.each).floor().max(0.0);
            }
            if done >= left {
                return true;
            }
        }
        false
    }

    /// Items per second of all healthy lanes together. Lanes of unknown speed are estimated from the others.
    pub(super) fn rate_of_all(&self, scale: Option<f64>) -> f64 {
        let healthy = self.lanes.iter().filter(|it| it.is_healthy());
        healthy.filter_map(|it| it.rate().or_else(|| Some(self.pace_of(it, scale)?.each.recip()))).sum()
    }

    /// The cost of the largest chunk that ends before a lane's device is taken away.
    pub(super) fn cost_before_end(&self, lane: LaneIndex, now: Time) -> f64 {
        let it = &self.lanes[lane];
        if it.ends_at.is_none() {
            return f64::INFINITY;
        }
        it.most_before_end(self.pace_of(it, self.seconds_per_score()), now)
    }

    /// Takes items for a lane: returned ones first, then its share of a fixed split, then new ones.
    pub(super) fn take(&mut self, lane: LaneIndex, size: f64, now: Time) -> Option<Range<u64>> {
        let end = self.cost_before_end(lane, now);
        let most = self.lanes[lane].max_items.min(self.lanes[lane].max_within_limit).min(end.max(1.0) as u64);
        if let Some(items) = self.returned.pop_front() {
            let end = if self.adaptive { self.costs.end_for_cost(&items, size) } else { items.end };
            return Some(self.cut(items, end, most));
        }
        if let Some(share) = self.lanes[lane].share.take() {
            let middle = share.start.saturating_add(most).min(share.end);
            self.lanes[lane].share = (middle < share.end).then_some(middle..share.end);
            return Some(share.start..middle);
        }
        if self.next >= self.items {
            // A lane that is set aside does not ask for its share, and one that is not ready may never ask.
            let is_orphan = |it: &Lane| !it.is_healthy() || (!it.has_asked && now >= ABANDON_SHARE_AFTER);
            let orphan = self.lanes.iter().position(|it| it.share.is_some() && is_orphan(it))?;
            let share = self.lanes[orphan].share.take()?;
            let end = share.end;
            return Some(self.cut(share, end, most));
        }
        let new = self.next..self.items;
        let end = self.costs.end_for_cost(&new, size).min(self.next.saturating_add(most));
        self.next = end;
        Some(new.start..end)
    }

    /// Cuts a range at `end`, and to at most `most` items. The rest is given back.
    fn cut(&mut self, items: Range<u64>, end: u64, most: u64) -> Range<u64> {
        let middle = end.min(items.start.saturating_add(most)).min(items.end);
        if middle < items.end {
            self.returned.push_front(middle..items.end);
        }
        items.start..middle
    }

    /// Whether a chunk can be exclusive to its lane: the run cannot give up on it, and no other lane could finish its items
    /// much sooner, except items that it can steal.
    pub(super) fn may_be_exclusive(&self, lane: LaneIndex, cost: f64) -> bool {
        let it = &self.lanes[lane];
        let alone = !it.may_hang && it.depth == 1 && self.settings.chunk_limit.is_none();
        let brief = self.settings.no_copy_under.as_secs_f64();
        alone && (self.all_divisible || it.pace.is_some_and(|pace| pace.time_of(cost) < brief))
    }
}
