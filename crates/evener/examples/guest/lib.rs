//! A shared library with a C interface, for programs that use the same GPU already, such as Python with PyTorch:
//! `cargo build --release -p evener --example guest`, then `python3 crates/evener/examples/guest/with_torch.py`.
//!
//! `guest_dlpack` uses tensors of NumPy's or PyTorch's in place: `python3 crates/evener/examples/guest/with_dlpack.py`.
//!
//! One pool of the GPU and the processor does many rounds of integer arithmetic on every item. `guest_lose` loses the GPU
//! on purpose, as a driver that reports a lost device would; the next map goes on with the processor, and the GPU comes
//! back when it is opened afresh.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char},
    panic::catch_unwind,
    sync::OnceLock,
};

use evener::{
    AnyBuffer, DType,
    dlpack::{DLManagedTensor, ManagedTensor},
    prelude::*,
    testing::Faults,
};

#[path = "../churn/mod.rs"]
mod churn;

/// A GPU that can be lost on purpose, and the pool of it and the processor.
struct Guest {
    pool: Pool,
    task: KernelTask<u32, u32>,
    faults: Faults,
}

static GUEST: OnceLock<Guest> = OnceLock::new();

fn open(gpu: &str) -> Result<Guest, Box<dyn std::error::Error>> {
    let inventory = Inventory::discover_all_apis();
    let gpu = inventory.devices().iter().find(|device| device.id().as_str() == gpu);
    let (gpu, faults) = Faults::wrap(gpu.ok_or("there is no such device")?);
    let pool = Pool::builder().devices([gpu, Device::cpu()]).keep_history_at(None).build()?;
    Ok(Guest { pool, task: KernelTask::new(&churn::kernel()), faults })
}

/// Opens a pool of this GPU, such as "cuda:0", and the processor. Returns 0, or -1 with the reason on standard error.
///
/// # Safety
/// `gpu` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_open(gpu: *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    let gpu = unsafe { CStr::from_ptr(gpu) }.to_string_lossy().into_owned();
    tell(|| {
        let guest = open(&gpu)?;
        GUEST.set(guest).map_err(|_| "it is open already".into())
    })
}

/// Does the work for every item. Returns how many the GPU did, or -1 with the reason on standard error.
///
/// # Safety
/// `items` is readable and `results` is writable for `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_map(items: *const u32, results: *mut u32, count: usize) -> i64 {
    // SAFETY: the caller's promise.
    let (items, results) =
        unsafe { (std::slice::from_raw_parts(items, count), std::slice::from_raw_parts_mut(results, count)) };
    let mut by_gpu = 0;
    let told = tell(|| {
        let guest = GUEST.get().ok_or("it is not open")?;
        let run = guest.pool.map(&guest.task, items)?;
        results.copy_from_slice(run.results());
        by_gpu =
            run.report().devices.iter().filter(|device| device.id != "cpu").map(|device| device.items).sum();
        Ok(())
    });
    if told == 0 { by_gpu as i64 } else { -1 }
}

/// Does the work for every element of a DLPack tensor of 32-bit integers, in place on its own device ("cpu", "cuda:0").
/// Takes the tensor, and returns another one with the results; or null, with the reason on standard error.
///
/// # Safety
/// `device` is a C string. `tensor` is a managed tensor that no other code uses, whose producer has finished its work on it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_dlpack(
    device: *const c_char,
    tensor: *mut DLManagedTensor,
) -> *mut DLManagedTensor {
    // SAFETY: the caller's promise.
    let (device, tensor) =
        unsafe { (CStr::from_ptr(device).to_string_lossy().into_owned(), ManagedTensor::from_raw(tensor)) };
    let mut result = std::ptr::null_mut();
    tell(|| {
        let inventory = Inventory::discover_all_apis();
        let device = inventory.devices().iter().find(|found| found.id().as_str() == device);
        let device = device.ok_or("there is no such device")?;
        // SAFETY: the caller's promise; `import_dlpack` is called once for the tensor.
        let (input, shape) = unsafe { device.import_dlpack(tensor)? };
        let output = device.any_buffer(input.dtype(), input.len())?;
        // The kernel is declared for unsigned integers; the bits of signed ones are the same.
        let unsigned = |buffer: &AnyBuffer| AnyBuffer::from_bytes(buffer.as_bytes().clone(), DType::U32);
        let bound =
            device.compile(&churn::kernel())?.bind(&[unsigned(&input)?.arg(), unsigned(&output)?.arg()])?;
        let mut stream = device.stream()?;
        let count = input.len() as u64;
        stream.launch_folded(&bound, count.div_ceil(64), &KernelParams::from(0..count))?;
        stream.wait()?;
        result = output.to_dlpack(&shape)?.into_raw();
        Ok(())
    });
    result
}

/// Loses the GPU: everything of Evener's on it fails until it is opened afresh.
#[unsafe(no_mangle)]
pub extern "C" fn guest_lose() {
    if let Some(guest) = GUEST.get() {
        guest.faults.kill();
    }
}

/// Returns the number of chunks that have failed on the GPU so far.
#[unsafe(no_mangle)]
pub extern "C" fn guest_failures() -> u64 {
    GUEST.get().map_or(0, |guest| guest.pool.statistics()[0].failed)
}

/// Turns an error or a panic into a value that C understands, with the reason on standard error.
#[allow(clippy::print_stderr)]
fn tell(run: impl FnOnce() -> Result<(), Box<dyn std::error::Error>>) -> i32 {
    match catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            eprintln!("guest: {error}");
            -1
        }
        Err(_) => -1,
    }
}
