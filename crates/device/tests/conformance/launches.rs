//! Kernels compute the right results up to every limit and are refused above it; timestamps measure the device.

use std::time::{Duration, Instant};

use evener_device::{Api, Device, Error, Features};

use crate::{Behaviour, Outcome, ensure, ensure_error, sources};

pub(crate) const ALL: &[Behaviour] = &[
    ("chained_kernels_run_in_order", chained),
    ("a_bound_kernel_can_be_launched_again_with_other_parameters", relaunched),
    ("slices_of_one_buffer_that_do_not_overlap_are_bound_to_one_kernel", slices),
    ("more_workgroups_than_one_dimension_has_are_folded", folded),
    ("recorded_launches_run_in_order_as_often_as_they_are_replayed", recorded),
    ("a_kernel_is_recorded_on_every_stream_that_launches_it", recorded_on_partitions),
    ("the_workgroup_size_is_chosen_at_launch_if_the_language_allows_it", sized),
    ("entry_points_of_one_module_are_compiled_with_its_constants", modules),
    ("wide_products_are_exact_in_every_body", wide_products),
    ("launches_reach_every_limit_and_no_further", group_limits),
    ("workgroups_reach_their_limit_and_no_further", workgroup_limits),
    ("shared_memory_reaches_its_limit_and_no_further", shared_limits),
    ("parameters_reach_their_limit_and_no_further", params_limits),
    ("buffers_of_a_kernel_reach_their_limit_and_no_further", binding_limits),
    ("a_launch_without_workgroups_does_nothing", nothing),
    ("an_empty_slice_can_be_bound_at_any_offset", empty_slices),
    ("a_launch_whose_thread_count_overflows_is_refused", too_many_threads),
    ("timestamps_measure_the_device", timestamps),
];

fn chained(device: &Device) -> Outcome {
    const LEN: usize = 1_000;
    let program = device.compile(&sources::triple())?;
    let first: Vec<u32> = (0..LEN as u32).collect();
    let (a, b) = (device.buffer_from(&first)?, device.buffer::<u32>(LEN)?);
    let (there, back) = (program.bind(&[a.arg(), b.arg()])?, program.bind(&[b.arg(), a.arg()])?);
    let mut stream = device.stream()?;
    for round in 0..100u32 {
        stream.launch(&there, 5, &[LEN as u32, round])?;
        stream.launch(&back, 3, &[LEN as u32, round])?;
    }
    let found = stream.download(&a)?.wait()?;
    for (first, found) in first.into_iter().zip(found) {
        let step = |x: u32, round: u32| x.wrapping_mul(3).wrapping_add(round);
        let expected = (0..100).fold(first, |x, round| step(step(x, round), round));
        ensure!(found == expected, "{first}: {expected} expected, {found} found");
    }
    Ok(())
}

fn relaunched(device: &Device) -> Outcome {
    let program = device.compile(&sources::triple())?;
    ensure!(!program.body().is_empty(), "the body has no name");
    let (input, output) = (device.buffer_from(&[1u32, 2, 3])?, device.buffer::<u32>(3)?);
    let bound = program.bind(&[input.arg(), output.arg()])?;
    let mut stream = device.stream()?;
    for addend in [1, 10, 100] {
        stream.launch(&bound, 1, &[2, addend])?;
        let found = stream.download(&output)?.wait()?;
        ensure!(found == [3 + addend, 6 + addend, 0], "addend {addend} gave {found:?}");
    }
    Ok(())
}

fn slices(device: &Device) -> Outcome {
    const LEN: usize = 4096;
    let first: Vec<u32> = (0..LEN as u32).collect();
    let buffer = device.buffer_from(&first)?;
    let part = |range: std::ops::Range<usize>| buffer.slice(range);
    let mut stream = device.stream()?;
    // One slice is read and another written; then the other way round.
    let program = device.compile(&sources::triple())?;
    let there = program.bind(&[part(0..1024)?.arg(), part(2048..3072)?.arg()])?;
    let back = program.bind(&[part(2048..3072)?.arg(), part(1024..2048)?.arg()])?;
    for (addend, bound) in [(1, &there), (2, &there), (5, &back), (3, &there)] {
        stream.launch(bound, 16, &[1024, addend])?;
    }
    let found = stream.download(&buffer)?.wait()?;
    let expected = |at: u32| match at {
        0..1024 => at,
        1024..2048 => 3 * (3 * (at - 1024) + 2) + 5,
        2048..3072 => 3 * (at - 2048) + 3,
        _ => at,
    };
    for (at, found) in found.into_iter().enumerate() {
        let expected = expected(at as u32);
        ensure!(found == expected, "element {at}: {expected} expected, {found} found");
    }
    // Two slices are written, beside one that is read twice.
    let program = device.compile(&sources::both())?;
    let read = part(0..512)?;
    let writes = [part(3072..3584)?, part(1024..1536)?];
    let arguments = [read.arg(), writes[0].arg(), part(256..768)?.arg(), writes[1].arg()];
    stream.launch(&program.bind(&arguments)?, 8, &512)?;
    let found = stream.download(&buffer)?.wait()?;
    for at in 0..512 {
        let (sum, difference) = (found[3072 + at], found[1024 + at]);
        ensure!(sum == 2 * at as u32 + 256, "sum {at} is {sum}");
        ensure!(difference == 256, "difference {at} is {difference}");
    }
    let overlapping = [read.arg(), part(256..768)?.arg(), part(512..1024)?.arg(), writes[1].arg()];
    let text = ensure_error!(Error::Unsupported { .. }, program.bind(&overlapping));
    ensure!(text.contains("overlap"), "{text}");
    Ok(())
}

fn modules(device: &Device) -> Outcome {
    let mut stream = device.stream()?;
    for width in [32, 128] {
        let data = device.buffer_from(&(0..1024).collect::<Vec<u32>>())?;
        for kernel in sources::module(width) {
            let bound = device.compile(&kernel)?.bind(&[data.arg()])?;
            stream.launch(&bound, 1024 / width, &())?;
        }
        // Each block of `width` elements is reversed, and `width` is added to each element.
        let found = stream.download(&data)?.wait()?;
        for (at, found) in found.into_iter().enumerate() {
            let (block, within) = (at as u32 / width, at as u32 % width);
            let expected = block * width + (width - 1 - within) + width;
            ensure!(found == expected, "width {width}, element {at}: {expected} expected, {found} found");
        }
    }
    Ok(())
}

fn sized(device: &Device) -> Outcome {
    let mut stream = device.stream()?;
    let data = device.buffer_from(&(0..256).collect::<Vec<u32>>())?;
    let bound = device.compile(&sources::reverse(64))?.bind(&[data.slice(..64)?.arg()])?;
    if matches!(device.describe().api, Api::Cuda | Api::Cpu) {
        // The kernel reverses one element per thread; the processor's body reverses the whole buffer.
        let bound = device.compile(&sources::reverse(64))?.bind(&[data.arg()])?.with_workgroup(256, 1024)?;
        stream.launch(&bound, 1, &())?;
        let found = stream.download(&data)?.wait()?;
        ensure!(found == (0..256).rev().collect::<Vec<u32>>(), "{:?}", &found[..4]);
        ensure_error!(Error::Unsupported { .. }, bound.with_workgroup(0, 0));
    } else {
        let text = ensure_error!(Error::Unsupported { .. }, bound.with_workgroup(32, 0));
        ensure!(text.contains("override"), "{text}");
    }
    let occupancy = bound.occupancy()?;
    ensure!(occupancy.is_some() == (device.describe().api == Api::Cuda), "occupancy {occupancy:?}");
    ensure!(occupancy != Some(0), "a kernel that fits runs at least once");
    if device.describe().api == Api::Cuda {
        let (small, large) = (bound.with_workgroup(32, 128)?, bound.with_workgroup(1024, 4096)?);
        ensure!(small.occupancy()? > large.occupancy()?, "{:?}, {:?}", small.occupancy(), large.occupancy());
        ensure_error!(Error::Unsupported { .. }, bound.with_workgroup(4096, 0));
        ensure_error!(Error::Unsupported { .. }, bound.with_workgroup(32, 1 << 30));
    }
    Ok(())
}

fn recorded(device: &Device) -> Outcome {
    const LEN: usize = 1_000;
    let program = device.compile(&sources::triple())?;
    let first: Vec<u32> = (0..LEN as u32).collect();
    let (a, b) = (device.buffer_from(&first)?, device.buffer::<u32>(LEN)?);
    let (there, back) = (program.bind(&[a.arg(), b.arg()])?, program.bind(&[b.arg(), a.arg()])?);
    let mut stream = device.stream()?;
    let graph = stream.record_graph(|recorder| {
        for round in 0..5u32 {
            recorder.launch(&there, 5, &[LEN as u32, round])?;
            recorder.launch(&back, [0, 1, 1], &[LEN as u32, 99])?;
            recorder.launch(&back, 3, &[LEN as u32, round])?;
        }
        Ok(())
    })?;
    let found = stream.download(&a)?.wait()?;
    ensure!(found == first, "something ran while it was recorded");
    // Parameters of another size.
    ensure_error!(
        Error::Unsupported { .. },
        stream.record_graph(|recorder| recorder.launch(&there, 1, &0u32))
    );
    // The graph keeps its bound kernels alive, and another stream may replay it too.
    drop((there, back));
    stream.replay(&graph)?;
    stream.replay(&graph)?;
    stream.wait()?;
    let mut other = device.stream()?;
    other.replay(&graph)?;
    let found = other.download(&a)?.wait()?;
    for (first, found) in first.into_iter().zip(found) {
        let step = |x: u32, round: u32| x.wrapping_mul(3).wrapping_add(round);
        let expected = (0..15).fold(first, |x, round| step(step(x, round % 5), round % 5));
        ensure!(found == expected, "{first}: {expected} expected, {found} found");
    }
    Ok(())
}

/// A kernel of the device on a stream of its partition, and the other way round. Devices that cannot be split have only the
/// device itself.
fn recorded_on_partitions(device: &Device) -> Outcome {
    let half = device.describe().compute_units.unwrap_or(2).div_ceil(2);
    let partitions = device.split(&[half]).unwrap_or_default();
    let devices: Vec<&Device> = partitions.iter().chain([device]).collect();
    for of in &devices {
        let (input, output) = (of.buffer_from(&[1u32, 2])?, of.buffer::<u32>(2)?);
        let bound = of.compile(&sources::triple())?.bind(&[input.arg(), output.arg()])?;
        for on in &devices {
            let mut stream = on.stream()?;
            let launched = stream.launch(&bound, 1, &[2u32, 1]).and_then(|()| stream.wait());
            let recorded = stream.record_graph(|recorder| recorder.launch(&bound, 1, &[2u32, 2]));
            ensure!(
                launched.is_ok() == recorded.is_ok(),
                "a kernel of {} on {}: launched: {launched:?}, recorded: {recorded:?}",
                of.id(),
                on.id()
            );
            ensure!(launched.is_ok() || of.id() != on.id(), "{launched:?}");
            if let Ok(graph) = recorded {
                stream.replay(&graph)?;
                stream.wait()?;
                let found = of.stream()?.download(&output)?.wait()?;
                ensure!(found == [5, 8], "[5, 8] expected, {found:?} found");
            }
        }
    }
    Ok(())
}

fn folded(device: &Device) -> Outcome {
    const GROUPS: usize = 200_001;
    let program = device.compile(&sources::count())?;
    let seen = device.buffer::<u32>(GROUPS)?;
    let bound = program.bind(&[seen.arg()])?;
    let mut stream = device.stream()?;
    stream.launch_folded(&bound, GROUPS as u64, &(GROUPS as u32))?;
    stream.launch_folded(&bound, 0, &0u32)?;
    let found = stream.download(&seen)?.wait()?;
    let wrong = found.iter().position(|&times| times != 1);
    ensure!(wrong.is_none(), "workgroup {wrong:?} ran {} times", found[wrong.unwrap_or(0)]);
    Ok(())
}

fn wide_products(device: &Device) -> Outcome {
    let edge = [0, 1, 2, 0xFFFF, 0x1_0000, u32::MAX - 1, u32::MAX, 0x9E37_79B9];
    let mut pairs: Vec<[u32; 4]> = Vec::new();
    for a in edge {
        for b in edge {
            for c in edge {
                pairs.extend(edge.map(|d| [a, b, c, d]));
            }
        }
    }
    let input = device.buffer_from(&pairs)?;
    for only_fallback in [false, true] {
        let program = device.compile(&sources::wide_product(only_fallback))?;
        if device.capabilities()?.features.contains(Features::INT64) && program.body().starts_with("WGSL") {
            let named = program.body().contains("INT64");
            ensure!(named != only_fallback, "body `{}` was chosen", program.body());
        }
        let output = device.buffer::<[u32; 4]>(pairs.len())?;
        let mut stream = device.stream()?;
        stream.launch(&program.bind(&[input.arg(), output.arg()])?, pairs.len() as u32 / 64, &())?;
        for (pair, found) in pairs.iter().zip(stream.download(&output)?.wait()?) {
            let expected = sources::wide(*pair);
            ensure!(found == expected, "{pair:x?} gave {found:x?}, not {expected:x?} ({})", program.body());
        }
    }
    Ok(())
}

fn group_limits(device: &Device) -> Outcome {
    let limits = device.capabilities()?.max_groups;
    let output = device.buffer::<u32>(3)?;
    let bound = device.compile(&sources::extent())?.bind(&[output.arg()])?;
    let mut stream = device.stream()?;
    for dimension in 0..3 {
        let mut groups = [1u32; 3];
        groups[dimension] = limits[dimension];
        stream.launch(&bound, groups, &())?;
        let found = stream.download(&output)?.wait()?;
        ensure!(found == groups, "{groups:?} workgroups came out as {found:?}");
        if let Some(beyond) = limits[dimension].checked_add(1) {
            groups[dimension] = beyond;
            let text = ensure_error!(Error::Unsupported { .. }, stream.launch(&bound, groups, &()));
            ensure!(text.contains(&limits[dimension].to_string()), "the limit is not in: {text}");
        }
    }
    Ok(())
}

fn workgroup_limits(device: &Device) -> Outcome {
    let has = device.capabilities()?;
    let max = has.max_workgroup[0].min(has.max_workgroup_threads).min(1 << 16);
    let max = max.min(has.max_shared_bytes / 4);
    for threads in [1, 7, max] {
        let first: Vec<u32> = (0..threads).collect();
        let data = device.buffer_from(&first)?;
        let bound = device.compile(&sources::reverse(threads))?.bind(&[data.arg()])?;
        let mut stream = device.stream()?;
        stream.launch(&bound, 1, &())?;
        let found = stream.download(&data)?.wait()?;
        ensure!(found.iter().rev().eq(&first), "{threads} threads did not reverse their numbers");
    }
    if let Some(beyond) = has.max_workgroup_threads.checked_add(1) {
        let kernel = sources::extent().workgroup(beyond);
        ensure_error!(Error::Unsupported { .. }, device.compile(&kernel));
    }
    ensure_error!(Error::Unsupported { .. }, device.compile(&sources::extent().workgroup(0)));
    Ok(())
}

fn shared_limits(device: &Device) -> Outcome {
    let max = device.capabilities()?.max_shared_bytes.min(1 << 20) / 4 * 4;
    let output = device.buffer::<u32>(1)?;
    let bound = device.compile(&sources::shared_sum(max))?.bind(&[output.arg()])?;
    let mut stream = device.stream()?;
    stream.launch(&bound, 1, &(max / 4))?;
    let found = stream.download(&output)?.wait()?[0];
    let expected = (0..max / 4).fold(0u32, |sum, i| sum.wrapping_add(i.wrapping_mul(i)));
    ensure!(found == expected, "{max} bytes: {expected} expected, {found} found");
    if device.capabilities()?.max_shared_bytes < u32::MAX {
        let beyond = sources::shared_sum(device.capabilities()?.max_shared_bytes + 4);
        ensure_error!(Error::Unsupported { .. }, device.compile(&beyond));
    }
    Ok(())
}

fn params_limits(device: &Device) -> Outcome {
    let output = device.buffer::<u32>(1)?;
    let mut stream = device.stream()?;
    let one = device.compile(&sources::sum_params::<1>())?.bind(&[output.arg()])?;
    stream.launch(&one, 1, &[41u32])?;
    ensure!(stream.download(&output)?.wait()? == [41], "one parameter did not arrive");
    let max = device.capabilities()?.max_params_bytes;
    ensure!(max >= 128, "only {max} bytes of parameters");
    let full = device.compile(&sources::sum_params::<32>())?.bind(&[output.arg()])?;
    let params: [u32; 32] = std::array::from_fn(|i| 1 << i);
    stream.launch(&full, 1, &params)?;
    ensure!(stream.download(&output)?.wait()? == [u32::MAX], "some of 128 bytes did not arrive");
    ensure_error!(Error::Unsupported { .. }, stream.launch(&full, 1, &0u32));
    ensure_error!(Error::Unsupported { .. }, device.compile(&sources::sum_params::<2048>()));
    Ok(())
}

fn binding_limits(device: &Device) -> Outcome {
    let max = device.capabilities()?.max_bindings;
    let kernel = sources::gather(max);
    let buffers: Vec<_> = (0..max).map(|i| device.buffer_from(&[i * i])).collect::<Result<_, _>>()?;
    let arguments: Vec<_> = buffers.iter().map(|buffer| buffer.arg()).collect();
    let bound = device.compile(&kernel)?.bind(&arguments)?;
    let mut stream = device.stream()?;
    stream.launch(&bound, 1, &())?;
    let found = stream.download(&buffers[max as usize - 1])?.wait()?[0];
    let expected: u32 = (0..max - 1).map(|i| i * i).sum();
    ensure!(found == expected, "{max} buffers: {expected} expected, {found} found");
    ensure_error!(Error::Unsupported { .. }, device.compile(&sources::gather(max + 1)));
    Ok(())
}

fn nothing(device: &Device) -> Outcome {
    let output = device.buffer_from(&[5u32, 6, 7])?;
    let empty = device.buffer::<u32>(0)?;
    let extent = device.compile(&sources::extent())?.bind(&[output.arg()])?;
    let mut stream = device.stream()?;
    stream.launch(&extent, [0, 1, 1], &())?;
    stream.launch(&extent, [1, 1, 0], &())?;
    let triple = device.compile(&sources::triple())?;
    stream.launch(&triple.bind(&[empty.arg(), output.arg()])?, 1, &[0, 0])?;
    stream.zero(&empty)?;
    ensure!(stream.download(&output)?.wait()? == [5, 6, 7], "something was written");
    ensure!(stream.download(&empty)?.wait()?.is_empty(), "an empty buffer has elements");
    stream.wait()?;
    Ok(())
}

fn empty_slices(device: &Device) -> Outcome {
    let full = device.buffer_from(&[5u32, 6, 7])?;
    let empty =
        [device.buffer(0)?, device.buffer_from(&[])?, full.slice(0..0)?, full.slice(1..1)?, full.slice(3..)?];
    let triple = device.compile(&sources::triple())?;
    let mut stream = device.stream()?;
    let input = device.buffer::<u32>(4)?;
    for (index, empty) in empty.iter().enumerate() {
        for arguments in [[input.arg(), empty.arg()], [empty.arg(), input.arg()], [empty.arg(), empty.arg()]]
        {
            stream.launch(&triple.bind(&arguments)?, 1, &[0, 0])?;
            stream.wait().map_err(|why| format!("empty buffer {index}: {why}"))?;
        }
    }
    ensure!(stream.download(&full)?.wait()? == [5, 6, 7], "something was written");
    Ok(())
}

fn too_many_threads(device: &Device) -> Outcome {
    let output = device.buffer_from(&[5u32, 6, 7])?;
    let extent = device.compile(&sources::extent())?.bind(&[output.arg()])?;
    let mut stream = device.stream()?;
    let text = ensure_error!(Error::Unsupported { .. }, stream.launch_folded(&extent, u64::MAX, &()));
    ensure!(text.contains(&u64::MAX.to_string()), "no limit in: {text}");
    let text = ensure_error!(Error::Unsupported { .. }, stream.launch(&extent, [u32::MAX; 3], &()));
    ensure!(text.contains(&u32::MAX.to_string()), "no limit in: {text}");
    ensure!(stream.download(&output)?.wait()? == [5, 6, 7], "something was launched");
    let huge = sources::extent().workgroup([u32::MAX; 3]);
    ensure!(huge.workgroup_threads() == u64::MAX, "{} threads", huge.workgroup_threads());
    let text = ensure_error!(Error::Unsupported { .. }, device.compile(&huge));
    ensure!(text.contains(&u32::MAX.to_string()), "no limit in: {text}");
    Ok(())
}

fn timestamps(device: &Device) -> Outcome {
    let mut stream = device.stream()?;
    if !device.capabilities()?.features.contains(Features::TIMESTAMPS) {
        ensure_error!(Error::Unsupported { .. }, stream.timestamp());
        return Ok(());
    }
    let data = device.buffer_from(&[1u32])?;
    let bound = device.compile(&sources::spin())?.bind(&[data.arg()])?;
    stream.launch(&bound, 1, &10u32)?;
    stream.wait()?;
    let start = Instant::now();
    let t0 = stream.timestamp()?;
    stream.launch(&bound, 1, &(sources::MAX_ROUNDS / 4))?;
    let t1 = stream.timestamp()?;
    stream.launch(&bound, 1, &sources::MAX_ROUNDS)?;
    let t2 = stream.timestamp()?;
    stream.wait()?;
    let wall = start.elapsed();
    let (short, long, both) = (t1.since(&t0)?, t2.since(&t1)?, t2.since(&t0)?);
    ensure!(short > Duration::ZERO && long > short, "{short:?} for a quarter of {long:?}'s work");
    let sum = short + long;
    ensure!(both.abs_diff(sum) < Duration::from_micros(50), "{both:?} is not {short:?} and {long:?}");
    ensure!(both <= wall + wall / 10, "{both:?} on the device's clock, {wall:?} on the host's");
    Ok(())
}
