use std::{
    panic::catch_unwind,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{describe::describe, failure::quietly, find, hold::Hold, instance::adapters, open::WgpuBackend};
use crate::{
    Access, Api, Description, Device, Direction, Error, Features, Kernel, Kind, Stream,
    backend::{Backend, Contents, Source},
};

/// The first Vulkan device. A test without one says so and ends: it has shown nothing.
macro_rules! vulkan_or_skip {
    () => {
        match source() {
            Some(source) => source,
            None => {
                eprintln!("skipped: no Vulkan device");
                return;
            }
        }
    };
}

fn source() -> Option<Arc<dyn Source>> {
    find().sources.into_iter().find(|source| source.describe().api == Api::Vulkan)
}

fn open(source: &Arc<dyn Source>) -> (Device, Arc<Hold>) {
    let described = source.describe();
    let adapter = adapters(Api::Vulkan).unwrap().into_iter().find(|it| it.get_info().name == described.name);
    device_of(WgpuBackend::open(described, &adapter.unwrap()).unwrap(), described)
}

/// A device that is open already, with the hold behind it.
fn device_of(backend: WgpuBackend, description: &Description) -> (Device, Arc<Hold>) {
    #[derive(Debug)]
    struct Opened(Description, Arc<WgpuBackend>);
    impl Source for Opened {
        fn describe(&self) -> &Description {
            &self.0
        }
        fn open(&self) -> crate::Result<Arc<dyn Backend>> {
            Ok(self.1.clone())
        }
        fn split(&self, _: &[u32]) -> crate::Result<Vec<Arc<dyn Source>>> {
            Ok(Vec::new())
        }
    }
    let hold = backend.hold.clone();
    (Device::from_source(Arc::new(Opened(description.clone(), Arc::new(backend)))), hold)
}

fn lose(hold: &Hold) {
    hold.device.destroy();
    // The callback comes with the next poll.
    let _ = hold.poll("losing it");
}

/// `out[i] = in[i] * factor + addend`.
fn affine() -> Kernel {
    Kernel::new("affine").reads::<u32>().writes::<u32>().params::<[u32; 2]>().workgroup(64).wgsl(
        "struct Params { factor: u32, addend: u32 }
         var<immediate> params: Params;
         @group(0) @binding(0) var<storage, read> input: array<u32>;
         @group(0) @binding(1) var<storage, read_write> output: array<u32>;
         @compute @workgroup_size(64)
         fn affine(@builtin(global_invocation_id) id: vec3<u32>) {
             if (id.x < arrayLength(&output)) { output[id.x] = input[id.x] * params.factor + params.addend; }
         }",
    )
}

/// Takes long: a dependent chain of the given length in each thread.
fn slow() -> Kernel {
    Kernel::new("slow").writes::<u32>().params::<u32>().workgroup(64).wgsl(
        "var<immediate> turns: u32;
         @group(0) @binding(0) var<storage, read_write> output: array<u32>;
         @compute @workgroup_size(64)
         fn slow(@builtin(global_invocation_id) id: vec3<u32>) {
             var x = id.x;
             for (var i = 0u; i < turns; i++) { x = (x ^ (x >> 7u)) * 1664525u + i; }
             output[id.x % 64u] = x;
         }",
    )
}

/// Queues work that takes a good part of a second. Mesa's software ends every loop after 65535 turns, so
/// there it is made of many workgroups; elsewhere they would run side by side.
fn launch_long(device: &Device, stream: &mut Stream) {
    let (groups, turns) =
        if device.describe().kind == Kind::Software { (2_000u32, 10_000u32) } else { (1, 40_000_000) };
    let output = device.buffer::<u32>(64).unwrap();
    let bound = device.compile(&slow()).unwrap().bind(&[output.arg()]).unwrap();
    stream.launch(&bound, groups, &turns).unwrap();
}

#[test]
fn software_says_that_it_is() {
    let source = vulkan_or_skip!();
    let described = source.describe();
    assert_eq!(described.id.as_str(), "vulkan:0");
    assert!(!described.driver.is_empty());
    if described.name.contains("llvmpipe") {
        assert_eq!(described.kind, Kind::Software);
        assert_eq!(described.pci, None);
    }
    let uuid = described.uuid.as_ref().unwrap();
    assert!(uuid.len() == 32 && uuid.chars().all(|c| c.is_ascii_hexdigit() && !c.is_uppercase()), "{uuid}");
    assert!(described.memory_bytes.unwrap() > 0);
}

#[test]
fn finding_twice_gives_the_same_ids() {
    let ids = || find().sources.iter().map(|source| source.describe().clone()).collect::<Vec<_>>();
    assert_eq!(ids(), ids());
}

#[test]
fn bytes_of_any_number_survive_the_round_trip() {
    let (device, _) = open(&vulkan_or_skip!());
    for len in [0usize, 1, 2, 3, 4, 5, 63, 255, 256, 257, 4095, 100_003, (4 << 20) + 1, (9 << 20) + 3] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let buffer = device.buffer_from(&bytes).unwrap();
        let mut stream = device.stream().unwrap();
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), bytes, "{len} bytes");
        let copy = device.buffer_any::<u8>(len).unwrap();
        stream.copy(&buffer, &copy).unwrap();
        stream.zero(&buffer).unwrap();
        assert_eq!(stream.download(&copy).unwrap().wait().unwrap(), bytes, "{len} bytes copied");
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), vec![0; len], "{len} bytes zeroed");
    }
}

#[test]
fn host_memory_comes_back_and_can_be_used_again() {
    let (device, _) = open(&vulkan_or_skip!());
    let buffer = device.buffer::<u32>(1000).unwrap();
    let mut stream = device.stream().unwrap();
    let mut up = device.host_buffer::<u32>(1000, Direction::Upload).unwrap();
    let mut down = device.host_buffer::<u32>(1000, Direction::Download).unwrap();
    for round in 0..20 {
        up.as_mut_slice().fill(round);
        up = stream.upload_host(up, &buffer).unwrap().wait().unwrap();
        down = stream.download_host(&buffer, down).unwrap().wait().unwrap();
        assert_eq!(down.as_slice(), [round; 1000]);
    }
}

#[test]
fn host_memory_of_the_wrong_direction_is_refused() {
    let (device, _) = open(&vulkan_or_skip!());
    let buffer = device.buffer::<u32>(4).unwrap();
    let mut stream = device.stream().unwrap();
    let down = device.host_buffer::<u32>(4, Direction::Download).unwrap();
    let refused = stream.upload_host(down, &buffer).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
}

#[test]
fn kernels_that_share_a_buffer_run_one_after_the_other() {
    let (device, _) = open(&vulkan_or_skip!());
    let program = device.compile(&affine()).unwrap();
    let buffers = [device.buffer::<u32>(1000).unwrap(), device.buffer::<u32>(1000).unwrap()];
    let there = program.bind(&[buffers[0].arg(), buffers[1].arg()]).unwrap();
    let back = program.bind(&[buffers[1].arg(), buffers[0].arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    let mut expected = 0u32;
    for turn in 0..101u32 {
        stream.launch(&there, 16, &[3u32, turn]).unwrap();
        stream.launch(&back, 16, &[1u32, 1]).unwrap();
        expected = expected.wrapping_mul(3).wrapping_add(turn).wrapping_add(1);
    }
    assert_eq!(stream.download(&buffers[0]).unwrap().wait().unwrap(), [expected; 1000]);
}

#[test]
fn parameters_of_the_largest_size_arrive() {
    let (device, _) = open(&vulkan_or_skip!());
    let most = device.capabilities().unwrap().max_params_bytes as usize;
    assert!(most >= 128, "{most}");
    let kernel = Kernel::new("echo").writes::<u32>().params::<[u32; 32]>().workgroup(32).wgsl(
        "var<immediate> params: array<vec4<u32>, 8>;
         @group(0) @binding(0) var<storage, read_write> output: array<u32>;
         @compute @workgroup_size(32)
         fn echo(@builtin(local_invocation_index) i: u32) { output[i] = params[i / 4][i % 4]; }",
    );
    let output = device.buffer::<u32>(32).unwrap();
    let bound = device.compile(&kernel).unwrap().bind(&[output.arg()]).unwrap();
    let params: [u32; 32] = std::array::from_fn(|i| i as u32 * 0x0101_0101);
    let mut stream = device.stream().unwrap();
    stream.launch(&bound, 1, &params).unwrap();
    assert_eq!(stream.download(&output).unwrap().wait().unwrap(), params);
}

#[test]
fn a_part_of_a_buffer_is_bound_where_it_begins() {
    let (device, _) = open(&vulkan_or_skip!());
    let elements = device.capabilities().unwrap().binding_alignment as usize / 4;
    let input = device.buffer_from(&(0..1000u32).collect::<Vec<_>>()).unwrap();
    let output = device.buffer::<u32>(10).unwrap();
    let part = input.slice(elements..elements + 10).unwrap();
    let bound = device.compile(&affine()).unwrap().bind(&[part.arg(), output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&bound, 1, &[1u32, 0]).unwrap();
    let expected: Vec<u32> = (elements as u32..).take(10).collect();
    assert_eq!(stream.download(&output).unwrap().wait().unwrap(), expected);
}

#[test]
fn buffers_of_no_length_can_be_bound() {
    let (device, _) = open(&vulkan_or_skip!());
    let (empty, whole) = (device.buffer::<u32>(0).unwrap(), device.buffer::<u32>(64).unwrap());
    let program = device.compile(&affine()).unwrap();
    let mut stream = device.stream().unwrap();
    for (input, output) in [(&empty, &whole), (&whole, &empty), (&whole.slice(64..).unwrap(), &empty)] {
        let bound = program.bind(&[input.arg(), output.arg()]).unwrap();
        stream.launch(&bound, 1, &[1u32, 0]).unwrap();
    }
    stream.wait().unwrap();
}

#[test]
fn the_body_is_chosen_by_what_the_device_has() {
    let (device, hold) = open(&vulkan_or_skip!());
    let wide = "@group(0) @binding(0) var<storage, read_write> output: array<u64>;
         @compute @workgroup_size(1) fn square() { output[0] = output[0] * output[0]; }";
    let narrow = "@group(0) @binding(0) var<storage, read_write> output: array<vec2<u32>>;
         @compute @workgroup_size(1) fn square() { output[0] = vec2(7u, 7u); }";
    let kernel = |wants: Features| {
        Kernel::new("square").writes::<u64>().workgroup(1).wgsl_with(wants, wide).wgsl(narrow)
    };
    let has = hold.capabilities.features;
    let program = device.compile(&kernel(Features::INT64)).unwrap();
    assert_eq!(program.body(), if has.contains(Features::INT64) { "WGSL with INT64" } else { "WGSL" });
    if has.contains(Features::INT64) {
        let buffer = device.buffer_from(&[0x1_0000_0001u64]).unwrap();
        let mut stream = device.stream().unwrap();
        stream.launch(&program.bind(&[buffer.arg()]).unwrap(), 1, &()).unwrap();
        let expected = 0x1_0000_0001u64.wrapping_mul(0x1_0000_0001);
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), [expected]);
    }
    // A feature that no device has makes the one without it be used.
    let impossible = Features::from_bits_retain(1 << 31);
    assert_eq!(device.compile(&kernel(impossible)).unwrap().body(), "WGSL");
    let only = Kernel::new("square").writes::<u64>().workgroup(1).wgsl_with(impossible, wide);
    assert!(matches!(device.compile(&only).unwrap_err(), Error::Unsupported { .. }));
    let none = Kernel::new("square").writes::<u64>().workgroup(1);
    assert!(device.compile(&none).unwrap_err().to_string().contains("no WGSL body"));
}

fn log_of(device: &Device, kernel: Kernel) -> String {
    match device.compile(&kernel).unwrap_err() {
        Error::WillNotCompile { log, .. } => log,
        other => panic!("{other}"),
    }
}

#[test]
fn what_the_compiler_says_is_passed_on_with_the_line() {
    let (device, _) = open(&vulkan_or_skip!());
    let writes = || Kernel::new("wrong").writes::<u32>().workgroup(1);
    let unknown = "@group(0) @binding(0) var<storage, read_write> output: array<u32>;\n\
         @compute @workgroup_size(1)\nfn wrong() { output[0] = missing; }";
    let log = log_of(&device, writes().wgsl(unknown));
    assert!(log.contains("missing") && log.contains(":3:"), "{log}");

    let mistyped = "@group(0) @binding(0) var<storage, read_write> output: array<u32>;\n\n\n\
         @compute @workgroup_size(1)\nfn wrong() { output[0] = 1.5f; }";
    let log = log_of(&device, writes().wgsl(mistyped));
    assert!(log.contains(":5:"), "{log}");

    let size = "@group(0) @binding(0) var<storage, read_write> output: array<u32>;\n\
         @compute @workgroup_size(8, 2) fn wrong() { output[0] = 1u; }";
    let log = log_of(&device, writes().wgsl(size));
    assert!(log.contains("[8, 2, 1]") && log.contains("[1, 1, 1]"), "{log}");

    let name = "@compute @workgroup_size(1) fn right() {}";
    let log = log_of(&device, writes().wgsl(name));
    assert!(log.contains("`wrong`") && log.contains("`right`"), "{log}");
}

#[test]
fn a_body_that_does_not_fit_its_declaration_is_an_error() {
    let (device, hold) = open(&vulkan_or_skip!());
    // Declared as read only, written all the same.
    let access = Kernel::new("wrong").reads::<u32>().workgroup(1).wgsl(
        "@group(0) @binding(0) var<storage, read_write> output: array<u32>;
         @compute @workgroup_size(1) fn wrong() { output[0] = 1u; }",
    );
    assert_eq!(access.bindings()[0].access, Access::Read);
    log_of(&device, access);
    // A buffer that was not declared.
    let missing = Kernel::new("wrong").workgroup(1).wgsl(
        "@group(0) @binding(0) var<storage, read_write> output: array<u32>;
         @compute @workgroup_size(1) fn wrong() { output[0] = 1u; }",
    );
    log_of(&device, missing);
    // More shared memory than there is.
    let elements = hold.capabilities.max_shared_bytes / 4 + 1;
    let shared = Kernel::new("wrong").writes::<u32>().workgroup(1).wgsl(format!(
        "var<workgroup> shared_words: array<u32, {elements}>;
         @group(0) @binding(0) var<storage, read_write> output: array<u32>;
         @compute @workgroup_size(1) fn wrong() {{ output[0] = shared_words[output[1]]; }}"
    ));
    log_of(&device, shared);
    // Parameters that were not declared.
    let params = Kernel::new("wrong").writes::<u32>().workgroup(1).wgsl(
        "var<immediate> value: u32;
         @group(0) @binding(0) var<storage, read_write> output: array<u32>;
         @compute @workgroup_size(1) fn wrong() { output[0] = value; }",
    );
    log_of(&device, params);
    // The device is none the worse for it.
    assert!(device.buffer_from(&[1u32]).is_ok());
}

#[test]
fn shared_memory_counts_where_it_is_used() {
    let (device, hold) = open(&vulkan_or_skip!());
    let elements = hold.capabilities.max_shared_bytes / 4;
    let source = format!(
        "var<workgroup> one: array<u32, {elements}>;
         var<workgroup> two: array<u32, {elements}>;
         @group(0) @binding(0) var<storage, read_write> output: array<u32>;
         fn through(i: u32) -> u32 {{ return two[i]; }}
         @compute @workgroup_size(1) fn first() {{ output[0] = one[output[1]]; }}
         @compute @workgroup_size(1) fn second() {{ output[0] = through(output[1]); }}
         @compute @workgroup_size(1) fn both() {{ output[0] = one[output[1]] + through(output[1]); }}"
    );
    let kernel = |name| Kernel::new(name).writes::<u32>().workgroup(1).wgsl(source.clone());
    assert!(device.compile(&kernel("first")).is_ok());
    assert!(device.compile(&kernel("second")).is_ok());
    assert!(log_of(&device, kernel("both")).contains(&hold.capabilities.max_shared_bytes.to_string()));
}

#[test]
fn a_buffer_too_short_for_the_body_is_refused_when_it_is_bound() {
    let (device, _) = open(&vulkan_or_skip!());
    let kernel = Kernel::new("wide").writes::<u32>().workgroup(1).wgsl(
        "@group(0) @binding(0) var<storage, read_write> output: array<vec4<u32>>;
         @compute @workgroup_size(1) fn wide() { output[0] = vec4(1u); }",
    );
    let program = device.compile(&kernel).unwrap();
    let refused = program.bind(&[device.buffer::<u32>(3).unwrap().arg()]).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    program.bind(&[device.buffer::<u32>(4).unwrap().arg()]).unwrap();
}

#[test]
fn a_source_is_compiled_once() {
    let (device, hold) = open(&vulkan_or_skip!());
    let source = "@group(0) @binding(0) var<storage, read_write> output: array<u32>;
         @compute @workgroup_size(1) fn one() { output[0] = 1u; }
         @compute @workgroup_size(1) fn two() { output[0] = 2u; }";
    for name in ["one", "two", "one"] {
        device.compile(&Kernel::new(name).writes::<u32>().workgroup(1).wgsl(source)).unwrap();
    }
    assert_eq!(hold.modules().len(), 1);
}

#[test]
fn a_lost_device_says_so_and_nothing_panics() {
    let source = vulkan_or_skip!();
    let (device, hold) = open(&source);
    let buffer = device.buffer_from(&[1u32; 64]).unwrap();
    let output = device.buffer::<u32>(64).unwrap();
    let bound = device.compile(&affine()).unwrap().bind(&[buffer.arg(), output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    let mark = stream.mark().unwrap();
    lose(&hold);
    let lost = |outcome: Result<(), Error>| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
    };
    lost(stream.launch(&bound, 1, &[1u32, 1]));
    lost(stream.upload(&[1u32], &buffer));
    lost(stream.zero(&buffer));
    lost(stream.copy(&buffer, &output));
    lost(stream.download(&buffer).map(drop));
    lost(stream.timestamp().map(drop));
    lost(stream.mark().map(drop));
    lost(stream.flush());
    lost(stream.wait());
    lost(stream.wait_timeout(Duration::from_millis(1)));
    lost(mark.wait());
    lost(mark.is_done().map(drop));
    lost(device.buffer::<u32>(1).map(drop));
    lost(device.host_buffer::<u32>(1, Direction::Upload).map(drop));
    lost(device.compile(&slow()).map(drop));
    lost(device.stream().map(drop));
    drop((device, hold, buffer, output, bound, stream, mark));
    // The hardware is still there for whoever opens it anew.
    assert_eq!(Device::from_source(source).buffer_from(&[1u32; 3]).unwrap().len(), 3);
}

#[test]
fn work_that_the_device_did_not_accept_is_not_taken_for_done() {
    let (device, hold) = open(&vulkan_or_skip!());
    let output = device.buffer::<u32>(64).unwrap();
    let bound = device.compile(&slow()).unwrap().bind(&[output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&bound, 1, &1u32).unwrap();
    // Lost without anybody having noticed yet.
    hold.device.destroy();
    let error = stream.wait().unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

#[test]
fn a_panic_of_the_driver_is_caught_without_a_word() {
    assert_eq!(quietly(|| 7), Ok(7));
    assert_eq!(quietly(|| -> () { panic!("gone {}", 1) }), Err("gone 1".into()));
    // Others' panics go to the hook that was there before, and on.
    assert!(catch_unwind(|| panic!("printed by the test")).is_err());
}

#[test]
fn more_than_there_is_room_for_is_an_error() {
    let (device, hold) = open(&vulkan_or_skip!());
    let most = hold.capabilities.max_buffer_bytes;
    let too_long = device.buffer::<u8>(most as usize + 1).unwrap_err();
    assert!(matches!(too_long, Error::OutOfMemory { .. }), "{too_long}");
    let host = device.host_buffer::<u8>(most as usize + 1, Direction::Upload).unwrap_err();
    assert!(matches!(host, Error::OutOfMemory { .. }), "{host}");
    // Host memory is refused before the system promises what it does not have.
    let full = hold.make_buffer("testing", 1 << 45, wgpu::BufferUsages::STORAGE, false, true).unwrap_err();
    assert!(matches!(full, Error::OutOfMemory { available: Some(_), .. }), "{full}");
    // And what the driver itself refuses is an error too.
    let refused =
        hold.make_buffer("testing", most + 4, wgpu::BufferUsages::STORAGE, false, false).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { .. } | Error::Unsupported { .. }), "{refused}");
    assert!(device.buffer_from(&[1u32]).is_ok(), "the device is none the worse for it");
}

#[test]
fn memory_is_reused_zeroed_and_given_back() {
    let (device, _) = open(&vulkan_or_skip!());
    drop(device.buffer_from(&[0xffu8; 5000]).unwrap());
    let shelved = device.memory();
    assert_eq!(shelved.in_use_bytes, 0);
    assert_eq!(shelved.shelved_bytes, 8192);
    let again = device.buffer::<u8>(5001).unwrap();
    let mut stream = device.stream().unwrap();
    assert_eq!(stream.download(&again).unwrap().wait().unwrap(), vec![0; 5001]);
    let used = device.memory();
    assert_eq!((used.in_use_bytes, used.shelved_bytes, used.peak_bytes), (8192, 0, 8192));
    drop(again);
    device.trim();
    assert_eq!(device.memory().shelved_bytes, 0);
}

#[test]
fn memory_is_not_reused_before_what_uses_it_is_submitted() {
    let (device, hold) = open(&vulkan_or_skip!());
    let output = device.buffer_from(&[1u32; 64]).unwrap();
    let kept = device.buffer::<u32>(64).unwrap();
    let mut stream = device.stream().unwrap();
    stream.copy(&output, &kept).unwrap();
    drop(output);
    let other = device.buffer::<u32>(64).unwrap();
    assert_eq!(stream.download(&other).unwrap().wait().unwrap(), [0; 64]);
    assert_eq!(stream.download(&kept).unwrap().wait().unwrap(), [1; 64]);
    assert_eq!(hold.shelf.memory_use().shelved_bytes, 256, "back once it was submitted");
}

#[test]
fn staging_memory_is_reused_once_its_copy_has_ended() {
    let (device, hold) = open(&vulkan_or_skip!());
    let buffer = device.buffer::<u32>(1 << 16).unwrap();
    let mut stream = device.stream().unwrap();
    let usage = |hold: &Hold| hold.staging.memory_use(Direction::Upload);
    for round in 0..50u32 {
        // Dropped in flight: nobody waits for these.
        stream.upload(&vec![round; 1 << 16], &buffer).unwrap();
        stream.wait().unwrap();
    }
    let after = usage(&hold);
    assert_eq!(after.in_use_bytes, 0);
    assert!(after.peak_bytes <= 2 << 18, "{after:?}");
    assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), vec![49; 1 << 16]);
}

#[test]
fn the_clock_of_the_device_goes_forward() {
    let (device, hold) = open(&vulkan_or_skip!());
    let mut stream = device.stream().unwrap();
    if !hold.capabilities.features.contains(Features::TIMESTAMPS) {
        assert!(matches!(stream.timestamp().unwrap_err(), Error::Unsupported { .. }));
        return;
    }
    let started = Instant::now();
    let before = stream.timestamp().unwrap();
    assert!(before.since(&before).is_err(), "nothing has run yet");
    launch_long(&device, &mut stream);
    let after = stream.timestamp().unwrap();
    stream.wait().unwrap();
    let (device_time, host_time) = (after.since(&before).unwrap(), started.elapsed());
    assert!(device_time > Duration::from_micros(100), "{device_time:?}");
    assert!(device_time <= host_time, "{device_time:?} on the device, {host_time:?} on the host");
    // More than one kit holds, over several submissions.
    let many: Vec<_> = (0..200).map(|_| stream.timestamp().unwrap()).collect();
    stream.wait().unwrap();
    for pair in many.windows(2) {
        pair[1].since(&pair[0]).unwrap();
    }
}

#[test]
fn waiting_ends_when_it_was_told_to() {
    let (device, _) = open(&vulkan_or_skip!());
    let mut stream = device.stream().unwrap();
    launch_long(&device, &mut stream);
    let mark = stream.mark().unwrap();
    assert!(!mark.is_done().unwrap());
    let error = stream.wait_timeout(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    mark.wait().unwrap();
    assert!(mark.is_done().unwrap());
    stream.wait_timeout(Duration::from_millis(5)).unwrap();
}

#[test]
fn threads_wait_for_their_own_marks_at_once() {
    let (device, _) = open(&vulkan_or_skip!());
    let output = device.buffer::<u32>(64).unwrap();
    let bound = device.compile(&slow()).unwrap().bind(&[output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&bound, 1, &1u32).unwrap();
    let early = stream.mark().unwrap();
    launch_long(&device, &mut stream);
    let late = stream.mark().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| late.wait());
        // Neither waiting nor submitting is held up by the thread that waits for the long one.
        early.wait().unwrap();
        let other = device.buffer_any::<u32>(64).unwrap();
        let mut second = device.stream().unwrap();
        second.zero(&other).unwrap();
        let third = second.mark().unwrap();
        // Mesa's software submits nothing more until what is under way has ended.
        if device.describe().kind != Kind::Software {
            assert!(!late.is_done().unwrap(), "the long one takes long enough");
        }
        third.wait().unwrap();
        waits.join().unwrap().unwrap();
    });
    // A mark that follows another stream's is not reached before it.
    let mut first = device.stream().unwrap();
    let mut second = device.stream().unwrap();
    launch_long(&device, &mut first);
    let mark = first.mark().unwrap();
    second.wait_for(&mark).unwrap();
    second.mark().unwrap().wait().unwrap();
    assert!(mark.is_done().unwrap());
}

#[test]
fn two_threads_share_a_device() {
    let (device, _) = open(&vulkan_or_skip!());
    let program = device.compile(&affine()).unwrap();
    thread::scope(|scope| {
        for worker in 0..2u32 {
            let (device, program) = (&device, &program);
            scope.spawn(move || {
                let mut stream = device.stream().unwrap();
                for round in 0..50u32 {
                    let input = device.buffer_from(&vec![round; 777]).unwrap();
                    let output = device.buffer::<u32>(777).unwrap();
                    let bound = program.bind(&[input.arg(), output.arg()]).unwrap();
                    stream.launch(&bound, 13, &[2u32, worker]).unwrap();
                    let got = stream.download(&output).unwrap().wait().unwrap();
                    assert_eq!(got, vec![2 * round + worker; 777]);
                }
            });
        }
    });
}

#[test]
fn dropping_everything_with_work_under_way_does_not_block() {
    let (device, hold) = open(&vulkan_or_skip!());
    let weak = Arc::downgrade(&hold);
    drop(hold);
    let mut stream = device.stream().unwrap();
    launch_long(&device, &mut stream);
    let output = device.buffer::<u32>(64).unwrap();
    let download = stream.download(&output).unwrap();
    let started = Instant::now();
    drop((download, stream, output, device));
    let took = started.elapsed();
    assert!(weak.upgrade().is_none(), "nothing keeps it open");
    assert!(took < Duration::from_millis(200), "{took:?}");
}

#[test]
fn buffers_of_another_device_are_refused() {
    let source = vulkan_or_skip!();
    let ((one, _), (other, _)) = (open(&source), open(&source));
    let (mine, theirs) = (one.buffer::<u32>(4).unwrap(), other.buffer::<u32>(4).unwrap());
    let mut stream = one.stream().unwrap();
    assert!(matches!(stream.copy(&mine, &theirs).unwrap_err(), Error::Unsupported { .. }));
    let program = one.compile(&affine()).unwrap();
    assert!(program.bind(&[mine.arg(), theirs.arg()]).is_err());
    let mark = other.stream().unwrap().mark().unwrap();
    assert!(stream.wait_for(&mark).is_err());
    let bound = other.compile(&slow()).unwrap().bind(&[theirs.arg()]).unwrap();
    assert!(stream.launch(&bound, 1, &1u32).is_err());
}

#[test]
fn opening_and_dropping_many_times_keeps_nothing() {
    let source = vulkan_or_skip!();
    let cycle = || {
        let device = Device::from_source(source.clone());
        let buffer = device.buffer_from(&[1u32; 100]).unwrap();
        let mut stream = device.stream().unwrap();
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), [1; 100]);
    };
    let files = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    cycle();
    let before = files();
    for _ in 0..50 {
        cycle();
    }
    // Other tests open devices at the same time, but not fifty.
    assert!(files() < before + 40, "{before} files before, {} after", files());
}

#[test]
fn contents_any_is_not_cleared_and_costs_no_submission() {
    let (_, hold) = open(&vulkan_or_skip!());
    let backend = WgpuBackend { hold };
    let first = backend.allocate(64, Contents::Any).unwrap();
    assert_eq!(first.bytes(), 64);
    drop(first);
    assert_eq!(backend.memory().shelved_bytes, 256);
    backend.allocate(1, Contents::Any).unwrap();
    assert_eq!(backend.memory().peak_bytes, 256);
}

#[test]
fn opengl_computes_the_same() {
    // Discovery asks OpenGL only where there is nothing else, so it is asked for here.
    let Ok(adapters) = adapters(Api::Gl) else {
        eprintln!("skipped: no OpenGL device");
        return;
    };
    let description = describe("gl:0".into(), Api::Gl, &adapters[0]);
    assert_eq!(description.memory_bytes, None);
    let (device, _) = device_of(WgpuBackend::open(&description, &adapters[0]).unwrap(), &description);
    for len in [0usize, 1, 5, 1000, (4 << 20) + 3] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let buffer = device.buffer_from(&bytes).unwrap();
        assert_eq!(device.stream().unwrap().download(&buffer).unwrap().wait().unwrap(), bytes, "{len} bytes");
    }
    let input = device.buffer_from(&(0..1000u32).collect::<Vec<_>>()).unwrap();
    let output = device.buffer::<u32>(1000).unwrap();
    let bound = device.compile(&affine()).unwrap().bind(&[input.arg(), output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&bound, 16, &[3u32, 4]).unwrap();
    let expected: Vec<u32> = (0..1000).map(|i| 3 * i + 4).collect();
    assert_eq!(stream.download(&output).unwrap().wait().unwrap(), expected);
    let mut host = device.host_buffer::<u32>(10, Direction::Download).unwrap();
    host.as_mut_slice().fill(7);
    assert_eq!(host.as_slice(), [7; 10], "memory is memory, whatever it was mapped for");
}
