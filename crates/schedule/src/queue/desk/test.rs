use std::sync::Arc;

use evener_device::{Device, Error};

use super::*;
use crate::pool::Seat;

type TestDesk = Desk<u32, u32>;

fn ms(milliseconds: u64) -> Time {
    Time::from_millis(milliseconds)
}

/// A desk whose devices have one hand and these scores. The hand of device n has number n.
fn desk(scores: &[f64]) -> TestDesk {
    let seat = |index| Arc::new(Seat::new(index, Device::cpu()));
    let line = |(index, &score): (usize, &f64)| Line::new(seat(index), score, 1, true);
    let lines: Vec<_> = scores.iter().enumerate().map(line).collect();
    let mut desk = Desk::new(lines, BalancerSettings::default(), None, Duration::from_secs(300));
    (0..scores.len()).for_each(|line| assert_eq!(desk.hire(line), line as u64));
    desk
}

fn queued(desk: &TestDesk) -> Vec<usize> {
    desk.lines.iter().map(Line::queued).collect()
}

/// Has a hand begin with a piece, ready or not, and says which.
fn begin(desk: &mut TestDesk, hand: u64, now: Time) -> Option<u32> {
    let generation = desk.lines[hand as usize].seat.generation();
    match desk.ask(hand, Some(generation), now) {
        Next::Run { item, .. } => Some(*item),
        _ => None,
    }
}

fn lost() -> Error {
    Error::Lost { device: "cpu".into(), operation: "a test".into(), detail: "it is gone".into() }
}

/// Puts a piece into a device's queue, wherever it would be better off.
fn push(desk: &mut TestDesk, line: usize, item: u32, priority: i32) {
    let (promise, _) = Promise::new();
    let place = Place { priority: std::cmp::Reverse(priority), number: 1_000_000 + u64::from(item) };
    desk.outstanding += 1;
    desk.lines[line].push(Ticket { place, item: Arc::new(item), promise, failures: Vec::new(), given_up: 0 });
}

/// Has a device do a piece in so long.
fn teach(desk: &mut TestDesk, hand: u64, took: Duration) {
    push(desk, hand as usize, 0, 0);
    assert!(begin(desk, hand, ms(0)).is_some());
    assert!(desk.finished(hand, 0, took).is_none());
}

#[test]
fn pieces_go_where_they_are_done_first() {
    let mut unknown = desk(&[30.0, 10.0]);
    (0..8).for_each(|item| drop(unknown.submit(item, 0, ms(0))));
    assert_eq!(queued(&unknown), [6, 2], "by score, while nothing is known");

    let mut known = desk(&[30.0, 10.0]);
    teach(&mut known, 0, ms(40));
    teach(&mut known, 1, ms(10));
    (0..10).for_each(|item| drop(known.submit(item, 0, ms(50))));
    assert_eq!(queued(&known), [2, 8], "by time, once it is");
}

#[test]
fn a_failed_piece_goes_to_another_device_and_the_first_comes_back_after_a_canary() {
    let mut desk = desk(&[10.0, 10.0]);
    desk.submit(7, 0, ms(0)).unwrap();
    assert_eq!(begin(&mut desk, 0, ms(0)), Some(7));
    desk.failed(0, lost(), ms(10));
    assert_eq!((queued(&desk), desk.lines[0].seat.generation()), (vec![0, 1], 1));
    assert_eq!(begin(&mut desk, 1, ms(10)), Some(7));
    assert!(desk.finished(1, 7, ms(11)).is_none());

    (0..3).for_each(|item| drop(desk.submit(item, 0, ms(20))));
    assert_eq!(queued(&desk), [0, 3], "nothing goes to a device that is set aside");
    desk.send_canaries(ms(109));
    assert_eq!(queued(&desk), [0, 3], "not before its time");
    desk.send_canaries(ms(110));
    assert_eq!(queued(&desk), [1, 2]);
    assert!(!desk.lines[0].trust.is_working());
    assert_eq!(begin(&mut desk, 0, ms(110)), Some(2), "the one that would have waited longest");
    assert!(desk.finished(0, 2, ms(111)).is_none());
    assert!(desk.lines[0].trust.is_working());
}

#[test]
fn what_waits_at_a_device_that_is_tried_goes_elsewhere_but_for_the_canary() {
    let mut desk = desk(&[30.0, 10.0]);
    (0..100).for_each(|item| drop(desk.submit(item, 0, ms(0))));
    assert!(begin(&mut desk, 0, ms(0)).is_some());
    desk.failed(0, lost(), ms(1));
    let left = desk.lines[0].queued();
    assert!(left > 50 && left < 75, "the balancer has moved some of them: {left}");
    let (hand, ready_for) = (0, None);
    assert!(matches!(desk.ask(hand, ready_for, ms(50)), Next::Rest));
    assert!(matches!(desk.ask(hand, ready_for, ms(101)), Next::Prepare));
    assert_eq!(queued(&desk), [1, 99]);
}

#[test]
fn a_piece_that_takes_too_long_is_given_up_on_and_has_longer_elsewhere() {
    let mut desk = desk(&[10.0, 10.0]);
    teach(&mut desk, 0, ms(100));
    teach(&mut desk, 1, ms(1));
    desk.submit(7, 0, ms(1_000)).unwrap();
    assert_eq!(begin(&mut desk, 1, ms(1_000)), Some(7));
    desk.dismiss_hung(ms(1_499));
    assert_eq!(desk.lines[1].hands, 1);
    desk.dismiss_hung(ms(1_500));
    assert_eq!((desk.lines[1].hands, queued(&desk)), (0, vec![1, 0]));
    assert!(matches!(desk.finished(1, 8, ms(1_501)), Some(8)), "whatever it brings is nobody's");

    assert_eq!(begin(&mut desk, 0, ms(2_000)), Some(7));
    desk.dismiss_hung(ms(2_000 + 4 * 800 - 1));
    assert_eq!(desk.lines[0].hands, 1, "four times eight times its mean");
    desk.dismiss_hung(ms(2_000 + 4 * 800));
    assert_eq!(desk.lines[0].hands, 0);
}

#[test]
fn a_piece_that_fails_everywhere_is_told_all_that_happened() {
    let mut desk = desk(&[10.0, 10.0]);
    let (answer, _) = desk.submit(7, 0, ms(0)).unwrap();
    let nobody: std::sync::Weak<super::super::shared::Shared<crate::KernelTask<u32, u32>>> =
        Default::default();
    let place = Place { priority: std::cmp::Reverse(0), number: 0 };
    let handle = super::super::Handle::new(answer, place, nobody);
    let mut now = ms(0);
    let mut tries = Vec::new();
    while !handle.is_done() {
        now += ms(500);
        assert!(now < ms(10_000), "{tries:?}");
        for hand in 0..2 {
            if begin(&mut desk, hand, now).is_some() {
                tries.push(hand);
                desk.failed(hand, lost(), now);
            }
        }
    }
    assert_eq!(tries.iter().filter(|&&hand| hand == 0).count(), 2, "{tries:?}");
    assert_eq!(tries.len(), 4, "{tries:?}");
    assert!(matches!(handle.wait(), Err(QueueError::NoDeviceLeft { failures }) if failures.len() == 4));
    assert_eq!(desk.outstanding, 0);
}

#[test]
fn what_moves_between_devices_stays_in_order_and_is_counted() {
    let mut desk = desk(&[1000.0, 1.0]);
    let priorities = [0, 5, 0, 5, 1];
    for (item, priority) in priorities.into_iter().enumerate() {
        desk.submit(item as u32, priority, ms(0)).unwrap();
    }
    push(&mut desk, 1, 8, -1);
    assert_eq!(queued(&desk), [5, 1]);
    desk.rebalance_if_due(ms(1));
    assert_eq!(queued(&desk), [3, 3]);
    desk.submit(9, 9, ms(1)).unwrap();
    let counted = |desk: &TestDesk, line: usize| desk.lines[line].seat.counters.read().queued;
    assert_eq!((counted(&desk, 0), counted(&desk, 1)), (4, 3));
    let mut order = |hand: u64| {
        let mut order = Vec::new();
        while let Some(item) = begin(&mut desk, hand, ms(2)) {
            order.push(item);
            desk.finished(hand, item, ms(3));
        }
        order
    };
    assert_eq!((order(0), order(1)), (vec![9, 1, 3, 4], vec![0, 2, 8]));
    assert_eq!(desk.balanced().pieces, 2);
    assert_eq!((desk.lines[0].gave, desk.lines[1].received), (2, 2));
    assert_eq!((counted(&desk, 0), counted(&desk, 1)), (0, 0));
}

/// What a hand has been given.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Given {
    Nothing,
    Ready,
    Piece(u32),
}

/// Drives a desk as hands and a clock would, in virtual time.
struct Drive {
    desk: TestDesk,
    hands: Vec<(u64, usize, Option<u64>, Given)>,
    answers: Vec<Arc<Answer<u32>>>,
    places: Vec<Place>,
    now: Time,
}

impl Drive {
    fn hire(&mut self) {
        for line in 0..self.desk.lines.len() {
            while self.desk.lines[line].lacks_hands(self.now) {
                self.hands.push((self.desk.hire(line), line, None, Given::Nothing));
            }
        }
    }

    /// A hand does its next step, which goes well or does not.
    fn step(&mut self, index: usize, error: Option<Error>) {
        let (hand, line, generation, given) = self.hands[index];
        match (given, error) {
            (Given::Piece(item), None) => drop(self.desk.finished(hand, item, self.now)),
            (Given::Piece(_), Some(error)) => self.desk.failed(hand, error, self.now),
            (Given::Ready, None) => self.desk.prepared(hand),
            (Given::Ready, Some(error)) => {
                self.desk.not_ready(hand, generation.unwrap_or(0), error, self.now);
                self.hands[index].2 = None;
            }
            (Given::Nothing, _) => {}
        }
        self.hands[index].3 = match self.desk.ask(hand, self.hands[index].2, self.now) {
            Next::Run { item, .. } => Given::Piece(*item),
            Next::Prepare => {
                self.hands[index].2 = Some(self.desk.lines[line].seat.generation());
                Given::Ready
            }
            Next::Rest => Given::Nothing,
            Next::Go => {
                self.hands.swap_remove(index);
                return;
            }
        };
    }

    fn look_after(&mut self, passed: Duration) {
        self.now += passed;
        self.desk.dismiss_hung(self.now);
        self.desk.send_canaries(self.now);
        self.desk.rebalance_if_due(self.now);
        self.hire();
        self.check();
    }

    /// What must always be so.
    fn check(&mut self) {
        let queued: usize = queued(&self.desk).iter().sum();
        let active: usize = self.desk.lines.iter().map(|line| line.active).sum();
        assert_eq!(self.desk.outstanding, queued + active, "each piece is in one place");
        for line in &self.desk.lines {
            assert_eq!(line.seat.counters.read().queued, line.queued() as u64);
            assert_eq!(line.seat.counters.read().active, line.active as u64);
            assert!(line.hands >= line.active + line.preparing && line.hands <= line.most_hands);
            assert!(!line.trust.is_retired() || line.queued() == 0);
        }
        let waiting = self.answers.iter().filter(|answer| !answer.is_given()).count();
        assert_eq!(self.desk.outstanding, waiting, "each piece has one answer");
        self.desk.settled.clear();
    }
}

fn failure(kind: u8) -> Option<Error> {
    let (device, operation) = (evener_device::DeviceId::from("cpu"), "a test".to_owned());
    match kind {
        0 => Some(lost()),
        1 => Some(Error::Task { device, operation, item: None, message: String::new() }),
        2 => Some(Error::Unsupported { device, operation, detail: String::new() }),
        3 => Some(Error::BadResult { device, operation, detail: String::new() }),
        _ => None,
    }
}

proptest::proptest! {
    #[test]
    fn whatever_happens_each_piece_is_answered_once(
        devices in 1usize..4,
        events in proptest::collection::vec((0u8..8, 0usize..8, 0u8..40, 0u64..700), 1..200),
    ) {
        let seat = |index| Arc::new(Seat::new(index, Device::cpu()));
        let lines = (0..devices).map(|index| Line::new(seat(index), 10.0 + index as f64, 2, true));
        let settings = BalancerSettings { interval: ms(100), ..BalancerSettings::default() };
        let desk = Desk::new(lines.collect(), settings, None, Duration::from_secs(5));
        let (hands, answers, places) = (Vec::new(), Vec::new(), Vec::new());
        let mut drive = Drive { desk, hands, answers, places, now: ms(0) };
        for (event, which, kind, passed) in events {
            match event {
                0..3 => {
                    let item = drive.answers.len() as u32;
                    let (answer, place) = drive.desk.submit(item, i32::from(kind) % 3, drive.now).unwrap();
                    drive.answers.push(answer);
                    drive.places.push(place);
                    drive.hire();
                }
                3..6 if !drive.hands.is_empty() => drive.step(which % drive.hands.len(), failure(kind)),
                6 if kind < 5 && !drive.places.is_empty() => {
                    let place = drive.places[which % drive.places.len()];
                    drive.desk.withdraw(place);
                }
                _ => drive.look_after(ms(passed)),
            }
            drive.check();
        }
        // From here on nothing fails, and what hung before is given up on.
        drive.desk.closed = true;
        for _ in 0..3000 {
            drive.look_after(ms(200));
            for index in (0..drive.hands.len()).rev() {
                drive.step(index, None);
                drive.check();
            }
            if drive.desk.is_over() {
                break;
            }
        }
        proptest::prop_assert!(drive.desk.is_over(), "{} are left", drive.desk.outstanding);
    }
}
