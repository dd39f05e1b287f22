//! Pieces that take long: copies of them, evidence about their devices, and the verdict that a device has hung.
//!
//! Taking long is no proof: a piece may simply be large. So time alone never makes a device hung, unless the time is the
//! user's own limit. A batch of pieces that takes long on a device that may hang is also given to another device (a
//! *speculative copy*): to one that has nothing else to do, or would clearly be done sooner. If the other device does it in
//! a small part of the time, that is evidence against the first, and only then is the first device's worker given up on.
//! Until then the slow device counts as busy, and the pieces whose home it is may go elsewhere.
//!
//! | the attempt | is called hung |
//! | --- | --- |
//! | any, with a limit of the user's | after that limit, and not before |
//! | plain code on the processor | never |
//! | its batch was done by another device | after [`EVIDENCE`] times what this device should have taken |
//! | the same, and it is the first of its worker | also after [`EVIDENCE`] times the longest such batch before |
//! | the same, and there was no such batch before | after the silence limit |
//! | no other device can do its batch | after the silence limit |
//!
//! A worker's first batch may compile code and allocate memory, which another device's time says nothing about. A device
//! that is called hung for that is opened afresh, and its next piece is a first one again: it would never be used.
//!
//! Making a device ready takes as long as it takes, too, up to a limit of minutes. Nothing waits for that: what is in the
//! shared queue is taken by others, and a device that has no other worker meanwhile is no home.
//!
//! Time in which the whole process did not run (`SIGSTOP`, a virtual machine that was suspended) counts for no attempt.
//! The look-after thread asks to be woken every [`GLANCE`]; when far more time has passed, the process was stopped.

use std::time::Duration;

use evener_device::Error;

use super::{Attempt, Desk, Doing, Evidence, Hand, InFlight};
use crate::{
    contain::log,
    run::{LaneState, Time},
};

/// How often the look-after thread runs while the queue is busy.
pub(in crate::queue) const GLANCE: Duration = Duration::from_millis(10);

/// The process was stopped if the look-after thread is woken this much later than it asked for.
const OVERSLEPT: Duration = Duration::from_millis(250);

/// A piece is late once it takes so many times what its device usually takes.
const LATE: f64 = 8.0;

/// No piece is late, and no device is hung by evidence, before this.
const LEAST: Duration = Duration::from_millis(500);

/// Each further copy of a piece waits so many times as long: pieces that take long on every device are not copied to
/// all of them at once.
const MORE_PATIENCE: f64 = 4.0;

/// A device that is not idle gets a copy once the piece is late by so many times what that device usually takes.
const CLEARLY_SOONER: f64 = 4.0;

/// An attempt is called hung after so many times what the device should have taken, by what another device took.
const EVIDENCE: u32 = 10;

/// The silence limit: this, or so many times the longest piece so far, whichever is longer.
const SILENCE: Duration = Duration::from_secs(60);
const SILENCE_IN_PIECES: u32 = 100;

/// How often the log says that plain code is waited for.
const NOTICE: Duration = Duration::from_secs(10);

/// The late attempts of a line, as of the last look.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::queue) struct Stall {
    /// No worker of the line will take a piece before a late one is done.
    pub(in crate::queue) stalled: bool,
    /// The same, and a worker that makes the device ready is among them.
    pub(in crate::queue) unready: bool,
}

impl<I, O> Desk<I, O> {
    /// What the look-after thread does each time it runs.
    pub(in crate::queue) fn look_after(&mut self, now: Time) {
        self.notice_pause(now);
        self.looked = Some(now);
        self.judge(now);
        self.find_stalls(now);
        self.late =
            self.in_flight.iter().filter_map(|(&n, flight)| self.is_late(flight, now).then_some(n)).collect();
        self.say_what_is_waited_for(now);
    }

    /// The look-after thread sleeps until there is something to do.
    pub(in crate::queue) fn sleep(&mut self) {
        self.looked = None;
    }

    /// Finds out whether the process was stopped since the look-after thread last ran, and takes that time from
    /// everything that runs. Called before anything else that happens, so that no age is read too early.
    pub(in crate::queue) fn notice_pause(&mut self, now: Time) {
        let Some(due) = self.looked.map(|looked| looked + GLANCE) else { return };
        let late = now.saturating_sub(due);
        if late <= OVERSLEPT {
            return;
        }
        self.looked = Some(now);
        for hand in self.hands.values_mut() {
            match &mut hand.doing {
                Doing::Nothing => {}
                Doing::Preparing { span, .. } => span.pause(due, now),
                Doing::Batch(attempt) => attempt.span.pause(due, now),
            }
        }
        log!(debug, ?late, "the process did not run for a while");
    }

    /// Dismisses the workers that have hung. Their devices go into quarantine, and their pieces to other devices.
    fn judge(&mut self, now: Time) {
        let workers: Vec<u64> = self.hands.keys().copied().collect();
        for hand in workers {
            // Each verdict may change what there is to say about the next worker.
            let Some(after) = self.hands.get(&hand).and_then(|hand| self.hung_for(hand, now)) else {
                continue;
            };
            let Some((line, doing)) = self.dismiss(hand) else { continue };
            let device = self.lines[line].seat.id.clone();
            let operation =
                if matches!(doing, Doing::Batch(_)) { "running a piece" } else { "being made ready" };
            let error = Error::TimedOut { device, operation: operation.into(), after };
            log!(warn, %error, "a device has hung");
            match doing {
                Doing::Nothing => {}
                Doing::Preparing { generation, .. } => {
                    self.strike(line, generation, error, now);
                    self.give_up_stranded(now);
                }
                Doing::Batch(attempt) => self.attempt_failed(hand, line, &attempt, error, now),
            }
        }
    }

    /// How long a worker has been silent, if it has hung.
    fn hung_for(&self, hand: &Hand, now: Time) -> Option<Duration> {
        let (age, limit) = match &hand.doing {
            Doing::Nothing => return None,
            Doing::Preparing { span, .. } => (span.age(now), self.limits.prepare),
            Doing::Batch(attempt) => (attempt.span.age(now), self.attempt_limit(hand.line, attempt, now)?),
        };
        (age >= limit).then_some(age)
    }

    /// When an attempt is called hung; nothing where that cannot be said now.
    fn attempt_limit(&self, line: usize, attempt: &Attempt, now: Time) -> Option<Duration> {
        if self.limits.piece.is_some() {
            return self.limits.piece;
        }
        if !self.lines[line].may_hang {
            return None;
        }
        match attempt.evidence {
            Evidence::DoneElsewhere { expected } => {
                let limit = |expected: Duration| expected.saturating_mul(EVIDENCE).max(LEAST);
                Some(match self.lines[line].longest_first {
                    _ if !attempt.first => limit(expected),
                    Some(first) => limit(expected.max(first)),
                    None => limit(expected).max(self.silence()),
                })
            }
            Evidence::None => Some(self.silence()),
            Evidence::Pending => {
                let flight = self.in_flight.get(&attempt.flight)?;
                let is_silent =
                    attempt.span.age(now) >= self.silence() && self.is_without_witness(flight, now);
                is_silent.then(|| self.silence())
            }
        }
    }

    /// The silence limit.
    fn silence(&self) -> Duration {
        let default = || self.longest.saturating_mul(SILENCE_IN_PIECES).max(SILENCE);
        self.limits.silence.unwrap_or_else(default)
    }

    /// Whether every attempt at a piece has been silent for too long, and no other device can give evidence.
    fn is_without_witness(&self, flight: &InFlight<I, O>, now: Time) -> bool {
        let silent = |hand: &u64| self.is_silent(*hand, now);
        flight.running.iter().all(silent)
            && !(0..self.lines.len()).any(|line| self.may_testify(line, flight, now))
    }

    /// Whether a worker has been busy with one thing for longer than the silence limit.
    fn is_silent(&self, hand: u64, now: Time) -> bool {
        let span = self.hands.get(&hand).and_then(|hand| match &hand.doing {
            Doing::Nothing => None,
            Doing::Preparing { span, .. } => Some(span),
            Doing::Batch(attempt) => Some(&attempt.span),
        });
        span.is_some_and(|span| span.age(now) >= self.silence())
    }

    /// Whether a line that does not run a piece may do so yet, and give evidence about those that do.
    fn may_testify(&self, line: usize, flight: &InFlight<I, O>, now: Time) -> bool {
        let it = &self.lines[line];
        if !self.can_copy(line, flight) {
            return false;
        }
        match it.trust.quarantine.state {
            LaneState::Retired => false,
            LaneState::Quarantined { .. } => {
                !it.trust.is_hopeless() && !it.trial.is_some_and(|hand| self.is_silent(hand, now))
            }
            LaneState::Healthy => {
                let mut workers = self.hands.iter().filter(|(_, hand)| hand.line == line);
                let may_start_another = it.hands < it.max_workers && !it.stall.unready;
                may_start_another || workers.any(|(&hand, _)| !self.is_silent(hand, now))
            }
        }
    }

    /// Whether a line is able to run a copy of a piece: it does not run it, and the piece has not failed there too
    /// often. A device that was opened afresh since it began with a piece is as good as another.
    fn can_copy(&self, line: usize, flight: &InFlight<I, O>) -> bool {
        let generation = self.lines[line].seat.generation();
        let runs_it = |hand: &u64| {
            self.hands.get(hand).is_some_and(|hand| match &hand.doing {
                Doing::Batch(attempt) => hand.line == line && attempt.generation == generation,
                _ => false,
            })
        };
        let fits = flight.tickets.len() <= self.lines[line].max_pieces;
        fits && flight.tickets.iter().all(|ticket| ticket.may_try(line))
            && !flight.running.iter().any(runs_it)
    }

    /// When an attempt on a line is late, at so many pieces, among so many attempts.
    fn late_after(&self, line: usize, pieces: usize, attempts: usize) -> Duration {
        let usual = self.expected_seconds(line, self.seconds_per_score()).unwrap_or(0.0) * pieces as f64;
        let late = Duration::try_from_secs_f64(usual * LATE).unwrap_or(Duration::MAX).max(LEAST);
        let more = MORE_PATIENCE.powi(i32::try_from(attempts).unwrap_or(i32::MAX).saturating_sub(1));
        Duration::try_from_secs_f64(late.as_secs_f64() * more).unwrap_or(Duration::MAX)
    }

    /// The attempts at a batch: their lines and ages.
    fn attempts(&self, flight: &InFlight<I, O>, now: Time) -> impl Iterator<Item = (usize, Duration)> {
        flight.running.iter().filter_map(move |hand| match self.hands.get(hand)? {
            Hand { line, doing: Doing::Batch(attempt), .. } => Some((*line, attempt.span.age(now))),
            _ => None,
        })
    }

    /// Whether every attempt at a batch is late, one of them on a device that may hang.
    fn is_late(&self, flight: &InFlight<I, O>, now: Time) -> bool {
        let (pieces, attempts) = (flight.tickets.len(), flight.running.len());
        self.attempts(flight, now).any(|(line, _)| self.lines[line].may_hang)
            && self.attempts(flight, now).all(|(line, age)| age >= self.late_after(line, pieces, attempts))
    }

    /// The late batch that a worker of a line should run a copy of. One that has other work does only what it would
    /// clearly be done with sooner.
    pub(super) fn copy_for(&self, line: usize, is_busy: bool, now: Time) -> Option<u64> {
        let scale = self.seconds_per_score();
        let is_worth_it = |flight: &InFlight<I, O>| {
            let age = self.attempts(flight, now).map(|(_, age)| age.as_secs_f64()).fold(f64::MAX, f64::min);
            let usual = self.expected_seconds(line, scale).map(|each| each * flight.tickets.len() as f64);
            !is_busy || usual.is_some_and(|usual| usual * CLEARLY_SOONER <= age)
        };
        self.late.iter().copied().find(|number| {
            let flight = self.in_flight.get(number);
            flight.is_some_and(|it| self.can_copy(line, it) && is_worth_it(it))
        })
    }

    /// Finds the lines whose workers are late. They are no homes.
    fn find_stalls(&mut self, now: Time) {
        for line in 0..self.lines.len() {
            self.lines[line].stall = self.stall_of(line, now);
            if self.lines[line].stall.stalled {
                self.make_homeless(line);
            }
        }
    }

    fn stall_of(&self, line: usize, now: Time) -> Stall {
        let it = &self.lines[line];
        let (mut late, mut is_preparing, mut trial_is_late) = (0, false, false);
        for (&number, hand) in self.hands.iter().filter(|(_, hand)| hand.line == line) {
            match &hand.doing {
                Doing::Batch(attempt)
                    if attempt.span.age(now) >= self.late_after(line, attempt.pieces, 1) => {}
                Doing::Preparing { span, .. } if span.age(now) >= LEAST => is_preparing = true,
                _ => continue,
            }
            late += 1;
            trial_is_late |= it.trial == Some(number);
        }
        let stalled = match it.trust.is_working() {
            // No further worker is started for pieces that those who make the device ready will take.
            true => late >= it.max_workers || is_preparing && late == it.hands,
            // It is tried with one piece, by one worker.
            false => trial_is_late,
        };
        Stall { stalled, unready: stalled && is_preparing }
    }

    /// Says that plain code is waited for, where nothing else happens.
    fn say_what_is_waited_for(&mut self, now: Time) {
        let quiet_since = self.last_end.max(self.last_notice);
        if self.limits.piece.is_some() || now.saturating_sub(quiet_since) < NOTICE {
            return;
        }
        let plain = |hand: &Hand| match &hand.doing {
            Doing::Batch(attempt) if !self.lines[hand.line].may_hang => {
                Some((hand.line, attempt.span.age(now)))
            }
            _ => None,
        };
        let Some((line, age)) = self.hands.values().filter_map(plain).max_by_key(|(_, age)| *age) else {
            return;
        };
        if age < NOTICE {
            return;
        }
        self.last_notice = now;
        let device = &self.lines[line].seat.id;
        log!(info, %device, ?age, "waiting for plain code on the processor");
    }
}
