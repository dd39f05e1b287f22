//! Runs a generated kernel on the devices of a pool.
#![allow(unsafe_code)] // Generated CUDA C: the block says why it is sound.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Mutex,
    time::Instant,
};

use bytemuck::Pod;
use evener_device::{BoxError, Features, Kernel, Launch, Module};
use evener_schedule::{Arrays, KernelTask, Pool};

use crate::{
    choice::Way,
    params::Params,
    plan::{Loop, lock},
    scope::{self, LoopReport},
};

/// A task of a loop, for slices whose rows have these widths.
pub(crate) type Tasks = Mutex<Vec<(Vec<usize>, KernelTask<(), (), Params>)>>;

/// A source, and whether it needs 64-bit integers and 64-bit floating point.
pub(crate) type Source = Option<(&'static str, bool, bool)>;

/// The decision to run a loop on devices.
#[derive(Debug)]
pub struct Devices {
    pub(crate) of: &'static Loop,
    pub(crate) pool: Pool,
    pub(crate) count: usize,
}

impl Devices {
    /// The task for rows of these widths, made once.
    pub fn task(
        &self,
        widths: &[usize],
        make: impl FnOnce() -> KernelTask<(), (), Params>,
    ) -> KernelTask<(), (), Params> {
        let mut tasks = lock(&self.of.tasks);
        if let Some((_, task)) = tasks.iter().find(|(known, _)| known == widths) {
            return task.clone();
        }
        let task = make();
        // Widths change rarely: a program that has many is not slowed down by a long list.
        if tasks.len() >= 8 {
            tasks.remove(0);
        }
        tasks.push((widths.to_vec(), task.clone()));
        task
    }

    /// Runs the kernel over arrays. Returns `false` if no device could: the loop is then to be run plainly.
    pub fn run(&self, task: &KernelTask<(), (), Params>, params: Params, arrays: Arrays<'_>) -> bool {
        let start = Instant::now();
        let outcome = self.pool.map_arrays(&task.parameters(params.rewound()), arrays);
        let took = start.elapsed();
        let (note, report) = match outcome {
            Ok(report) => (None, Some(report)),
            Err(error) => {
                (Some(format!("the devices failed, so the calling thread ran the loop: {error}")), None)
            }
        };
        let is_done = report.is_some();
        if is_done {
            lock(&self.of.choice).learn(Way::Devices, self.count, took);
        } else {
            // Another failure would cost the same again.
            self.of.refuse_devices();
        }
        scope::record(|| LoopReport {
            name: self.of.name,
            place: if is_done { "devices" } else { "calling thread" },
            iterations: self.count,
            took,
            note,
            report,
        });
        is_done
    }
}

/// A kernel with a body for every device.
pub fn kernel(
    entry: &'static str,
    wgsl: Source,
    cuda: Source,
    rust: fn(&mut Launch<'_>) -> Result<(), BoxError>,
) -> Kernel {
    // Every operation has its own rounding.
    let mut module = Module::new().option("--fmad=false");
    if let Some((text, needs_int64, needs_float64)) = wgsl {
        let mut needs = Features::empty();
        needs.set(Features::INT64, needs_int64);
        needs.set(Features::FLOAT64, needs_float64);
        module = module.wgsl_with(needs, text);
    }
    if let Some((text, ..)) = cuda {
        // SAFETY: a generated body uses the elements of its own item, which is checked to be below the number of items, or
        // elements whose index `at` has checked against the length of the slice or row. Empty slices are not launched.
        module = unsafe { module.cuda(text) };
    }
    module.kernel(entry).workgroup(64).rust(rust)
}

/// Does every item of a chunk. An item that panics is marked in the status, to be done again at home.
pub fn each(count: usize, status: &mut [u32], mut item: impl FnMut(usize, &mut u32)) {
    let mut next = 0;
    while next < count {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while next < count {
                let mut present = 0;
                item(next, &mut present);
                if let Some(status) = status.get_mut(next) {
                    *status = present;
                }
                next += 1;
            }
        }));
        if let Err(panic) = outcome {
            match status.get_mut(next) {
                Some(status) => *status = 1,
                None => resume_unwind(panic),
            }
            next += 1;
        }
    }
}

/// So many zeros.
pub fn zeroed<T: Pod>(count: usize) -> Vec<T> {
    vec![T::zeroed(); count]
}
