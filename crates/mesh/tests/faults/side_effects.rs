//! Processes check that Evener has no side effects on the program: its MPI, signals, cores and tags.

use std::{
    ffi::{c_int, c_void},
    thread,
    time::{Duration, Instant},
};

use evener_mesh::comm::{CommError, GroupSpec, ReduceOp, World};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::{
    over_mpi::{LIBRARY, leave_a_file},
    script::TIMEOUT,
};

/// Runs a check by name. Returns whether there is one.
pub fn run(what: &str) -> bool {
    match what {
        "Poisoned" => poisoned_during_a_call(),
        "Dead" => dropped_after_one_died(),
        "Idle" => idle_while_waiting(),
        "Tags" => as_many_groups_as_there_are(),
        "Signals" => signals_as_before(),
        "Loaded" => found_where_the_program_has_it(),
        "Finalized" => dropped_after_the_program_finalized_mpi(),
        "Threads0" => started_by_the_program(0),
        "Threads2" => started_by_the_program(2),
        "Threads3" => started_by_the_program(3),
        _ => return false,
    }
    true
}

fn world() -> World {
    let world = World::mpi(TIMEOUT * 20).unwrap();
    let wanted = std::env::var(LIBRARY).expect("started by the tests");
    assert!(world.backend().contains(&wanted), "{} is not {wanted}", world.backend());
    world
}

/// The last rank poisons a group while it waits in a call for the first, which is late. The call ends alike on all ranks.
fn poisoned_during_a_call() {
    let world = world();
    let (rank, size) = (world.rank(), world.size());
    for len in [10, 100_000] {
        let ranks: Vec<_> = (0..size).collect();
        let group = world.new_group(GroupSpec::new("poisoned", ranks).timeout(TIMEOUT * 10)).unwrap();
        // Not the first call, which chooses the route.
        group.barrier().unwrap();
        if rank == 0 {
            thread::sleep(Duration::from_millis(300));
        }
        let pending = group.start_all_reduce(vec![rank as f32; len], ReduceOp::Sum);
        if rank == size - 1 {
            thread::sleep(Duration::from_millis(100));
            group.poison("on purpose");
        }
        let done = pending.wait();
        let sum = (size * (size - 1) / 2) as f32;
        assert!(done.iter().flatten().all(|it| *it == sum), "a wrong sum");
        let mut succeeded = vec![0u8; size];
        world.communicator().all_gather(&[u8::from(done.is_ok())], &mut succeeded).unwrap();
        assert!(succeeded.iter().all(|it| *it == succeeded[0]), "{len}: {succeeded:?}, here {done:?}");
        let error = group.barrier().unwrap_err();
        assert!(error.to_string().contains("on purpose"), "{error}");
    }
    leave_a_file(world.rank(), 0);
}

/// The last rank is killed after the last call, so that no group fails. The others still end in time.
fn dropped_after_one_died() {
    let world = World::mpi(TIMEOUT * 2).unwrap();
    let rank = world.rank();
    world.communicator().barrier().unwrap();
    if rank == world.size() - 1 {
        let me = std::process::id().to_string();
        std::process::Command::new("kill").args(["-9", &me]).status().unwrap();
    }
    let (start, busy) = (Instant::now(), busy_time());
    drop(world);
    let took = start.elapsed();
    assert!(took < TIMEOUT * 10, "{took:?}");
    assert!(busy_time() - busy < took / 2, "busy for {:?} of {took:?}", busy_time() - busy);
    leave_a_file(rank, 0);
    std::process::exit(0);
}

/// Returns the processor time of this thread.
fn busy_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// The last rank is late. The others do not use their cores meanwhile.
fn idle_while_waiting() {
    let world = world();
    world.communicator().barrier().unwrap();
    let (start, busy) = (Instant::now(), busy_time());
    if world.rank() == world.size() - 1 {
        thread::sleep(TIMEOUT * 3);
    }
    world.communicator().barrier().unwrap();
    let (took, busy) = (start.elapsed(), busy_time() - busy);
    assert!(took > TIMEOUT * 2 && busy < took / 3, "busy for {busy:?} of {took:?}");
    leave_a_file(world.rank(), 0);
}

/// Creates more groups, one after another, than there are tags: some reuse the tags of earlier groups.
fn as_many_groups_as_there_are() {
    let world = world();
    for index in 0..200_000 {
        world.new_group(GroupSpec::new(format!("group {index}"), [world.rank()])).unwrap();
    }
    world.communicator().barrier().unwrap();
    leave_a_file(world.rank(), 0);
}

/// Returns whether `SIGUSR1` is ignored and whether it is handled, from the status of a process.
fn user_signal(status: &str) -> [bool; 2] {
    ["SigIgn:", "SigCgt:"].map(|field| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << (libc::SIGUSR1 - 1) != 0
    })
}

fn own_signal() -> [bool; 2] {
    user_signal(&std::fs::read_to_string("/proc/self/status").unwrap())
}

/// The signal of MPICH's launcher kills no process, and its action is unchanged for children, and for this process
/// afterwards.
fn signals_as_before() {
    let before = own_signal();
    assert_eq!(before, [false, false]);
    let world = world();
    let child = std::process::Command::new("cat").arg("/proc/self/status").output().unwrap();
    assert_eq!(user_signal(&String::from_utf8(child.stdout).unwrap()), before, "a child's");
    if world.backend().contains("MPICH") {
        let me = std::process::id().to_string();
        std::process::Command::new("kill").args(["-USR1", &me]).status().unwrap();
    }
    world.communicator().barrier().unwrap();
    let rank = world.rank();
    drop(world);
    assert_eq!(own_signal(), before, "afterwards");
    leave_a_file(rank, 0);
}

/// An MPI that the program initializes itself. Handles are wide enough for every library.
struct Program {
    library: Library,
    world: usize,
}

impl Program {
    fn start(threads: c_int) -> Self {
        let names = match std::env::var(LIBRARY).unwrap().as_str() {
            "Open MPI" => ["libmpi.so.40", "libmpi.so.80"],
            "MPICH" => ["libmpich.so.12", "libmpi.so.12"],
            _ => ["libmpi_abi.so.1", "libmpi_abi.so"],
        };
        // SAFETY: MPI libraries only run their own constructors when they are opened.
        let open = |name: &&str| unsafe { Library::open(Some(*name), RTLD_NOW | RTLD_GLOBAL) }.ok();
        let library = names.iter().find_map(open).expect("no MPI library");
        // SAFETY: only the address of the variable is taken.
        let world = match unsafe { library.get::<*const c_void>(b"ompi_mpi_comm_world") } {
            Ok(world) => world.as_raw_ptr() as usize,
            Err(_) if names[0].contains("abi") => 0x101,
            Err(_) => 0x4400_0000,
        };
        // The values of the standard's `mpi_abi.h`.
        let threads =
            if names[0].contains("abi") { [0, 1024, 2048, 4096][threads as usize] } else { threads };
        let (mut provided, none) = (0, std::ptr::null_mut::<c_void>());
        // SAFETY: the type is that of the MPI standard; the pointer is to a live variable.
        let code = unsafe {
            let init = library
                .get::<unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut c_int) -> c_int>(
                    b"MPI_Init_thread",
                )
                .unwrap();
            init(none, none, threads, &mut provided)
        };
        assert_eq!((code, provided), (0, threads), "the library does not provide what the test needs");
        Program { library, world }
    }

    /// Returns the error handler of the world communicator.
    fn error_handler(&self) -> usize {
        let mut handler = 0;
        // SAFETY: the type is that of the MPI standard; `handler` can hold a handle of either width.
        let code = unsafe {
            let get = self
                .library
                .get::<unsafe extern "C" fn(usize, *mut usize) -> c_int>(b"MPI_Comm_get_errhandler")
                .unwrap();
            get(self.world, &mut handler)
        };
        assert_eq!(code, 0);
        handler
    }

    fn end(self) {
        // SAFETY: the types are those of the MPI standard.
        let codes = unsafe {
            let barrier = self.library.get::<unsafe extern "C" fn(usize) -> c_int>(b"MPI_Barrier").unwrap();
            let finalize = self.library.get::<unsafe extern "C" fn() -> c_int>(b"MPI_Finalize").unwrap();
            [barrier(self.world), finalize()]
        };
        assert_eq!(codes, [0, 0]);
    }
}

/// Of several libraries on the machine, the one that the program has initialized is used.
fn found_where_the_program_has_it() {
    let program = Program::start(3);
    leave_a_file(world().rank(), 0);
    program.end();
}

/// The program finalizes its MPI, and only then drops its communicators.
fn dropped_after_the_program_finalized_mpi() {
    let program = Program::start(3);
    let world = world();
    let (rank, size) = (world.rank(), world.size());
    let group = world.new_group(GroupSpec::new("dropped later", (0..size).collect::<Vec<_>>())).unwrap();
    // From the second call on, small messages have persistent requests.
    for _ in 0..3 {
        let mut data = [rank as u32; 200];
        group.all_reduce(&mut data, ReduceOp::Max).unwrap();
        assert_eq!(data, [size as u32 - 1; 200]);
    }
    program.end();
    group.poison("MPI is finalized");
    drop((group, world));
    leave_a_file(rank, 0);
}

/// An MPI that the program has initialized is unchanged, during and after; one for a single thread is refused.
fn started_by_the_program(threads: c_int) {
    let program = Program::start(threads);
    let before = (program.error_handler(), own_signal());
    let rank = match World::mpi(TIMEOUT * 20) {
        Err(error) => {
            assert!(threads < 2, "{error}");
            assert!(matches!(error, CommError::Unavailable { .. }), "{error}");
            assert!(error.to_string().contains("MPI_THREAD_MULTIPLE"), "{error}");
            std::env::var("OMPI_COMM_WORLD_RANK")
                .or_else(|_| std::env::var("PMI_RANK"))
                .unwrap()
                .parse()
                .unwrap()
        }
        Ok(world) => {
            assert!(threads >= 2, "accepted although only one thread may call MPI");
            assert_eq!((program.error_handler(), own_signal()), before, "during");
            let mut data = [world.rank() as u32];
            world.communicator().all_reduce(&mut data, ReduceOp::Max).unwrap();
            assert_eq!(data[0] as usize, world.size() - 1);
            world.rank()
        }
    };
    assert_eq!((program.error_handler(), own_signal()), before, "afterwards");
    program.end();
    leave_a_file(rank, 0);
}
