//! Tests that need a card. They are ignored by default, and fail if there is none.
//!
//! All tests of a process share a card's context, so none may break it: `tests/cuda_loss.rs`, a process of its own, tests the
//! loss of a card.

use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use super::find;
use crate::{Device, Error, Kernel};

fn card() -> Device {
    assert!(super::compiles_kernels(), "no NVRTC");
    Device::from_source(find().sources.into_iter().next().expect("no CUDA device"))
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

// Keeps a multiprocessor busy for this many clocks.
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
"#;

fn with_body(kernel: Kernel, source: &'static str) -> Kernel {
    // SAFETY: the tests below launch it with buffers that have an element for each thread, or whose length is a parameter.
    unsafe { kernel.cuda(source) }
}

fn scale() -> Kernel {
    with_body(Kernel::new("scale").reads::<u32>().writes::<u32>().params::<Scale>().workgroup(128), SOURCE)
}

fn increment() -> Kernel {
    with_body(Kernel::new("increment").writes::<u32>().workgroup(64), SOURCE)
}

fn idle() -> Kernel {
    with_body(Kernel::new("idle").writes::<u32>().params::<u64>().workgroup(32), SOURCE)
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_card_is_described_without_opening_it() {
    let device = card();
    let description = device.describe();
    println!("{description:?}");
    assert_eq!(description.id.as_str(), "cuda:0");
    assert!(description.memory_bytes.unwrap() > 1 << 30);
    assert_eq!(description.pci.as_ref().unwrap().len(), "0000:01:00.0".len());
    assert!(description.driver.contains("CUDA 1"), "{}", description.driver);
}

#[test]
#[ignore = "needs a CUDA device"]
fn thousands_of_launches_run_in_order_and_their_resources_are_dropped() {
    let device = card();
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
#[ignore = "needs a CUDA device"]
fn dropped_resources_live_until_their_operations_have_finished() {
    let device = card();
    let slow = device.compile(&idle()).unwrap();
    let counter = device.buffer::<u32>(1).unwrap();
    for _ in 0..20 {
        let mut stream = device.stream().unwrap();
        let own = device.buffer_from(&[7u32; 1 << 16]).unwrap();
        stream.launch(&slow.bind(&[counter.arg()]).unwrap(), 1, &1_000_000u64).unwrap();
        stream.upload(&[9u32; 1 << 16], &own).unwrap();
        // Stream, kernel, buffer and staging memory are dropped here, with everything still in flight.
        drop(stream.download(&own).unwrap());
    }
    let mut stream = device.stream().unwrap();
    let start = std::time::Instant::now();
    while stream.download(&counter).unwrap().wait().unwrap() != [20] {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn kernels_that_do_not_fit_are_refused_with_the_reason() {
    let device = card();
    let refused = |kernel: Kernel, needle: &str| {
        let error = device.compile(&kernel).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
    };
    refused(Kernel::new("none"), "no CUDA C body");
    refused(with_body(Kernel::new("absent"), SOURCE), "extern \"C\" __global__");
    refused(with_body(Kernel::new("wrong"), "nonsense"), "wrong.cu(1)");
    refused(with_body(Kernel::new("increment"), SOURCE), "more than the 0 parameters");
    refused(with_body(Kernel::new("increment").writes::<u32>().writes::<u32>(), SOURCE), "declares 2");
    refused(with_body(Kernel::new("idle").writes::<u32>().params::<u32>(), SOURCE), "has 8 bytes");
    refused(scale().workgroup(2048), "2048");
    let heavy = "extern \"C\" __global__ void __launch_bounds__(64) heavy(unsigned *out) { *out = 1; }";
    refused(with_body(Kernel::new("heavy").writes::<u32>().workgroup(128), heavy), "at most 64");
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_full_memory_is_an_error_with_the_free_bytes_and_nothing_breaks() {
    let device = card();
    let max = device.capabilities().unwrap().max_buffer_bytes as usize;
    let error = device.buffer_uninit::<u8>(max).unwrap_err();
    let Error::OutOfMemory { available: Some(free), .. } = error else { panic!("{error}") };
    assert!(free > 0 && (free as usize) < max);
    assert!(device.buffer::<u8>(1000).is_ok());
}

#[test]
#[ignore = "needs a CUDA device"]
fn buffers_of_another_opening_work_and_those_of_another_device_are_refused() {
    let device = card();
    let (other, processor) = (device.reopened(), Device::cpu());
    let mut stream = device.stream().unwrap();
    let near = other.buffer_from(&[3u32; 16]).unwrap();
    assert_eq!(stream.download(&near).unwrap().wait().unwrap(), [3; 16]);
    let far = processor.buffer::<u32>(16).unwrap();
    assert!(matches!(stream.zero(&far), Err(Error::Unsupported { .. })));
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_partition_runs_on_its_own_multiprocessors_only() {
    let device = card();
    let units = device.describe().compute_units.unwrap();
    let parts = device.split(&[40, units - 40]).unwrap();
    assert_eq!(parts[0].id().as_str(), "cuda:0/a");
    let kernel = with_body(Kernel::new("place").writes::<u32>().workgroup(1024), SOURCE);
    let mut owner = vec![None; 1024];
    for part in &parts {
        let program = part.compile(&kernel).unwrap();
        let seen = part.buffer::<u32>(1024).unwrap();
        let mut stream = part.stream().unwrap();
        let event = stream.record_event().unwrap();
        stream.wait_event(&event).unwrap();
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
#[ignore = "needs a CUDA device"]
fn three_partitions_and_impossible_ones() {
    let device = card();
    let parts = device.split(&[16, 9, 32]).unwrap();
    for part in &parts {
        assert!(part.buffer_from(&[1u32; 100]).is_ok(), "{:?}", part.describe());
    }
    assert_eq!(parts[1].describe().rounded_from, Some(9));
    let error = device.split(&[1_000_000]).unwrap_err();
    assert!(matches!(&error, Error::Split { .. }), "{error}");
    println!("{error}");
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_current_context_of_a_thread_is_restored() {
    let driver = super::Driver::get().unwrap();
    let current = || {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        assert_eq!(unsafe { (driver.ctx_get_current)(&mut raw) }, 0);
        raw
    };
    let work = || {
        let device = card().reopened();
        let buffer = device.buffer_from(&[3u32; 16]).unwrap();
        assert_eq!(device.stream().unwrap().download(&buffer).unwrap().wait().unwrap(), [3; 16]);
    };
    // A thread of its own, so that nothing is current yet.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(current().is_null());
            work();
            assert!(current().is_null(), "nothing was current before");
        });
    });
}

#[test]
#[ignore = "needs a CUDA device"]
fn memory_and_events_of_another_library_are_used_in_place() {
    let device = card();
    let driver = super::Driver::get().unwrap();
    let context = device.buffer::<u8>(1).unwrap().cuda_context().unwrap();
    let (mut address, mut event) = (0, std::ptr::null_mut());
    let guard = context.enter("testing").unwrap();
    // SAFETY: the guard's context is current; the pointers are to live variables.
    unsafe {
        guard.check((driver.mem_alloc)(&mut address, 4000)).unwrap();
        guard.check((driver.event_create)(&mut event, 0)).unwrap();
    }
    drop(guard);
    let mut stream = device.stream().unwrap();
    let owner = std::sync::Arc::new(());
    // SAFETY: these bytes were allocated in this device's context for this test, and are freed at its end.
    let buffer = unsafe { device.buffer_at_cuda_address::<u32>(address, 1000, owner.clone()) }.unwrap();
    let output = device.buffer::<u32>(1000).unwrap();
    let program = device.compile(&scale()).unwrap();
    stream.fill(&buffer, 7).unwrap();
    // SAFETY: the event is alive, and was created in this device's context.
    unsafe { stream.record_cuda_event(event.cast()) }.unwrap();
    let mut other = device.stream().unwrap();
    // SAFETY: as for `record_cuda_event`.
    unsafe { other.wait_cuda_event(event.cast()) }.unwrap();
    let bound = program.bind(&[buffer.arg(), output.arg()]).unwrap();
    other.launch(&bound, 8, &Scale { factor: 3, count: 1000, offset: 0 }).unwrap();
    assert_eq!(other.download(&output).unwrap().wait().unwrap(), [21; 1000]);
    drop((bound, buffer));
    stream.wait().unwrap();
    other.wait().unwrap();
    assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    let guard = context.enter("testing").unwrap();
    // SAFETY: both were created above, and are not used again.
    unsafe {
        guard.check((driver.event_destroy)(event)).unwrap();
        guard.check((driver.mem_free)(address)).unwrap();
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn recorded_launches_all_run() {
    const LAUNCHES: u32 = 1000;
    let device = card();
    let data = device.buffer::<u32>(64).unwrap();
    let bound = device.compile(&increment()).unwrap().bind(&[data.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    let graph = stream
        .record_graph(|recorder| (0..LAUNCHES).try_for_each(|_| recorder.launch(&bound, 1, &())))
        .unwrap();
    let mut timed = |run: &mut dyn FnMut(&mut crate::Stream)| {
        let times = (0..5).map(|_| {
            let start = std::time::Instant::now();
            run(&mut stream);
            stream.wait().unwrap();
            start.elapsed()
        });
        times.min().unwrap()
    };
    let alone = timed(&mut |stream| (0..LAUNCHES).for_each(|_| stream.launch(&bound, 1, &()).unwrap()));
    let together = timed(&mut |stream| stream.replay(&graph).unwrap());
    println!("{LAUNCHES} launches: {alone:?} one by one, {together:?} recorded");
    assert_eq!(stream.download(&data).unwrap().wait().unwrap(), [10 * LAUNCHES; 64]);
}
