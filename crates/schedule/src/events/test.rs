use std::{sync::atomic::AtomicBool, thread, time::Duration};

use super::{ring::Ring, *};

fn event(run: u64) -> Event {
    Event { run, at: Time::ZERO, kind: EventKind::ChunkParts { lane: 0, more: run } }
}

fn own_stream() -> &'static EventStream {
    Box::leak(Box::new(EventStream::new()))
}

#[test]
fn nothing_is_kept_while_nobody_reads_and_a_reader_sees_what_comes_after_it() {
    let stream = own_stream();
    stream.publish(event(1));
    let mut first = stream.attach();
    stream.publish(event(2));
    let mut second = stream.attach();
    stream.publish(event(3));
    let runs = |reader: &mut EventReader| {
        let mut events = Vec::new();
        while reader.read(1, &mut events) {}
        events.iter().map(|event| event.run).collect::<Vec<_>>()
    };
    assert_eq!(runs(&mut first), [2, 3]);
    assert_eq!(runs(&mut second), [3]);
    assert_eq!((first.lost(), second.lost()), (0, 0));
    drop(first);
    assert!(stream.is_followed());
    drop(second);
    assert!(!stream.is_followed());
}

#[test]
fn a_reader_that_falls_behind_is_told_how_much_it_lost() {
    let stream = own_stream();
    let mut reader = stream.attach();
    let capacity = Ring::new(1 << 15).capacity();
    (0..capacity + 1_000).for_each(|run| stream.publish(event(run)));
    let mut events = Vec::new();
    while reader.read(100, &mut events) {}
    assert_eq!((reader.lost(), events.len() as u64), (1_000, capacity));
    assert_eq!(events[0].run, 1_000);
}

#[test]
fn a_run_tells_its_status_to_every_new_reader_and_to_one_that_asks() {
    let stream = own_stream();
    let mut events = RunEvents::to(stream, 7, 1, 10);
    assert!(!events.needs_status() && !events.is_followed());
    let reader = stream.attach();
    assert!(events.needs_status() && !events.is_followed());
    let status = || RunStatus {
        task: "any".into(),
        kind: RunKind::Map,
        strategy: "adaptive",
        items: Some(10),
        predicted: None,
        devices: Vec::new(),
        left_out: Vec::new(),
    };
    events.status(Time::ZERO, status);
    assert!(!events.needs_status() && events.is_followed());
    let second = stream.attach();
    assert!(events.needs_status());
    events.status(Time::ZERO, status);
    reader.ask_for_status();
    assert!(events.needs_status());
    drop((reader, second));
    assert!(!events.needs_status() && !events.is_followed());
}

#[test]
fn a_request_to_cancel_waits_for_its_run_and_is_forgotten_with_it() {
    let stream = own_stream();
    assert!(!stream.is_cancel_requested(3));
    stream.request_cancel(3);
    assert!(stream.is_cancel_requested(3) && !stream.is_cancel_requested(4));
    stream.forget_request(3);
    assert!(!stream.is_cancel_requested(3));
    (0..10_000).for_each(|run| stream.request_cancel(run));
    assert!(stream.is_cancel_requested(9_999), "old requests make room");
    assert!(!stream.is_cancel_requested(0));
}

/// Writers and readers at once: each reader sees each writer's events in order, and each event once, or counts it as lost.
#[test]
fn events_are_read_in_order_or_counted_as_lost_whatever_the_threads_do() {
    const EACH: u64 = 100_000;
    const WRITERS: u64 = 3;
    let (stream, is_done) = (own_stream(), AtomicBool::new(false));
    let read = |pause: Duration| {
        let mut reader = stream.attach();
        let (is_done, mut events) = (&is_done, Vec::new());
        move || {
            let mut last = [None; WRITERS as usize];
            let mut seen = 0;
            let mut rounds_after_end = 0;
            while rounds_after_end < 3 {
                rounds_after_end += u32::from(is_done.load(std::sync::atomic::Ordering::SeqCst));
                while reader.read(512, &mut events) {}
                seen += events.len() as u64;
                for event in events.drain(..) {
                    let EventKind::ChunkParts { lane, more } = event.kind else { panic!("{event:?}") };
                    let last = &mut last[lane as usize];
                    assert!(last.is_none_or(|last| last < more), "{last:?} before {more}");
                    *last = Some(more);
                }
                thread::sleep(pause);
            }
            assert_eq!(seen + reader.lost(), WRITERS * EACH);
            seen
        }
    };
    let (fast, slow) = (read(Duration::ZERO), read(Duration::from_millis(30)));
    let seen = thread::scope(|scope| {
        let readers = [scope.spawn(fast), scope.spawn(slow)];
        let write = |lane: u32| {
            (0..EACH).for_each(|more| {
                let kind = EventKind::ChunkParts { lane, more };
                stream.publish(Event { run: 0, at: Time::ZERO, kind });
            });
        };
        let writers: Vec<_> = (0..WRITERS as u32).map(|lane| scope.spawn(move || write(lane))).collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_done.store(true, std::sync::atomic::Ordering::SeqCst);
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(seen.iter().all(|&seen| seen > 0));
}
