//! What only a card can show. Without one, each test says so and passes.
//!
//! All of a process shares a card's context, so nothing here may break it: losing a card is tested in
//! `tests/cuda_loss.rs`, which is a process of its own.

use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use super::find;
use crate::{Device, Direction, Error, Kernel};

/// The first card, or nothing and a line that says so.
fn card() -> Option<Device> {
    let source = find().sources.into_iter().next();
    if source.is_none() || !super::compiles_kernels() {
        println!("skipped: no CUDA device");
        return None;
    }
    source.map(Device::from_source)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Scale {
    factor: u32,
    count: u32,
    offset: u64,
}

const SOURCE: &str = r#"
struct Scale { unsigned factor, count; unsigned long long offset; };

extern "C" __global__ void scale(const unsigned *in, unsigned *out, Scale params) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < params.count) out[i] = params.factor * in[i] + (unsigned)params.offset;
}

extern "C" __global__ void increment(unsigned *out) {
    out[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}

// Keeps a multiprocessor busy for so many clocks.
extern "C" __global__ void idle(unsigned *out, unsigned long long clocks) {
    long long start = clock64();
    while (clock64() - start < (long long)clocks) {}
    if (threadIdx.x == 0) atomicAdd(out, 1);
}

// Counts the multiprocessors that it runs on.
extern "C" __global__ void place(unsigned *seen) {
    unsigned number;
    asm("mov.u32 %0, %%smid;" : "=r"(number));
    long long start = clock64();
    while (clock64() - start < 200000) {}
    seen[number] = 1;
}

extern "C" __global__ void shared(unsigned *out) {
    extern __shared__ unsigned cells[];
    for (unsigned i = threadIdx.x; i < 40000; i += blockDim.x) cells[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) out[0] = cells[39999];
}
"#;

fn scale() -> Kernel {
    Kernel::new("scale").reads::<u32>().writes::<u32>().params::<Scale>().workgroup(128).cuda(SOURCE)
}

fn increment() -> Kernel {
    Kernel::new("increment").writes::<u32>().workgroup(64).cuda(SOURCE)
}

fn idle() -> Kernel {
    Kernel::new("idle").writes::<u32>().params::<u64>().workgroup(32).cuda(SOURCE)
}

#[test]
fn every_source_here_compiles_without_a_card() {
    match crate::cuda::compile_for("sm_90", "scale", SOURCE) {
        Ok(_) => {}
        Err(Error::Unsupported { detail, .. }) => println!("skipped: no NVRTC ({detail})"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_machine_without_cards_says_why_in_one_line() {
    let found = find();
    if found.sources.is_empty() {
        assert_eq!(found.absent.len(), 1);
        assert!(!found.absent[0].reason.contains('\n'), "{}", found.absent[0]);
    }
}

#[test]
fn a_card_is_described_without_opening_it() {
    let Some(device) = card() else { return };
    let description = device.describe();
    println!("{description:?}");
    assert_eq!(description.id.as_str(), "cuda:0");
    assert!(description.memory_bytes.unwrap() > 1 << 30);
    assert_eq!(description.pci.as_ref().unwrap().len(), "0000:01:00.0".len());
    assert!(description.driver.starts_with("CUDA 1"));
}

#[test]
fn a_kernel_computes_what_it_says() {
    let Some(device) = card() else { return };
    let program = device.compile(&scale()).unwrap();
    assert_eq!(program.body(), "CUDA C");
    let input: Vec<u32> = (0..100_003).collect();
    let from = device.buffer_from(&input).unwrap();
    let to = device.buffer::<u32>(input.len()).unwrap();
    let mut stream = device.stream().unwrap();
    let bound = program.bind(&[from.arg(), to.arg()]).unwrap();
    let params = Scale { factor: 3, count: input.len() as u32, offset: 7 };
    stream.launch(&bound, scale().groups_for(input.len() as u64) as u32, &params).unwrap();
    let output = stream.download(&to).unwrap().wait().unwrap();
    assert!(output.iter().zip(&input).all(|(out, value)| *out == 3 * value + 7));
}

#[test]
fn a_new_buffer_is_zero_even_where_the_memory_was_used_before() {
    let Some(device) = card() else { return };
    drop(device.buffer_from(&[u32::MAX; 4096]).unwrap());
    let buffer = device.buffer::<u32>(4096).unwrap();
    let mut stream = device.stream().unwrap();
    assert!(stream.download(&buffer).unwrap().wait().unwrap().iter().all(|&value| value == 0));
    assert_eq!(device.memory().peak_bytes, 16 << 10, "the block was used again");
}

#[test]
fn large_uploads_go_in_pieces_and_arrive_whole() {
    let Some(device) = card() else { return };
    let elements: Vec<u64> = (0..4_000_001).map(|i| i * i).collect();
    let buffer = device.buffer_from(&elements).unwrap();
    let mut stream = device.stream().unwrap();
    assert!(stream.download(&buffer).unwrap().wait().unwrap() == elements);
}

#[test]
fn thousands_of_launches_run_in_order_and_are_let_go() {
    let Some(device) = card() else { return };
    let program = device.compile(&increment()).unwrap();
    let buffers = [device.buffer::<u32>(64).unwrap(), device.buffer::<u32>(64).unwrap()];
    let bounds = buffers.each_ref().map(|buffer| program.bind(&[buffer.arg()]).unwrap());
    let mut stream = device.stream().unwrap();
    for launch in 0..5000 {
        stream.launch(&bounds[launch % 2], 1, &()).unwrap();
    }
    for buffer in &buffers {
        assert_eq!(stream.download(buffer).unwrap().wait().unwrap(), [2500; 64]);
    }
}

#[test]
fn whatever_is_dropped_lives_until_its_work_has_ended() {
    let Some(device) = card() else { return };
    let slow = device.compile(&idle()).unwrap();
    let counter = device.buffer::<u32>(1).unwrap();
    for _ in 0..20 {
        let mut stream = device.stream().unwrap();
        let own = device.buffer_from(&[7u32; 1 << 16]).unwrap();
        stream.launch(&slow.bind(&[counter.arg()]).unwrap(), 1, &1_000_000u64).unwrap();
        stream.upload(&[9u32; 1 << 16], &own).unwrap();
        // Stream, kernel, buffer and staging memory all go here, with everything still under way.
        drop(stream.download(&own).unwrap());
    }
    let mut stream = device.stream().unwrap();
    let start = std::time::Instant::now();
    while stream.download(&counter).unwrap().wait().unwrap() != [20] {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn a_stream_waits_for_a_mark_of_another() {
    let Some(device) = card() else { return };
    let (slow, fast) = (device.compile(&idle()).unwrap(), device.compile(&increment()).unwrap());
    let buffer = device.buffer::<u32>(64).unwrap();
    let (mut first, mut second) = (device.stream().unwrap(), device.stream().unwrap());
    first.launch(&slow.bind(&[buffer.slice(..1).unwrap().arg()]).unwrap(), 1, &50_000_000u64).unwrap();
    let mark = first.mark().unwrap();
    assert!(!mark.is_done().unwrap(), "about 30 ms");
    assert!(matches!(first.wait_timeout(Duration::from_micros(100)), Err(Error::TimedOut { .. })));
    second.wait_for(&mark).unwrap();
    second.launch(&fast.bind(&[buffer.arg()]).unwrap(), 1, &()).unwrap();
    let output = second.download(&buffer).unwrap().wait().unwrap();
    assert!(mark.is_done().unwrap());
    assert_eq!((output[0], output[1]), (2, 1));
}

#[test]
fn host_memory_comes_back_when_its_copy_has_ended() {
    let Some(device) = card() else { return };
    let mut host = device.host_buffer::<u32>(1000, Direction::Upload).unwrap();
    host.as_mut_slice().copy_from_slice(&[5; 1000]);
    let buffer = device.buffer::<u32>(1000).unwrap();
    let mut stream = device.stream().unwrap();
    let host = stream.upload_host(host, &buffer).unwrap().wait().unwrap();
    assert_eq!(host.as_slice(), [5; 1000]);
    stream.zero(&buffer).unwrap();
    let host = stream.download_host(&buffer, host).unwrap().wait().unwrap();
    assert_eq!(host.as_slice(), [0; 1000]);
    let other = device.buffer_from(&[8u32; 1000]).unwrap();
    stream.copy(&other, &buffer).unwrap();
    assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), [8; 1000]);
}

#[test]
fn the_clock_tells_how_long_a_kernel_took() {
    let Some(device) = card() else { return };
    let slow = device.compile(&idle()).unwrap();
    let buffer = device.buffer::<u32>(1).unwrap();
    let mut stream = device.stream().unwrap();
    let before = stream.timestamp().unwrap();
    stream.launch(&slow.bind(&[buffer.arg()]).unwrap(), 1, &20_000_000u64).unwrap();
    let after = stream.timestamp().unwrap();
    assert!(matches!(after.since(&before), Err(Error::Unsupported { .. })), "not done yet");
    stream.wait().unwrap();
    let took = after.since(&before).unwrap();
    assert!((Duration::from_millis(3)..Duration::from_secs(1)).contains(&took), "{took:?}");
}

#[test]
fn kernels_that_do_not_fit_are_refused_with_the_reason() {
    let Some(device) = card() else { return };
    let refused = |kernel: Kernel, needle: &str| {
        let error = device.compile(&kernel).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
    };
    refused(Kernel::new("none"), "no CUDA C body");
    refused(Kernel::new("absent").cuda(SOURCE), "extern \"C\" __global__");
    refused(Kernel::new("wrong").cuda("nonsense"), "wrong.cu(1)");
    refused(Kernel::new("increment").cuda(SOURCE), "more than the 0 parameters");
    refused(Kernel::new("increment").writes::<u32>().writes::<u32>().cuda(SOURCE), "declares 2");
    refused(Kernel::new("idle").writes::<u32>().params::<u32>().cuda(SOURCE), "has 8 bytes");
    refused(scale().workgroup(2048), "2048");
    let heavy = "extern \"C\" __global__ void __launch_bounds__(64) heavy(unsigned *out) { *out = 1; }";
    refused(Kernel::new("heavy").writes::<u32>().workgroup(128).cuda(heavy), "at most 64");
}

#[test]
fn a_workgroup_can_have_more_shared_memory_than_the_usual() {
    let Some(device) = card() else { return };
    if device.capabilities().unwrap().max_shared_bytes < 160_000 {
        return println!("skipped: a card with less shared memory");
    }
    let kernel = Kernel::new("shared").writes::<u32>().workgroup(256).shared_bytes(160_000).cuda(SOURCE);
    let program = device.compile(&kernel).unwrap();
    let buffer = device.buffer::<u32>(1).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&program.bind(&[buffer.arg()]).unwrap(), 1, &()).unwrap();
    assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), [39999]);
}

#[test]
fn a_full_memory_is_an_error_with_the_free_bytes_and_nothing_breaks() {
    let Some(device) = card() else { return };
    let most = device.capabilities().unwrap().max_buffer_bytes as usize;
    let error = device.buffer_any::<u8>(most).unwrap_err();
    let Error::OutOfMemory { available: Some(free), .. } = error else { panic!("{error}") };
    assert!(free > 0 && (free as usize) < most);
    assert!(device.buffer::<u8>(1000).is_ok());
}

#[test]
fn buffers_of_another_opening_work_and_those_of_another_device_are_refused() {
    let Some(device) = card() else { return };
    let (other, processor) = (device.fresh(), Device::cpu());
    let mut stream = device.stream().unwrap();
    let near = other.buffer_from(&[3u32; 16]).unwrap();
    assert_eq!(stream.download(&near).unwrap().wait().unwrap(), [3; 16]);
    let far = processor.buffer::<u32>(16).unwrap();
    assert!(matches!(stream.zero(&far), Err(Error::Unsupported { .. })));
}

#[test]
fn a_partition_runs_on_its_own_multiprocessors_only() {
    let Some(device) = card() else { return };
    let units = device.describe().compute_units.unwrap();
    let parts = match device.split(&[40, units.saturating_sub(40)]) {
        Ok(parts) => parts,
        Err(error) => return println!("skipped: {error}"),
    };
    assert_eq!(parts[0].id().as_str(), "cuda:0/a");
    let kernel = Kernel::new("place").writes::<u32>().workgroup(1024).cuda(SOURCE);
    let mut owner = vec![None; 1024];
    for part in &parts {
        let program = part.compile(&kernel).unwrap();
        let seen = part.buffer::<u32>(1024).unwrap();
        let mut stream = part.stream().unwrap();
        let mark = stream.mark().unwrap();
        stream.wait_for(&mark).unwrap();
        let (before, bound) = (stream.timestamp().unwrap(), program.bind(&[seen.arg()]).unwrap());
        stream.launch(&bound, 4096, &()).unwrap();
        let after = stream.timestamp().unwrap();
        let seen = stream.download(&seen).unwrap().wait().unwrap();
        println!("{}: {:?}", part.id(), after.since(&before).unwrap());
        for (unit, _) in seen.iter().enumerate().filter(|(_, seen)| **seen == 1) {
            assert_eq!(owner[unit].replace(part.id()), None, "multiprocessor {unit} is in two partitions");
        }
        let used = seen.iter().filter(|&&seen| seen == 1).count() as u32;
        assert_eq!(Some(used), part.describe().compute_units, "{}", part.id());
    }
}

#[test]
fn three_partitions_and_impossible_ones() {
    let Some(device) = card() else { return };
    match device.split(&[16, 9, 32]) {
        Ok(parts) => {
            for part in &parts {
                println!("{:?}", part.describe());
                assert!(part.buffer_from(&[1u32; 100]).is_ok());
            }
            assert_eq!(parts[1].describe().rounded_from, Some(9));
        }
        Err(error) => println!("skipped: {error}"),
    }
    let error = device.split(&[1_000_000]).unwrap_err();
    assert!(matches!(&error, Error::Split { .. }), "{error}");
    println!("{error}");
}
