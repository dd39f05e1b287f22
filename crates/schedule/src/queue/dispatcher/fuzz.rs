//! A random simulation of a dispatcher in virtual time: devices fail, hang and recover, pieces take different times,
//! the process is stopped, handles are dropped. The simulation checks the dispatcher against its own records after
//! every step. What must never happen:
//!
//! - a piece is lost, or gets two results;
//! - a piece begins while one of a higher priority waits that its device could take;
//! - a healthy device is idle while a piece waits that it may take;
//! - a batch has more pieces than the maximum, or waits longer for more of them than it may;
//! - more pieces than the capacity are without a result;
//! - a piece with a home begins elsewhere, unless the balancer has moved it, its home has failed, or all workers of its
//!   home are late;
//! - a worker is declared hung without evidence.

use std::sync::{Weak, atomic::Ordering::Relaxed};

use evener_device::{Device, DeviceId, Error};

use super::{super::Handle, *};
use crate::{executor::PoolDevice, queue::shared::Shared};

/// Each seed is one simulation. A failure names its seed, which can be run alone.
const SEEDS: std::ops::Range<u64> = 0..200;
const STEPS: u64 = 3_000;

/// Maximum time that a piece waits while a healthy device that could take it is idle: the time to find that the worker
/// which should take it is late.
const NEGLECTED: Duration = Duration::from_millis(1_500);

fn ms(milliseconds: u64) -> Time {
    Time::from_millis(milliseconds)
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// The condition of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Condition {
    Well,
    /// Some pieces fail.
    Flaky,
    /// Everything fails.
    Dead,
    /// Everything that begins hangs.
    Hanging,
}

/// The outcome of a worker's activity.
#[derive(Debug, Clone)]
enum Ending {
    Well,
    Fails(Error),
}

#[derive(Debug, Clone, PartialEq)]
enum Work {
    Prepare,
    Batch(Vec<usize>),
}

#[derive(Debug, Clone)]
struct Job {
    work: Work,
    /// Excludes time in which the process was stopped.
    began: Duration,
    /// `None` if it hangs.
    ends: Option<Time>,
    ending: Ending,
    generation: u64,
    /// The number of the batch in flight.
    flight: Option<u64>,
}

#[derive(Debug, Clone)]
struct Worker {
    number: u64,
    device: usize,
    ready_for: Option<u64>,
    job: Option<Job>,
    /// Whether it has run a piece since it was prepared.
    warm: bool,
    /// Whether the dispatcher has removed it.
    dismissed: bool,
    /// Whether it waits to be woken, or for a time.
    asleep: Option<Option<Time>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Answered {
    Not,
    /// Its value, the device, and the time it took.
    Done(u32, usize, Duration),
    Failed,
    Withdrawn,
    NoDevice,
}

struct Piece {
    cost: Duration,
    /// Fails on every device.
    faulty: bool,
    key: PieceKey,
    priority: i32,
    home: Option<usize>,
    since: Time,
    /// It was begun before, so it runs alone.
    begun: bool,
    handle: Option<Handle<u32>>,
    answered: Answered,
    /// The devices on which it failed, with the number of tries that each failure counts for.
    failures: Vec<(usize, u32)>,
    /// How long it has waited while a device that could take it was idle.
    neglected: Duration,
}

struct Simulation {
    random: Rng,
    dispatcher: Dispatcher<usize, u32>,
    now: Time,
    /// The time in which the process ran.
    ran: Duration,
    conditions: Vec<Condition>,
    slowness: Vec<u32>,
    workers: Vec<Worker>,
    pieces: Vec<Piece>,
    /// The pieces whose results were not seen yet.
    open: Vec<usize>,
    /// Batches in flight.
    flights: std::collections::BTreeSet<u64>,
    results: u32,
    /// Whether every device stays healthy from now on.
    calm: bool,
    hung: usize,
    /// Workers that were removed while they prepared an old generation of a device.
    outdated: usize,
    copies: usize,
    batches: usize,
    full: usize,
    moved: u64,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut random = Rng(seed);
        let count = 1 + random.below(4) as usize;
        let device = |index: usize, random: &mut Rng| {
            let device = Arc::new(PoolDevice::new(index, Device::cpu()));
            let workers = if random.percent(20) { 16 } else { 1 + random.below(3) as usize };
            let score = 1.0 + random.below(30) as f64;
            DeviceQueue::new(device, score, workers, random.percent(75))
        };
        let devices: Vec<_> = (0..count).map(|index| device(index, &mut random)).collect();
        let slowness = (0..count).map(|_| 1 + random.below(4) as u32).collect();
        let limits = Limits {
            piece: random.percent(20).then(|| ms(300 + random.below(3_000))),
            prepare: if random.percent(50) { ms(2_000) } else { ms(300_000) },
            silence: random.percent(50).then(|| ms(5_000 + random.below(10_000))),
        };
        let batch = BatchLimits {
            pieces: if random.percent(50) { 1 } else { 1 + random.below(6) as usize },
            delay: if random.percent(50) { ms(0) } else { ms(random.below(100)) },
        };
        let capacity = if random.percent(50) { 1_000 } else { 5 + random.below(20) as usize };
        let settings = BalancerSettings { interval: ms(50), ..BalancerSettings::default() };
        Simulation {
            random,
            dispatcher: Dispatcher::new(devices, settings, limits, batch, capacity),
            now: ms(0),
            ran: ms(0),
            conditions: vec![Condition::Well; count],
            slowness,
            workers: Vec::new(),
            pieces: Vec::new(),
            open: Vec::new(),
            flights: Default::default(),
            results: 0,
            calm: false,
            hung: 0,
            outdated: 0,
            copies: 0,
            batches: 0,
            full: 0,
            moved: 0,
        }
    }

    fn submit(&mut self) {
        let priority = self.random.below(3) as i32;
        let home =
            self.random.percent(25).then(|| self.random.below(self.dispatcher.devices.len() as u64) as usize);
        let move_time = ms(self.random.below(50));
        let options = SubmitOptions { priority, home: home.map(|home| (home, move_time)) };
        let is_full = self.open.len() >= self.dispatcher.capacity;
        let (answer, key) = match self.dispatcher.submit(self.pieces.len(), options, self.now) {
            Ok(submitted) => submitted,
            Err((_, refused)) => {
                assert!(is_full && refused == Refused::Full);
                self.full += 1;
                return;
            }
        };
        assert!(!is_full, "more pieces than the capacity");
        let home = home.filter(|&home| self.dispatcher.devices[home].is_well());
        let no_queue: Weak<Shared<crate::KernelTask<u32, u32>>> = Weak::new();
        let cost = match self.random.below(40) {
            0 => ms(500 + self.random.below(2_000)),
            _ => ms(1 + self.random.below(20)),
        };
        let faulty = !self.calm && self.random.percent(2);
        let handle = Some(Handle::new(answer, key, no_queue));
        self.open.push(self.pieces.len());
        self.pieces.push(Piece {
            cost,
            faulty,
            key,
            priority,
            home,
            since: self.now,
            begun: false,
            handle,
            answered: Answered::Not,
            failures: Vec::new(),
            neglected: Duration::ZERO,
        });
    }

    fn withdraw(&mut self) {
        let index = self.random.below(self.pieces.len() as u64) as usize;
        let is_begun = self.runs(index).next().is_some();
        if self.dispatcher.withdraw(self.pieces[index].key) {
            assert!(!is_begun, "piece {index} was in flight");
            assert_eq!(self.pieces[index].answered, Answered::Not);
            self.pieces[index].answered = Answered::Withdrawn;
        }
    }

    /// The workers that run a piece and were not removed.
    fn runs(&self, piece: usize) -> impl Iterator<Item = &Worker> {
        let is_it = move |job: &Job| {
            let has_it = matches!(&job.work, Work::Batch(pieces) if pieces.contains(&piece));
            has_it && job.flight.is_some_and(|flight| self.flights.contains(&flight))
        };
        self.workers.iter().filter(move |worker| !worker.dismissed && worker.job.as_ref().is_some_and(is_it))
    }

    /// When a job on a device will end, and how.
    fn ending(&mut self, index: usize, work: &Work) -> (Option<Time>, Ending) {
        let (device, operation) = (DeviceId::from("cpu"), "a test".to_owned());
        let lost =
            Error::Lost { device: device.clone(), operation: operation.clone(), detail: String::new() };
        let usual = match work {
            Work::Prepare => ms(self.random.below(50)),
            Work::Batch(pieces) => {
                pieces.iter().map(|&piece| self.pieces[piece].cost * self.slowness[index]).sum()
            }
        };
        if let Work::Batch(pieces) = work
            && pieces.iter().any(|&index| self.pieces[index].faulty)
        {
            let error = Error::Task { device, operation, item: None, message: String::new(), source: None };
            return (Some(self.now + usual), Ending::Fails(error));
        }
        match self.conditions[index] {
            Condition::Dead => (Some(self.now + ms(1)), Ending::Fails(lost)),
            Condition::Flaky if self.random.percent(40) => {
                let detail = String::new();
                let error = match self.random.below(400) {
                    0 => Error::Unsupported { device, operation, detail },
                    380.. => Error::OutOfMemory { device, operation, requested: 1, available: None, detail },
                    1..150 => Error::BadResult { device, operation, detail },
                    _ => lost,
                };
                (Some(self.now + usual), Ending::Fails(error))
            }
            // Plain code always ends.
            Condition::Hanging if self.dispatcher.devices[index].may_hang && self.random.percent(60) => {
                (None, Ending::Well)
            }
            Condition::Hanging => (Some(self.now + usual + ms(self.random.below(5_000))), Ending::Well),
            _ => (Some(self.now + usual), Ending::Well),
        }
    }

    /// A worker asks for its next work.
    fn next_work(&mut self, index: usize) {
        let Worker { number, device, ready_for, dismissed, .. } = self.workers[index];
        let was_working = self.dispatcher.devices[device].health.is_working();
        let work = match self.dispatcher.next_work(number, ready_for, self.now) {
            Next::Wait { until } => {
                assert!(!dismissed);
                self.workers[index].asleep = Some(until);
                self.dispatcher.devices[device].timers += usize::from(until.is_some());
                if let Some(until) = until {
                    assert!(until > self.now, "it waits for nothing");
                    assert!(self.dispatcher.may_grow(), "it waits for pieces that cannot come");
                    let oldest =
                        self.waiting_for(device).into_iter().map(|index| self.pieces[index].since).min();
                    assert!(oldest.is_some_and(|oldest| until <= oldest + self.dispatcher.batch.delay));
                }
                return;
            }
            Next::Exit => {
                self.workers.swap_remove(index);
                return;
            }
            Next::Prepare => Work::Prepare,
            Next::Run(super::BatchItems { items, first, count, .. }) => {
                Work::Batch(items[first..first + count].to_vec())
            }
        };
        assert!(!dismissed, "worker {number} was removed and gets work");
        let generation = self.dispatcher.devices[device].device.generation();
        let mut flight = None;
        if let Work::Batch(pieces) = &work {
            assert_eq!(ready_for, Some(generation));
            self.check_batch(device, generation, pieces, was_working);
            let Some(WorkerRecord { state: WorkerState::Batch(attempt), .. }) =
                self.dispatcher.workers.get(&number)
            else {
                panic!("worker {number} gets a batch that the dispatcher does not know of")
            };
            flight = Some(attempt.flight);
            self.flights.insert(attempt.flight);
            for &piece in pieces {
                (self.pieces[piece].begun, self.pieces[piece].home) = (true, None);
            }
        }
        let (ends, ending) = self.ending(device, &work);
        self.workers[index].job = Some(Job { work, began: self.ran, ends, ending, generation, flight });
    }

    /// The pieces that no worker runs and that a device could take, by the simulation's records.
    fn waiting_for(&self, device: usize) -> Vec<usize> {
        let could = |&index: &usize| {
            let piece = &self.pieces[index];
            let is_elsewhere = piece.home.is_some_and(|home| home != device);
            let has_failed = piece.failures.iter().any(|(failed, _)| *failed == device);
            let waits = piece.answered == Answered::Not && self.runs(index).next().is_none();
            waits && !is_elsewhere && !has_failed
        };
        self.open.iter().copied().filter(could).collect()
    }

    /// Checks a batch that a worker of a device gets.
    fn check_batch(&mut self, device: usize, generation: u64, pieces: &[usize], was_working: bool) {
        assert!(pieces.len() <= self.dispatcher.batch.pieces, "{pieces:?}");
        let others: Vec<&Worker> = self.runs(pieces[0]).collect();
        let is_copy = !others.is_empty();
        let is_same = |other: &&Worker| {
            other.device == device && other.job.as_ref().is_some_and(|job| job.generation == generation)
        };
        assert!(!others.iter().any(is_same), "batch {pieces:?} runs twice on a device");
        assert!(!is_copy || others.iter().any(|other| self.dispatcher.devices[other.device].may_hang));
        for &piece in pieces {
            let it = &self.pieces[piece];
            assert_eq!(it.answered, Answered::Not, "piece {piece} is begun after its answer");
            assert!(is_copy || pieces.len() == 1 || !it.begun, "piece {piece} was begun, and is not alone");
            assert!(is_copy || it.home.is_none_or(|home| home == device), "piece {piece} has a home");
        }
        // A canary is the last piece in order.
        if !is_copy && was_working {
            let least = pieces.iter().map(|&piece| self.pieces[piece].priority).min();
            for other in self.waiting_for(device) {
                let is_higher = Some(self.pieces[other].priority) > least;
                assert!(!is_higher || pieces.contains(&other), "piece {other} waits, before {pieces:?}");
            }
        }
        self.batches += usize::from(!is_copy && pieces.len() > 1);
        self.copies += usize::from(is_copy);
    }

    /// A worker's job ends.
    fn end(&mut self, index: usize) {
        let Some(Job { work, began, ending, generation, flight, .. }) = self.workers[index].job.take() else {
            return;
        };
        let is_live = !self.workers[index].dismissed && flight.is_some_and(|it| self.flights.contains(&it));
        let Worker { number, device, .. } = self.workers[index];
        self.dispatcher.detect_pause(self.now);
        match (work, ending) {
            (Work::Prepare, Ending::Well) => {
                self.dispatcher.prepared(number, u64::MAX);
                self.workers[index].ready_for = Some(generation);
                self.workers[index].warm = false;
            }
            (Work::Prepare, Ending::Fails(error)) => {
                self.dispatcher.prepare_failed(number, generation, error, self.now);
                self.workers[index].ready_for = None;
            }
            (Work::Batch(pieces), Ending::Well) => {
                let first = self.results;
                self.results += pieces.len() as u32;
                self.workers[index].warm = true;
                let results: Vec<u32> = (first..self.results).collect();
                let unwanted = self.dispatcher.finished(number, results, self.now);
                assert_eq!(unwanted.is_none(), is_live, "pieces {pieces:?}");
                for (&piece, result) in pieces.iter().zip(first..).filter(|_| is_live) {
                    self.pieces[piece].answered = Answered::Done(result, device, self.ran - began);
                }
                self.end_flight(flight.filter(|_| is_live));
            }
            (Work::Batch(pieces), Ending::Fails(error)) => {
                let is_final = matches!(error, Error::Task { .. });
                let is_halved = matches!(error, Error::OutOfMemory { .. }) && pieces.len() > 1;
                for &piece in pieces.iter().filter(|_| is_live) {
                    match is_final {
                        true if pieces.len() > 1 => {}
                        true => self.pieces[piece].answered = Answered::Failed,
                        false if is_halved => {}
                        false => self.pieces[piece].failures.push((device, 1)),
                    }
                }
                if is_live && (is_final || self.runs(pieces[0]).next().is_none()) {
                    self.end_flight(flight);
                }
                self.dispatcher.failed(number, error, self.now);
            }
        }
        self.notice_dismissed(self.dispatcher.longest);
        self.check();
        self.next_work(index);
    }

    fn end_flight(&mut self, flight: Option<u64>) {
        if let Some(flight) = flight {
            self.flights.remove(&flight);
        }
    }

    /// Time passes, in some of which the process may be stopped.
    fn pass(&mut self, runs: Duration, stopped: Duration) {
        self.now += runs + stopped;
        self.ran += runs;
        // The watcher thread runs first, last, or in between.
        let mut looks_at = self.random.below(self.workers.len() as u64 + 1) as usize;
        let mut order: Vec<u64> = self.workers.iter().map(|worker| worker.number).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, self.random.below(index as u64 + 1) as usize);
        }
        for number in order {
            if looks_at == 0 {
                self.watch();
            }
            looks_at = looks_at.wrapping_sub(1);
            let Some(index) = self.workers.iter().position(|worker| worker.number == number) else {
                continue;
            };
            if let Some(until) = self.workers[index].asleep {
                if until.is_none_or(|until| until > self.now) {
                    continue;
                }
                self.wake(index);
            }
            match &self.workers[index].job {
                None => self.next_work(index),
                Some(job) if job.ends.is_some_and(|ends| ends <= self.now) => self.end(index),
                Some(_) => {}
            }
            self.add_worker();
            self.check();
        }
        if looks_at == 0 {
            self.watch();
        }
        self.add_worker();
        self.check();
        self.check_neglect(runs);
    }

    fn wake(&mut self, index: usize) {
        let until = self.workers[index].asleep.take();
        self.dispatcher.devices[self.workers[index].device].timers -= usize::from(until.flatten().is_some());
    }

    /// Starts and wakes workers, as the threads of a queue do.
    fn add_worker(&mut self) {
        while let Some(device) = self.dispatcher.device_needing_worker(self.now) {
            let number = self.dispatcher.add_worker(device);
            self.workers.push(Worker {
                number,
                device,
                ready_for: None,
                job: None,
                warm: false,
                dismissed: false,
                asleep: None,
            });
        }
        for (device, count) in self.dispatcher.to_wake(self.now) {
            let asleep = |(index, worker): (usize, &Worker)| {
                (worker.device == device && worker.asleep.is_some()).then_some(index)
            };
            let asleep: Vec<usize> = self.workers.iter().enumerate().filter_map(asleep).collect();
            asleep.into_iter().take(count).for_each(|index| self.wake(index));
        }
        for index in 0..self.workers.len() {
            let Worker { device, asleep, .. } = self.workers[index];
            if asleep.is_some() && self.dispatcher.devices[device].health.is_retired() {
                self.wake(index);
            }
        }
    }

    fn watch(&mut self) {
        // The records before are valid after, except for removed workers.
        let longest = self.dispatcher.longest;
        self.dispatcher.watch(self.now);
        self.dispatcher.rebalance_if_due(self.now);
        self.notice_dismissed(longest);
        self.check();
    }

    /// Finds the workers that the dispatcher has removed.
    fn notice_dismissed(&mut self, longest: Duration) {
        for index in 0..self.workers.len() {
            let Worker { number, device, ref job, dismissed, .. } = self.workers[index];
            if dismissed || self.dispatcher.workers.contains_key(&number) {
                continue;
            }
            let generation = self.dispatcher.devices[device].device.generation();
            let is_outdated =
                job.as_ref().is_some_and(|job| job.work == Work::Prepare && job.generation < generation);
            match is_outdated {
                true => self.outdated += 1,
                false => {
                    self.check_verdict(index, longest);
                    self.hung += 1;
                }
            }
            self.workers[index].dismissed = true;
            if self.workers[index].asleep.is_some() {
                self.wake(index);
            }
            if let Some(Job { work: Work::Batch(pieces), flight, .. }) = self.workers[index].job.clone()
                && self.runs(pieces[0]).next().is_none()
            {
                self.end_flight(flight);
            }
        }
    }

    /// Whether every worker of a device is busy, at least one of them with preparing it.
    fn gets_ready(&self, device: usize) -> bool {
        let mut jobs = (self.workers.iter())
            .filter(|worker| worker.device == device && !worker.dismissed)
            .map(|worker| worker.job.as_ref().map(|job| &job.work));
        jobs.clone().all(|work| work.is_some()) && jobs.any(|work| work == Some(&Work::Prepare))
    }

    /// Checks that no piece waits for a sick or unprepared device while another is idle.
    fn check_neglect(&mut self, passed: Duration) {
        let is_idle = |device: &usize| {
            let is_busy =
                |worker: &Worker| worker.device == *device && !worker.dismissed && worker.job.is_some();
            self.dispatcher.devices[*device].health.is_working() && !self.workers.iter().any(is_busy)
        };
        let idle: Vec<usize> = (0..self.dispatcher.devices.len()).filter(is_idle).collect();
        let could_be_done: Vec<usize> = idle.iter().flat_map(|&device| self.waiting_for(device)).collect();
        for &index in &self.open {
            let neglected = &mut self.pieces[index].neglected;
            *neglected = if could_be_done.contains(&index) { *neglected + passed } else { Duration::ZERO };
            assert!(*neglected < NEGLECTED, "piece {index} waits although a device has nothing to do");
        }
    }

    /// Checks that a removed worker was hung, by the simulation's records.
    fn check_verdict(&mut self, index: usize, longest: Duration) {
        let Worker { device, job, warm, .. } = self.workers[index].clone();
        let Job { work, began, flight, .. } = job.expect("an idle worker was given up on");
        let age = self.ran - began;
        let Work::Batch(pieces) = work else {
            return assert!(age >= self.dispatcher.limits.prepare, "{age:?}");
        };
        let piece = pieces[0];
        if flight.is_none_or(|flight| !self.flights.contains(&flight))
            && self.dispatcher.limits.piece.is_none()
        {
            // Its pieces ended in this batch, so their later state does not matter.
            if pieces.len() > 1 || !matches!(self.pieces[piece].answered, Answered::Done(..)) {
                return assert!(self.dispatcher.devices[device].may_hang && age >= ms(500), "{age:?}");
            }
        }
        let silence = self.dispatcher.limits.silence.unwrap_or((longest * 100).max(Duration::from_secs(60)));
        let answered = self.pieces[piece].answered;
        match (self.dispatcher.limits.piece, answered) {
            (Some(limit), _) => assert!(age >= limit, "{age:?} of {limit:?}"),
            (None, _) if !self.dispatcher.devices[device].may_hang => panic!("plain code was declared hung"),
            (None, Answered::Done(_, _, took)) => {
                assert!(age >= took * 10 && age >= ms(500), "{age:?} is no evidence beside {took:?}");
                let is_cold = !warm && self.dispatcher.devices[device].mean.time().is_none();
                assert!(!is_cold || age >= silence, "{age:?} is no evidence for a device's first piece");
            }
            (None, Answered::Failed) => assert!(age >= silence, "{age:?}"),
            (None, Answered::Not | Answered::NoDevice) => {
                assert!(age >= silence, "{age:?} of {silence:?}");
                // A healthy device with a free worker, on which the piece has not failed, could have given evidence.
                for (other, it) in self.dispatcher.devices.iter().enumerate() {
                    let has_it = self.runs(piece).any(|worker| worker.device == other);
                    let is_free = it.health.is_working() && it.active + it.preparing < it.max_workers;
                    let has_failed_it = self.tries(piece, other) >= 4;
                    let gets_ready = self.gets_ready(other);
                    let is_too_small = pieces.len() > it.max_pieces;
                    assert!(
                        other == device || has_it || !is_free || has_failed_it || gets_ready || is_too_small,
                        "device {other} was not balancer_asked"
                    );
                }
            }
            (None, Answered::Withdrawn) => panic!("a withdrawn piece was in flight"),
        }
        if flight.is_some_and(|flight| self.flights.contains(&flight)) {
            pieces.iter().for_each(|&piece| self.pieces[piece].failures.push((device, 2)));
        }
    }

    fn tries(&self, piece: usize, device: usize) -> u32 {
        self.pieces[piece]
            .failures
            .iter()
            .filter(|(failed, _)| *failed == device)
            .map(|(_, tries)| tries)
            .sum()
    }

    /// Checks the invariants.
    fn check(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        open.retain(|&index| self.check_answer(index));
        self.open = open;
        let (dispatcher, waiting) = (&self.dispatcher, self.open.len());
        let queued =
            dispatcher.shared_len() + dispatcher.devices.iter().map(DeviceQueue::queued).sum::<usize>();
        let in_flight: usize = dispatcher.in_flight.values().map(|flight| flight.tickets.len()).sum();
        assert_eq!(dispatcher.outstanding, waiting, "each piece has one answer");
        assert!(dispatcher.outstanding <= dispatcher.capacity, "more pieces than the capacity");
        assert_eq!(dispatcher.outstanding, queued + in_flight, "each piece is in one queue");
        assert!(dispatcher.in_flight.keys().eq(&self.flights));
        for (index, device) in dispatcher.devices.iter().enumerate() {
            let workers = self.workers.iter().filter(|worker| worker.device == index && !worker.dismissed);
            let jobs: Vec<&Job> = workers.clone().filter_map(|worker| worker.job.as_ref()).collect();
            let preparing = jobs.iter().filter(|job| job.work == Work::Prepare).count();
            let counted = &device.device.counters;
            assert_eq!(
                (device.active, device.preparing),
                (jobs.len() - preparing, preparing),
                "device {index}"
            );
            let pieces = |job: &&Job| match &job.work {
                Work::Batch(pieces) => pieces.len() as u64,
                Work::Prepare => 0,
            };
            let active: u64 = jobs.iter().map(pieces).sum();
            assert_eq!((counted.active(), counted.queued.load(Relaxed)), (active, device.queued() as u64));
            assert_eq!(
                (counted.done.load(Relaxed), counted.failed.load(Relaxed)),
                (device.done, device.failed)
            );
            assert!(device.workers == workers.count() && device.workers <= device.max_workers);
            assert!(device.health.is_working() || device.queued() == 0);
        }
        assert!(dispatcher.in_flight.values().all(|flight| !flight.running.is_empty()));
        self.dispatcher.settled.clear();
        self.check_homes();
    }

    /// Checks that pieces wait at their homes, unless they had to leave.
    fn check_homes(&mut self) {
        for &index in &self.open {
            let it = &self.pieces[index];
            let Some(home) = it.home else { continue };
            let is_here = |device: &DeviceQueue<usize, u32>| device.own().any(|own| own.ticket.key == it.key);
            let devices = &self.dispatcher.devices;
            let now_at = devices.iter().position(is_here);
            if now_at != Some(home) {
                assert!(now_at.is_some() || !devices[home].is_well(), "piece {index} has lost its home");
                self.moved += u64::from(now_at.is_some());
                self.pieces[index].home = now_at;
            }
        }
    }

    /// Checks a piece's result against the simulation's records. Returns whether there is none.
    fn check_answer(&mut self, index: usize) -> bool {
        let Some(handle) = self.pieces[index].handle.take_if(|handle| handle.is_done()) else {
            let piece = &self.pieces[index];
            assert!(piece.handle.is_some() && piece.answered == Answered::Not, "piece {index}");
            return true;
        };
        match (handle.wait(), self.pieces[index].answered) {
            (Ok(result), Answered::Done(first, ..)) => assert_eq!(result, first),
            (Err(QueueError::Task { .. }), Answered::Failed) => {}
            (Err(QueueError::Cancelled), Answered::Withdrawn) => {}
            (Err(QueueError::NoDeviceLeft { .. }), Answered::Not) => {
                for (device, it) in self.dispatcher.devices.iter().enumerate() {
                    let is_out = it.health.is_retired() || it.health.is_given_up();
                    assert!(
                        is_out || self.tries(index, device) >= 4,
                        "device {device} could do piece {index}"
                    );
                }
                self.pieces[index].answered = Answered::NoDevice;
            }
            (answer, known) => panic!("piece {index}: {answer:?}, but {known:?}"),
        }
        false
    }

    fn live(&mut self) {
        for _ in 0..STEPS {
            let device = self.random.below(self.conditions.len() as u64) as usize;
            if self.random.below(150) == 0 {
                let conditions =
                    [Condition::Well, Condition::Well, Condition::Flaky, Condition::Dead, Condition::Hanging];
                self.conditions[device] = conditions[self.random.below(5) as usize];
            }
            // A hung device may recover.
            if self.random.below(300) == 0
                && let Some(job) = self.workers.iter_mut().filter_map(|worker| worker.job.as_mut()).next()
            {
                job.ends.get_or_insert(self.now + ms(100));
            }
            if self.dispatcher.outstanding < 30 && self.random.percent(20) {
                (0..=self.random.below(4)).for_each(|_| self.submit());
                self.add_worker();
            }
            if !self.pieces.is_empty() && self.random.percent(2) {
                self.withdraw();
                self.add_worker();
            }
            let stopped = match self.random.below(200) {
                0 => ms(300 + self.random.below(100_000)),
                _ => ms(0),
            };
            self.pass(ms(10), stopped);
        }
    }

    /// Makes every device healthy, except workers that hang, until every piece has its result.
    fn calm_down(&mut self) {
        self.calm = true;
        self.conditions.fill(Condition::Well);
        let mut rounds = 0;
        while self.dispatcher.outstanding > 0 {
            self.pass(ms(200), ms(0));
            rounds += 1;
            assert!(rounds < 100_000, "{} pieces are never answered", self.dispatcher.outstanding);
        }
        // After the longest quarantine, every piece has ended that some device can finish in time.
        (0..550).for_each(|_| self.pass(ms(200), ms(0)));
        let first = self.pieces.len();
        (0..20.min(self.dispatcher.capacity)).for_each(|_| self.submit());
        self.add_worker();
        while self.dispatcher.outstanding > 0 {
            self.pass(ms(10), ms(0));
        }
        let is_able = self.dispatcher.devices.iter().any(|device| !device.health.is_retired());
        let longest = self.pieces[first..].iter().map(|piece| piece.cost * 4).max().unwrap_or_default();
        for piece in &self.pieces[first..] {
            // Nothing gives evidence about a single device, so the silence limit counts as well.
            let limit = self.dispatcher.limits.piece.or(self.dispatcher.limits.silence);
            let in_time = limit.is_none_or(|limit| longest * (self.dispatcher.batch.pieces as u32) < limit);
            let is_done = matches!(piece.answered, Answered::Done(..));
            assert!(is_done || !is_able || !in_time, "{:?}", piece.answered);
        }
    }
}

#[test]
fn whatever_happens_to_the_devices_the_dispatcher_keeps_its_invariants() {
    let (mut hung, mut outdated, mut copies, mut done, mut lost) = (0, 0, 0, 0, 0);
    let (mut batches, mut full, mut moved) = (0, 0, 0);
    for seed in SEEDS {
        let checked = std::panic::catch_unwind(|| {
            let mut simulation = Simulation::new(seed);
            simulation.live();
            simulation.calm_down();
            let count = |is: fn(&Answered) -> bool| {
                simulation.pieces.iter().filter(|piece| is(&piece.answered)).count()
            };
            let done = count(|answered| matches!(answered, Answered::Done(..)));
            assert_eq!(
                simulation.dispatcher.devices.iter().map(|device| device.done).sum::<u64>(),
                done as u64
            );
            let lost = count(|answered| *answered == Answered::NoDevice);
            (
                simulation.hung,
                simulation.outdated,
                simulation.copies,
                done,
                lost,
                simulation.batches,
                simulation.full,
                simulation.moved,
            )
        });
        let Ok(checked) = checked else { panic!("an invariant is broken with seed {seed}") };
        (hung, outdated, copies) = (hung + checked.0, outdated + checked.1, copies + checked.2);
        (done, lost) = (done + checked.3, lost + checked.4);
        (batches, full, moved) = (batches + checked.5, full + checked.6, moved + checked.7);
    }
    // The simulations have enough failures to mean something.
    let is_rough = hung > 100 && outdated > 100 && copies > 100 && done > 10_000 && lost > 10;
    assert!(is_rough, "{hung} {outdated} {copies} {done} {lost}");
    assert!(batches > 1_000 && full > 1_000 && moved > 100, "{batches} {full} {moved}");
}
