//! The same program as processes under `mpirun`, some of which are killed or stopped.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use common::{Networks, difference};
use evener_train::{Trainer, membership::MembershipChange, testing::Mlp};

/// What happens to which process at which step: `kill:1:5`.
const FAULT: &str = "EVENER_TEST_FAULT";
/// Where the processes leave what they ended with, and checkpoints.
const FOLDER: &str = "EVENER_TEST_FOLDER";
const TIMEOUT: Duration = Duration::from_secs(2);
const RANKS: usize = 3;
const EPOCHS: u64 = 30;

fn networks() -> Networks {
    Networks::new(48, &[1e-3, 1e-3, 2e-3])
}

fn signal(what: &str, process: u32) {
    assert!(Command::new("kill").args([what, &process.to_string()]).status().unwrap().success());
}

/// What happens to this process.
fn go_wrong(what: &str) {
    let me = std::process::id();
    match what {
        "kill" => {
            signal("-KILL", me);
            thread::sleep(Duration::from_secs(60));
        }
        "exit" => std::process::exit(0),
        "panic" => panic!("a panic on purpose"),
        "stop" => {
            // Another process wakes it up, after the others have gone on.
            let wake = format!("sleep 3; kill -CONT {me}");
            let mut waker = Command::new("sh").args(["-c", &wake]).spawn().unwrap();
            signal("-STOP", me);
            waker.wait().unwrap();
        }
        "none" => {}
        other => panic!("no fault is called {other}"),
    }
}

/// The main function of each process.
#[test]
#[ignore = "started by the tests below, under mpirun"]
fn one_of_several_processes() {
    let fault = std::env::var(FAULT).expect("started by the tests below");
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("started by the tests below"));
    let [what, rank, at] = &fault.split(':').map(str::to_owned).collect::<Vec<_>>()[..] else {
        panic!("{fault}")
    };
    let (what, faulty, at) = (what.clone(), rank.parse::<usize>().unwrap(), at.clone());
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(50));
        eprintln!("does not end");
        std::process::exit(1);
    });
    let (networks, done, slow) = (networks(), Arc::new(AtomicBool::new(false)), what == "stop");
    let checkpoints = folder.join("checkpoints");
    let seen = checkpoints.clone();
    let builder = Trainer::builder(move |worker| {
        let rank = worker.rank;
        if rank == faulty && at == "start" && !done.swap(true, SeqCst) {
            go_wrong(&what);
        }
        let (what, at, done, seen) = (what.clone(), at.clone(), done.clone(), seen.clone());
        let (speed, mut calls) = (networks.speeds[rank], 0u64);
        let fault = move |samples: &[u64]| {
            calls += 1;
            // The warm-up is the first call.
            let now = match &at[..] {
                "exchange" => calls == 20,
                // The leader writes a checkpoint between this batch and the next: something hits it there.
                "checkpoint" => calls == 20,
                _ => false,
            };
            if now && rank == faulty && !done.swap(true, SeqCst) {
                let (what, checkpoint) = (what.clone(), at == "checkpoint");
                let seen = seen.clone();
                thread::spawn(move || {
                    let begun = Instant::now();
                    while checkpoint && !half_written(&seen) && begun.elapsed() < Duration::from_secs(5) {
                        std::hint::spin_loop();
                    }
                    go_wrong(&what);
                });
                // So that the exchange of this batch, or one soon after, is hit.
                if !checkpoint {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            if slow || calls > 19 {
                thread::sleep(Duration::from_millis(if slow { 15 } else { 2 }));
            }
            Some(Duration::from_secs_f64(speed * samples.len() as f64))
        };
        Ok(Mlp::new(networks.data.clone(), 6, networks.optimizer, rank as u64).with_hook(fault))
    });
    let builder = builder.data(48u64).batch(12).speed_hint([2.0, 2.0, 1.0]).timeout(TIMEOUT);
    let trainer = builder.checkpoint(&checkpoints).checkpoint_every(1).processes(true).build().unwrap();
    let rank_file = |rank: usize| folder.join(format!("rank-{rank}.json"));
    let handle = trainer.start(epochs(slow)).unwrap();
    let outcome = handle.join();
    let trained = match outcome {
        Ok(trained) => trained,
        Err(error) => {
            eprintln!("an error in time: {error}");
            std::process::exit(0);
        }
    };
    let returned =
        trained.report.events.iter().filter(|event| event.what == MembershipChange::Returned).count();
    let lost = trained.report.events.len() - returned;
    let me: usize = std::env::var("OMPI_COMM_WORLD_RANK").unwrap().parse().unwrap();
    let ended = serde_json::json!({
        "parameters": trained.replica.parameters(),
        "samples": trained.report.samples,
        "lost": lost,
        "returned": returned,
    });
    std::fs::write(rank_file(me), ended.to_string()).unwrap();
    // Finalizing does not wait for a dead process.
    std::process::exit(0);
}

fn epochs(slow: bool) -> u64 {
    if slow { 3 * EPOCHS + 30 } else { EPOCHS }
}

fn half_written(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(".step-"))
}

/// What a process ended with.
struct Ended {
    parameters: Vec<f64>,
    samples: u64,
    lost: u64,
    returned: u64,
}

/// Starts the processes, and returns what those that survived ended with, by rank.
fn launch(fault: &str) -> Vec<Option<Ended>> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("mpirun.openmpi");
    command
        .args(["--allow-run-as-root", "--oversubscribe", "--enable-recovery", "-n", &RANKS.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "one_of_several_processes"])
        .env(FAULT, fault)
        .env(FOLDER, folder.path())
        .env("RUST_BACKTRACE", "0");
    let begun = Instant::now();
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(begun.elapsed() < Duration::from_secs(45), "{fault} took {:?}:\n{said}", begun.elapsed());
    if std::env::var_os("EVENER_TEST_VERBOSE").is_some() {
        println!("{fault}: {:?}\n{said}", begun.elapsed());
    }
    let read = |rank: usize| {
        let text = std::fs::read_to_string(folder.path().join(format!("rank-{rank}.json"))).ok()?;
        let ended: serde_json::Value = serde_json::from_str(&text).unwrap();
        let parameters =
            ended["parameters"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
        let number = |name: &str| ended[name].as_u64().unwrap();
        Some(Ended {
            parameters,
            samples: number("samples"),
            lost: number("lost"),
            returned: number("returned"),
        })
    };
    (0..RANKS).map(read).collect()
}

fn survivors_end_where_one_worker_ends(fault: &str, faulty: usize) {
    let expected = networks().alone(12, EPOCHS);
    let ended = launch(fault);
    for rank in (0..RANKS).filter(|rank| *rank != faulty) {
        let Some(ended) = &ended[rank] else { panic!("{fault}: rank {rank} did not survive") };
        assert_eq!((ended.samples, ended.lost), (48 * EPOCHS, 1), "{fault}");
        let apart = difference(expected.replica.network.parameters(), &ended.parameters);
        assert!(apart < 1e-8, "{fault}: rank {rank} is {apart} apart");
    }
}

mod with_openmpi {
    use super::*;

    #[test]
    #[ignore = "needs Open MPI"]
    fn processes_train_as_one_worker() {
        let expected = networks().alone(12, EPOCHS);
        for (rank, ended) in launch("none:9:exchange").into_iter().enumerate() {
            let ended = ended.unwrap_or_else(|| panic!("rank {rank} did not survive"));
            assert_eq!((ended.samples, ended.lost), (48 * EPOCHS, 0));
            assert!(difference(expected.replica.network.parameters(), &ended.parameters) < 1e-8);
        }
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn the_others_go_on_without_a_process_that_is_killed() {
        for (rank, at) in [(1, "start"), (0, "exchange"), (0, "checkpoint")] {
            survivors_end_where_one_worker_ends(&format!("kill:{rank}:{at}"), rank);
        }
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn the_others_go_on_without_a_process_that_panics() {
        survivors_end_where_one_worker_ends("panic:1:start", 1);
    }

    #[test]
    #[ignore = "needs Open MPI"]
    fn a_process_that_was_stopped_returns() {
        let expected = networks().alone(12, epochs(true));
        for (rank, at) in [(2, "exchange"), (0, "checkpoint")] {
            let fault = format!("stop:{rank}:{at}");
            for (rank, ended) in launch(&fault).into_iter().enumerate() {
                let ended = ended.unwrap_or_else(|| panic!("{fault}: rank {rank} did not survive"));
                assert_eq!((ended.lost, ended.returned), (1, 1), "{fault}: rank {rank}");
                assert!(difference(expected.replica.network.parameters(), &ended.parameters) < 1e-6);
            }
        }
    }
}
