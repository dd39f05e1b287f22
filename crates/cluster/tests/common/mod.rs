//! What the tests of workers share: kernels that only a worker of the same program has, and looking at processes.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::{
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use evener_device::{Device, Kernel, Result, kernel_fn, remote::RemoteHost};
use libtest_mimic::Failed;

pub(crate) type Outcome = Result<(), Failed>;

/// A behaviour and its name.
pub(crate) type Behaviour = (&'static str, fn() -> Outcome);

kernel_fn! {
    /// Adds a number to each element, after a time.
    pub(crate) fn add(number: u32, milliseconds: u64) -> Kernel {
        Kernel::new("add").writes::<u32>().rust(move |launch| {
            thread::sleep(Duration::from_millis(milliseconds));
            launch.write::<u32>(0)?.iter_mut().for_each(|element| *element += number);
            Ok(())
        })
    }

    /// Writes the process's number.
    pub(crate) fn process() -> Kernel {
        Kernel::new("process").writes::<u32>().rust(|launch| {
            launch.write::<u32>(0)?[0] = std::process::id();
            Ok(())
        })
    }
}

/// Fails the trial with a message, unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {{
        let holds: bool = $condition;
        if !holds {
            return Err(format!($($text)+).into());
        }
    }};
}

/// Runs a trial, and fails it if it takes longer.
pub(crate) fn within_seconds(seconds: u64, trial: fn() -> Outcome) -> Outcome {
    let (sender, done) = mpsc::channel();
    thread::spawn(move || sender.send(trial()));
    done.recv_timeout(Duration::from_secs(seconds)).map_err(|_| "hangs, or has panicked")?
}

pub(crate) fn processor(host: &RemoteHost) -> Device {
    let is_processor = |device: &&Device| device.id().as_str().ends_with("/cpu");
    host.devices().iter().find(is_processor).unwrap().clone()
}

pub(crate) fn compute(device: &Device, milliseconds: u64) -> Result<Vec<u32>> {
    let data = device.buffer_from(&[1u32, 2, 3])?;
    let bound = device.compile(&add(10, milliseconds))?.bind(&[data.arg()])?;
    let mut stream = device.stream()?;
    stream.launch(&bound, 1, &())?;
    stream.download(&data)?.wait()
}

pub(crate) fn process_of(device: &Device) -> Result<u32> {
    let data = device.buffer::<u32>(1)?;
    let mut stream = device.stream()?;
    stream.launch(&device.compile(&process())?.bind(&[data.arg()])?, 1, &())?;
    Ok(stream.download(&data)?.wait()?[0])
}

pub(crate) fn signal(name: &str, process: u32) {
    let status = Command::new("kill").args([name, &process.to_string()]).status().unwrap();
    assert!(status.success(), "kill {name} {process}");
}

/// Whether a process runs: not a zombie that nobody has waited for.
pub(crate) fn is_running(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

pub(crate) fn ends_soon(process: u32) -> Outcome {
    let start = Instant::now();
    while is_running(process) {
        ensure!(start.elapsed() < Duration::from_secs(5), "process {process} is still there after 5 s");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
