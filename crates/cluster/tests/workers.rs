//! Workers in processes of their own: what they compute, and what happens when they fail.
//!
//! This program starts itself as a worker, so it has a `main` of its own.
#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::{
    os::unix::fs::PermissionsExt,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use common::{
    Behaviour, Outcome, add, compute, ends_soon, is_running, process_of, processor, signal, within_seconds,
};

use evener_cluster::{Host, Process, Ssh, WithHosts, connect_all, worker};
use evener_device::{Error, Inventory, Result};
use libtest_mimic::{Arguments, Trial};

fn main() {
    worker::serve_if_asked();
    let trials: [Behaviour; 11] = [
        ("a_worker_of_this_program_runs_its_kernels", runs_kernels),
        ("a_worker_of_another_program_refuses_rust_bodies", other_program),
        ("a_worker_that_is_killed_is_lost_and_comes_back", killed),
        ("a_worker_that_is_killed_at_any_time_never_hangs_a_call", killed_at_any_time),
        ("a_worker_that_is_stopped_and_resumed_finishes", stopped),
        ("a_worker_ends_with_its_connection", ends_with_connection),
        ("a_worker_ends_when_its_client_is_killed", ends_with_client),
        ("hosts_that_cannot_be_reached_are_lines_and_not_waits", unreachable),
        ("many_hosts_start_side_by_side", many),
        ("a_host_through_ssh_is_used_as_any_other", through_ssh),
        ("an_error_of_ssh_comes_with_the_way_to_mend_it", ssh_errors),
    ];
    let mut arguments = Arguments::from_args();
    // They start processes, and measure time.
    arguments.test_threads.get_or_insert(1);
    if std::env::var_os(CLIENT).is_some() {
        return client();
    }
    let trials = trials.map(|(name, trial)| Trial::test(name, move || within_seconds(60, trial)));
    libtest_mimic::run(&arguments, trials.into()).exit();
}

fn this_program(name: &str) -> Host {
    Host::new(name, Process::this_program().unwrap()).unwrap().timeout(Duration::from_secs(30))
}

fn runs_kernels() -> Outcome {
    let host = this_program("here").connect()?;
    let device = processor(&host);
    ensure!(compute(&device, 0)? == [11, 12, 13], "a wrong result");
    let process = process_of(&device)?;
    ensure!(process != std::process::id(), "the kernel ran in this process");
    let parts = device.split(&[1])?;
    ensure!(parts[0].id().as_str() == "here/cpu/a", "{}", parts[0].id());
    ensure!(compute(&parts[0], 0)? == [11, 12, 13], "a wrong result of a partition");
    let (local, remote) = (Inventory::discover(), Inventory::discover().with_hosts(&[this_program("box")]));
    ensure!(remote.select("box/cpu")?.len() == 1, "it cannot be selected");
    ensure!(remote.devices().len() > local.devices().len(), "it is not in the inventory");
    Ok(())
}

/// A copy of this program that differs in a byte behind its code.
fn copy_of_this_program(folder: &std::path::Path) -> std::path::PathBuf {
    let copy = folder.join("other");
    let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    bytes.push(0);
    std::fs::write(&copy, bytes).unwrap();
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o700)).unwrap();
    copy
}

fn other_program() -> Outcome {
    let folder = tempfile::tempdir()?;
    let copy = Process::new(copy_of_this_program(folder.path()), [worker::ARGUMENT]);
    let host = Host::new("other", copy)?.timeout(Duration::from_secs(30)).connect()?;
    let error = compute(&processor(&host), 0).unwrap_err();
    ensure!(matches!(error, Error::Unsupported { .. }), "{error}");
    ensure!(error.to_string().contains("the same executable"), "{error}");
    Ok(())
}

fn killed() -> Outcome {
    let host = this_program("box").connect()?;
    let device = processor(&host);
    let process = process_of(&device)?;
    let data = device.buffer_from(&[0u32; 10])?;
    let bound = device.compile(&add(1, 60_000))?.bind(&[data.arg()])?;
    let mut stream = device.stream()?;
    stream.launch(&bound, 1, &())?;
    let event = stream.record_event()?;
    signal("-KILL", process);
    let start = Instant::now();
    let error = event.wait().unwrap_err();
    ensure!(start.elapsed() < Duration::from_secs(2), "the loss was noticed after {:?}", start.elapsed());
    ensure!(matches!(error, Error::Lost { .. }), "{error}");
    ensure!(error.to_string().starts_with("box/cpu: lost"), "{error}");
    let results = [
        stream.wait().unwrap_err(),
        stream.launch(&bound, 1, &()).unwrap_err(),
        device.buffer::<u8>(1).map(drop).unwrap_err(),
        device.compile(&add(1, 0)).map(drop).unwrap_err(),
        device.stream().map(drop).unwrap_err(),
    ];
    for error in results {
        ensure!(matches!(error, Error::Lost { .. }), "{error}");
    }
    let again = device.reopened();
    ensure!(compute(&again, 0)? == [11, 12, 13], "a wrong result");
    ensure!(process_of(&again)? != process, "the same process");
    Ok(())
}

fn killed_at_any_time() -> Outcome {
    for round in 0..25u64 {
        let host = this_program("box").connect()?;
        let device = processor(&host);
        let process = process_of(&device)?;
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_micros(round * round * 40));
            signal("-KILL", process);
        });
        let error = loop {
            match compute(&device, 1) {
                Ok(found) => ensure!(found == [11, 12, 13], "a wrong result: {found:?}"),
                Err(error) => break error,
            }
        };
        ensure!(matches!(error, Error::Lost { .. }), "{error}");
        ensure!(killer.join().is_ok(), "the killer panicked");
    }
    Ok(())
}

fn stopped() -> Outcome {
    let host = this_program("box").connect()?;
    let device = processor(&host);
    let process = process_of(&device)?;
    signal("-STOP", process);
    let resume = thread::spawn(move || {
        thread::sleep(Duration::from_secs(3));
        signal("-CONT", process);
    });
    let start = Instant::now();
    ensure!(compute(&device, 0)? == [11, 12, 13], "a wrong result");
    ensure!(start.elapsed() > Duration::from_secs(2), "it was not stopped");
    ensure!(resume.join().is_ok(), "the process was gone");
    Ok(())
}

fn ends_with_connection() -> Outcome {
    let host = this_program("box").connect()?;
    let device = processor(&host);
    let process = process_of(&device)?;
    // A kernel that runs does not keep it.
    let data = device.buffer_from(&[0u32])?;
    let mut stream = device.stream()?;
    stream.launch(&device.compile(&add(1, 60_000))?.bind(&[data.arg()])?, 1, &())?;
    stream.flush()?;
    ensure!(is_running(process), "it is gone already");
    drop((host, device, data, stream));
    ends_soon(process)
}

/// In this variable's presence, this program is a client that prints the process of its worker, and waits.
const CLIENT: &str = "EVENER_TEST_CLIENT";

#[allow(clippy::print_stdout)]
fn client() {
    let host = this_program("box").connect().unwrap();
    let device = processor(&host);
    println!("{}", process_of(&device).unwrap());
    let _ = compute(&device, 60_000);
}

fn ends_with_client() -> Outcome {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(CLIENT, "1").stdout(std::process::Stdio::piped());
    let mut client = command.spawn()?;
    let mut line = String::new();
    let stdout = client.stdout.take().ok_or("no pipe")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
    let worker: u32 = line.trim().parse()?;
    ensure!(is_running(worker), "the worker is gone already");
    client.kill()?;
    client.wait()?;
    ends_soon(worker)
}

fn unreachable() -> Outcome {
    let second = Duration::from_secs(1);
    let hosts = [
        Host::new("asleep", Process::new("sleep", ["60"]))?.timeout(second),
        Host::new("asleep-too", Process::new("sleep", ["60"]))?.timeout(second),
        Host::new("none", Process::new("/nowhere/evener", ["worker"]))?,
        Host::new("noisy", Process::new("sh", ["-c", "echo sorry; echo broken >&2; exit 3"]))?,
        this_program("here"),
        this_program("here"),
    ];
    let start = Instant::now();
    let inventory = Inventory::discover().with_hosts(&hosts);
    ensure!(start.elapsed() < Duration::from_secs(20), "it took {:?}", start.elapsed());
    let line = |host: &str| {
        inventory.absent().iter().find(|absent| absent.back_end == host).map(ToString::to_string)
    };
    let lines = [line("asleep"), line("asleep-too"), line("none"), line("noisy"), line("here")];
    let texts =
        ["no answer within 1s", "no answer within 1s", "cannot be started", "broken", "the same name"];
    for (line, text) in lines.into_iter().zip(texts) {
        let line = line.unwrap_or_default();
        ensure!(line.contains(text), "`{text}` is not in `{line}`");
    }
    ensure!(inventory.select("here/cpu")?.len() == 1, "the host that answers is not there");
    Ok(())
}

fn many() -> Outcome {
    let hosts: Vec<Host> = (0..8).map(|number| this_program(&format!("box-{number}"))).collect();
    let start = Instant::now();
    let connected = connect_all(&hosts).into_iter().collect::<Result<Vec<_>>>()?;
    let took = start.elapsed();
    ensure!(took < Duration::from_secs(20), "8 hosts took {took:?}");
    for (number, host) in connected.iter().enumerate() {
        let device = processor(host);
        ensure!(device.id().as_str() == format!("box-{number}/cpu"), "{}", device.id());
        ensure!(compute(&device, 0)? == [11, 12, 13], "a wrong result of {}", device.id());
    }
    Ok(())
}

/// A program in place of `ssh`, which runs the command on this machine, or fails as `ssh` does.
fn fake_ssh(folder: &std::path::Path, body: &str) -> std::path::PathBuf {
    let path = folder.join("ssh");
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    path
}

fn through_ssh() -> Outcome {
    let folder = tempfile::tempdir()?;
    // The last argument is the command, as for `ssh`.
    let ssh = fake_ssh(folder.path(), "echo Welcome; for last; do :; done; exec sh -c \"$last\"");
    let program = std::env::current_exe()?;
    let command = format!("exec '{}' {}", program.display(), worker::ARGUMENT);
    let ssh = Ssh::new("alice@lab3:2222")?.program(ssh).command(command);
    let host = Host::new("lab3", ssh)?.timeout(Duration::from_secs(30)).connect()?;
    ensure!(compute(&processor(&host), 0)? == [11, 12, 13], "a wrong result");
    Ok(())
}

fn ssh_errors() -> Outcome {
    let folder = tempfile::tempdir()?;
    let errors = [
        ("Host key verification failed.", 255, "run `ssh lab3` once"),
        ("alice@lab3: Permission denied (publickey).", 255, "without a password"),
        ("sh: 1: evener: not found", 127, "run `evener hosts install lab3`"),
        ("ssh: connect to host lab3 port 22: No route to host", 255, "No route to host"),
    ];
    for (line, code, advice) in errors {
        let ssh = fake_ssh(folder.path(), &format!("echo '{line}' >&2; exit {code}"));
        let error = Host::new("lab3", Ssh::new("lab3")?.program(ssh))?.connect().map(drop).unwrap_err();
        ensure!(matches!(error, Error::Lost { .. }), "{error}");
        ensure!(error.to_string().contains(advice), "`{advice}` is not in: {error}");
    }
    Ok(())
}
