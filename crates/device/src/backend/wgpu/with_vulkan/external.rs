//! External devices and buffers.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use wgpu::{BufferUsages, DeviceDescriptor};

use super::{super::instance::driver_lock, *};

const LEN: usize = 1000;

/// A program with a device of its own, which adds 1 to every element of a buffer.
struct Caller {
    adapter: wgpu::Adapter,
    device: wgpu::Device,
    queue: wgpu::Queue,
    pipeline: wgpu::ComputePipeline,
    errors: Arc<AtomicUsize>,
}

impl Caller {
    fn new() -> Self {
        let adapter = adapters(Api::Vulkan).expect("no Vulkan device").swap_remove(0);
        let descriptor = DeviceDescriptor {
            required_features: crate::wgpu_features(adapter.features()),
            required_limits: adapter.limits(),
            ..Default::default()
        };
        let (device, queue) = {
            let _lock = driver_lock();
            pollster::block_on(adapter.request_device(&descriptor)).unwrap()
        };
        let errors = Arc::new(AtomicUsize::new(0));
        let counted = errors.clone();
        device.on_uncaptured_error(Arc::new(move |_| {
            counted.fetch_add(1, SeqCst);
        }));
        let source = "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
            @compute @workgroup_size(64)
            fn add(@builtin(global_invocation_id) id: vec3<u32>) {
                if (id.x < arrayLength(&data)) { data[id.x] += 1u; }
            }";
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("add"),
            compilation_options: Default::default(),
            cache: None,
        });
        Caller { adapter, device, queue, pipeline, errors }
    }

    fn evener(&self) -> Device {
        Device::from_wgpu(&self.adapter, &self.device, &self.queue).unwrap()
    }

    fn buffer(&self, bytes: u64, usage: BufferUsages) -> wgpu::Buffer {
        let descriptor =
            wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
        self.device.create_buffer(&descriptor)
    }

    fn storage(&self) -> wgpu::Buffer {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        self.buffer(4 * LEN as u64, usage)
    }

    /// Submits a compute pass over some bytes of a buffer.
    fn add(&self, buffer: &wgpu::Buffer, range: std::ops::Range<u64>) {
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry {
                binding: 0,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset: range.start,
                    size: wgpu::BufferSize::new(range.end - range.start),
                }),
            }],
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(LEN.div_ceil(64) as u32, 1, 1);
        drop(pass);
        self.queue.submit([encoder.finish()]);
    }

    fn read(&self, buffer: &wgpu::Buffer) -> Vec<u32> {
        let readable = self.buffer(buffer.size(), BufferUsages::MAP_READ | BufferUsages::COPY_DST);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &readable, 0, buffer.size());
        self.queue.submit([encoder.finish()]);
        readable.map_async(wgpu::MapMode::Read, .., |outcome| outcome.unwrap());
        self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        bytemuck::cast_slice(&readable.get_mapped_range(..).unwrap()).to_vec()
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn the_callers_passes_and_evener_launches_use_the_same_buffers_in_order() {
    let caller = Caller::new();
    let evener = caller.evener();
    let theirs = caller.storage();
    caller.queue.write_buffer(&theirs, 0, bytemuck::cast_slice(&(0..LEN as u32).collect::<Vec<_>>()));
    let input = evener.buffer_over_wgpu::<u32>(&theirs).unwrap();
    let output = evener.buffer::<u32>(LEN).unwrap();
    let bound = evener.compile(&affine()).unwrap().bind(&[input.arg(), output.arg()]).unwrap();
    let mut stream = evener.stream().unwrap();
    // The caller's pass, Evener's kernel, the caller's pass on Evener's buffer, and Evener's copy to the caller's buffer,
    // without a wait between them.
    caller.add(&theirs, 0..4 * LEN as u64);
    stream.launch(&bound, 16, &[3u32, 4]).unwrap();
    stream.flush().unwrap();
    let (ours, range) = output.wgpu_buffer().unwrap();
    assert_eq!(range, 0..4 * LEN as u64);
    caller.add(&ours, range);
    stream.copy(&output, &input).unwrap();
    let expected: Vec<u32> = (0..LEN as u32).map(|i| 3 * (i + 1) + 5).collect();
    assert_eq!(stream.download(&output).unwrap().wait().unwrap(), expected);
    assert_eq!(caller.read(&theirs), expected);
    // The range of a slice.
    let (ours, range) = output.slice(64..128).unwrap().wgpu_buffer().unwrap();
    assert_eq!(range, 256..512);
    caller.add(&ours, range);
    let found = stream.download(&output).unwrap().wait().unwrap();
    let added = |i: usize| u32::from((64..128).contains(&i));
    assert!((0..LEN).all(|i| found[i] == expected[i] + added(i)));
    // The caller's device still works.
    drop((evener, input, output, bound, stream));
    caller.add(&theirs, 0..4 * LEN as u64);
    assert_eq!(caller.read(&theirs)[0], expected[0] + 1);
    assert_eq!(caller.errors.load(SeqCst), 0);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_callers_buffer_that_does_not_fit_is_refused() {
    let caller = Caller::new();
    let evener = caller.evener();
    let refused = |buffer: &wgpu::Buffer, expected: &str| {
        let error = evener.buffer_over_wgpu::<u64>(buffer).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    let all = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    refused(&caller.buffer(64, BufferUsages::STORAGE | BufferUsages::COPY_DST), "COPY_SRC");
    refused(&caller.buffer(62, all), "multiple of 4");
    refused(&caller.buffer(60, all), "60 bytes");
    let error = Device::cpu().buffer_over_wgpu::<u8>(&caller.storage()).unwrap_err();
    assert!(error.to_string().contains("does not come from `Device::from_wgpu`"), "{error}");
    // Buffers of another device, and buffers that the caller has destroyed, are refused by the calls that use them, not
    // by the caller's callback.
    let (other, destroyed) = (Caller::new().storage(), caller.storage());
    let mut stream = evener.stream().unwrap();
    for buffer in [&other, &destroyed] {
        let adopted = evener.buffer_over_wgpu::<u32>(buffer).unwrap();
        destroyed.destroy();
        let outcome = stream.zero(&adopted).and_then(|()| stream.flush());
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        stream.wait().unwrap();
    }
    assert_eq!(caller.errors.load(SeqCst), 0);
    assert_eq!(evener.buffer_from(&[7u32; 3]).unwrap().len(), 3, "the device is none the worse for it");
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_buffer_that_is_adopted_twice_is_the_same_memory() {
    let caller = Caller::new();
    let evener = caller.evener();
    let program = evener.compile(&affine()).unwrap();
    let mut stream = evener.stream().unwrap();
    let own = evener.buffer::<u32>(LEN).unwrap();
    let (theirs, (ours, _)) = (caller.storage(), own.wgpu_buffer().unwrap());
    for buffer in [&theirs, &ours] {
        let adopt = || evener.buffer_over_wgpu::<u32>(buffer).unwrap();
        let (one, two) = (adopt(), adopt());
        assert_eq!((one.len(), two.len()), (LEN, LEN));
        // Slices that overlap through two handles are refused.
        let error = program.bind(&[one.arg(), two.arg()]).unwrap_err();
        assert!(error.to_string().contains("overlap"), "{error}");
        let error = stream.copy(&one.slice(..8).unwrap(), &two.slice(4..12).unwrap()).unwrap_err();
        assert!(error.to_string().contains("overlap"), "{error}");
        // Disjoint slices are copied. wgpu itself copies only between two buffers.
        let numbers: Vec<u32> = (0..LEN as u32).collect();
        stream.upload(&numbers, &one).unwrap();
        stream.copy(&one.slice(..8).unwrap(), &two.slice(8..16).unwrap()).unwrap();
        let found = stream.download(&two).unwrap().wait().unwrap();
        assert_eq!((&found[8..16], &found[16..]), (&numbers[..8], &numbers[16..]));
    }
    let found = stream.download(&own).unwrap().wait().unwrap();
    assert_eq!(found[8..16], [0, 1, 2, 3, 4, 5, 6, 7], "the first handle has the same memory");
    // After the last handle is dropped, the buffer can be adopted again.
    drop((own, program, stream));
    assert_eq!(evener.buffer_over_wgpu::<u8>(&theirs).unwrap().len(), 4 * LEN);
    // Evener's own then has the size that was allocated.
    assert_eq!(evener.buffer_over_wgpu::<u8>(&ours).unwrap().len(), 4096);
    assert_eq!(caller.errors.load(SeqCst), 0);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn internal_devices_neither_adopt_nor_export_wgpu_buffers() {
    let (own, caller) = (open_vulkan(&vulkan()).0, Caller::new());
    let error = own.buffer_over_wgpu::<u32>(&caller.storage()).unwrap_err();
    assert!(error.to_string().contains("does not come from `Device::from_wgpu`"), "{error}");
    assert!(own.buffer::<u32>(LEN).unwrap().wgpu_buffer().is_none());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_buffer_that_the_caller_was_given_is_not_reused() {
    let caller = Caller::new();
    let evener = caller.evener();
    let buffer = evener.buffer::<u32>(LEN).unwrap();
    let (ours, _) = buffer.wgpu_buffer().unwrap();
    drop(buffer);
    assert_eq!((evener.memory().in_use_bytes, evener.memory().cached_bytes), (0, 0));
    ours.destroy();
    let again = evener.buffer_from(&[1u32; LEN]).unwrap();
    assert_eq!(evener.stream().unwrap().download(&again).unwrap().wait().unwrap(), [1; LEN]);
}

/// The message of the panic of a call.
fn panic_of(call: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
    panic.downcast_ref::<&str>().unwrap().to_string()
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_panic_of_the_callers_callback_is_the_callers_and_the_device_stays_usable() {
    let caller = Caller::new();
    let evener = caller.evener();
    let buffer = evener.buffer_from(&[1u32; LEN]).unwrap();
    let mut stream = evener.stream().unwrap();
    // During a poll.
    stream.zero(&buffer).unwrap();
    stream.flush().unwrap();
    caller.queue.on_submitted_work_done(|| panic!("in a poll"));
    assert_eq!(panic_of(|| drop(stream.wait())), "in a poll");
    stream.wait().unwrap();
    // During a submission.
    stream.fill(&buffer, 7).unwrap();
    caller.queue.on_submitted_work_done(|| panic!("in a submission"));
    assert_eq!(panic_of(|| drop(stream.flush())), "in a submission");
    assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), [7; LEN]);
    // A stream that is dropped by such a panic runs another panicking callback.
    let mut other = evener.stream().unwrap();
    other.zero(&buffer).unwrap();
    caller.queue.on_submitted_work_done(|| panic!("first"));
    let panic = panic_of(|| {
        let mut dropped = evener.stream().unwrap();
        dropped.zero(&buffer).unwrap();
        caller.queue.on_submitted_work_done(|| panic!("second"));
        let _ = other.flush();
    });
    assert!(panic == "first" || panic == "second", "{panic}");
    evener.stream().unwrap().wait().unwrap();
    assert_eq!(caller.errors.load(SeqCst), 0);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn the_loss_of_an_external_device_is_reported_to_both_and_frees_no_memory_that_is_read() {
    let caller = Caller::new();
    let evener = caller.evener();
    let reason = Arc::new(Mutex::new(None));
    let shared_reason = reason.clone();
    caller.device.set_device_lost_callback(move |reason, _| *shared_reason.lock().unwrap() = Some(reason));
    let mut host = evener.host_buffer::<u8>(8 << 20, Direction::Upload).unwrap();
    host.as_mut_slice().fill(7);
    let buffer = evener.buffer_from(&[1u32; 64]).unwrap();
    let mut stream = evener.stream().unwrap();
    stream.zero(&buffer).unwrap();
    // Another thread of the caller polls all the time.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let _ = catch_panic(|| caller.device.poll(wgpu::PollType::Poll));
            }
        });
        caller.device.destroy();
        let error = stream.wait().unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        let began = Instant::now();
        while reason.lock().unwrap().is_none() && began.elapsed() < Duration::from_secs(10) {
            thread::yield_now();
        }
        assert!(host.as_slice().iter().all(|byte| *byte == 7));
        is_over.store(true, SeqCst);
    });
    assert_eq!(*reason.lock().unwrap(), Some(wgpu::DeviceLostReason::Destroyed));
}
