//! Which pieces a worker takes, and where a piece waits.
//!
//! Pieces wait in one shared queue, in the order of their places, and a worker takes the first ones that its device may
//! do: no device is idle while a piece waits that it could take. A piece whose data is on one device has a *home*: it
//! waits in that device's own queue, and only the balancer sends it elsewhere. A device that fails, or whose workers are
//! all late, is no home any more: its pieces go to the shared queue.

use evener_device::Error;
use smallvec::SmallVec;

use super::{Desk, QueueError};
use crate::{
    queue::{
        handle::Place,
        line::{Item, Line, Ticket, Waiting},
    },
    run::Time,
};

/// What a worker is to begin with.
pub(super) enum Pick {
    /// These pieces, as one batch.
    Pieces(SmallVec<[Place; 1]>),
    /// A speculative copy of a batch that is in flight.
    Copy(u64),
    /// Nothing before then, unless more pieces come: the batch is not full.
    Later(Time),
}

impl<I, O> Desk<I, O> {
    /// Pieces that wait in the shared queue.
    pub(in crate::queue) fn shared_len(&self) -> usize {
        self.shared.len()
    }

    /// Puts a piece into its home's queue, or the shared one. Where no device is left to do it, that is its answer.
    pub(super) fn place(&mut self, piece: Waiting<I, O>, home: Option<usize>) {
        let is_stranded =
            |(line, it): (usize, &Line<I, O>)| it.trust.is_retired() || !piece.ticket.may_try(line);
        match home.filter(|&home| self.lines[home].is_well()) {
            Some(home) => self.lines[home].push(piece),
            None if self.lines.iter().enumerate().all(is_stranded) => self.give_up(piece),
            None => drop(self.shared.insert(piece.ticket.place, piece)),
        }
    }

    /// A device is no home any more.
    pub(super) fn make_homeless(&mut self, line: usize) {
        for piece in self.lines[line].drain() {
            self.place(piece, None);
        }
    }

    /// No device is left that could do a piece.
    fn give_up(&mut self, mut piece: Waiting<I, O>) {
        let tried = std::mem::take(&mut piece.ticket.failures);
        let untried = |line: &usize| !tried.iter().any(|(failed, _)| failed == line);
        let others = (0..self.lines.len()).filter(untried);
        let others: Vec<Error> = others.filter_map(|line| self.lines[line].trust.last.clone()).collect();
        let failures = tried.into_iter().map(|(_, error)| error).chain(others).collect();
        self.settle(piece.ticket, piece.item, Err(QueueError::NoDeviceLeft { failures }));
    }

    /// Gives up the pieces that no device is left for, after one has failed: all that could try them are hopeless, and none
    /// of these is tried, or about to be.
    pub(super) fn give_up_stranded(&mut self, now: Time) {
        let is_tried = |it: &Line<I, O>| it.trial.is_some() || it.trust.may_be_tried(now);
        let is_out = |it: &Line<I, O>| it.trust.is_retired() || it.trust.is_hopeless() && !is_tried(it);
        if !self.lines.iter().any(is_out) {
            return;
        }
        let has_hope = |ticket: &Ticket<O>| {
            self.lines.iter().enumerate().any(|(line, it)| !is_out(it) && ticket.may_try(line))
        };
        let stranded = self.shared.iter().filter(|(_, piece)| !has_hope(&piece.ticket));
        let stranded: Vec<Place> = stranded.map(|(&place, _)| place).collect();
        for place in stranded {
            self.shared.remove(&place).into_iter().for_each(|piece| self.give_up(piece));
        }
    }

    /// Whether a line may take a piece: not where it failed before and another device that is well may do better.
    fn may_take(&self, line: usize, ticket: &Ticket<O>) -> bool {
        if ticket.failures.is_empty() {
            return true;
        }
        let tries = ticket.tries_on(line);
        let is_better = |other: usize| self.lines[other].is_well() && ticket.tries_on(other) < tries;
        ticket.may_try(line) && !(0..self.lines.len()).any(is_better)
    }

    /// What a worker of a line would begin with now.
    pub(super) fn pick(&self, line: usize, now: Time) -> Option<Pick> {
        let it = &self.lines[line];
        if !it.may_begin(now) {
            return None;
        }
        let mut shared = self.shared.values().filter(|piece| self.may_take(line, &piece.ticket));
        if !it.trust.is_working() {
            // The canary is the piece that would have waited longest: it is not known how long the device takes to show
            // that it is not well.
            let canary =
                shared.next_back().map(|piece| Pick::Pieces(SmallVec::from_elem(piece.ticket.place, 1)));
            return canary.or_else(|| self.copy_for(line, false, now).map(Pick::Copy));
        }
        let (mut shared, mut own) = (shared.peekable(), it.own().peekable());
        let is_busy = shared.peek().is_some() || own.peek().is_some();
        if let Some(copy) = self.copy_for(line, is_busy, now) {
            return Some(Pick::Copy(copy));
        }
        let most = self.batch.pieces.min(it.max_pieces);
        let (mut pieces, mut oldest) = (SmallVec::new(), now);
        while pieces.len() < most {
            let place = |piece: &&&Waiting<I, O>| piece.ticket.place;
            let from_shared = match (shared.peek(), own.peek()) {
                (Some(shared), Some(own)) => place(&shared) < place(&own),
                (shared, _) => shared.is_some(),
            };
            let Some(piece) = (if from_shared { shared.peek() } else { own.peek() }) else { break };
            let is_new = matches!(piece.item, Item::New(_));
            if !is_new && !pieces.is_empty() {
                // It is done alone, and nothing behind it is begun before it.
                return Some(Pick::Pieces(pieces));
            }
            pieces.push(piece.ticket.place);
            oldest = oldest.min(piece.ticket.since);
            if !is_new {
                return Some(Pick::Pieces(pieces));
            }
            if from_shared {
                shared.next()
            } else {
                own.next()
            };
        }
        let due = oldest.saturating_add(self.batch.delay);
        match pieces.len() {
            0 => None,
            count if count < most && due > now && self.may_grow() => Some(Pick::Later(due)),
            _ => Some(Pick::Pieces(pieces)),
        }
    }

    /// Whether more pieces may come before another one has its answer.
    pub(super) fn may_grow(&self) -> bool {
        !self.closed && self.outstanding < self.capacity
    }

    /// Whether there is something that a worker of a line would begin with, now or once a batch is due.
    fn has_work(&self, line: usize, now: Time) -> bool {
        let it = &self.lines[line];
        let any = || self.shared.values().any(|piece| self.may_take(line, &piece.ticket));
        it.may_begin(now) && (it.queued() > 0 || any() || self.copy_for(line, false, now).is_some())
    }

    /// The line that a further worker should be started on: there are more pieces than workers that will take them.
    pub(in crate::queue) fn understaffed(&self, now: Time) -> Option<usize> {
        let batches = |pieces: usize| pieces.div_ceil(self.batch.pieces);
        let lacks = |it: &Line<I, O>| batches(it.queued()) > it.free_hands();
        let can_hire = |it: &Line<I, O>| it.hands < it.max_workers && !it.stall.unready && it.may_begin(now);
        if !self.lines.iter().any(can_hire) {
            return None;
        }
        if let Some(line) = self.lines.iter().position(|it| can_hire(it) && lacks(it)) {
            return Some(line);
        }
        let wanted = batches(self.shared.len()) + self.late.len();
        if wanted == 0 {
            return None;
        }
        let able = (0..self.lines.len()).filter(|&line| self.has_work(line, now));
        let able: SmallVec<[usize; 8]> = able.collect();
        let free =
            |&line: &usize| self.lines[line].free_hands().saturating_sub(batches(self.lines[line].queued()));
        if able.iter().map(free).sum::<usize>() >= wanted {
            return None;
        }
        self.by_speed(able.into_iter().filter(|&line| can_hire(&self.lines[line]))).first().copied()
    }

    /// The lines whose workers are to be woken, each with how many of them, the fastest device first.
    pub(in crate::queue) fn to_wake(&self, now: Time) -> SmallVec<[(usize, usize); 4]> {
        let batches = |pieces: usize| pieces.div_ceil(self.batch.pieces);
        let idle =
            |line: usize| self.lines[line].hands - self.lines[line].active - self.lines[line].preparing;
        let mut left = batches(self.shared.len()) + self.late.len();
        let able = (0..self.lines.len()).filter(|&line| idle(line) > 0 && self.has_work(line, now));
        let mut wake = SmallVec::new();
        let has_timer = self.lines.iter().any(|it| it.timers > 0);
        for line in self.by_speed(able) {
            let own = batches(self.lines[line].queued());
            let count = idle(line).min(own + left);
            // Until a batch is full, it is enough that one worker waits until it is due: for pieces with a home, one of
            // that device.
            let it = &self.lines[line];
            let is_timed = if it.queued() > 0 { it.timers > 0 } else { has_timer };
            let is_full = self.shared.len() + it.queued() >= self.batch.pieces.min(it.max_pieces);
            let first = self.shared.values().next();
            let is_alone = first.is_some_and(|piece| matches!(piece.item, Item::Begun(..)));
            let is_due = !is_timed || is_full || is_alone || !self.may_grow() || !self.late.is_empty();
            if is_due && count > 0 {
                left -= count.saturating_sub(own).min(left);
                wake.push((line, count));
            }
        }
        wake
    }

    /// Lines in the order of how long they take for a piece.
    fn by_speed(&self, lines: impl Iterator<Item = usize>) -> SmallVec<[usize; 8]> {
        let mut lines: SmallVec<[usize; 8]> = lines.collect();
        if lines.len() > 1 {
            let scale = self.seconds_per_score().or(Some(1.0));
            lines.sort_by(|&a, &b| {
                let seconds = |line| self.expected_seconds(line, scale).unwrap_or(1.0);
                seconds(a).total_cmp(&seconds(b))
            });
        }
        lines
    }

    /// How long a device usually takes for a piece: by its history, or by its score where the scale is known.
    pub(super) fn expected_seconds(&self, line: usize, scale: Option<f64>) -> Option<f64> {
        let it = &self.lines[line];
        let by_score = || Some(scale? * it.max_workers as f64 / it.score);
        it.mean.time().map(|mean| mean.as_secs_f64()).or_else(by_score)
    }

    /// How many times as long as another device a device usually takes for a piece; 1 where it is the faster one.
    pub(super) fn times_as_slow(&self, line: usize, other: usize) -> f64 {
        let scale = self.seconds_per_score();
        let ratio = self.expected_seconds(line, scale).zip(self.expected_seconds(other, scale));
        ratio.map_or(1.0, |(here, there)| here / there).clamp(1.0, 1e6)
    }

    /// The factor between scores and times: how long a device of score 1 would take from piece to piece, by the devices
    /// that have done some; nothing while there is none.
    pub(super) fn seconds_per_score(&self) -> Option<f64> {
        let known = self
            .lines
            .iter()
            .filter_map(|it| Some(it.mean.time()?.as_secs_f64() * it.score / it.max_workers as f64));
        let (count, sum) = known.fold((0u32, 0.0), |(count, sum), scale| (count + 1, sum + scale));
        (count > 0).then(|| sum / f64::from(count))
    }
}
