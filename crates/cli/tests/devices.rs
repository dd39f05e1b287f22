//! `evener devices`, run as a user runs it.
// The functions that the tests share are no tests themselves, but may fail like them.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Output, Stdio},
};

use common::{evener, stderr, stdout};
use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    evener().args(arguments).output().unwrap()
}

fn object(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn devices(output: &Output) -> Vec<Value> {
    object(output)["devices"].as_array().unwrap().clone()
}

fn ids(output: &Output) -> Vec<String> {
    devices(output).iter().map(|device| device["id"].as_str().unwrap().to_owned()).collect()
}

fn cores() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

#[test]
fn a_plain_run_lists_the_processor_and_makes_no_noise() {
    let output = run(&["devices"]);
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
    assert!(stdout(&output).lines().any(|line| line.starts_with("cpu ")), "{}", stdout(&output));
    assert!(!stdout(&output).contains('\u{1b}'), "no colours where there is no terminal");
}

#[test]
fn tables_fit_80_columns_and_leave_unknown_columns_out() {
    let output = run(&["devices", "--devices", "cpu"]);
    let table: Vec<&str> = stdout(&output).lines().take_while(|line| !line.contains(": ")).collect();
    assert!(table.iter().all(|line| line.chars().count() <= 80), "{table:#?}");
    assert!(table.iter().any(|line| line.starts_with("ID")), "{table:#?}");
    assert!(!table.iter().any(|line| line.contains("PCI")), "the CPU has no PCI address: {table:#?}");
}

#[test]
fn json_has_every_key() {
    let output = run(&["devices", "--json"]);
    assert_eq!(stderr(&output), "");
    let keys = [
        "id",
        "name",
        "kind",
        "api",
        "memory_bytes",
        "memory_free_bytes",
        "compute_units",
        "pci",
        "uuid",
        "driver",
        "utilization",
        "temperature_celsius",
        "power_watts",
        "score",
        "score_is_estimate",
        "rates",
        "part_of",
        "rounded_from",
    ];
    for device in devices(&output) {
        for key in keys {
            assert!(device.get(key).is_some(), "{key}: {device}");
        }
        assert!(device["score"].is_number() && device["score_is_estimate"].is_boolean(), "{device}");
        assert!(device["rates"].is_null() || device["rates"].is_object(), "{device}");
    }
    let all = devices(&output);
    assert_eq!(object(&output)["schema_version"], 1);
    assert!(object(&output)["absent"].is_array(), "the text shows absent back ends");
    let cpu = all.iter().find(|device| device["id"] == "cpu").unwrap();
    assert_eq!(cpu["compute_units"], cores());
    assert!(cpu["utilization"].as_f64().is_some_and(|busy| (0.0..=1.0).contains(&busy)), "{cpu}");
    assert!(cpu["memory_free_bytes"].as_u64() <= cpu["memory_bytes"].as_u64(), "{cpu}");
}

#[test]
fn every_api_shows_at_least_as_many_devices() {
    let (once, all) = (ids(&run(&["devices", "--json"])), ids(&run(&["devices", "--json", "--all-apis"])));
    assert!(once.iter().all(|id| all.contains(id)), "{once:?} {all:?}");
}

#[test]
fn nonsense_is_answered_with_what_there_is() {
    let output = run(&["devices", "--devices", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).starts_with("error: no device for `nonsense`"), "{}", stderr(&output));
    assert!(stderr(&output).lines().any(|line| line.starts_with("  cpu ")), "{}", stderr(&output));
    for selection in ["cpu[", "cpu,,cpu", "cpu[x]", "-cpu[1]", ""] {
        assert_eq!(run(&["devices", "--devices", selection]).status.code(), Some(2), "{selection}");
    }
}

#[test]
fn a_minus_leaves_out() {
    let output = run(&["devices", "--json", "--devices", "all,-cpu,cpu"]);
    assert_eq!(ids(&output).last().unwrap(), "cpu");
    let output = run(&["devices", "--json", "--devices", "-cpu,cpu"]);
    assert_eq!(ids(&output).last().unwrap(), "cpu");
    let output = run(&["devices", "--json", "--devices=-gpu"]);
    assert_eq!(ids(&output), ["cpu"]);
    let output = run(&["devices", "--devices", "-all"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("it excludes every device"), "{}", stderr(&output));
}

#[test]
fn the_processor_can_be_split() {
    let output = run(&["devices", "--json", "--devices", "cpu[1,1]"]);
    if cores() < 2 {
        assert_eq!(output.status.code(), Some(2));
        return;
    }
    let parts = devices(&output);
    assert_eq!(ids(&output), ["cpu/a", "cpu/b"]);
    for part in parts {
        assert_eq!(part["part_of"], "cpu");
        assert_eq!(part["compute_units"], 1);
        assert!(part["utilization"].is_null(), "{part}");
    }
    let too_many = run(&["devices", "--devices", &format!("cpu[{}]", 1 << 20)]);
    assert_eq!(too_many.status.code(), Some(2));
    assert!(stderr(&too_many).contains("cannot be split"), "{}", stderr(&too_many));
}

#[test]
fn the_environment_selects_where_the_command_line_does_not() {
    let with = |value: &str, arguments: &[&str]| {
        evener().args(["devices", "--json"]).args(arguments).env("EVENER_DEVICES", value).output().unwrap()
    };
    assert_eq!(ids(&with("cpu", &[])), ["cpu"]);
    assert_eq!(ids(&with("nonsense", &["--devices", "cpu"])), ["cpu"]);
    assert_eq!(with("nonsense", &[]).status.code(), Some(2));
    assert!(with(" ", &[]).status.success());
}

#[test]
fn a_score_table_can_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.json");
    let score = |command: &mut Command| {
        let output = command.args(["devices", "--json", "--devices", "cpu"]).output().unwrap();
        devices(&output)[0]["score"].as_f64().unwrap()
    };
    fs::write(&path, r#"{ "weights": { "api": 0, "memory": 0, "units": 0 }, "kind": { "cpu": 7 } }"#)
        .unwrap();
    assert_eq!(score(evener().env("EVENER_SCORE_TABLE", &path)), 7.0);
    assert_ne!(score(evener().env("EVENER_SCORE_TABLE", "")), 7.0);
    let given = ["devices", "--json", "--devices", "cpu", "--score-table", path.to_str().unwrap()];
    assert_eq!(devices(&run(&given))[0]["score"], 7.0);

    fs::write(&path, r#"{ "wieghts": {} }"#).unwrap();
    let output = run(&given);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("wieghts"), "{}", stderr(&output));
}

#[test]
fn measuring_gives_rates() {
    let folder = tempfile::tempdir().unwrap();
    let measure = |more: &[&str]| {
        let mut command = evener();
        command.args(["devices", "--measure", "--devices", "cpu"]).args(more);
        command.env("EVENER_CACHE_DIR", folder.path()).output().unwrap()
    };
    let output = measure(&["--json"]);
    assert_eq!(stderr(&output), "");
    assert!(output.status.success());
    let device = &devices(&output)[0];
    assert!(device["rates"]["int32_multiplies_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{device}");
    assert!(stdout(&measure(&[])).contains("INT32"));
}

#[test]
fn rates_that_cannot_be_kept_are_shown_with_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no-folder");
    fs::write(&file, "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evener"));
    command.args(["devices", "--measure", "--devices", "cpu"]).env("EVENER_CACHE_DIR", &file);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "error: measured, but the rates could not be kept: cpu\n");
    assert!(
        stdout(&output).contains("INT32") && stdout(&output).contains("cpu: the rates could not be kept: ")
    );
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = evener().arg("devices").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_to_string(&mut said).unwrap();
    assert_eq!((said.as_str(), child.wait().unwrap().code()), ("", Some(0)));

    let mut child = evener().arg("devices").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("ID"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn help_shows_examples() {
    for arguments in [&["--help"][..], &["help"], &["devices", "--help"], &["help", "devices"]] {
        let output = run(arguments);
        assert!(output.status.success());
        for text in ["Examples:", "evener devices"] {
            assert!(stdout(&output).contains(text), "{arguments:?}: {}", stdout(&output));
        }
    }
    assert_eq!(stdout(&run(&["--version"])), format!("evener {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(run(&["devices", "--no-such-option"]).status.code(), Some(2));
    assert_eq!(run(&[]).status.code(), Some(2));
}
