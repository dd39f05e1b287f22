//! Kernels with several inputs, outputs and tables, and results written in place: they equal those of a plain loop,
//! whichever device did which items.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod into;
mod refused;
mod shape;
mod tables;

use std::time::Duration;

use evener_device::{
    Device, Inventory,
    testing::{Fault, InjectedError},
};

use self::{
    common::{Faulty, Rng, SHORT, assert_counted_once, card, cores, within, without_history},
    shape::{Params, Shape},
};

const SIZES: [usize; 9] = [0, 1, 2, 3, 63, 65, 257, 1_001, 4_099];

fn vulkan() -> Device {
    let inventory = Inventory::discover_all_apis();
    let mut devices = inventory.devices().iter();
    devices.find(|device| device.id().as_str().starts_with("vulkan:")).expect("no Vulkan device").clone()
}

/// Random shapes, each over several sizes and with other parameters each time.
fn assert_every_shape(devices: &[Device], shapes: usize, seed: u64) {
    let (pool, mut rng) = (without_history(devices), Rng(seed));
    for round in 0..shapes {
        let shape = Shape::random(&mut rng);
        let tables = shape.data(0, &mut rng);
        let job = pool.job(&shape.task(&tables)).settings(SHORT).all_devices();
        for _ in 0..4 {
            let items = SIZES[rng.below(SIZES.len())];
            let mut data = shape.data(items, &mut rng);
            data.tables.clone_from(&tables.tables);
            let params = Params { factor: rng.next() as u32, shift: rng.next() as u32, ..Params::default() };
            let mut places = shape.places(items);
            let report = job.parameters(params).map_arrays(data.arrays(&mut places)).unwrap();
            assert_eq!(
                places,
                shape.plain(&data, items, params),
                "round {round}, {items} items of {shape:?}"
            );
            assert_counted_once(&report, items);
        }
    }
}

/// Runs on devices of which the first is lost in a random operation.
fn assert_losses_change_no_output(devices: &[Device], runs: usize, seed: u64) {
    let (mut rng, mut failed) = (Rng(seed), 0);
    for run in 0..runs {
        let faulty = Faulty::new(devices);
        // Otherwise a fast processor would do all items before the first device is ready.
        faulty.faults[1].slow_down(100.0);
        let shape = Shape::random(&mut rng);
        let data = shape.data(3_001, &mut rng);
        let job = faulty.job(&shape.task(&data));
        // The first operations prepare the device; the loss comes in a chunk, or between two.
        faulty.faults[0].at(3 + rng.next() % 24, Fault::Fail(InjectedError::Lost));
        let params = Params { factor: rng.next() as u32, shift: run as u32, ..Params::default() };
        let mut places = shape.places(3_001);
        let report = job.parameters(params).map_arrays(data.arrays(&mut places)).unwrap();
        assert_eq!(places, shape.plain(&data, 3_001, params), "run {run}: {shape:?}");
        assert_counted_once(&report, 3_001);
        failed += report.devices.iter().map(|device| device.quarantines + device.retries).sum::<u64>();
        faulty.wait_until_idle();
    }
    assert!(failed > runs as u64 / 4, "only {failed} of {runs} runs met the loss");
}

#[test]
fn arrays_of_every_shape_are_those_of_a_plain_loop() {
    within(Duration::from_secs(120), "shapes", || {
        assert_every_shape(&[cores("cpu", 2)], 20, 1);
        assert_every_shape(&[card("card:0"), cores("cpu", 2)], 40, 2);
    });
}

#[test]
fn a_device_that_is_lost_in_the_middle_changes_no_output() {
    within(Duration::from_secs(120), "losses", || {
        assert_losses_change_no_output(&[card("card:0"), cores("cpu", 1)], 40, 3);
    });
}

#[test]
#[ignore = "needs a Vulkan device"]
fn arrays_of_every_shape_are_those_of_a_plain_loop_with_vulkan() {
    within(Duration::from_secs(300), "shapes", || {
        assert_every_shape(&[vulkan()], 15, 4);
        assert_every_shape(&[vulkan(), cores("cpu", 1)], 15, 5);
    });
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_device_that_is_lost_in_the_middle_changes_no_output_with_vulkan() {
    within(Duration::from_secs(300), "losses", || {
        assert_losses_change_no_output(&[vulkan(), cores("cpu", 1)], 15, 6);
    });
}

#[test]
#[ignore = "needs NVRTC"]
fn the_generated_cuda_compiles_with_nvrtc() {
    let mut rng = Rng(7);
    for _ in 0..5 {
        let shape = Shape::random(&mut rng);
        for card in ["sm_75", "sm_90"] {
            let compiled = evener_device::cuda::compile_kernel(card, &shape.kernel());
            assert!(!compiled.unwrap_or_else(|error| panic!("{shape:?}: {error}")).is_empty());
        }
    }
}
