//! What a lane does once everything has been handed out: it steals what another has not begun, or runs a copy of what
//! another would finish last.

use std::{ops::Range, time::Duration};

use super::{
    Answer, Chunk, LaneIndex, Purpose, Run, Time,
    attempts::{Attempt, len_of},
    lane::Pace,
    len, seconds,
    sizes::LEAST_STOLEN,
};

/// An estimate has to be beaten by this factor before a copy begins.
const MARGIN: f64 = 1.1;
/// So long a lane waits before it asks for items of a worker that has begun, or claimed, all of its own.
const SOON: Duration = Duration::from_micros(100);
/// So often at most it is looked for chunks with dear items while there is other work.
const LOOK_FOR_DEAR: Duration = Duration::from_micros(200);
/// Where nothing is known of any lane, a chunk is copied once it has taken this long.
const UNKNOWN_IS_LATE: Duration = Duration::from_secs(1);

impl Run {
    /// A lane with nothing to do, in a run of which everything has been handed out.
    pub(super) fn ask_idle(&mut self, lane: LaneIndex, now: Time) -> Answer {
        let scale = self.seconds_per_score();
        let on_trial = self.lanes[lane].on_trial;
        if self.adaptive
            && !on_trial
            && let Some(steal) = self.steal(lane, scale, now)
        {
            return steal;
        }
        match self.copy_of_latest(lane, scale, now) {
            Copy::Now { of, mut items } => {
                if on_trial {
                    // A small copy shows whether it is well as any other chunk does.
                    let small = self.first_chunk(&self.lanes[lane]) as u64;
                    items.start = items.start.max(items.end.saturating_sub(small));
                }
                Answer::Run(self.hand_out(lane, items, Purpose::Rescue, Some(of), now))
            }
            Copy::Later(when) => {
                // It is ready to show that it is well, and there is nothing to show it with: it is not gone. Where another
                // lane has what is left in flight, that lane shows something.
                let nothing_in_flight = self.attempts.iter().next().is_none();
                if on_trial
                    && nothing_in_flight
                    && let Some(since) = &mut self.nobody_since
                {
                    *since = now;
                }
                let soonest = now.saturating_add(SOON);
                Answer::Wait { until: Some(when.max(soonest)) }
            }
        }
    }

    /// Whether a lane that asks should first look for items that no worker has begun, wherever most of them are, and how
    /// many must be there to be worth it: a driver that knows how far each worker has come finds them sooner than
    /// [`Run::ask`] does. What it takes is told with [`Run::stolen`], and [`Run::found_nothing`] if there is nothing.
    pub fn least_worth_stealing(&self, lane: LaneIndex) -> Option<u64> {
        let it = &self.lanes[lane];
        let is_free = it.is_healthy() && it.in_flight < it.depth;
        if !self.all_share_freely() || self.outcome.is_some() || !is_free || !self.is_drained() {
            return None;
        }
        let each = it.pace?.each;
        Some((LEAST_STOLEN.as_secs_f64() / each).clamp(2.0, 1e15) as u64)
    }

    /// Whether items may be taken from a chunk that its lane has not begun. Not where its lane was found to have begun all
    /// of them: what it gives back after that goes to the run, and other lanes may have copies of it.
    pub fn can_be_stolen_from(&self, chunk: u64) -> bool {
        self.attempts.get(chunk).is_some_and(|attempt| attempt.divisible && attempt.lost.is_none())
    }

    /// A lane has looked for items that no worker has begun, and there were too few. Says until when it waits before it
    /// asks; nothing where it has waited already.
    pub fn found_nothing(&mut self, lane: LaneIndex, now: Time) -> Option<Time> {
        let has_waited = std::mem::replace(&mut self.lanes[lane].found_nothing, true);
        (!has_waited).then(|| now.saturating_add(SOON))
    }

    /// Whether the next [`Run::ask`] may steal, so that the driver should [tell](Run::note_begun) how far each lane has come.
    pub fn may_steal(&self, now: Time) -> bool {
        self.is_drained() || self.is_time_to_look_for_dear(now)
    }

    fn is_time_to_look_for_dear(&self, now: Time) -> bool {
        self.all_share_freely() && self.known_rate > 0.0 && now >= self.next_look_for_dear
    }

    /// A chunk to steal from although not everything is handed out: one whose items turn out so dear that its lane would
    /// be at them after all other lanes have done everything else. Dear items that come last leave lanes idle, and cheap
    /// ones that come last do not. It is looked for now and then only, since that looks at every lane.
    pub(super) fn steal_dear(&mut self, lane: LaneIndex, now: Time) -> Option<Answer> {
        if self.is_drained() || self.lanes[lane].on_trial || !self.is_time_to_look_for_dear(now) {
            return None;
        }
        self.next_look_for_dear = now.saturating_add(LOOK_FOR_DEAR.max(now / 200));
        let mean = self.known_rate / f64::from(self.known_lanes.max(1));
        let mut work = self.unclaimed_cost() / mean;
        let mut last: Option<(f64, u64)> = None;
        for (chunk, attempt) in self.attempts.iter().filter(|(_, attempt)| attempt.lost.is_none()) {
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
            part: 0.5,
            most: self.lanes[lane].max_items,
        })
    }

    /// Another lane's chunk to steal from: the one that would end last.
    fn steal(&self, lane: LaneIndex, scale: Option<f64>, now: Time) -> Option<Answer> {
        let it = &self.lanes[lane];
        let own = self.pace_of(it, scale);
        let candidates = self.attempts.iter().filter(|(_, attempt)| {
            attempt.divisible && attempt.lane != lane && attempt.lost.is_none() && len(&attempt.items) > 1
        });
        let end = |attempt: &Attempt| {
            let pace = self.pace_of(&self.lanes[attempt.lane], scale);
            pace.map_or(now + now.saturating_sub(attempt.began), |pace| self.likely_end(attempt, pace, now))
        };
        let (from, victim, end) = candidates
            .map(|(chunk, attempt)| (chunk, attempt, end(attempt)))
            .max_by(|a, b| a.2.cmp(&b.2).then(b.0.cmp(&a.0)))?;
        // Launching costs more than some chunks have left to do. A lane that works item by item has nothing to launch: what
        // seems to be that in short runs is noise.
        let launches = !it.divisible || it.launch > 0.0;
        let launch = own.map_or(0.0, |pace| if launches { pace.overhead * MARGIN } else { 0.0 });
        let launch = seconds(launch);
        if end.saturating_sub(now) < launch.max(LEAST_STOLEN) {
            return None;
        }
        let theirs = self.pace_of(&self.lanes[victim.lane], scale);
        let part = match (own, theirs) {
            (Some(own), Some(theirs)) => theirs.each / (own.each + theirs.each),
            _ => 0.5,
        };
        Some(Answer::Steal { from, part: part.clamp(0.05, 0.95), most: it.max_items })
    }

    /// What came of [`Answer::Steal`]: the items that were taken from the end of the chunk, or nothing where its lane had
    /// begun all of them. Gives what the lane that asked is to do.
    pub fn stolen(&mut self, lane: LaneIndex, from: u64, taken: Option<Range<u64>>, now: Time) -> Answer {
        if self.outcome.is_some() {
            return Answer::Ended;
        }
        let Some(items) = taken else {
            if !self.is_drained() {
                // Its lane gives back what it has claimed and not begun.
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
        self.spare(from, victim, self.costs.of(&items));
        self.tallies[lane].steals += 1;
        let chunk = self.hand_out(lane, items, Purpose::Steal, parent, now);
        if let Some(attempt) = self.attempts.get_mut(chunk.id) {
            attempt.since = since;
        }
        Answer::Run(chunk)
    }

    /// A lane ends a chunk early: it has not begun the items from here on. Says whether any were given back.
    pub fn shrink(&mut self, chunk: u64, at: u64, now: Time) -> bool {
        let Some(attempt) = self.attempts.get(chunk).filter(|it| at > it.items.start && at < it.items.end)
        else {
            return false;
        };
        let (lane, cost) = (attempt.lane, self.costs.of(&(at..attempt.items.end)));
        let orphaned = self.attempts.shrink(chunk, at, now);
        self.spare(chunk, lane, cost);
        let any = !orphaned.is_empty();
        orphaned.into_iter().rev().for_each(|items| self.returned.push_front(items));
        self.note_drained(now);
        any
    }

    /// A chunk has become cheaper by so much.
    fn spare(&mut self, chunk: u64, lane: LaneIndex, cost: f64) {
        if let Some(attempt) = self.attempts.get_mut(chunk) {
            attempt.cost = (attempt.cost - cost).max(0.0);
            self.lanes[lane].load = (self.lanes[lane].load - cost).max(0.0);
        }
    }

    /// The driver tells how far a lane has come with a chunk that others can steal from: which item it has not begun.
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

    /// Seconds that a lane takes for what it has not begun of a chunk, if each item takes as long as those that it began
    /// shortly before, or as the one that it is at has taken. Nothing where it has begun all of them.
    fn left_by_recent_items(&self, attempt: &Attempt, now: Time) -> Option<f64> {
        let begun = attempt.first_not_begun.filter(|begun| *begun < attempt.items.end)?;
        let each = now.saturating_sub(attempt.advanced).as_secs_f64().max(attempt.recent_each);
        Some(each * (attempt.items.end - begun) as f64)
    }

    /// When a chunk probably ends: by how far its lane has come, where that is known, and else by the lane's pace. One that
    /// is late already may take as long again as it is late.
    fn likely_end(&self, attempt: &Attempt, pace: Pace, now: Time) -> Time {
        let lane = &self.lanes[attempt.lane];
        let (began, takes) = match lane.in_flight {
            // What is behind another chunk of its lane begins later.
            2.. => (lane.busy_since, pace.overhead * lane.in_flight as f64 + pace.each * lane.load),
            _ => (attempt.began.max(lane.busy_since), pace.time_of(attempt.cost)),
        };
        let end = began.saturating_add(seconds(takes));
        let late = now.saturating_sub(end);
        // What is begun may take long: it says nothing about a chunk that is late.
        let by_pace = if late.is_zero() { end } else { now.saturating_add(late) };
        let by_progress = self.end_by_progress(attempt, now);
        by_progress.map_or(by_pace, |end| if late.is_zero() { end } else { end.max(by_pace) })
    }

    /// When a chunk ends if what its lane has not begun takes as long an item as what it has begun.
    fn end_by_progress(&self, attempt: &Attempt, now: Time) -> Option<Time> {
        let spent = now.saturating_sub(attempt.began);
        let begun = attempt.first_not_begun?.min(attempt.items.end);
        if begun <= attempt.items.start || begun == attempt.items.end || spent < LEAST_STOLEN {
            return None;
        }
        let done = self.costs.of(&(attempt.items.start..begun));
        let left = self.costs.of(&(begun..attempt.items.end));
        Some(now.saturating_add(seconds(spent.as_secs_f64() * left / done.max(f64::MIN_POSITIVE))))
    }

    /// Has a lane do items of a chunk that may have hung, although there is other work: so it comes out whether it has. It
    /// is looked for now and then only.
    pub(super) fn copy_suspect(&mut self, lane: LaneIndex, now: Time) -> Option<Chunk> {
        self.next_suspicion = now.saturating_add(self.settings.hung_after / 10);
        if !self.adaptive || self.lanes[lane].on_trial || self.settings.limit.is_some() {
            return None;
        }
        let scale = self.seconds_per_score();
        let suspects = self.attempts.iter().filter(|(_, attempt)| {
            attempt.lane != lane
                && !attempt.exclusive
                && attempt.lost.is_none()
                && self.may_have_hung_at(attempt, scale).is_some_and(|hung| hung <= now)
        });
        let (of, items) = suspects
            .filter_map(|(chunk, attempt)| Some((chunk, self.attempts.uncovered(attempt).last()?.clone())))
            .next()?;
        let own = self.pace_of(&self.lanes[lane], scale)?;
        // For as long as a chunk of its own would take at most, so that little is lost if it has not hung.
        let time = self.settings.hung_after.as_secs_f64() / 10.0;
        let start = self.costs.retreat(&items, (time / own.each).max(1.0));
        let start = start.max(items.end.saturating_sub(self.lanes[lane].max_items));
        // What can be divided is not any more: it would have been stolen from.
        self.attempts.get_mut(of)?.divisible = false;
        self.next_suspicion = now;
        Some(self.hand_out(lane, start..items.end, Purpose::Rescue, Some(of), now))
    }

    /// How many times as long as expected a chunk has taken so far.
    fn lateness(&self, attempt: &Attempt, scale: Option<f64>, now: Time) -> f64 {
        let lane = &self.lanes[attempt.lane];
        let Some(pace) = self.pace_of(lane, scale) else { return 1.0 };
        let since = attempt.began.max(lane.busy_since);
        now.saturating_sub(since).as_secs_f64() / pace.time_of(attempt.cost).max(1e-9)
    }

    /// From when on a chunk may have hung: nothing says so but that it takes far longer than expected.
    fn may_have_hung_at(&self, attempt: &Attempt, scale: Option<f64>) -> Option<Time> {
        let lane = &self.lanes[attempt.lane];
        if !lane.may_hang {
            return None;
        }
        let takes = |pace: Pace| pace.time_of(attempt.cost) * lane.in_flight.max(1) as f64;
        let long = match self.pace_of(lane, scale) {
            Some(pace) => seconds(takes(pace) * self.settings.hung_factor),
            // Nothing is known of any lane.
            None => self.settings.silence / 2,
        };
        Some(attempt.began.max(lane.busy_since).saturating_add(long.max(self.settings.hung_after)))
    }

    /// A part of the chunk that would end last, from its far end, if all idle lanes together would be done with it
    /// sooner; or when that may be so.
    fn copy_of_latest(&self, lane: LaneIndex, scale: Option<f64>, now: Time) -> Copy {
        let idle = |index: usize| self.lanes[index].is_healthy() && self.lanes[index].in_flight == 0;
        let rates = (0..self.lanes.len())
            .filter(|&index| index == lane || idle(index))
            .filter_map(|index| Some(self.pace_of(&self.lanes[index], scale)?.each.recip()));
        let idle_rate: f64 = rates.sum();
        let own = self.pace_of(&self.lanes[lane], scale);
        let mut best: Option<(Time, u64, &Attempt)> = None;
        let mut later = now.saturating_add(self.settings.look_again.max(now / 20));
        for (chunk, attempt) in self.attempts.iter() {
            if attempt.lane == lane || attempt.exclusive || attempt.divisible || attempt.lost.is_some() {
                continue;
            }
            // Where shares are fixed, or nothing is to be done twice, there must be reason to think that it never ends.
            if !self.settings.rescue || !self.adaptive {
                let hung = self.may_have_hung_at(attempt, scale);
                if hung.is_none_or(|hung| hung > now) {
                    later = later.min(hung.unwrap_or(later));
                    continue;
                }
            }
            let theirs = self.pace_of(&self.lanes[attempt.lane], scale);
            let (Some(own), Some(theirs)) = (own, theirs) else {
                // Nothing is known of anything but how long it has been.
                let late = attempt.began.saturating_add(UNKNOWN_IS_LATE);
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
            // Many lanes share it, but an item is done by one.
            let each = (cost / idle_rate).max(own.each * cost / len_of(&open) as f64);
            let together = seconds((own.overhead + each) * MARGIN);
            if now.saturating_add(together) < end {
                best = Some((end, chunk, attempt));
            } else {
                // A chunk that is not late yet is worth copying once it is late by as much as the copy takes.
                later = later.min(end.saturating_add(together));
            }
        }
        match best {
            Some((_, of, attempt)) => {
                Copy::Now { of, items: self.far_part(lane, attempt, own, idle_rate, scale, now) }
            }
            None => Copy::Later(later),
        }
    }

    /// The part of a chunk's open items that a lane takes over: its share among all lanes, which will be idle soon too,
    /// but enough to be worth a chunk; and everything that the idle ones leave to it where that is little.
    fn far_part(
        &self,
        lane: LaneIndex,
        attempt: &Attempt,
        own: Option<Pace>,
        idle_rate: f64,
        scale: Option<f64>,
        now: Time,
    ) -> Range<u64> {
        let open = self.attempts.uncovered(attempt);
        // There is one: only chunks with open items are looked at.
        let last = open.last().cloned().unwrap_or(attempt.items.clone());
        let cost: f64 = open.iter().map(|items| self.costs.of(items)).sum();
        let wanted = match own {
            Some(pace) => {
                // Where the chunk is late, its items may be so much dearer than others.
                let each = pace.each * self.lateness(attempt, scale, now).max(1.0);
                let share = cost * (pace.each.recip() / idle_rate).min(1.0);
                let is_little = each * share < pace.overhead * 8.0 || len_of(&open) <= 2;
                let little = pace.overhead * 4.0 / each;
                let part = cost * (pace.each.recip() / self.rate_of_all(scale)).min(0.5);
                if is_little { share } else { part.max(little).min(share) }
            }
            None => cost / 2.0,
        };
        let start = self.costs.retreat(&last, wanted.max(1.0));
        let most = self.lanes[lane].max_items;
        start.max(last.end.saturating_sub(most))..last.end
    }
}

/// Whether a copy of another lane's chunk is to begin.
enum Copy {
    Now {
        of: u64,
        items: Range<u64>,
    },
    /// Not before this time.
    Later(Time),
}
