//! An operation that is not possible fails with a reason, and the device still works afterwards.

use std::time::Duration;

use evener_device::{Api, BoxError, Device, Direction, Error, Kernel, Launch, Severity};

use crate::{
    Behaviour, Outcome, ensure, ensure_error,
    sources::{self, WithCuda},
};

pub(crate) const EVERYWHERE: &[Behaviour] = &[
    ("a_kernel_without_a_body_for_the_device_is_refused", no_body),
    ("wrong_arguments_are_refused", wrong_arguments),
    ("memory_of_other_libraries_is_for_cuda_devices", others_memory),
    ("more_memory_than_the_device_has_is_refused", too_much_memory),
    ("elements_that_host_memory_is_not_aligned_for_are_refused", over_aligned),
    ("element_counts_that_overflow_are_refused", uncountable),
    ("a_wait_that_is_too_short_times_out_and_the_work_goes_on", timed_out),
];

/// Rust bodies can return errors and panic.
pub(crate) const ON_PROCESSORS: &[Behaviour] = &[
    ("a_task_that_fails_is_reported_once", task_fails),
    ("a_body_that_takes_a_buffer_as_another_type_fails_with_both_types", wrong_types),
];

/// CUDA C and WGSL bodies are compiled at run time.
pub(crate) const ON_GPUS: &[Behaviour] = &[
    ("a_kernel_that_does_not_compile_names_the_line", will_not_compile),
    ("a_buffer_of_another_device_is_refused", foreign_buffers),
    ("a_kernel_of_another_device_is_neither_launched_nor_recorded", foreign_kernels),
];

/// Checks that the device still computes.
fn still_works(device: &Device) -> Outcome {
    let (input, output) = (device.buffer_from(&[1u32, 2])?, device.buffer::<u32>(2)?);
    let bound = device.compile(&sources::triple())?.bind(&[input.arg(), output.arg()])?;
    let mut stream = device.stream()?;
    stream.launch(&bound, 1, &[2, 1])?;
    let found = stream.download(&output)?.wait()?;
    ensure!(found == [4, 7], "[4, 7] expected, {found:?} found");
    Ok(())
}

/// Only CUDA devices accept memory and events of other libraries.
#[allow(unsafe_code)]
fn others_memory(device: &Device) -> Outcome {
    let mut stream = device.stream()?;
    let (is_cuda, has_handle) = (device.describe().api == Api::Cuda, stream.cuda_handle().is_some());
    ensure!(has_handle == is_cuda, "whether the stream has a handle is {has_handle}");
    if is_cuda {
        return Ok(());
    }
    // SAFETY: there are no elements, and devices other than CUDA's use neither address nor event.
    unsafe {
        ensure_error!(Error::Unsupported { .. }, device.buffer_at_cuda_address::<u32>(0, 0, ()));
        ensure_error!(Error::Unsupported { .. }, stream.wait_cuda_event(std::ptr::null_mut()));
        ensure_error!(Error::Unsupported { .. }, stream.record_cuda_event(std::ptr::null_mut()));
    }
    Ok(())
}

fn will_not_compile(device: &Device) -> Outcome {
    let broken = Kernel::new("broken")
        .writes::<u32>()
        .with_cuda(
            "// one\n// two\nextern \"C\" __global__ void broken(unsigned *out) { out[0] = nowhere; }\n",
        )
        .wgsl(
            "// one\n@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(64) fn broken() { out[0] = nowhere; }\n",
        );
    let text = ensure_error!(Error::WillNotCompile { .. }, device.compile(&broken));
    ensure!(text.contains("nowhere") && text.contains('3'), "no name and line in: {text}");
    still_works(device)
}

fn over_aligned(device: &Device) -> Outcome {
    #[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
    #[repr(C, align(4096))]
    struct Page([u8; 4096]);
    #[derive(Debug, Clone, Copy, PartialEq, bytemuck::Zeroable, bytemuck::Pod)]
    #[repr(C, align(64))]
    struct Line([u8; 64]);

    for direction in [Direction::Upload, Direction::Download] {
        let text = ensure_error!(Error::Unsupported { .. }, device.host_buffer::<Page>(3, direction));
        ensure!(text.contains("4096") && text.contains("Page"), "no type and alignment in: {text}");
    }
    let made = [
        device.buffer::<Page>(2),
        device.buffer_uninit(0),
        device.buffer_from(&[Page([1; 4096]); 2]),
        device.buffer::<u8>(8192)?.cast(),
    ];
    for made in made {
        let text = ensure_error!(Error::Unsupported { .. }, made);
        ensure!(text.contains("4096") && text.contains("Page"), "no type and alignment in: {text}");
    }
    let lines = device.buffer_from(&[Line([3; 64]); 5])?;
    let found = device.stream()?.download(&lines)?.wait()?;
    ensure!(found == [Line([3; 64]); 5], "lines came back changed");
    let shared = device.host_buffer::<Line>(5, Direction::Upload)?.share();
    ensure!(shared.as_slice().len() == 5, "{} lines shared", shared.as_slice().len());
    still_works(device)
}

fn uncountable(device: &Device) -> Outcome {
    let (mut stream, buffer) = (device.stream()?, device.buffer::<u64>(4)?);
    for count in [usize::MAX, usize::MAX / 8 + 2, 1 << 61, 5] {
        ensure_error!(Error::Unsupported { .. }, device.buffer::<u64>(count.max(1 << 61)));
        let host = device.host_buffer::<u64>(4, Direction::Upload)?;
        ensure_error!(Error::Unsupported { .. }, stream.upload_host_prefix(host, count, &buffer));
        let staging = device.staging_buffer::<u64>(4)?;
        let staged = stream.upload_staged(staging, count, &buffer, |_, _, _| Ok(()));
        ensure_error!(Error::Unsupported { .. }, staged);
    }
    still_works(device)
}

fn no_body(device: &Device) -> Outcome {
    ensure_error!(Error::Unsupported { .. }, device.compile(&Kernel::new("empty")));
    still_works(device)
}

fn wrong_arguments(device: &Device) -> Outcome {
    let program = device.compile(&sources::triple())?;
    let (a, b) = (device.buffer::<u32>(64)?, device.buffer::<u32>(64)?);
    ensure_error!(Error::Unsupported { .. }, program.bind(&[a.arg()]));
    let text = ensure_error!(Error::Unsupported { .. }, program.bind(&[a.cast::<i32>()?.arg(), b.arg()]));
    ensure!(text.contains("u32") && text.contains("i32"), "the types are not in: {text}");
    ensure_error!(Error::Unsupported { .. }, program.bind(&[a.arg(), a.arg()]));
    let alignment = device.capabilities()?.binding_alignment;
    if alignment > 4 {
        let text = ensure_error!(Error::Unsupported { .. }, program.bind(&[a.slice(1..)?.arg(), b.arg()]));
        ensure!(text.contains(&alignment.to_string()), "the alignment is not in: {text}");
    }
    still_works(device)
}

/// A body's slices are checked against the declaration, as `bind` checks the arguments.
fn wrong_types(device: &Device) -> Outcome {
    type Body = fn(&mut Launch<'_>) -> Result<(), BoxError>;
    let bodies: [(Body, &str); 6] = [
        (|launch| launch.read::<u32>(0).map(drop), "buffer 0 is declared as f32 and taken as u32"),
        (|launch| launch.read::<[f32; 2]>(0).map(drop), "buffer 0 is declared as f32 and taken as [f32; 2]"),
        (|launch| launch.write::<i32>(1).map(drop), "buffer 1 is declared as u32 and taken as i32"),
        (|launch| launch.read::<i32>(1).map(drop), "buffer 1 is declared as u32 and taken as i32"),
        (|launch| launch.write::<f32>(0).map(drop), "buffer 0 is declared with `reads`"),
        (|launch| launch.params::<u64>().map(drop), "4 bytes of parameters are declared, and u64 has 8"),
    ];
    let (input, output) = (device.buffer_from(&[1.0f32, 2.0])?, device.buffer_from(&[3u32, 4])?);
    let mut stream = device.stream()?;
    for (body, expected) in bodies {
        let kernel = Kernel::new("body").reads::<f32>().writes::<u32>().params::<u32>().rust(body);
        stream.launch(&device.compile(&kernel)?.bind(&[input.arg(), output.arg()])?, 1, &1u32)?;
        let text = ensure_error!(Error::Task { .. }, stream.wait());
        ensure!(text.contains(expected), "`{expected}` is not in: {text}");
    }
    still_works(device)
}

fn foreign_buffers(device: &Device) -> Outcome {
    let program = device.compile(&sources::triple())?;
    let (own, foreign) = (device.buffer::<u32>(64)?, Device::cpu().buffer::<u32>(64)?);
    ensure_error!(Error::Unsupported { .. }, program.bind(&[foreign.arg(), own.arg()]));
    ensure_error!(Error::Unsupported { .. }, device.stream()?.upload(&[1], &foreign));
    ensure_error!(Error::Unsupported { .. }, device.stream()?.copy(&own, &foreign));
    ensure_error!(Error::Unsupported { .. }, device.stream()?.download(&foreign));
    still_works(device)
}

fn foreign_kernels(device: &Device) -> Outcome {
    let processor = Device::cpu();
    let (input, output) = (processor.buffer::<u32>(64)?, processor.buffer::<u32>(64)?);
    let bound = processor.compile(&sources::triple())?.bind(&[input.arg(), output.arg()])?;
    let mut stream = device.stream()?;
    let launched = ensure_error!(Error::Unsupported { .. }, stream.launch(&bound, 1, &[2u32, 1]));
    let recorded = ensure_error!(
        Error::Unsupported { .. },
        stream.record_graph(|recorder| recorder.launch(&bound, 1, &[2u32, 1]))
    );
    ensure!(launched == recorded, "launched: {launched}; recorded: {recorded}");
    still_works(device)
}

fn too_much_memory(device: &Device) -> Outcome {
    let memory = device.describe().memory_bytes.unwrap_or(1 << 40);
    for bytes in [memory.saturating_mul(2), 1 << 50] {
        let result = device.buffer::<u8>(bytes as usize);
        let text = ensure_error!(Error::OutOfMemory { .. }, result);
        ensure!(text.contains("bytes requested"), "no sizes in: {text}");
    }
    ensure_error!(Error::Unsupported { .. }, device.buffer::<u64>(usize::MAX));
    let Err(error) = device.buffer::<u8>(1 << 50) else { return Err("a pebibyte was had".into()) };
    ensure!(error.severity() == Severity::Shrink, "{error} is not to be met by asking for less");
    ensure!(error.device() == Some(device.id()), "{error} does not name the device");
    still_works(device)
}

fn timed_out(device: &Device) -> Outcome {
    let data = device.buffer_from(&[1u32])?;
    let bound = device.compile(&sources::spin())?.bind(&[data.arg()])?;
    let mut stream = device.stream()?;
    const LAUNCHES: u32 = 10;
    for _ in 0..LAUNCHES {
        stream.launch(&bound, 1, &sources::MAX_ROUNDS)?;
    }
    ensure_error!(Error::TimedOut { .. }, stream.wait_timeout(Duration::from_millis(1)));
    let event = stream.record_event()?;
    ensure!(!event.is_done()?, "forty million dependent steps took no time");
    ensure_error!(Error::TimedOut { .. }, event.wait_timeout(Duration::from_millis(1)));
    stream.wait_timeout(Duration::from_secs(60))?;
    ensure!(event.is_done()?, "the stream is done, its event is not");
    let (found, expected) =
        (stream.download(&data)?.wait()?[0], sources::spun(1, LAUNCHES * sources::MAX_ROUNDS));
    ensure!(found == expected, "{expected} expected, {found} found");
    Ok(())
}

fn task_fails(device: &Device) -> Outcome {
    let fails = Kernel::new("fails").writes::<u32>().rust(|launch| match launch.write::<u32>(0)? {
        [0, ..] => Err("the first number is zero".into()),
        [1, ..] => panic!("the first number is one"),
        _ => Ok(()),
    });
    let program = device.compile(&fails)?;
    std::panic::set_hook(Box::new(|_| {}));
    let mut stream = device.stream()?;
    for (first, words) in [(0u32, "number is zero"), (1, "number is one")] {
        let data = device.buffer_from(&[first])?;
        stream.launch(&program.bind(&[data.arg()])?, 1, &())?;
        let text = ensure_error!(Error::Task { .. }, stream.wait());
        ensure!(text.contains(words), "not in: {text}");
        stream.wait()?;
    }
    let _ = std::panic::take_hook();
    still_works(device)
}
