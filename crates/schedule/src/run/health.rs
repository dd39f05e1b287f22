//! Failed and hung chunks, and the quarantine of their lanes.
//!
//! A lane is set aside on evidence only: its device reported an error, the user's own limit has passed, or other lanes have
//! done the same items in a small part of the time.

use std::time::Duration;

use super::{
    FailureKind, LaneIndex, LaneState, Outcome, Run, Settings, Time, attempts::Attempt, lane::Lane, len,
    seconds,
};

/// Minimum time in which no lane begins or ends a chunk before lanes in reserve are added.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// Minimum of the same time for adding lanes in reserve, as a multiple of the longest chunk so far or of the expected time
/// of the chunks in flight.
const SILENT_FACTOR: u32 = 4;
/// Time between two checks whether a device has come that was not there.
const AWAITED_CHECK: Duration = Duration::from_millis(250);
/// Other lanes take a share of a fixed split if its lane has not been ready for this long.
pub(super) const ABANDON_SHARE_AFTER: Duration = Duration::from_secs(10);

impl Run {
    /// A chunk has failed.
    pub fn chunk_failed(&mut self, chunk: u64, failure: FailureKind, now: Time) {
        let Some((attempt, orphaned)) = self.attempts.remove(chunk) else { return };
        let lane = attempt.lane;
        self.lanes[lane].remove_in_flight(attempt.cost, now);
        self.returned.extend(orphaned);
        let is_superseded = attempt.superseded.is_some();
        if !is_superseded {
            self.tallies[lane].retries += 1;
        }
        match failure {
            FailureKind::Task if !is_superseded => {
                self.outcome.get_or_insert(Outcome::TaskFailed(attempt.items));
            }
            // Its items are done already.
            FailureKind::Task => {}
            FailureKind::TooLarge if is_superseded => {}
            FailureKind::TooLarge if len(&attempt.items).min(self.lanes[lane].at_once) > 1 => {
                let at_once = len(&attempt.items).min(self.lanes[lane].at_once);
                self.lanes[lane].shrink(at_once / 2);
            }
            FailureKind::Unable => self.retire(lane, now),
            FailureKind::TooLarge | FailureKind::Untrusted => self.quarantine(lane, now),
        }
        self.note_drained(now);
    }

    /// A lane gave up a chunk without an error, because all of its items are done.
    pub fn chunk_dropped(&mut self, chunk: u64, now: Time) {
        let Some((attempt, orphaned)) = self.attempts.remove(chunk) else { return };
        self.lanes[attempt.lane].remove_in_flight(attempt.cost, now);
        self.returned.extend(orphaned);
        self.note_drained(now);
    }

    /// A lane has failed without a chunk in flight, while its device was prepared. There is no chunk to halve.
    pub fn lane_failed(&mut self, lane: LaneIndex, failure: FailureKind, now: Time) {
        // A lane that cannot run this task stays retired, whatever its other workers report.
        if self.lanes[lane].quarantine.is_retired() {
            return;
        }
        if std::mem::replace(&mut self.lanes[lane].is_awaited, false) && self.no_healthy_since.is_some() {
            // Until now the run waited for it.
            self.no_healthy_since = Some(now);
        }
        match failure {
            FailureKind::Unable | FailureKind::Task => self.retire(lane, now),
            FailureKind::TooLarge | FailureKind::Untrusted => self.quarantine(lane, now),
        }
        self.note_drained(now);
    }

    /// The device of a lane is still to come, as a node that a batch system has not allocated yet. The run goes on without
    /// it, and waits for it if there is no other lane. It is no failure of the lane.
    ///
    /// Returns `false`, and changes nothing, if the lane has a chunk in flight: its device has come since the driver looked.
    pub fn lane_awaited(&mut self, lane: LaneIndex, now: Time) -> bool {
        if self.lanes[lane].in_flight > 0 {
            return false;
        }
        if self.lanes[lane].quarantine.is_retired() {
            return true;
        }
        self.has_awaited = true;
        let until = now.saturating_add(AWAITED_CHECK);
        self.lanes[lane].quarantine.state = LaneState::Quarantined { until };
        self.set_aside(lane, now);
        self.lanes[lane].is_awaited = true;
        self.note_drained(now);
        true
    }

    /// The whole process was suspended for this long: the time counts for no chunk.
    pub fn note_suspension(&mut self, gap: Duration, now: Time) {
        let later = |time: &mut Time| *time = time.saturating_add(gap).min(now);
        for attempt in self.attempts.iter_mut() {
            later(&mut attempt.began);
            later(&mut attempt.advanced);
            if let Some(since) = &mut attempt.superseded {
                later(since);
            }
        }
        self.lanes.iter_mut().for_each(|lane| later(&mut lane.busy_since));
        later(&mut self.last_chunk_end);
        if let Some(since) = &mut self.no_healthy_since {
            later(since);
        }
    }

    /// Quarantines the lanes of chunks that have hung, and gives their items back. Ends a run whose lanes have all failed or
    /// are silent. Returns the numbers of the hung chunks.
    pub fn overdue(&mut self, now: Time) -> Vec<u64> {
        if self.outcome.is_some() {
            return Vec::new();
        }
        let due = |(chunk, attempt): (u64, &Attempt)| {
            self.deadline(attempt).is_some_and(|deadline| deadline <= now).then_some((chunk, attempt.lane))
        };
        let hung: Vec<(u64, LaneIndex)> = self.attempts.iter().filter_map(due).collect();
        for &(chunk, lane) in &hung {
            // The quarantine of its lane for another chunk may have removed this one already.
            let Some(attempt) = self.attempts.get(chunk) else { continue };
            let (cost, age) = (attempt.cost, now.saturating_sub(attempt.began));
            if attempt.superseded.is_none() {
                self.tallies[lane].retries += 1;
            }
            if self.settings.chunk_limit.is_some() {
                // Its items may all be expensive: a chunk with fewer may end in time.
                self.lanes[lane].max_within_limit = (len(&attempt.items) / 2).max(1);
            }
            // The lane is at least this slow. If it was only slow, it gets smaller chunks when it comes back.
            self.learn(lane, cost, age, age);
            self.tallies[lane].hangs += 1;
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

    /// Whether the lanes in reserve should be added: no lane is healthy, or all healthy ones are silent and may have hung.
    /// The run waits for plain code.
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
        let silence = now.saturating_sub(self.last_chunk_end.max(began.unwrap_or_default()));
        let is_silent = silence >= SILENT_AFTER.max(longest.saturating_mul(SILENT_FACTOR));
        let mut healthy = self.lanes.iter().filter(|it| it.is_healthy());
        healthy.all(|it| is_silent && (it.may_hang || it.in_flight == 0))
    }

    /// When the next chunk counts as hung, or the run fails, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        let chunks = self.attempts.iter().filter_map(|(_, attempt)| self.deadline(attempt));
        chunks.chain(self.silence_ends()).chain(self.return_limit_ends()).min()
    }

    /// When a run fails whose lanes are all set aside. Never while one of them has a canary in flight.
    fn return_limit_ends(&self) -> Option<Time> {
        let is_awaited = self.lanes.iter().any(|it| it.is_awaited);
        let is_idle = !self.has_reserve && !is_awaited && self.attempts.iter().next().is_none();
        let since = self.no_healthy_since.filter(|_| is_idle)?;
        Some(since.saturating_add(self.settings.return_limit))
    }

    /// When a chunk counts as hung. The user's limit, if there is one, decides alone. Otherwise other lanes must have done all
    /// of its items, and it must go on for far longer than they took and its own lane's pace predicts.
    fn deadline(&self, attempt: &Attempt) -> Option<Time> {
        let lane = &self.lanes[attempt.lane];
        let began = attempt.began.max(lane.busy_since);
        if let Some(limit) = self.settings.chunk_limit {
            return Some(began.saturating_add(limit));
        }
        // A chunk may wait behind another, so other lanes must have done all chunks that the lane has in flight.
        let mut superseded = attempt.superseded.filter(|_| lane.may_hang)?;
        let (mut others, mut cost) = (Duration::ZERO, 0.0);
        for (_, it) in self.attempts.iter().filter(|(_, it)| it.lane == attempt.lane) {
            superseded = superseded.max(it.superseded?);
            others += it.others_took;
            cost += it.cost;
        }
        let pace = self.pace_of(lane, self.seconds_per_score());
        let own = pace.map_or(0.0, |pace| pace.overhead * lane.in_flight as f64 + pace.each * cost);
        let allowed = others.as_secs_f64().max(own) * self.settings.hung_factor;
        let allowed = seconds(allowed);
        Some(superseded.saturating_add(self.settings.hung_after).max(began.saturating_add(allowed)))
    }

    /// When a run fails whose lanes all have chunks in flight and end none: no lane is free to show that they have hung. The
    /// run waits for plain code.
    fn silence_ends(&self) -> Option<Time> {
        // A lane without a chunk is being prepared, or waits for one.
        let has_nothing = |it: &Lane| it.is_healthy() && it.in_flight == 0 && !it.has_asked;
        if self.settings.chunk_limit.is_some() || self.has_reserve || self.lanes.iter().any(has_nothing) {
            return None;
        }
        let mut last = self.last_chunk_end;
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
            // A canary in flight is no sign of life.
            if !attempt.canary {
                last = last.max(attempt.began);
            }
        }
        let silence = self.settings.silence.max(seconds(expected));
        any.then(|| last.saturating_add(silence))
    }

    fn quarantine(&mut self, lane: LaneIndex, now: Time) {
        let Settings { first_quarantine, max_quarantine, .. } = self.settings;
        let quarantine = &mut self.lanes[lane].quarantine;
        // One failure is forgiven for each time that the lane was healthy for four times its last quarantine.
        quarantine.record_failure(now, first_quarantine, max_quarantine, quarantine.last.saturating_mul(4));
        self.tallies[lane].quarantines += 1;
        self.set_aside(lane, now);
    }

    fn retire(&mut self, lane: LaneIndex, now: Time) {
        self.lanes[lane].quarantine.state = LaneState::Retired;
        self.set_aside(lane, now);
    }

    /// Removes all chunks of a lane.
    fn set_aside(&mut self, lane: LaneIndex, now: Time) {
        self.lanes[lane].on_trial = false;
        let mine: Vec<u64> =
            self.attempts.iter().filter(|(_, it)| it.lane == lane).map(|(chunk, _)| chunk).collect();
        for chunk in mine {
            if let Some((attempt, orphaned)) = self.attempts.remove(chunk) {
                self.lanes[lane].remove_in_flight(attempt.cost, now);
                self.returned.extend(orphaned);
            }
        }
        if !self.has_reserve && self.lanes.iter().all(|it| it.quarantine.is_retired()) {
            self.outcome.get_or_insert(Outcome::NoLaneLeft);
        }
        if !self.lanes.iter().any(Lane::is_healthy) {
            self.no_healthy_since.get_or_insert(now);
        }
    }
}
