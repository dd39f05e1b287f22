//! Items of different costs, on the processor's cores, compared with peers in the same run: `cargo bench -p
//! evener-schedule --bench uneven [-- SHAPE…]`.
//!
//! Every shape has the same number of items and the same total cost, so all take the same time if no core is idle. The
//! peers are rayon's `par_iter().map().collect()` and TBB's `parallel_for` with its `auto_partitioner`, which is
//! compiled here if there are a C++ compiler and TBB. The peers take turns; each shows the lower quartile of its times.
//! `EVENER_BENCH_ROUNDS` sets the number of turns. A second table, with four times as many turns, is measured while
//! another program spins on one core.
//!
//! For a machine without a compiler, `uneven build-peer PATH` writes the TBB peer and its libraries;
//! `EVENER_TBB_PEER=PATH uneven` uses them there.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

mod shapes;
mod spin;
mod tbb;

use std::time::{Duration, Instant};

use evener_device::Device;
use evener_schedule::{Closure, Pool};
use rayon::prelude::*;

use self::{
    shapes::{Item, SHAPES, checksum, work},
    spin::Spinner,
    tbb::Tbb,
};

/// Turns of each peer for each shape, unless `EVENER_BENCH_ROUNDS` is set; a quarter as many warm up.
const ROUNDS: usize = 20;
/// Factor for the table beside another program: times vary with the placement of threads.
const MORE_IF_DISTURBED: usize = 4;
/// Pause between turns, so that a spinning thread of one peer does not disturb the next.
const PAUSE: Duration = Duration::from_millis(3);

/// One peer: returns its time and its results' checksum.
type Way<'a> = (&'static str, Box<dyn FnMut(&[Item]) -> (Duration, u64) + 'a>);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["build-peer", path] => match tbb::build_to_carry(path.as_ref()) {
            Ok(files) => files.iter().for_each(|file| println!("{}", file.display())),
            Err(why) => {
                println!("not built: {why}");
                std::process::exit(1);
            }
        },
        ["spin", core] => spin::spin(core.parse().unwrap()),
        ref shapes => bench(shapes),
    }
}

fn bench(only: &[&str]) {
    let cpu = Device::cpu();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{}, {cores} cores", cpu.describe().name);
    let rounds = std::env::var("EVENER_BENCH_ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(ROUNDS);

    let pool = Pool::builder().devices([&cpu]).keep_history_at(None).build().unwrap();
    let task = Closure::new("uneven", |item: &Item| work(item));
    let job = pool.job(&task);
    let mut ways: Vec<Way<'_>> = vec![
        ("Evener", Box::new(|items| timed(|| job.map(items).unwrap().into_results()))),
        ("rayon", Box::new(|items| timed(|| items.par_iter().map(work).collect()))),
    ];
    match Tbb::start() {
        Ok(mut tbb) => {
            println!("TBB {}", tbb.version());
            ways.push(("TBB", Box::new(move |items| tbb.run(items))));
        }
        Err(why) => println!("skipped: no TBB (Debian: libtbb-dev g++): {why}"),
    }

    let shapes: Vec<_> =
        SHAPES.iter().filter(|(name, _)| only.is_empty() || only.contains(name)).copied().collect();
    // Every shape has the same number of rounds. The minimum of several, because disturbances only add.
    let one_core = (0..9).map(|_| timed(|| SHAPES[0].1(cores).iter().map(work).collect()).0).min().unwrap();
    println!("one core does all items of a shape in {one_core:.3?}");
    let mut worst: f64 = 0.0;
    for disturbed in [false, true] {
        let _spinner = disturbed.then(|| Spinner::start(cores - 1));
        let ideal = one_core.div_f64(if disturbed { cores as f64 - 0.5 } else { cores as f64 });
        match disturbed {
            false => println!("\nundisturbed"),
            true => println!("\nwhile another program spins on one core"),
        }
        print!("{:14}{:>12}", "shape", "ideal");
        ways.iter().for_each(|(name, _)| print!("{name:>12}{:>12}", "efficiency"));
        println!("{:>16}", "to best peer");
        for (name, make) in &shapes {
            let rounds = rounds * if disturbed { MORE_IF_DISTURBED } else { 1 };
            let ratio = compare(name, &make(cores), &mut ways, rounds, ideal);
            worst = worst.max(ratio.unwrap_or(0.0));
        }
    }
    if worst > 0.0 {
        println!("\nworst ratio to the better peer: {worst:.3}");
    }
}

/// Times all peers on one shape and prints a row. Returns the ratio of the first to the best of the others.
fn compare(name: &str, items: &[Item], ways: &mut [Way<'_>], rounds: usize, ideal: Duration) -> Option<f64> {
    let expected = checksum(&items.iter().map(work).collect::<Vec<_>>());
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); ways.len()];
    let warm = rounds.div_ceil(4);
    for round in 0..rounds + warm {
        for turn in 0..ways.len() {
            let which = (turn + round) % ways.len();
            std::thread::sleep(PAUSE);
            let (took, sum) = ways[which].1(items);
            assert_eq!(sum, expected, "{} gives other results for {name}", ways[which].0);
            if round >= warm {
                times[which].push(took);
            }
        }
    }
    let times: Vec<Duration> = times.iter_mut().map(|times| quartile(times)).collect();
    print!("{name:14}{:>9.2} ms", ideal.as_secs_f64() * 1e3);
    for time in &times {
        print!("{:>9.2} ms{:>12.3}", time.as_secs_f64() * 1e3, ideal.as_secs_f64() / time.as_secs_f64());
    }
    let ratio = times[1..].iter().min().map(|best| times[0].as_secs_f64() / best.as_secs_f64());
    println!("{:>16}", ratio.map_or("no peer".into(), |ratio| format!("{ratio:.3}")));
    ratio
}

/// The time of one peer, including the allocation of the results, and their checksum, which is not timed.
fn timed(work: impl FnOnce() -> Vec<u64>) -> (Duration, u64) {
    let start = Instant::now();
    let results = work();
    let took = start.elapsed();
    (took, checksum(&results))
}

/// The lower quartile: disturbances only add.
fn quartile(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 4]
}
