//! Where a piece goes.

use evener_device::Error;

use super::{Desk, QueueError, Ticket};
use crate::{contain::log, queue::trust::Standing, run::Time};

/// How good a place a line is for a piece: the least is best.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rank {
    pub(super) outlook: Outlook,
    /// How often the piece failed there.
    tries: u32,
    /// When it would be done; or tried, where that is all that is known.
    seconds: f64,
}

/// What is to be expected of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outlook {
    /// It works, or the piece is just what it needs to show that it does.
    Good,
    /// It is set aside.
    Uncertain,
    /// It has failed again and again.
    Hopeless,
}

impl Rank {
    pub(super) fn order(&self, other: &Rank) -> std::cmp::Ordering {
        let by_trust = (self.outlook, self.tries).cmp(&(other.outlook, other.tries));
        by_trust.then(self.seconds.total_cmp(&other.seconds))
    }
}

impl<I, O> Desk<I, O> {
    /// Puts a piece where it will be done first. Where nobody is left to do it, that is its answer.
    pub(super) fn place(&mut self, ticket: Ticket<I, O>, now: Time) {
        match self.best_line(&ticket, now) {
            Some((line, _)) => self.lines[line].push(ticket),
            None => self.give_up(ticket),
        }
    }

    /// Nobody is left who could do a piece.
    pub(super) fn give_up(&mut self, mut ticket: Ticket<I, O>) {
        let tried = std::mem::take(&mut ticket.failures);
        let untried = |line: &usize| !tried.iter().any(|(failed, _)| failed == line);
        let others = (0..self.lines.len()).filter(untried);
        let others: Vec<Error> = others.filter_map(|line| self.lines[line].trust.last.clone()).collect();
        let failures = tried.into_iter().map(|(_, error)| error).chain(others).collect();
        self.settle(ticket, Err(QueueError::NoDeviceLeft { failures }));
    }

    /// The line where a piece is best off.
    pub(super) fn best_line(&self, ticket: &Ticket<I, O>, now: Time) -> Option<(usize, Rank)> {
        let scale = self.seconds_per_score();
        let ranked =
            (0..self.lines.len()).filter_map(|line| Some((line, self.rank(line, ticket, scale, now)?)));
        ranked.min_by(|a, b| a.1.order(&b.1))
    }

    /// How good a place a line is for a piece; nothing where it is none.
    pub(super) fn rank(
        &self,
        line: usize,
        ticket: &Ticket<I, O>,
        scale: Option<f64>,
        now: Time,
    ) -> Option<Rank> {
        let it = &self.lines[line];
        if !ticket.may_try(line) {
            return None;
        }
        let tries = ticket.tries_on(line);
        let (outlook, seconds) = match it.trust.standing {
            Standing::Retired => return None,
            Standing::SetAside { until } if !it.wants_canary(now) => {
                let hopeless = it.trust.is_hopeless();
                (if hopeless { Outlook::Hopeless } else { Outlook::Uncertain }, until.as_secs_f64())
            }
            _ => (Outlook::Good, self.seconds_until_done(line, scale)),
        };
        Some(Rank { outlook, tries, seconds })
    }

    /// How long it will take until a device has done another piece, beside those that it has.
    fn seconds_until_done(&self, line: usize, scale: Option<f64>) -> f64 {
        let it = &self.lines[line];
        let workers = it.most_hands as f64;
        // While no device is known, times only need to compare with each other.
        let each = self.expected_seconds(line, scale.or(Some(1.0))).unwrap_or(1.0);
        let all = each * (it.waiting() + it.active + 1) as f64 + it.stall.seconds;
        // A piece is not done sooner for there being more workers than pieces.
        (all / workers).max(each)
    }

    /// How long a device usually takes for a piece: by its history, or by its score where the scale is known.
    pub(super) fn expected_seconds(&self, line: usize, scale: Option<f64>) -> Option<f64> {
        let it = &self.lines[line];
        let by_score = || Some(scale? * it.most_hands as f64 / it.score);
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
            .filter_map(|it| Some(it.mean.time()?.as_secs_f64() * it.score / it.most_hands as f64));
        let (count, sum) = known.fold((0u32, 0.0), |(count, sum), scale| (count + 1, sum + scale));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Offers the pieces that wait at a device whose workers are all late to the others.
    pub(super) fn relieve(&mut self, line: usize, now: Time) {
        let mut moved = 0;
        for ticket in self.lines[line].drain() {
            let to = match self.best_line(&ticket, now) {
                Some((better, Rank { outlook: Outlook::Good, .. })) => better,
                _ => line,
            };
            moved += usize::from(to != line);
            self.lines[to].push(ticket);
        }
        if moved > 0 {
            let device = &self.lines[line].seat.id;
            log!(debug, %device, moved, "pieces that waited for a slow device go elsewhere");
        }
    }

    /// Takes all pieces from a device that failed again when it was tried, or is left alone for long, to where they are
    /// better off; and gives them up where there is nowhere, and no hope here. The balancer does not do that: it moves
    /// no piece twice.
    pub(super) fn spread(&mut self, line: usize, now: Time) {
        let here = if self.lines[line].trust.is_hopeless() { Outlook::Hopeless } else { Outlook::Uncertain };
        for ticket in self.lines[line].drain() {
            match self.best_line(&ticket, now) {
                Some((better, rank)) if better != line && rank.outlook < here => {
                    self.lines[better].push(ticket)
                }
                _ if here == Outlook::Hopeless => self.give_up(ticket),
                _ => self.lines[line].push(ticket),
            }
        }
    }

    /// A device is about to be tried: all but the piece that it is tried with goes where it is better off, since nobody
    /// knows how long a device that is not well takes to show it.
    pub(super) fn keep_canary_only(&mut self, line: usize, now: Time) {
        let mut all = self.lines[line].drain().into_iter();
        // First, so that it wants no other.
        if let Some(canary) = all.next() {
            self.lines[line].push(canary);
        }
        for ticket in all {
            match self.best_line(&ticket, now) {
                Some((better, Rank { outlook: Outlook::Good, .. })) => self.lines[better].push(ticket),
                _ => self.lines[line].push(ticket),
            }
        }
    }

    /// Gives devices that are to be tried, and have nothing to be tried with, a piece that would have waited longest
    /// elsewhere.
    pub(in crate::queue) fn send_canaries(&mut self, now: Time) {
        for line in 0..self.lines.len() {
            if !self.lines[line].wants_canary(now) {
                continue;
            }
            // What another device is to be tried with stays there.
            let can_give = |donor: &usize| {
                let donor = &self.lines[*donor];
                donor.queued() > 0 && (donor.trust.is_working() || !donor.may_begin(now))
            };
            let donor =
                (0..self.lines.len()).filter(can_give).max_by_key(|&donor| self.lines[donor].queued());
            let canary = donor.and_then(|donor| self.lines[donor].pop_last(|ticket| ticket.may_try(line)));
            if let Some(canary) = canary {
                self.lines[line].push(canary);
            }
        }
    }
}
