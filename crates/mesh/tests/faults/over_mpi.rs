//! The same faults among processes, with Open MPI, MPICH and an MPI with the standard ABI: `scripts/test` runs these
//! tests if the libraries are installed.
//!
//! A launcher kills all processes when one of them dies, unless told otherwise: Open MPI 4 by `--enable-recovery`.
//! MPICH's `-disable-auto-cleanup` still kills the others when one is killed: so there each process is the child of a
//! shell that always exits with 0.
//!
//! Everything runs twice: in shared memory, as on one host, and by messages, as between hosts.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use evener_mesh::comm::{GroupSpec, ReduceOp, World};

use crate::script::{DEADLINE, Fault, STEPS, TIMEOUT, run, step};

/// What the processes do: a fault, and the step at which it happens, or `all` steps.
const VARIABLE: &str = "EVENER_TEST_FAULT";

/// The folder in which each surviving process writes a file with its number of successful calls.
const SURVIVORS: &str = "EVENER_TEST_SURVIVORS";

/// The name of the library to use.
pub const LIBRARY: &str = "EVENER_TEST_LIBRARY";

/// Set for processes that use messages.
const MESSAGES: &str = "EVENER_MPI_MESSAGES";

/// The main function of each process.
#[test]
#[ignore = "started by the tests below, under mpirun"]
fn one_of_several_processes() {
    let what = std::env::var(VARIABLE).expect("started by the tests below");
    let (fault, at) = what.split_once(':').unwrap();
    // A process that never ends fails the test too.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(50));
        eprintln!("does not end");
        std::process::exit(1);
    });
    #[cfg(target_os = "linux")]
    if crate::side_effects::run(fault) {
        return;
    }
    match fault {
        "Inside" => return until_killed(at.parse().unwrap()),
        "Many" => return many_ranks(),
        _ => {}
    }
    let fault = match fault {
        "Panics" => Fault::Panics,
        "Hangs" => Fault::Hangs,
        "Exits" => Fault::Exits,
        "WrongSize" => Fault::WrongSize,
        "OtherCollective" => Fault::OtherCollective,
        "Killed" => Fault::Killed,
        other => panic!("no fault is called {other}"),
    };
    let world = World::mpi(TIMEOUT * 20).unwrap();
    let wanted = std::env::var(LIBRARY).expect("started by the tests below");
    assert!(world.backend().contains(&wanted), "{} is not {wanted}", world.backend());
    let steps = if at == "all" { 0..STEPS } else { at.parse().unwrap()..at.parse::<usize>().unwrap() + 1 };
    for at in steps {
        for len in if at % 2 == 0 { [5, 40_000] } else { [40_000, 5] } {
            let there = run(&world, &format!("{fault:?} at {at} of {len}"), fault, at, len);
            if !there {
                std::process::exit(0);
            }
            if !comes_back(fault) {
                break;
            }
            // The faulty rank may be late for the next call.
            world.communicator().barrier().unwrap();
        }
    }
    leave_a_file(world.rank(), 0);
    if !comes_back(fault) {
        // Finalizing does not wait for the dead rank.
        std::mem::forget(world);
        std::process::exit(0);
    }
}

pub fn leave_a_file(rank: usize, succeeded: usize) {
    let survivors = std::env::var_os(SURVIVORS).expect("started by the tests below");
    let file = std::path::Path::new(&survivors).join(rank.to_string());
    std::fs::write(file, succeeded.to_string()).unwrap();
}

/// Calls of all lengths that are repeated, in a group of more ranks than send messages without a header.
fn many_ranks() {
    let world = World::mpi(TIMEOUT * 50).unwrap();
    let (rank, size) = (world.rank(), world.size());
    assert_eq!(size, MANY_RANKS);
    for len in [1usize, 64, 200, 512, 1000, 1024, 1025, 5000] {
        for round in 0..5 {
            let mut data: Vec<u32> = (0..len).map(|index| (index * 3 + round + rank) as u32).collect();
            world.communicator().all_reduce(&mut data, ReduceOp::Sum).unwrap();
            let sum = |index: usize| ((index * 3 + round) * size + size * (size - 1) / 2) as u32;
            assert!(data.iter().enumerate().all(|(index, it)| *it == sum(index)), "{len}, round {round}");
        }
    }
    // A group of some of them sends messages without a header.
    let few = world.new_group(GroupSpec::new("few", [0, 1, 2])).unwrap();
    for round in 0..5 {
        let mut data = [round + rank as u32; 1024];
        if rank < 3 {
            few.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data, [round * 3 + 3; 1024]);
        }
    }
    world.communicator().barrier().unwrap();
    leave_a_file(rank, 0);
}

/// Makes calls until one rank is killed, at any point of a call. Calls that succeed have the right result, and others
/// fail in time.
fn until_killed(len: usize) {
    let by_messages = std::env::var_os(MESSAGES).is_some_and(|it| !it.is_empty());
    let world = World::mpi(TIMEOUT * 20).unwrap();
    let (rank, size, wrong) = (world.rank(), world.size(), world.size() - 1);
    let group = GroupSpec::new("until killed", (0..size).collect::<Vec<_>>()).timeout(TIMEOUT);
    let group = world.new_group(group).unwrap();
    for round in 0..1_000_000 {
        if rank == wrong && round == 20 {
            std::thread::spawn(|| {
                let me = std::process::id().to_string();
                std::process::Command::new("kill").args(["-9", &me]).status().unwrap();
            });
        }
        let value = (round % 100 + 1) as f32;
        let mut data = vec![value * (rank + 1) as f32; len];
        let mut error = None;
        let start = Instant::now();
        if let Err(why) = group.all_reduce(&mut data, ReduceOp::Sum) {
            error = Some(why);
        }
        assert!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
        let Some(error) = error else {
            let expected = value * (size * (size + 1) / 2) as f32;
            assert!(data.iter().all(|it| *it == expected), "round {round} has a wrong result");
            continue;
        };
        // By messages, a rank may also wait for another that waits for the dead one.
        let blamed = error.ranks();
        assert!(blamed == [wrong] || by_messages && blamed.contains(&wrong), "{error}");
        let rest = group.rebuild(&[wrong]).unwrap();
        (0..STEPS).for_each(|index| step(&rest, index, 1000).unwrap());
        leave_a_file(world.rank(), round);
        std::mem::forget(world);
        std::process::exit(0);
    }
    panic!("nobody was killed");
}

/// Returns whether the faulty rank is still there, for the next fault.
fn comes_back(fault: Fault) -> bool {
    matches!(fault, Fault::Hangs | Fault::WrongSize | Fault::OtherCollective)
}

const RANKS: usize = 4;
const MANY_RANKS: usize = 10;

/// Starts one process without a launcher that names its MPI.
const ALONE: &str = "env";

/// How processes are started, and which library they must find.
#[derive(Clone, Copy)]
struct Launch<'a> {
    library: &'a str,
    launcher: &'a [&'a str],
    /// The command that starts each process.
    under: &'a [&'a str],
    messages: bool,
    ranks: usize,
}

impl Launch<'_> {
    /// Runs processes, and checks that `wanted` of them survive. Returns the number of successful calls of each.
    fn survive(self, what: &str, wanted: usize) -> Vec<usize> {
        let mut command = Command::new(self.launcher[0]);
        command
            .env(LIBRARY, self.library)
            .args(&self.launcher[1..])
            .args(if self.launcher[0] == ALONE { vec![] } else { vec!["-n".into(), self.ranks.to_string()] })
            .args(self.under);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "over_mpi::one_of_several_processes"]);
        let survivors = tempfile::tempdir().unwrap();
        let start = Instant::now();
        command.env(SURVIVORS, survivors.path()).env(VARIABLE, what).env("RUST_BACKTRACE", "0");
        command.env(MESSAGES, if self.messages { "1" } else { "" });
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let what = format!("{what}, by messages: {}", self.messages);
        assert!(start.elapsed() < Duration::from_secs(60), "{what} took {:?}", start.elapsed());
        let succeeded = |rank: usize| {
            let file = std::fs::read_to_string(survivors.path().join(rank.to_string()));
            let file = file.unwrap_or_else(|_| panic!("{what}: rank {rank} did not survive:\n{said}"));
            file.parse().unwrap()
        };
        (0..wanted).map(succeeded).collect()
    }

    fn every_fault(self) {
        for fault in [Fault::WrongSize, Fault::OtherCollective, Fault::Hangs] {
            self.survive(&format!("{fault:?}:all"), RANKS);
        }
        for at in 0..STEPS {
            for fault in [Fault::Killed, Fault::Exits, Fault::Panics] {
                self.survive(&format!("{fault:?}:{at}"), RANKS - 1);
            }
        }
    }

    /// Runs both in shared memory and by messages.
    fn both_routes(self, what: &str, wanted: usize) {
        for messages in [false, true] {
            Launch { messages, ..self }.survive(what, wanted);
        }
    }

    fn started_by_the_program(self) {
        for threads in [0, 2, 3] {
            self.survive(&format!("Threads{threads}:"), RANKS);
        }
        self.both_routes("Finalized:", RANKS);
    }

    /// In shared memory.
    fn killed_inside(self) {
        // Lengths of one step, of several, of several pieces, and with non-temporal stores.
        for len in [100, 20_000, 2_000_000, 9_000_000] {
            let succeeded = self.survive(&format!("Inside:{len}"), RANKS - 1);
            // A call that succeeds on one rank succeeds on all.
            assert!(succeeded[0] >= 20 && succeeded.iter().all(|it| *it == succeeded[0]), "{succeeded:?}");
        }
    }

    /// By messages without a header: vectors of one message and of several. Not longer ones: UCX, below MPICH, kills a
    /// process that was reading from one that is killed.
    fn killed_inside_by_messages(self) {
        for len in [25, 200, 500, 1024] {
            let succeeded = Launch { messages: true, ..self }.survive(&format!("Inside:{len}"), RANKS - 1);
            let (least, most) = (succeeded.iter().min(), succeeded.iter().max());
            // The dead rank may have sent its last messages to some ranks only.
            assert!(*least.unwrap() >= 20 && most.unwrap() - least.unwrap() <= 1, "{succeeded:?}");
        }
    }

    fn many_ranks(self) {
        Launch { ranks: MANY_RANKS, ..self }.both_routes("Many:", MANY_RANKS);
    }
}

mod with_openmpi {
    use super::{Launch, RANKS};

    const LAUNCH: Launch<'_> = Launch {
        library: "Open MPI",
        launcher: &["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--enable-recovery"],
        under: &[],
        messages: false,
        ranks: RANKS,
    };

    #[test]
    #[ignore = "needs Open MPI"]
    fn whatever_one_process_does_the_others_get_an_error_in_time() {
        LAUNCH.every_fault();
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn whatever_one_process_does_the_others_get_an_error_in_time_by_messages() {
        Launch { messages: true, ..LAUNCH }.every_fault();
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn a_group_poisoned_during_a_call_gives_the_same_on_every_rank() {
        LAUNCH.both_routes("Poisoned:", RANKS);
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn the_end_waits_for_no_dead_rank_although_no_group_has_failed() {
        LAUNCH.survive("Dead:", RANKS - 1);
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn ranks_that_wait_leave_their_cores_to_others() {
        LAUNCH.both_routes("Idle:", RANKS);
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn groups_that_are_gone_leave_their_tags_to_others() {
        LAUNCH.survive("Tags:", RANKS);
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn an_mpi_of_the_program_is_left_as_it_was_or_refused() {
        LAUNCH.started_by_the_program();
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn one_that_is_killed_inside_a_call_leaves_right_results_and_errors() {
        LAUNCH.killed_inside();
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn one_that_is_killed_inside_a_call_by_messages_leaves_right_results_and_errors() {
        LAUNCH.killed_inside_by_messages();
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn more_ranks_than_send_messages_without_a_header_get_right_results() {
        LAUNCH.many_ranks();
    }
}

/// Also survives the signal of MPICH's launcher.
const SHELL: &str = r#"trap "" USR1; "$0" "$@"; exit 0"#;

mod with_mpich {
    use super::{ALONE, Launch, RANKS, SHELL};

    const LAUNCH: Launch<'_> = Launch {
        library: "MPICH",
        launcher: &["mpirun.mpich", "-disable-auto-cleanup"],
        under: &["sh", "-c", SHELL],
        messages: false,
        ranks: RANKS,
    };

    #[test]
    #[ignore = "needs MPICH"]
    fn whatever_one_process_does_the_others_get_an_error_in_time() {
        LAUNCH.every_fault();
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn whatever_one_process_does_the_others_get_an_error_in_time_by_messages() {
        Launch { messages: true, ..LAUNCH }.every_fault();
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn a_group_poisoned_during_a_call_gives_the_same_on_every_rank() {
        LAUNCH.both_routes("Poisoned:", RANKS);
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn the_end_waits_for_no_dead_rank_although_no_group_has_failed() {
        LAUNCH.survive("Dead:", RANKS - 1);
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn ranks_that_wait_leave_their_cores_to_others() {
        LAUNCH.both_routes("Idle:", RANKS);
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn groups_that_are_gone_leave_their_tags_to_others() {
        LAUNCH.survive("Tags:", RANKS);
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn an_mpi_of_the_program_is_left_as_it_was_or_refused() {
        LAUNCH.started_by_the_program();
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn the_library_that_the_program_has_loaded_is_used() {
        Launch { launcher: &[ALONE], ..LAUNCH }.survive("Loaded:", 1);
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn the_signal_of_the_launcher_is_what_it_was_for_children_and_afterwards() {
        // Without the shell, which ignores the signal.
        Launch { under: &[], ..LAUNCH }.survive("Signals:", RANKS);
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn one_that_is_killed_inside_a_call_leaves_right_results_and_errors() {
        LAUNCH.killed_inside();
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn one_that_is_killed_inside_a_call_by_messages_leaves_right_results_and_errors() {
        LAUNCH.killed_inside_by_messages();
    }

    #[test]
    #[ignore = "needs MPICH"]
    fn more_ranks_than_send_messages_without_a_header_get_right_results() {
        LAUNCH.many_ranks();
    }
}

mod with_mpi_abi {
    use super::{Launch, RANKS, SHELL};

    /// Names the folder of an MPICH that has a library of the standard ABI.
    const FOLDER: &str = "EVENER_TEST_MPI_ABI";

    fn launch(then: impl FnOnce(Launch<'_>)) {
        let folder = std::env::var(FOLDER).expect("EVENER_TEST_MPI_ABI names no folder");
        let (launcher, libraries) =
            (format!("{folder}/bin/mpiexec"), format!("LD_LIBRARY_PATH={folder}/lib"));
        then(Launch {
            library: "standard ABI",
            launcher: &[&launcher, "-disable-auto-cleanup"],
            under: &["env", &libraries, "sh", "-c", SHELL],
            messages: false,
            ranks: RANKS,
        });
    }

    #[test]
    #[ignore = "needs an MPI with the standard ABI"]
    fn whatever_one_process_does_the_others_get_an_error_in_time() {
        launch(|launch| launch.every_fault());
    }

    #[test]
    #[ignore = "needs an MPI with the standard ABI"]
    fn an_mpi_of_the_program_is_left_as_it_was_or_refused() {
        launch(|launch| launch.started_by_the_program());
    }

    #[test]
    #[ignore = "needs an MPI with the standard ABI"]
    fn whatever_one_process_does_the_others_get_an_error_in_time_by_messages() {
        launch(|launch| Launch { messages: true, ..launch }.every_fault());
    }
}
