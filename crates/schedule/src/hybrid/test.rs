use proptest::prelude::*;

use super::*;

const LARGE: u64 = 10_000_000;

fn candidates() -> Vec<Candidate> {
    vec![candidate("cpu", 40.0), candidate("gpu", 90.0)]
}

fn candidate(device: &str, score: f64) -> Candidate {
    Candidate { device: device.to_owned(), score, needs_preparation: true }
}

/// Seconds of startup, of overhead in each run, and per item.
#[derive(Clone, Copy, Debug)]
struct Truth(f64, f64, f64);

const CPU: Truth = Truth(0.0, 1e-5, 1e-5);
const GPU: Truth = Truth(0.4, 0.1, 1e-7);

impl Truth {
    fn run(self, device: &str, items: u64) -> Observation {
        let busy = Duration::from_secs_f64(self.1 + self.2 * items as f64);
        Observation {
            device: device.to_owned(),
            items,
            busy,
            startup: Duration::from_secs_f64(self.0),
            needed_preparation: true,
        }
    }
}

fn taught(runs: &[(&str, Truth, u64)]) -> Model {
    let mut model = Model::default();
    for (device, truth, items) in runs {
        model.observe("task", &truth.run(device, *items));
    }
    model
}

fn names(choice: &Choice) -> Vec<&str> {
    choice.used.iter().map(|used| used.device.as_str()).collect()
}

fn share(choice: &Choice, device: &str) -> f64 {
    choice.used.iter().find(|used| used.device == device).map_or(0.0, |used| used.share)
}

fn close(duration: Option<Duration>, seconds: f64, part: f64) {
    let found = duration.unwrap().as_secs_f64();
    assert!((found / seconds - 1.0).abs() <= part, "{found} s, and {seconds} s was expected");
}

#[test]
fn devices_without_runs_are_used_by_their_scores() {
    let choice = Model::default().choose("task", 1300, &candidates());
    assert_eq!(names(&choice), ["cpu", "gpu"]);
    assert!(choice.used.iter().all(|used| used.basis == Basis::Guessed));
    assert!((share(&choice, "gpu") - 9.0 / 13.0).abs() < 1e-2);
    assert_eq!(choice.predicted, None);
}

#[test]
fn a_device_without_runs_is_estimated_from_one_with_runs() {
    let mut model = taught(&[("cpu", CPU, LARGE)]);
    let choice = model.choose("task", LARGE, &candidates());
    assert_eq!(choice.used[1].basis, Basis::Guessed);
    close(choice.predicted, 100.0 * 4.0 / 13.0, 0.02);
}

#[test]
fn a_device_without_items_is_known_by_its_startup() {
    let mut model = taught(&[("cpu", CPU, 1000), ("cpu", CPU, 10)]);
    let startup = Duration::from_secs(2);
    let idle = Observation {
        device: "gpu".into(),
        items: 0,
        busy: Duration::ZERO,
        startup,
        needed_preparation: true,
    };
    assert_eq!(model.observe("task", &idle), Prediction { predicted: None, actual: startup });
    assert_eq!(names(&model.choose("task", 1000, &candidates())), ["cpu"]);
    assert_eq!(names(&model.choose("task", LARGE, &candidates())), ["cpu", "gpu"]);
}

#[test]
fn a_device_whose_overhead_never_showed_learns_it_from_unproductive_work() {
    // Runs of one size do not tell how much of them was overhead; the device looks best for few items too.
    let (gpu, few) = (Truth(0.0, 0.01, 5e-6), 70);
    let mut model = taught(&[("gpu", gpu, 20_000); 10]);
    for items in [10, 1_000, 100_000] {
        model.observe("task", &Truth(0.0, 1e-3, 1e-5).run("cpu", items));
    }
    assert_eq!(names(&model.choose("task", few, &candidates())), ["gpu"]);
    let busy = Duration::from_millis(8);
    let unproductive = Observation {
        device: "gpu".into(),
        items: 0,
        busy,
        startup: Duration::ZERO,
        needed_preparation: true,
    };
    model.observe("task", &unproductive);
    assert_eq!(names(&model.choose("task", few, &candidates())), ["cpu"]);
}

#[test]
fn a_device_that_starts_slowly_is_left_out_of_one_item_and_used_for_many() {
    let mut model = taught(&[("cpu", CPU, 100_000), ("gpu", GPU, LARGE), ("cpu", CPU, 1), ("gpu", GPU, 1)]);
    let small = model.choose("task", 1, &candidates());
    assert_eq!(names(&small), ["cpu"]);
    let [(device, Reason::StartsTooLate { ready, others })] = &small.left_out[..] else {
        panic!("{:?}", small.left_out)
    };
    assert_eq!(device, "gpu");
    assert!(*ready > Duration::from_millis(350) && *others < Duration::from_millis(1));
    assert!(small.left_out[0].1.to_string().contains("when the others are done"));

    let large = model.choose("task", LARGE, &candidates());
    assert_eq!(names(&large), ["cpu", "gpu"]);
    assert!(share(&large, "gpu") > 0.97);
    close(large.predicted, 1.5, 0.1);
}

#[test]
fn preparation_is_not_counted_against_a_device_that_is_ready() {
    let mut model = Model::default();
    for _ in 0..4 {
        model.observe("task", &Truth(0.0, 0.0, 1e-3).run("cpu", 100));
        model.observe("task", &Truth(5.0, 0.0, 1e-5).run("gpu", 100));
    }
    let warm = Candidate { needs_preparation: false, ..candidate("gpu", 80.0) };
    for (gpu, expected) in [(candidate("gpu", 80.0), vec!["cpu"]), (warm, vec!["cpu", "gpu"])] {
        let choice = model.clone().choose("task", 1000, &[candidate("cpu", 10.0), gpu]);
        let used: Vec<&str> = choice.used.iter().map(|used| used.device.as_str()).collect();
        assert_eq!(used, expected);
    }
}

#[test]
fn small_runs_that_were_all_startup_do_not_keep_a_fast_device_out_of_a_large_one() {
    // Startup measured as such, hidden in the busy time, and hidden with items that look slow while they are few.
    for gpu in [GPU, Truth(0.0, 0.5, 1e-7), Truth(0.0, 0.5, 0.02)] {
        for noise in 0..20u64 {
            let mut model = taught(&[("cpu", CPU, 1_000_000)]);
            for run in 0..10u64 {
                // Up to a fifth more or less, in no order.
                let factor = 0.8 + 0.4 * ((run * 7 + noise * 13) % 11) as f64 / 10.0;
                let items = 1 + (run * 3 + noise) % 10;
                let scattered = Truth(gpu.0, gpu.1 * factor, gpu.2);
                model.observe("task", &scattered.run("gpu", items));
                model.observe("task", &CPU.run("cpu", items));
            }
            let choice = model.choose("task", LARGE, &candidates());
            assert!(names(&choice).contains(&"gpu"));
            // One large run is enough to know.
            model.observe("task", &GPU.run("gpu", LARGE));
            let choice = model.choose("task", LARGE, &candidates());
            assert!(share(&choice, "gpu") > 0.95, "{choice:?}");
            close(choice.predicted, 1.5, 0.3);
        }
    }
}

#[test]
fn an_optimistic_estimate_of_one_device_does_not_leave_out_another() {
    // The processor did little beside a GPU, which has to be prepared again: nothing says that the processor can do all
    // items.
    let mut model = Model::default();
    let run = |device: &str, items, busy_ms, startup_ms| Observation {
        device: device.into(),
        items,
        busy: Duration::from_millis(busy_ms),
        startup: Duration::from_millis(startup_ms),
        needed_preparation: true,
    };
    model.observe("task", &run("gpu", 299_622_000, 394, 234));
    model.observe("task", &run("cpu", 378_000, 123, 0));
    let choice = model.choose("task", 300_000_000, &candidates());
    assert!(names(&choice).contains(&"gpu"), "{choice:?}");
}

#[test]
fn small_runs_do_not_displace_the_samples_of_large_ones() {
    let mut model = taught(&[("cpu", CPU, LARGE), ("gpu", GPU, LARGE)]);
    for run in 0..200 {
        model.observe("task", &CPU.run("cpu", 1 + run % 10));
        model.observe("task", &GPU.run("gpu", 1 + run % 10));
    }
    let choice = model.choose("task", LARGE, &candidates());
    close(choice.predicted, 1.48, 0.05);
    let records = &model.tasks["task"].devices;
    assert!(records.values().all(|record| record.samples.len() <= 32));
}

#[test]
fn a_device_that_became_slower_is_believed_after_a_few_runs() {
    let slower = Truth(0.0, 0.0, CPU.2 * 4.0);
    let mut model = taught(&[("cpu", CPU, LARGE); 20]);
    let surprise = model.observe("task", &slower.run("cpu", LARGE));
    assert!((surprise.error().unwrap() - 3.0).abs() < 0.1);
    assert_eq!(model.last_prediction("task", "cpu"), Some(surprise));
    for _ in 0..5 {
        model.observe("task", &slower.run("cpu", LARGE));
    }
    close(model.choose("task", LARGE, &candidates()[..1]).predicted, 300.0, 0.1);
    for _ in 0..12 {
        model.observe("task", &slower.run("cpu", LARGE));
    }
    close(model.choose("task", LARGE, &candidates()[..1]).predicted, 390.0, 0.05);
}

#[test]
fn a_device_that_recovered_is_used_again() {
    let ill = Truth(0.0, 60.0, 1e-5);
    let mut model =
        taught(&[("cpu", CPU, 1_000_000), ("cpu", CPU, 10), ("gpu", ill, 1_000), ("gpu", ill, 10)]);
    let mut runs = 0;
    loop {
        let choice = model.choose("task", 1_000_000, &candidates());
        if choice.used.iter().any(|used| used.device == "gpu" && used.basis == Basis::Measured) {
            break;
        }
        if share(&choice, "gpu") > 0.0 {
            model.observe("task", &GPU.run("gpu", 10_000));
        }
        model.observe("task", &CPU.run("cpu", 990_000));
        runs += 1;
        assert!(runs < 200);
    }
}

#[test]
fn tasks_are_learned_separately() {
    let mut model = taught(&[("cpu", CPU, LARGE)]);
    assert_eq!(model.choose("other", LARGE, &candidates()).predicted, None);
    assert_eq!(model.last_prediction("other", "cpu"), None);
}

fn any_duration() -> impl Strategy<Value = Duration> {
    let sane = (0u64..10_000_000_000).prop_map(Duration::from_nanos);
    prop_oneof![Just(Duration::ZERO), Just(Duration::MAX), Just(Duration::from_nanos(1)), sane]
}

fn any_items() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0u64..1000, any::<u64>()]
}

fn any_candidate() -> impl Strategy<Value = Candidate> {
    let special = [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, f64::MAX, 1.0];
    let score = prop_oneof![prop::sample::select(special.to_vec()), prop::num::f64::ANY];
    (0usize..5, score).prop_map(|(number, score)| candidate(&number.to_string(), score))
}

proptest! {
    #[test]
    fn every_history_gives_a_valid_choice(
        runs in prop::collection::vec((0usize..5, any_items(), any_duration(), any_duration()), 0..60),
        choices in prop::collection::vec((any_items(), prop::collection::vec(any_candidate(), 0..6)), 1..6),
    ) {
        let mut model = Model::default();
        for (device, items, busy, startup) in runs {
            let observation = Observation { device: device.to_string(), items, busy, startup, needed_preparation: true };
            let prediction = model.observe("task", &observation);
            prop_assert!(prediction.error().is_none_or(f64::is_finite));
        }
        for (items, candidates) in choices {
            let choice = model.choose("task", items, &candidates);
            prop_assert_eq!(choice.used.len() + choice.left_out.len(), candidates.len());
            prop_assert_eq!(choice.used.is_empty(), items == 0 || candidates.is_empty());
            prop_assert!(choice.used.iter().all(|used| (0.0..=1.0).contains(&used.share)));
            let total: f64 = choice.used.iter().map(|used| used.share).sum();
            prop_assert!(choice.used.is_empty() || (total - 1.0).abs() < 1e-9);
            let text: Vec<String> = choice.left_out.iter().map(|(_, reason)| reason.to_string()).collect();
            prop_assert!(!text.iter().any(|text| text.contains("NaN")));
        }
    }

    #[test]
    fn the_truth_is_found_from_runs_of_unlike_sizes(
        startup in 0.0f64..2.0,
        overhead in 0.0f64..0.5,
        per_item in 1e-8f64..1e-4,
        sizes in prop::collection::vec(1u64..100_000_000, 3..30),
        wanted in 1_000_000u64..100_000_000,
    ) {
        let truth = Truth(startup, overhead, per_item);
        let mut model = taught(&[("cpu", truth, 1), ("cpu", truth, 100_000_000)]);
        for items in sizes {
            model.observe("task", &truth.run("cpu", items));
        }
        let choice = model.choose("task", wanted, &candidates()[..1]);
        close(choice.predicted, startup + overhead + per_item * wanted as f64, 0.05);
    }

    #[test]
    fn a_model_that_learns_from_its_own_choices_comes_to_choose_well(
        truths in prop::collection::vec(
            (prop_oneof![Just(0.0), 0.1f64..2.0], -6.0f64..-1.0, -8.0f64..-4.0), 1..5),
        sizes in prop::collection::vec(0.0f64..8.0, 1..4),
        noise in prop::collection::vec(0.9f64..1.1, 97),
    ) {
        let power = |exponent| 10f64.powf(exponent);
        let truths: Vec<Truth> = truths.iter().map(|&(a, b, c)| Truth(a, power(b), power(c))).collect();
        let candidates: Vec<Candidate> = (0..truths.len()).map(|n| candidate(&n.to_string(), 50.0)).collect();
        let lines: Vec<CostLine> = truths.iter().map(|it| CostLine::new(it.0 + it.1, it.2)).collect();
        let mut model = Model::default();
        let mut noise = noise.iter().cycle();
        let mut slow = 0;
        for run in 0..300 {
            let items = power(sizes[run % sizes.len()]) as u64;
            let choice = model.choose("task", items, &candidates);
            // The devices take items until there are none, whatever the shares.
            let used: Vec<usize> = choice.used.iter().map(|used| used.device.parse().unwrap()).collect();
            let joint = joint::fastest(&used.iter().map(|&index| lines[index]).collect::<Vec<_>>(), items);
            // Several devices must be faster than one by a twentieth.
            let most = joint::fastest(&lines, items).seconds * 1.1 * 1.05;
            slow += usize::from(run >= 150 && joint.seconds > most);
            let worked: Vec<usize> =
                used.iter().zip(&joint.items).filter(|(_, items)| **items > 0.0).map(|(&it, _)| it).collect();
            let ready: Vec<CostLine> = worked.iter().map(|&it| CostLine::new(truths[it].1, truths[it].2)).collect();
            let named = |set: &[usize]| set.iter().map(usize::to_string).collect();
            let wall = duration(joint::fastest(&ready, items).seconds * noise.next().unwrap());
            let measurements = Measurements { devices: named(&used), worked: named(&worked), wall, runs: 1 };
            model.record_runs("task", items, measurements);
            for (index, items) in used.into_iter().zip(joint.items) {
                let (Truth(startup, overhead, per_item), factor) = (truths[index], noise.next().unwrap());
                let truth = Truth(startup * factor, overhead * factor, per_item * factor);
                let mut observation = truth.run(&index.to_string(), items as u64);
                if items == 0.0 {
                    observation.busy = duration(joint.seconds - startup * factor);
                }
                model.observe("task", &observation);
            }
        }
        prop_assert!(slow <= 30, "{slow} of 150 runs took a sixth longer than they need");
    }
}

#[test]
fn the_best_device_is_prepared_again_once_it_was_missed_long_enough() {
    let mut model = Model::default();
    let micros = Duration::from_micros;
    let run = |device: &str, took: u64, startup: u64, cold: bool| Observation {
        device: device.into(),
        items: 1,
        busy: micros(took),
        startup: micros(startup),
        needed_preparation: cold,
    };
    let alone = |device: &str, wall: Duration| Measurements {
        devices: vec![device.into()],
        worked: vec![device.into()],
        wall,
        runs: 1,
    };
    for _ in 0..4 {
        model.observe("task", &run("gpu", 110, 5, false));
        model.observe("task", &run("cpu", 50, 5, false));
        model.observe("task", &run("cpu", 50, 400, true));
        model.record_runs("task", 1, alone("gpu", micros(115)));
        model.record_runs("task", 1, alone("cpu", micros(55)));
    }
    // Another program, in which only the slower one is ready.
    let ready = [Candidate { needs_preparation: false, ..candidate("gpu", 50.0) }, candidate("cpu", 50.0)];
    let is_used =
        |choice: &Choice| choice.used.iter().any(|used| used.device == "cpu" && used.basis != Basis::Guessed);
    let first = (0..20).find(|_| {
        let choice = model.choose("task", 1, &ready);
        model.record_runs("task", 1, alone("gpu", micros(115)));
        is_used(&choice)
    });
    assert!(first.is_some_and(|first| (1..=12).contains(&first)), "{first:?}");
}

#[test]
fn missed_time_is_counted_per_task() {
    let mut model = Model::default();
    let micros = Duration::from_micros;
    let alone = |device: &str, wall: Duration, runs: u32| Measurements {
        devices: vec![device.into()],
        worked: vec![device.into()],
        wall,
        runs,
    };
    for (device, wall) in [("gpu", 115), ("cpu", 55)] {
        for cold in [false, true] {
            let (busy, startup) = (micros(wall), micros(if cold { 4000 } else { 5 }));
            let observation =
                Observation { device: device.into(), items: 1, busy, startup, needed_preparation: cold };
            model.observe("task", &observation);
            model.record_runs("task", 1, alone(device, busy, 1));
            model.record_runs("task", 1, alone(device, busy, 1));
        }
    }
    let ready = [Candidate { needs_preparation: false, ..candidate("gpu", 50.0) }, candidate("cpu", 50.0)];
    model.record_runs("another task", 1, alone("gpu", micros(115), 1_000_000));
    assert_eq!(names(&model.choose("task", 1, &ready)), ["gpu"]);
}

#[test]
fn the_least_recently_used_tasks_are_dropped() {
    let mut model = Model::default();
    let candidates = [Candidate { device: "cpu".into(), score: 1.0, needs_preparation: false }];
    for number in 0..1000 {
        model.choose("often", 10, &candidates);
        model.choose(&number.to_string(), 10, &candidates);
    }
    assert_eq!(model.tasks.len(), MAX_TASKS);
    assert!(["often", "999", "998"].iter().all(|task| model.tasks.contains_key(*task)));
}
