//! Tests on the machine's Vulkan device, usually Mesa's software. They are ignored by default, and fail if there is none.

mod compile;
mod external;
mod memory;
mod transfers;
mod with_opengl;
mod work;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    describe::describe, failure::catch_panic, find, instance::adapters, open::WgpuBackend,
    open_device::OpenDevice,
};
use crate::{
    Access, Api, Description, Device, DeviceKind, Direction, Error, Features, Kernel, Stream,
    backend::{Backend, Contents, Source},
};

/// The first Vulkan device.
fn vulkan() -> Arc<dyn Source> {
    let mut sources = find().sources.into_iter();
    sources.find(|source| source.describe().api == Api::Vulkan).expect("no Vulkan device")
}

fn open_vulkan(source: &Arc<dyn Source>) -> (Device, Arc<OpenDevice>) {
    open_as(source.describe().id.as_str(), source)
}

/// Opens a device under a test's own id: openings of the same id free their cached memory for each other.
fn open_as(id: &str, source: &Arc<dyn Source>) -> (Device, Arc<OpenDevice>) {
    let described = Description { id: id.into(), ..source.describe().clone() };
    let adapter = adapters(Api::Vulkan).unwrap().into_iter().find(|it| it.get_info().name == described.name);
    device_of(WgpuBackend::open(&described, &adapter.unwrap()).unwrap(), &described)
}

/// Returns a device that is already open, with its `OpenDevice`.
fn device_of(backend: WgpuBackend, description: &Description) -> (Device, Arc<OpenDevice>) {
    #[derive(Debug)]
    struct OpenSource(Description, Arc<WgpuBackend>);
    impl Source for OpenSource {
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
    let open = backend.open.clone();
    (Device::from_source(Arc::new(OpenSource(description.clone(), Arc::new(backend)))), open)
}

fn lose(open: &OpenDevice) {
    open.device.destroy();
    // The next poll calls the callback.
    let _ = open.poll("losing it");
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

/// A slow kernel: a dependent chain of the given length in each thread.
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

/// Queues work that takes a good part of a second. Mesa's software ends every loop after 65,535 iterations, so there the
/// work has many workgroups, which elsewhere would run in parallel.
fn launch_long(device: &Device, stream: &mut Stream) {
    let (groups, turns) =
        if device.describe().kind == DeviceKind::Software { (2_000u32, 10_000u32) } else { (1, 40_000_000) };
    let output = device.buffer::<u32>(64).unwrap();
    let bound = device.compile(&slow()).unwrap().bind(&[output.arg()]).unwrap();
    stream.launch(&bound, groups, &turns).unwrap();
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_software_device_has_the_kind_software() {
    let source = vulkan();
    let described = source.describe();
    assert_eq!(described.id.as_str(), "vulkan:0");
    assert!(!described.driver.is_empty());
    if described.name.contains("llvmpipe") {
        assert_eq!(described.kind, DeviceKind::Software);
        assert_eq!(described.pci, None);
    }
    let uuid = described.uuid.as_ref().unwrap();
    assert!(uuid.len() == 32 && uuid.chars().all(|c| c.is_ascii_hexdigit() && !c.is_uppercase()), "{uuid}");
    assert!(described.memory_bytes.unwrap() > 0);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn finding_twice_gives_the_same_ids() {
    let ids = || find().sources.iter().map(|source| source.describe().clone()).collect::<Vec<_>>();
    assert_eq!(ids(), ids());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn buffers_of_another_device_are_refused() {
    let source = vulkan();
    let ((one, _), (other, _)) = (open_vulkan(&source), open_vulkan(&source));
    let (mine, theirs) = (one.buffer::<u32>(4).unwrap(), other.buffer::<u32>(4).unwrap());
    let mut stream = one.stream().unwrap();
    assert!(matches!(stream.copy(&mine, &theirs).unwrap_err(), Error::Unsupported { .. }));
    let program = one.compile(&affine()).unwrap();
    assert!(program.bind(&[mine.arg(), theirs.arg()]).is_err());
    let event = other.stream().unwrap().record_event().unwrap();
    assert!(stream.wait_event(&event).is_err());
    let bound = other.compile(&slow()).unwrap().bind(&[theirs.arg()]).unwrap();
    assert!(stream.launch(&bound, 1, &1u32).is_err());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_closed_device_is_reused_by_the_next_opening_unless_it_was_lost() {
    let source = vulkan();
    let described = Description { id: "vulkan:kept".into(), ..source.describe().clone() };
    let adapter =
        adapters(Api::Vulkan).unwrap().into_iter().find(|it| it.get_info().name == described.name).unwrap();
    let open = || WgpuBackend::open(&described, &adapter).unwrap().open;
    let first = open();
    let (device, second) = (first.device.clone(), open());
    assert_ne!(device, second.device, "what is open is not handed out again");
    drop(first);
    let third = open();
    assert_eq!(device, third.device);
    third.device.destroy();
    third.poll("losing it").ok();
    drop(third);
    assert_ne!(device, open().device, "a lost one is not kept");
}
