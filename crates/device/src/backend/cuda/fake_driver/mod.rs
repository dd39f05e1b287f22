//! Tests with a fake CUDA driver: `driver.c`, compiled with the system's C compiler.

use std::{process::Command, sync::Arc};

use libloading::os::unix::Library;

use super::find;
use crate::{
    AnyBuffer, DType, Device, Direction, Error, Kernel,
    dlpack::{self, DLDevice, DLManagedTensor, ManagedTensor},
};

/// Set in the process that loads the fake driver.
const INSIDE: &str = "EVENER_TEST_INSIDE";

const PROGRAMS_CONTEXT: usize = 0xCAFE;

const GIB: usize = 1 << 30;

/// Runs a test of this program again in a process that loads the fake driver. Returns `None` in that process.
fn in_another_process(test: &str) -> Option<()> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, driver) = (folder.path().join("driver.c"), folder.path().join("libcuda.so"));
    std::fs::write(&source, include_str!("driver.c")).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&driver, &source]).status();
    assert!(compiled.unwrap().success());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "--nocapture",
        "--include-ignored",
        &format!("backend::cuda::fake_driver::{test}"),
    ]);
    command.env(INSIDE, "1").env("LD_LIBRARY_PATH", folder.path());
    let output = command.output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output_text.contains("1 passed"), "{output_text}");
    Some(())
}

/// Calls a function of the fake driver.
fn call(function: &str) -> usize {
    // SAFETY: the library is loaded already, and `driver.c` gives these functions this signature.
    unsafe {
        let library = Library::new("libcuda.so").unwrap();
        let function = library.get::<unsafe extern "C" fn() -> usize>(function.as_bytes()).unwrap();
        function()
    }
}

fn card() -> Device {
    Device::from_source(find().sources.into_iter().next().expect("the fake driver has a card"))
}

#[test]
fn the_context_of_the_program_stays_current() {
    let None = in_another_process("the_context_of_the_program_stays_current") else { return };
    let device = card();
    device.open().unwrap();
    assert_eq!(call("fake_current"), PROGRAMS_CONTEXT);
    let parts = device.split(&[40, 92]).unwrap();
    for device in [&device, &parts[0]] {
        let buffer = device.buffer_from(&[1u32; 100]).unwrap();
        let mut stream = device.stream().unwrap();
        stream.download(&buffer).unwrap().wait().unwrap();
        stream.record_event().unwrap().wait().unwrap();
        drop((stream, buffer));
        device.trim();
        assert_eq!(call("fake_current"), PROGRAMS_CONTEXT);
    }
    call("fake_fault");
    assert!(matches!(device.buffer::<u8>(1 << 20), Err(Error::Lost { .. })));
    drop((device, parts));
    assert_eq!(call("fake_current"), PROGRAMS_CONTEXT, "after a loss too");
}

#[test]
fn a_lost_context_that_others_hold_is_never_reset() {
    let None = in_another_process("a_lost_context_that_others_hold_is_never_reset") else { return };
    let device = card();
    device.open().unwrap();
    call("fake_retain");
    call("fake_fault");
    assert!(matches!(device.buffer::<u8>(1 << 20), Err(Error::Lost { .. })));
    let error = device.reopened().open().unwrap_err();
    assert!(matches!(&error, Error::Lost { detail, .. } if detail.contains("restart it")), "{error}");
    assert_eq!(call("fake_resets"), 0, "other libraries use it too");
    // The other libraries release it.
    call("fake_release");
    let again = device.reopened();
    again.buffer::<u8>(1 << 20).unwrap();
    assert_eq!((call("fake_resets"), call("fake_retained")), (0, 1));
    drop((device, again));
    assert_eq!(call("fake_retained"), 0, "every reference was given back");
}

#[test]
fn a_request_that_fits_is_served_however_large() {
    let None = in_another_process("a_request_that_fits_is_served_however_large") else { return };
    let device = card();
    let buffer = device.buffer_uninit::<u8>(129 * GIB).unwrap();
    assert_eq!(call("fake_used_mebibytes"), 129 << 10);
    // 12 GiB are left.
    let rest = device.buffer_uninit::<u8>(12 * GIB - 1000).unwrap();
    let full = device.buffer_uninit::<u8>(1 << 20).unwrap_err();
    assert!(matches!(full, Error::OutOfMemory { .. }), "{full}");
    drop((buffer, rest));
    let memory = device.memory();
    assert_eq!((memory.in_use_bytes, memory.cached_bytes), (0, 141 << 30), "cached: {memory:?}");
    // The next allocation frees the memory above the cap.
    let _small = device.buffer_uninit::<u8>(1).unwrap();
    assert!(device.memory().cached_bytes <= 141 * GIB as u64 / 4, "{:?}", device.memory());
    let host = device.host_buffer::<u8>(1 << 20, Direction::Upload).unwrap();
    assert_eq!(device.memory().pinned_bytes, 1 << 20);
    drop(host);
    assert_eq!(device.memory().pinned_cached_bytes, 1 << 20);
}

#[test]
fn a_block_is_not_rounded_up_if_memory_is_too_short() {
    let None = in_another_process("a_block_is_not_rounded_up_if_memory_is_too_short") else {
        return;
    };
    let device = card();
    let _most = device.buffer_uninit::<u8>(141 * GIB - (100 << 20)).unwrap();
    // The class of 97 MiB has 104.
    device.buffer_uninit::<u8>(97 << 20).unwrap();
}

#[test]
fn cached_memory_of_a_partition_is_freed_for_another() {
    let None = in_another_process("cached_memory_of_a_partition_is_freed_for_another") else { return };
    let parts = card().split(&[40, 92]).unwrap();
    drop(parts[0].buffer_uninit::<u8>(96 * GIB).unwrap());
    assert_eq!(parts[0].memory().cached_bytes, 96 << 30);
    parts[1].buffer_uninit::<u8>(96 * GIB).unwrap();
    assert_eq!(parts[0].memory().cached_bytes, 0);
}

#[test]
fn green_contexts_outlive_their_streams() {
    let None = in_another_process("green_contexts_outlive_their_streams") else { return };
    let parts = card().split(&[16, 9, 32, 8]).unwrap();
    let mut streams: Vec<_> = parts.iter().map(|part| part.stream().unwrap()).collect();
    // The sources go here, and only the streams are left.
    drop(parts);
    streams.iter_mut().for_each(|stream| stream.wait().unwrap());
    assert_eq!(call("fake_orphans"), 0);
    while let Some(stream) = streams.pop() {
        drop(stream);
        assert_eq!(call("fake_orphans"), 0);
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn with_nvrtc_recorded_launches_are_one_call() {
    let None = in_another_process("with_nvrtc_recorded_launches_are_one_call") else { return };
    let device = card();
    // SAFETY: the fake driver computes nothing.
    let kernel = unsafe { Kernel::new("none").cuda("extern \"C\" __global__ void none() {}") };
    let bound = device.compile(&kernel).unwrap().bind(&[]).unwrap();
    let mut stream = device.stream().unwrap();
    let graph =
        stream.record_graph(|recorder| (0..7).try_for_each(|_| recorder.launch(&bound, 1, &()))).unwrap();
    (0..3).for_each(|_| stream.replay(&graph).unwrap());
    assert_eq!(call("fake_replayed"), 21, "three calls for seven launches each");
    drop(bound);
    stream.wait().unwrap();
    call("fake_fault");
    assert!(matches!(stream.replay(&graph), Err(Error::Lost { .. })));
    drop((graph, stream, device));
    assert_eq!(call("fake_current"), PROGRAMS_CONTEXT);
}

#[test]
fn memory_of_another_library_is_used_in_place_and_returned() {
    let None = in_another_process("memory_of_another_library_is_used_in_place_and_returned") else {
        return;
    };
    let device = card();
    let owner = Arc::new(());
    // SAFETY: the fake driver accesses no address.
    let adopt = |address| unsafe { device.buffer_at_cuda_address::<u32>(address, 1000, owner.clone()) };
    let refused = adopt((1 << 44) + 4).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    assert_eq!(Arc::strong_count(&owner), 1);
    let buffer = adopt(1 << 44).unwrap();
    assert_eq!((buffer.cuda_address(), buffer.len()), (Some(1 << 44), 1000));
    let mut stream = device.stream().unwrap();
    assert!(stream.cuda_handle().is_some_and(|handle| !handle.is_null()));
    // SAFETY: the fake driver accepts any event.
    unsafe {
        stream.wait_cuda_event(std::ptr::dangling_mut()).unwrap();
        stream.zero(&buffer).unwrap();
        stream.record_cuda_event(std::ptr::dangling_mut()).unwrap();
    }
    drop(buffer);
    assert_eq!(Arc::strong_count(&owner), 2, "an operation uses it");
    stream.wait().unwrap();
    assert_eq!(Arc::strong_count(&owner), 1);
    assert_eq!(device.memory().cached_bytes, 0, "another library's memory is not cached");
    assert_eq!(call("fake_used_mebibytes"), 0);
    call("fake_fault");
    assert!(device.buffer::<u8>(1 << 20).is_err());
    assert!(matches!(adopt(1 << 44), Err(Error::Lost { .. })));
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn tensors_of_the_card_are_exported_and_imported_in_place() {
    let None = in_another_process("tensors_of_the_card_are_exported_and_imported_in_place") else { return };
    let device = card();
    let buffer = device.buffer_uninit::<f32>(1024).unwrap();
    let part = AnyBuffer::from(buffer.slice(256..).unwrap());
    let mut tensor: ManagedTensor<DLManagedTensor> = part.to_dlpack(&[3, 256]).unwrap();
    let address = buffer.cuda_address().unwrap() + 1024;
    assert_eq!(tensor.tensor().device, DLDevice { device_type: dlpack::CUDA, device_id: 0 });
    assert_eq!(tensor.tensor().data.addr() as u64, address);
    // Another handle on the same card takes it for another library's.
    let other = device.reopened();
    // SAFETY: no operation uses the elements.
    let (imported, shape) = unsafe { other.import_dlpack(tensor) }.unwrap();
    assert_eq!(imported.as_bytes().cuda_address(), Some(address));
    assert_eq!((imported.dtype(), imported.len(), shape), (DType::F32, 768, vec![3, 256]));
    drop((buffer, part));
    assert_eq!(device.memory().in_use_bytes, 4096, "the tensor holds it");
    drop(imported);
    assert_eq!((device.memory().in_use_bytes, other.memory().cached_bytes), (0, 0));
    // A tensor on another card, on the processor, and one that is not aligned to 16 bytes.
    let any = device.any_buffer(DType::U8, 64).unwrap();
    tensor = any.to_dlpack(&[64]).unwrap();
    let raw = tensor.into_raw();
    // SAFETY: the tensor has no other owner, and no operation uses the elements.
    let error = unsafe {
        (*raw).dl_tensor.device.device_id = 1;
        device.import_dlpack(ManagedTensor::from_raw(raw))
    };
    let error = error.unwrap_err();
    assert!(error.to_string().contains("CUDA device 1, and this is CUDA device 0"), "{error}");
    tensor = Device::cpu().any_buffer(DType::U8, 64).unwrap().to_dlpack(&[64]).unwrap();
    // SAFETY: as for the first import.
    let error = unsafe { device.import_dlpack(tensor) }.unwrap_err();
    assert!(error.to_string().contains("the device is not the processor"), "{error}");
    tensor = any.slice(8..).unwrap().to_dlpack(&[56]).unwrap();
    // SAFETY: as for the first import.
    let error = unsafe { device.import_dlpack(tensor) }.unwrap_err();
    assert!(error.to_string().contains("not a multiple of 16"), "{error}");
    // And the processor has no use for the card's address.
    tensor = any.to_dlpack(&[64]).unwrap();
    // SAFETY: as for the first import.
    let error = unsafe { Device::cpu().import_dlpack(tensor) }.unwrap_err();
    assert!(error.to_string().contains("the device is not a CUDA device"), "{error}");
}
