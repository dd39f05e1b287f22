use std::{sync::Arc, time::Duration};

use evener_schedule::{
    Report, Settings, Strategy,
    decide::{LaneState, Tally, Time},
    events::{
        ChunkEvent, DeviceStatus, EventStream, LaneStatus, QueueProgress, RunEnd, RunEvents, RunProgress,
    },
    sim::{Scenario, simulate_followed},
};

use super::*;

/// SplitMix64, a random number generator.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number of any size.
    fn any(&mut self) -> u64 {
        let shift = self.below(64);
        if self.below(50) == 0 { u64::MAX } else { self.next() >> shift }
    }

    fn time(&mut self) -> Duration {
        if self.below(200) == 0 { Duration::MAX } else { Duration::from_nanos(self.any()) }
    }

    fn state(&mut self) -> LaneState {
        match self.below(3) {
            0 => LaneState::Healthy,
            1 => LaneState::Quarantined { until: self.time() },
            _ => LaneState::Retired,
        }
    }

    fn chunk(&mut self, lanes: u64) -> ChunkEvent {
        let purposes = [Purpose::Work, Purpose::Speculative, Purpose::Steal, Purpose::Canary];
        ChunkEvent {
            lane: self.below(lanes) as u32,
            chunk: self.below(200),
            first: self.any(),
            items: self.any(),
            purpose: purposes[self.below(4) as usize],
        }
    }

    fn status(&mut self) -> RunStatus {
        let count = if self.below(40) == 0 { 5_000 } else { self.below(6) };
        let lane = |rng: &mut Rng| LaneStatus {
            state: rng.state(),
            tally: Tally { items: rng.any(), chunks: rng.any(), steals: rng.any(), ..Tally::default() },
            items: rng.any(),
            busy: rng.time(),
            wasted: rng.time(),
            in_flight: (0..rng.below(100)).map(|_| (rng.chunk(6), rng.time())).take(90).collect(),
        };
        let device = |rng: &mut Rng, index: u64| {
            let lanes = if count > 100 { 1 } else { rng.below(4) };
            let lanes = (0..lanes).map(|_| {
                if count > 100 { LaneStatus { in_flight: Vec::new(), ..lane(rng) } } else { lane(rng) }
            });
            DeviceStatus { id: format!("d{}", index + count % 2), lanes: lanes.collect() }
        };
        RunStatus {
            task: "x".repeat(self.below(1_000) as usize),
            kind: [RunKind::Map, RunKind::Stream, RunKind::Queue][self.below(3) as usize],
            strategy: "adaptive",
            items: (self.below(2) == 0).then(|| self.any()),
            predicted: None,
            devices: (0..count).map(|index| device(self, index)).collect(),
            left_out: Vec::new(),
        }
    }

    fn event(&mut self) -> Event {
        let lanes = 8;
        let kind = match self.below(60) {
            0..2 => EventKind::Status(Arc::new(self.status())),
            2..18 => EventKind::ChunkBegan(self.chunk(lanes)),
            18..36 => EventKind::ChunkEnded {
                chunk: self.chunk(lanes),
                accepted: self.any() * self.below(2),
                busy: self.time(),
                took: self.time(),
            },
            36..40 => EventKind::ChunkLost {
                chunk: self.chunk(lanes),
                failed: self.below(2) == 0,
                busy: self.time(),
                took: self.time(),
            },
            40..44 => EventKind::Lane {
                lane: self.below(lanes) as u32,
                state: self.state(),
                retries: self.any(),
                quarantines: self.any(),
                hangs: self.any(),
            },
            44..47 => EventKind::Error {
                device: "d1".into(),
                reason: "e".repeat(self.below(5_000) as usize).into(),
            },
            47..52 => EventKind::Progress(RunProgress {
                done: self.any(),
                items: Some(self.any()),
                efficiency: Some(f64::from_bits(self.next())),
                bound: None,
                waiting_for: Some("w".repeat(self.below(2_000) as usize).into()),
            }),
            52..54 => EventKind::Queue(QueueProgress { submitted: self.any(), queued: 1, outstanding: 2 }),
            54..56 => EventKind::Prepared { lane: self.below(lanes) as u32, took: self.time() },
            56..58 => EventKind::ChunkParts { lane: self.below(lanes) as u32, more: self.any() },
            _ => EventKind::RunEnded(Arc::new(RunEnd { error: None, report: None })),
        };
        Event { run: self.below(200), at: self.time(), kind }
    }
}

fn assert_bounded(program: &Program) {
    let ended = program.runs.iter().filter(|run| run.summary.ended.is_some()).count();
    assert!(
        program.runs.len() - ended <= MAX_RUNS && ended <= MAX_ENDED,
        "{ended} of {}",
        program.runs.len()
    );
    assert!(program.past.len() <= MAX_PAST && program.log.len() <= MAX_LOG);
    assert!(program.totals.len() <= MAX_TASKS);
    // Each task may have one device more, for all others.
    let devices: usize = program.totals.iter().map(|task| task.devices.len()).sum();
    assert!(devices <= MAX_TOTALS + MAX_TASKS, "{devices}");
    assert!(program.log.iter().all(|line| line.text.chars().count() <= 401));
    for run in &program.runs {
        let lanes: usize = run.devices.iter().map(|device| device.lanes.len()).sum();
        assert!(lanes <= MAX_LANES && run.summary.task.chars().count() <= 401);
        assert!(run.summary.items.is_none_or(|items| run.summary.done <= items));
        let mut bars = 0;
        for device in &run.devices {
            assert!(device.throughput.len() <= HISTORY);
            for lane in &device.lanes {
                assert!(lane.in_hand.len() <= MAX_IN_HAND && lane.bars.len() <= run.max_bars);
                bars += lane.bars.len();
            }
        }
        assert!(bars <= MAX_BARS_OF_RUN.max(8 * lanes));
    }
}

/// Whatever the events are, in whatever order: nothing panics, nothing grows beyond its bound, and a view that applies
/// updates at random moments has what a snapshot has.
#[test]
fn no_sequence_of_events_breaks_a_bound_or_a_view() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let (mut state, mut unix_s) = (State::new(1, "any".into()), 1e9);
        let mut view = state.snapshot();
        let mut before: Option<Event> = None;
        for _ in 0..1_500 {
            let event = match before.take().filter(|_| rng.below(8) == 0) {
                Some(again) => again,
                None => rng.event(),
            };
            unix_s += rng.below(3) as f64 * 0.2 - 0.1;
            state.fold(&event, unix_s);
            before = Some(event);
            match rng.below(20) {
                0 => state.tick(unix_s),
                1 => state.set_lost(rng.any()),
                _ => {}
            }
            if rng.below(30) == 0
                && let Some(update) = state.update_since(Some(view.version))
            {
                assert!(view.apply(update), "seed {seed}");
                assert_bounded(&view);
                let snapshot = state.snapshot();
                assert_eq!(view, snapshot, "seed {seed}");
                let json = serde_json::to_string(&snapshot).unwrap();
                let read: Program =
                    serde_json::from_str(&json).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
                assert_eq!(read.runs.len(), snapshot.runs.len());
            }
        }
    }
}

#[test]
fn a_delta_to_another_version_is_refused() {
    let mut state = State::new(1, "any".into());
    let mut rng = Rng(1);
    let mut view = state.snapshot();
    state.fold(&Event { run: 1, at: Time::ZERO, kind: EventKind::Status(Arc::new(rng.status())) }, 0.0);
    let first = state.update_since(Some(view.version)).unwrap();
    state.fold(&rng.event(), 0.0);
    let second = state.update_since(Some(first.version())).unwrap();
    assert!(!view.apply(second.clone()));
    assert_eq!(view, State::new(1, "any".into()).snapshot(), "nothing has changed");
    assert!(view.apply(first) && view.apply(second));
    assert_eq!(view, state.snapshot());
}

fn scenario(rng: &mut Rng) -> Scenario {
    let (items, devices) = (1_000 + rng.below(100_000), 1 + rng.below(12));
    let mut toml = format!("items = {items}\nseed = {}\n", rng.below(1_000));
    for device in 0..devices {
        let rate = 1_000 + rng.below(50_000);
        let divisible = rng.below(2) == 0;
        let depth = 1 + rng.below(2);
        toml += &format!(
            "[[device]]\nid = \"d{device}\"\nrate = {rate}.0\nlaunch_s = 0.0001\njitter = 0.02\ndepth = {depth}\ndivisible = {divisible}\n"
        );
    }
    for _ in 0..rng.below(4) {
        let (device, at) = (rng.below(devices), rng.below(400) as f64 / 1e3);
        let kind = ["die", "hang", "return"][rng.below(3) as usize];
        toml += &format!("[[event]]\nat_s = {at}\ndevice = \"d{device}\"\nwhat = \"{kind}\"\n");
    }
    Scenario::from_toml(&toml).unwrap_or_else(|why| panic!("{why}\n{toml}"))
}

/// Asserts that what was folded agrees with a run's own report.
fn assert_agrees(run: &RunView, report: &Report, seed: u64) {
    assert_eq!(run.devices.len(), report.devices.len());
    for (device, expected) in run.devices.iter().zip(&report.devices) {
        let it = &device.totals;
        let counted = [
            it.items,
            it.chunks,
            it.retries,
            it.speculative,
            it.steals,
            it.dropped,
            it.quarantines,
            it.hangs,
        ];
        let told = [
            expected.items,
            expected.chunks,
            expected.retries,
            expected.speculative,
            expected.steals,
            expected.dropped,
            expected.quarantines,
            expected.hangs,
        ];
        assert_eq!((&device.id, counted), (&expected.id, told), "seed {seed}: {report}");
        let state = match it.state {
            DeviceState::Healthy => "healthy",
            DeviceState::Quarantined { .. } => "quarantined",
            DeviceState::Retired => "retired",
        };
        assert_eq!(state, expected.state, "seed {seed}");
        let rates = it.items_per_second.zip(expected.rate);
        assert!(rates.is_none_or(|(a, b)| (a / b - 1.0).abs() < 1e-6), "seed {seed}: {rates:?}");
        assert!(device.lanes.iter().all(|lane| lane.in_hand.is_empty()));
    }
    assert_eq!((run.summary.done, run.summary.efficiency), (report.done, report.efficiency));
    assert_eq!(run.summary.bound, report.bound);
}

/// If no event is lost, what was folded agrees with the run's own report, whatever fails; also for a reader that attaches in
/// the middle.
#[test]
fn totals_agree_with_the_report_if_nothing_is_lost() {
    let mut with_failures = 0;
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let scenario = scenario(&mut rng);
        let stream: &'static EventStream = Box::leak(Box::new(EventStream::new()));
        let (mut early, mut late) = (stream.attach(), None);
        let [mut first, mut second] = [(); 2].map(|()| State::new(1, "sim".into()));
        let (mut events, mut steps) = (Vec::new(), 0);
        let middle = 20 + rng.below(60);
        let mut pace = |until: Time| {
            steps += 1;
            if steps == middle {
                late = Some(stream.attach());
            }
            while early.read(64, &mut events) {}
            events.drain(..).for_each(|event| first.fold(&event, 0.0));
            if let Some(late) = &mut late {
                while late.read(64, &mut events) {}
                events.drain(..).for_each(|event| second.fold(&event, 0.0));
            }
            until
        };
        let of_run = RunEvents::to(stream, 5, 1, scenario.items);
        let simulation =
            simulate_followed(&scenario, Strategy::Adaptive, Settings::default(), of_run, &mut pace);
        pace(Time::ZERO);
        assert_eq!(early.lost(), 0);
        with_failures += u32::from(simulation.report.devices.iter().any(|device| device.retries > 0));
        assert_agrees(first.snapshot().run(5).unwrap(), &simulation.report, seed);
        let totals = first.snapshot().totals;
        let items: u64 = totals[0].devices.iter().map(|(_, counters)| counters.items).sum();
        assert_eq!(
            (totals.len(), totals[0].succeeded + totals[0].failed, items),
            (1, 1, simulation.report.done)
        );
        // A run that has ended before the second reader attached tells it nothing.
        if let Some(run) = second.snapshot().run(5) {
            assert_agrees(run, &simulation.report, seed);
        }
    }
    assert!(with_failures > 5, "{with_failures}");
}

/// What has been counted for a device, in runs that have ended and in others.
fn counted(program: &Program) -> u64 {
    let ended = program.totals.iter().flat_map(|task| &task.devices).map(|(_, counters)| counters.items);
    let active = program.active().flat_map(|run| &run.devices).map(|device| device.totals.items);
    ended.sum::<u64>() + active.sum::<u64>()
}

#[test]
fn what_is_counted_never_falls_when_runs_end_are_forgotten_or_are_taken_for_ended() {
    let mut state = State::new(1, "any".into());
    let lane = LaneStatus {
        state: LaneState::Healthy,
        tally: Tally::default(),
        items: 0,
        busy: Duration::ZERO,
        wasted: Duration::ZERO,
        in_flight: Vec::new(),
    };
    let status = |items| RunStatus {
        task: "hash".into(),
        kind: RunKind::Map,
        strategy: "adaptive",
        items: Some(100),
        predicted: None,
        devices: vec![DeviceStatus { id: "d".into(), lanes: vec![LaneStatus { items, ..lane.clone() }] }],
        left_out: Vec::new(),
    };
    let mut before = 0;
    for run in 0..100 {
        let mut fold = |kind, unix_s| {
            state.fold(&Event { run, at: Time::ZERO, kind }, unix_s);
            let now = counted(&state.snapshot());
            assert!(now >= before, "{now} after {before}");
            before = now;
        };
        let now = run as f64 * 100.0;
        fold(EventKind::Status(Arc::new(status(0))), now);
        fold(EventKind::Status(Arc::new(status(7))), now);
        if run % 10 == 3 {
            // Nothing is heard of it for long, and then something.
            (0..40).for_each(|second| state.tick(now + f64::from(second)));
            assert_eq!(counted(&state.snapshot()), before);
            state.fold(
                &Event { run, at: Time::ZERO, kind: EventKind::Status(Arc::new(status(7))) },
                now + 41.0,
            );
            assert_eq!(counted(&state.snapshot()), before);
        }
        let end = RunEnd { error: (run % 2 == 0).then(|| "lost".into()), report: None };
        state.fold(&Event { run, at: Time::ZERO, kind: EventKind::RunEnded(Arc::new(end)) }, now + 42.0);
        assert_eq!(counted(&state.snapshot()), before);
    }
    let totals = state.snapshot().totals;
    assert_eq!((counted(&state.snapshot()), totals[0].succeeded, totals[0].failed), (700, 50, 50));
}
