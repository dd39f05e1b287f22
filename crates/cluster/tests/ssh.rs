//! Workers through real `ssh` and real SSH servers, which `scripts/cluster/sshd start FOLDER 2` starts. The folder is in
//! the variable `EVENER_TEST_SSHD`; without it these tests are ignored.
//!
//! This program starts itself as a worker, so it has a `main` of its own.
#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::{
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{
    Behaviour, Outcome, add, compute, ends_soon, is_running, process_of, processor, signal, within_seconds,
};
use evener_cluster::{Host, Program, Ssh, WithHosts, connect_all, worker};
use evener_device::{Device, Error, Inventory, Kernel, Result, kernel_fn};
use evener_schedule::{KernelParams, KernelTask, Pool};
use libtest_mimic::{Arguments, Trial};

/// The folder of the SSH servers.
const RIG: &str = "EVENER_TEST_SSHD";

/// In this variable's presence, this program is a client that prints the process of its worker, and waits.
const CLIENT: &str = "EVENER_TEST_CLIENT";

fn main() {
    worker::serve_if_asked();
    if std::env::var_os(CLIENT).is_some() {
        return client();
    }
    let trials: [Behaviour; 14] = [
        ("two_hosts_compute_with_sshd", two_hosts),
        ("each_error_says_what_to_do_with_sshd", errors),
        ("a_cut_in_the_middle_of_a_copy_is_a_lost_device_with_sshd", cut),
        ("a_cut_at_any_time_gives_a_result_or_an_error_with_sshd", cut_at_any_time),
        ("a_connection_survives_a_restart_of_the_server_with_sshd", restart),
        ("a_worker_that_is_killed_comes_back_with_sshd", killed),
        ("a_worker_that_is_stopped_and_resumed_finishes_with_sshd", stopped),
        ("a_host_that_hangs_is_lost_with_sshd", hung),
        ("a_client_that_is_killed_leaves_no_process_with_sshd", killed_client),
        ("a_program_is_sent_once_with_sshd", sent_once),
        ("a_damaged_copy_of_a_program_is_sent_again_with_sshd", damaged_copy),
        ("faults_at_any_time_of_a_run_lose_and_repeat_no_item_with_sshd", faults_in_runs),
        ("a_connection_that_the_user_shares_is_used_and_survives_with_sshd", shared_connection),
        ("what_the_user_has_configured_for_logging_in_is_left_out_with_sshd", only_pipes),
    ];
    // Only root may mount a small disk. Others list it as ignored.
    let is_root = rustix::process::getuid().is_root();
    let need = if is_root { "with_sshd" } else { "with_root" };
    let full_disk_name = format!("a_full_disk_there_is_one_sentence_and_no_host_is_lost_{need}");
    let mut arguments = Arguments::from_args();
    // They cut the connections of the same servers.
    arguments.test_threads.get_or_insert(1);
    let is_missing = std::env::var_os(RIG).is_none();
    let trial = |name: String, trial: fn() -> Outcome, is_missing: bool| {
        Trial::test(name, move || within_seconds(90, trial)).with_ignored_flag(is_missing)
    };
    let full_disk = trial(full_disk_name, full_disk, is_missing || !is_root);
    let trials = trials.into_iter().map(|(name, it)| trial(name.into(), it, is_missing));
    libtest_mimic::run(&arguments, trials.chain([full_disk]).collect()).exit();
}

fn rig() -> PathBuf {
    std::env::var_os(RIG).unwrap().into()
}

/// Does something to a host of the rig.
fn sshd(command: &str, host: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/cluster/sshd");
    let output = Command::new(script).arg(command).arg(rig()).arg(host).output().unwrap();
    assert!(output.status.success(), "sshd {command} {host}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn ssh(host: &str) -> Ssh {
    let config = format!("-F{}", rig().join("ssh_config").display());
    Ssh::new(host).unwrap().option(config)
}

fn this_program(host: &str) -> Host {
    let program = std::env::current_exe().unwrap();
    let command = format!("exec '{}' {}", program.display(), worker::ARGUMENT);
    Host::new(host, ssh(host).command(command)).unwrap().timeout(Duration::from_secs(30))
}

fn two_hosts() -> Outcome {
    let hosts = [this_program("host1"), this_program("host2")];
    let inventory = Inventory::discover().with_hosts(&hosts);
    let devices = inventory.select("host1/cpu,host2/cpu")?;
    let processes = devices.iter().map(process_of).collect::<Result<Vec<u32>>>()?;
    ensure!(processes[0] != processes[1], "both are process {}", processes[0]);
    for device in &devices {
        ensure!(compute(device, 0)? == [11, 12, 13], "a wrong result of {}", device.id());
    }
    drop((inventory, devices));
    processes.into_iter().try_for_each(ends_soon)
}

fn errors() -> Outcome {
    let other_version = r"printf '\000evener-worker\r\n\371\000\000\000'; exec cat >/dev/null";
    let not_executable = format!("exec {} worker", rig().join("authorized_keys").display());
    let old_evener = "echo \"error: unrecognized subcommand 'worker'\" >&2; exit 2";
    let cases = [
        ("unknown-key", ssh("unknown-key"), "its host key is unknown: run `ssh -F"),
        ("changed-key", ssh("changed-key"), "remove the old key with `ssh-keygen -f"),
        ("no-permission", ssh("no-permission"), "it refuses your key: make `ssh -F"),
        ("down", ssh("down"), "it runs no SSH server on that port: start the server"),
        ("hung", ssh("hung"), "check with `ssh -F"),
        ("no-such-name", ssh("no-such-name"), "its name is unknown: correct it"),
        ("no-evener", ssh("host1").command("exec no-evener worker"), "run `evener hosts install host1`"),
        ("no-file", ssh("host1").command("exec /nowhere/evener worker"), "run `evener hosts install host1`"),
        ("not-executable", ssh("host1").command(not_executable), "run `chmod +x` on it there"),
        ("other-version", ssh("host1").command(other_version), "install the same version of Evener"),
        ("too-old", ssh("host1").command(old_evener), "its `evener` is another version"),
        ("ends", ssh("host1").command("exit 7"), "the worker ended without a greeting"),
    ];
    let host = |(name, ssh, _): &(&str, Ssh, &str)| {
        Host::new(*name, ssh.clone()).unwrap().timeout(Duration::from_secs(10))
    };
    let hosts: Vec<Host> = cases.iter().map(host).collect();
    let start = Instant::now();
    let outcomes = connect_all(&hosts);
    ensure!(start.elapsed() < Duration::from_secs(40), "it took {:?}", start.elapsed());
    let mut wrong = Vec::new();
    for ((name, _, advice), outcome) in cases.iter().zip(outcomes) {
        let text = outcome.map(drop).unwrap_err().to_string();
        let is_one_line = text.starts_with(&format!("{name}: lost")) && text.lines().count() == 1;
        if !is_one_line || !text.contains(advice) {
            wrong.push(format!("`{advice}` is not in: {text}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Copies to a device and back until that fails. Checks what comes back.
fn copy_until_lost(device: &Device) -> std::result::Result<Error, String> {
    let numbers: Vec<u32> = (0..8 << 20).collect();
    loop {
        let copied = device.buffer_from(&numbers).and_then(|data| device.stream()?.download(&data)?.wait());
        match copied {
            Ok(found) if found == numbers => {}
            Ok(_) => return Err("a copy is wrong".into()),
            Err(error) => return Ok(error),
        }
    }
}

fn cut() -> Outcome {
    let host = this_program("host1").connect()?;
    let device = processor(&host);
    let process = process_of(&device)?;
    let cutter = thread::spawn(|| {
        thread::sleep(Duration::from_millis(400));
        sshd("cut", "host1");
        Instant::now()
    });
    let error = copy_until_lost(&device)?;
    let cut_at = cutter.join().map_err(|_| "the cutter panicked")?;
    ensure!(cut_at.elapsed() < Duration::from_secs(3), "it was noticed after {:?}", cut_at.elapsed());
    ensure!(matches!(error, Error::Lost { .. }), "{error}");
    ends_soon(process)?;
    ensure!(compute(&device.reopened(), 0)? == [11, 12, 13], "a wrong result");
    Ok(())
}

fn cut_at_any_time() -> Outcome {
    for round in 0..8u64 {
        let host = this_program("host1").connect()?;
        let device = processor(&host);
        let cutter = thread::spawn(move || {
            thread::sleep(Duration::from_millis(round * round * 3));
            sshd("cut", "host1");
        });
        let error = loop {
            match compute(&device, 1) {
                Ok(found) => ensure!(found == [11, 12, 13], "a wrong result: {found:?}"),
                Err(error) => break error,
            }
        };
        ensure!(matches!(error, Error::Lost { .. }), "{error}");
        ensure!(cutter.join().is_ok(), "the cutter panicked");
    }
    Ok(())
}

fn restart() -> Outcome {
    let host = this_program("host1").connect()?;
    let device = processor(&host);
    let process = process_of(&device)?;
    sshd("restart", "host1");
    ensure!(process_of(&device)? == process, "it is another worker");
    let new = this_program("host1").connect()?;
    ensure!(process_of(&processor(&new))? != process, "it is the same worker");
    // Down, with the sessions, and up again: opening the device again connects again.
    sshd("down", "host1");
    let error = compute(&device, 0).unwrap_err();
    ensure!(matches!(error, Error::Lost { .. }), "{error}");
    let error = compute(&device.reopened(), 0).unwrap_err();
    ensure!(error.to_string().contains("start the server"), "{error}");
    sshd("up", "host1");
    ensure!(compute(&device.reopened(), 0)? == [11, 12, 13], "a wrong result");
    Ok(())
}

fn killed() -> Outcome {
    let host = this_program("host1").connect()?;
    let device = processor(&host);
    let process = process_of(&device)?;
    let data = device.buffer_from(&[0u32; 10])?;
    let mut stream = device.stream()?;
    stream.launch(&device.compile(&add(1, 60_000))?.bind(&[data.arg()])?, 1, &())?;
    let event = stream.record_event()?;
    signal("-KILL", process);
    let start = Instant::now();
    let error = event.wait().unwrap_err();
    ensure!(start.elapsed() < Duration::from_secs(2), "the loss was noticed after {:?}", start.elapsed());
    ensure!(matches!(error, Error::Lost { .. }), "{error}");
    ensure!(process_of(&device.reopened())? != process, "the same process");
    Ok(())
}

fn stopped() -> Outcome {
    let host = this_program("host1").connect()?;
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

fn hung() -> Outcome {
    let host = this_program("host2").connect()?;
    let device = processor(&host);
    let process = process_of(&device)?;
    sshd("hang", "host2");
    let start = Instant::now();
    let outcome = compute(&device, 0);
    let took = start.elapsed();
    sshd("resume", "host2");
    let error = outcome.unwrap_err();
    ensure!(matches!(error, Error::Lost { .. }), "{error}");
    ensure!(error.to_string().contains("silent"), "{error}");
    ensure!(took < Duration::from_secs(30), "it took {took:?}");
    ends_soon(process)?;
    ensure!(compute(&device.reopened(), 0)? == [11, 12, 13], "a wrong result");
    Ok(())
}

#[allow(clippy::print_stdout)]
fn client() {
    let host = this_program("host1").connect().unwrap();
    let device = processor(&host);
    println!("{}", process_of(&device).unwrap());
    let _ = compute(&device, 60_000);
}

fn killed_client() -> Outcome {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(CLIENT, "1").stdout(Stdio::piped());
    let mut client = command.spawn()?;
    let mut line = String::new();
    BufReader::new(client.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
    let worker: u32 = line.trim().parse()?;
    ensure!(is_running(worker), "the worker is gone already");
    ensure!(sshd("processes", "host1").lines().any(|it| it == line.trim()), "it is not on the host");
    client.kill()?;
    client.wait()?;
    ends_soon(worker)?;
    let start = Instant::now();
    while !sshd("processes", "host1").trim().is_empty() {
        ensure!(start.elapsed() < Duration::from_secs(5), "{}", sshd("processes", "host1"));
    }
    Ok(())
}

/// A host that this program is sent to.
fn sending(host: &str) -> Host {
    let ssh = ssh(host).send(Program::this().unwrap());
    Host::new(host, ssh).unwrap().timeout(Duration::from_secs(30))
}

/// The copy of this program on a host.
fn copy_on(host: &str) -> PathBuf {
    let folder = rig().join(host).join("home/.cache/evener/programs");
    folder.join(Program::this().unwrap().hash())
}

fn sent_once() -> Outcome {
    let copy = copy_on("host1");
    // Not there unless an earlier run has sent it.
    let _ = std::fs::remove_file(&copy);
    ensure!(compute(&processor(&sending("host1").connect()?), 0)? == [11, 12, 13], "a wrong result");
    let mode = |path: &Path| std::fs::metadata(path).map(|it| it.permissions().mode() & 0o777);
    ensure!(mode(&copy)? == 0o700, "{:o}", mode(&copy)?);
    let folder = copy.parent().ok_or("no folder")?;
    ensure!(mode(folder)? == 0o700, "{:o}", mode(folder)?);
    let first = std::fs::metadata(&copy)?.ino();
    ensure!(compute(&processor(&sending("host1").connect()?), 0)? == [11, 12, 13], "a wrong result");
    ensure!(std::fs::metadata(&copy)?.ino() == first, "it was sent again");
    // Parts of it have a dot in their name. Copies of other programs may be there.
    for file in std::fs::read_dir(folder)? {
        let name = file?.file_name();
        ensure!(!name.to_string_lossy().contains('.'), "{name:?} was left");
    }
    Ok(())
}

fn damaged_copy() -> Outcome {
    let copy = copy_on("host2");
    let host = sending("host2").connect()?;
    drop(host);
    let whole = std::fs::read(&copy)?;
    // At its end is the table of sections, which the system does not read to run it.
    let mut changed = whole.clone();
    *changed.last_mut().ok_or("it is empty")? ^= 1;
    let longer = [&whole[..], &[0]].concat();
    for damaged in [changed, longer, Vec::new()] {
        // A file that is being executed cannot be written.
        std::fs::remove_file(&copy)?;
        std::fs::write(&copy, &damaged)?;
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o700))?;
        ensure!(compute(&processor(&sending("host2").connect()?), 0)? == [11, 12, 13], "a wrong result");
        ensure!(std::fs::read(&copy)? == whole, "it was not sent again");
    }
    Ok(())
}

kernel_fn! {
    /// Adds one to each item, and takes a tenth of a millisecond for it.
    fn increment() -> Kernel {
        Kernel::new("increment").reads::<u32>().writes::<u32>().params::<KernelParams>().rust(|launch| {
            let count = launch.params::<KernelParams>()?.count as usize;
            let (items, results) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
            for (result, item) in results[..count].iter_mut().zip(items) {
                *result = item + 1;
            }
            thread::sleep(Duration::from_micros(100 * count as u64));
            Ok(())
        })
    }
}

/// Runs over this machine's processor and two hosts, and does something to one of them meanwhile.
fn run_with(fault: &'static str, after: Duration) -> Outcome {
    let hosts = [this_program("host1").connect()?, this_program("host2").connect()?];
    let remote = hosts.iter().map(processor).collect::<Vec<Device>>();
    let process = process_of(&remote[0])?;
    let devices = [Device::cpu().split(&[1])?.remove(0)].into_iter().chain(remote).collect::<Vec<_>>();
    let pool = Pool::builder().devices(&devices).keep_history_at(None).build()?;
    let items: Vec<u32> = (0..12_000).collect();
    let faulty = thread::spawn(move || {
        thread::sleep(after);
        match fault {
            "kill" => signal("-KILL", process),
            "stop" => {
                signal("-STOP", process);
                thread::sleep(Duration::from_millis(700));
                signal("-CONT", process);
            }
            "hang" => {
                sshd("hang", "host1");
                thread::sleep(Duration::from_secs(1));
                sshd("resume", "host1");
            }
            command => drop(sshd(command, "host1")),
        }
    });
    let run = pool.job(&KernelTask::<u32, u32>::new(&increment())).all_devices().map(&items);
    ensure!(faulty.join().is_ok(), "the fault could not be made");
    let run = run.map_err(|why| format!("{fault} after {after:?}: {why}"))?;
    let is_right = run.results().iter().zip(&items).all(|(result, item)| *result == item + 1);
    ensure!(is_right && run.results().len() == items.len(), "{fault} after {after:?}: a wrong result");
    let report = run.report();
    let counted: u64 = report.devices.iter().map(|device| device.items).sum();
    ensure!(counted == items.len() as u64, "{fault} after {after:?}: {counted} items\n{report}");
    ensure!(report.wall_s < 15.0, "{fault} after {after:?}: the run took {} s\n{report}", report.wall_s);
    Ok(())
}

fn faults_in_runs() -> Outcome {
    for fault in ["cut", "kill", "stop", "hang", "restart"] {
        // Before the first chunk, in the middle, and near the end.
        for milliseconds in [0, 60, 250] {
            run_with(fault, Duration::from_millis(milliseconds))?;
        }
    }
    Ok(())
}

fn shared_connection() -> Outcome {
    let config = format!("-F{}", rig().join("ssh_config").display());
    let folder = tempfile::tempdir()?;
    let path = format!("-oControlPath={}", folder.path().join("shared").display());
    let mut shared = Command::new("ssh");
    shared.args([&config, &path, "-oControlMaster=yes", "-N", "host1"]);
    let mut shared = shared.stdin(Stdio::null()).spawn()?;
    let is_there = || Command::new("ssh").args([&config, &path, "-Ocheck", "host1"]).output();
    let start = Instant::now();
    while !is_there()?.status.success() {
        ensure!(start.elapsed() < Duration::from_secs(10), "the shared connection does not start");
        thread::sleep(Duration::from_millis(20));
    }
    let program = std::env::current_exe()?;
    let command = format!("exec '{}' {}", program.display(), worker::ARGUMENT);
    let sharing = ssh("host1").option(&path).option("-oControlMaster=auto").command(command.clone());
    let host = Host::new("host1", sharing)?.timeout(Duration::from_secs(30));
    let device = processor(&host.connect()?);
    let process = process_of(&device)?;
    drop(device);
    ends_soon(process)?;
    let survives = is_there()?.status.success();
    shared.kill()?;
    shared.wait()?;
    ensure!(survives, "the shared connection is gone");
    // Where no connection is shared, none is left for others.
    let socket = folder.path().join("own");
    let alone = ssh("host1").option(format!("-oControlPath={}", socket.display()));
    let alone = alone.option("-oControlMaster=auto").option("-oControlPersist=60").command(command);
    let host = Host::new("host1", alone)?.timeout(Duration::from_secs(30)).connect()?;
    ensure!(compute(&processor(&host), 0)? == [11, 12, 13], "a wrong result");
    ensure!(!socket.exists(), "it has become a connection that others share");
    Ok(())
}

fn only_pipes() -> Outcome {
    let folder = tempfile::tempdir()?;
    let touched = folder.path().join("touched");
    let config = folder.path().join("config");
    let text = format!(
        "Host host1\n    RemoteCommand echo wrong\n    PermitLocalCommand yes\n    LocalCommand touch {}\n    \
         LocalForward 127.0.0.1:1 127.0.0.1:1\n    ExitOnForwardFailure yes\n    ForwardX11 yes\n    ForwardAgent yes\n\
         Include {}\n",
        touched.display(),
        rig().join("ssh_config").display()
    );
    std::fs::write(&config, text)?;
    let program = std::env::current_exe()?;
    let command = format!("exec '{}' {}", program.display(), worker::ARGUMENT);
    let ssh = Ssh::new("host1")?.option(format!("-F{}", config.display())).command(command);
    let host = Host::new("host1", ssh)?.timeout(Duration::from_secs(30)).connect()?;
    ensure!(compute(&processor(&host), 0)? == [11, 12, 13], "a wrong result");
    ensure!(!touched.exists(), "the local command was run");
    Ok(())
}

/// A small file system, which is gone when this is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Result<Self, libtest_mimic::Failed> {
        std::fs::create_dir_all(&path)?;
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "none"]).arg(&path).output()?;
        ensure!(mount.status.success(), "mount: {}", String::from_utf8_lossy(&mount.stderr));
        Ok(SmallDisk(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

fn full_disk() -> Outcome {
    let cache = rig().join("host1/home/.cache");
    let disk = SmallDisk::mount(cache.clone())?;
    let error = sending("host1").connect().map(drop).unwrap_err().to_string();
    ensure!(error.contains("its disk is full") && error.lines().count() == 1, "{error}");
    let left: Vec<_> = std::fs::read_dir(cache.join("evener/programs"))?.collect();
    ensure!(left.is_empty(), "a part of the program was left: {left:?}");
    // A worker that needs no room works as ever.
    std::fs::write(cache.join("full"), vec![0; 1 << 20]).unwrap_err();
    let host = this_program("host1").connect()?;
    ensure!(compute(&processor(&host), 0)? == [11, 12, 13], "a wrong result");
    drop((host, disk));
    ensure!(compute(&processor(&sending("host1").connect()?), 0)? == [11, 12, 13], "a wrong result");
    Ok(())
}
