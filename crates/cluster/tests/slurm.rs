//! Workers on the nodes of a real SLURM cluster, which `scripts/cluster/slurm start FOLDER` starts. The folder is in the
//! variable `EVENER_TEST_SLURM`; without it these tests are ignored.
//!
//! This program starts itself as a worker, and as a client that is killed, so it has a `main` of its own.
#![cfg(target_os = "linux")]
#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{
    Behaviour, Outcome, compute, ends_soon, is_running, process_of, processor, signal, within_seconds,
};
use evener_cluster::{Host, Slurm, WithHosts, connect_all, connect_or_await, worker};
use evener_device::{Device, Error, Inventory, Kernel, Result, kernel_fn};
use evener_schedule::{DeviceReport, KernelParams, KernelTask, Mapped, Pool, Progress, RunError};
use libtest_mimic::{Arguments, Failed, Trial};

/// The folder of the cluster.
const RIG: &str = "EVENER_TEST_SLURM";

/// In this variable's presence, this program is a client, of the kind that the variable names.
const CLIENT: &str = "EVENER_TEST_CLIENT";

fn main() {
    worker::serve_if_asked();
    let rig = std::env::var_os(RIG).map(PathBuf::from);
    if let Some(rig) = &rig
        && std::env::var_os("SLURM_CONF").is_none()
    {
        // The programs that this one starts find the cluster by this variable.
        let mut again = Command::new(std::env::current_exe().unwrap());
        panic!(
            "{}",
            again.args(std::env::args_os().skip(1)).env("SLURM_CONF", rig.join("slurm.conf")).exec()
        );
    }
    if let Ok(kind) = std::env::var(CLIENT) {
        return client(&kind);
    }
    let trials: [Behaviour; 18] = [
        ("each_node_is_a_host_and_its_job_ends_with_it_with_slurm", nodes),
        ("a_request_that_cannot_be_met_is_one_sentence_with_slurm", refused),
        ("a_run_begins_with_the_nodes_that_are_there_and_others_join_with_slurm", joining),
        ("a_run_waits_for_nodes_if_it_has_nothing_else_with_slurm", waiting),
        ("a_job_that_is_cancelled_loses_no_item_and_is_not_asked_for_again_with_slurm", cancelled),
        ("a_run_whose_jobs_are_all_cancelled_is_an_error_with_slurm", all_cancelled),
        ("a_node_that_is_drained_finishes_with_slurm", drained),
        ("a_node_whose_slurmd_is_killed_loses_no_item_with_slurm_at_length", killed_slurmd),
        ("a_node_near_its_time_limit_begins_no_chunk_with_slurm_at_length", time_limit),
        ("a_worker_that_is_killed_comes_back_with_slurm", killed_worker),
        ("a_client_that_is_killed_leaves_no_process_and_no_job_with_slurm", killed_client),
        ("a_client_that_is_killed_leaves_no_pending_job_with_slurm", killed_while_pending),
        ("a_worker_whose_srun_is_killed_is_replaced_with_slurm", killed_srun),
        ("a_worker_whose_srun_is_killed_alone_is_replaced_with_slurm", killed_first_srun),
        ("a_worker_whose_client_and_srun_are_killed_ends_with_its_lease_with_slurm", killed_with_srun),
        ("a_worker_ends_with_its_slurmstepd_and_the_client_notices_with_slurm", killed_stepd),
        ("inside_an_allocation_its_nodes_are_used_with_slurm", inside_allocation),
        ("a_job_that_is_requeued_begins_anew_and_leaves_nothing_with_slurm_at_length", requeued),
    ];
    let mut arguments = Arguments::from_args();
    // They share the cluster.
    arguments.test_threads.get_or_insert(1);
    let trials = trials.map(|(name, trial)| {
        let trial = move || {
            let outcome = within_seconds(170, trial);
            let tidied = tidy();
            outcome.and(tidied)
        };
        Trial::test(name, trial).with_ignored_flag(rig.is_none())
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}

fn rig() -> PathBuf {
    std::env::var_os(RIG).unwrap().into()
}

/// Does something to the cluster.
fn slurm(command: &str, argument: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/cluster/slurm");
    let output = Command::new(script).arg(command).arg(rig()).arg(argument).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "slurm {command} {argument}: {said}");
}

/// Runs a program of SLURM's, and returns what it prints.
fn ask(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The jobs that wait or run.
fn jobs() -> Vec<String> {
    ask("squeue", &["--noheader", "--format=%i"]).split_whitespace().map(str::to_owned).collect()
}

fn no_job_within(limit: Duration) -> Outcome {
    let start = Instant::now();
    while !jobs().is_empty() {
        ensure!(start.elapsed() < limit, "{}", ask("squeue", &[]));
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// Brings the cluster back to how it was, whatever a test has left. Fails if it does not come back, because the next test
/// would fail for that.
fn tidy() -> Outcome {
    for node in NODES {
        slurm("revive", node);
        // A node that is well refuses to be resumed.
        let _ =
            Command::new("scontrol").args(["update", &format!("NodeName={node}"), "State=RESUME"]).output();
    }
    let _ = Command::new("scancel").args(["--user", &ask("id", &["-un"])]).output();
    // Not `--states=idle`, which lists nodes that are drained or completing too. Those that do not respond have a star.
    let states = || ask("sinfo", &["--noheader", "--partition=main", "--Node", "--format=%T"]);
    let are_idle = || states().lines().eq(NODES.map(|_| "idle")) && jobs().is_empty();
    soon(60, "the cluster does not come back", are_idle)
        .map_err(|why| format!("{}: {}", why.message().unwrap_or_default(), ask("sinfo", &["--Node"])).into())
}

/// A request whose worker is this program.
fn request() -> Slurm {
    Slurm::new().this_program().unwrap().wait(Duration::from_secs(20))
}

/// Hosts that are all there.
fn connected(request: Slurm) -> Result<Vec<evener_device::remote::RemoteHost>> {
    connect_all(&request.hosts("slurm").unwrap()).into_iter().collect()
}

kernel_fn! {
    /// Adds a number to each item, and takes this many microseconds for each.
    fn slow_add(number: u32, microseconds: u64) -> Kernel {
        Kernel::new("slow_add").reads::<u32>().writes::<u32>().params::<KernelParams>().rust(move |launch| {
            let count = launch.params::<KernelParams>()?.count as usize;
            thread::sleep(Duration::from_micros(microseconds * count as u64));
            let (input, output) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
            for (result, item) in output[..count].iter_mut().zip(input) {
                *result = item + number;
            }
            Ok(())
        })
    }
}

const NUMBER: u32 = 7;

/// Runs this many items of two milliseconds each on these devices. Every result is checked: no item is missing, doubled or
/// in another's place.
fn run(devices: &[Device], items: u32) -> std::result::Result<Mapped<u32>, RunError> {
    run_and(devices, items, |_| ())
}

/// Runs as [`run`] does, and reports progress.
fn run_and(
    devices: &[Device],
    items: u32,
    on_progress: impl FnMut(&Progress) + Send,
) -> std::result::Result<Mapped<u32>, RunError> {
    let pool = Pool::builder().devices(devices).keep_history_at(None).build()?;
    let items: Vec<u32> = (0..items).map(|item| item.wrapping_mul(2_654_435_761) >> 1).collect();
    let task = KernelTask::<u32, u32>::new(&slow_add(NUMBER, 2_000));
    let mapped = pool.job(&task).all_devices().on_progress(on_progress).map(&items)?;
    let is_right = |(item, result): (&u32, &u32)| item + NUMBER == *result;
    assert_eq!(mapped.results().len(), items.len());
    assert!(items.iter().zip(mapped.results()).all(is_right), "a wrong result");
    Ok(mapped)
}

fn done_by<'r>(mapped: &'r Mapped<u32>, id: &str) -> &'r DeviceReport {
    mapped.report().devices.iter().find(|device| device.id == id).unwrap()
}

/// One core of this machine, so that there is something left to do for others.
fn local() -> Device {
    Device::cpu().split(&[1]).unwrap().remove(0)
}

fn select(hosts: &[Host], selection: &str) -> Vec<Device> {
    Inventory::discover().with_hosts(hosts).select(selection).unwrap()
}

/// Does something after a time.
fn after(seconds: f64, action: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        thread::sleep(Duration::from_secs_f64(seconds));
        action();
    })
}

fn nodes() -> Outcome {
    let hosts = connected(request().nodes(4).gpus(2).cores(2).memory_mib(200))?;
    let mut processes = Vec::new();
    for (number, host) in (1..).zip(&hosts) {
        let device = processor(host);
        ensure!(device.id().as_str() == format!("slurm-{number}/cpu"), "{}", device.id());
        ensure!(compute(&device, 0)? == [11, 12, 13], "a wrong result of {}", device.id());
        ensure!(device.is_there() && device.available_until().is_some(), "the end of its job is unknown");
        processes.push(process_of(&device)?);
    }
    ensure!(jobs().len() == 4, "{}", ask("squeue", &[]));
    let asked = ask("squeue", &["--noheader", "--format=%b %C %m"]);
    ensure!(asked.lines().all(|line| line.contains("gpu:2") && line.contains(" 2 200M")), "{asked}");
    drop(hosts);
    processes.into_iter().try_for_each(ends_soon)?;
    no_job_within(Duration::from_secs(5))
}

fn refused() -> Outcome {
    let quick = || request().wait(Duration::from_secs(3));
    let cases = [
        (quick().partition("nope"), "SLURM refuses the request: Invalid partition name specified"),
        (quick().gpus(9), "SLURM refuses the request: Requested node configuration is not available"),
        (quick().memory_mib(1 << 20), "SLURM refuses the request: "),
        (quick().partition("short").time("1:00:00"), "SLURM can never meet the request: PartitionTimeLimit"),
        (quick().partition("down"), "is pending (PartitionDown)"),
        (quick().command(["/nowhere/evener", "worker"]), "the node has no `/nowhere/evener`: put it into"),
        (quick().setup("exit 3"), "srun: "),
    ];
    let host = |(index, (request, _)): (usize, &(Slurm, &str))| {
        request.clone().hosts(&format!("case{index}")).unwrap().remove(0)
    };
    let hosts: Vec<Host> = cases.iter().enumerate().map(host).collect();
    let start = Instant::now();
    let outcomes = connect_all(&hosts);
    ensure!(start.elapsed() < Duration::from_secs(30), "it took {:?}", start.elapsed());
    let mut wrong = Vec::new();
    for ((_, text), outcome) in cases.iter().zip(outcomes) {
        let error = outcome.map(drop).unwrap_err();
        let Error::Lost { detail, .. } = &error else { return Err(error.to_string().into()) };
        if !detail.contains(text) || detail.lines().count() != 1 {
            wrong.push(format!("`{text}` is not in: {detail}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    drop(hosts);
    no_job_within(Duration::from_secs(5))
}

fn joining() -> Outcome {
    // The second node comes after the run has begun, and so not in this time.
    const WAIT: Duration = Duration::from_secs(60);
    for node in &NODES[1..] {
        slurm("drain", node);
    }
    // All cores of a node: the two do not share one.
    let hosts = request().wait(WAIT).nodes(2).cores(4).hosts("slurm")?;
    let start = Instant::now();
    let reached = connect_or_await(&hosts).into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(start.elapsed() < WAIT, "it waited for the second node: {:?}", start.elapsed());
    let waits: Vec<Option<&str>> = reached.iter().map(|host| host.awaited_reason()).collect();
    let late = waits.iter().position(Option::is_some).ok_or("both nodes are there")?;
    ensure!(waits[late].is_some_and(|why| why.contains("is pending (")), "{waits:?}");
    ensure!(waits[1 - late].is_none(), "{waits:?}");
    let devices = [processor(&reached[0]), processor(&reached[1])];
    ensure!(!devices[late].is_there() && devices[1 - late].is_there(), "{devices:?}");
    let mut resumed = None;
    // One node alone takes 40 s, in which the other one has to come.
    let mapped = run_and(&devices, 40_000, |progress| {
        if resumed.is_none() && progress.done > 0 {
            resumed = Some((progress.elapsed, after(0.0, || slurm("resume", "n2"))));
        }
    })?;
    let (resumed_at, resumed) = resumed.ok_or("the run began with no node")?;
    resumed.join().map_err(|_| "n2 was not resumed")?;
    let late = done_by(&mapped, devices[late].id().as_str());
    ensure!(late.items > 200 && late.failures.is_empty(), "{late:?}");
    ensure!(late.startup_s > resumed_at.as_secs_f64(), "it was there before {resumed_at:?}: {late:?}");
    Ok(())
}

fn waiting() -> Outcome {
    for node in NODES {
        slurm("drain", node);
    }
    let hosts = request().wait(Duration::from_secs(1)).hosts("slurm")?;
    let devices = select(&hosts, "slurm-1/cpu");
    ensure!(!devices[0].is_there(), "it is there");
    let resumed = after(3.0, || slurm("resume", "n1"));
    let mapped = run(&devices, 500)?;
    resumed.join().map_err(|_| "n1 was not resumed")?;
    ensure!(done_by(&mapped, "slurm-1/cpu").items == 500, "{}", mapped.report());
    Ok(())
}

fn cancelled() -> Outcome {
    let hosts = request().nodes(2).hosts("slurm")?;
    let devices = [vec![local()], select(&hosts, "slurm-1/cpu,slurm-2/cpu")].concat();
    let canceller = after(2.0, || drop(ask("scancel", &[&jobs()[0]])));
    let mapped = run(&devices, 12_000)?;
    canceller.join().map_err(|_| "nothing was cancelled")?;
    let lost: Vec<&DeviceReport> =
        mapped.report().devices.iter().filter(|it| !it.failures.is_empty()).collect();
    ensure!(lost.len() == 1 && lost[0].items > 0, "{}", mapped.report());
    ensure!(lost[0].failures.iter().any(|text| text.contains("was cancelled")), "{:?}", lost[0].failures);
    ensure!(jobs().len() == 1, "it was asked for again: {}", ask("squeue", &[]));
    Ok(())
}

fn all_cancelled() -> Outcome {
    let hosts = request().nodes(2).hosts("slurm")?;
    let devices = select(&hosts, "slurm-1/cpu,slurm-2/cpu");
    let canceller = after(1.0, || {
        ask("scancel", &jobs().iter().map(String::as_str).collect::<Vec<_>>());
    });
    let error = run(&devices, 100_000).map(drop).unwrap_err();
    canceller.join().map_err(|_| "nothing was cancelled")?;
    ensure!(error.to_string().contains("was cancelled"), "{error}");
    no_job_within(Duration::from_secs(5))
}

fn drained() -> Outcome {
    let hosts = request().nodes(2).hosts("slurm")?;
    let devices = select(&hosts, "slurm-1/cpu,slurm-2/cpu");
    let drainer = after(0.5, || NODES.iter().for_each(|node| slurm("drain", node)));
    let mapped = run(&devices, 2_000)?;
    drainer.join().map_err(|_| "nothing was drained")?;
    ensure!(
        mapped.report().devices.iter().all(|it| it.items > 0 && it.failures.is_empty()),
        "{}",
        mapped.report()
    );
    Ok(())
}

fn killed_slurmd() -> Outcome {
    let hosts = request().option("--nodelist=n3").hosts("slurm")?;
    let devices = [vec![local()], select(&hosts, "slurm-1/cpu")].concat();
    let process = process_of(&devices[1])?;
    let killer = after(1.0, || slurm("kill", "n3"));
    // SLURM calls the node down after about 25 s, and ends the job.
    let mapped = run(&devices, 60_000)?;
    killer.join().map_err(|_| "nothing was killed")?;
    let lost = done_by(&mapped, "slurm-1/cpu");
    ensure!(lost.items > 0, "{}", mapped.report());
    ensure!(lost.failures.iter().any(|text| text.contains("n3")), "{:?}", lost.failures);
    drop((hosts, devices));
    // No slurmd is there to end it, and it may have no end of file.
    signal("-KILL", process);
    Ok(())
}

fn time_limit() -> Outcome {
    let hosts = request().time("10").hosts("slurm")?;
    let devices = [vec![local()], select(&hosts, "slurm-1/cpu")].concat();
    let left = devices[1].available_until().ok_or("no end")?.saturating_duration_since(Instant::now());
    ensure!((500..=600).contains(&left.as_secs()), "{left:?}");
    // The limit is moved while the run goes on. SLURM ends the job up to half a minute late.
    let job = jobs().remove(0);
    let limited =
        after(1.0, move || drop(ask("scontrol", &["update", &format!("JobId={job}"), "TimeLimit=1"])));
    let mapped = run(&devices, 105_000)?;
    limited.join().map_err(|_| "the limit was not moved")?;
    let ended = done_by(&mapped, "slurm-1/cpu");
    ensure!(ended.items > 10_000, "{}", mapped.report());
    // The worker was idle when SLURM ended it: no chunk was lost.
    ensure!(ended.retries == 0, "{ended:?}");
    ensure!(ended.failures.iter().any(|text| text.contains("the time limit of job")), "{:?}", ended.failures);
    ensure!(jobs().is_empty(), "{}", ask("squeue", &[]));
    let error = compute(&devices[1].reopened(), 0).unwrap_err().to_string();
    ensure!(error.contains("the time limit of job"), "{error}");
    Ok(())
}

fn killed_worker() -> Outcome {
    let hosts = request().hosts("slurm")?;
    let devices = [vec![local()], select(&hosts, "slurm-1/cpu")].concat();
    let process = process_of(&devices[1])?;
    let killer = after(1.0, move || signal("-KILL", process));
    let mapped = run(&devices, 15_000)?;
    killer.join().map_err(|_| "nothing was killed")?;
    let lost = done_by(&mapped, "slurm-1/cpu");
    ensure!(lost.quarantines > 0 && lost.state == "healthy", "it did not come back: {lost:?}");
    let again = process_of(&devices[1].reopened())?;
    ensure!(again != process, "the same process");
    Ok(())
}

/// A client whose standard output is read.
fn start_client(kind: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    start_client_with(kind, &[])
}

/// Starts a client with these environment variables.
fn start_client_with(
    kind: &str,
    variables: &[(&str, &str)],
) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(CLIENT, kind).envs(variables.iter().copied());
    let mut client = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(client.stdout.take().unwrap());
    (client, stdout)
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

#[allow(clippy::print_stdout)]
fn client(kind: &str) {
    match kind {
        // Prints the process of its worker, and computes for a minute.
        "computes" => {
            let hosts = connected(request()).unwrap();
            let device = processor(&hosts[0]);
            println!("{}", process_of(&device).unwrap());
            let _ = compute(&device, 60_000);
        }
        // Waits for a node that does not come.
        "waits" => {
            let hosts = request().partition("down").wait(Duration::from_secs(1)).hosts("slurm").unwrap();
            let reached = connect_or_await(&hosts);
            println!("{:?}", reached[0].as_ref().map(|host| host.awaited_reason().map(str::to_owned)));
            thread::sleep(Duration::from_secs(60));
        }
        // Runs in an allocation, and writes which devices did how much.
        "inside" => {
            let hosts =
                Slurm::new().this_program().unwrap().wait(Duration::from_secs(20)).hosts("slurm").unwrap();
            let names: Vec<&str> = hosts.iter().map(Host::name).collect();
            let mut report = std::fs::File::create(std::env::var_os("EVENER_TEST_REPORT").unwrap()).unwrap();
            writeln!(report, "hosts {}", names.join(" ")).unwrap();
            let inventory = Inventory::discover().with_hosts(&hosts);
            let is_remote = |device: &&Device| device.describe().is_remote_processor();
            let devices: Vec<Device> = inventory.devices().iter().filter(is_remote).cloned().collect();
            let processes = devices.iter().map(|device| process_of(device).unwrap().to_string());
            writeln!(report, "workers {}", processes.collect::<Vec<_>>().join(" ")).unwrap();
            let items = std::env::var("EVENER_TEST_ITEMS").unwrap().parse().unwrap();
            let mapped = run(&devices, items).unwrap();
            for device in &mapped.report().devices {
                writeln!(report, "{} {}", device.id, device.items).unwrap();
            }
            writeln!(report, "done").unwrap();
        }
        other => panic!("no client is of the kind {other}"),
    }
}

fn killed_client() -> Outcome {
    let (mut client, mut stdout) = start_client("computes");
    let worker: u32 = line(&mut stdout).parse()?;
    ensure!(is_running(worker), "the worker is gone already");
    client.kill()?;
    client.wait()?;
    let start = Instant::now();
    ends_soon(worker)?;
    no_job_within(Duration::from_secs(5).saturating_sub(start.elapsed()))
}

fn killed_while_pending() -> Outcome {
    let (mut client, mut stdout) = start_client("waits");
    let said = line(&mut stdout);
    ensure!(said.contains("is pending"), "{said}");
    ensure!(jobs().len() == 1, "{}", ask("squeue", &[]));
    client.kill()?;
    client.wait()?;
    no_job_within(Duration::from_secs(5))
}

/// The processes whose command line has this text.
fn processes_with(text: &str) -> Vec<u32> {
    let has = |process: &u32| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let line: Vec<String> =
            line.split(|&byte| byte == 0).map(|part| String::from_utf8_lossy(part).into()).collect();
        line.iter().any(|part| part.contains(text))
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    let numbers = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    numbers.filter(|process| is_running(*process) && has(process)).collect()
}

/// Waits for a condition.
fn soon(seconds: u64, what: &str, condition: impl Fn() -> bool) -> Outcome {
    let start = Instant::now();
    while !condition() {
        ensure!(start.elapsed() < Duration::from_secs(seconds), "{what}");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The parent of a process.
fn parent_of(process: u32) -> std::result::Result<u32, Failed> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).ok_or("no parent")?;
    Ok(parent.trim().parse()?)
}

/// The two processes of the `srun` of the only job: the first one, and the one that it has forked, which ends the job if the
/// first is killed.
fn sruns() -> std::result::Result<[u32; 2], Failed> {
    let name = ask("squeue", &["--noheader", "--format=%j"]);
    let found = processes_with(&format!("--job-name={name}"));
    ensure!(found.len() == 2, "{found:?}");
    let [one, other] = [found[0], found[1]];
    if parent_of(other)? == one { Ok([one, other]) } else { Ok([other, one]) }
}

/// Stops processes and then kills them, so that none does anything about the end of another. A child comes before its parent:
/// the system continues stopped processes whose parent was the last one outside of their group.
fn kill_at_once(processes: &[u32]) {
    processes.iter().for_each(|process| signal("-STOP", *process));
    processes.iter().for_each(|process| signal("-KILL", *process));
}

fn killed_srun() -> Outcome {
    let hosts = connected(request())?;
    let device = processor(&hosts[0]);
    let (process, job) = (process_of(&device)?, jobs().remove(0));
    let [first, second] = sruns()?;
    kill_at_once(&[second, first]);
    let error = compute(&device, 0).unwrap_err();
    ensure!(matches!(error, Error::Lost { .. }), "{error}");
    // Only the client ends them, unless it waits for the lease of two minutes.
    soon(15, "the worker is still there", || !is_running(process))?;
    soon(15, "its job is still there", || !jobs().contains(&job))?;
    ensure!(compute(&device.reopened(), 0)? == [11, 12, 13], "a wrong result");
    Ok(())
}

fn killed_first_srun() -> Outcome {
    let hosts = connected(request())?;
    let device = processor(&hosts[0]);
    let process = process_of(&device)?;
    signal("-KILL", sruns()?[0]);
    let is_explained = || compute(&device, 0).unwrap_err().to_string().contains("was killed by signal 9");
    soon(10, "the reason is not known", is_explained)?;
    ends_soon(process)?;
    // The second process of `srun` has cancelled the job. The user has not: it is asked for again.
    ensure!(compute(&device.reopened(), 0)? == [11, 12, 13], "a wrong result");
    Ok(())
}

fn killed_with_srun() -> Outcome {
    // SLURM gives the environment of `srun` to the worker.
    let (mut client, mut stdout) = start_client_with("computes", &[(worker::LEASE_VARIABLE, "3")]);
    let process: u32 = line(&mut stdout).parse()?;
    let [first, second] = sruns()?;
    kill_at_once(&[second, first, client.id()]);
    client.wait()?;
    ensure!(is_running(process) && jobs().len() == 1, "something else has ended the worker");
    soon(15, "the worker is still there", || !is_running(process))?;
    soon(15, "its job is still there", || jobs().is_empty())
}

fn killed_stepd() -> Outcome {
    let hosts = connected(request())?;
    let device = processor(&hosts[0]);
    let process = process_of(&device)?;
    let parent = parent_of(process)?;
    let is_stepd = std::fs::read_to_string(format!("/proc/{parent}/comm"))?.trim() == "slurmstepd";
    ensure!(is_stepd, "its parent is no slurmstepd");
    signal("-KILL", parent);
    ends_soon(process)?;
    let start = Instant::now();
    let error = compute(&device, 0).unwrap_err();
    ensure!(matches!(error, Error::Lost { .. }), "{error}");
    ensure!(start.elapsed() < Duration::from_secs(30), "it was noticed after {:?}", start.elapsed());
    no_job_within(Duration::from_secs(20))
}

/// Submits this program as a client inside an allocation of so many nodes. Returns the job, and where it reports.
fn submit_client(nodes: u32, items: u32, folder: &Path) -> std::result::Result<(String, PathBuf), String> {
    let (report, script) = (folder.join("report"), folder.join("script"));
    let program = std::env::current_exe().unwrap();
    let text = format!(
        "#!/bin/sh\nexport {CLIENT}=inside EVENER_TEST_ITEMS={items}\n\
         EVENER_TEST_REPORT='{}'.${{SLURM_RESTART_COUNT:-0}} exec '{}'\n",
        report.display(),
        program.display()
    );
    std::fs::write(&script, text).map_err(|why| why.to_string())?;
    let (nodes, output) = (format!("--nodes={nodes}"), format!("--output={}/output", folder.display()));
    let script = script.display().to_string();
    let options = ["--parsable", "--requeue", "--open-mode=append", "--gres=gpu:1", &nodes, &output, &script];
    Ok((ask("sbatch", &options), report))
}

fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn inside_allocation() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (_, report) = submit_client(3, 1_000, folder.path())?;
    let report = report.with_extension("0");
    let output = folder.path().join("output");
    soon(60, "the client does not end", || text_of(&report).contains("done"))
        .map_err(|why| format!("{}: {}", why.message().unwrap_or_default(), text_of(&output)))?;
    let text = text_of(&report);
    // One of the three nodes runs the client itself.
    ensure!(text.contains("hosts slurm-1 slurm-2\n"), "{text}");
    ensure!(text.contains("slurm-1/cpu ") && text.contains("slurm-2/cpu "), "{text}");
    no_job_within(Duration::from_secs(10))
}

fn requeued() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (job, report) = submit_client(2, 3_000, folder.path())?;
    let (first, second) = (report.with_extension("0"), report.with_extension("1"));
    soon(60, "the first copy does not start", || text_of(&first).contains("workers "))?;
    let workers = |text: &str| -> Vec<u32> {
        let line = text.lines().find_map(|line| line.strip_prefix("workers ")).unwrap_or_default();
        line.split_whitespace().map(|process| process.parse().unwrap()).collect()
    };
    let old = workers(&text_of(&first));
    ensure!(old.len() == 1 && is_running(old[0]), "{old:?}");
    ask("scontrol", &["requeue", &job]);
    old.iter().try_for_each(|worker| ends_soon(*worker))?;
    // A requeued job may begin only after two minutes, unless it is told otherwise.
    let _ = Command::new("scontrol").args(["update", &format!("JobId={job}"), "StartTime=now"]).output();
    let output = folder.path().join("output");
    soon(150, "the second copy does not end", || text_of(&second).contains("done"))
        .map_err(|why| format!("{}: {}", why.message().unwrap_or_default(), text_of(&output)))?;
    ensure!(!text_of(&first).contains("done"), "the first copy went on: {}", text_of(&first));
    let new = workers(&text_of(&second));
    ensure!(new.len() == 1 && new != old, "{new:?}, {old:?}");
    new.iter().try_for_each(|worker| ends_soon(*worker))?;
    no_job_within(Duration::from_secs(10))
}
