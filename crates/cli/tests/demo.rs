//! `evener demo`, as users run it.

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
fn programs_get_everything_that_the_text_shows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let output = demo(&["--json", "--devices", "cpu", "--trace", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let demo: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["items", "wall_s", "ideal_s", "efficiency", "bound", "leaves", "total_s"] {
        assert!(demo[key].is_number(), "no {key}");
    }
    for key in ["id", "items", "chunks", "busy_s", "retries", "speculative", "state"] {
        assert!(!demo["devices"][0][key].is_null(), "a device has no {key}");
    }
    assert_eq!(demo["check"]["is_same"], true);
    assert_eq!(demo["check"]["root"], demo["root"]);
    assert_eq!(demo["cpu_was_split"], false);
    assert_eq!(demo["schema_version"], 1);
    assert!(demo["machine_is_busy"].is_boolean() && demo["leaves_per_item"].as_u64() > Some(0), "{demo}");
    assert!(
        demo["comparison"].is_null() && demo["comparison_left_out"].is_null(),
        "one device has no other to share with"
    );
    assert!(demo["rates"][0]["leaves_per_s"].as_f64().unwrap() > 0.0);
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|event| event["cat"] == "work"));
}

/// Runs on partitions of the CPU, so that the time does not depend on GPU drivers.
#[test]
fn people_are_told_what_each_device_did_and_that_the_root_is_correct() {
    let selection = if cores() > 1 { "cpu[1,1]" } else { "cpu" };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let output = demo(&["--devices", selection, "--trace", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "progress is for terminals");
    let text = stdout(&output);
    for part in [
        "Devices of this machine:",
        "Rate of each device alone:",
        "Merkle tree of",
        "efficiency",
        "gives the\nsame root",
        path.to_str().unwrap(),
        "Summary: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    if cores() > 1 {
        assert!(text.contains("cpu/a") && text.contains("cpu/b"), "{text}");
        // A busy machine allows no comparison, and the demo says so instead of showing one.
        if text.contains("The comparison of strategies is left out, because") {
            assert!(!text.contains("times as fast as cpu/a, the fastest"), "{text}");
        } else {
            for part in ["adaptive", "dynamic", "proportional", "equal", " alone", "times as fast as"] {
                assert!(text.contains(part), "{part}: {text}");
            }
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
fn help_shows_examples() {
    let output = demo(&["--help"]);
    for text in ["Examples:", "evener demo", "Possible values:", "- adaptive:"] {
        assert!(stdout(&output).contains(text), "{}", stdout(&output));
    }
}
