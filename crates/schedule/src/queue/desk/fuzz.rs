//! A desk in a made-up world, in virtual time: devices fail, hang and come back, pieces take unlike times, the process is
//! stopped, handles are withdrawn. The world knows the truth, and holds the desk to it after every step.

use std::sync::Weak;

use evener_device::{Device, DeviceId, Error};

use super::{super::Handle, *};
use crate::{pool::Seat, queue::shared::Shared};

/// One seed is one world. A failure names its seed, with which it can be run alone.
const SEEDS: std::ops::Range<u64> = 0..200;
const STEPS: u64 = 3_000;

/// No piece waits for so long where a device that works and has nothing to do could have had it.
const NEGLECTED: Duration = Duration::from_secs(20);

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

#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    Prepare,
    Piece(usize),
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
    results: u32,
    /// From when on every device stays well.
    calm: bool,
    hung: usize,
    /// Workers that were let go while they made an old opening of a device ready.
    outdated: usize,
    copies: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let devices = 1 + random.below(4) as usize;
        let line = |index: usize, random: &mut Random| {
            let seat = Arc::new(Seat::new(index, Device::cpu()));
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
        let settings = BalancerSettings { interval: ms(50), ..BalancerSettings::default() };
        World {
            random,
            desk: Desk::new(lines, settings, limits),
            now: ms(0),
            ran: ms(0),
            moods: vec![Mood::Well; devices],
            slowness,
            workers: Vec::new(),
            pieces: Vec::new(),
            open: Vec::new(),
            results: 0,
            calm: false,
            hung: 0,
            outdated: 0,
            copies: 0,
        }
    }

    fn submit(&mut self) {
        let priority = self.random.below(3) as i32;
        let (answer, place) = self.desk.submit(self.pieces.len(), priority, self.now).unwrap();
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
        let is_it = move |job: &Job| job.work == Work::Piece(piece);
        self.workers.iter().filter(move |worker| !worker.dismissed && worker.job.as_ref().is_some_and(is_it))
    }

    /// How a job of a line will end, and when.
    fn fate(&mut self, line: usize, work: Work) -> (Option<Time>, Fate) {
        let (device, operation) = (DeviceId::from("cpu"), "a test".to_owned());
        let lost =
            Error::Lost { device: device.clone(), operation: operation.clone(), detail: String::new() };
        let usual = match work {
            Work::Prepare => ms(self.random.below(50)),
            Work::Piece(index) => self.pieces[index].cost * self.slowness[line],
        };
        if let Work::Piece(index) = work
            && self.pieces[index].faulty
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
        let work = match self.desk.ask(number, ready_for, self.now) {
            Next::Rest => return assert!(!dismissed),
            Next::Go => {
                self.workers.swap_remove(index);
                return;
            }
            Next::Prepare => Work::Prepare,
            Next::Run { item, .. } => Work::Piece(*item),
        };
        assert!(!dismissed, "worker {number} was given up on and is given work");
        let generation = self.desk.lines[line].seat.generation();
        if let Work::Piece(piece) = work {
            assert_eq!(ready_for, Some(generation));
            assert_eq!(self.pieces[piece].answered, Answered::Not, "piece {piece} is begun after its answer");
            let others: Vec<&Worker> = self.runs(piece).collect();
            let is_same = |other: &&Worker| {
                other.line == line && other.job.as_ref().is_some_and(|job| job.generation == generation)
            };
            assert!(!others.iter().any(is_same), "piece {piece} runs twice on a device");
            assert!(others.is_empty() || others.iter().any(|other| self.desk.lines[other.line].may_hang));
            self.copies += usize::from(!others.is_empty());
        }
        let (ends, fate) = self.fate(line, work);
        self.workers[index].job = Some(Job { work, began: self.ran, ends, fate, generation });
    }

    /// A worker has come to the end of its job.
    fn end(&mut self, index: usize) {
        let Some(Job { work, began, fate, generation, .. }) = self.workers[index].job.take() else { return };
        let Worker { number, line, dismissed, .. } = self.workers[index];
        self.desk.notice_pause(self.now);
        match (work, fate) {
            (Work::Prepare, Fate::Well) => {
                self.desk.prepared(number);
                self.workers[index].ready_for = Some(generation);
                self.workers[index].warm = false;
            }
            (Work::Prepare, Fate::Fails(error)) => {
                self.desk.not_ready(number, generation, error, self.now);
                self.workers[index].ready_for = None;
            }
            (Work::Piece(piece), Fate::Well) => {
                self.results += 1;
                self.workers[index].warm = true;
                let is_first = self.pieces[piece].answered == Answered::Not && !dismissed;
                let unwanted = self.desk.finished(number, self.results, self.now);
                assert_eq!(unwanted.is_none(), is_first, "piece {piece}: {:?}", self.pieces[piece].answered);
                if is_first {
                    self.pieces[piece].answered = Answered::Done(self.results, line, self.ran - began);
                }
            }
            (Work::Piece(piece), Fate::Fails(error)) => {
                let is_final = matches!(error, Error::Task { .. });
                if !dismissed && self.pieces[piece].answered == Answered::Not {
                    match is_final {
                        true => self.pieces[piece].answered = Answered::Failed,
                        false => self.pieces[piece].failures.push((line, 1)),
                    }
                }
                self.desk.failed(number, error, self.now);
            }
        }
        self.notice_dismissed(self.desk.longest);
        self.check();
        self.ask(index);
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

    fn hire(&mut self) {
        for line in 0..self.desk.lines.len() {
            while self.desk.lines[line].lacks_hands(self.now) {
                let number = self.desk.hire(line);
                self.workers.push(Worker {
                    number,
                    line,
                    ready_for: None,
                    job: None,
                    warm: false,
                    dismissed: false,
                });
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
        }
    }

    /// Whether every worker of a line is busy, one of them with making it ready: all that waits there waits for that.
    fn gets_ready(&self, line: usize) -> bool {
        let mut jobs = (self.workers.iter())
            .filter(|worker| worker.line == line && !worker.dismissed)
            .map(|worker| worker.job.as_ref().map(|job| job.work));
        jobs.clone().all(|work| work.is_some()) && jobs.any(|work| work == Some(Work::Prepare))
    }

    /// No piece waits for a device that is not well, or not ready, while another one has nothing to do.
    fn check_neglect(&mut self, passed: Duration) {
        let is_idle = |line: &usize| {
            let it = &self.desk.lines[*line];
            let is_busy = |worker: &Worker| worker.line == *line && !worker.dismissed && worker.job.is_some();
            it.trust.is_working() && it.waiting() == 0 && !self.workers.iter().any(is_busy)
        };
        let idle: Vec<usize> = (0..self.desk.lines.len()).filter(is_idle).collect();
        for &index in &self.open {
            let is_neglected =
                self.runs(index).next().is_none() && idle.iter().any(|&line| self.tries(index, line) < 4);
            let neglected = &mut self.pieces[index].neglected;
            *neglected = if is_neglected { *neglected + passed } else { Duration::ZERO };
            assert!(*neglected < NEGLECTED, "piece {index} waits although a device has nothing to do");
        }
    }

    /// A worker was given up on: there must be a reason that the world knows of.
    fn check_verdict(&mut self, index: usize, longest: Duration) {
        let Worker { line, job, warm, .. } = self.workers[index].clone();
        let Job { work, began, .. } = job.expect("an idle worker was given up on");
        let age = self.ran - began;
        let Work::Piece(piece) = work else {
            return assert!(age >= self.desk.limits.prepare, "{age:?}");
        };
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
                    let is_free = it.trust.is_working() && it.active + it.preparing < it.most_hands;
                    let has_failed_it = self.tries(piece, other) >= 4;
                    let gets_ready = self.gets_ready(other);
                    assert!(
                        other == line || has_it || !is_free || has_failed_it || gets_ready,
                        "device {other} was not asked"
                    );
                }
            }
            (None, Answered::Withdrawn) => panic!("a withdrawn piece was in flight"),
        }
        if answered == Answered::Not {
            self.pieces[piece].failures.push((line, 2));
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
        let queued: usize = desk.lines.iter().map(Line::queued).sum();
        assert_eq!(desk.outstanding, waiting, "each piece has one answer");
        assert_eq!(desk.outstanding, queued + desk.in_flight.len(), "each piece is in one place");
        for (index, line) in desk.lines.iter().enumerate() {
            let workers = self.workers.iter().filter(|worker| worker.line == index && !worker.dismissed);
            let jobs: Vec<&Job> = workers.clone().filter_map(|worker| worker.job.as_ref()).collect();
            let preparing = jobs.iter().filter(|job| job.work == Work::Prepare).count();
            let counted = line.seat.counters.read();
            assert_eq!((line.active, line.preparing), (jobs.len() - preparing, preparing), "device {index}");
            assert_eq!((counted.active, counted.queued), (line.active as u64, line.queued() as u64));
            assert_eq!((counted.done, counted.failed), (line.done, line.failed));
            assert!(line.hands == workers.count() && line.hands <= line.most_hands);
            assert!(!line.trust.is_retired() || line.waiting() == 0);
            let is_copy = |place: &Place| desk.in_flight.get(&place.number).map(|it| it.copy_at);
            assert!(line.copies.iter().all(|place| is_copy(place) == Some(Some(index))));
        }
        let copies: usize = desk.lines.iter().map(|line| line.copies.len()).sum();
        assert_eq!(desk.in_flight.values().filter(|flight| flight.copy_at.is_some()).count(), copies);
        assert!(desk.in_flight.values().all(|flight| !flight.running.is_empty()));
        self.desk.settled.clear();
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
        (0..20).for_each(|_| self.submit());
        self.hire();
        while self.desk.outstanding > 0 {
            self.pass(ms(10), ms(0));
        }
        let is_able = self.desk.lines.iter().any(|line| !line.trust.is_retired());
        for piece in &self.pieces[first..] {
            let in_time = self.desk.limits.piece.is_none_or(|limit| piece.cost * 4 < limit);
            let is_done = matches!(piece.answered, Answered::Done(..));
            assert!(is_done || !is_able || !in_time, "{:?}", piece.answered);
        }
    }
}

#[test]
fn whatever_happens_to_the_devices_the_desk_keeps_its_promises() {
    let (mut hung, mut outdated, mut copies, mut done, mut lost) = (0, 0, 0, 0, 0);
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
            (world.hung, world.outdated, world.copies, done, lost)
        });
        let Ok(told) = told else { panic!("the desk broke a promise with seed {seed}") };
        (hung, outdated, copies) = (hung + told.0, outdated + told.1, copies + told.2);
        (done, lost) = (done + told.3, lost + told.4);
    }
    // The worlds are rough enough to mean something.
    let is_rough = hung > 100 && outdated > 100 && copies > 100 && done > 10_000 && lost > 10;
    assert!(is_rough, "{hung} {outdated} {copies} {done} {lost}");
}
