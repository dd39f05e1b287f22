//! Measures leaves in pinned memory and leaves on the device.

use std::time::Duration;

use evener_device::{Api, Buffer, Device, Direction, SharedBuffer};
use evener_merkle::{Builder, Hash, Leaves, Rule, Scheme, measure};
use evener_schedule::Pool;

use crate::{fill, milliseconds, turns};

/// The number of leaves of the small case.
const FEW: usize = 100_000;

/// Fills pinned host memory with leaves.
pub(crate) fn pinned(device: &Device, leaves: usize) -> SharedBuffer<u8> {
    let mut host = device.host_buffer::<u8>(32 * leaves, Direction::Upload).unwrap();
    fill(host.as_mut_slice());
    host.share()
}

/// Returns a closure that uploads a pinned buffer in one copy.
fn copy(device: &Device, from: &SharedBuffer<u8>, to: &Buffer<u8>) -> impl FnMut() {
    let mut stream = device.stream().unwrap();
    let (from, to) = (from.clone(), to.clone());
    move || {
        stream.upload_shared(&from, 0..from.as_slice().len(), &to).unwrap();
        stream.wait().unwrap();
    }
}

pub(crate) fn bench(device: &Device, most: usize) {
    println!("\n{} ({}), leaves of 32 bytes, SHA-256, the root:", device.describe().name, device.id());
    let pool = Pool::builder().devices([device]).keep_history_at(None).build().unwrap();
    let processor = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let builder = Builder::new(&pool);
    let reference = Builder::new(&processor);
    for leaves in [FEW.min(most), most] {
        let host = pinned(device, leaves);
        let room = device.buffer::<u8>(32 * leaves).unwrap();
        let input = Leaves::shared_buffer(&host, 32).unwrap();
        let plain = Leaves::fixed_size(host.as_slice(), 32).unwrap();
        let root = reference.root(&plain).unwrap().into_value();
        let rounds = if leaves <= FEW { 400 } else { 24 };
        let [pinned, pageable, copied] = turns(
            rounds,
            [
                &mut || assert_eq!(*builder.root(&input).unwrap().value(), root),
                &mut || assert_eq!(*builder.root(&plain).unwrap().value(), root),
                &mut copy(device, &host, &room),
            ],
        );
        println!(
            "  {leaves} leaves from pinned memory {:.3} ms; the copy alone {:.3} ms ({:.1} GB/s): {:.3} times that; from \
             plain memory {:.3} ms",
            milliseconds(pinned),
            milliseconds(copied),
            32.0 * leaves as f64 / copied.as_secs_f64() / 1e9,
            milliseconds(pinned) / milliseconds(copied),
            milliseconds(pageable),
        );
        if let Some(report) = builder.root(&input).unwrap().report() {
            let chunks: u64 = report.devices.iter().map(|device| device.chunks).sum();
            println!(
                "    {} blocks in {chunks} chunks, efficiency {:.3}",
                report.items,
                report.efficiency.unwrap_or(0.0)
            );
        }
    }
    for hash in Hash::ALL {
        for rule in [Rule::Rfc6962, Rule::RsMerkle] {
            on_device(device, Scheme::new(hash, rule).unwrap(), most);
        }
    }
}

/// Measures leaves that are on the device against a kernel that computes as many hashes without a tree.
#[allow(unsafe_code)]
fn on_device(device: &Device, scheme: Scheme, leaves: usize) {
    let pool = Pool::builder().devices([device]).keep_history_at(None).build().unwrap();
    let builder = Builder::new(&pool).scheme(scheme);
    let host = pinned(device, leaves);
    let input = device.buffer_from(host.as_slice()).unwrap();
    let output = device.buffer::<u32>(8 * leaves).unwrap();
    let on_device = Leaves::on_device(device, &input, 32).unwrap();
    let mut build = || drop(builder.root(&on_device).unwrap());
    if device.describe().api != Api::Cuda {
        let [tree] = turns(16, [&mut build]);
        println!(
            "  {leaves} leaves on the device, {scheme}: {:.3} ms (the bare kernel is CUDA's)",
            milliseconds(tree)
        );
        return;
    }
    // SAFETY: `launch` starts one thread per leaf, and input and output have one leaf and one digest per thread: the number
    // of leaves is a power of two, so that no workgroup reaches past it.
    let (bare, alone) = unsafe { (measure::hash_only(scheme, 32), measure::leaf_hash_only(scheme, 32)) };
    let mut bare = launch(device, bare, &input, &output, leaves);
    let mut alone = launch(device, alone, &input, &output, leaves);
    let [tree, bare, alone] = turns(40, [&mut build, &mut bare, &mut alone]);
    let rate = |time: Duration| leaves as f64 / time.as_secs_f64() / 1e9;
    println!(
        "  {leaves} leaves on the device, {scheme}: {:.3} ms, {:.2} G leaves/s; as many hashes without a tree {:.3} ms: {:.1} % \
         of that rate; leaf hashes alone {:.3} ms",
        milliseconds(tree),
        rate(tree),
        milliseconds(bare),
        100.0 * milliseconds(bare) / milliseconds(tree),
        milliseconds(alone),
    );
}

fn launch(
    device: &Device,
    kernel: evener_device::Kernel,
    input: &Buffer<u8>,
    output: &Buffer<u32>,
    leaves: usize,
) -> impl FnMut() {
    let program = device.compile(&kernel).unwrap();
    let bound = program.bind(&[input.cast::<u32>().unwrap().arg(), output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    let groups = kernel.groups_for(leaves as u64) as u32;
    move || {
        stream.launch(&bound, groups, &()).unwrap();
        stream.wait().unwrap();
    }
}
