//! Stragglers: speculative copies, evidence about devices, and hung workers.
//!
//! A slow batch is no proof of a hang, because its pieces may simply be large. So time alone never makes a worker hung,
//! except the user's own limit. A batch that takes long on a device that may hang (a *straggler*) also runs on another
//! device (a *speculative copy*): on one that is idle, or would clearly finish sooner. If the copy ends in a small
//! fraction of the time, that is evidence against the first device, and only then is its worker given up. Until then
//! the slow device counts as busy, and the pieces whose home it is go to the shared queue.
//!
//! | attempt | is declared hung |
//! | --- | --- |
//! | any, with a limit of the user's | after that limit, and not before |
//! | plain code on the processor | never |
//! | another device has finished the batch | after [`EVIDENCE_FACTOR`] times this device's expected time |
//! | the same, and the batch is its worker's first | also after [`EVIDENCE_FACTOR`] times the longest such batch so far |
//! | the same, without a first batch so far | after the silence limit |
//! | no other device can run the batch | after the silence limit |
//!
//! A worker's first batch may compile code and allocate memory, so another device's time says nothing about it. If that
//! made the device hung, it would be opened again, its next batch would be a first one again, and it would never be
//! used.
//!
//! Preparing a device may take minutes, up to a limit. No piece waits for it: other devices take the pieces of the
//! shared queue, and a device whose only workers prepare it is no home.
//!
//! Time in which the whole process did not run (`SIGSTOP`, a suspended virtual machine) counts for no attempt. The
//! watcher thread asks to be woken every [`WATCH_INTERVAL`]; if it wakes much later, the process was stopped.

use std::time::Duration;

use evener_device::Error;

use super::{BatchAttempt, Dispatcher, Evidence, InFlight, WorkerRecord, WorkerState};
use crate::{
    contain::log,
    run::{LaneState, Time},
};

/// Interval of the watcher thread while the queue is busy.
pub(in crate::queue) const WATCH_INTERVAL: Duration = Duration::from_millis(10);

/// The process was stopped if the watcher thread wakes this much later than it asked for.
const PAUSE_THRESHOLD: Duration = Duration::from_millis(250);

/// A batch is a straggler once it takes this many times its device's usual time.
const STRAGGLER_FACTOR: f64 = 8.0;

/// Minimum age of a straggler, and of a batch that is declared hung by evidence.
const MIN_STRAGGLER_AGE: Duration = Duration::from_millis(500);

/// Each further copy of a batch waits this many times longer, so that batches which are slow on every device are not
/// copied to all of them at once.
const COPY_BACKOFF: f64 = 4.0;

/// A busy device runs a copy once the straggler's age is this many times that device's usual time.
const COPY_GAIN: f64 = 4.0;

/// An attempt is hung after this many times the time that it should take, by another device's time.
const EVIDENCE_FACTOR: u32 = 10;

/// The default silence limit: this, or this many times the longest piece so far, whichever is longer.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
const SILENCE_FACTOR: u32 = 100;

/// Interval of log messages about slow plain code.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Whether a device's workers are late, found by the last watch.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::queue) struct Stall {
    /// All workers of the device are late, so none will take a piece soon.
    pub(in crate::queue) stalled: bool,
    /// The same, and at least one of them is preparing the device.
    pub(in crate::queue) unready: bool,
}

impl<I, O> Dispatcher<I, O> {
    /// One step of the watcher thread.
    pub(in crate::queue) fn watch(&mut self, now: Time) {
        self.detect_pause(now);
        self.last_watch = Some(now);
        self.remove_hung_workers(now);
        self.find_stalls(now);
        self.stragglers = self
            .in_flight
            .iter()
            .filter_map(|(&n, flight)| self.is_straggler(flight, now).then_some(n))
            .collect();
        self.log_waiting(now);
    }

    /// Records that the watcher thread parks until the queue is busy.
    pub(in crate::queue) fn park(&mut self) {
        self.last_watch = None;
    }

    /// Detects whether the process was stopped since the watcher thread last ran, and takes that time out of all
    /// running spans. Called before any other event, so that no age is too high.
    pub(in crate::queue) fn detect_pause(&mut self, now: Time) {
        let Some(due) = self.last_watch.map(|last_watch| last_watch + WATCH_INTERVAL) else { return };
        let late = now.saturating_sub(due);
        if late <= PAUSE_THRESHOLD {
            return;
        }
        self.last_watch = Some(now);
        for worker in self.workers.values_mut() {
            match &mut worker.state {
                WorkerState::Idle => {}
                WorkerState::Preparing { stopwatch, .. } => stopwatch.pause(due, now),
                WorkerState::Batch(attempt) => attempt.stopwatch.pause(due, now),
            }
        }
        log!(debug, ?late, "the process was stopped for a while");
    }

    /// Removes hung workers. Their devices go into quarantine, and their pieces to other devices.
    fn remove_hung_workers(&mut self, now: Time) {
        let workers: Vec<u64> = self.workers.keys().copied().collect();
        for worker in workers {
            // Removing one worker may change the evidence about the next.
            let Some(after) = self.workers.get(&worker).and_then(|worker| self.hung_for(worker, now)) else {
                continue;
            };
            let Some((device, state)) = self.remove_worker(worker) else { continue };
            let id = self.devices[device].device.id.clone();
            let operation = if matches!(state, WorkerState::Batch(_)) {
                "running a piece"
            } else {
                "preparing the device"
            };
            let error = Error::TimedOut { device: id, operation: operation.into(), after };
            log!(warn, %error, "a device has hung");
            match state {
                WorkerState::Idle => {}
                WorkerState::Preparing { generation, .. } => {
                    self.quarantine(device, generation, error, now);
                    self.give_up_stranded(now);
                }
                WorkerState::Batch(attempt) => self.attempt_failed(worker, device, &attempt, error, now),
            }
        }
    }

    /// A hung worker's time without an answer; `None` if it has not hung.
    fn hung_for(&self, worker: &WorkerRecord, now: Time) -> Option<Duration> {
        let (age, limit) = match &worker.state {
            WorkerState::Idle => return None,
            WorkerState::Preparing { stopwatch, .. } => (stopwatch.age(now), self.limits.prepare),
            WorkerState::Batch(attempt) => {
                (attempt.stopwatch.age(now), self.attempt_limit(worker.device, attempt, now)?)
            }
        };
        (age >= limit).then_some(age)
    }

    /// The age at which an attempt is hung; `None` if that is not known now.
    fn attempt_limit(&self, device: usize, attempt: &BatchAttempt, now: Time) -> Option<Duration> {
        if self.limits.piece.is_some() {
            return self.limits.piece;
        }
        if !self.devices[device].may_hang {
            return None;
        }
        match attempt.evidence {
            Evidence::DoneElsewhere { expected } => {
                let limit =
                    |expected: Duration| expected.saturating_mul(EVIDENCE_FACTOR).max(MIN_STRAGGLER_AGE);
                Some(match self.devices[device].longest_first {
                    _ if !attempt.first => limit(expected),
                    Some(first) => limit(expected.max(first)),
                    None => limit(expected).max(self.silence()),
                })
            }
            Evidence::None => Some(self.silence()),
            Evidence::Pending => {
                let flight = self.in_flight.get(&attempt.flight)?;
                let is_silent =
                    attempt.stopwatch.age(now) >= self.silence() && self.is_without_evidence(flight, now);
                is_silent.then(|| self.silence())
            }
        }
    }

    /// The silence limit: the user's, or the default.
    fn silence(&self) -> Duration {
        let default = || self.longest.saturating_mul(SILENCE_FACTOR).max(SILENCE_LIMIT);
        self.limits.silence.unwrap_or_else(default)
    }

    /// Whether every attempt at a batch is older than the silence limit, and no other device can give evidence.
    fn is_without_evidence(&self, flight: &InFlight<I, O>, now: Time) -> bool {
        let silent = |worker: &u64| self.is_silent(*worker, now);
        flight.running.iter().all(silent)
            && !(0..self.devices.len()).any(|device| self.may_give_evidence(device, flight, now))
    }

    /// Whether a worker's current activity is older than the silence limit.
    fn is_silent(&self, worker: u64, now: Time) -> bool {
        let stopwatch = self.workers.get(&worker).and_then(|worker| match &worker.state {
            WorkerState::Idle => None,
            WorkerState::Preparing { stopwatch, .. } => Some(stopwatch),
            WorkerState::Batch(attempt) => Some(&attempt.stopwatch),
        });
        stopwatch.is_some_and(|stopwatch| stopwatch.age(now) >= self.silence())
    }

    /// Whether a device that does not run a batch may still do so, and give evidence about those that do.
    fn may_give_evidence(&self, device: usize, flight: &InFlight<I, O>, now: Time) -> bool {
        let it = &self.devices[device];
        if !self.can_copy(device, flight) {
            return false;
        }
        match it.health.quarantine.state {
            LaneState::Retired => false,
            LaneState::Quarantined { .. } => {
                !it.health.is_given_up()
                    && !it.canary_worker.is_some_and(|worker| self.is_silent(worker, now))
            }
            LaneState::Healthy => {
                let mut workers = self.workers.iter().filter(|(_, worker)| worker.device == device);
                let may_start_another = it.workers < it.max_workers && !it.stall.unready;
                may_start_another || workers.any(|(&worker, _)| !self.is_silent(worker, now))
            }
        }
    }

    /// Whether a device can run a copy of a batch: it does not run it already, and the pieces have not failed there too
    /// often. A device that was opened again since it began the batch counts as another device.
    fn can_copy(&self, device: usize, flight: &InFlight<I, O>) -> bool {
        let generation = self.devices[device].device.generation();
        let runs_it = |worker: &u64| {
            self.workers.get(worker).is_some_and(|worker| match &worker.state {
                WorkerState::Batch(attempt) => worker.device == device && attempt.generation == generation,
                _ => false,
            })
        };
        let fits = flight.tickets.len() <= self.devices[device].max_pieces;
        fits && flight.tickets.iter().all(|ticket| ticket.may_try(device))
            && !flight.running.iter().any(runs_it)
    }

    /// The age at which an attempt becomes a straggler, by its number of pieces and of attempts.
    fn straggler_after(&self, device: usize, pieces: usize, attempts: usize) -> Duration {
        let usual = self.expected_seconds(device, self.seconds_per_score()).unwrap_or(0.0) * pieces as f64;
        let late = Duration::try_from_secs_f64(usual * STRAGGLER_FACTOR)
            .unwrap_or(Duration::MAX)
            .max(MIN_STRAGGLER_AGE);
        let more = COPY_BACKOFF.powi(i32::try_from(attempts).unwrap_or(i32::MAX).saturating_sub(1));
        Duration::try_from_secs_f64(late.as_secs_f64() * more).unwrap_or(Duration::MAX)
    }

    /// The attempts at a batch: their devices and ages.
    fn attempts(&self, flight: &InFlight<I, O>, now: Time) -> impl Iterator<Item = (usize, Duration)> {
        flight.running.iter().filter_map(move |worker| match self.workers.get(worker)? {
            WorkerRecord { device, state: WorkerState::Batch(attempt), .. } => {
                Some((*device, attempt.stopwatch.age(now)))
            }
            _ => None,
        })
    }

    /// Whether every attempt at a batch is a straggler, at least one of them on a device that may hang.
    fn is_straggler(&self, flight: &InFlight<I, O>, now: Time) -> bool {
        let (pieces, attempts) = (flight.tickets.len(), flight.running.len());
        self.attempts(flight, now).any(|(device, _)| self.devices[device].may_hang)
            && self
                .attempts(flight, now)
                .all(|(device, age)| age >= self.straggler_after(device, pieces, attempts))
    }

    /// The straggler that a worker of a device should run a copy of. A busy worker takes only one that it would clearly
    /// finish sooner.
    pub(super) fn copy_for(&self, device: usize, is_busy: bool, now: Time) -> Option<u64> {
        let scale = self.seconds_per_score();
        let is_worth_it = |flight: &InFlight<I, O>| {
            let age = self.attempts(flight, now).map(|(_, age)| age.as_secs_f64()).fold(f64::MAX, f64::min);
            let usual = self.expected_seconds(device, scale).map(|each| each * flight.tickets.len() as f64);
            !is_busy || usual.is_some_and(|usual| usual * COPY_GAIN <= age)
        };
        self.stragglers.iter().copied().find(|number| {
            let flight = self.in_flight.get(number);
            flight.is_some_and(|it| self.can_copy(device, it) && is_worth_it(it))
        })
    }

    /// Finds the devices whose workers are all late, and moves their pieces to the shared queue.
    fn find_stalls(&mut self, now: Time) {
        for device in 0..self.devices.len() {
            self.devices[device].stall = self.stall_of(device, now);
            if self.devices[device].stall.stalled {
                self.release_home_pieces(device);
            }
        }
    }

    fn stall_of(&self, device: usize, now: Time) -> Stall {
        let it = &self.devices[device];
        let (mut late, mut is_preparing, mut canary_is_late) = (0, false, false);
        for (&number, worker) in self.workers.iter().filter(|(_, worker)| worker.device == device) {
            match &worker.state {
                WorkerState::Batch(attempt)
                    if attempt.stopwatch.age(now) >= self.straggler_after(device, attempt.pieces, 1) => {}
                WorkerState::Preparing { stopwatch, .. } if stopwatch.age(now) >= MIN_STRAGGLER_AGE => {
                    is_preparing = true
                }
                _ => continue,
            }
            late += 1;
            canary_is_late |= it.canary_worker == Some(number);
        }
        let stalled = match it.health.is_working() {
            // No further worker starts while others prepare the device.
            true => late >= it.max_workers || is_preparing && late == it.workers,
            // A device in quarantine has one canary worker.
            false => canary_is_late,
        };
        Stall { stalled, unready: stalled && is_preparing }
    }

    /// Logs slow plain code if no batch has ended for a while.
    fn log_waiting(&mut self, now: Time) {
        let quiet_since = self.last_end.max(self.last_notice);
        if self.limits.piece.is_some() || now.saturating_sub(quiet_since) < LOG_INTERVAL {
            return;
        }
        let plain = |worker: &WorkerRecord| match &worker.state {
            WorkerState::Batch(attempt) if !self.devices[worker.device].may_hang => {
                Some((worker.device, attempt.stopwatch.age(now)))
            }
            _ => None,
        };
        let Some((device, age)) = self.workers.values().filter_map(plain).max_by_key(|(_, age)| *age) else {
            return;
        };
        if age < LOG_INTERVAL {
            return;
        }
        self.last_notice = now;
        log!(info, device = %self.devices[device].device.id, ?age, "waiting for plain code on the processor");
    }
}
