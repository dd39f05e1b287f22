//! Trivial pieces per second through a queue, and trivial items per second through a stream, on two cores.
//!
//!     cargo bench -p evener-schedule --bench service

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::time::{Duration, Instant};

use evener_device::Device;
use evener_schedule::{Closure, Pool};

fn best(name: &str, count: u64, mut work: impl FnMut()) {
    let times = (0..15).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    let best = times.fold(f64::INFINITY, f64::min);
    println!("{name:<44} {:>12.0} a second ({:.3} µs each)", count as f64 / best, best / count as f64 * 1e6);
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{cores} cores: {}", Device::cpu().describe().name);
    let pool = Pool::new([Device::cpu()]).unwrap();
    let task = Closure::new("next", |&number: &u64| number + 1);

    const PIECES: u64 = 200_000;
    let queue = pool.queue(&task).open().unwrap();
    best("queue, all submitted, then waited for", PIECES, || {
        let handles: Vec<_> = (0..PIECES).map(|number| queue.submit(number).unwrap()).collect();
        handles
            .into_iter()
            .zip(0..)
            .for_each(|(handle, number)| assert_eq!(handle.wait().unwrap(), number + 1));
    });
    const TURNS: u64 = 5_000;
    best("queue, one after another", TURNS, || {
        (0..TURNS).for_each(|number| assert_eq!(queue.submit(number).unwrap().wait().unwrap(), number + 1));
    });

    let queue = pool.queue(&task).batch(64, Duration::from_millis(1)).open().unwrap();
    best("queue, batches of 64, or what came in 1 ms", PIECES, || {
        let handles: Vec<_> = (0..PIECES).map(|number| queue.submit(number).unwrap()).collect();
        handles
            .into_iter()
            .zip(0..)
            .for_each(|(handle, number)| assert_eq!(handle.wait().unwrap(), number + 1));
    });

    const ITEMS: u64 = 2_000_000;
    best("stream", ITEMS, || {
        let sum: u64 = pool.map_stream(&task, 0..ITEMS).unwrap().map(Result::unwrap).sum();
        assert_eq!(sum, ITEMS * (ITEMS + 1) / 2);
    });
}
