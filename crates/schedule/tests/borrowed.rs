//! Borrowed functions and items: the results equal those of a plain loop, and nothing is used after the run.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};

use common::{cores, without_history};
use evener_device::{Device, Error};
use evener_schedule::{Pool, RunError};

#[test]
fn the_function_is_called_once_per_item_for_any_number_of_items() {
    let pool = without_history([cores("a", 1), cores("b", 1)]);
    for count in [0, 1, 2, 7, 8, 9, 1_000, 12_345, 300_000] {
        let items: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        let calls: Vec<AtomicU32> = (0..count).map(|_| AtomicU32::new(0)).collect();
        let suffix = String::from("!");
        let run = pool
            .map_slice(&items, |item| {
                calls[item.parse::<usize>().unwrap()].fetch_add(1, SeqCst);
                item.clone() + &suffix
            })
            .unwrap();
        let plain: Vec<String> = items.iter().map(|item| item.clone() + &suffix).collect();
        assert_eq!(run.results(), plain);
        assert!(calls.iter().all(|calls| calls.load(SeqCst) == 1));
    }
}

#[test]
fn a_range_keeps_its_start() {
    let squares = without_history([Device::cpu()]).map_range(10..20_010, |number| number * number).unwrap();
    assert!(squares.results().iter().enumerate().all(|(index, &square)| square == (index + 10).pow(2)));
    #[allow(clippy::reversed_empty_ranges)]
    let nothing = without_history([Device::cpu()]).map_range(5..3, |number| number).unwrap();
    assert!(nothing.results().is_empty());
}

#[test]
fn the_function_has_more_stack_than_other_threads_have() {
    let sum = |&byte: &u8| {
        // Twice what Rust gives a thread.
        let mut bytes = [byte; 4 << 20];
        std::hint::black_box(&mut bytes).iter().map(|&byte| usize::from(byte)).sum::<usize>()
    };
    let run = without_history([cores("a", 1), cores("b", 1)]).map_slice(&[1u8; 64], sum).unwrap();
    assert_eq!(run.results(), [4 << 20; 64]);
}

#[test]
fn a_panic_ends_the_run_names_the_item_and_leaves_no_value_alive() {
    let pool = Pool::new([Device::cpu()]).unwrap();
    for round in 0..50 {
        let alive = AtomicUsize::new(0);
        /// Counts live values.
        struct Counted<'a>(&'a AtomicUsize);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        let bad = 997 * round;
        let error = pool
            .map_range(0..50_000, |number| {
                alive.fetch_add(1, SeqCst);
                let _counted = Counted(&alive);
                assert!(number != bad, "no such number");
                number
            })
            .unwrap_err();
        // Borrowed values are free as soon as the call returns: no thread is in the function.
        assert_eq!(alive.load(SeqCst), 0);
        let RunError::Task { items, error } = error else { panic!("{error}") };
        assert!(items.contains(&(bad as u64)), "{items:?}");
        assert!(
            matches!(error, Error::Task { item: Some(item), .. } if item == bad as u64)
                && error.to_string().contains("no such number"),
            "{error}"
        );
    }
}
