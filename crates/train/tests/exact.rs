//! Training on several workers is training on one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;

use std::{sync::Arc, time::Duration};

use common::{ADAM, Networks, SGD, bits, difference};
use evener_train::{
    Ddp, Part, Policy, Replica, Step,
    cadence::OuterStep,
    machines::BatchGrowth,
    noise::GainRule,
    testing::{Mlp, Optimizer, Regression},
};

#[test]
fn shares_of_25_and_10_give_the_gradient_of_the_union_batch() {
    let data = Arc::new(Regression::generated(35, 1));
    let mut whole = Mlp::new(data.clone(), 8, SGD, 3);
    let all: Vec<u64> = (0..35).collect();
    let mut expected = vec![0.0; whole.layout().len(Part::Parameters)];
    whole.gradients(&all, &mut expected).unwrap();
    let mut ddp = Ddp::wrap(vec![Mlp::new(data.clone(), 8, SGD, 3), Mlp::new(data, 8, SGD, 9)]).unwrap();
    ddp.sync_params().unwrap();
    ddp.gradients(&[all[..25].to_vec(), all[25..].to_vec()]).unwrap();
    ddp.weighted_all_reduce_gradients(&[25.0, 10.0]).unwrap();
    for rank in 0..2 {
        assert!(difference(&expected, ddp.gradient_mut(rank)) < 1e-12);
    }
    ddp.all_reduce_gradients().unwrap();
    ddp.apply(Step { number: 0, learning_rate_gain: 1.0 }).unwrap();
    assert_eq!(bits(ddp.replica(0).parameters()), bits(ddp.replica(1).parameters()));
}

#[test]
fn a_run_with_shares_of_25_and_10_ends_where_one_worker_ends() {
    for (optimizer, tolerance) in [(SGD, 1e-12), (ADAM, 1e-9)] {
        let networks = Networks { optimizer, ..Networks::new(140, &[1e-3, 2.5e-3]) };
        let (builder, seen) = networks.trainer();
        let trained = builder.batch(35).build().unwrap().run(3).unwrap();
        let expected = networks.alone(35, 3);
        let (one, other) = (expected.replica.network.parameters(), trained.replica.network.parameters());
        assert!(difference(one, other) < tolerance, "{optimizer:?}: {}", difference(one, other));
        // The shares were found, and are the ones that one to two and a half means.
        let batches: Vec<u64> = trained.report.workers.iter().map(|worker| worker.batch).collect();
        assert_eq!(batches, [25, 10]);
        assert_eq!(trained.report.workers[0].samples, 3 * 100);
        let losses = expected.report.epoch_losses.iter().zip(&trained.report.epoch_losses);
        losses.for_each(|(one, other)| assert!((one - other).abs() < 1e-9));
        seen.assert_replicas_equal();
    }
}

#[test]
fn micro_batches_are_averaged_by_their_size() {
    let networks = Networks { micro_batch: 7, ..Networks::new(70, &[1e-3, 2.5e-3]) };
    let trained = networks.trainer().0.batch(35).shares([25, 10]).build().unwrap().run(2).unwrap();
    let whole = Networks { micro_batch: u64::MAX, ..networks };
    let expected = whole.alone(35, 2);
    let (one, other) = (expected.replica.network.parameters(), trained.replica.network.parameters());
    assert!(difference(one, other) < 1e-12);
}

#[test]
fn every_sample_is_computed_exactly_once_an_epoch() {
    // Ragged tails, more workers than samples, and a batch that leaves workers without a sample.
    for (samples, batch, workers) in [(53, 10, 3), (3, 8, 5), (17, 2, 4), (1, 1, 2)] {
        let networks = Networks::new(samples, &vec![1e-3; workers]);
        let (builder, seen) = networks.trainer();
        let hints: Vec<f64> = (1..=workers).map(|speed| speed as f64).collect();
        let trained = builder.batch(batch).speed_hint(hints).build().unwrap().run(2).unwrap();
        assert_eq!(trained.report.samples, 2 * samples as u64);
        // The first batch of each worker that has a share warms it up.
        let mut counts = vec![0; samples];
        let mut warm = vec![false; workers];
        let starting: Vec<bool> = first_plan(batch, workers);
        for (rank, batch) in &*seen.batches.lock().unwrap() {
            if starting[*rank] && !std::mem::replace(&mut warm[*rank], true) {
                continue;
            }
            batch.iter().for_each(|sample| counts[*sample as usize] += 1);
        }
        assert!(counts.iter().all(|count| *count == 2), "{samples}, {batch}, {workers}: {counts:?}");
    }
}

/// Which workers have a share in the first plan of speeds 1, 2, 3 and so on.
fn first_plan(batch: u64, workers: usize) -> Vec<bool> {
    use evener_train::share::{Exchange, PlanSettings, Planner, SpeedModel};
    let models = (1..=workers).map(|speed| SpeedModel::proportional(1.0 / speed as f64)).collect();
    let settings = PlanSettings { batch, least: 1, exchange: Exchange::NONE, fixed: None };
    let planner = Planner::new(settings, models, vec![u64::MAX; workers]).unwrap();
    planner.plan().batches.iter().map(|batch| *batch > 0).collect()
}

#[test]
fn running_statistics_are_averaged_by_samples_and_no_worker_gets_one_sample() {
    let networks = Networks { batch_norm: true, ..Networks::new(36, &[1e-3, 1e-3]) };
    let (builder, seen) = networks.trainer();
    let trained = builder.batch(12).speed_hint([10.0, 1.0]).build().unwrap().run(2).unwrap();
    seen.assert_replicas_equal();
    let batches = seen.batches.lock().unwrap();
    assert!(batches.iter().all(|(_, samples)| samples.len() >= 2), "{batches:?}");
    let (mean, variance) = trained.replica.network.buffers().split_at(3);
    // The inputs are uniform from -1 to 1; six steps bring the running variance from 1 half of the way to a third.
    assert!(mean.iter().all(|it| it.abs() < 0.3), "{mean:?}");
    assert!(variance.iter().all(|it| (0.4..0.95).contains(it)), "{variance:?}");
}

#[test]
fn a_gradient_that_is_not_finite_on_one_worker_skips_the_step_on_all() {
    let mut data = Regression::generated(40, 1);
    data.targets[7][0] = f64::NAN;
    let networks = Networks { data: Arc::new(data), ..Networks::new(40, &[1e-3, 1e-3]) };
    let (builder, seen) = networks.trainer();
    let trained = builder.batch(8).shares([4, 4]).build().unwrap().run(3).unwrap();
    assert_eq!((trained.report.skipped, trained.report.steps), (3, 15));
    assert!(trained.replica.network.parameters().iter().all(|it| it.is_finite()));
    seen.assert_replicas_equal();
    assert_eq!(seen.steps.lock().unwrap().len(), 2 * 12);
}

#[test]
fn clipping_limits_the_averaged_gradient_and_not_each_workers() {
    let networks = Networks::new(70, &[1e-3, 2.5e-3]);
    let run = |networks: &Networks| {
        let builder = networks.trainer().0.batch(35).max_grad_norm(0.05);
        builder.build().unwrap().run(3).unwrap().replica.network.parameters().to_vec()
    };
    let two = run(&networks);
    let one = run(&Networks { speeds: vec![1e-3], ..networks.clone() });
    assert!(difference(&one, &two) < 1e-12);
    assert!(difference(networks.alone(35, 3).replica.network.parameters(), &two) > 1e-6);
}

#[test]
fn local_steps_learn_and_replicas_meet_at_every_exchange() {
    let slow = Optimizer::Sgd { learning_rate: 0.005, momentum: 0.0 };
    for (outer, optimizer) in [(OuterStep::Identity, SGD), (OuterStep::NESTEROV, slow)] {
        let networks = Networks { optimizer, ..Networks::new(240, &[1e-8, 2e-8]) };
        let (builder, _) = networks.trainer();
        let builder = builder.batch(24).policy(Policy::Cadence).outer_step(outer).max_lead(4);
        let handle = builder.build().unwrap().start(15).unwrap();
        let mut lead = 1;
        while let Some(metrics) = handle.next_metrics() {
            lead = lead.max(metrics.local_steps);
        }
        let trained = handle.join().unwrap();
        assert!(lead > 1 && lead <= 4, "{lead}");
        let losses = &trained.report.epoch_losses;
        assert!(losses[14] < losses[0] * 0.5, "{losses:?}");
        assert_eq!(trained.report.samples, 15 * 240);
    }
}

#[test]
fn the_batch_grows_and_all_workers_agree_on_it() {
    let networks = Networks::new(256, &[1e-3, 2e-3]);
    let (builder, seen) = networks.trainer();
    let growth = BatchGrowth { most: 64, rule: GainRule::Linear };
    let trained = builder.batch(8).batch_growth(growth).build().unwrap().run(12).unwrap();
    assert!(trained.report.batch > 8 && trained.report.batch <= 64, "{}", trained.report);
    assert_eq!(trained.report.samples, 12 * 256);
    seen.assert_replicas_equal();
}

#[test]
fn a_throttled_worker_gets_less_and_the_decisions_stay_equal() {
    let data = Arc::new(Regression::generated(400, 1));
    let builder = evener_train::Trainer::builder(move |worker| {
        let (rank, mut calls) = (worker.rank, 0);
        Ok(Mlp::new(data.clone(), 6, SGD, 1).with_hook(move |samples| {
            calls += 1;
            let slow = if rank == 1 && calls > 60 { 3.0 } else { 1.0 };
            Some(Duration::from_secs_f64(1e-3 * slow * samples.len() as f64))
        }))
    });
    let builder = builder.data(400u64).batch(40).workers(2).processes(false);
    let trained = builder.build().unwrap().run(20).unwrap();
    let batches: Vec<u64> = trained.report.workers.iter().map(|worker| worker.batch).collect();
    assert_eq!(batches, [30, 10], "{}", trained.report);
}

#[test]
fn a_run_can_be_followed_and_cancelled() {
    let networks = Networks::new(64, &[1e-3, 1e-3]);
    let handle = networks.trainer().0.batch(8).build().unwrap().start(1_000_000).unwrap();
    let first = handle.next_metrics().unwrap();
    assert!(first.loss > 0.0 && first.workers.len() == 2 && first.remaining.is_some(), "{first:?}");
    handle.cancel();
    while handle.next_metrics().is_some() {}
    assert!(handle.poll_metrics().is_none());
    let trained = handle.join().unwrap();
    assert!(trained.report.cancelled && trained.report.epochs < 1_000_000);
    assert!(trained.report.to_string().contains("efficiency"), "{}", trained.report);
}

#[test]
fn settings_that_cannot_be_used_are_refused_with_what_would_be_valid() {
    let refused = |change: fn(
        evener_train::TrainerBuilder<common::Watched>,
    ) -> evener_train::TrainerBuilder<common::Watched>| {
        let builder = change(Networks::new(10, &[1e-3, 1e-3]).trainer().0.batch(10));
        builder.build().err().expect("refused").to_string()
    };
    assert_eq!(refused(|it| it.batch(0)), "batch: 0 samples per step: ask for at least one");
    assert!(refused(|it| it.data(0u64)).contains("no sample"));
    assert!(refused(|it| it.shares([3, 4])).contains("10 in all"));
    assert!(refused(|it| it.speed_hint([1.0])).contains("each of 2 workers"));
    assert!(refused(|it| it.max_grad_norm(f64::NAN)).contains("NaN"));
    assert!(refused(|it| it.devices("no-such-device")).contains("no-such-device"));
}
