//! The decisions of one run: which lane does which items, and what happens when a lane fails.
//!
//! The README beside this file explains the events, the answers, stealing, speculative copies, verdicts, and the bound.

mod attempts;
mod costs;
mod event;
mod health;
mod idle;
mod lane;
mod quarantine;
mod sizes;
#[cfg(test)]
mod test;

use std::{collections::VecDeque, ops::Range, time::Duration};

pub(crate) use self::quarantine::Quarantine;
use self::{
    attempts::{Attempt, Attempts, len_of},
    lane::Lane,
};
pub use self::{
    costs::Costs,
    event::{
        Answer, Expected, FailureKind, LaneChunk, LaneIndex, LaneSpec, Outcome, Purpose, Settings, Shares,
        Tally, Time, Verdict,
    },
    quarantine::LaneState,
};

/// Time between two checks of a lane whose device is about to be taken away: the end may be moved.
const END_CHECK: Duration = Duration::from_millis(500);

/// The decisions of one run: a state machine whose driver reports events and does what it answers.
#[derive(Debug)]
pub struct Run {
    settings: Settings,
    items: u64,
    costs: Costs,
    /// Whether more items may arrive.
    accepts_items: bool,
    lanes: Vec<Lane>,
    /// Whether lanes in reserve can be added.
    has_reserve: bool,
    tallies: Vec<Tally>,
    /// Items that are not handed out: everything from `next` on, and ranges that were given back.
    next: u64,
    returned: VecDeque<Range<u64>>,
    attempts: Attempts,
    done: u64,
    outcome: Option<Outcome>,
    adaptive: bool,
    /// Whether all lanes run plain code that others can steal from, so that no chunk needs a speculative copy.
    all_divisible: bool,
    /// The number of lanes whose speed is known, and their items per second together.
    measured_lanes: u32,
    measured_rate: f64,
    /// The time of the last accepted result.
    last_accepted: Time,
    /// When a chunk ended last, moved forward by suspensions of the process since; and the longest time from handing a
    /// chunk out to its end.
    last_chunk_end: Time,
    longest_chunk: Duration,
    /// When to check next whether a chunk may have hung.
    next_hang_check: Time,
    /// When to check next whether a chunk with expensive items holds up the run.
    next_expensive_check: Time,
    /// Since when no lane is healthy, if none is.
    no_healthy_since: Option<Time>,
    /// Whether a lane's device was still to come when the run wanted it.
    has_awaited: bool,
    end_bound: EndBound,
}

/// The two times that bound the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndBound {
    /// When the last item was handed out.
    pub all_handed_out_at: Option<Time>,
    /// The longest time in flight of any item that was in flight at that moment.
    pub longest_in_flight: Duration,
}

impl Run {
    /// Creates a run over this many items.
    pub fn new(items: u64, lanes: &[LaneSpec], strategy: &Shares, settings: Settings) -> Self {
        let mut run = Run {
            settings,
            items,
            costs: Costs::default(),
            accepts_items: false,
            lanes: Vec::new(),
            has_reserve: false,
            tallies: Vec::new(),
            next: 0,
            returned: VecDeque::new(),
            attempts: Attempts::default(),
            done: 0,
            outcome: None,
            adaptive: *strategy == Shares::Pulled,
            all_divisible: true,
            measured_lanes: 0,
            measured_rate: 0.0,
            last_accepted: Time::ZERO,
            last_chunk_end: Time::ZERO,
            next_hang_check: Time::ZERO,
            next_expensive_check: Time::ZERO,
            longest_chunk: Duration::ZERO,
            no_healthy_since: None,
            has_awaited: false,
            end_bound: EndBound::default(),
        };
        run.add_lanes(lanes);
        if let Shares::Fixed(shares) = strategy {
            for (lane, &share) in run.lanes.iter_mut().zip(shares) {
                let end = run.next.saturating_add(share).min(items);
                lane.share = (end > run.next).then_some(run.next..end);
                run.next = end;
            }
        }
        if items == 0 {
            run.outcome = Some(Outcome::Complete);
        } else if lanes.is_empty() {
            run.outcome = Some(Outcome::NoLaneLeft);
        }
        run
    }

    /// Adds the lanes that were in reserve.
    pub fn add_lanes(&mut self, lanes: &[LaneSpec]) {
        // The user's limit applies to a chunk, so with a limit chunks stay small.
        let in_parts = self.adaptive && self.settings.chunk_limit.is_none();
        for spec in lanes {
            let lane = Lane::new(spec, self.settings.max_items, in_parts);
            self.all_divisible &= spec.divisible && !spec.may_hang;
            self.measured_lanes += u32::from(lane.pace.is_some());
            self.measured_rate += lane.pace.map_or(0.0, |pace| pace.each.recip());
            self.lanes.push(lane);
            self.tallies.push(Tally::default());
        }
        self.has_reserve = false;
        if !lanes.is_empty() {
            self.no_healthy_since = None;
        }
    }

    /// Returns the run with a reserve: it does not end for lack of lanes before the reserve was [added](Run::add_lanes).
    pub fn with_reserve(mut self) -> Self {
        self.has_reserve = true;
        self
    }

    /// Returns the run with unequal costs of its items.
    pub fn with_costs(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }

    /// Creates a run whose items arrive one after another: more can be added until it is closed.
    pub fn open_ended(lanes: &[LaneSpec], settings: Settings) -> Self {
        let mut run = Run::new(0, lanes, &Shares::Pulled, settings);
        run.accepts_items = true;
        run.outcome = lanes.is_empty().then_some(Outcome::NoLaneLeft);
        run
    }

    /// Adds items that have arrived.
    pub fn grow(&mut self, items: u64) {
        self.items += items;
        if items > 0 {
            self.end_bound = EndBound::default();
        }
    }

    /// Declares that no more items will arrive.
    pub fn close(&mut self) {
        self.accepts_items = false;
        self.complete();
    }

    /// Ends the run, even with chunks in flight.
    pub fn stop(&mut self) {
        self.outcome.get_or_insert(Outcome::Stopped);
    }

    fn complete(&mut self) {
        if self.done == self.items && !self.accepts_items {
            self.outcome.get_or_insert(Outcome::Complete);
        }
    }

    /// What was measured of a lane, for the next run of the same task. `None` if it finished no chunk.
    pub fn learned(&self, lane: LaneIndex) -> Option<Expected> {
        self.lanes[lane].learned()
    }

    /// Whether more items may arrive.
    pub fn accepts_items(&self) -> bool {
        self.accepts_items
    }

    /// How the run has ended, once it has.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// The counters of each lane.
    pub fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    /// A lane's state.
    pub fn state(&self, lane: LaneIndex) -> LaneState {
        self.lanes[lane].quarantine.state
    }

    /// Whether a device was still to come when the run wanted it, so that the time of the run says little about its devices.
    pub fn has_awaited(&self) -> bool {
        self.has_awaited
    }

    /// A lane's measured rate in items per second, once it is known.
    pub fn rate(&self, lane: LaneIndex) -> Option<f64> {
        self.lanes[lane].rate()
    }

    /// Items with an accepted result.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// When the last item was handed out, and the longest time in flight of the items in flight then. A complete run ended
    /// at most that long after that moment.
    pub fn end_bound(&self) -> EndBound {
        self.end_bound
    }

    /// The time of the last accepted result.
    pub fn last_accepted(&self) -> Time {
        self.last_accepted
    }

    /// Whether every item is handed out: the rest is in flight.
    pub fn is_drained(&self) -> bool {
        self.next >= self.items
            && self.returned.is_empty()
            && (self.adaptive || self.lanes.iter().all(|lane| lane.share.is_none()))
    }

    /// Records when every item was handed out.
    fn note_drained(&mut self, now: Time) {
        match (self.is_drained(), self.end_bound.all_handed_out_at) {
            (true, None) => self.end_bound.all_handed_out_at = Some(now),
            (false, Some(_)) => self.end_bound = EndBound::default(),
            _ => {}
        }
    }

    /// Sets when a lane's device is taken away, if that is known. The lane gets no chunk that would not end before. Returns
    /// whether an end was known and is not any more: the device may be gone.
    pub fn set_end(&mut self, lane: LaneIndex, end: Option<Time>) -> bool {
        std::mem::replace(&mut self.lanes[lane].ends_at, end).is_some() && end.is_none()
    }

    /// Limits a lane to chunks of at most this many items.
    pub fn limit(&mut self, lane: LaneIndex, max_items: u64) {
        self.lanes[lane].limit(max_items);
    }

    /// Counts the parts of a chunk as chunks.
    pub fn done_in_parts(&mut self, lane: LaneIndex, parts: u64) {
        self.tallies[lane].chunks += parts.saturating_sub(1);
    }

    /// A lane asks for work.
    pub fn ask(&mut self, lane: LaneIndex, now: Time) -> Answer {
        if self.outcome.is_some() {
            return Answer::Ended;
        }
        self.lanes[lane].has_asked = true;
        self.lanes[lane].is_awaited = false;
        let before_end = self.cost_before_end(lane, now);
        if before_end < 1.0 {
            // Its device is about to be taken away, unless the end is moved.
            return Answer::Wait { until: Some(now.saturating_add(END_CHECK)) };
        }
        if !self.lanes[lane].can_take_chunk(now) {
            let until = match self.state(lane) {
                LaneState::Quarantined { until } if until > now => Some(until),
                _ => None,
            };
            return Answer::Wait { until };
        }
        if !self.lanes[lane].is_healthy() {
            self.lanes[lane].on_trial = true;
        }
        if now >= self.next_hang_check
            && let Some(chunk) = self.copy_suspected_hang(lane, now)
        {
            return Answer::Run(chunk);
        }
        if let Some(steal) = self.steal_expensive(lane, now) {
            return steal;
        }
        if !self.is_drained() {
            // A lane that would finish its part after the others have finished everything leaves it to them.
            let Some(size) = self.size_for(lane, now) else {
                if self.lanes[lane].in_flight > 0 {
                    // It asks again when a chunk of its own ends.
                    return Answer::Wait { until: None };
                }
                let item = self.lanes[lane].pace.map_or(0.0, |pace| pace.time_of(1.0));
                let soon = now.saturating_add(seconds((item / 8.0).clamp(5e-5, 1e3)));
                return Answer::Wait { until: Some(soon.min(self.next_straggler_check(now))) };
            };
            if let Some(items) = self.take(lane, size.min(before_end), now) {
                let purpose = if self.lanes[lane].on_trial { Purpose::Canary } else { Purpose::Work };
                let chunk = self.hand_out(lane, items, purpose, None, now);
                self.note_drained(now);
                return Answer::Run(chunk);
            }
        }
        self.ask_idle(lane, now)
    }

    /// When an idle lane checks again for stragglers.
    fn next_straggler_check(&self, now: Time) -> Time {
        now.saturating_add(self.settings.straggler_check.max(now / 200))
    }

    /// A chunk has ended without an error, in a lane with one chunk in flight.
    pub fn chunk_ended(&mut self, chunk: u64, took: Duration, now: Time) -> Verdict {
        self.chunk_ended_with_latency(chunk, took, took, now)
    }

    /// A chunk has ended without an error. It kept its lane busy for `took`, and was handed out `latency` ago, which is more
    /// if the lane was also busy with another chunk.
    pub fn chunk_ended_with_latency(
        &mut self,
        chunk: u64,
        took: Duration,
        latency: Duration,
        now: Time,
    ) -> Verdict {
        let Some(attempt) = self.attempts.get(chunk) else {
            // Its lane was set aside, and its items were given back.
            return Verdict::Drop;
        };
        self.last_chunk_end = now;
        self.longest_chunk = self.longest_chunk.max(latency);
        if attempt.superseded.is_some() {
            if let Some((attempt, _)) = self.attempts.remove(chunk) {
                self.tallies[attempt.lane].dropped += 1;
                self.update_lane(&attempt, took, latency, now);
            }
            return Verdict::Drop;
        }
        let Some(attempt) = self.attempts.accept(chunk, now, took) else { return Verdict::Drop };
        self.last_accepted = now;
        let count = len_of(&attempt.unaccepted);
        let tally = &mut self.tallies[attempt.lane];
        tally.items += count;
        tally.speculative += u64::from(attempt.speculative);
        if self.end_bound.all_handed_out_at.is_some_and(|drained| attempt.since <= drained) {
            self.end_bound.longest_in_flight =
                self.end_bound.longest_in_flight.max(now.saturating_sub(attempt.since));
        }
        self.update_lane(&attempt, took, latency, now);
        self.done += count;
        self.complete();
        match attempt.unaccepted.as_slice() {
            [all] if *all == attempt.items => Verdict::Accept,
            parts => Verdict::AcceptPart(parts.to_vec()),
        }
    }

    /// Updates the lane of a chunk that ended without an error.
    fn update_lane(&mut self, attempt: &Attempt, took: Duration, latency: Duration, now: Time) {
        self.tallies[attempt.lane].chunks += 1;
        let lane = &mut self.lanes[attempt.lane];
        lane.remove_in_flight(attempt.cost, now);
        lane.note_fit(len(&attempt.items));
        self.learn(attempt.lane, attempt.cost, took, latency);
        let lane = &mut self.lanes[attempt.lane];
        if self.settings.chunk_limit.is_some_and(|limit| latency < limit / 4) {
            lane.max_within_limit = lane.max_within_limit.saturating_mul(2);
        }
        if attempt.canary {
            lane.on_trial = false;
            lane.quarantine.state = LaneState::Healthy;
            self.no_healthy_since = None;
        }
    }

    /// Learns from the time that a chunk of this cost took a lane.
    fn learn(&mut self, lane: LaneIndex, cost: f64, took: Duration, latency: Duration) {
        let lane = &mut self.lanes[lane];
        let before = lane.pace;
        lane.learn(cost, took, latency);
        if let Some(pace) = lane.pace {
            self.measured_lanes += u32::from(before.is_none());
            self.measured_rate += pace.each.recip() - before.map_or(0.0, |before| before.each.recip());
        }
    }

    /// Hands items to a lane. A speculative copy of a part of a chunk has that chunk as its parent.
    fn hand_out(
        &mut self,
        lane: LaneIndex,
        items: Range<u64>,
        purpose: Purpose,
        parent: Option<u64>,
        now: Time,
    ) -> LaneChunk {
        let cost = self.costs.of(&items);
        let mut attempt = Attempt::new(lane, items.clone(), cost, now);
        attempt.speculative = purpose == Purpose::Speculative;
        attempt.canary = self.lanes[lane].on_trial;
        attempt.divisible = self.lanes[lane].divisible && len(&items) > 1;
        attempt.exclusive = parent.is_none() && !attempt.canary && self.may_be_exclusive(lane, cost);
        if let Some(parent) = parent.and_then(|parent| self.attempts.get(parent)) {
            attempt.since = parent.since;
        }
        let exclusive = attempt.exclusive;
        self.lanes[lane].add_in_flight(cost, now);
        let id = self.attempts.insert(attempt, parent);
        let at_once = self.lanes[lane].at_once;
        LaneChunk { id, lane, items, purpose, exclusive, at_once }
    }
}

fn len(items: &Range<u64>) -> u64 {
    items.end - items.start
}

/// Converts seconds to a time: zero for negative numbers and NaN, and some decades for numbers that are too large.
fn seconds(seconds: f64) -> Duration {
    let longest = Duration::from_secs(1_000_000_000);
    let other = if seconds > 0.0 { longest } else { Duration::ZERO };
    Duration::try_from_secs_f64(seconds).map_or(other, |time| time.min(longest))
}
