//! Kernels with several inputs, outputs and tables, and results that are written in place: whoever did what, they are
//! those of a plain loop.
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
    testing::{Failure, Fault},
};

use self::{
    common::{Dice, Faulty, SHORT, assert_counted_once, card, cores, forgetful, within},
    shape::{Params, Shape},
};

const SIZES: [usize; 9] = [0, 1, 2, 3, 63, 65, 257, 1_001, 4_099];

fn vulkan() -> Device {
    let inventory = Inventory::discover_all_apis();
    let mut devices = inventory.devices().iter();
    devices.find(|device| device.id().as_str().starts_with("vulkan:")).expect("no Vulkan device").clone()
}

/// Random shapes, each over several sizes and with other parameters each time.
fn every_shape_is_right(devices: &[Device], shapes: usize, seed: u64) {
    let (pool, mut dice) = (forgetful(devices), Dice(seed));
    for round in 0..shapes {
        let shape = Shape::random(&mut dice);
        let tables = shape.data(0, &mut dice);
        let job = pool.job(&shape.task(&tables)).settings(SHORT).all_devices();
        for _ in 0..4 {
            let items = SIZES[dice.under(SIZES.len())];
            let mut data = shape.data(items, &mut dice);
            data.tables.clone_from(&tables.tables);
            let params =
                Params { factor: dice.roll() as u32, shift: dice.roll() as u32, ..Params::default() };
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

/// Devices of which the first is lost in one operation of the run or another.
fn no_loss_does_harm(devices: &[Device], runs: usize, seed: u64) {
    let (mut dice, mut failed) = (Dice(seed), 0);
    for run in 0..runs {
        let faulty = Faulty::new(devices);
        // A fast processor would do all items before the first device is ready.
        faulty.faults[1].slow_down(100.0);
        let shape = Shape::random(&mut dice);
        let data = shape.data(3_001, &mut dice);
        let job = faulty.job(&shape.task(&data));
        // What comes first makes the device ready; the loss comes in the middle of a chunk, or between two.
        faulty.faults[0].at(3 + dice.roll() % 24, Fault::Fail(Failure::Lost));
        let params = Params { factor: dice.roll() as u32, shift: run as u32, ..Params::default() };
        let mut places = shape.places(3_001);
        let report = job.parameters(params).map_arrays(data.arrays(&mut places)).unwrap();
        assert_eq!(places, shape.plain(&data, 3_001, params), "run {run}: {shape:?}");
        assert_counted_once(&report, 3_001);
        failed += report.devices.iter().map(|device| device.quarantines + device.retries).sum::<u64>();
        faulty.settle();
    }
    assert!(failed > runs as u64 / 4, "only {failed} of {runs} runs met the loss");
}

#[test]
fn arrays_of_every_shape_are_those_of_a_plain_loop() {
    within(Duration::from_secs(120), "shapes", || {
        every_shape_is_right(&[cores("cpu", 2)], 20, 1);
        every_shape_is_right(&[card("card:0"), cores("cpu", 2)], 40, 2);
    });
}

#[test]
fn a_device_that_is_lost_in_the_middle_changes_no_output() {
    within(Duration::from_secs(120), "losses", || {
        no_loss_does_harm(&[card("card:0"), cores("cpu", 1)], 40, 3);
    });
}

#[test]
#[ignore = "needs a Vulkan device"]
fn arrays_of_every_shape_are_those_of_a_plain_loop_with_vulkan() {
    within(Duration::from_secs(300), "shapes", || {
        every_shape_is_right(&[vulkan()], 15, 4);
        every_shape_is_right(&[vulkan(), cores("cpu", 1)], 15, 5);
    });
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_device_that_is_lost_in_the_middle_changes_no_output_with_vulkan() {
    within(Duration::from_secs(300), "losses", || {
        no_loss_does_harm(&[vulkan(), cores("cpu", 1)], 15, 6);
    });
}

#[test]
#[ignore = "needs NVRTC"]
fn the_generated_cuda_compiles_with_nvrtc() {
    let mut dice = Dice(7);
    for _ in 0..5 {
        let shape = Shape::random(&mut dice);
        for card in ["sm_75", "sm_90"] {
            let compiled = evener_device::cuda::compile_kernel(card, &shape.kernel());
            assert!(!compiled.unwrap_or_else(|error| panic!("{shape:?}: {error}")).is_empty());
        }
    }
}
