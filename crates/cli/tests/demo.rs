//! `evener demo`, as a newcomer runs it.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Output;

use common::{evener, stderr, stdout};
use serde_json::Value;

fn demo(arguments: &[&str]) -> Output {
    evener().arg("demo").args(arguments).output().unwrap()
}

fn cores() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

#[test]
fn programs_get_the_whole_story() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let output = demo(&["--json", "--devices", "cpu", "--trace", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let story: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["items", "wall_s", "ideal_s", "efficiency", "bound", "leaves", "total_s"] {
        assert!(story[key].is_number(), "no {key}");
    }
    for key in ["id", "items", "chunks", "busy_s", "retries", "rescues", "state"] {
        assert!(!story["devices"][0][key].is_null(), "a device has no {key}");
    }
    assert_eq!(story["check"]["is_same"], true);
    assert_eq!(story["check"]["root"], story["root"]);
    assert_eq!(story["processor_was_split"], false);
    assert!(story["comparison"].is_null(), "one device has nobody to share with");
    assert!(story["rates"][0]["leaves_per_s"].as_f64().unwrap() > 0.0);
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|event| event["cat"] == "work"));
}

/// The demo as it is, on parts of the processor so that no GPU's driver decides how long it takes.
#[test]
fn newcomers_are_told_who_did_what_and_that_it_is_right() {
    let selection = if cores() > 1 { "cpu[1,1]" } else { "cpu" };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let output = demo(&["--devices", selection, "--trace", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "a bar is for terminals");
    let text = stdout(&output);
    for part in [
        "Found on this machine:",
        "Measured, each device alone",
        "A Merkle tree over",
        "efficiency",
        "gives the same root",
        path.to_str().unwrap(),
        "What just happened: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    if cores() > 1 {
        for part in ["cpu/a", "cpu/b", "adaptive", "dynamic", "proportional", "equal", " alone"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    assert!(path.exists());
    assert!(!text.contains('\u{1b}'), "no colours where there is no terminal");
}

#[test]
fn what_cannot_be_used_is_said_before_anything_is_computed() {
    let output = demo(&["--devices", "nonsense"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
    let output = demo(&["--devices", "cpu", "--trace", "/no/such/folder/trace.json"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
    assert!(stderr(&output).contains("/no/such/folder/trace.json: cannot be written"), "{}", stderr(&output));
}

#[test]
fn help_shows_examples_and_exit_codes() {
    let output = demo(&["--help"]);
    for text in ["Examples:", "evener demo", "Exit codes:"] {
        assert!(stdout(&output).contains(text), "{}", stdout(&output));
    }
}
