//! The workloads of the benchmark `overhead`, one turn at a time, so that `scripts/view/overhead` can compare two builds in
//! turns. Each line of standard input names a workload; the answer is a line with the nanoseconds of one turn.
#![allow(missing_docs, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

use std::{
    io::{BufRead, Write},
    time::{Duration, Instant},
};

use evener_device::Device;
use evener_schedule::{Closure, Pool, Settings};

fn main() {
    let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let items: Vec<u64> = (0..1_000_000).collect();
    let task = Closure::new("trivial", |&item: &u64| item.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7);
    let single = Settings { max_items: Some(1), ..Settings::default() };
    // Chunks of about a microsecond's work, each handed out on its own: a device with a kernel has such.
    let small = Settings { max_items: Some(64), max_time_floor: Duration::ZERO, ..Settings::default() };
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let (settings, items, maps) = match line.unwrap().as_str() {
            "million" => (Settings::default(), &items[..], 20),
            "single" => (single, &items[..100_000], 2),
            "small" => (small, &items[..], 5),
            other => panic!("no workload is called {other}"),
        };
        let job = pool.job(&task).settings(settings);
        let start = Instant::now();
        for _ in 0..maps {
            assert_eq!(job.map(items).unwrap().results().len(), items.len());
        }
        writeln!(out, "{}", start.elapsed().as_nanos()).unwrap();
        out.flush().unwrap();
    }
}
