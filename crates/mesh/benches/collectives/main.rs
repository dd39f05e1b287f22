//! All-reduce of f32 by sum over two ranks, against peers in the same run: `cargo bench -p evener-mesh`.
//!
//! `local` is two threads; the peers are MPI called directly from C (shared memory) and Gloo (loopback), each two
//! processes, built here where their compilers and headers are. After each MPI comes Evener's `mpi` on the same. All of
//! them reduce in place and are timed the same way: a quarter of the iterations to warm up, a barrier, then the mean of
//! the rest; of several rounds in turn, the lower quartile. A vector that is reduced again and again may stay where it is
//! in the caches; so there is a second table, of vectors that each rank has just written. Bandwidths are what nccl-tests
//! call them: bytes by time, and for an all-reduce that times 2·(n − 1)/n.
//!
//! Where two processes run makes more of a difference than anything else, and it changes from start to start. So
//! `cargo bench -p evener-mesh -- direct` has the same two processes call Evener and MPI's own all-reduce in turn, a few
//! milliseconds each, and shows the ratios of their times: quartiles over all turns of all rounds.
// Calls MPI through its C API.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, unsafe_code)]

mod direct;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use evener_device::Device;
use evener_mesh::comm::{Communicator, DEFAULT_TIMEOUT, ReduceOp, World};

const RANKS: usize = 2;
/// Bytes and iterations.
const SIZES: [(usize, usize); 5] =
    [(1 << 10, 20_000), (64 << 10, 2_000), (1 << 20, 200), (4 << 20, 50), (64 << 20, 5)];
/// The default of `EVENER_BENCH_ROUNDS`.
const ROUNDS: usize = 7;

/// Bytes, and the seconds for vectors that are reduced repeatedly and for vectors just written.
type Measured = (usize, [f64; 2]);

/// An implementation to compare.
struct Contender {
    name: String,
    run: Box<dyn Fn() -> Vec<Measured>>,
}

fn main() {
    let direct = std::env::args().any(|argument| argument == "direct");
    if World::was_launched_by_mpi() {
        return if direct { direct::as_process() } else { as_process() };
    }
    if direct {
        return direct::compare();
    }
    let cpu = Device::cpu();
    println!("{}, {} cores", cpu.describe().name, cpu.describe().compute_units.unwrap_or(0));
    let mut contenders = vec![Contender { name: "local".into(), run: Box::new(local) }];
    let folder = tempfile::tempdir().unwrap();
    for (family, compiler, launcher) in
        [("Open MPI", "mpicc.openmpi", "mpirun.openmpi"), ("MPICH", "mpicc.mpich", "mpirun.mpich")]
    {
        match build(folder.path(), compiler, "mpi.c", launcher, &[]) {
            Ok(peer) => {
                contenders.push(Contender {
                    name: family.into(),
                    run: Box::new(move || run(mpirun(launcher).arg(&peer).args(sizes(1)))),
                });
                contenders.push(Contender {
                    name: "mpi on it".into(),
                    run: Box::new(move || run(mpirun(launcher).arg(std::env::current_exe().unwrap()))),
                });
            }
            Err(why) => println!("skipped: {family}: {why}"),
        }
    }
    match build(folder.path(), "g++", "gloo.cc", "gloo", &["-std=c++14", "-lgloo", "-lpthread"]) {
        Ok(peer) => {
            let folder = folder.path().to_owned();
            contenders.push(Contender {
                name: "Gloo".into(),
                run: Box::new(move || {
                    let meet = tempfile::tempdir_in(&folder).unwrap();
                    // Over loopback a small vector takes hundreds of times as long: fewer iterations suffice.
                    run(Command::new(&peer).arg(meet.path()).args(sizes(20)))
                }),
            });
        }
        Err(why) => println!("skipped: Gloo: {why}"),
    }
    let mut times: Vec<BTreeMap<usize, Vec<[f64; 2]>>> = contenders.iter().map(|_| BTreeMap::new()).collect();
    for round in 0..rounds() {
        for index in 0..contenders.len() {
            let index = (index + round) % contenders.len();
            for (bytes, seconds) in (contenders[index].run)() {
                times[index].entry(bytes).or_default().push(seconds);
            }
        }
    }
    for (which, title) in ["the same vectors again and again", "vectors just written"].iter().enumerate() {
        println!("\n{title}");
        show(&contenders, &times, which);
    }
}

fn show(contenders: &[Contender], times: &[BTreeMap<usize, Vec<[f64; 2]>>], which: usize) {
    print!("{:>10}", "bytes");
    contenders.iter().for_each(|contender| {
        print!("{:>14}{:>10}{:>10}{:>8}", contender.name, "alg GB/s", "bus GB/s", "ratio")
    });
    println!();
    for (bytes, _) in SIZES {
        print!("{bytes:>10}");
        let quartile = |times: &BTreeMap<usize, Vec<[f64; 2]>>| {
            let mut times: Vec<f64> = times[&bytes].iter().map(|both| both[which]).collect();
            times.sort_by(f64::total_cmp);
            times[times.len() / 4]
        };
        let first = quartile(&times[0]);
        for times in times {
            let seconds = quartile(times);
            let algorithm = bytes as f64 / seconds / 1e9;
            let bus = algorithm * 2.0 * (RANKS - 1) as f64 / RANKS as f64;
            print!("{:>11.2} µs{algorithm:>10.3}{bus:>10.3}{:>8.2}", seconds * 1e6, seconds / first);
        }
        println!();
    }
}

fn rounds() -> usize {
    std::env::var("EVENER_BENCH_ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(ROUNDS)
}

/// Returns the sizes for a peer, with fewer iterations by a factor.
fn sizes(fewer: usize) -> Vec<String> {
    SIZES.iter().map(|(bytes, iterations)| format!("{bytes}:{}", (iterations / fewer).max(5))).collect()
}

/// Runs one of two processes with `mpi`.
fn as_process() {
    let world = World::mpi(DEFAULT_TIMEOUT).unwrap();
    for (bytes, iterations) in SIZES {
        let [again, fresh] = time(world.communicator(), bytes, iterations);
        if world.rank() == 0 {
            println!("{bytes} {again:.9} {fresh:.9}");
        }
    }
}

/// Measures two threads with `local`.
fn local() -> Vec<Measured> {
    let ranks: Vec<_> = World::local(RANKS)
        .into_iter()
        .map(|world| {
            std::thread::spawn(move || {
                SIZES.map(|(bytes, iterations)| (bytes, time(world.communicator(), bytes, iterations)))
            })
        })
        .collect();
    let times: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    times[0].to_vec()
}

fn time(group: &Communicator, bytes: usize, iterations: usize) -> [f64; 2] {
    let rank = group.rank().unwrap();
    let mut data = vec![(rank + 1) as f32; bytes / 4];
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    assert!(data.iter().all(|value| *value == (group.size() * (group.size() + 1)) as f32 / 2.0));
    data.fill(0.0);
    let mut start = Instant::now();
    for iteration in 0..iterations + iterations / 4 {
        if iteration == iterations / 4 {
            group.barrier().unwrap();
            start = Instant::now();
        }
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    }
    let again = start.elapsed().as_secs_f64() / iterations as f64;
    let mut fresh = Duration::ZERO;
    for iteration in 0..iterations {
        data.fill(iteration as f32);
        group.barrier().unwrap();
        let start = Instant::now();
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        fresh += start.elapsed();
    }
    [again, fresh.as_secs_f64() / iterations as f64]
}

/// Returns a launcher of two processes, each bound to a core.
fn mpirun(launcher: &str) -> Command {
    let mut command = Command::new(launcher);
    if launcher.contains("openmpi") {
        command.args(["--allow-run-as-root", "--bind-to", "core"]);
    }
    command.args(["-n", "2"]);
    command
}

/// Builds a peer, or prints why it cannot be built.
fn build(
    folder: &Path,
    compiler: &str,
    source: &str,
    name: &str,
    libraries: &[&str],
) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/collectives").join(source);
    let binary = folder.join(name);
    let output = Command::new(compiler)
        .args(["-O3", "-march=native", "-o"])
        .arg(&binary)
        .arg(source)
        .args(libraries)
        .output();
    let output = output.map_err(|why| format!("{compiler}: {why}"))?;
    if output.status.success() {
        Ok(binary)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Runs a peer, and reads what it measured.
fn run(command: &mut Command) -> Vec<Measured> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (bytes, again, fresh) = (words.next()?, words.next()?, words.next()?);
            Some((bytes.parse().unwrap(), [again.parse().unwrap(), fresh.parse().unwrap()]))
        })
        .collect()
}
