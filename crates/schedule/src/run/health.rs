//! What happens when a chunk fails or hangs, and whom to trust.

use std::{ops::Range, time::Duration};

use super::{Attempt, Failure, LaneIndex, Outcome, Piece, Returned, Run, State, Time, len};

impl Run {
    /// A chunk has failed.
    pub fn failed(&mut self, chunk: u64, failure: Failure, now: Time) {
        let loser = self.losers.iter().position(|loser| loser.attempt.chunk == chunk);
        let found = self.find(chunk);
        let (lane, items) = match (loser, found) {
            (Some(index), _) => {
                let loser = self.losers.swap_remove(index);
                self.lanes[loser.attempt.lane].in_flight -= 1;
                (loser.attempt.lane, None)
            }
            (None, Some((piece, attempt))) => {
                let lane = self.pieces[piece].attempts[attempt].lane;
                self.tallies[lane].retries += 1;
                (lane, Some(self.give_back(piece, attempt)))
            }
            (None, None) => return,
        };
        match (failure, items) {
            (Failure::Task, Some(items)) => {
                self.outcome.get_or_insert(Outcome::TaskFailed(items));
            }
            // Its items are done already, whoever failed on them.
            (Failure::Task | Failure::TooLarge, None) => {}
            (Failure::TooLarge, Some(items)) if len(&items) > 1 => {
                self.lanes[lane].most_items = len(&items) / 2;
            }
            (Failure::Unable, _) => self.set_aside(lane, State::Retired),
            (Failure::TooLarge | Failure::Untrusted, _) => self.quarantine(lane, now),
        }
    }

    /// A lane has failed without a chunk in hand, while it was made ready. What would be halved cannot be.
    pub fn lane_failed(&mut self, lane: LaneIndex, failure: Failure, now: Time) {
        // What cannot do this task cannot, whatever its other hands say.
        if self.lanes[lane].state == State::Retired {
            return;
        }
        match failure {
            Failure::Unable | Failure::Task => self.set_aside(lane, State::Retired),
            Failure::TooLarge | Failure::Untrusted => self.quarantine(lane, now),
        }
    }

    /// The chunks that should have ended by now: they have hung. Their lanes are put into quarantine and their items
    /// given back, unless somebody else has done them. Gives their numbers.
    pub fn overdue(&mut self, now: Time) -> Vec<u64> {
        let hung: Vec<(u64, LaneIndex)> = self
            .in_flight()
            .filter(|(attempt, cost, given_up)| {
                self.deadline(attempt, *cost, *given_up).is_some_and(|deadline| deadline <= now)
            })
            .map(|(attempt, ..)| (attempt.chunk, attempt.lane))
            .collect();
        for &(chunk, lane) in &hung {
            // Quarantining its lane for another chunk may have given this one back already.
            if let Some((piece, _)) = self.find(chunk) {
                self.pieces[piece].given_up += 1;
                self.tallies[lane].retries += 1;
                self.quarantine(lane, now);
            } else if self.losers.iter().any(|loser| loser.attempt.chunk == chunk) {
                self.quarantine(lane, now);
            }
        }
        hung.into_iter().map(|(chunk, _)| chunk).collect()
    }

    /// When the next chunk will have to be taken for hung, if nothing ends before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.in_flight().filter_map(|(attempt, cost, given_up)| self.deadline(attempt, cost, given_up)).min()
    }

    /// Every chunk that is in somebody's hands, its cost, and how often its items were given up on. One whose items
    /// somebody else has done counts like any other: as long as it runs, its lane has no room, and if it never ends,
    /// its lane is not to be counted on.
    fn in_flight(&self) -> impl Iterator<Item = (&Attempt, f64, u32)> {
        let pieces = self.pieces.iter().flat_map(|piece| {
            let cost = self.costs.of(&piece.items);
            piece.attempts.iter().map(move |attempt| (attempt, cost, piece.given_up))
        });
        pieces.chain(self.losers.iter().map(|loser| (&loser.attempt, loser.cost, 0)))
    }

    /// How long a chunk may take, from its lane's own history and the user's limit. Until a lane has a history, that of
    /// the others counts, generously; where nobody has one, there is the user's limit alone.
    fn deadline(&self, attempt: &Attempt, cost: f64, given_up: u32) -> Option<Time> {
        /// A lane of which nothing is known may be so many times slower than the slowest that has shown something.
        const SLOWER: f64 = 1_000.0;
        let lane = &self.lanes[attempt.lane];
        let ahead = lane.in_flight.max(1) as f64;
        let is_last = !self
            .lanes
            .iter()
            .enumerate()
            .any(|(index, it)| index != attempt.lane && it.state == State::Healthy);
        let times = 4f64.powi(given_up.min(20) as i32) * if is_last { 16.0 } else { 1.0 };
        let (patience, least) = (self.settings.patience, self.settings.least_patience.as_secs_f64());
        let own = || Some((lane.estimate(cost)? * ahead * patience).max(least));
        let of_others = || {
            let slowest = self.lanes.iter().filter_map(|it| it.estimate(cost)).max_by(f64::total_cmp)?;
            // What happens only once, at the beginning, takes longer than anything that it has shown.
            Some((slowest * ahead * SLOWER).max(least * patience))
        };
        let expected = lane
            .may_hang
            .then(|| own().or_else(of_others))
            .flatten()
            .map(|seconds| Duration::from_secs_f64((seconds * times).min(1e9)));
        let allowed = match (expected, self.settings.limit) {
            (Some(expected), Some(limit)) => expected.min(limit),
            (expected, limit) => expected.or(limit)?,
        };
        Some(attempt.began.saturating_add(allowed))
    }

    /// Takes an attempt out of its lane's hands; where it was the only one, its items are given back. Gives the items.
    fn give_back(&mut self, piece: usize, attempt: usize) -> Range<u64> {
        let Attempt { lane, .. } = self.pieces[piece].attempts.swap_remove(attempt);
        self.lanes[lane].in_flight -= 1;
        let items = self.pieces[piece].items.clone();
        if self.pieces[piece].attempts.is_empty() {
            let Piece { given_up, .. } = self.pieces.swap_remove(piece);
            self.returned.push_back(Returned { items: items.clone(), given_up });
        }
        items
    }

    fn quarantine(&mut self, lane: LaneIndex, now: Time) {
        let it = &mut self.lanes[lane];
        let cooldown = self.settings.cooldown.saturating_mul(1 << it.strikes.min(20));
        it.strikes += 1;
        self.tallies[lane].quarantines += 1;
        self.set_aside(lane, State::Quarantined { until: now.saturating_add(cooldown) });
    }

    /// Takes everything out of a lane's hands.
    fn set_aside(&mut self, lane: LaneIndex, state: State) {
        self.lanes[lane].state = state;
        self.lanes[lane].on_trial = false;
        let mine = |piece: &Piece| piece.attempts.iter().position(|attempt| attempt.lane == lane);
        while let Some((piece, attempt)) =
            self.pieces.iter().enumerate().find_map(|(index, piece)| Some((index, mine(piece)?)))
        {
            self.give_back(piece, attempt);
        }
        self.losers.retain(|loser| loser.attempt.lane != lane);
        // Whoever runs the lane has it begin afresh, with empty hands.
        self.lanes[lane].in_flight = 0;
        if !self.lanes.iter().any(|it| it.state == State::Healthy) {
            self.outcome.get_or_insert(Outcome::NoLaneLeft);
        }
    }
}
