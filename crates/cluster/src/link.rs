//! Links: how fast is the way to a host?

use std::time::{Duration, Instant};

use evener_device::{Buffer, Device, Direction, Error, Result, Stream, remote::RemoteHost};

/// The measured way to a host and back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// The time from a question to its answer, the shortest of several.
    pub round_trip: Duration,
    /// Bytes per second to the host.
    pub upload_bytes_per_s: f64,
    /// Bytes per second from the host.
    pub download_bytes_per_s: f64,
}

/// Questions that are asked to find the round trip.
const QUESTIONS: usize = 20;

/// The size of the first copy, and of the largest.
const COPY_BYTES: [usize; 2] = [256 << 10, 64 << 20];

/// A copy that takes longer than this is long enough to measure.
const LONG_ENOUGH: Duration = Duration::from_millis(60);

impl Link {
    /// Measures the link to a host, in well under a second on most: with copies to and from the memory of its processor.
    /// Fails if the connection is lost.
    pub fn measure(host: &RemoteHost) -> Result<Link> {
        let is_processor = |device: &&Device| device.id().as_str() == format!("{}/cpu", host.name());
        let device = host.devices().iter().find(is_processor).ok_or_else(|| Error::Lost {
            device: host.name().into(),
            operation: "measuring the link".into(),
            detail: "the host does not list its processor".into(),
        })?;
        let mut stream = device.stream()?;
        let mut round_trip = Duration::MAX;
        for _ in 0..QUESTIONS {
            let start = Instant::now();
            stream.record_event()?.wait()?;
            round_trip = round_trip.min(start.elapsed());
        }
        let upload_bytes_per_s = rate(device, Direction::Upload, |memory, buffer| {
            let transfer = stream.upload_host(memory, buffer)?;
            finish(&mut stream, transfer)
        })?;
        let download_bytes_per_s = rate(device, Direction::Download, |memory, buffer| {
            let transfer = stream.download_host(buffer, memory)?;
            finish(&mut stream, transfer)
        })?;
        Ok(Link { round_trip, upload_bytes_per_s, download_bytes_per_s })
    }
}

type HostBytes = evener_device::HostBuffer<u8>;

fn finish(stream: &mut Stream, transfer: evener_device::Transfer<u8>) -> Result<HostBytes> {
    stream.wait()?;
    transfer.wait()
}

/// Copies more and more until a copy takes long enough twice. Returns the bytes per second of the faster one: the first
/// copy that is larger than a window of `ssh` waits until the system has made its own windows larger.
fn rate(
    device: &Device,
    direction: Direction,
    mut copy: impl FnMut(HostBytes, &Buffer<u8>) -> Result<HostBytes>,
) -> Result<f64> {
    let [mut bytes, largest] = COPY_BYTES;
    let (mut noise, mut last) = (1u32, None::<f64>);
    loop {
        let (mut memory, buffer) = (device.host_buffer::<u8>(bytes, direction)?, device.buffer::<u8>(bytes)?);
        // Bytes that do not compress, should `ssh` be told to compress.
        if direction == Direction::Upload {
            for byte in memory.as_mut_slice() {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (noise >> 24) as u8;
            }
        }
        let start = Instant::now();
        copy(memory, &buffer)?;
        let took = start.elapsed();
        let rate = bytes as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE);
        let is_long = took >= LONG_ENOUGH || bytes >= largest;
        match last {
            Some(last) if is_long => return Ok(rate.max(last)),
            _ if is_long => last = Some(rate),
            _ => {
                // What the next copy takes is then close to what is long enough, on slow links too.
                let growth = LONG_ENOUGH.as_secs_f64() / took.as_secs_f64().max(1e-6) * 1.5;
                bytes = ((bytes as f64 * growth.clamp(2.0, 16.0)) as usize).min(largest);
            }
        }
    }
}
