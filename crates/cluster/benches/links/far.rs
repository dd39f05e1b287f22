//! A run over one local and two remote devices, behind a link with a delay and a rate, against what devices and link allow.
//!
//! This machine has few cores, and the link needs some of them. So the devices' kernels wait instead of computing, one at
//! a time in each process: a device does exactly so many items per second, whatever else the machine does.

use std::{
    io::{Read, Write},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use evener_cluster::{Launched, Launcher, Link};
use evener_device::{Device, Kernel, kernel_fn};
use evener_schedule::{KernelParams, KernelTask, Pool};

use crate::{
    Result, processor,
    rig::{FarLink, Servers},
};

/// Words of an item.
const WORDS: usize = 1024;

type Item = [u32; WORDS];

kernel_fn! {
    /// Adds up each item's first and last word, and takes so many nanoseconds for each item.
    fn slowly(nanoseconds: u64) -> Kernel {
        Kernel::new("slowly").reads::<Item>().writes::<u32>().params::<KernelParams>().rust(move |launch| {
            static DEVICE: Mutex<()> = Mutex::new(());
            let count = launch.params::<KernelParams>()?.count as usize;
            let (items, sums) = (launch.read::<Item>(0)?, launch.write::<u32>(1)?);
            let _one_at_a_time = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
            let end = Instant::now() + Duration::from_nanos(nanoseconds * count as u64);
            for (sum, item) in sums[..count].iter_mut().zip(items) {
                *sum = item[0].wrapping_add(item[WORDS - 1]);
            }
            thread::sleep(end.saturating_duration_since(Instant::now()));
            Ok(())
        })
    }
}

/// Runs of each kind, of which all are printed.
const RUNS: usize = 3;

/// How long a run would take: long, since after a pause TCP takes many round trips until it sends at the link's rate.
const SECONDS: f64 = 8.0;

pub(crate) fn bench() -> Result<()> {
    for (conditions, about) in [("rtt20ms-1gbit", "10 ms each way"), ("rtt40ms-1gbit", "20 ms each way")] {
        let link = match FarLink::start(conditions) {
            Ok(link) => link,
            Err(why) => {
                println!("\nskipped: the far link ({why})");
                return Ok(());
            }
        };
        println!("\n1 Gbit/s, {about}; {}", link.engine);
        behind(&Servers::start(Some(link))?)?;
    }
    Ok(())
}

fn behind(servers: &Servers) -> Result<()> {
    let hosts = [servers.connect("host1", None)?, servers.connect("host2", None)?];
    let link = Link::measure(&hosts[0])?;
    let bytes_per_s = ssh_rate(servers)?;
    println!(
        "measured: round trip {:.1} ms; one host {:.0} MB/s up, {:.0} MB/s down; `cat` to both hosts at once {:.0} MB/s",
        link.round_trip.as_secs_f64() * 1e3,
        link.upload_bytes_per_s / 1e6,
        link.download_bytes_per_s / 1e6,
        bytes_per_s / 1e6
    );
    let is_verbose = std::env::args().any(|argument| argument == "--verbose");
    let devices = [Device::cpu(), processor(&hosts[0])?, processor(&hosts[1])?];
    println!("\n| what limits | items/s of a device | bound, items/s | efficiency of {RUNS} runs |");
    println!("| --- | --- | --- | --- |");
    for (limit, nanoseconds) in [("the devices", 200_000u64), ("the link", 60_000)] {
        let device = 1e9 / nanoseconds as f64;
        let through_link = bytes_per_s / size_of::<Item>() as f64;
        let bound = device + (2.0 * device).min(through_link);
        let items: Vec<Item> = (0..(bound * SECONDS) as u32).map(item).collect();
        let pool = Pool::builder().devices(&devices).keep_history_at(None).build()?;
        let job = pool.job(&KernelTask::<Item, u32>::new(&slowly(nanoseconds))).all_devices();
        // Opens the devices, and learns their rates.
        job.map(&items)?;
        let mut found = Vec::new();
        for _ in 0..RUNS {
            let run = job.map(&items)?;
            assert!(run.results().iter().zip(0..).all(|(sum, n)| *sum == expected(n)), "a wrong result");
            found.push(format!("{:.3}", items.len() as f64 / bound / run.report().wall_s));
            if is_verbose {
                println!("{}", run.report());
            }
        }
        println!("| {limit} | {device:.0} | {bound:.0} | {} |", found.join(", "));
    }
    Ok(())
}

fn item(number: u32) -> Item {
    let mut state = number.wrapping_mul(0x9E37_79B1);
    std::array::from_fn(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    })
}

fn expected(number: u32) -> u32 {
    let item = item(number);
    item[0].wrapping_add(item[WORDS - 1])
}

/// Bytes per second that `cat` gets through `ssh` on both hosts at once.
fn ssh_rate(servers: &Servers) -> Result<f64> {
    const BYTES: usize = 128 << 20;
    let bytes = crate::noise(BYTES);
    let rates = thread::scope(|scope| {
        let to = |host: &'static str| {
            let bytes = &bytes;
            let launched =
                servers.ssh(host, "echo; cat >/dev/null; echo")?.launch(Duration::from_secs(30))?;
            Ok(scope.spawn(move || -> std::io::Result<f64> {
                let Launched { mut from_worker, mut to_worker, worker } = launched;
                let mut line = [0];
                from_worker.read_exact(&mut line)?;
                // Until TCP has found the rate.
                to_worker.write_all(&bytes[..BYTES / 4])?;
                let start = Instant::now();
                to_worker.write_all(bytes)?;
                drop(to_worker);
                from_worker.read_exact(&mut line)?;
                worker.end();
                Ok(BYTES as f64 / start.elapsed().as_secs_f64())
            }))
        };
        let both: Result<Vec<_>> = ["host1", "host2"].into_iter().map(to).collect();
        let join = |it: thread::ScopedJoinHandle<'_, std::io::Result<f64>>| -> Result<f64> {
            Ok(it.join().map_err(|_| "a thread panicked")??)
        };
        both?.into_iter().map(join).collect::<Result<Vec<f64>>>()
    })?;
    Ok(rates.iter().sum())
}
