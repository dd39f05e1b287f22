//! A desk in a made-up world, in virtual time: devices fail, hang and come back, pieces take unlike times, the process is
//! stopped, handles are withdrawn. The world knows the truth, and holds the desk to it after every step. What must never
//! happen:
//!
//! - a piece is lost, or answered twice;
//! - a piece is begun while one of a higher priority waits that its device could take;
//! - a device that is well is idle while a piece waits that it may take;
//! - a batch has more pieces than the maximum, or waits for more of them for longer than it may;
//! - more pieces than the capacity are without an answer;
//! - a piece with a home is begun elsewhere, unless the balancer has moved it, its home has failed, or all of its workers
//!   are late;
//! - a device is called hung without evidence.

use std::sync::{Weak, atomic::Ordering::Relaxed};

use evener_device::{Device, DeviceId, Error};

use super::{super::Handle, *};
use crate::{executor::PoolDevice, queue::shared::Shared};

/// One seed is one world. A failure names its seed, with which it can be run alone.
const SEEDS: std::ops::Range<u64> = 0..200;
const STEPS: u64 = 3_000;

/// No piece waits for so long where a device that works and has nothing to do could have had it: as long as it takes to
/// find that a worker which should have taken it is not soon ready.
const NEGLECTED: Duration = Duration::from_millis(1_500);

fn ms(milliseconds: u64) -> Time {
    Time::from_millis(milliseconds)
}

/// SplitMix64.
struct Random(u64);

impl Random {
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

/// How a device is at the moment.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Well,
    /// Some pieces fail.
    Flaky,
    /// Everything fails.
    Dead,
    /// Everything that begins hangs.
    Hanging,
}

/// How something that a worker does will end.
#[derive(Debug, Clone)]
enum Fate {
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
    /// In time in which the process ran.
    began: Duration,
    /// Never, if it hangs.
    ends: Option<Time>,
    fate: Fate,
    generation: u64,
    /// The number of the batch in flight.
    flight: Option<u64>,
}

#[derive(Debug, Clone)]
struct Worker {
    number: u64,
    line: usize,
    ready_for: Option<u64>,
    job: Option<Job>,
    /// It has done a piece since it was made ready.
    warm: bool,
    /// The desk has given up on it.
    dismissed: bool,
    /// It waits to be woken, or for a time.
    asleep: Option<Option<Time>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Answered {
    Not,
    /// By this line, in so long.
    Done(u32, usize, Duration),
    Failed,
    Withdrawn,
    NoDevice,
}

struct Piece {
    cost: Duration,
    /// Fails wherever it runs.
    faulty: bool,
    place: Place,
    priority: i32,
    home: Option<usize>,
    since: Time,
    /// It was begun before, so that it is done alone.
    begun: bool,
    handle: Option<Handle<u32>>,
    answered: Answered,
    /// The lines that it failed on, with the number of tries that each failure counts for.
    failures: Vec<(usize, u32)>,
    /// How long it has waited while a device that could have had it had nothing to do.
    neglected: Duration,
}

struct World {
    random: Random,
    desk: Desk<usize, u32>,
    now: Time,
    /// The time without stops.
    ran: Duration,
    moods: Vec<Mood>,
    slowness: Vec<u32>,
    workers: Vec<Worker>,
    pieces: Vec<Piece>,
    /// The pieces whose answers were not seen yet.
    open: Vec<usize>,
    /// Batches that have no end yet.
    flights: std::collections::BTreeSet<u64>,
    results: u32,
    /// From when on every device stays well.
    calm: bool,
    hung: usize,
    /// Workers that were let go while they made an old opening of a device ready.
    outdated: usize,
    copies: usize,
    batches: usize,
    full: usize,
    moved: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let devices = 1 + random.below(4) as usize;
        let line = |index: usize, random: &mut Random| {
            let seat = Arc::new(PoolDevice::new(index, Device::cpu()));
            let workers = if random.percent(20) { 16 } else { 1 + random.below(3) as usize };
            let score = 1.0 + random.below(30) as f64;
            Line::new(seat, score, workers, random.percent(75))
        };
        let lines: Vec<_> = (0..devices).map(|index| line(index, &mut random)).collect();
        let slowness = (0..devices).map(|_| 1 + random.below(4) as u32).collect();
        let limits = Limits {
            piece: random.percent(20).then(|| ms(300 + random.below(3_000))),
            prepare: if random.percent(50) { ms(2_000) } else { ms(300_000) },
            silence: random.percent(50).then(|| ms(5_000 + random.below(10_000))),
        };
        let batch = Batch {
            pieces: if random.percent(50) { 1 } else { 1 + random.below(6) as usize },
            delay: if random.percent(50) { ms(0) } else { ms(random.below(100)) },
        };
        let capacity = if random.percent(50) { 1_000 } else { 5 + random.below(20) as usize };
        let settings = BalancerSettings { interval: ms(50), ..BalancerSettings::default() };
        World {
            random,
            desk: Desk::new(lines, settings, limits, batch, capacity),
            now: ms(0),
            ran: ms(0),
            moods: vec![Mood::Well; devices],
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
        let home = self.random.percent(25).then(|| self.random.below(self.desk.lines.len() as u64) as usize);
        let move_time = ms(self.random.below(50));
        let wishes = Wishes { priority, home: home.map(|home| (home, move_time)) };
        let is_full = self.open.len() >= self.desk.capacity;
        let (answer, place) = match self.desk.submit(self.pieces.len(), wishes, self.now) {
            Ok(submitted) => submitted,
            Err((_, refused)) => {
                assert!(is_full && refused == Refused::Full);
                self.full += 1;
                return;
            }
        };
        assert!(!is_full, "more pieces than the capacity");
        let home = home.filter(|&home| self.desk.lines[home].is_well());
        let nobody: Weak<Shared<crate::KernelTask<u32, u32>>> = Weak::new();
        let cost = match self.random.below(40) {
            0 => ms(500 + self.random.below(2_000)),
            _ => ms(1 + self.random.below(20)),
        };
        let faulty = !self.calm && self.random.percent(2);
        let handle = Some(Handle::new(answer, place, nobody));
        self.open.push(self.pieces.len());
        self.pieces.push(Piece {
            cost,
            faulty,
            place,
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
        if self.desk.withdraw(self.pieces[index].place) {
            assert!(!is_begun, "piece {index} was in flight");
            assert_eq!(self.pieces[index].answered, Answered::Not);
            self.pieces[index].answered = Answered::Withdrawn;
        }
    }

    /// The workers that run a piece and were not given up on.
    fn runs(&self, piece: usize) -> impl Iterator<Item = &Worker> {
        let is_it = move |job: &Job| {
            let has_it = matches!(&job.work, Work::Batch(pieces) if pieces.contains(&piece));
            has_it && job.flight.is_some_and(|flight| self.flights.contains(&flight))
        };
        self.workers.iter().filter(move |worker| !worker.dismissed && worker.job.as_ref().is_some_and(is_it))
    }

    /// How a job of a line will end, and when.
    fn fate(&mut self, line: usize, work: &Work) -> (Option<Time>, Fate) {
        let (device, operation) = (DeviceId::from("cpu"), "a test".to_owned());
        let lost =
            Error::Lost { device: device.clone(), operation: operation.clone(), detail: String::new() };
        let usual = match work {
            Work::Prepare => ms(self.random.below(50)),
            Work::Batch(pieces) => {
                pieces.iter().map(|&index| self.pieces[index].cost * self.slowness[line]).sum()
            }
        };
        if let Work::Batch(pieces) = work
            && pieces.iter().any(|&index| self.pieces[index].faulty)
        {
            let error = Error::Task { device, operation, item: None, message: String::new() };
            return (Some(self.now + usual), Fate::Fails(error));
        }
        match self.moods[line] {
            Mood::Dead => (Some(self.now + ms(1)), Fate::Fails(lost)),
            Mood::Flaky if self.random.percent(40) => {
                let detail = String::new();
                let error = match self.random.below(400) {
                    0 => Error::Unsupported { device, operation, detail },
                    380.. => Error::OutOfMemory { device, operation, requested: 1, available: None, detail },
                    1..150 => Error::BadResult { device, operation, detail },
                    _ => lost,
                };
                (Some(self.now + usual), Fate::Fails(error))
            }
            // Plain code always comes back.
            Mood::Hanging if self.desk.lines[line].may_hang && self.random.percent(60) => (None, Fate::Well),
            Mood::Hanging => (Some(self.now + usual + ms(self.random.below(5_000))), Fate::Well),
            _ => (Some(self.now + usual), Fate::Well),
        }
    }

    /// A worker asks what to do.
    fn ask(&mut self, index: usize) {
        let Worker { number, line, ready_for, dismissed, .. } = self.workers[index];
        let was_working = self.desk.lines[line].trust.is_working();
        let work = match self.desk.ask(number, ready_for, self.now) {
            Next::Wait { until } => {
                assert!(!dismissed);
                self.workers[index].asleep = Some(until);
                self.desk.lines[line].timers += usize::from(until.is_some());
                if let Some(until) = until {
                    assert!(until > self.now, "it waits for nothing");
                    assert!(self.desk.may_grow(), "it waits for pieces that cannot come");
                    let oldest =
                        self.waiting_for(line).into_iter().map(|index| self.pieces[index].since).min();
                    assert!(oldest.is_some_and(|oldest| until <= oldest + self.desk.batch.delay));
                }
                return;
            }
            Next::Exit => {
                self.workers.swap_remove(index);
                return;
            }
            Next::Prepare => Work::Prepare,
            Next::Run(super::Work { items, first, count, .. }) => {
                Work::Batch(items[first..first + count].to_vec())
            }
        };
        assert!(!dismissed, "worker {number} was given up on and is given work");
        let generation = self.desk.lines[line].seat.generation();
        let mut flight = None;
        if let Work::Batch(pieces) = &work {
            assert_eq!(ready_for, Some(generation));
            self.check_batch(line, generation, pieces, was_working);
            let Some(Hand { doing: Doing::Batch(attempt), .. }) = self.desk.hands.get(&number) else {
                panic!("worker {number} is given a batch that the desk does not know of")
            };
            flight = Some(attempt.flight);
            self.flights.insert(attempt.flight);
            for &piece in pieces {
                (self.pieces[piece].begun, self.pieces[piece].home) = (true, None);
            }
        }
        let (ends, fate) = self.fate(line, &work);
        self.workers[index].job = Some(Job { work, began: self.ran, ends, fate, generation, flight });
    }

    /// The pieces that no worker runs and that a line could be given, by what the world knows.
    fn waiting_for(&self, line: usize) -> Vec<usize> {
        let could = |&index: &usize| {
            let piece = &self.pieces[index];
            let is_elsewhere = piece.home.is_some_and(|home| home != line);
            let has_failed = piece.failures.iter().any(|(failed, _)| *failed == line);
            let waits = piece.answered == Answered::Not && self.runs(index).next().is_none();
            waits && !is_elsewhere && !has_failed
        };
        self.open.iter().copied().filter(could).collect()
    }

    /// A worker of a line is given a batch.
    fn check_batch(&mut self, line: usize, generation: u64, pieces: &[usize], was_working: bool) {
        assert!(pieces.len() <= self.desk.batch.pieces, "{pieces:?}");
        let others: Vec<&Worker> = self.runs(pieces[0]).collect();
        let is_copy = !others.is_empty();
        let is_same = |other: &&Worker| {
            other.line == line && other.job.as_ref().is_some_and(|job| job.generation == generation)
        };
        assert!(!others.iter().any(is_same), "batch {pieces:?} runs twice on a device");
        assert!(!is_copy || others.iter().any(|other| self.desk.lines[other.line].may_hang));
        for &piece in pieces {
            let it = &self.pieces[piece];
            assert_eq!(it.answered, Answered::Not, "piece {piece} is begun after its answer");
            assert!(is_copy || pieces.len() == 1 || !it.begun, "piece {piece} was begun, and is not alone");
            assert!(is_copy || it.home.is_none_or(|home| home == line), "piece {piece} has a home");
        }
        // A canary is whatever would have waited longest.
        if !is_copy && was_working {
            let least = pieces.iter().map(|&piece| self.pieces[piece].priority).min();
            for other in self.waiting_for(line) {
                let is_higher = Some(self.pieces[other].priority) > least;
                assert!(!is_higher || pieces.contains(&other), "piece {other} waits, before {pieces:?}");
            }
        }
        self.batches += usize::from(!is_copy && pieces.len() > 1);
        self.copies += usize::from(is_copy);
    }

    /// A worker has come to the end of its job.
    fn end(&mut self, index: usize) {
        let Some(Job { work, began, fate, generation, flight, .. }) = self.workers[index].job.take() else {
            return;
        };
        let is_live = !self.workers[index].dismissed && flight.is_some_and(|it| self.flights.contains(&it));
        let Worker { number, line, .. } = self.workers[index];
        self.desk.notice_pause(self.now);
        match (work, fate) {
            (Work::Prepare, Fate::Well) => {
                self.desk.prepared(number, u64::MAX);
                self.workers[index].ready_for = Some(generation);
                self.workers[index].warm = false;
            }
            (Work::Prepare, Fate::Fails(error)) => {
                self.desk.not_ready(number, generation, error, self.now);
                self.workers[index].ready_for = None;
            }
            (Work::Batch(pieces), Fate::Well) => {
                let first = self.results;
                self.results += pieces.len() as u32;
                self.workers[index].warm = true;
                let results: Vec<u32> = (first..self.results).collect();
                let unwanted = self.desk.finished(number, results, self.now);
                assert_eq!(unwanted.is_none(), is_live, "pieces {pieces:?}");
                for (&piece, result) in pieces.iter().zip(first..).filter(|_| is_live) {
                    self.pieces[piece].answered = Answered::Done(result, line, self.ran - began);
                }
                self.end_flight(flight.filter(|_| is_live));
            }
            (Work::Batch(pieces), Fate::Fails(error)) => {
                let is_final = matches!(error, Error::Task { .. });
                let is_halved = matches!(error, Error::OutOfMemory { .. }) && pieces.len() > 1;
                for &piece in pieces.iter().filter(|_| is_live) {
                    match is_final {
                        true if pieces.len() > 1 => {}
                        true => self.pieces[piece].answered = Answered::Failed,
                        false if is_halved => {}
                        false => self.pieces[piece].failures.push((line, 1)),
                    }
                }
                if is_live && (is_final || self.runs(pieces[0]).next().is_none()) {
                    self.end_flight(flight);
                }
                self.desk.failed(number, error, self.now);
            }
        }
        self.notice_dismissed(self.desk.longest);
        self.check();
        self.ask(index);
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
        // The look-after thread comes first, last, or in between.
        let mut looks_at = self.random.below(self.workers.len() as u64 + 1) as usize;
        let mut order: Vec<u64> = self.workers.iter().map(|worker| worker.number).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, self.random.below(index as u64 + 1) as usize);
        }
        for number in order {
            if looks_at == 0 {
                self.look_after();
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
                None => self.ask(index),
                Some(job) if job.ends.is_some_and(|ends| ends <= self.now) => self.end(index),
                Some(_) => {}
            }
            self.hire();
            self.check();
        }
        if looks_at == 0 {
            self.look_after();
        }
        self.hire();
        self.check();
        self.check_neglect(runs);
    }

    fn wake(&mut self, index: usize) {
        let until = self.workers[index].asleep.take();
        self.desk.lines[self.workers[index].line].timers -= usize::from(until.flatten().is_some());
    }

    /// Starts and wakes workers, as the threads of a queue do.
    fn hire(&mut self) {
        while let Some(line) = self.desk.understaffed(self.now) {
            let number = self.desk.hire(line);
            self.workers.push(Worker {
                number,
                line,
                ready_for: None,
                job: None,
                warm: false,
                dismissed: false,
                asleep: None,
            });
        }
        for (line, count) in self.desk.to_wake(self.now) {
            let asleep = |(index, worker): (usize, &Worker)| {
                (worker.line == line && worker.asleep.is_some()).then_some(index)
            };
            let asleep: Vec<usize> = self.workers.iter().enumerate().filter_map(asleep).collect();
            asleep.into_iter().take(count).for_each(|index| self.wake(index));
        }
        for index in 0..self.workers.len() {
            let Worker { line, asleep, .. } = self.workers[index];
            if asleep.is_some() && self.desk.lines[line].trust.is_retired() {
                self.wake(index);
            }
        }
    }

    fn look_after(&mut self) {
        // What can be known before is known after, but for what a verdict changes.
        let longest = self.desk.longest;
        self.desk.look_after(self.now);
        self.desk.rebalance_if_due(self.now);
        self.notice_dismissed(longest);
        self.check();
    }

    /// Finds the workers that the desk has given up on.
    fn notice_dismissed(&mut self, longest: Duration) {
        for index in 0..self.workers.len() {
            let Worker { number, line, ref job, dismissed, .. } = self.workers[index];
            if dismissed || self.desk.hands.contains_key(&number) {
                continue;
            }
            let generation = self.desk.lines[line].seat.generation();
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

    /// Whether every worker of a line is busy, one of them with making it ready: all that waits there waits for that.
    fn gets_ready(&self, line: usize) -> bool {
        let mut jobs = (self.workers.iter())
            .filter(|worker| worker.line == line && !worker.dismissed)
            .map(|worker| worker.job.as_ref().map(|job| &job.work));
        jobs.clone().all(|work| work.is_some()) && jobs.any(|work| work == Some(&Work::Prepare))
    }

    /// No piece waits for a device that is not well, or not ready, while another one has nothing to do.
    fn check_neglect(&mut self, passed: Duration) {
        let is_idle = |line: &usize| {
            let is_busy = |worker: &Worker| worker.line == *line && !worker.dismissed && worker.job.is_some();
            self.desk.lines[*line].trust.is_working() && !self.workers.iter().any(is_busy)
        };
        let idle: Vec<usize> = (0..self.desk.lines.len()).filter(is_idle).collect();
        let could_be_done: Vec<usize> = idle.iter().flat_map(|&line| self.waiting_for(line)).collect();
        for &index in &self.open {
            let neglected = &mut self.pieces[index].neglected;
            *neglected = if could_be_done.contains(&index) { *neglected + passed } else { Duration::ZERO };
            assert!(*neglected < NEGLECTED, "piece {index} waits although a device has nothing to do");
        }
    }

    /// A worker was given up on: there must be a reason that the world knows of.
    fn check_verdict(&mut self, index: usize, longest: Duration) {
        let Worker { line, job, warm, .. } = self.workers[index].clone();
        let Job { work, began, flight, .. } = job.expect("an idle worker was given up on");
        let age = self.ran - began;
        let Work::Batch(pieces) = work else {
            return assert!(age >= self.desk.limits.prepare, "{age:?}");
        };
        let piece = pieces[0];
        if flight.is_none_or(|flight| !self.flights.contains(&flight)) && self.desk.limits.piece.is_none() {
            // Its pieces were done, or ended with an error, in this batch: what became of them since says nothing.
            if pieces.len() > 1 || !matches!(self.pieces[piece].answered, Answered::Done(..)) {
                return assert!(self.desk.lines[line].may_hang && age >= ms(500), "{age:?}");
            }
        }
        let silence = self.desk.limits.silence.unwrap_or((longest * 100).max(Duration::from_secs(60)));
        let answered = self.pieces[piece].answered;
        match (self.desk.limits.piece, answered) {
            (Some(limit), _) => assert!(age >= limit, "{age:?} of {limit:?}"),
            (None, _) if !self.desk.lines[line].may_hang => panic!("plain code was given up on"),
            (None, Answered::Done(_, _, took)) => {
                assert!(age >= took * 10 && age >= ms(500), "{age:?} is no evidence beside {took:?}");
                let is_cold = !warm && self.desk.lines[line].mean.time().is_none();
                assert!(!is_cold || age >= silence, "{age:?} is no evidence for a device's first piece");
            }
            (None, Answered::Failed) => assert!(age >= silence, "{age:?}"),
            (None, Answered::Not | Answered::NoDevice) => {
                assert!(age >= silence, "{age:?} of {silence:?}");
                // A device that works, has a worker to spare and has not failed the piece could have shown more.
                for (other, it) in self.desk.lines.iter().enumerate() {
                    let has_it = self.runs(piece).any(|worker| worker.line == other);
                    let is_free = it.trust.is_working() && it.active + it.preparing < it.max_workers;
                    let has_failed_it = self.tries(piece, other) >= 4;
                    let gets_ready = self.gets_ready(other);
                    let is_too_small = pieces.len() > it.max_pieces;
                    assert!(
                        other == line || has_it || !is_free || has_failed_it || gets_ready || is_too_small,
                        "device {other} was not asked"
                    );
                }
            }
            (None, Answered::Withdrawn) => panic!("a withdrawn piece was in flight"),
        }
        if flight.is_some_and(|flight| self.flights.contains(&flight)) {
            pieces.iter().for_each(|&piece| self.pieces[piece].failures.push((line, 2)));
        }
    }

    fn tries(&self, piece: usize, line: usize) -> u32 {
        self.pieces[piece].failures.iter().filter(|(failed, _)| *failed == line).map(|(_, tries)| tries).sum()
    }

    /// What must always be so.
    fn check(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        open.retain(|&index| self.check_answer(index));
        self.open = open;
        let (desk, waiting) = (&self.desk, self.open.len());
        let queued = desk.shared_len() + desk.lines.iter().map(Line::queued).sum::<usize>();
        let in_flight: usize = desk.in_flight.values().map(|flight| flight.tickets.len()).sum();
        assert_eq!(desk.outstanding, waiting, "each piece has one answer");
        assert!(desk.outstanding <= desk.capacity, "more pieces than the capacity");
        assert_eq!(desk.outstanding, queued + in_flight, "each piece is in one place");
        assert!(desk.in_flight.keys().eq(&self.flights));
        for (index, line) in desk.lines.iter().enumerate() {
            let workers = self.workers.iter().filter(|worker| worker.line == index && !worker.dismissed);
            let jobs: Vec<&Job> = workers.clone().filter_map(|worker| worker.job.as_ref()).collect();
            let preparing = jobs.iter().filter(|job| job.work == Work::Prepare).count();
            let counted = &line.seat.counters;
            assert_eq!((line.active, line.preparing), (jobs.len() - preparing, preparing), "device {index}");
            let pieces = |job: &&Job| match &job.work {
                Work::Batch(pieces) => pieces.len() as u64,
                Work::Prepare => 0,
            };
            let active: u64 = jobs.iter().map(pieces).sum();
            assert_eq!((counted.active(), counted.queued.load(Relaxed)), (active, line.queued() as u64));
            assert_eq!((counted.done.load(Relaxed), counted.failed.load(Relaxed)), (line.done, line.failed));
            assert!(line.hands == workers.count() && line.hands <= line.max_workers);
            assert!(line.trust.is_working() || line.queued() == 0);
        }
        assert!(desk.in_flight.values().all(|flight| !flight.running.is_empty()));
        self.desk.settled.clear();
        self.check_homes();
    }

    /// Pieces wait at their homes, but for a reason.
    fn check_homes(&mut self) {
        for &index in &self.open {
            let it = &self.pieces[index];
            let Some(home) = it.home else { continue };
            let is_here = |line: &Line<usize, u32>| line.own().any(|own| own.ticket.place == it.place);
            let lines = &self.desk.lines;
            let now_at = lines.iter().position(is_here);
            if now_at != Some(home) {
                assert!(now_at.is_some() || !lines[home].is_well(), "piece {index} has lost its home");
                self.moved += u64::from(now_at.is_some());
                self.pieces[index].home = now_at;
            }
        }
    }

    /// A piece has the answer that the world knows of, or none. Says whether it has none.
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
                for (line, it) in self.desk.lines.iter().enumerate() {
                    let is_out = it.trust.is_retired() || it.trust.is_hopeless();
                    assert!(is_out || self.tries(index, line) >= 4, "device {line} could do piece {index}");
                }
                self.pieces[index].answered = Answered::NoDevice;
            }
            (answer, known) => panic!("piece {index}: {answer:?}, but {known:?}"),
        }
        false
    }

    fn live(&mut self) {
        for _ in 0..STEPS {
            let line = self.random.below(self.moods.len() as u64) as usize;
            if self.random.below(150) == 0 {
                let moods = [Mood::Well, Mood::Well, Mood::Flaky, Mood::Dead, Mood::Hanging];
                self.moods[line] = moods[self.random.below(5) as usize];
            }
            // A hung device may come back.
            if self.random.below(300) == 0
                && let Some(job) = self.workers.iter_mut().filter_map(|worker| worker.job.as_mut()).next()
            {
                job.ends.get_or_insert(self.now + ms(100));
            }
            if self.desk.outstanding < 30 && self.random.percent(20) {
                (0..=self.random.below(4)).for_each(|_| self.submit());
                self.hire();
            }
            if !self.pieces.is_empty() && self.random.percent(2) {
                self.withdraw();
                self.hire();
            }
            let stopped = match self.random.below(200) {
                0 => ms(300 + self.random.below(100_000)),
                _ => ms(0),
            };
            self.pass(ms(10), stopped);
        }
    }

    /// Every device is well, though workers that hang still do: all that is left is answered.
    fn calm_down(&mut self) {
        self.calm = true;
        self.moods.fill(Mood::Well);
        let mut rounds = 0;
        while self.desk.outstanding > 0 {
            self.pass(ms(200), ms(0));
            rounds += 1;
            assert!(rounds < 100_000, "{} pieces are never answered", self.desk.outstanding);
        }
        // After the longest quarantine, every piece is done that some device can do in time.
        (0..550).for_each(|_| self.pass(ms(200), ms(0)));
        let first = self.pieces.len();
        (0..20.min(self.desk.capacity)).for_each(|_| self.submit());
        self.hire();
        while self.desk.outstanding > 0 {
            self.pass(ms(10), ms(0));
        }
        let is_able = self.desk.lines.iter().any(|line| !line.trust.is_retired());
        let longest = self.pieces[first..].iter().map(|piece| piece.cost * 4).max().unwrap_or_default();
        for piece in &self.pieces[first..] {
            // A device alone has no witness, so the silence limit counts as well.
            let limit = self.desk.limits.piece.or(self.desk.limits.silence);
            let in_time = limit.is_none_or(|limit| longest * (self.desk.batch.pieces as u32) < limit);
            let is_done = matches!(piece.answered, Answered::Done(..));
            assert!(is_done || !is_able || !in_time, "{:?}", piece.answered);
        }
    }
}

#[test]
fn whatever_happens_to_the_devices_the_desk_keeps_its_promises() {
    let (mut hung, mut outdated, mut copies, mut done, mut lost) = (0, 0, 0, 0, 0);
    let (mut batches, mut full, mut moved) = (0, 0, 0);
    for seed in SEEDS {
        let told = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.live();
            world.calm_down();
            let count =
                |is: fn(&Answered) -> bool| world.pieces.iter().filter(|piece| is(&piece.answered)).count();
            let done = count(|answered| matches!(answered, Answered::Done(..)));
            assert_eq!(world.desk.lines.iter().map(|line| line.done).sum::<u64>(), done as u64);
            let lost = count(|answered| *answered == Answered::NoDevice);
            (world.hung, world.outdated, world.copies, done, lost, world.batches, world.full, world.moved)
        });
        let Ok(told) = told else { panic!("the desk broke a promise with seed {seed}") };
        (hung, outdated, copies) = (hung + told.0, outdated + told.1, copies + told.2);
        (done, lost) = (done + told.3, lost + told.4);
        (batches, full, moved) = (batches + told.5, full + told.6, moved + told.7);
    }
    // The worlds are rough enough to mean something.
    let is_rough = hung > 100 && outdated > 100 && copies > 100 && done > 10_000 && lost > 10;
    assert!(is_rough, "{hung} {outdated} {copies} {done} {lost}");
    assert!(batches > 1_000 && full > 1_000 && moved > 100, "{batches} {full} {moved}");
}
