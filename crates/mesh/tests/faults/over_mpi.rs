//! The same faults among processes, with Open MPI and with MPICH: `scripts/test` runs these where they are installed.
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

/// Runs processes that do this, and expects all but the wrong one to survive.
fn survive(launcher: &[&str], under: &[&str], fault: Fault, at: &str) {
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).args(["-n", &RANKS.to_string()]).args(under);
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

fn every_fault(launcher: &[&str], under: &[&str]) {
    for fault in [Fault::WrongSize, Fault::OtherCollective, Fault::Hangs] {
        survive(launcher, under, fault, "all");
    }
    for at in 0..STEPS {
        for fault in [Fault::Killed, Fault::Exits, Fault::Panics] {
            // Who is gone is gone, however it went: not every step for each.
            if fault == Fault::Killed || at % 3 == 0 {
                survive(launcher, under, fault, &at.to_string());
            }
        }
    }
}

mod with_openmpi {
    #[test]
    #[ignore = "needs Open MPI"]
    fn whatever_one_process_does_the_others_get_an_error_in_time() {
        super::every_fault(
            &["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--enable-recovery"],
            &[],
        );
    }
}

mod with_mpich {
    /// Outlives the launcher's signal too.
    const SHELL: &str = r#"trap "" USR1; "$0" "$@"; exit 0"#;

    #[test]
    #[ignore = "needs MPICH"]
    fn whatever_one_process_does_the_others_get_an_error_in_time() {
        super::every_fault(&["mpirun.mpich", "-disable-auto-cleanup"], &["sh", "-c", SHELL]);
    }
}
