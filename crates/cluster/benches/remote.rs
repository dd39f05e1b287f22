//! What a worker costs over its pipes: launches against the pipes' own round trip, and copies against `cat` through the
//! same kind of pipe, in the same run.
//!
//! `cargo bench -p evener-cluster --bench remote --no-default-features`
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::{
    io::{Read, Write},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use evener_cluster::{Host, Process, worker};
use evener_device::{Device, Direction, HostBuffer, Kernel, Stream, kernel_fn};

kernel_fn! {
    fn nothing() -> Kernel {
        Kernel::new("nothing").writes::<u8>().rust(|_| Ok(()))
    }
}

const ROUNDS: usize = 5;
const COPY_BYTES: usize = 64 << 20;
const COPIES: usize = 8;

fn main() {
    worker::serve_if_asked();
    let host = Host::new("worker", Process::this_program().unwrap()).unwrap().connect().unwrap();
    let remote = host.devices().iter().find(|device| device.id().as_str() == "worker/cpu").unwrap();
    println!("{} cores, {}", thread::available_parallelism().unwrap(), Device::cpu().describe().name);
    println!();
    println!("| round trip, median of 2000, best of {ROUNDS} | µs | of the pipes' |");
    println!("| --- | --- | --- |");
    let mut times = [Duration::MAX; 4];
    for _ in 0..ROUNDS {
        times[0] = times[0].min(pipe_round_trip());
        times[1] = times[1].min(launch_and_wait(remote));
        times[2] = times[2].min(launch_and_wait(&Device::cpu()));
        times[3] = times[3].min(chunk(remote));
    }
    let names = [
        "32 bytes through `cat`",
        "launch and wait, worker",
        "launch and wait, local cpu",
        "chunk of 4 KiB, worker",
    ];
    for (name, time) in names.iter().zip(times) {
        let ratio = time.as_secs_f64() / times[0].as_secs_f64();
        println!("| {name} | {:.1} | {ratio:.2} |", time.as_secs_f64() * 1e6);
    }
    println!();
    println!("| copies of {} MiB, best of {ROUNDS} | GB/s | of `cat` |", COPY_BYTES >> 20);
    println!("| --- | --- | --- |");
    let mut rates = [0f64; 3];
    for _ in 0..ROUNDS {
        rates[0] = rates[0].max(pipe_rate());
        rates[1] = rates[1].max(upload_rate(remote));
        rates[2] = rates[2].max(download_rate(remote));
    }
    for (name, rate) in ["`cat`", "upload to the worker", "download from the worker"].iter().zip(rates) {
        println!("| {name} | {rate:.2} | {:.2} |", rate / rates[0]);
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn timed(mut once: impl FnMut()) -> Duration {
    let times = (0..2000).map(|_| {
        let start = Instant::now();
        once();
        start.elapsed()
    });
    median(times.collect())
}

/// Starts `cat`, with pipes as large as a worker's.
fn cat() -> Child {
    let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    #[cfg(target_os = "linux")]
    {
        rustix::pipe::fcntl_setpipe_size(child.stdin.as_ref().unwrap(), 1 << 20).unwrap();
        rustix::pipe::fcntl_setpipe_size(child.stdout.as_ref().unwrap(), 1 << 20).unwrap();
    }
    child
}

fn pipe_round_trip() -> Duration {
    let mut child = cat();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut bytes = [7; 32];
    let time = timed(|| {
        input.write_all(&bytes).unwrap();
        output.read_exact(&mut bytes).unwrap();
    });
    drop(input);
    child.wait().unwrap();
    time
}

fn launch_and_wait(device: &Device) -> Duration {
    let data = device.buffer::<u8>(1).unwrap();
    let bound = device.compile(&nothing()).unwrap().bind(&[data.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    timed(|| {
        stream.launch(&bound, 1, &()).unwrap();
        stream.wait().unwrap();
    })
}

/// A chunk: upload, launch, download.
fn chunk(device: &Device) -> Duration {
    let data = device.buffer::<u8>(4096).unwrap();
    let bound = device.compile(&nothing()).unwrap().bind(&[data.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    timed(|| {
        stream.upload(&[1; 4096], &data).unwrap();
        stream.launch(&bound, 1, &()).unwrap();
        assert_eq!(stream.download(&data).unwrap().wait().unwrap().len(), 4096);
    })
}

fn rate(time: Duration) -> f64 {
    (COPIES * COPY_BYTES) as f64 / time.as_secs_f64() / 1e9
}

/// The rate of `cat`, which copies what it reads: as a worker copies what it reads to its device.
fn pipe_rate() -> f64 {
    let mut child = cat();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let start = Instant::now();
    let writer = thread::spawn(move || {
        let bytes = vec![7u8; COPY_BYTES];
        (0..COPIES).for_each(|_| bytes.chunks(256 << 10).for_each(|piece| input.write_all(piece).unwrap()));
    });
    let mut bytes = vec![0u8; COPY_BYTES];
    for _ in 0..COPIES {
        output.read_exact(&mut bytes).unwrap();
    }
    let time = start.elapsed();
    writer.join().unwrap();
    child.wait().unwrap();
    rate(time)
}

/// Copies with two host buffers in turn.
fn copy_rate(
    device: &Device,
    direction: Direction,
    mut copy: impl FnMut(&mut Stream, HostBuffer<u8>) -> evener_device::Transfer<u8>,
) -> f64 {
    let mut stream = device.stream().unwrap();
    let host = || device.host_buffer::<u8>(COPY_BYTES, direction).unwrap();
    let (mut first, mut second) = (host(), host());
    // Touched, as a program's data is.
    first.as_mut_slice().fill(3);
    second.as_mut_slice().fill(4);
    let start = Instant::now();
    for _ in 0..COPIES / 2 {
        let copies = [copy(&mut stream, first), copy(&mut stream, second)];
        [first, second] = copies.map(|copy| copy.wait().unwrap());
    }
    rate(start.elapsed())
}

fn upload_rate(device: &Device) -> f64 {
    let buffer = device.buffer::<u8>(COPY_BYTES).unwrap();
    copy_rate(device, Direction::Upload, |stream, host| stream.upload_host(host, &buffer).unwrap())
}

fn download_rate(device: &Device) -> f64 {
    let buffer = device.buffer_from(&vec![5u8; COPY_BYTES]).unwrap();
    copy_rate(device, Direction::Download, |stream, host| stream.download_host(&buffer, host).unwrap())
}
