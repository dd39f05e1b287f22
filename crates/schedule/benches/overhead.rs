//! The cost of scheduling on the processor's cores, compared with peers in the same run: `cargo bench -p
//! evener-schedule --bench overhead`.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::{
    sync::{Mutex, mpsc},
    time::{Duration, Instant},
};

use evener_device::Device;
use evener_schedule::{Closure, Pool, Settings, events};
use rayon::prelude::*;

/// Times several peers in turns, and returns the lower quartile of each: disturbances only add.
fn turns<const N: usize>(rounds: usize, ways: [&mut dyn FnMut(); N]) -> [Duration; N] {
    let mut times: [Vec<Duration>; N] = std::array::from_fn(|_| Vec::new());
    for round in 0..rounds + rounds / 4 {
        for which in 0..N {
            let which = (which + round) % N;
            let start = Instant::now();
            ways[which]();
            if round >= rounds / 4 {
                times[which].push(start.elapsed());
            }
        }
    }
    times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 4]
    })
}

fn main() {
    let cpu = Device::cpu();
    println!("{}, {} cores", cpu.describe().name, cpu.describe().compute_units.unwrap_or(0));
    let pool = Pool::builder().devices([&cpu]).keep_history_at(None).build().unwrap();

    let items: Vec<u64> = (0..1_000_000).collect();
    let task = Closure::new("trivial", |&item: &u64| item.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7);
    let job = pool.job(&task);
    let plain: Vec<u64> = items.iter().map(|&item| item.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7).collect();
    let [evener, rayon, plain_time] = turns(
        100,
        [
            &mut || assert_eq!(job.map(&items).unwrap().results().len(), plain.len()),
            &mut || {
                let results: Vec<u64> =
                    items.par_iter().map(|&item| item.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7).collect();
                assert_eq!(results.len(), plain.len());
            },
            &mut || {
                let results: Vec<u64> =
                    items.iter().map(|&item| item.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7).collect();
                assert_eq!(results.len(), plain.len());
            },
        ],
    );
    assert_eq!(job.map(&items).unwrap().results(), plain);
    println!(
        "a million trivial items: Evener {evener:.3?}, rayon par_iter {rayon:.3?}, one thread {plain_time:.3?}"
    );
    println!("  ratio to rayon {:.3}", evener.as_secs_f64() / rayon.as_secs_f64());

    let count = 100_000;
    let single = pool.job(&task).settings(Settings { max_items: Some(1), ..Settings::default() });
    let items = &items[..count];
    let [chunks, spawns] = turns(
        20,
        [
            &mut || {
                let run = single.map(items).unwrap();
                assert!(run.report().devices[0].chunks >= count as u64);
            },
            &mut || {
                let done = std::sync::atomic::AtomicUsize::new(0);
                rayon::scope(|scope| {
                    for &item in items {
                        let done = &done;
                        scope.spawn(move |_| {
                            std::hint::black_box(item);
                            done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        });
                    }
                });
                assert_eq!(done.into_inner(), count);
            },
        ],
    );
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    println!(
        "{count} single-item chunks: {:.3} µs each; rayon spawn {:.3} µs each",
        each(chunks),
        each(spawns)
    );
    followed(&pool);
}

/// The same runs without and with a reader of the events.
fn followed(pool: &Pool) {
    /// Reads the events every ten milliseconds while it lives.
    struct Follower(Option<mpsc::Sender<()>>, Option<std::thread::JoinHandle<u64>>);
    impl Follower {
        fn new() -> Self {
            let (sender, ended) = mpsc::channel::<()>();
            let mut reader = events::stream().attach();
            let read = move || {
                let (mut read, mut events) = (0, Vec::new());
                while ended.recv_timeout(Duration::from_millis(10)) == Err(mpsc::RecvTimeoutError::Timeout) {
                    while reader.read(1_024, &mut events) {}
                    read += events.len() as u64;
                    events.clear();
                }
                read + reader.lost()
            };
            Follower(Some(sender), Some(std::thread::spawn(read)))
        }
    }
    impl Drop for Follower {
        fn drop(&mut self) {
            drop(self.0.take());
            self.1.take().unwrap().join().unwrap();
        }
    }

    let items: Vec<u64> = (0..1_000_000).collect();
    let task = Closure::new("trivial", |&item: &u64| item.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7);
    // Chunks of about a microsecond's work, each handed out on its own: a device with a kernel has such.
    let tiny = Settings { max_items: Some(64), max_time_floor: Duration::ZERO, ..Settings::default() };
    for (name, settings) in
        [("a million trivial items", Settings::default()), ("the same in small chunks", tiny)]
    {
        let job = pool.job(&task).settings(settings);
        let follower = Mutex::new(None);
        let run = |follow: bool| {
            let mut follower = follower.lock().unwrap();
            if follow != follower.is_some() {
                *follower = follow.then(Follower::new);
            }
            let start = Instant::now();
            for _ in 0..10 {
                assert_eq!(job.map(&items).unwrap().results().len(), items.len());
            }
            start.elapsed()
        };
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..60 {
            for which in [round % 2, 1 - round % 2] {
                times[which].push(run(which == 1));
            }
        }
        let [alone, read] = times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 4] / 10
        });
        let ratio = read.as_secs_f64() / alone.as_secs_f64();
        println!(
            "{name}: {alone:.3?} with nobody looking, {read:.3?} with a reader of the events ({ratio:.3})"
        );
    }
}
