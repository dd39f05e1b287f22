//! The conformance suite: what every device must do, run for every device of this machine.
//!
//! Each trial is one behaviour on one device, named `device::behaviour`. Partitions are devices too: a CUDA device is
//! also tested as partitions of 40 units and the rest, the processor as one core and the rest. All of them are tested once
//! more as the devices of a worker, `worker/cpu` and so on: this program again, in a process of its own. The trials of a kind of
//! device that the machine lacks are listed as ignored, so that they count as skipped and never as passed.
//! `EVENER_TEST_DEVICES` limits the devices, for example to `cuda:0,cpu`. With `EVENER_TEST_LAUNCHER`, a command such as
//! `ssh host1`, the worker is on the machine that the command reaches, and only its devices are tested.
//! Trials print why they are skipped, and cause panics.
#![allow(clippy::print_stderr, clippy::panic)]

mod concurrency;
mod copies;
mod errors;
mod launches;
mod memory;
#[path = "../own_worker/mod.rs"]
mod own_worker;
mod sources;

use evener_device::{Api, Device, Error, Inventory, Kernel, cuda::compile_kernel};
use libtest_mimic::{Arguments, Failed, Trial};

/// The result of a trial: an error fails it, with the error's text.
type Outcome = Result<(), Failed>;

/// A behaviour and its name.
type Behaviour = (&'static str, fn(&Device) -> Outcome);

/// The behaviours of every device.
const EVERYWHERE: &[&[Behaviour]] =
    &[copies::ALL, launches::ALL, errors::EVERYWHERE, concurrency::ALL, memory::ALL];

fn main() {
    own_worker::serve_if_asked();
    let mut arguments = Arguments::from_args();
    // One at a time: trials measure time and count memory.
    arguments.test_threads.get_or_insert(1);
    let devices = devices();
    let mut trials: Vec<Trial> = devices.iter().flat_map(trials_on).collect();
    for (api, name) in [(Api::Cuda, "CUDA"), (Api::Vulkan, "Vulkan")] {
        if !devices.iter().any(|device| device.describe().api == api) {
            eprintln!("skipped: no {name} device");
            trials.extend(behaviours(api).map(|(behaviour, _)| {
                let absent = move || Err(format!("no {name} device").into());
                Trial::test(format!("{api}::{behaviour}"), absent).with_ignored_flag(true)
            }));
        }
    }
    trials.push(cuda_sources());
    libtest_mimic::run(&arguments, trials).exit();
}

/// Every CUDA body compiles for old and new architectures, without a card.
fn cuda_sources() -> Trial {
    let compile = |kernel: &Kernel| -> Result<(), Error> {
        ["sm_75", "sm_90"].iter().try_for_each(|card| compile_kernel(card, kernel).map(drop))
    };
    let missing = matches!(compile(&sources::extent()), Err(Error::Unsupported { .. }));
    if missing {
        eprintln!("skipped: no NVRTC");
    }
    let trial = move || -> Outcome { Ok(sources::all().iter().try_for_each(compile)?) };
    Trial::test("nvrtc::every_cuda_body_compiles", trial).with_ignored_flag(missing)
}

/// The behaviours of a device of this API. Rust bodies can fail at run time, and the other bodies when they are compiled.
fn behaviours(api: Api) -> impl Iterator<Item = Behaviour> {
    let own = if api == Api::Cpu { errors::ON_PROCESSORS } else { errors::ON_GPUS };
    let known = if matches!(api, Api::Cpu | Api::Cuda) { memory::WHERE_MEMORY_IS_KNOWN } else { &[] };
    EVERYWHERE.iter().copied().chain([own, known]).flatten().copied()
}

fn trials_on(device: &Device) -> Vec<Trial> {
    behaviours(device.describe().api)
        .map(|(name, behaviour)| {
            // A new handle each, so that no trial sees the memory of another.
            let device = device.reopened();
            Trial::test(format!("{}::{name}", device.id()), move || behaviour(&device))
        })
        .collect()
}

fn devices() -> Vec<Device> {
    let inventory = Inventory::discover_all_apis();
    let worker = match own_worker::connect() {
        Ok(worker) => worker,
        // Not a skip: a machine that cannot start a process has failed the suite.
        Err(why) => panic!("no worker: {why}"),
    };
    let mut devices: Vec<Device> = Vec::new();
    let local = if own_worker::has_launcher() { &[] } else { inventory.devices() };
    for device in local.iter().chain(worker.devices()) {
        devices.push(device.clone());
        let units = device.describe().compute_units.unwrap_or(0);
        let sizes = match device.describe().api {
            Api::Cuda if units > 48 => [40, units - 40],
            Api::Cpu if units > 1 => [1, units - 1],
            _ => continue,
        };
        match device.split(&sizes) {
            Ok(partitions) => devices.extend(partitions),
            Err(why) => eprintln!("skipped: no partitions: {why}"),
        }
    }
    if let Ok(wanted) = std::env::var("EVENER_TEST_DEVICES") {
        devices.retain(|device| wanted.split(',').any(|id| id == device.id().as_str()));
    }
    devices
}

/// Fails the trial with a message, unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(libtest_mimic::Failed::from(format!($($text)+)));
        }
    };
}

/// Fails the trial unless the result is an error of the given kind; returns the error's text.
#[macro_export]
macro_rules! ensure_error {
    ($kind:pat, $result:expr) => {
        match $result {
            Err(error @ $kind) => error.to_string(),
            Err(other) => return Err(format!("expected {}, got: {other}", stringify!($kind)).into()),
            Ok(_) => return Err(format!("expected {}, got a result", stringify!($kind)).into()),
        }
    };
}
