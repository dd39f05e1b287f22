//! The tail: who runs again what somebody else would finish last.

use std::ops::Range;

use super::{LaneIndex, Piece, Run, Time, len};

impl Run {
    /// Whether a lane is done with some items before anybody else could be, and cannot be given up on meanwhile.
    pub(super) fn is_brief(&self, lane: LaneIndex, items: &Range<u64>) -> bool {
        let it = &self.lanes[lane];
        let alone = !it.may_hang && it.depth == 1 && self.settings.limit.is_none();
        let brief = self.settings.exclusive_under.as_secs_f64();
        alone && it.estimate(self.costs.of(items)).is_some_and(|estimate| estimate < brief)
    }

    /// The piece that would end last, if this lane would end it sooner by enough to be worth it.
    pub(super) fn latest_end(&self, lane: LaneIndex, now: Time) -> Option<usize> {
        let it = &self.lanes[lane];
        if it.on_trial || !self.adaptive || !self.settings.rescue {
            return None;
        }
        let now = now.as_secs_f64();
        let end = |piece: &Piece| {
            let [attempt] = piece.attempts.as_slice() else { return None };
            if attempt.lane == lane || attempt.exclusive || len(&piece.items) > it.most_items {
                return None;
            }
            let theirs = &self.lanes[attempt.lane];
            // Nothing is known of a lane that has finished nothing: it may never.
            let Some(estimate) = theirs.estimate(self.costs.of(&piece.items)) else {
                return Some(f64::INFINITY);
            };
            // What is behind another chunk of its lane begins later. One that is late already may take as long again.
            let queue = theirs.in_flight.max(1) as f64;
            let began = attempt.began.as_secs_f64();
            Some((began + estimate * queue).max(now + (now - began - estimate).max(0.0)))
        };
        let (piece, end) = self
            .pieces
            .iter()
            .enumerate()
            .filter_map(|(index, piece)| Some((index, end(piece)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
        let own = it.estimate(self.costs.of(&self.pieces[piece].items))?;
        (now + own * 1.1 < end).then_some(piece)
    }
}
