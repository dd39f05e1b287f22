//! Rates of a device, measured by running small kernels and copies on it.

mod kernels;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use self::kernels::RateParams;
use crate::{
    backend::{Direction, copy::copy_parallel},
    describe::{Api, DeviceKind},
    device::Device,
    disk_cache,
    error::{Error, Result, SharedError},
    kernel::{BoundKernel, BoxError},
    stream::Stream,
};

/// The measured rates of a device. Which one matters depends on the task: integer multiplies for field arithmetic,
/// multiply-adds for tensors, bandwidths for work on host data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// 32-bit integer multiplies per second.
    pub int32_multiplies_per_s: f64,
    /// 32-bit floating-point multiply-adds per second.
    pub f32_multiply_adds_per_s: f64,
    /// Bytes read plus bytes written in device memory per second.
    pub memory_bytes_per_s: f64,
    /// Bytes per second from the host to the device, from a [`HostBuffer`](crate::HostBuffer). On Vulkan, Metal, DX12 and
    /// OpenGL this includes writing the host buffer: it may be in device memory, so that the write crosses the bus.
    pub upload_bytes_per_s: f64,
    /// Bytes per second from the device to the host, into a [`HostBuffer`](crate::HostBuffer).
    pub download_bytes_per_s: f64,
    /// The time from launching an empty kernel until the host knows that it has finished, in seconds.
    #[serde(rename = "launch_latency_s", with = "crate::seconds")]
    pub launch_latency: Duration,
}

/// The version of the measurement: increased when it changes, so that stored rates are measured again.
const VERSION: u32 = 2;

/// Minimum duration of a measurement, so that reading the clock does not matter.
const LONG_ENOUGH: Duration = Duration::from_millis(40);

/// Number of measurements of each rate. The best one counts, because interference only makes it worse.
const REPEATS: u32 = 4;

/// Workgroups of the arithmetic kernels: several times as many as the largest GPU runs at once.
const GROUPS: u32 = 8192;

/// Maximum bytes of a copy: several times the largest cache.
const MAX_COPY_BYTES: u64 = 512 << 20;

/// Measures a device's rates, in under five seconds. The results of the kernels are checked: a device that computes wrong
/// results fails with `BadResult`.
pub fn measure(device: &Device) -> Result<Rates> {
    let mut stream = device.stream()?;
    Ok(Rates {
        launch_latency: launch_latency(device, &mut stream)?,
        int32_multiplies_per_s: int32_multiplies(device, &mut stream)?,
        f32_multiply_adds_per_s: f32_multiply_adds(device, &mut stream)?,
        memory_bytes_per_s: memory_bandwidth(device, &mut stream)?,
        upload_bytes_per_s: upload_bandwidth(device, &mut stream)?,
        download_bytes_per_s: download_bandwidth(device, &mut stream)?,
    })
}

fn launch_latency(device: &Device, stream: &mut Stream) -> Result<Duration> {
    let bound = device.compile(&kernels::nothing())?.bind(&[])?;
    let mut samples = Vec::new();
    let begin = Instant::now();
    while samples.len() < 1000 && (samples.len() < 20 || begin.elapsed() < Duration::from_millis(200)) {
        let start = Instant::now();
        stream.launch(&bound, 1, &())?;
        stream.wait()?;
        samples.push(start.elapsed());
    }
    samples.sort_unstable();
    Ok(samples[samples.len() / 2])
}

fn int32_multiplies(device: &Device, stream: &mut Stream) -> Result<f64> {
    const ADDEND: u32 = 0x9E37_79B9;
    let threads = GROUPS * kernels::WORKGROUP;
    let out = device.buffer::<u32>(threads as usize)?;
    let bound = device.compile(&kernels::int32_multiply())?.bind(&[out.arg()])?;
    let (rate, iterations) = arithmetic_rate(threads, |iterations, launches| {
        launch_all(stream, &bound, GROUPS, RateParams { iterations, addend: ADDEND }, launches)
    })?;
    let thread = threads - 7;
    let found = stream.download(&out.slice(thread as usize..=thread as usize)?)?.wait()?[0];
    let expected = (0..kernels::CHAINS).fold(0, |all, chain| {
        let first = thread * kernels::CHAINS + chain;
        all ^ (0..iterations).fold(first, |x, _| x.wrapping_mul(x).wrapping_add(ADDEND))
    });
    check(device, "int32 multiply", found == expected, format!("{expected:#x} expected, {found:#x} found"))?;
    Ok(rate)
}

fn f32_multiply_adds(device: &Device, stream: &mut Stream) -> Result<f64> {
    let threads = GROUPS * kernels::WORKGROUP;
    let out = device.buffer::<f32>(threads as usize)?;
    let bound = device.compile(&kernels::f32_multiply_add())?.bind(&[out.arg()])?;
    let (rate, iterations) = arithmetic_rate(threads, |iterations, launches| {
        launch_all(stream, &bound, GROUPS, RateParams { iterations, addend: 0 }, launches)
    })?;
    let thread = threads - 7;
    let found = f64::from(stream.download(&out.slice(thread as usize..=thread as usize)?)?.wait()?[0]);
    let expected: f64 = (0..kernels::CHAINS)
        .map(|chain| {
            let first = f64::from(thread % 1024 + chain);
            (0..iterations).fold(first, |x, _| x * 0.75 + 0.5)
        })
        .sum();
    let right = (found - expected).abs() <= 1e-4 * expected.abs();
    check(device, "f32 multiply-add", right, format!("{expected} expected, {found} found"))?;
    Ok(rate)
}

/// Maximum iterations of one launch: enough that starting it does not matter. Mesa's software Vulkan silently ends any
/// loop after 65,535 iterations.
const MAX_ITERATIONS: u32 = 4096;

/// Returns the operations per second of a kernel with eight chains per thread, and the iterations of the last launch.
/// `launch` gets the iterations of a launch and the number of launches.
fn arithmetic_rate(threads: u32, mut launch: impl FnMut(u32, u32) -> Result<()>) -> Result<(f64, u32)> {
    let mut last = 0;
    let rate = best_rate(16, 1 << 30, |iterations| {
        last = iterations.min(MAX_ITERATIONS);
        launch(last, iterations / last)?;
        Ok(iterations / last * last)
    })?;
    Ok((rate * f64::from(threads) * f64::from(kernels::CHAINS), last))
}

fn launch_all(
    stream: &mut Stream,
    bound: &BoundKernel,
    groups: u32,
    params: RateParams,
    launches: u32,
) -> Result<()> {
    for _ in 0..launches {
        stream.launch(bound, groups, &params)?;
    }
    stream.wait()
}

fn memory_bandwidth(device: &Device, stream: &mut Stream) -> Result<f64> {
    let bytes = copy_bytes(device, 2)?;
    let units = (bytes / 16) as usize;
    let (from, to) = (device.buffer::<[u32; 4]>(units)?, device.buffer::<[u32; 4]>(units)?);
    let bound = device.compile(&kernels::copy_words())?.bind(&[from.arg(), to.arg()])?;
    let params = RateParams { iterations: units as u32, addend: 0 };
    let groups = GROUPS.min(units.div_ceil(kernels::WORKGROUP as usize) as u32);
    let mark = (units - 1, [0xA5A5_0001u32, 2, 3, 4]);
    stream.upload(&[mark.1], &from.slice(mark.0..)?)?;
    let launches_per_s = best_rate(1, 1 << 20, |launches| {
        launch_all(stream, &bound, groups, params, launches)?;
        Ok(launches)
    })?;
    let found = stream.download(&to.slice(mark.0..)?)?.wait()?[0];
    check(
        device,
        "copying in device memory",
        found == mark.1,
        format!("{:?} expected, {found:?} found", mark.1),
    )?;
    Ok(2.0 * bytes as f64 * launches_per_s)
}

fn upload_bandwidth(device: &Device, stream: &mut Stream) -> Result<f64> {
    let bytes = copy_bytes(device, 3)?;
    let buffer = device.buffer_uninit::<u8>(bytes as usize)?;
    let mut host = Some(device.host_buffer::<u8>(bytes as usize, Direction::Upload)?);
    let written = match device.describe().api {
        Api::Cuda | Api::Cpu => Vec::new(),
        _ => vec![0xA5u8; bytes as usize],
    };
    copy_rate(bytes, || {
        if let Some(mut memory) = host.take() {
            copy_parallel(&written, &mut memory.as_mut_slice()[..written.len()]);
            host = Some(stream.upload_host(memory, &buffer)?.wait()?);
        }
        Ok(())
    })
}

fn download_bandwidth(device: &Device, stream: &mut Stream) -> Result<f64> {
    let bytes = copy_bytes(device, 3)?;
    let buffer = device.buffer::<u8>(bytes as usize)?;
    let mut host = Some(device.host_buffer::<u8>(bytes as usize, Direction::Download)?);
    copy_rate(bytes, || {
        if let Some(memory) = host.take() {
            host = Some(stream.download_host(&buffer, memory)?.wait()?);
        }
        Ok(())
    })
}

fn copy_rate(bytes: u64, mut copy: impl FnMut() -> Result<()>) -> Result<f64> {
    let copies_per_s = best_rate(1, 1 << 20, |copies| {
        (0..copies).try_for_each(|_| copy())?;
        Ok(copies)
    })?;
    Ok(bytes as f64 * copies_per_s)
}

/// Returns the bytes to copy: enough that caches do not matter, and only a fraction of the memory.
fn copy_bytes(device: &Device, blocks: u64) -> Result<u64> {
    let has = device.capabilities()?;
    let free = device.telemetry().memory_free_bytes.or(device.describe().memory_bytes).unwrap_or(256 << 20);
    let max = match device.describe().kind {
        // These use the processor's memory, at a tenth of the rate.
        DeviceKind::Software | DeviceKind::Cpu => MAX_COPY_BYTES / 8,
        _ => MAX_COPY_BYTES,
    };
    let bytes = max.min(has.max_binding_bytes).min(has.max_buffer_bytes).min(free / (4 * blocks));
    Ok((bytes / 4096 * 4096).max(4096))
}

/// Returns the highest rate of `work` per second. `work` gets an amount and returns how much of it was done. The amount
/// grows from `min`, to `max` at most, until it takes `LONG_ENOUGH`.
fn best_rate(min: u32, max: u32, mut work: impl FnMut(u32) -> Result<u32>) -> Result<f64> {
    let mut amount = min.max(1);
    let mut best = 0f64;
    let mut repeats = 0;
    while repeats < REPEATS {
        let start = Instant::now();
        let done = work(amount)?;
        let took = start.elapsed().as_secs_f64();
        if took >= LONG_ENOUGH.as_secs_f64() || amount >= max {
            best = best.max(f64::from(done) / took);
            repeats += 1;
        } else {
            let factor = (LONG_ENOUGH.as_secs_f64() * 1.2 / took.max(1e-6)).clamp(2.0, 16.0);
            amount = ((f64::from(amount) * factor) as u32).min(max);
        }
    }
    Ok(best)
}

fn check(device: &Device, operation: &str, right: bool, detail: String) -> Result<()> {
    if right {
        return Ok(());
    }
    let (device, operation) = (device.id().clone(), format!("measuring: {operation}"));
    Err(Error::BadResult { device, operation, detail })
}

/// Loads the stored rates of this device, for this driver and version of the measurement.
pub fn load_rates(device: &Device) -> Option<Rates> {
    serde_json::from_slice(&std::fs::read(rates_file(device)?).ok()?).ok()
}

/// Stores rates for later runs, in the cache folder.
pub fn save_rates(device: &Device, rates: &Rates) -> Result<()> {
    let Some(path) = rates_file(device) else { return Ok(()) };
    let failed = |why: BoxError| Error::File {
        path: path.display().to_string(),
        detail: why.to_string(),
        source: Some(SharedError::new(why)),
    };
    let text = serde_json::to_vec_pretty(rates).map_err(|why| failed(why.into()))?;
    disk_cache::write_atomically(&path, &text).map_err(|why| failed(why.into()))
}

fn rates_file(device: &Device) -> Option<PathBuf> {
    let identity = format!("{VERSION}|{}", device.describe().identity());
    let name = blake3::hash(identity.as_bytes()).to_hex();
    Some(disk_cache::folder()?.join("rates").join(format!("{}.json", &name[..32])))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_processor_is_measured_in_under_five_seconds_and_every_rate_is_plausible() {
        let start = Instant::now();
        let rates = measure(&Device::cpu()).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        for rate in [rates.int32_multiplies_per_s, rates.f32_multiply_adds_per_s] {
            assert!((1e8..1e14).contains(&rate), "{rates:?}");
        }
        for rate in [rates.memory_bytes_per_s, rates.upload_bytes_per_s, rates.download_bytes_per_s] {
            assert!((1e8..1e13).contains(&rate), "{rates:?}");
        }
        assert!(rates.launch_latency > Duration::ZERO && rates.launch_latency < Duration::from_millis(50));
    }

    #[test]
    fn rates_survive_a_round_trip_through_json() {
        let rates = Rates {
            int32_multiplies_per_s: 1.5e12,
            f32_multiply_adds_per_s: 3e13,
            memory_bytes_per_s: 4.3e12,
            upload_bytes_per_s: 5.5e10,
            download_bytes_per_s: 5.4e10,
            launch_latency: Duration::from_micros(7),
        };
        let text = serde_json::to_string(&rates).unwrap();
        assert!(
            text.contains("\"launch_latency_s\":7e-6") || text.contains("\"launch_latency_s\":0.000007"),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Rates>(&text).unwrap(), rates);
    }
}
