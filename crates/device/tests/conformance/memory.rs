//! Memory is zeroed, reused and counted, and opening a device leaks nothing.

use evener_device::{Api, Device, Direction, Error};

use crate::{Behaviour, Outcome, ensure, ensure_error};

pub(crate) const ALL: &[Behaviour] = &[
    ("new_buffers_are_zero_even_when_reused", zeroed),
    ("memory_in_use_and_its_peak_are_counted", counted),
    ("host_memory_for_copies_is_counted", pinned),
    ("host_memory_of_secrets_is_zero_when_it_is_reused", secret),
    ("a_thousand_openings_leak_nothing", thousand_openings),
];

fn zeroed(device: &Device) -> Outcome {
    for len in [1usize, 1_000, 100_003] {
        for round in 0..5 {
            let buffer = device.buffer::<u32>(len)?;
            let mut stream = device.stream()?;
            let found = stream.download(&buffer)?.wait()?;
            ensure!(found.iter().all(|&word| word == 0), "round {round}: {len} words are not all zero");
            stream.upload(&vec![u32::MAX; len], &buffer)?;
            stream.wait()?;
        }
    }
    Ok(())
}

/// Host memory with secrets is zeroed, whether it comes back from its copy or is dropped with it.
fn secret(device: &Device) -> Outcome {
    const LEN: usize = 50_000;
    let buffer = device.buffer::<u32>(LEN)?;
    let mut stream = device.stream()?;
    for direction in [Direction::Upload, Direction::Download] {
        stream.fill(&buffer, 0x5ec_5ec)?;
        for waits in [true, false] {
            let mut host = device.host_buffer::<u32>(LEN, direction)?.zeroed_on_release();
            host.as_mut_slice().fill(0x5ec_5ec);
            let transfer = match direction {
                Direction::Upload => stream.upload_host(host, &buffer)?,
                Direction::Download => stream.download_host(&buffer, host)?,
            };
            if waits {
                transfer.wait()?;
            } else {
                drop(transfer);
            }
            stream.wait()?;
            // The memory may be given back a moment after the copy.
            for round in 0..3 {
                let reused = device.host_buffer::<u32>(LEN, direction)?;
                ensure!(
                    reused.as_slice().iter().all(|&word| word == 0),
                    "round {round}: {direction:?}, waited for: {waits}"
                );
            }
        }
    }
    Ok(())
}

fn counted(device: &Device) -> Outcome {
    const BYTES: u64 = 3 << 20;
    device.open()?;
    let before = device.memory();
    ensure!(before.in_use_bytes == 0, "{} bytes in use before anything was asked for", before.in_use_bytes);
    let first = device.buffer::<u8>(BYTES as usize)?;
    let second = device.buffer::<u8>(BYTES as usize)?;
    let both = device.memory();
    ensure!(
        (2 * BYTES..=2 * BYTES + BYTES / 2).contains(&both.in_use_bytes),
        "two buffers of {BYTES} count as {}",
        both.in_use_bytes
    );
    drop(first);
    device.stream()?.wait()?;
    let one = device.memory();
    ensure!(one.in_use_bytes < both.in_use_bytes, "a dropped buffer still counts as in use");
    ensure!(one.cached_bytes >= BYTES, "a dropped buffer is not kept: {one:?}");
    ensure!(one.peak_bytes == both.in_use_bytes, "the peak is {}, not {}", one.peak_bytes, both.in_use_bytes);
    let third = device.buffer::<u8>(BYTES as usize)?;
    let again = device.memory();
    ensure!(again.cached_bytes < one.cached_bytes, "the kept buffer was not used again: {again:?}");
    drop((second, third));
    device.trim();
    ensure!(device.memory().cached_bytes == 0, "after trimming: {:?}", device.memory());
    Ok(())
}

/// Processors and CUDA devices refuse a buffer of the machine's whole memory; wgpu does not report enough about a
/// device's memory to do so.
pub(crate) const WHERE_MEMORY_IS_KNOWN: &[Behaviour] =
    &[("cached_memory_of_one_opening_is_freed_for_another", given_up)];

fn given_up(device: &Device) -> Outcome {
    let (one, other) = (device.reopened(), device.reopened());
    drop(one.buffer::<u8>(3 << 20)?);
    one.stream()?.wait()?;
    let kept = one.memory().cached_bytes;
    ensure!(kept >= 3 << 20, "a dropped buffer is not kept: {kept} bytes");
    let all = other.capabilities()?.max_buffer_bytes as usize;
    ensure_error!(Error::OutOfMemory { .. }, other.buffer_uninit::<u8>(all));
    let kept = one.memory().cached_bytes;
    ensure!(kept == 0, "{kept} bytes are cached while another opening is out of memory");
    Ok(())
}

fn pinned(device: &Device) -> Outcome {
    const BYTES: u64 = 3 << 20;
    // Copies to another machine begin in ordinary memory.
    let is_pinned = device.describe().api != Api::Cpu && device.describe().host.is_none();
    for direction in [Direction::Upload, Direction::Download] {
        let before = device.memory().pinned_bytes;
        let host = device.host_buffer::<u8>(BYTES as usize, direction)?;
        let with = device.memory().pinned_bytes - before;
        drop(host);
        let after = device.memory();
        if is_pinned {
            ensure!((BYTES..=BYTES + BYTES / 8).contains(&with), "{BYTES} bytes count as {with}");
            ensure!(after.pinned_cached_bytes >= BYTES, "dropped host memory is not kept: {after:?}");
        } else {
            ensure!(with == 0, "ordinary memory counts as {with} pinned bytes");
        }
        ensure!(after.pinned_bytes == before, "{after:?} after {before} pinned bytes");
        device.trim();
        ensure!(device.memory().pinned_cached_bytes == 0, "after trimming: {:?}", device.memory());
    }
    Ok(())
}

fn thousand_openings(device: &Device) -> Outcome {
    // One handle stays open: with some drivers, the first opening takes a second.
    device.open()?;
    let open_once = || -> Outcome {
        let device = device.reopened();
        let buffer = device.buffer_from(&[1u32, 2, 3])?;
        let found = device.stream()?.download(&buffer)?.wait()?;
        ensure!(found == [1, 2, 3], "{found:?} came back");
        Ok(())
    };
    for _ in 0..100 {
        open_once()?;
    }
    let before = Held::now();
    for _ in 0..1000 {
        open_once()?;
    }
    // The threads of dropped devices end soon.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let after = Held::now();
    ensure!(after.threads <= before.threads + 4, "{} threads became {}", before.threads, after.threads);
    ensure!(after.files <= before.files + 4, "{} open files became {}", before.files, after.files);
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    ensure!(grown < 16 << 20, "a thousand openings took {grown} bytes");
    Ok(())
}

/// The resources of this process on Linux; zero on other systems.
struct Held {
    resident_bytes: u64,
    threads: u64,
    files: u64,
}

impl Held {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0u64)
        };
        Held {
            resident_bytes: field("VmRSS:") * 1024,
            threads: field("Threads:"),
            files: std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64),
        }
    }
}
