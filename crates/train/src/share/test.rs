//! What the shares must never do.

use proptest::prelude::*;

use super::*;

fn model(per_sample_s: f64) -> SpeedModel {
    SpeedModel::proportional(per_sample_s)
}

fn settings(batch: u64) -> PlanSettings {
    PlanSettings { batch, least: 0, exchange: Exchange::NONE, fixed: None }
}

fn planner(batch: u64, speeds: &[f64]) -> Planner {
    let models = speeds.iter().map(|it| model(*it)).collect::<Vec<_>>();
    Planner::new(settings(batch), models, vec![u64::MAX; speeds.len()]).unwrap()
}

#[test]
fn one_to_two_and_a_half_shares_35_samples_as_25_and_10() {
    assert_eq!(planner(35, &[1e-3, 2.5e-3]).plan().batches, [25, 10]);
}

/// The least possible longest time, by trying every assignment.
fn brute_force(candidates: &[Candidate], batch: u64, exchange: &Exchange) -> Option<f64> {
    let [first, rest @ ..] = candidates else { return (batch == 0).then_some(0.0) };
    (first.least..=first.most.min(batch))
        .filter_map(|mine| Some(first.busy_s(mine, exchange).max(brute_force(rest, batch - mine, exchange)?)))
        .min_by(f64::total_cmp)
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (1e-4..1.0f64, prop_oneof![Just(0.0), 0.0..2.0f64], 1..9u64, 0.5..2.0f64, 1..14u64, 0..3u64);
    let one = one.prop_map(|(per_sample_s, per_launch_s, micro_batch, drift, most, least)| Candidate {
        model: SpeedModel { per_sample_s, per_launch_s, micro_batch, drift },
        most,
        least: least.min(most),
    });
    prop::collection::vec(one, 1..=4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_solver_is_as_good_as_trying_everything(
        candidates in candidates(),
        batch in 0..25u64,
        first_bucket in 0.1..1.0f64,
        overlapped_s in prop_oneof![Just(0.0), 0.0..3.0f64],
    ) {
        let exchange = Exchange { first_bucket, overlapped_s, last_s: 0.0 };
        let solved = solve(&candidates, batch, &exchange);
        let best = brute_force(&candidates, batch, &exchange);
        prop_assert_eq!(solved.is_some(), best.is_some());
        if let (Some(solved), Some(best)) = (solved, best) {
            prop_assert_eq!(solved.iter().sum::<u64>(), batch);
            for (batch, candidate) in solved.iter().zip(&candidates) {
                prop_assert!((candidate.least..=candidate.most).contains(batch));
            }
            let longest = solved.iter().zip(&candidates).map(|(b, it)| it.busy_s(*b, &exchange)).fold(0.0, f64::max);
            prop_assert!(longest <= best * (1.0 + 1e-12), "{} is not {}: {:?}", longest, best, solved);
        }
    }

    #[test]
    fn whatever_a_clock_says_the_model_is_bounded(
        times in prop::collection::vec(
            prop_oneof![Just(f64::NAN), Just(0.0), Just(1e-9), Just(-1.0), Just(f64::INFINITY), 1e-6..10.0f64], 6),
        micro in 1..100u64,
    ) {
        let mut models = Vec::new();
        for times in times.chunks(3) {
            let probes: Vec<_> = [8, 16, 32].into_iter().zip(times)
                .map(|(samples, seconds)| Probe { samples, seconds: *seconds }).collect();
            let Some(model) = SpeedModel::fit(&probes, micro) else {
                prop_assert!(times.iter().all(|it| !(it.is_finite() && *it > 0.0)));
                continue;
            };
            let shortest = times.iter().copied().filter(|it| it.is_finite() && *it > 0.0).fold(f64::INFINITY, f64::min);
            prop_assert!(model.per_sample_s > 0.0 && model.per_sample_s.is_finite());
            prop_assert!((0.0..=0.9 * shortest).contains(&model.per_launch_s));
            models.push(model);
        }
        SpeedModel::bound_ratios(&mut models, 32);
        let seconds: Vec<_> = models.iter().map(|it| it.seconds(32)).collect();
        for (one, other) in seconds.iter().zip(seconds.iter().rev()) {
            prop_assert!(one / other <= MAX_SPEED_RATIO * (1.0 + 1e-9));
        }
        if models.len() == 2 {
            let planner = Planner::new(settings(256), models, vec![u64::MAX; 2]).unwrap();
            prop_assert_eq!(planner.plan().batches.iter().sum::<u64>(), 256);
        }
    }

    #[test]
    fn the_plan_always_adds_up_and_never_uses_an_absent_rank(
        speeds in prop::collection::vec(1e-4..1e-1f64, 1..6),
        events in prop::collection::vec((0..6usize, 0..4u8, 0.0..4.0f64), 0..80),
        least in 0..3u64,
    ) {
        let ranks = speeds.len();
        let models: Vec<_> = speeds.iter().map(|it| model(*it)).collect();
        let mut planner =
            Planner::new(PlanSettings { least, ..settings(64) }, models, vec![u64::MAX; ranks]).unwrap();
        let mut present = vec![true; ranks];
        for (rank, what, factor) in events {
            let rank = rank % ranks;
            match what {
                0 => {
                    present[rank] = !present[rank];
                    if !present.contains(&true) {
                        present[rank] = true;
                    }
                    planner.set_present(&present).unwrap();
                }
                1 => drop(planner.set_batch(32 + (factor * 16.0) as u64)),
                _ => {
                    let batches = planner.plan().batches.clone();
                    let bad = [f64::NAN, 0.0, 1e-9, f64::INFINITY][(factor as usize).min(3)];
                    let times: Vec<_> = (0..ranks)
                        .map(|it| if it == rank && what == 3 { bad } else { speeds[it] * factor * batches[it] as f64 })
                        .collect();
                    for _ in 0..WINDOW { planner.observe(&batches, &times); }
                }
            }
            let plan = planner.plan();
            prop_assert_eq!(plan.batches.iter().sum::<u64>(), planner.settings().batch);
            for (rank, &present) in present.iter().enumerate() {
                prop_assert!(present || plan.batches[rank] == 0);
                prop_assert!(plan.batches[rank] == 0 || plan.batches[rank] >= least);
                let (drift, left_out) = (planner.models()[rank].drift, plan.left_out.iter().any(|it| it.rank == rank));
                prop_assert!(drift.is_finite() && drift > 0.0);
                prop_assert_eq!(left_out, present && plan.batches[rank] == 0);
            }
        }
    }
}

/// Steps on devices of these true speeds; returns what the planner changed.
fn steps(planner: &mut Planner, speeds: &[f64], count: usize) -> Vec<PlanChange> {
    let step = |_| {
        let batches = planner.plan().batches.clone();
        let times: Vec<_> = batches.iter().zip(speeds).map(|(batch, speed)| *batch as f64 * speed).collect();
        planner.observe(&batches, &times)
    };
    (0..count).filter_map(step).collect()
}

fn step_s(planner: &Planner, speeds: &[f64]) -> f64 {
    planner.plan().batches.iter().zip(speeds).map(|(batch, speed)| *batch as f64 * speed).fold(0.0, f64::max)
}

#[test]
fn a_throttle_of_two_is_followed_within_two_windows() {
    for at in 0..WINDOW {
        let mut planner = planner(512, &[1e-3, 2e-3]);
        // A throttle within a window is followed two windows after that window's end.
        steps(&mut planner, &[1e-3, 2e-3], 3 * WINDOW + at);
        let throttled = [2e-3, 2e-3];
        steps(&mut planner, &throttled, 2 * WINDOW + (WINDOW - at) % WINDOW);
        let ideal = 512.0 / throttled.iter().map(|it| 1.0 / it).sum::<f64>();
        let efficiency = ideal / step_s(&planner, &throttled);
        assert!(efficiency >= 0.97, "throttled at {at}: {efficiency}, {:?}", planner.plan());
    }
}

#[test]
fn a_single_slow_window_changes_nothing() {
    let mut planner = planner(512, &[1e-3, 2e-3]);
    let before = planner.plan().batches.clone();
    steps(&mut planner, &[4e-3, 2e-3], WINDOW);
    assert_eq!(steps(&mut planner, &[1e-3, 2e-3], 20 * WINDOW), []);
    assert_eq!(planner.plan().batches, before);
}

#[test]
fn a_gain_below_two_percent_is_not_worth_a_change() {
    let mut planner = planner(512, &[1e-3, 1e-3]);
    assert_eq!(steps(&mut planner, &[1e-3, 1.03e-3], 50 * WINDOW), []);
    assert_eq!(planner.plan().batches, [256, 256]);
}

#[test]
fn a_change_that_makes_steps_slower_is_taken_back_and_tried_ever_more_rarely() {
    let mut planner = planner(512, &[1e-3, 1e-3]);
    let (mut changes, mut first_plan) = (Vec::new(), 0);
    for _ in 0..40 * WINDOW {
        let batches = planner.plan().batches.clone();
        // The first device looks slow at its own batch, and is far slower at any other.
        first_plan += usize::from(batches[0] == 256);
        let first = if batches[0] == 256 { 0.4 } else { 0.9 };
        changes.extend(planner.observe(&batches, &[first, batches[1] as f64 * 1e-3]));
    }
    assert_eq!(changes[..2], [PlanChange::Replanned, PlanChange::WentBack]);
    assert!(changes.len() <= 8, "{changes:?}");
    assert!(first_plan >= 35 * WINDOW, "{first_plan}");
}

#[test]
fn a_device_that_would_slow_the_step_down_is_left_out_and_named() {
    let mut slow = model(1e-3);
    slow.per_launch_s = 10.0;
    let planner = Planner::new(settings(64), vec![model(1e-3), slow], vec![u64::MAX; 2]).unwrap();
    assert_eq!(planner.plan().batches, [64, 0]);
    let [left_out] = &planner.plan().left_out[..] else { panic!("{:?}", planner.plan()) };
    assert!(left_out.to_string().starts_with("rank 1 is left out: a step would take"), "{left_out}");
}

#[test]
fn a_share_of_one_is_refused_where_the_model_cannot_use_it() {
    let two = PlanSettings { least: 2, ..settings(5) };
    let planner = Planner::new(two, vec![model(1.0), model(5.0)], vec![u64::MAX; 2]).unwrap();
    assert!(planner.plan().batches.iter().all(|it| *it != 1), "{:?}", planner.plan());
    assert_eq!(planner.batches(1).unwrap(), [1, 0]);
}

#[test]
fn a_card_a_thousand_times_faster_than_the_processor_ends_up_alone() {
    let truth = [1e-6, 1e-3];
    let mut models = vec![model(truth[0]), model(truth[1])];
    SpeedModel::bound_ratios(&mut models, 128);
    let mut planner = Planner::new(settings(256), models, vec![u64::MAX; 2]).unwrap();
    steps(&mut planner, &truth, 10 * WINDOW);
    assert_eq!(planner.plan().batches, [256, 0]);
}

#[test]
fn a_probe_discards_two_runs_of_each_size_and_keeps_the_shortest_of_three() {
    let mut plan = ProbePlan::new(32, u64::MAX);
    let mut runs = Vec::new();
    while let Some(step) = plan.next_step() {
        let run = runs.iter().filter(|it| **it == step.samples).count();
        let noise = [100.0, 50.0, 1.5, 1.0, 1.2][run];
        plan.record(noise * (0.002 * step.samples as f64 + 0.01));
        runs.push(step.samples);
    }
    assert_eq!(runs.len(), 15);
    let model = plan.model(u64::MAX).unwrap();
    assert!(
        (model.per_sample_s - 0.002).abs() < 1e-9 && (model.per_launch_s - 0.01).abs() < 1e-9,
        "{model:?}"
    );
}
