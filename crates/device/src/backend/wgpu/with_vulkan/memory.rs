//! Memory on the device and on the host.

use super::{
    super::{host::StagingCaches, open::open_device},
    *,
};

#[test]
#[ignore = "needs a Vulkan device"]
fn bytes_of_any_number_survive_the_round_trip() {
    let (device, _) = open_vulkan(&vulkan());
    for len in [0usize, 1, 2, 3, 4, 5, 63, 255, 256, 257, 4095, 100_003, (4 << 20) + 1, (9 << 20) + 3] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let buffer = device.buffer_from(&bytes).unwrap();
        let mut stream = device.stream().unwrap();
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), bytes, "{len} bytes");
        let copy = device.buffer_uninit::<u8>(len).unwrap();
        stream.copy(&buffer, &copy).unwrap();
        stream.zero(&buffer).unwrap();
        assert_eq!(stream.download(&copy).unwrap().wait().unwrap(), bytes, "{len} bytes copied");
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), vec![0; len], "{len} bytes zeroed");
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn host_memory_comes_back_and_can_be_used_again() {
    let (device, _) = open_vulkan(&vulkan());
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
#[ignore = "needs a Vulkan device"]
fn host_memory_of_the_wrong_direction_is_refused() {
    let (device, _) = open_vulkan(&vulkan());
    let buffer = device.buffer::<u32>(4).unwrap();
    let mut stream = device.stream().unwrap();
    let down = device.host_buffer::<u32>(4, Direction::Download).unwrap();
    let refused = stream.upload_host(down, &buffer).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
}

#[test]
#[ignore = "needs a Vulkan device"]
fn more_memory_than_the_device_has_is_an_error() {
    let (device, open) = open_as("vulkan:full", &vulkan());
    let max = open.capabilities.max_buffer_bytes;
    let too_long = device.buffer::<u8>(max as usize + 1).unwrap_err();
    assert!(matches!(too_long, Error::OutOfMemory { .. }), "{too_long}");
    let host = device.host_buffer::<u8>(max as usize + 1, Direction::Upload).unwrap_err();
    assert!(matches!(host, Error::OutOfMemory { .. }), "{host}");
    // Host memory is refused before the system overcommits.
    let full = open.make_buffer("testing", 1 << 45, wgpu::BufferUsages::STORAGE, false, true).unwrap_err();
    assert!(matches!(full, Error::OutOfMemory { available: Some(_), .. }), "{full}");
    // A refusal by the driver itself is an error too.
    let refused =
        open.make_buffer("testing", max + 4, wgpu::BufferUsages::STORAGE, false, false).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { .. } | Error::Unsupported { .. }), "{refused}");
    assert!(device.buffer_from(&[1u32]).is_ok(), "the device is none the worse for it");
}

#[test]
#[ignore = "needs a Vulkan device"]
fn memory_is_reused_zeroed_and_freed() {
    let (device, _) = open_vulkan(&vulkan());
    drop(device.buffer_from(&[0xffu8; 5000]).unwrap());
    let cached = device.memory();
    assert_eq!(cached.in_use_bytes, 0);
    assert_eq!(cached.cached_bytes, 8192);
    let again = device.buffer::<u8>(5001).unwrap();
    let mut stream = device.stream().unwrap();
    assert_eq!(stream.download(&again).unwrap().wait().unwrap(), vec![0; 5001]);
    let used = device.memory();
    assert_eq!((used.in_use_bytes, used.cached_bytes, used.peak_bytes), (8192, 0, 8192));
    drop(again);
    device.trim();
    assert_eq!(device.memory().cached_bytes, 0);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn freed_memory_is_kept_up_to_the_cap_and_no_more() {
    const BYTES: usize = 64 << 10;
    const CAP: u64 = 4 * BYTES as u64;
    let source = vulkan();
    // The cache of device memory keeps a quarter of it.
    let memory_bytes = Some(4 * CAP);
    let described = Description { id: "vulkan:capped".into(), memory_bytes, ..source.describe().clone() };
    let adapter = adapters(Api::Vulkan).unwrap().into_iter().find(|it| it.get_info().name == described.name);
    let mut open = open_device(&described, &adapter.unwrap()).unwrap();
    open.staging = StagingCaches::with_caps(CAP);
    let (device, open) = device_of(WgpuBackend::of(open), &described);
    let buffers: Vec<_> = (0..10).map(|_| device.buffer::<u8>(BYTES).unwrap()).collect();
    assert_eq!((device.memory().in_use_bytes, device.memory().cached_bytes), (10 * BYTES as u64, 0));
    drop(buffers);
    assert_eq!((device.memory().in_use_bytes, device.memory().cached_bytes), (0, CAP));
    // Host memory, dropped by the host.
    let usage = |direction| open.staging.usage(direction);
    let hosts: Vec<_> =
        (0..10).map(|_| device.host_buffer::<u8>(BYTES, Direction::Download).unwrap()).collect();
    drop(hosts);
    assert_eq!(usage(Direction::Download).cached_bytes, CAP);
    // Dropped by the host before it has waited for the copy.
    let (buffer, mut stream) = (device.buffer::<u8>(BYTES).unwrap(), device.stream().unwrap());
    let upload = |_| {
        let host = device.host_buffer::<u8>(BYTES, Direction::Upload).unwrap();
        stream.upload_host(host, &buffer).unwrap()
    };
    let uploads: Vec<_> = (0..10).map(upload).collect();
    stream.flush().unwrap();
    drop(uploads);
    stream.wait().unwrap();
    let usage = usage(Direction::Upload);
    assert_eq!((usage.in_use_bytes, usage.cached_bytes), (0, CAP));
}

#[test]
#[ignore = "needs a Vulkan device"]
fn memory_is_not_reused_before_its_operations_are_submitted() {
    let (device, open) = open_vulkan(&vulkan());
    let output = device.buffer_from(&[1u32; 64]).unwrap();
    let kept = device.buffer::<u32>(64).unwrap();
    let mut stream = device.stream().unwrap();
    stream.copy(&output, &kept).unwrap();
    drop(output);
    let other = device.buffer::<u32>(64).unwrap();
    assert_eq!(stream.download(&other).unwrap().wait().unwrap(), [0; 64]);
    assert_eq!(stream.download(&kept).unwrap().wait().unwrap(), [1; 64]);
    assert_eq!(open.cache.usage().cached_bytes, 256, "back once it was submitted");
}

#[test]
#[ignore = "needs a Vulkan device"]
fn staging_memory_is_reused_once_its_copy_has_finished() {
    let (device, open) = open_vulkan(&vulkan());
    let buffer = device.buffer::<u32>(1 << 16).unwrap();
    let mut stream = device.stream().unwrap();
    let usage = |open: &OpenDevice| open.staging.usage(Direction::Upload);
    for round in 0..50u32 {
        // Dropped in flight, without a wait.
        stream.upload(&vec![round; 1 << 16], &buffer).unwrap();
        stream.wait().unwrap();
    }
    let after = usage(&open);
    assert_eq!(after.in_use_bytes, 0);
    assert!(after.peak_bytes <= 2 << 18, "{after:?}");
    assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), vec![49; 1 << 16]);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn uninitialized_memory_is_not_cleared_and_needs_no_submission() {
    let (_, open) = open_vulkan(&vulkan());
    let backend = WgpuBackend { open };
    let first = backend.allocate(64, Contents::Uninit).unwrap();
    assert_eq!(first.bytes(), 64);
    drop(first);
    assert_eq!(backend.memory().cached_bytes, 256);
    backend.allocate(1, Contents::Uninit).unwrap();
    assert_eq!(backend.memory().peak_bytes, 256);
}

/// Writes 7 to every element.
fn fill() -> Kernel {
    Kernel::new("fill").writes::<u32>().workgroup(64).wgsl(
        "@group(0) @binding(0) var<storage, read_write> output: array<u32>;
         @compute @workgroup_size(64)
         fn fill(@builtin(global_invocation_id) id: vec3<u32>) {
             if (id.x < arrayLength(&output)) { output[id.x] = 7u; }
         }",
    )
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_kernel_that_is_given_an_empty_slice_writes_to_no_other_element() {
    let (device, _) = open_vulkan(&vulkan());
    let program = device.compile(&fill()).unwrap();
    let mut stream = device.stream().unwrap();
    let buffer = device.buffer_from(&[1u32; 256]).unwrap();
    for start in [0, 64, 128, 256] {
        let empty = buffer.slice(start..start).unwrap();
        stream.launch(&program.bind(&[empty.arg()]).unwrap(), 4, &()).unwrap();
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), [1; 256], "from {start}");
    }
    let none = device.buffer::<u32>(0).unwrap();
    stream.launch(&program.bind(&[none.arg()]).unwrap(), 4, &()).unwrap();
    stream.wait().unwrap();
}

/// Writes 7 at two indices, which may be out of bounds, and adds the values that it reads there.
fn scatter() -> Kernel {
    Kernel::new("scatter").writes::<u32>().writes::<u32>().params::<[i32; 2]>().workgroup(1).wgsl(
        "var<immediate> places: vec2<i32>;
         var<workgroup> together: array<u32, 16>;
         var<private> own: array<u32, 16>;
         @group(0) @binding(0) var<storage, read_write> output: array<u32>;
         @group(0) @binding(1) var<storage, read_write> fixed: array<vec4<u32>, 16>;
         @compute @workgroup_size(1)
         fn scatter() {
             let read = output[places.x] + output[u32(places.y)] + fixed[places.x].y + together[places.x];
             own[places.x] = 7u;
             together[places.x] = 7u;
             output[places.x] = 7u;
             output[u32(places.y)] = 7u + (read & 0u);
             fixed[places.x][places.y] = 7u;
         }",
    )
}

#[test]
#[ignore = "needs a Vulkan device"]
fn an_index_out_of_range_touches_no_other_slice() {
    let (device, _) = open_vulkan(&vulkan());
    let program = device.compile(&scatter()).unwrap();
    let mut stream = device.stream().unwrap();
    let buffer = device.buffer_from(&[1u32; 1024]).unwrap();
    let (slice, fixed) = (buffer.slice(256..512).unwrap(), device.buffer_from(&[1u32; 1024]).unwrap());
    let other = fixed.slice(512..576).unwrap();
    let bound = program.bind(&[slice.arg(), other.arg()]).unwrap();
    for place in [256, 257, 300, 511, 512, 767, 768, 1 << 20, i32::MAX, -1, -2, -256, -257, -1000, i32::MIN] {
        stream.launch(&bound, 1, &[place, place]).unwrap();
        for (buffer, range) in [(&buffer, 256..512), (&fixed, 512..576)] {
            let found = stream.download(buffer).unwrap().wait().unwrap();
            let beyond = found.iter().enumerate().filter(|(index, _)| !range.contains(index));
            assert!(beyond.clone().all(|(_, &element)| element == 1), "a write at {place}");
        }
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_division_by_zero_in_a_checked_body_is_defined() {
    let (device, _) = open_vulkan(&vulkan());
    let kernel = Kernel::new("divide").writes::<i32>().params::<[i32; 2]>().workgroup(64).wgsl(
        "struct Params { value: i32, divisor: i32 }
         var<immediate> p: Params;
         @group(0) @binding(0) var<storage, read_write> data: array<i32>;
         @compute @workgroup_size(64)
         fn divide(@builtin(global_invocation_id) id: vec3<u32>) {
             if (id.x > 0) { return; }
             data[0] = p.value / p.divisor;
             data[1] = p.value % p.divisor;
         }",
    );
    let data = device.buffer::<i32>(2).unwrap();
    let mut stream = device.stream().unwrap();
    let bound = device.compile(&kernel).unwrap().bind(&[data.arg()]).unwrap();
    // As WGSL has it: the dividend and 0, also where the quotient does not fit.
    for (value, divisor, expected) in [(7, 0, [7, 0]), (i32::MIN, -1, [i32::MIN, 0]), (7, 2, [3, 1])] {
        stream.launch(&bound, 1, &[value, divisor]).unwrap();
        assert_eq!(stream.download(&data).unwrap().wait().unwrap(), expected, "{value} by {divisor}");
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_body_without_checks_computes_the_same() {
    let (device, _) = open_vulkan(&vulkan());
    let [checked, unchecked] = [true, false].map(|is_checked| {
        let source = "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
             @compute @workgroup_size(64)
             fn gray(@builtin(global_invocation_id) id: vec3<u32>) {
                 let i = id.x;
                 for (var turn = 0u; turn < 3u; turn++) { data[i] = data[i] ^ (data[i] / (turn + 2u)); }
             }";
        let kernel = Kernel::new("gray").writes::<u32>().workgroup(64);
        let kernel = match is_checked {
            true => kernel.wgsl(source),
            // SAFETY: the kernel is launched with one thread per element; the loop has three iterations; no divisor is
            // zero.
            false => unsafe { kernel.wgsl_unchecked(Features::empty(), source) },
        };
        let data = device.buffer_from(&(0..1024).collect::<Vec<u32>>()).unwrap();
        let mut stream = device.stream().unwrap();
        let bound = device.compile(&kernel).unwrap().bind(&[data.arg()]).unwrap();
        stream.launch(&bound, 16, &()).unwrap();
        stream.download(&data).unwrap().wait().unwrap()
    });
    assert_eq!(checked, unchecked);
    assert_eq!(checked[5], [2, 3, 4].into_iter().fold(5, |x, divisor| x ^ (x / divisor)));
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_download_overwrites_nothing_beyond_its_end() {
    let (device, _) = open_vulkan(&vulkan());
    let mut stream = device.stream().unwrap();
    for len in [1usize, 2, 3, 4, 5, 1001, (1 << 20) + 1] {
        let buffer = device.buffer_from(&vec![1u8; len]).unwrap();
        let mut host = device.host_buffer::<u8>(len + 9, Direction::Download).unwrap();
        for _ in 0..2 {
            host.as_mut_slice().fill(0xEE);
            host = stream.download_host(&buffer, host).unwrap().wait().unwrap();
            assert!(host.as_slice()[..len].iter().all(|byte| *byte == 1), "{len} bytes");
            assert_eq!(&host.as_slice()[len..len + 4], [0xEE; 4], "{len} bytes");
        }
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn cached_memory_of_one_opening_is_freed_for_another() {
    let source = vulkan();
    let ((one, _), (_, other)) = (open_as("vulkan:shared", &source), open_as("vulkan:shared", &source));
    drop(one.buffer::<u8>(5000).unwrap());
    assert_eq!(one.memory().cached_bytes, 8192);
    let full = other.make_buffer("testing", 1 << 45, wgpu::BufferUsages::STORAGE, false, true).unwrap_err();
    assert!(matches!(full, Error::OutOfMemory { .. }), "{full}");
    assert_eq!(one.memory().cached_bytes, 0);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_poll_in_flight_while_the_device_is_lost_frees_no_host_memory_that_is_read() {
    const LEN: usize = 48 << 20;
    let (device, open) = open_vulkan(&vulkan());
    let mut stream = device.stream().unwrap();
    let buffer = device.buffer_uninit::<u8>(LEN).unwrap();
    stream.fill(&buffer, 7).unwrap();
    let down = device.host_buffer::<u8>(LEN, Direction::Download).unwrap();
    let down = stream.download_host(&buffer, down).unwrap().wait().unwrap();
    let mut up = device.host_buffer::<u8>(LEN, Direction::Upload).unwrap();
    up.as_mut_slice().fill(9);
    // A poll that began before the device was lost still goes on to the driver, and wgpu destroys every buffer.
    open.device.destroy();
    open.device.poll(wgpu::PollType::Poll).unwrap();
    assert!(down.as_slice().iter().all(|byte| *byte == 7));
    assert!(up.as_slice().iter().all(|byte| *byte == 9));
    up.as_mut_slice().fill(10);
    assert!(up.as_slice().iter().all(|byte| *byte == 10));
}
