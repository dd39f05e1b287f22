//! What happens when a chunk fails or hangs, and which lanes are trusted.
//!
//! A lane is set aside on evidence only: its device said that it failed, the user's own limit has passed, or other lanes
//! have done the same items in a small part of the time.

use std::time::Duration;

use super::{
    Failure, LaneIndex, Outcome, Run, Settings, State, Time, attempts::Attempt, lane::Lane, len, seconds,
};

/// Lanes in reserve are added once the others have neither begun nor ended a chunk for this long,
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// and for so many times the longest chunk so far, or the time that what is in flight should take.
const SILENT_FACTOR: u32 = 4;
/// A share of a fixed split is left to others once its lane has not been ready for this long.
pub(super) const NOT_READY_AFTER: Duration = Duration::from_secs(10);

impl Run {
    /// A chunk has failed.
    pub fn failed(&mut self, chunk: u64, failure: Failure, now: Time) {
        let Some((attempt, orphaned)) = self.attempts.remove(chunk) else { return };
        let lane = attempt.lane;
        self.lanes[lane].end(attempt.cost, now);
        self.returned.extend(orphaned);
        let has_lost = attempt.lost.is_some();
        if !has_lost {
            self.tallies[lane].retries += 1;
        }
        match failure {
            Failure::Task if !has_lost => {
                self.outcome.get_or_insert(Outcome::TaskFailed(attempt.items));
            }
            // Its items are done already, whichever lane failed on them.
            Failure::Task => {}
            Failure::TooLarge if has_lost => {}
            Failure::TooLarge if len(&attempt.items).min(self.lanes[lane].at_once) > 1 => {
                let at_once = len(&attempt.items).min(self.lanes[lane].at_once);
                self.lanes[lane].limit(at_once / 2);
            }
            Failure::Unable => self.retire(lane, now),
            Failure::TooLarge | Failure::Untrusted => self.quarantine(lane, now),
        }
        self.note_drained(now);
    }

    /// A chunk was given up by its lane without having failed, because all of its items are done.
    pub fn dropped(&mut self, chunk: u64, now: Time) {
        let Some((attempt, orphaned)) = self.attempts.remove(chunk) else { return };
        self.lanes[attempt.lane].end(attempt.cost, now);
        self.returned.extend(orphaned);
        self.note_drained(now);
    }

    /// A lane has failed without a chunk in hand, while it was made ready. What would be halved cannot be.
    pub fn lane_failed(&mut self, lane: LaneIndex, failure: Failure, now: Time) {
        // A lane that cannot do this task cannot, whatever its other workers say.
        if self.lanes[lane].quarantine.is_retired() {
            return;
        }
        match failure {
            Failure::Unable | Failure::Task => self.retire(lane, now),
            Failure::TooLarge | Failure::Untrusted => self.quarantine(lane, now),
        }
        self.note_drained(now);
    }

    /// The whole process, or the machine, stood still for so long: it counts for no chunk.
    pub fn stood_still(&mut self, gap: Duration, now: Time) {
        let later = |time: &mut Time| *time = time.saturating_add(gap).min(now);
        for attempt in self.attempts.iter_mut() {
            later(&mut attempt.began);
            later(&mut attempt.advanced);
            if let Some(lost) = &mut attempt.lost {
                later(lost);
            }
        }
        self.lanes.iter_mut().for_each(|lane| later(&mut lane.busy_since));
        later(&mut self.last_sign);
        if let Some(since) = &mut self.nobody_since {
            later(since);
        }
    }

    /// Looks for chunks that have hung, and whether it is time to end a run in which no lane is left. The lanes of
    /// chunks that have hung are put into quarantine; what no other lane has in hand is given back. Gives the numbers
    /// of these chunks.
    pub fn overdue(&mut self, now: Time) -> Vec<u64> {
        if self.outcome.is_some() {
            return Vec::new();
        }
        let due = |(chunk, attempt): (u64, &Attempt)| {
            self.deadline(attempt).is_some_and(|deadline| deadline <= now).then_some((chunk, attempt.lane))
        };
        let hung: Vec<(u64, LaneIndex)> = self.attempts.iter().filter_map(due).collect();
        for &(chunk, lane) in &hung {
            // Quarantining its lane for another chunk may have taken this one out already.
            let Some(attempt) = self.attempts.get(chunk) else { continue };
            let (cost, age) = (attempt.cost, now.saturating_sub(attempt.began));
            if attempt.lost.is_none() {
                self.tallies[lane].retries += 1;
            }
            if self.settings.limit.is_some() {
                // Its items may all be dear: with fewer of them a chunk may be done in time.
                self.lanes[lane].max_within_limit = (len(&attempt.items) / 2).max(1);
            }
            // It is at least as slow as this; should it only have been slow, it is given less when it is back.
            self.learn(lane, cost, age, age);
            self.quarantine(lane, now);
        }
        let mut hung: Vec<u64> = hung.into_iter().map(|(chunk, _)| chunk).collect();
        if self.silence_ends().is_some_and(|end| end <= now) {
            hung.extend(self.attempts.iter().map(|(chunk, _)| chunk));
            self.outcome.get_or_insert(Outcome::NoLaneLeft);
        }
        if self.return_limit_ends().is_some_and(|end| end <= now) {
            self.outcome.get_or_insert(Outcome::NoLaneLeft);
        }
        self.note_drained(now);
        hung
    }

    /// Whether the lanes in reserve should be added: no lane is healthy, or all that are have been silent for a while, and
    /// may never give a sign of life. Plain code is waited for.
    pub fn needs_reserve(&self, now: Time) -> bool {
        if !self.has_reserve || self.outcome.is_some() {
            return false;
        }
        let scale = self.seconds_per_score();
        let expected = |it: &Lane| {
            let pace = self.pace_of(it, scale).filter(|_| it.in_flight > 0)?;
            Some(seconds(pace.overhead * it.in_flight as f64 + pace.each * it.load))
        };
        let longest = self.lanes.iter().filter_map(expected).fold(self.longest_chunk, Duration::max);
        let began = self.attempts.iter().map(|(_, attempt)| attempt.began).max();
        let silence = now.saturating_sub(self.last_sign.max(began.unwrap_or_default()));
        let is_silent = silence >= SILENT_AFTER.max(longest.saturating_mul(SILENT_FACTOR));
        let mut healthy = self.lanes.iter().filter(|it| it.is_healthy());
        healthy.all(|it| is_silent && (it.may_hang || it.in_flight == 0))
    }

    /// When the next chunk will have to be taken for hung, or the run to end, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        let chunks = self.attempts.iter().filter_map(|(_, attempt)| self.deadline(attempt));
        chunks.chain(self.silence_ends()).chain(self.return_limit_ends()).min()
    }

    /// When a run ends whose lanes are all set aside. Not while one of them has a chunk in hand that may show it to be
    /// well again.
    fn return_limit_ends(&self) -> Option<Time> {
        let since =
            self.nobody_since.filter(|_| !self.has_reserve && self.attempts.iter().next().is_none())?;
        Some(since.saturating_add(self.settings.return_limit))
    }

    /// When a chunk has to be taken for hung. The user's limit, where there is one, is the only one. Otherwise other
    /// lanes must have done all of its items, and it must go on for far longer than they and its own lane's history say.
    fn deadline(&self, attempt: &Attempt) -> Option<Time> {
        let lane = &self.lanes[attempt.lane];
        let began = attempt.began.max(lane.busy_since);
        if let Some(limit) = self.settings.limit {
            return Some(began.saturating_add(limit));
        }
        // A chunk that waits behind another says nothing: others must have done all that the lane has in hand.
        let mut lost = attempt.lost.filter(|_| lane.may_hang)?;
        let (mut others, mut cost) = (Duration::ZERO, 0.0);
        for (_, it) in self.attempts.iter().filter(|(_, it)| it.lane == attempt.lane) {
            lost = lost.max(it.lost?);
            others += it.others_took;
            cost += it.cost;
        }
        let pace = self.pace_of(lane, self.seconds_per_score());
        let own = pace.map_or(0.0, |pace| pace.overhead * lane.in_flight as f64 + pace.each * cost);
        let allowed = others.as_secs_f64().max(own) * self.settings.hung_factor;
        let allowed = seconds(allowed);
        Some(lost.saturating_add(self.settings.hung_after).max(began.saturating_add(allowed)))
    }

    /// When a run ends of which no lane has given a sign of life, although all have something in hand: nobody is there
    /// who could show that they have hung. Plain code is waited for.
    fn silence_ends(&self) -> Option<Time> {
        // A lane without a chunk is being made ready, or waits for one.
        let has_nothing = |it: &Lane| it.is_healthy() && it.in_flight == 0 && !it.has_asked;
        if self.settings.limit.is_some() || self.has_reserve || self.lanes.iter().any(has_nothing) {
            return None;
        }
        let mut last = self.last_sign;
        let mut any = false;
        let mut expected = self.longest_chunk.as_secs_f64() * self.settings.silence_factor;
        let scale = self.seconds_per_score();
        for (_, attempt) in self.attempts.iter() {
            if !self.lanes[attempt.lane].may_hang {
                return None;
            }
            any = true;
            let lane = &self.lanes[attempt.lane];
            if let Some(pace) = self.pace_of(lane, scale) {
                let all = pace.overhead * lane.in_flight as f64 + pace.each * lane.load;
                expected = expected.max(all * self.settings.silence_factor);
            }
            // One that is to show whether its lane is well again shows nothing while it runs.
            if !attempt.canary {
                last = last.max(attempt.began);
            }
        }
        let silence = self.settings.silence.max(seconds(expected));
        any.then(|| last.saturating_add(silence))
    }

    fn quarantine(&mut self, lane: LaneIndex, now: Time) {
        let Settings { cooldown, longest_cooldown, .. } = self.settings;
        let quarantine = &mut self.lanes[lane].quarantine;
        // Each time that it was well for four times as long as it was left alone, one failure is forgiven.
        quarantine.strike(now, cooldown, longest_cooldown, quarantine.last.saturating_mul(4));
        self.tallies[lane].quarantines += 1;
        self.set_aside(lane, now);
    }

    fn retire(&mut self, lane: LaneIndex, now: Time) {
        self.lanes[lane].quarantine.state = State::Retired;
        self.set_aside(lane, now);
    }

    /// Takes everything out of a lane's hands.
    fn set_aside(&mut self, lane: LaneIndex, now: Time) {
        self.lanes[lane].on_trial = false;
        let mine: Vec<u64> =
            self.attempts.iter().filter(|(_, it)| it.lane == lane).map(|(chunk, _)| chunk).collect();
        for chunk in mine {
            if let Some((attempt, orphaned)) = self.attempts.remove(chunk) {
                self.lanes[lane].end(attempt.cost, now);
                self.returned.extend(orphaned);
            }
        }
        if !self.has_reserve && self.lanes.iter().all(|it| it.quarantine.is_retired()) {
            self.outcome.get_or_insert(Outcome::NoLaneLeft);
        }
        if !self.lanes.iter().any(Lane::is_healthy) {
            self.nobody_since.get_or_insert(now);
        }
    }
}
