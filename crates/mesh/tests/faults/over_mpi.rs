//! The same faults among processes, with Open MPI, with MPICH and with an MPI of the standard ABI: `scripts/test` runs
//! these where they are installed.
//!
//! A launcher ends all processes when one of them dies, unless it is told not to: Open MPI 4 by `--enable-recovery`.
//! MPICH's has `-disable-auto-cleanup`, which does not keep it from ending the others when one is killed: so there each
//! process is the child of a shell that ends well, whatever became of the process.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use evener_mesh::comm::Comm;

use crate::script::{Fault, STEPS, TIMEOUT, run};

/// What the processes are told to do: a fault, and the step at which it happens, or `all` of them.
const VARIABLE: &str = "EVENER_TEST_FAULT";

/// The folder in which each process that survives leaves a file.
const SURVIVORS: &str = "EVENER_TEST_SURVIVORS";

/// What the library that is meant is called.
const LIBRARY: &str = "EVENER_TEST_LIBRARY";

/// What each process does.
#[test]
#[ignore = "started by the tests below, under mpirun"]
fn one_of_several_processes() {
    let what = std::env::var(VARIABLE).expect("started by the tests below");
    let (fault, at) = what.split_once(':').unwrap();
    let fault = match fault {
        "Panics" => Fault::Panics,
        "Hangs" => Fault::Hangs,
        "Exits" => Fault::Exits,
        "WrongSize" => Fault::WrongSize,
        "OtherCollective" => Fault::OtherCollective,
        "Killed" => Fault::Killed,
        other => panic!("no fault is called {other}"),
    };
    let comm = Comm::mpi(TIMEOUT * 20).unwrap();
    let wanted = std::env::var(LIBRARY).expect("started by the tests below");
    assert!(comm.backend().contains(&wanted), "{} is not {wanted}", comm.backend());
    let steps = if at == "all" { 0..STEPS } else { at.parse().unwrap()..at.parse::<usize>().unwrap() + 1 };
    for at in steps {
        for len in if at % 2 == 0 { [5, 40_000] } else { [40_000, 5] } {
            let there = run(&comm, &format!("{fault:?} at {at} of {len}"), fault, at, len);
            if !there {
                std::process::exit(0);
            }
            if !comes_back(fault) {
                break;
            }
            // The wrong rank may be late for the next.
            comm.world().barrier().unwrap();
        }
    }
    let survivors = std::env::var_os(SURVIVORS).expect("started by the tests below");
    std::fs::write(std::path::Path::new(&survivors).join(comm.rank().to_string()), "").unwrap();
    if !comes_back(fault) {
        // Nobody waits for the one that is gone.
        std::mem::forget(comm);
        std::process::exit(0);
    }
}

/// Whether the wrong rank is there afterwards, to do the next thing wrong.
fn comes_back(fault: Fault) -> bool {
    matches!(fault, Fault::Hangs | Fault::WrongSize | Fault::OtherCollective)
}

const RANKS: usize = 4;

/// How processes are started, and which library they are to find.
struct Launched<'a> {
    library: &'a str,
    launcher: &'a [&'a str],
    under: &'a [&'a str],
}

/// Runs processes that do this, and expects all but the wrong one to survive.
fn survive(launched: &Launched, fault: Fault, at: &str) {
    let Launched { library, launcher, under } = launched;
    let mut command = Command::new(launcher[0]);
    command.env(LIBRARY, library).args(&launcher[1..]).args(["-n", &RANKS.to_string()]).args(*under);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "over_mpi::one_of_several_processes"]);
    let survivors = tempfile::tempdir().unwrap();
    let start = Instant::now();
    command.env(SURVIVORS, survivors.path());
    let output =
        command.env(VARIABLE, format!("{fault:?}:{at}")).env("RUST_BACKTRACE", "0").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let wanted = if comes_back(fault) { RANKS } else { RANKS - 1 };
    for rank in 0..wanted {
        let survived = survivors.path().join(rank.to_string()).exists();
        assert!(survived, "{fault:?} at {at}: rank {rank} did not survive:\n{said}");
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{fault:?} at {at} took {:?}", start.elapsed());
}

fn every_fault(library: &str, launcher: &[&str], under: &[&str]) {
    let launched = Launched { library, launcher, under };
    for fault in [Fault::WrongSize, Fault::OtherCollective, Fault::Hangs] {
        survive(&launched, fault, "all");
    }
    for at in 0..STEPS {
        for fault in [Fault::Killed, Fault::Exits, Fault::Panics] {
            survive(&launched, fault, &at.to_string());
        }
    }
}

mod with_openmpi {
    #[test]
    #[ignore = "needs Open MPI"]
    fn whatever_one_process_does_the_others_get_an_error_in_time() {
        super::every_fault(
            "Open MPI",
            &["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--enable-recovery"],
            &[],
        );
    }
}

/// Outlives the signal of MPICH's launcher too.
const SHELL: &str = r#"trap "" USR1; "$0" "$@"; exit 0"#;

mod with_mpich {
    #[test]
    #[ignore = "needs MPICH"]
    fn whatever_one_process_does_the_others_get_an_error_in_time() {
        super::every_fault("MPICH", &["mpirun.mpich", "-disable-auto-cleanup"], &["sh", "-c", super::SHELL]);
    }
}

mod with_mpi_abi {
    /// Names the folder of an MPICH that has a library of the standard ABI.
    const FOLDER: &str = "EVENER_TEST_MPI_ABI";

    #[test]
    #[ignore = "needs an MPI with the standard ABI"]
    fn whatever_one_process_does_the_others_get_an_error_in_time() {
        let folder = std::env::var(FOLDER).expect("EVENER_TEST_MPI_ABI names no folder");
        let (launcher, libraries) =
            (format!("{folder}/bin/mpiexec"), format!("LD_LIBRARY_PATH={folder}/lib"));
        super::every_fault(
            "standard ABI",
            &[&launcher, "-disable-auto-cleanup"],
            &["env", &libraries, "sh", "-c", super::SHELL],
        );
    }
}
