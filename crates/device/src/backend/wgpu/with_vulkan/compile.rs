//! Kernels: compiling, binding and refusals.

use super::*;
use crate::Module;

#[test]
#[ignore = "needs a Vulkan device"]
fn an_override_without_a_value_is_refused_by_its_name() {
    let (device, _) = open_vulkan(&vulkan());
    let module = Module::new().constant("NOWHERE", 1).wgsl(
        "override LENGTH: u32;
         @group(0) @binding(0) var<storage, read_write> out: array<u32>;
         @compute @workgroup_size(1) fn uses() { out[0] = LENGTH; }",
    );
    let kernel = |module: &Module| module.kernel("uses").writes::<u32>().workgroup(1);
    let log = log_of(&device, kernel(&module));
    assert!(log.contains("LENGTH"), "{log}");
    let out = device.buffer::<u32>(1).unwrap();
    let program = device.compile(&kernel(&module.constant("LENGTH", 9))).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&program.bind(&[out.arg()]).unwrap(), 1, &()).unwrap();
    assert_eq!(stream.download(&out).unwrap().wait().unwrap(), [9]);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn an_override_with_an_id_has_its_value_by_name() {
    let (device, _) = open_vulkan(&vulkan());
    let module = Module::new().constant("Z", 5).constant("7", 6).constant("NOWHERE", 1).wgsl(
        "@id(7) override Z: u32 = 1u;
         override Y: u32 = Z + 1u;
         @group(0) @binding(0) var<storage, read_write> out: array<u32>;
         @compute @workgroup_size(1) fn uses() { out[0] = Z; out[1] = Y; }",
    );
    let out = device.buffer::<u32>(2).unwrap();
    let program = device.compile(&module.kernel("uses").writes::<u32>().workgroup(1)).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&program.bind(&[out.arg()]).unwrap(), 1, &()).unwrap();
    assert_eq!(stream.download(&out).unwrap().wait().unwrap(), [5, 6]);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn parameters_of_the_largest_size_arrive() {
    let (device, _) = open_vulkan(&vulkan());
    let max = device.capabilities().unwrap().max_params_bytes as usize;
    assert!(max >= 128, "{max}");
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
#[ignore = "needs a Vulkan device"]
fn a_part_of_a_buffer_is_bound_where_it_begins() {
    let (device, _) = open_vulkan(&vulkan());
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
#[ignore = "needs a Vulkan device"]
fn buffers_of_no_length_can_be_bound() {
    let (device, _) = open_vulkan(&vulkan());
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
#[ignore = "needs a Vulkan device"]
fn the_body_is_chosen_by_what_the_device_has() {
    let (device, open) = open_vulkan(&vulkan());
    let wide = "@group(0) @binding(0) var<storage, read_write> output: array<u64>;
         @compute @workgroup_size(1) fn square() { output[0] = output[0] * output[0]; }";
    let narrow = "@group(0) @binding(0) var<storage, read_write> output: array<vec2<u32>>;
         @compute @workgroup_size(1) fn square() { output[0] = vec2(7u, 7u); }";
    let kernel = |wants: Features| {
        Kernel::new("square").writes::<u64>().workgroup(1).wgsl_with(wants, wide).wgsl(narrow)
    };
    let has = open.capabilities.features;
    let program = device.compile(&kernel(Features::INT64)).unwrap();
    assert_eq!(program.body(), if has.contains(Features::INT64) { "WGSL with INT64" } else { "WGSL" });
    if has.contains(Features::INT64) {
        let buffer = device.buffer_from(&[0x1_0000_0001u64]).unwrap();
        let mut stream = device.stream().unwrap();
        stream.launch(&program.bind(&[buffer.arg()]).unwrap(), 1, &()).unwrap();
        let expected = 0x1_0000_0001u64.wrapping_mul(0x1_0000_0001);
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), [expected]);
    }
    // With a feature that no device has, the body without it is used.
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
#[ignore = "needs a Vulkan device"]
fn the_compilers_log_is_returned_with_the_line() {
    let (device, _) = open_vulkan(&vulkan());
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
#[ignore = "needs a Vulkan device"]
fn a_body_that_does_not_fit_its_declaration_is_an_error() {
    let (device, open) = open_vulkan(&vulkan());
    // Declared as read-only, but written.
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
    // More shared memory than the device has.
    let elements = open.capabilities.max_shared_bytes / 4 + 1;
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
    // The device still works.
    assert!(device.buffer_from(&[1u32]).is_ok());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn shared_memory_counts_where_it_is_used() {
    let (device, open) = open_vulkan(&vulkan());
    let elements = open.capabilities.max_shared_bytes / 4;
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
    assert!(log_of(&device, kernel("both")).contains(&open.capabilities.max_shared_bytes.to_string()));
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_buffer_too_short_for_the_body_is_refused_when_it_is_bound() {
    let (device, _) = open_vulkan(&vulkan());
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
#[ignore = "needs a Vulkan device"]
fn a_source_is_compiled_once() {
    let (device, open) = open_vulkan(&vulkan());
    let source = "@group(0) @binding(0) var<storage, read_write> output: array<u32>;
         @compute @workgroup_size(1) fn one() { output[0] = 1u; }
         @compute @workgroup_size(1) fn two() { output[0] = 2u; }";
    for name in ["one", "two", "one"] {
        device.compile(&Kernel::new(name).writes::<u32>().workgroup(1).wgsl(source)).unwrap();
    }
    assert_eq!(open.modules().len(), 1);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn compiled_pipelines_are_cached_on_disk_and_reused() {
    // All tests share the cache folder, so only the file of this test's kernel is checked.
    let folder = crate::cache_folder().unwrap().join("pipelines");
    let files = || {
        let names = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let (device, open) = open_vulkan(&vulkan());
    assert!(open.pipeline_key.is_some(), "Vulkan has them on every device");
    let value = std::process::id();
    let kernel = Kernel::new("kept").writes::<u32>().workgroup(1).wgsl(format!(
        "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
         @compute @workgroup_size(1) fn kept() {{ out[0] = {value}u; }}"
    ));
    let body = kernel.wgsl[0].clone();
    let kept = |open: &OpenDevice| {
        super::super::pipeline_cache::KernelCache::of(
            &open.device,
            open.pipeline_key.as_deref(),
            &kernel,
            &body,
        )
    };
    assert!(kept(&open).is_some_and(|kept| !kept.was_on_disk()));
    let before = files();
    for round in 0..2 {
        let (device, open) = if round == 0 { (device.clone(), open.clone()) } else { open_vulkan(&vulkan()) };
        let out = device.buffer::<u32>(1).unwrap();
        let mut stream = device.stream().unwrap();
        stream.launch(&device.compile(&kernel).unwrap().bind(&[out.arg()]).unwrap(), 1, &()).unwrap();
        assert_eq!(stream.download(&out).unwrap().wait().unwrap(), [value]);
        assert!(kept(&open).is_some_and(|kept| kept.was_on_disk()), "round {round}");
    }
    let own: Vec<_> = files().difference(&before).cloned().collect();
    // A damaged file is ignored.
    let place = kept(&open).unwrap().path();
    assert!(own.contains(&place));
    std::fs::write(&place, b"damaged").unwrap();
    assert!(kept(&open).is_some_and(|kept| !kept.was_on_disk()));
    device.reopened().compile(&kernel).unwrap();
    std::fs::remove_file(place).unwrap();
}
