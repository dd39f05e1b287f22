//! Results that are written to the caller's slices.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use evener_device::{
    Kernel,
    testing::{Fault, InjectedError},
};
use evener_schedule::{Arrays, Cancel, Closure, KernelTask, RunError};

use crate::common::{Faulty, SHORT, Scramble, card, cores, numbers, scramble, without_history};

#[test]
fn results_are_written_in_place_whatever_their_number() {
    let pool = without_history([card("card:0"), cores("cpu", 2)]);
    let job = pool.job(&Scramble::new()).settings(SHORT).all_devices();
    let halves = Closure::new("half", |&item: &u32| item / 2);
    for count in [0, 1, 2, 255, 256, 257, 10_001] {
        let items = numbers(count);
        let mut results = vec![7; items.len()];
        let report = job.map_into(&items, &mut results).unwrap();
        assert!(items.iter().zip(&results).all(|(&item, &result)| result == scramble(item)));
        assert_eq!(report.done, u64::from(count));
        pool.map_into(&halves, &items, &mut results).unwrap();
        assert!(items.iter().zip(&results).all(|(item, &result)| result == item / 2));
    }
}

#[test]
fn a_device_that_fails_in_the_middle_leaves_no_wrong_result_in_place() {
    let items = numbers(5_003);
    let right: Vec<u32> = items.iter().map(|&item| scramble(item)).collect();
    for operation in 1..30 {
        let faulty = Faulty::new(&[card("card:0"), cores("cpu", 1)]);
        faulty.faults[0].at(operation, Fault::Fail(InjectedError::Lost));
        faulty.faults[0].at(operation + 9, Fault::Corrupt);
        let mut results = vec![0; items.len()];
        faulty.job(&Scramble::new()).map_into(&items, &mut results).unwrap();
        assert_eq!(results, right);
        faulty.wait_until_idle();
    }
}

#[test]
fn a_run_that_ends_early_writes_nothing_afterwards() {
    let pool = without_history([cores("cpu", 2)]);
    let slow = Closure::new("slow", |&item: &u32| {
        std::thread::sleep(Duration::from_micros(500));
        item + 1
    });
    let items = numbers(2_000);
    let mut results = vec![0; items.len()];
    let job = pool.job(&slow).on_progress(|_| panic!("enough"));
    let outcome = catch_unwind(AssertUnwindSafe(|| job.map_into(&items, &mut results)));
    assert!(outcome.is_err());
    let at_the_end = results.clone();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(results, at_the_end);
    assert!(items.iter().zip(&results).all(|(item, &result)| result == 0 || result == item + 1));

    let cancel = Cancel::new();
    let job = pool.job(&slow).cancel(&cancel).on_progress(|_| cancel.cancel());
    let error = job.map_into(&items, &mut results).unwrap_err();
    assert!(matches!(error, RunError::Cancelled { .. }), "{error}");
    let at_the_end = results.clone();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(results, at_the_end);
}

#[test]
fn a_run_that_ends_early_writes_no_output_afterwards() {
    let kernel = Kernel::new("slow").rust(|launch| {
        std::thread::sleep(Duration::from_millis(5));
        launch.write::<u32>(0)?.fill(1);
        Ok(())
    });
    let pool = without_history([card("card:0"), card("card:1"), cores("cpu", 2)]);
    let task = KernelTask::arrays(&kernel).output::<u32>();
    let mut output = vec![0u32; 20_000];
    for round in 0..10 {
        output.fill(0);
        let job = pool.job(&task).settings(evener_schedule::Settings { max_items: Some(50), ..SHORT });
        let job = job.all_devices().on_progress(|_| panic!("enough"));
        let run = || job.map_arrays(Arrays::new().output(&mut output));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "round {round}");
        let at_the_end = output.clone();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(output, at_the_end);
        assert!(output.contains(&0) && output.iter().all(|&element| element <= 1));
    }
}
