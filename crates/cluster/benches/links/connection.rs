//! One connection: launches against the round trip of `cat`, and copies against `cat` through `ssh`.

use std::{
    io::{Read, Write},
    thread,
    time::{Duration, Instant},
};

use evener_cluster::{Launched, Launcher};
use evener_device::{Buffer, Device, Direction, HostBuffer, Kernel, Stream, Transfer, kernel_fn};

use crate::{Result, processor, rig::Servers};

kernel_fn! {
    fn nothing() -> Kernel {
        Kernel::new("nothing").writes::<u8>().rust(|_| Ok(()))
    }
}

/// Round trips are measured this many times, in turn. The best counts: disturbances only add time.
const ROUNDS: usize = 7;
/// So are copies.
const COPY_ROUNDS: usize = 5;
/// Round trips in a row, of which the median counts.
const TRIPS: usize = 1000;
const COPY_BYTES: usize = 64 << 20;
/// Copies in a row.
const COPIES: usize = 2;

pub(crate) fn bench(servers: &Servers) -> Result<()> {
    let host = servers.connect("host1", None)?;
    let device = processor(&host)?;
    round_trips(servers, &device)?;
    copies(servers, &device)
}

fn round_trips(servers: &Servers, device: &Device) -> Result<()> {
    let mut cat = started(servers, "exec cat")?;
    let mut launch = Launching::new(device)?;
    let mut local = Launching::new(&Device::cpu())?;
    let (mut bytes, small) = ([7; 32], device.buffer::<u8>(4096)?);
    let mut times = [Duration::MAX; 4];
    for _ in 0..ROUNDS {
        let round = [
            median(|| {
                cat.to_worker.write_all(&bytes)?;
                Ok(cat.from_worker.read_exact(&mut bytes)?)
            })?,
            median(|| launch.once())?,
            median(|| {
                launch.stream.upload(&[1; 4096], &small)?;
                launch.queue()?;
                assert_eq!(launch.stream.download(&small)?.wait()?.len(), 4096);
                Ok(())
            })?,
            median(|| local.once())?,
        ];
        times = std::array::from_fn(|index| times[index].min(round[index]));
    }
    cat.worker.end();
    println!("\n| round trip, the median of {TRIPS}, best of {ROUNDS} | µs | over `cat` |");
    println!("| --- | --- | --- |");
    let names = [
        "32 bytes through `ssh` and `cat`",
        "launch and wait",
        "a chunk of 4 KiB up, launch, 4 KiB down",
        "launch and wait on this machine's processor, for comparison",
    ];
    for (name, time) in names.iter().zip(times) {
        let ratio = time.as_secs_f64() / times[0].as_secs_f64();
        println!("| {name} | {:.1} | {ratio:.2} |", time.as_secs_f64() * 1e6);
    }
    Ok(())
}

fn copies(servers: &Servers, device: &Device) -> Result<()> {
    let noise = crate::noise(COPY_BYTES);
    let file = servers.file("noise");
    std::fs::write(&file, &noise)?;
    let zeros = vec![0; COPY_BYTES];
    let mut rates = [0f64; 6];
    for _ in 0..COPY_ROUNDS {
        let round = [
            cat_up(servers, &noise)?,
            up(device, &noise)?,
            cat_down(servers, &file.display().to_string())?,
            down(device, &noise)?,
            up(device, &zeros)?,
            down(device, &zeros)?,
        ];
        rates = std::array::from_fn(|index| rates[index].max(round[index]));
    }
    println!(
        "\n| copies of {COPIES} times {} MiB, best of {COPY_ROUNDS} | MB/s | over `cat` |",
        COPY_BYTES >> 20
    );
    println!("| --- | --- | --- |");
    let names = [
        ("`cat` through `ssh`, up", 0),
        ("upload, random bytes", 0),
        ("`cat` through `ssh`, down", 2),
        ("download, random bytes", 2),
        ("upload, zeros", 0),
        ("download, zeros", 2),
    ];
    for ((name, cat), rate) in names.iter().zip(rates) {
        println!("| {name} | {rate:.0} | {:.2} |", rate / rates[*cat]);
    }
    Ok(())
}

/// Starts a command on a host, with the same pipes as a worker's.
fn started(servers: &Servers, command: &str) -> Result<Launched> {
    Ok(servers.ssh("host1", command)?.launch(Duration::from_secs(30))?)
}

fn median(mut once: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut times = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let start = Instant::now();
        once()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[TRIPS / 2])
}

/// A kernel that does nothing, to be launched.
struct Launching {
    stream: Stream,
    bound: evener_device::BoundKernel,
}

impl Launching {
    fn new(device: &Device) -> Result<Self> {
        let data = device.buffer::<u8>(1)?;
        let bound = device.compile(&nothing())?.bind(&[data.arg()])?;
        Ok(Launching { stream: device.stream()?, bound })
    }

    fn queue(&mut self) -> Result<()> {
        Ok(self.stream.launch(&self.bound, 1, &())?)
    }

    fn once(&mut self) -> Result<()> {
        self.queue()?;
        Ok(self.stream.wait()?)
    }
}

fn megabytes_per_s(start: Instant) -> f64 {
    (COPIES * COPY_BYTES) as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// What `ssh` carries to `cat`, until `cat` has read all of it.
fn cat_up(servers: &Servers, bytes: &[u8]) -> Result<f64> {
    let Launched { mut from_worker, mut to_worker, worker } = started(servers, "echo; cat >/dev/null; echo")?;
    let mut line = [0];
    from_worker.read_exact(&mut line)?;
    let start = Instant::now();
    for _ in 0..COPIES {
        bytes.chunks(256 << 10).try_for_each(|piece| to_worker.write_all(piece))?;
    }
    drop(to_worker);
    from_worker.read_exact(&mut line)?;
    let rate = megabytes_per_s(start);
    worker.end();
    Ok(rate)
}

/// What `ssh` carries from `cat`.
fn cat_down(servers: &Servers, file: &str) -> Result<f64> {
    let files = [file; COPIES].join(" ");
    let Launched { mut from_worker, mut to_worker, worker } =
        started(servers, &format!("read line; exec cat {files}"))?;
    let mut bytes = vec![0; COPY_BYTES];
    thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    to_worker.write_all(b"\n")?;
    for _ in 0..COPIES {
        from_worker.read_exact(&mut bytes)?;
    }
    let rate = megabytes_per_s(start);
    worker.end();
    Ok(rate)
}

/// Copies with two host buffers in turn.
fn copy_rate(
    device: &Device,
    direction: Direction,
    bytes: &[u8],
    copy: impl Fn(&mut Stream, HostBuffer<u8>, &Buffer<u8>) -> evener_device::Result<Transfer<u8>>,
) -> Result<f64> {
    let mut stream = device.stream()?;
    let buffer = device.buffer_from(bytes)?;
    let host = || -> Result<HostBuffer<u8>> {
        let mut host = device.host_buffer::<u8>(COPY_BYTES, direction)?;
        host.as_mut_slice().copy_from_slice(bytes);
        Ok(host)
    };
    let (mut first, mut second) = (host()?, host()?);
    let start = Instant::now();
    for _ in 0..COPIES / 2 {
        let copies = [copy(&mut stream, first, &buffer)?, copy(&mut stream, second, &buffer)?];
        let [one, other] = copies.map(Transfer::wait);
        (first, second) = (one?, other?);
    }
    let rate = megabytes_per_s(start);
    assert!(first.as_slice() == bytes && second.as_slice() == bytes, "a copy is wrong");
    Ok(rate)
}

fn up(device: &Device, bytes: &[u8]) -> Result<f64> {
    copy_rate(device, Direction::Upload, bytes, |stream, host, buffer| stream.upload_host(host, buffer))
}

fn down(device: &Device, bytes: &[u8]) -> Result<f64> {
    copy_rate(device, Direction::Download, bytes, |stream, host, buffer| stream.download_host(buffer, host))
}
