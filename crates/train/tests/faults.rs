//! Workers that panic, fail or hang: training goes on with the same result, or says why not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use common::{Networks, difference};
use evener_train::{
    Policy, TrainError, Trainer,
    membership::MembershipChange,
    testing::{Mlp, Regression},
};

const TIMEOUT: Duration = Duration::from_millis(800);

/// Runs once, at a step of a rank.
fn once(at: (usize, u64), then: impl Fn() + Send + Sync + 'static) -> impl Fn(usize, u64) + Send + Sync {
    let done = AtomicBool::new(false);
    move |rank, step| {
        if (rank, step) == at && !done.swap(true, SeqCst) {
            then();
        }
    }
}

#[test]
fn a_worker_that_panics_at_any_step_is_done_without_and_the_result_is_the_same() {
    let networks = Networks::new(48, &[1e-3, 1e-3, 2e-3]);
    let expected = networks.alone(12, 2);
    for step in 0..8 {
        for rank in 0..3 {
            let faulty = networks.with_fault(once((rank, step), || panic!("a panic on purpose")));
            let (builder, seen) = faulty.trainer();
            let begun = Instant::now();
            let trained = builder.batch(12).timeout(TIMEOUT).build().unwrap().run(2).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
            let [failure] = &trained.report.failures[..] else { panic!("{}", trained.report) };
            assert_eq!(failure.rank, rank);
            assert!(failure.why.contains("on purpose"), "{}", failure.why);
            assert_eq!((trained.report.samples, trained.report.batch), (96, 12));
            assert_eq!(trained.report.workers[rank].batch, 0);
            let (one, other) = (expected.replica.network.parameters(), trained.replica.network.parameters());
            assert!(difference(one, other) < 1e-9, "{rank} at {step}: {}", difference(one, other));
            seen.assert_replicas_equal();
        }
    }
}

#[test]
fn two_workers_that_die_at_once_are_done_without() {
    let networks = Networks::new(48, &[1e-3; 4]);
    let expected = networks.alone(12, 2);
    let faulty = networks.with_fault(|rank, step| {
        if rank % 2 == 1 && step == 3 {
            panic!("a panic on purpose")
        }
    });
    let trained = faulty.trainer().0.batch(12).timeout(TIMEOUT).build().unwrap().run(2).unwrap();
    let mut failed: Vec<usize> = trained.report.failures.iter().map(|failure| failure.rank).collect();
    failed.sort_unstable();
    assert_eq!(failed, [1, 3]);
    let (one, other) = (expected.replica.network.parameters(), trained.replica.network.parameters());
    assert!(difference(one, other) < 1e-9);
}

#[test]
fn a_worker_whose_replica_cannot_be_made_is_done_without() {
    let data = Arc::new(Regression::generated(32, 1));
    for panics in [false, true] {
        let data = data.clone();
        let builder = Trainer::builder(move |worker| {
            if worker.rank == 1 {
                assert!(!panics, "a panic on purpose");
                return Err("no memory".into());
            }
            Ok(Mlp::new(data.clone(), 6, common::SGD, 1))
        });
        let builder = builder.data(32u64).batch(8).workers(2).processes(false).timeout(TIMEOUT);
        let trained = builder.build().unwrap().run(2).unwrap();
        assert_eq!((trained.report.failures[0].rank, trained.report.samples), (1, 64));
    }
}

#[test]
fn if_no_worker_is_left_the_run_fails_with_the_first_cause() {
    let networks =
        Networks::new(32, &[1e-3; 3]).with_fault(|_, step| assert!(step < 2, "a panic on purpose"));
    let builder = networks.trainer().0.batch(8).timeout(TIMEOUT);
    match builder.build().unwrap().start(2).unwrap().join() {
        Err(TrainError::Panicked { message, .. }) => assert!(message.contains("on purpose")),
        Err(other) => panic!("{other}"),
        Ok(trained) => panic!("{}", trained.report),
    }
}

#[test]
fn workers_with_different_models_are_refused() {
    let data = Arc::new(Regression::generated(32, 1));
    let builder = Trainer::builder(move |worker| Ok(Mlp::new(data.clone(), 4 + worker.rank, common::SGD, 1)));
    let builder = builder.data(32u64).batch(8).workers(2).processes(false).timeout(TIMEOUT);
    let error = builder.build().unwrap().run(1).err().expect("refused");
    assert!(matches!(error, TrainError::Layouts { .. }), "{error}");
}

#[test]
fn a_worker_that_panics_is_restarted_and_gets_the_state_at_a_commit() {
    let networks = Networks::new(48, &[1e-3, 1e-3, 2e-3]);
    let expected = networks.alone(12, 40);
    for (step, rank) in [(0, 1), (3, 0), (9, 2), (4, 0)] {
        let faulty = networks.with_fault(once((rank, step), || panic!("a panic on purpose")));
        let (builder, seen) = faulty.trainer();
        let trained = builder.batch(12).timeout(TIMEOUT).restarts(1).build().unwrap().run(40).unwrap();
        let returned = trained.report.events.iter().filter(|event| event.what == MembershipChange::Returned);
        assert_eq!(returned.map(|event| event.rank).collect::<Vec<_>>(), [rank], "{}", trained.report);
        assert!(trained.report.workers[rank].batch > 0, "{}", trained.report);
        let (one, other) = (expected.replica.network.parameters(), trained.replica.network.parameters());
        assert!(difference(one, other) < 1e-8, "{rank} at {step}: {}", difference(one, other));
        seen.assert_replicas_equal();
    }
}

#[test]
fn a_worker_that_hangs_is_done_without_and_returns_when_it_answers() {
    let networks = Networks::new(48, &[1e-3, 1e-3, 2e-3]);
    let steps = Arc::new(AtomicUsize::new(0));
    let slow = steps.clone();
    let faulty = networks.with_fault(move |rank, step| {
        if rank == 2 && step == 5 && slow.fetch_add(1, SeqCst) == 0 {
            thread::sleep(TIMEOUT * 2);
        }
        // So that training is still going on when the worker answers.
        if rank == 0 && slow.load(SeqCst) > 0 {
            thread::sleep(Duration::from_millis(2));
        }
    });
    let expected = networks.alone(12, 500);
    let (builder, seen) = faulty.trainer();
    let trained = builder.batch(12).timeout(TIMEOUT).build().unwrap().run(500).unwrap();
    let events: Vec<_> = trained
        .report
        .events
        .iter()
        .map(|event| (event.rank, event.what == MembershipChange::Returned))
        .collect();
    assert_eq!(events, [(2, false), (2, true)], "{}", trained.report);
    let (one, other) = (expected.replica.network.parameters(), trained.replica.network.parameters());
    assert!(difference(one, other) < 1e-6, "{}", difference(one, other));
    seen.assert_replicas_equal();
}

#[test]
fn a_worker_that_hangs_forever_is_not_waited_for() {
    let networks = Networks::new(48, &[1e-3, 2e-3]);
    let faulty = networks.with_fault(once((1, 3), || thread::sleep(Duration::from_secs(3600))));
    let begun = Instant::now();
    let handle = faulty.trainer().0.batch(12).timeout(TIMEOUT).build().unwrap().start(2).unwrap();
    while handle.next_metrics().is_some() {}
    let trained = handle.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!((trained.report.samples, trained.report.events.len()), (96, 1));
}

#[test]
fn local_steps_go_on_from_the_last_exchange_after_a_death() {
    let networks = Networks::new(240, &[1e-8, 2e-8, 2e-8]);
    let faulty = networks.with_fault(once((1, 17), || panic!("a panic on purpose")));
    let builder =
        faulty.trainer().0.batch(24).policy(Policy::Cadence).max_lead(4).timeout(TIMEOUT).restarts(1);
    let trained = builder.build().unwrap().run(60).unwrap();
    assert_eq!((trained.report.samples, trained.report.failures.len()), (60 * 240, 1), "{}", trained.report);
    let losses = &trained.report.epoch_losses;
    assert!(losses[59] < losses[0] * 0.5, "{losses:?}");
}
