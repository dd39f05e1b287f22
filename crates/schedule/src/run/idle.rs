//! What a lane does when everything is handed out: it steals items that another lane has not begun, or runs a speculative
//! copy of the chunk that would end last.

use std::{ops::Range, time::Duration};

use super::{
    Answer, LaneChunk, LaneIndex, Purpose, Run, Time,
    attempts::{Attempt, len_of},
    lane::Pace,
    len, seconds,
    sizes::MIN_STEAL,
};

/// A copy must be faster than the estimate by this factor.
const MARGIN: f64 = 1.1;
/// The time before a lane asks again, after it found all items claimed.
const RETRY_AFTER: Duration = Duration::from_micros(100);
/// Minimum time between checks for chunks with expensive items while there is other work.
const EXPENSIVE_CHECK_INTERVAL: Duration = Duration::from_micros(200);
/// A chunk that takes this long is a straggler, if no lane's speed is known.
const STRAGGLER_AFTER: Duration = Duration::from_secs(1);

impl Run {
    /// Answers an idle lane when everything is handed out.
    pub(super) fn ask_idle(&mut self, lane: LaneIndex, now: Time) -> Answer {
        let scale = self.seconds_per_score();
        let on_trial = self.lanes[lane].on_trial;
        if self.adaptive
            && !on_trial
            && let Some(steal) = self.steal(lane, scale, now)
        {
            return steal;
        }
        match self.straggler_to_copy(lane, scale, now) {
            SpeculativeCopy::Now { of, mut items } => {
                if on_trial {
                    // A small copy shows as well as any other chunk whether the lane works again.
                    let small = self.first_chunk(&self.lanes[lane]) as u64;
                    items.start = items.start.max(items.end.saturating_sub(small));
                }
                // A lane whose device is about to be taken away copies what it can finish.
                let most = self.cost_before_end(lane, now).max(1.0) as u64;
                items.start = items.start.max(items.end.saturating_sub(most));
                Answer::Run(self.hand_out(lane, items, Purpose::Speculative, Some(of), now))
            }
            SpeculativeCopy::Later(when) => {
                // The lane is ready for a canary and there are no items for it, so it does not count as gone. While another
                // lane has items in flight, that lane decides.
                let nothing_in_flight = self.attempts.iter().next().is_none();
                if on_trial
                    && nothing_in_flight
                    && let Some(since) = &mut self.no_healthy_since
                {
                    *since = now;
                }
                let soonest = now.saturating_add(RETRY_AFTER);
                Answer::Wait { until: Some(when.max(soonest)) }
            }
        }
    }

    /// Minimum number of unclaimed items that are worth stealing, if the lane may choose its victim itself before it asks: a
    /// driver that knows the progress of each worker finds the most unclaimed items sooner than [`Run::ask`] does. It
    /// reports the result with [`Run::stolen`] or [`Run::found_nothing`].
    pub fn min_steal_items(&self, lane: LaneIndex) -> Option<u64> {
        let it = &self.lanes[lane];
        let is_free = it.is_healthy() && it.in_flight < it.depth && it.ends_at.is_none();
        if !self.all_share_freely() || self.outcome.is_some() || !is_free || !self.is_drained() {
            return None;
        }
        let each = it.pace?.each;
        Some((MIN_STEAL.as_secs_f64() / each).clamp(2.0, 1e15) as u64)
    }

    /// Whether items may be stolen from a chunk. Not if its lane was found to have claimed all of them: what it gives back
    /// after that goes to the run, and other lanes may have copies of it.
    pub fn can_be_stolen_from(&self, chunk: u64) -> bool {
        self.attempts.get(chunk).is_some_and(|attempt| attempt.divisible && attempt.superseded.is_none())
    }

    /// A lane found too few items to steal. Returns when it should ask, or `None` if it has waited already.
    pub fn found_nothing(&mut self, lane: LaneIndex, now: Time) -> Option<Time> {
        let has_waited = std::mem::replace(&mut self.lanes[lane].found_nothing, true);
        (!has_waited).then(|| now.saturating_add(RETRY_AFTER))
    }

    /// Whether the next [`Run::ask`] may steal, so that the driver should [report](Run::note_begun) each lane's progress.
    pub fn may_steal(&self, now: Time) -> bool {
        self.is_drained() || self.is_time_to_check_expensive(now)
    }

    fn is_time_to_check_expensive(&self, now: Time) -> bool {
        self.all_share_freely() && self.measured_rate > 0.0 && now >= self.next_expensive_check
    }

    /// A chunk to steal from although not everything is handed out: one whose items turn out so expensive that its lane
    /// would still be at them when all other work is done. Expensive items at the end leave lanes idle; cheap ones do not.
    /// The check reads every lane, so it is made now and then only.
    pub(super) fn steal_expensive(&mut self, lane: LaneIndex, now: Time) -> Option<Answer> {
        if self.is_drained() || self.lanes[lane].on_trial || !self.is_time_to_check_expensive(now) {
            return None;
        }
        self.next_expensive_check = now.saturating_add(EXPENSIVE_CHECK_INTERVAL.max(now / 200));
        let mean = self.measured_rate / f64::from(self.measured_lanes.max(1));
        let mut work = self.unclaimed_cost() / mean;
        let mut last: Option<(f64, u64)> = None;
        for (chunk, attempt) in self.attempts.iter().filter(|(_, attempt)| attempt.superseded.is_none()) {
            let Some(left) = self.left_by_recent_items(attempt, now) else { continue };
            work += left;
            let is_stealable = attempt.divisible && attempt.lane != lane;
            if is_stealable && last.is_none_or(|last| left > last.0) {
                last = Some((left, chunk));
            }
        }
        let (left, from) = last?;
        (left > work / self.lanes.len() as f64).then(|| Answer::Steal {
            from,
            fraction: 0.5,
            max_items: self.lanes[lane].max_items.min(self.cost_before_end(lane, now).max(1.0) as u64),
        })
    }

    /// Another lane's chunk to steal from: the one that would end last.
    fn steal(&self, lane: LaneIndex, scale: Option<f64>, now: Time) -> Option<Answer> {
        let it = &self.lanes[lane];
        let own = self.pace_of(it, scale);
        let candidates = self.attempts.iter().filter(|(_, attempt)| {
            attempt.divisible
                && attempt.lane != lane
                && attempt.superseded.is_none()
                && len(&attempt.items) > 1
        });
        let end = |attempt: &Attempt| {
            let pace = self.pace_of(&self.lanes[attempt.lane], scale);
            pace.map_or(now + now.saturating_sub(attempt.began), |pace| self.likely_end(attempt, pace, now))
        };
        let (from, victim, end) = candidates
            .map(|(chunk, attempt)| (chunk, attempt, end(attempt)))
            .max_by(|a, b| a.2.cmp(&b.2).then(b.0.cmp(&a.0)))?;
        // A launch may cost more than the rest of the chunk. A lane that works item by item launches nothing: its measured
        // overhead in short runs is noise.
        let launches = !it.divisible || it.launch > 0.0;
        let launch = own.map_or(0.0, |pace| if launches { pace.overhead * MARGIN } else { 0.0 });
        let launch = seconds(launch);
        if end.saturating_sub(now) < launch.max(MIN_STEAL) {
            return None;
        }
        let theirs = self.pace_of(&self.lanes[victim.lane], scale);
        let fraction = match (own, theirs) {
            (Some(own), Some(theirs)) => theirs.each / (own.each + theirs.each),
            _ => 0.5,
        };
        Some(Answer::Steal {
            from,
            fraction: fraction.clamp(0.05, 0.95),
            max_items: it.max_items.min(self.cost_before_end(lane, now).max(1.0) as u64),
        })
    }

    /// Reports the result of [`Answer::Steal`]: the items that were taken from the end of the chunk, or `None` if its lane
    /// had claimed all of them. Returns what the lane that asked does next.
    pub fn stolen(&mut self, lane: LaneIndex, from: u64, taken: Option<Range<u64>>, now: Time) -> Answer {
        if self.outcome.is_some() {
            return Answer::Ended;
        }
        let Some(items) = taken else {
            if !self.is_drained() {
                // The victim gives back the items that it has claimed and not begun.
                return self.ask(lane, now);
            }
            if let Some(attempt) = self.attempts.get_mut(from) {
                attempt.divisible = false;
            }
            return self.ask_idle(lane, now);
        };
        let Some(victim) = self.attempts.get(from).map(|attempt| attempt.lane) else {
            return self.ask_idle(lane, now);
        };
        let Some((since, parent)) = self.attempts.cut(from, items.start) else {
            return self.ask_idle(lane, now);
        };
        self.reduce_cost(from, victim, self.costs.of(&items));
        self.tallies[lane].steals += 1;
        let chunk = self.hand_out(lane, items, Purpose::Steal, parent, now);
        if let Some(attempt) = self.attempts.get_mut(chunk.id) {
            attempt.since = since;
        }
        Answer::Run(chunk)
    }

    /// Ends a chunk before the item `at`, which its lane has not begun. Returns whether items were given back.
    pub fn shrink(&mut self, chunk: u64, at: u64, now: Time) -> bool {
        let Some(attempt) = self.attempts.get(chunk).filter(|it| at > it.items.start && at < it.items.end)
        else {
            return false;
        };
        let (lane, cost) = (attempt.lane, self.costs.of(&(at..attempt.items.end)));
        let orphaned = self.attempts.shrink(chunk, at, now);
        self.reduce_cost(chunk, lane, cost);
        let any = !orphaned.is_empty();
        orphaned.into_iter().rev().for_each(|items| self.returned.push_front(items));
        self.note_drained(now);
        any
    }

    /// Reduces the cost of a chunk, and the load of its lane.
    fn reduce_cost(&mut self, chunk: u64, lane: LaneIndex, cost: f64) {
        if let Some(attempt) = self.attempts.get_mut(chunk) {
            attempt.cost = (attempt.cost - cost).max(0.0);
            self.lanes[lane].load = (self.lanes[lane].load - cost).max(0.0);
        }
    }

    /// Records the progress of a chunk that others can steal from: the first item that its lane has not begun.
    pub fn note_begun(&mut self, chunk: u64, first_not_begun: u64, now: Time) {
        let Some(attempt) = self.attempts.get_mut(chunk) else { return };
        let begun = first_not_begun.clamp(attempt.items.start, attempt.items.end);
        let before = attempt.first_not_begun.replace(begun).unwrap_or(attempt.items.start);
        if begun > before {
            let took = now.saturating_sub(attempt.advanced).as_secs_f64();
            attempt.recent_each = took / (begun - before) as f64;
            attempt.advanced = now;
        }
    }

    /// Seconds for the rest of a chunk, if each item takes as long as the recent ones, or as the present one so far. `None` if
    /// all items are begun.
    fn left_by_recent_items(&self, attempt: &Attempt, now: Time) -> Option<f64> {
        let begun = attempt.first_not_begun.filter(|begun| *begun < attempt.items.end)?;
        let each = now.saturating_sub(attempt.advanced).as_secs_f64().max(attempt.recent_each);
        Some(each * (attempt.items.end - begun) as f64)
    }

    /// Estimates when a chunk ends: by its progress if known, else by its lane's pace. A chunk that is late already may take
    /// as long again as it is late.
    fn likely_end(&self, attempt: &Attempt, pace: Pace, now: Time) -> Time {
        let lane = &self.lanes[attempt.lane];
        let (began, takes) = match lane.in_flight {
            // A chunk behind another one of its lane begins later.
            2.. => (lane.busy_since, pace.overhead * lane.in_flight as f64 + pace.each * lane.load),
            _ => (attempt.began.max(lane.busy_since), pace.time_of(attempt.cost)),
        };
        let end = began.saturating_add(seconds(takes));
        let late = now.saturating_sub(end);
        // The present item may take long, so progress says nothing about a chunk that is late.
        let by_pace = if late.is_zero() { end } else { now.saturating_add(late) };
        let by_progress = self.end_by_progress(attempt, now);
        by_progress.map_or(by_pace, |end| if late.is_zero() { end } else { end.max(by_pace) })
    }

    /// Estimates when a chunk ends by its progress: the rest takes as long per item as the part that is begun.
    fn end_by_progress(&self, attempt: &Attempt, now: Time) -> Option<Time> {
        let spent = now.saturating_sub(attempt.began);
        let begun = attempt.first_not_begun?.min(attempt.items.end);
        if begun <= attempt.items.start || begun == attempt.items.end || spent < MIN_STEAL {
            return None;
        }
        let done = self.costs.of(&(attempt.items.start..begun));
        let left = self.costs.of(&(begun..attempt.items.end));
        Some(now.saturating_add(seconds(spent.as_secs_f64() * left / done.max(f64::MIN_POSITIVE))))
    }

    /// A speculative copy of a chunk that may have hung, although there is other work: it shows whether the chunk has hung.
    /// The check is made now and then only.
    pub(super) fn copy_suspected_hang(&mut self, lane: LaneIndex, now: Time) -> Option<LaneChunk> {
        self.next_hang_check = now.saturating_add(self.settings.hung_after / 10);
        if !self.adaptive || self.lanes[lane].on_trial || self.settings.chunk_limit.is_some() {
            return None;
        }
        let scale = self.seconds_per_score();
        let suspects = self.attempts.iter().filter(|(_, attempt)| {
            attempt.lane != lane
                && !attempt.exclusive
                && attempt.superseded.is_none()
                && self.may_have_hung_at(attempt, scale).is_some_and(|hung| hung <= now)
        });
        let (of, items) = suspects
            .filter_map(|(chunk, attempt)| Some((chunk, self.attempts.uncovered(attempt).last()?.clone())))
            .next()?;
        let own = self.pace_of(&self.lanes[lane], scale)?;
        // The copy is short, so that little is wasted if the chunk has not hung.
        let time = self.settings.hung_after.as_secs_f64() / 10.0;
        let start = self.costs.start_for_cost(&items, (time / own.each).max(1.0));
        let start = start.max(items.end.saturating_sub(self.lanes[lane].max_items));
        // From now on the chunk is copied, not stolen from.
        self.attempts.get_mut(of)?.divisible = false;
        self.next_hang_check = now;
        Some(self.hand_out(lane, start..items.end, Purpose::Speculative, Some(of), now))
    }

    /// The time of a chunk so far, as a multiple of its expected time.
    fn lateness(&self, attempt: &Attempt, scale: Option<f64>, now: Time) -> f64 {
        let lane = &self.lanes[attempt.lane];
        let Some(pace) = self.pace_of(lane, scale) else { return 1.0 };
        let since = attempt.began.max(lane.busy_since);
        now.saturating_sub(since).as_secs_f64() / pace.time_of(attempt.cost).max(1e-9)
    }

    /// From when on a chunk may have hung, because it takes far longer than expected.
    fn may_have_hung_at(&self, attempt: &Attempt, scale: Option<f64>) -> Option<Time> {
        let lane = &self.lanes[attempt.lane];
        if !lane.may_hang {
            return None;
        }
        let takes = |pace: Pace| pace.time_of(attempt.cost) * lane.in_flight.max(1) as f64;
        let long = match self.pace_of(lane, scale) {
            Some(pace) => seconds(takes(pace) * self.settings.hung_factor),
            // No lane's speed is known.
            None => self.settings.silence / 2,
        };
        Some(attempt.began.max(lane.busy_since).saturating_add(long.max(self.settings.hung_after)))
    }

    /// The copy that a lane should run: a part of the chunk that would end last, from its end, if all idle lanes together
    /// would finish it sooner. Otherwise when to check again.
    fn straggler_to_copy(&self, lane: LaneIndex, scale: Option<f64>, now: Time) -> SpeculativeCopy {
        let idle = |index: usize| self.lanes[index].is_healthy() && self.lanes[index].in_flight == 0;
        let rates = (0..self.lanes.len())
            .filter(|&index| index == lane || idle(index))
            .filter_map(|index| Some(self.pace_of(&self.lanes[index], scale)?.each.recip()));
        let idle_rate: f64 = rates.sum();
        let own = self.pace_of(&self.lanes[lane], scale);
        let mut best: Option<(Time, u64, &Attempt)> = None;
        let mut later = now.saturating_add(self.settings.straggler_check.max(now / 20));
        for (chunk, attempt) in self.attempts.iter() {
            if attempt.lane == lane || attempt.exclusive || attempt.divisible || attempt.superseded.is_some()
            {
                continue;
            }
            // With fixed shares, or without speculative copies, only a chunk that may have hung is copied.
            if !self.settings.speculative_copies || !self.adaptive {
                let hung = self.may_have_hung_at(attempt, scale);
                if hung.is_none_or(|hung| hung > now) {
                    later = later.min(hung.unwrap_or(later));
                    continue;
                }
            }
            let theirs = self.pace_of(&self.lanes[attempt.lane], scale);
            let (Some(own), Some(theirs)) = (own, theirs) else {
                // No speed is known, only the time so far.
                let late = attempt.began.saturating_add(STRAGGLER_AFTER);
                if late <= now && best.is_none() && !self.attempts.uncovered(attempt).is_empty() {
                    best = Some((now, chunk, attempt));
                }
                if late > now {
                    later = later.min(late);
                }
                continue;
            };
            let end = self.likely_end(attempt, theirs, now);
            if best.as_ref().is_some_and(|best| best.0 >= end) {
                continue;
            }
            let open = self.attempts.uncovered(attempt);
            if open.is_empty() {
                continue;
            }
            let cost: f64 = open.iter().map(|items| self.costs.of(items)).sum();
            // Many lanes share the chunk, but one lane does an item.
            let each = (cost / idle_rate).max(own.each * cost / len_of(&open) as f64);
            let together = seconds((own.overhead + each) * MARGIN);
            if now.saturating_add(together) < end {
                best = Some((end, chunk, attempt));
            } else {
                // A chunk that is not late is worth copying when it is late by as much as the copy takes.
                later = later.min(end.saturating_add(together));
            }
        }
        match best {
            Some((_, of, attempt)) => SpeculativeCopy::Now {
                of,
                items: self.part_to_copy(lane, attempt, own, idle_rate, scale, now),
            },
            None => SpeculativeCopy::Later(later),
        }
    }

    /// The part of a chunk's open items that a lane copies: its share among all lanes, which will be idle soon too, but enough
    /// to be worth a chunk; or its share among the idle lanes if that is little.
    fn part_to_copy(
        &self,
        lane: LaneIndex,
        attempt: &Attempt,
        own: Option<Pace>,
        idle_rate: f64,
        scale: Option<f64>,
        now: Time,
    ) -> Range<u64> {
        let open = self.attempts.uncovered(attempt);
        // There is one: only chunks with open items are candidates.
        let last = open.last().cloned().unwrap_or(attempt.items.clone());
        let cost: f64 = open.iter().map(|items| self.costs.of(items)).sum();
        let wanted = match own {
            Some(pace) => {
                // If the chunk is late, its items may be that much more expensive.
                let each = pace.each * self.lateness(attempt, scale, now).max(1.0);
                let share = cost * (pace.each.recip() / idle_rate).min(1.0);
                let is_little = each * share < pace.overhead * 8.0 || len_of(&open) <= 2;
                let little = pace.overhead * 4.0 / each;
                let part = cost * (pace.each.recip() / self.rate_of_all(scale)).min(0.5);
                if is_little { share } else { part.max(little).min(share) }
            }
            None => cost / 2.0,
        };
        let start = self.costs.start_for_cost(&last, wanted.max(1.0));
        let most = self.lanes[lane].max_items;
        start.max(last.end.saturating_sub(most))..last.end
    }
}

/// Whether a lane should run a speculative copy of another lane's chunk.
enum SpeculativeCopy {
    Now {
        of: u64,
        items: Range<u64>,
    },
    /// Check again at this time.
    Later(Time),
}
