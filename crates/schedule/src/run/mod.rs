//! The decisions of one run: which lane does which items, and what happens when one fails.
//!
//! The README beside this file explains the events, the answers, stealing and rescues, verdicts, and the bound.

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
        Answer, Chunk, Expected, Failure, LaneIndex, LaneSpec, Outcome, Purpose, Settings, Shares, Tally,
        Time, Verdict,
    },
    quarantine::State,
};

/// The decisions of one run. Told what happened, it answers with what to do; it does nothing by itself.
#[derive(Debug)]
pub struct Run {
    settings: Settings,
    items: u64,
    costs: Costs,
    /// Whether more items may come.
    open: bool,
    lanes: Vec<Lane>,
    /// Whether more lanes can be added, should these not be enough.
    has_reserve: bool,
    tallies: Vec<Tally>,
    /// Items that no lane has been given: everything from here on, and what was given back.
    next: u64,
    returned: VecDeque<Range<u64>>,
    attempts: Attempts,
    done: u64,
    outcome: Option<Outcome>,
    adaptive: bool,
    /// Whether all lanes run plain code that others can steal from, so that none of them has to be rescued.
    all_divisible: bool,
    /// Of how many lanes the speed is known, and the items a second of all these together.
    known_lanes: u32,
    known_rate: f64,
    /// When results were accepted last.
    last_accepted: Time,
    /// When a chunk ended last, less what the process stood still since; and the longest time from handing a chunk out to
    /// its end.
    last_sign: Time,
    longest_chunk: Duration,
    /// When it is looked next whether a chunk may have hung.
    next_suspicion: Time,
    /// When it is looked next whether a chunk holds up the run with dear items.
    next_look_for_dear: Time,
    /// Since when no lane is healthy, where none is.
    nobody_since: Option<Time>,
    tail: Tail,
}

/// What the bound of a run is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tail {
    /// When the last item was handed out.
    pub drained: Option<Time>,
    /// The longest time for which items that were in flight then had been, or were to be, in flight.
    pub longest: Duration,
}

impl Run {
    /// A run over so many items.
    pub fn new(items: u64, lanes: &[LaneSpec], strategy: &Shares, settings: Settings) -> Self {
        let mut run = Run {
            settings,
            items,
            costs: Costs::default(),
            open: false,
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
            known_lanes: 0,
            known_rate: 0.0,
            last_accepted: Time::ZERO,
            last_sign: Time::ZERO,
            next_suspicion: Time::ZERO,
            next_look_for_dear: Time::ZERO,
            longest_chunk: Duration::ZERO,
            nobody_since: None,
            tail: Tail::default(),
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

    /// Adds lanes, which take part from now on: those that were in reserve.
    pub fn add_lanes(&mut self, lanes: &[LaneSpec]) {
        // The user's limit is one of chunks, so where there is one they stay small.
        let in_parts = self.adaptive && self.settings.limit.is_none();
        for spec in lanes {
            let lane = Lane::new(spec, self.settings.max_items, in_parts);
            self.all_divisible &= spec.divisible && !spec.may_hang;
            self.known_lanes += u32::from(lane.pace.is_some());
            self.known_rate += lane.pace.map_or(0.0, |pace| pace.each.recip());
            self.lanes.push(lane);
            self.tallies.push(Tally::default());
        }
        self.has_reserve = false;
        if !lanes.is_empty() {
            self.nobody_since = None;
        }
    }

    /// The same run, which does not end for want of lanes before those in reserve were [added](Run::add_lanes).
    pub fn with_reserve(mut self) -> Self {
        self.has_reserve = true;
        self
    }

    /// The same, with items that cost unlike amounts.
    pub fn with_costs(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }

    /// A run whose items come one after another: more can be added until it is closed.
    pub fn open(lanes: &[LaneSpec], settings: Settings) -> Self {
        let mut run = Run::new(0, lanes, &Shares::Pulled, settings);
        run.open = true;
        run.outcome = lanes.is_empty().then_some(Outcome::NoLaneLeft);
        run
    }

    /// So many more items have come.
    pub fn grow(&mut self, items: u64) {
        self.items += items;
        if items > 0 {
            self.tail = Tail::default();
        }
    }

    /// No more items will come.
    pub fn close(&mut self) {
        self.open = false;
        self.complete();
    }

    /// Ends the run, whatever is in flight.
    pub fn stop(&mut self) {
        self.outcome.get_or_insert(Outcome::Stopped);
    }

    fn complete(&mut self) {
        if self.done == self.items && !self.open {
            self.outcome.get_or_insert(Outcome::Complete);
        }
    }

    /// What a lane has shown, for the next run of the same task. Nothing where it finished no chunk.
    pub fn learned(&self, lane: LaneIndex) -> Option<Expected> {
        self.lanes[lane].learned()
    }

    /// How the run has ended, once it has.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// What was counted, a lane each.
    pub fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    /// How a lane stands.
    pub fn state(&self, lane: LaneIndex) -> State {
        self.lanes[lane].quarantine.state
    }

    /// A lane's measured rate in items a second, once it is known.
    pub fn rate(&self, lane: LaneIndex) -> Option<f64> {
        self.lanes[lane].rate()
    }

    /// Items with an accepted result.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// When the last item was handed out, and for how long items that were in flight then were in flight at most. A run
    /// that is complete ended at most that long after that moment.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// When results were accepted last.
    pub fn last_accepted(&self) -> Time {
        self.last_accepted
    }

    /// Whether every item has been given to a lane: what is left is in flight.
    pub fn is_drained(&self) -> bool {
        self.next >= self.items
            && self.returned.is_empty()
            && (self.adaptive || self.lanes.iter().all(|lane| lane.share.is_none()))
    }

    /// Notes whether every item has been handed out by now.
    fn note_drained(&mut self, now: Time) {
        match (self.is_drained(), self.tail.drained) {
            (true, None) => self.tail.drained = Some(now),
            (false, Some(_)) => self.tail = Tail::default(),
            _ => {}
        }
    }

    /// A lane has room for at most so many items at once.
    pub fn limit(&mut self, lane: LaneIndex, max_items: u64) {
        self.lanes[lane].limit(max_items);
    }

    /// A chunk was done in so many parts, each of which counts as one.
    pub fn done_in_parts(&mut self, lane: LaneIndex, parts: u64) {
        self.tallies[lane].chunks += parts.saturating_sub(1);
    }

    /// A lane that may have room asks what to do.
    pub fn ask(&mut self, lane: LaneIndex, now: Time) -> Answer {
        if self.outcome.is_some() {
            return Answer::Ended;
        }
        self.lanes[lane].has_asked = true;
        if !self.lanes[lane].has_room(now) {
            let until = match self.state(lane) {
                State::Quarantined { until } if until > now => Some(until),
                _ => None,
            };
            return Answer::Wait { until };
        }
        if !self.lanes[lane].is_healthy() {
            self.lanes[lane].on_trial = true;
        }
        if now >= self.next_suspicion
            && let Some(chunk) = self.copy_suspect(lane, now)
        {
            return Answer::Run(chunk);
        }
        if let Some(steal) = self.steal_dear(lane, now) {
            return steal;
        }
        if !self.is_drained() {
            // A lane that would be done with its part later than the others with everything leaves it to them.
            let Some(size) = self.size_for(lane, now) else {
                if self.lanes[lane].in_flight > 0 {
                    // It asks again when a chunk of its own ends.
                    return Answer::Wait { until: None };
                }
                let item = self.lanes[lane].pace.map_or(0.0, |pace| pace.time_of(1.0));
                let soon = now.saturating_add(seconds((item / 8.0).clamp(5e-5, 1e3)));
                return Answer::Wait { until: Some(soon.min(self.look_again(now))) };
            };
            if let Some(items) = self.take(lane, size, now) {
                let purpose = if self.lanes[lane].on_trial { Purpose::Canary } else { Purpose::Work };
                let chunk = self.hand_out(lane, items, purpose, None, now);
                self.note_drained(now);
                return Answer::Run(chunk);
            }
        }
        self.ask_idle(lane, now)
    }

    /// When a lane that waits looks again whether another has become late.
    fn look_again(&self, now: Time) -> Time {
        now.saturating_add(self.settings.look_again.max(now / 200))
    }

    /// A chunk has ended well, at once after it began; it kept its lane busy for so long.
    pub fn finished(&mut self, chunk: u64, took: Duration, now: Time) -> Verdict {
        self.ended(chunk, took, took, now)
    }

    /// A chunk has ended well. It kept its lane busy for so long, and so long is it since it was handed out: more, where
    /// the lane was busy with another one too.
    pub fn ended(&mut self, chunk: u64, took: Duration, latency: Duration, now: Time) -> Verdict {
        let Some(attempt) = self.attempts.get(chunk) else {
            // Its lane was set aside, and its items are in other hands or done.
            return Verdict::Drop;
        };
        self.last_sign = now;
        self.longest_chunk = self.longest_chunk.max(latency);
        if attempt.lost.is_some() {
            if let Some((attempt, _)) = self.attempts.remove(chunk) {
                self.tallies[attempt.lane].dropped += 1;
                self.end(&attempt, took, latency, now);
            }
            return Verdict::Drop;
        }
        let Some(attempt) = self.attempts.accept(chunk, now, took) else { return Verdict::Drop };
        self.last_accepted = now;
        let count = len_of(&attempt.open);
        let tally = &mut self.tallies[attempt.lane];
        tally.items += count;
        tally.rescues += u64::from(attempt.rescue);
        if self.tail.drained.is_some_and(|drained| attempt.since <= drained) {
            self.tail.longest = self.tail.longest.max(now.saturating_sub(attempt.since));
        }
        self.end(&attempt, took, latency, now);
        self.done += count;
        self.complete();
        match attempt.open.as_slice() {
            [all] if *all == attempt.items => Verdict::Accept,
            parts => Verdict::AcceptPart(parts.to_vec()),
        }
    }

    /// A chunk is out of its lane's hands, in good order.
    fn end(&mut self, attempt: &Attempt, took: Duration, latency: Duration, now: Time) {
        self.tallies[attempt.lane].chunks += 1;
        let lane = &mut self.lanes[attempt.lane];
        lane.end(attempt.cost, now);
        self.learn(attempt.lane, attempt.cost, took, latency);
        let lane = &mut self.lanes[attempt.lane];
        if self.settings.limit.is_some_and(|limit| latency < limit / 4) {
            lane.max_within_limit = lane.max_within_limit.saturating_mul(2);
        }
        if attempt.canary {
            lane.on_trial = false;
            lane.quarantine.state = State::Healthy;
            self.nobody_since = None;
        }
    }

    /// A lane has shown what a chunk of so much cost takes it.
    fn learn(&mut self, lane: LaneIndex, cost: f64, took: Duration, latency: Duration) {
        let lane = &mut self.lanes[lane];
        let before = lane.pace;
        lane.learn(cost, took, latency);
        if let Some(pace) = lane.pace {
            self.known_lanes += u32::from(before.is_none());
            self.known_rate += pace.each.recip() - before.map_or(0.0, |before| before.each.recip());
        }
    }

    /// Hands items to a lane. Where they are a part of a chunk that another lane goes on with, that is the parent.
    fn hand_out(
        &mut self,
        lane: LaneIndex,
        items: Range<u64>,
        purpose: Purpose,
        parent: Option<u64>,
        now: Time,
    ) -> Chunk {
        let cost = self.costs.of(&items);
        let mut attempt = Attempt::new(lane, items.clone(), cost, now);
        attempt.rescue = purpose == Purpose::Rescue;
        attempt.canary = self.lanes[lane].on_trial;
        attempt.divisible = self.lanes[lane].divisible && len(&items) > 1;
        attempt.exclusive = parent.is_none() && !attempt.canary && self.may_be_exclusive(lane, cost);
        if let Some(parent) = parent.and_then(|parent| self.attempts.get(parent)) {
            attempt.since = parent.since;
        }
        let exclusive = attempt.exclusive;
        self.lanes[lane].begin(cost, now);
        let id = self.attempts.insert(attempt, parent);
        let at_once = self.lanes[lane].at_once;
        Chunk { id, lane, items, purpose, exclusive, at_once }
    }
}

fn len(items: &Range<u64>) -> u64 {
    items.end - items.start
}

/// A time of so many seconds; none for less than that, and some decades for what is too long.
fn seconds(seconds: f64) -> Duration {
    let longest = Duration::from_secs(1_000_000_000);
    let other = if seconds > 0.0 { longest } else { Duration::ZERO };
    Duration::try_from_secs_f64(seconds).map_or(other, |time| time.min(longest))
}
