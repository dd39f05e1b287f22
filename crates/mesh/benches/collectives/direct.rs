//! Evener and MPI's own all-reduce in turn, in the same two processes.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_void},
    time::Instant,
};

use evener_mesh::comm::{DEFAULT_TIMEOUT, ReduceOp, World};
use libloading::os::unix::Library;

use super::{mpirun, rounds};

/// Bytes and iterations.
const SIZES: [(usize, usize); 21] = [
    (8, 20_000),
    (64, 20_000),
    (256, 20_000),
    (512, 20_000),
    (1 << 10, 20_000),
    (2 << 10, 10_000),
    (4 << 10, 10_000),
    (8 << 10, 4_000),
    (16 << 10, 4_000),
    (32 << 10, 2_000),
    (64 << 10, 2_000),
    (128 << 10, 1_000),
    (256 << 10, 800),
    (512 << 10, 400),
    (1 << 20, 200),
    (2 << 20, 120),
    (4 << 20, 64),
    (8 << 20, 32),
    (16 << 20, 16),
    (32 << 20, 8),
    (64 << 20, 8),
];

/// Turns of each in one start of the processes.
const TURNS: usize = 8;

/// MPI's own all-reduce of f32 by sum, in place over all ranks.
struct Direct<H> {
    call: unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H) -> c_int,
    in_place: *const c_void,
    float: H,
    sum: H,
    world: H,
}

impl<H: Copy> Direct<H> {
    fn all_reduce(&self, data: &mut [f32]) {
        let Direct { call, in_place, float, sum, world } = *self;
        // SAFETY: the type is that of the MPI standard, and the slice has so many elements.
        let code =
            unsafe { call(in_place, data.as_mut_ptr().cast(), data.len() as c_int, float, sum, world) };
        assert_eq!(code, 0);
    }
}

type Reduce = Box<dyn Fn(&mut [f32])>;

/// Returns the all-reduce of the library that Evener has opened, with its family's handles.
fn direct(open_mpi: bool) -> Reduce {
    let library = Library::this();
    // SAFETY: the type is that of the MPI standard, with the handles of the family; only addresses of variables are
    // taken.
    unsafe {
        if open_mpi {
            let address =
                |name: &str| library.get::<*const c_void>(name.as_bytes()).unwrap().as_raw_ptr() as usize;
            let it = Direct {
                call: *library.get(b"MPI_Allreduce").unwrap(),
                in_place: std::ptr::without_provenance(1),
                float: address("ompi_mpi_float"),
                sum: address("ompi_mpi_op_sum"),
                world: address("ompi_mpi_comm_world"),
            };
            Box::new(move |data| it.all_reduce(data))
        } else {
            let it = Direct::<c_int> {
                call: *library.get(b"MPI_Allreduce").unwrap(),
                in_place: std::ptr::without_provenance(usize::MAX),
                float: 0x4c00_040a,
                sum: 0x5800_0003,
                world: 0x4400_0000,
            };
            Box::new(move |data| it.all_reduce(data))
        }
    }
}

/// Runs one of two processes. Prints `bytes` and four times per turn, in nanoseconds: Evener's and MPI's of vectors
/// that are reduced repeatedly, and of vectors just written.
pub(super) fn as_process() {
    let world = World::mpi(DEFAULT_TIMEOUT).unwrap();
    let group = world.communicator();
    let evener = |data: &mut [f32]| group.all_reduce(data, ReduceOp::Sum).unwrap();
    let direct = direct(world.backend().contains("Open MPI"));
    // Only one of the sizes, for a profiler.
    let only = std::env::var("EVENER_BENCH_BYTES").ok().and_then(|it| it.parse::<usize>().ok());
    for (bytes, iterations) in SIZES.into_iter().filter(|(bytes, _)| only.is_none_or(|only| only == *bytes)) {
        let iterations = (iterations / TURNS).max(1);
        let mut data = vec![world.rank() as f32 + 1.0; bytes / 4];
        evener(&mut data);
        direct(&mut data);
        assert!(data.iter().all(|value| *value == 6.0));
        data.fill(0.0);
        let again = |data: &mut [f32], reduce: &dyn Fn(&mut [f32])| {
            for _ in 0..iterations / 4 {
                reduce(data);
            }
            group.barrier().unwrap();
            let start = Instant::now();
            for _ in 0..iterations {
                reduce(data);
            }
            start.elapsed().as_nanos() / iterations as u128
        };
        let fresh = |data: &mut [f32], reduce: &dyn Fn(&mut [f32])| {
            let mut time = 0;
            for index in 0..iterations {
                data.fill(index as f32);
                group.barrier().unwrap();
                let start = Instant::now();
                reduce(data);
                time += start.elapsed().as_nanos();
            }
            time / iterations as u128
        };
        for _ in 0..TURNS {
            let times = [
                again(&mut data, &evener),
                again(&mut data, &direct),
                fresh(&mut data, &evener),
                fresh(&mut data, &direct),
            ];
            if world.rank() == 0 {
                println!("{bytes} {} {} {} {}", times[0], times[1], times[2], times[3]);
            }
        }
    }
}

pub(super) fn compare() {
    println!(
        "Evener's time over that of MPI's own all-reduce in the same processes: lower quartile, median, upper"
    );
    for (family, launcher) in [("Open MPI", "mpirun.openmpi"), ("MPICH", "mpirun.mpich")] {
        let mut turns: BTreeMap<usize, Vec<[f64; 4]>> = BTreeMap::new();
        for _ in 0..rounds() {
            let mut command = mpirun(launcher);
            let output = match command.arg(std::env::current_exe().unwrap()).arg("direct").output() {
                Ok(output) => output,
                Err(why) => return println!("skipped: {family}: {why}"),
            };
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let numbers: Vec<f64> = line.split(' ').filter_map(|it| it.parse().ok()).collect();
                let [bytes, times @ ..] = numbers.as_slice() else { continue };
                turns.entry(*bytes as usize).or_default().push(times.try_into().unwrap());
            }
        }
        println!(
            "{family}\n{:>10}{:>12}{:>12}   again{:>26}{:>12}   just written",
            "bytes", "µs", "MPI µs", "µs", "MPI µs"
        );
        for (bytes, turns) in turns {
            let quartile = |which: usize, of: &dyn Fn(&[f64; 4]) -> f64| {
                let mut all: Vec<f64> = turns.iter().map(of).collect();
                all.sort_by(f64::total_cmp);
                all[all.len() * which / 4]
            };
            print!("{bytes:>10}");
            for at in [0, 2] {
                let ratio = |times: &[f64; 4]| times[at] / times[at + 1];
                let micros = |offset: usize| quartile(1, &|times| times[at + offset]) / 1e3;
                print!("{:>12.2}{:>12.2}   ", micros(0), micros(1));
                print!(
                    "{:.2} {:.2} {:.2}      ",
                    quartile(1, &ratio),
                    quartile(2, &ratio),
                    quartile(3, &ratio)
                );
            }
            println!();
        }
    }
}
