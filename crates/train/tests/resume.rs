//! A run that was stopped anywhere continues exactly where it was.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use common::{ADAM, Networks, bits, difference};
use evener_train::{Policy, Trained, cadence::OuterStep, checkpoint::Checkpoint};

const EPOCHS: u64 = 6;

fn networks() -> Networks {
    Networks { optimizer: ADAM, batch_norm: true, ..Networks::new(90, &[1e-3, 2.5e-3]) }
}

fn run(
    networks: &Networks,
    folder: &Path,
    every: u64,
) -> Result<Trained<common::Watched>, evener_train::TrainError> {
    let builder = networks.trainer().0.batch(35).seed(5).timeout(Duration::from_millis(800));
    builder.checkpoint(folder).checkpoint_every(every).build()?.run(EPOCHS)
}

#[test]
fn a_run_that_dies_at_any_step_continues_bit_for_bit() {
    let whole = tempfile::tempdir().unwrap();
    let expected = run(&networks(), whole.path(), 1000).unwrap();
    for (step, every) in [(0, 1), (1, 1), (2, 1), (7, 3), (11, 5), (17, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let dies = networks().with_fault(move |_, at| assert!(at < step, "a panic on purpose"));
        run(&dies, folder.path(), every).err().expect("it died");
        let trained = run(&networks(), folder.path(), every).unwrap();
        let (one, other) = (&expected.replica.network, &trained.replica.network);
        assert_eq!(bits(one.parameters()), bits(other.parameters()), "died at {step}");
        assert_eq!(bits(one.buffers()), bits(other.buffers()), "died at {step}");
        assert_eq!(expected.report.epoch_losses, trained.report.epoch_losses);
        assert_eq!(trained.report.resumed_from.is_some(), step >= every, "{}", trained.report);
        assert_eq!(trained.report.steps, expected.report.steps);
    }
}

#[test]
fn a_run_continues_with_another_number_of_workers() {
    let whole = tempfile::tempdir().unwrap();
    let plain = |speeds: &[f64]| Networks { batch_norm: false, speeds: speeds.to_vec(), ..networks() };
    let expected = run(&plain(&[1e-3, 2.5e-3]), whole.path(), 1000).unwrap();
    for speeds in [&[1e-3][..], &[1e-3, 1e-3, 4e-3]] {
        let folder = tempfile::tempdir().unwrap();
        let dies = plain(&[1e-3, 2.5e-3]).with_fault(|_, at| assert!(at < 8, "a panic on purpose"));
        run(&dies, folder.path(), 2).err().expect("it died");
        let trained = run(&plain(speeds), folder.path(), 2).unwrap();
        assert_eq!(trained.report.resumed_from, Some(8));
        let (one, other) = (expected.replica.network.parameters(), trained.replica.network.parameters());
        assert!(difference(one, other) < 1e-7, "{speeds:?}: {}", difference(one, other));
    }
}

#[test]
fn with_local_steps_each_worker_gets_its_own_optimizer_back() {
    let run = |folder: &Path, fault: Option<u64>| {
        let networks = networks();
        let networks = match fault {
            Some(step) => networks.with_fault(move |_, at| assert!(at < step, "a panic on purpose")),
            None => networks,
        };
        // One local step always, because the number of local steps follows real time.
        let builder = networks.trainer().0.batch(35).policy(Policy::Cadence).max_lead(1).checkpoint(folder);
        let builder = builder.outer_step(OuterStep::NESTEROV).checkpoint_every(1);
        builder.timeout(Duration::from_millis(800)).build().unwrap().run(EPOCHS)
    };
    let whole = tempfile::tempdir().unwrap();
    let expected = run(whole.path(), None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), Some(9)).err().expect("it died");
    let trained = run(folder.path(), None).unwrap();
    assert!(trained.report.resumed_from.is_some());
    assert_eq!(bits(expected.replica.network.parameters()), bits(trained.replica.network.parameters()));
}

#[test]
fn a_checkpoint_that_was_damaged_is_passed_over_and_of_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(&networks(), folder.path(), 4).unwrap();
    let latest = Checkpoint::latest(folder.path()).unwrap().unwrap();
    let file = latest.path().join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let before = Checkpoint::latest(folder.path()).unwrap().unwrap();
    assert!(before.state.machines.step() < latest.state.machines.step());
    let other = Networks { batch_norm: false, ..networks() };
    let error = run(&other, folder.path(), 4).err().expect("refused").to_string();
    assert!(error.contains("another model"), "{error}");
    let names =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.collect();
    assert!(names.len() <= 2 && names.iter().all(|name| name.starts_with("step-")), "{names:?}");
}

#[test]
fn a_folder_that_cannot_be_written_does_not_end_training_but_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let trained = run(&networks(), &file, 4).unwrap();
    assert!(trained.report.checkpoint_error.is_some(), "{}", trained.report);
}

/// The folder of a process that is killed.
const FOLDER: &str = "EVENER_TEST_FOLDER";

#[test]
#[ignore = "started by the test below"]
fn a_process_that_trains() {
    let folder = std::env::var_os(FOLDER).expect("started by the test below");
    run(&networks(), Path::new(&folder), 1).unwrap();
}

#[test]
#[cfg(unix)]
fn a_process_that_is_killed_at_any_moment_continues_bit_for_bit() {
    let whole = tempfile::tempdir().unwrap();
    let expected = run(&networks(), whole.path(), 1000).unwrap();
    let (mut during, mut total) = (0, 0);
    for attempt in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "a_process_that_trains"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From the first checkpoint on, every moment of a step and of a checkpoint is hit sooner or later.
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_secs(10)
            && fs::read_dir(folder.path()).unwrap().next().is_none()
        {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(attempt * 1700));
        child.kill().unwrap();
        child.wait().unwrap();
        let trained = run(&networks(), folder.path(), 1).unwrap();
        during += u64::from(trained.report.steps > trained.report.resumed_from.unwrap_or(0));
        total += 1;
        assert_eq!(bits(expected.replica.network.parameters()), bits(trained.replica.network.parameters()));
    }
    println!("{during} of {total} runs were killed before their end");
    assert!(during > 0, "no run was killed before its end");
}
