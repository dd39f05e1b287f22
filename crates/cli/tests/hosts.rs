//! `--hosts` and `evener hosts`, run as a user runs them. The tests that need SSH servers find their folder, which
//! `scripts/cluster/sshd start FOLDER 2` made, in `EVENER_TEST_SSHD`.
// The functions that the tests share are no tests themselves, but may fail like them.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
};

use common::{stderr, stdout};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a `hosts.toml` and a program `ssh`, in which `evener` is run.
struct Place(TempDir);

impl Place {
    fn new(hosts: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("hosts.toml"), hosts).unwrap();
        Place(folder)
    }

    /// With hosts of the SSH servers, whose `evener` is the one under test.
    fn with_sshd() -> Place {
        let evener = env!("CARGO_BIN_EXE_evener");
        let table = |host: &str| format!("[{host}]\nevener = \"{evener}\"\ntimeout = 5\n");
        let hosts = ["host1", "host2", "down", "unknown-key", "no-permission", "hung"].map(table);
        let place = Place::new(&hosts.concat());
        let rig: PathBuf = std::env::var_os("EVENER_TEST_SSHD").unwrap().into();
        place.set_ssh(&format!("exec '{}' \"$@\"", rig.join("bin/ssh").display()));
        place
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Puts a shell script in place of `ssh`.
    fn set_ssh(&self, script: &str) {
        let ssh = self.path().join("ssh");
        fs::write(&ssh, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&ssh, PermissionsExt::from_mode(0o700)).unwrap();
    }

    fn run_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
        let path = format!("{}:{}", self.path().display(), std::env::var("PATH").unwrap());
        let mut command = common::evener();
        command.current_dir(self.path()).env("PATH", path).env("XDG_CONFIG_HOME", self.path());
        command.envs(variables.iter().copied()).args(arguments).output().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(&[], arguments)
    }
}

fn ids(output: &Output) -> Vec<String> {
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = object["devices"].as_array().unwrap();
    devices.iter().map(|device| device["id"].as_str().unwrap().to_owned()).collect()
}

const REFUSED: &str = "echo 'ssh: connect to host box port 22: Connection refused' >&2; exit 255";

#[test]
fn a_host_that_is_down_is_a_line_and_an_error_only_if_it_was_named() {
    let place = Place::new("");
    place.set_ssh(REFUSED);
    let line = "box: it runs no SSH server on that port: start the server, or give the right port";

    let output = place.run(&["devices", "--hosts", "box"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains(line) && stdout(&output).contains("\ncpu "), "{}", stdout(&output));
    assert_eq!(stderr(&output), "error: cannot be used: box\n");

    let output = place.run_with(&[("EVENER_HOSTS", "box")], &["devices"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains(line), "{}", stdout(&output));

    let merkle = ["merkle", "--leaves", "1000", "-q"];
    let output = place.run_with(&[("EVENER_HOSTS", "box")], &merkle[..3]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("box is not used: it runs no SSH server"), "{}", stderr(&output));

    for named in [["--hosts", "box"], ["--devices", "cpu,box/cpu"]] {
        let output = place.run(&[&merkle[..], &named[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).starts_with(&format!("error: {line}")), "{}", stderr(&output));
    }
}

#[test]
fn what_cannot_be_a_host_is_a_usage_error() {
    let place = Place::new("");
    for arguments in [
        &["devices", "--hosts", ""][..],
        &["devices", "--hosts", "a,a"],
        &["devices", "--hosts", "-oProxyCommand=x"],
        &["demo", "--hosts", "a b"],
        &["hosts", "check"],
        &["hosts", "check", "a;b"],
        &["hosts", "install"],
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
    let malformed = Place::new("[box]\nadress = \"x\"\n");
    let output = malformed.run(&["devices", "--hosts", "box"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("hosts.toml") && stderr(&output).contains("adress"),
        "{}",
        stderr(&output)
    );
    // Without hosts it is not read.
    assert!(malformed.run(&["devices", "-q"]).status.success());
}

#[test]
fn a_partition_of_this_machine_is_not_taken_for_a_host() {
    let place = Place::new("");
    place.set_ssh("echo \"ssh was started\" >&2; exit 255");
    let output = place.run(&["devices", "--devices", "cpu[1],cpu/a", "-q"]);
    assert!(!stderr(&output).contains("ssh was started"), "{}", stderr(&output));
    let output = place.run(&["devices", "--devices", "box/cpu", "-q"]);
    assert_eq!(stderr(&output), "error: box: ssh was started\n");
}

#[test]
#[ignore = "needs SSH servers"]
fn devices_of_two_hosts_are_listed_and_selected_with_sshd() {
    let place = Place::with_sshd();
    let output = place.run(&["devices", "--hosts", "host1,host2", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let all = ids(&output);
    for id in ["cpu", "host1/cpu", "host2/cpu"] {
        assert!(all.contains(&id.to_owned()), "{id}: {all:?}");
    }
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    for host in object["hosts"].as_array().unwrap() {
        assert!(host["round_trip_s"].as_f64().is_some_and(|time| time > 0.0), "{host}");
        assert!(host["upload_bytes_per_s"].as_f64().is_some_and(|rate| rate > 1e5), "{host}");
        assert!(host["download_bytes_per_s"].as_f64().is_some_and(|rate| rate > 1e5), "{host}");
    }
    // A host that only the selection names is used only where it is named.
    let select = |list: &str| ids(&place.run(&["devices", "--json", "--devices", list]));
    assert_eq!(select("host1/cpu[1]"), ["host1/cpu/a"]);
    assert_eq!(select("cpu,host1/cpu,host2/cpu"), ["cpu", "host1/cpu", "host2/cpu"]);
    let with_one = select("all,host2/cpu");
    assert_eq!(with_one.iter().filter(|id| id.contains('/')).collect::<Vec<_>>(), ["host2/cpu"]);
    let text = place.run(&["devices", "--hosts", "host1"]);
    assert!(stdout(&text).contains("ROUND TRIP ms"), "{}", stdout(&text));
}

#[test]
#[ignore = "needs SSH servers"]
fn the_root_over_a_remote_processor_is_the_local_one_with_sshd() {
    let place = Place::with_sshd();
    let root = |arguments: &[&str]| {
        let output = place.run(&[&["merkle", "--leaves", "2000000", "-q"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output).to_owned()
    };
    let local = root(&["--devices", "cpu"]);
    for devices in ["cpu,host1/cpu", "host1/cpu", "host1/cpu,host2/cpu"] {
        assert_eq!(root(&["--devices", devices]), local, "{devices}");
    }
    for (hash, rule) in [("blake3", "rfc6962"), ("keccak256", "rs-merkle"), ("sha256", "bitcoin")] {
        let scheme = ["--hash", hash, "--rule", rule, "--devices"];
        let root_on = |devices| root(&[&scheme[..], &[devices]].concat());
        assert_eq!(root_on("host1/cpu"), root_on("cpu"), "{hash}, {rule}");
    }
}

#[test]
#[ignore = "needs SSH servers"]
fn a_check_says_what_is_there_and_what_is_wrong_with_sshd() {
    let place = Place::with_sshd();
    let output = place.run(&["hosts", "check", "host1", "down", "unknown-key", "no-permission", "hung"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    for text in [
        "\nhost1 ",
        "\ndown: it runs no SSH server on that port",
        "\nunknown-key: its host key is unknown: run `ssh unknown-key` once",
        "\nno-permission: it refuses your key",
        "\nhung: ",
    ] {
        assert!(stdout(&output).contains(text), "{text}: {}", stdout(&output));
    }
    assert_eq!(stderr(&output), "error: cannot be used: down, unknown-key, no-permission, hung\n");
    let quiet = place.run(&["hosts", "check", "-q", "host1", "host2"]);
    assert_eq!(stdout(&quiet), "host1\nhost2\n");
}

#[test]
#[ignore = "needs SSH servers"]
fn a_program_that_was_installed_is_used_with_sshd() {
    let place = Place::with_sshd();
    fs::write(place.path().join("hosts.toml"), "").unwrap();
    let output = place.run(&["hosts", "check", "host2"]);
    assert!(stdout(&output).contains("run `evener hosts install host2`"), "{}", stdout(&output));
    let output = place.run(&["hosts", "install", "-q", "host2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let copy = PathBuf::from(stdout(&output).trim());
    let mode = fs::metadata(&copy).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700, "{}", copy.display());
    assert!(place.run(&["hosts", "check", "host2"]).status.success());
    fs::remove_file(copy).unwrap();
}

#[test]
fn a_machine_without_slurm_and_a_request_that_means_nothing_say_so() {
    let place = Place::new("[big]\nslurm = { nodes = 2 }\n");
    let nowhere = place.path().to_str().unwrap().to_owned();
    for hosts in ["slurm(nodes=2)", "big"] {
        let output = place.run_with(&[("PATH", &nowhere)], &["devices", "--hosts", hosts]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(
            stdout(&output).contains("-2: this machine has no SLURM: `srun` is not"),
            "{}",
            stdout(&output)
        );
    }
    for hosts in ["slurm(nodes=0)", "slurm(node=1)", "slurm(nodes=1", "big-3", "slurm(partition=a b)"] {
        let output = place.run_with(&[("PATH", &nowhere)], &["devices", "--hosts", hosts]);
        assert_eq!(output.status.code(), Some(2), "{hosts}: {}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{hosts}: {}", stderr(&output));
    }
}

#[test]
#[ignore = "needs a SLURM cluster"]
fn nodes_of_a_slurm_cluster_are_listed_and_used_with_slurm() {
    let place = Place::new("[big]\nslurm = { nodes = 2, gpus = 1 }\n");
    let output = place.run(&["devices", "--hosts", "slurm(nodes=2, gpus=1, time=10)", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for id in ["cpu", "slurm-1/cpu", "slurm-2/cpu"] {
        assert!(ids(&output).contains(&id.to_owned()), "{id}: {:?}", ids(&output));
    }
    let select = |list: &str| ids(&place.run(&["devices", "--json", "--devices", list]));
    assert_eq!(select("big-2/cpu[1]"), ["big-2/cpu/a"]);
    let root = |arguments: &[&str]| {
        let output = place.run(&[&["merkle", "--leaves", "2000000", "-q"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output).to_owned()
    };
    let local = root(&["--devices", "cpu"]);
    assert_eq!(root(&["--hosts", "big", "--devices", "big-1/cpu,big-2/cpu"]), local);
    assert_eq!(root(&["--hosts", "slurm()"]), local);

    let output = place.run(&["devices", "--hosts", "slurm(partition=nope)"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let line = "\nslurm-1: SLURM refuses the request: Invalid partition name specified\n";
    assert!(stdout(&output).contains(line), "{}", stdout(&output));
    assert_eq!(stderr(&output), "error: cannot be used: slurm-1\n");
    let output =
        place.run_with(&[("EVENER_HOSTS", "slurm(partition=nope)")], &["merkle", "--leaves", "1000"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("slurm-1 is not used: SLURM refuses the request"),
        "{}",
        stderr(&output)
    );

    // A node that does not come in time joins later, or not at all.
    let late = ["merkle", "--leaves", "100000", "--hosts", "slurm(partition=down, wait=1)"];
    let output = place.run(&late);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("slurm-1 is not there yet, and joins when it comes: job "),
        "{}",
        stderr(&output)
    );
}
