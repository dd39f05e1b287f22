//! `evener sim`, as its users run it.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    Command::new(env!("CARGO_BIN_EXE_evener"))
        .arg("sim")
        .args(arguments)
        .current_dir(scenarios)
        .output()
        .unwrap()
}

#[test]
fn every_shipped_scenario_completes_at_or_above_its_bound() {
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(scenarios).unwrap() {
        let path = entry.unwrap().path();
        if is_training(&path) {
            continue;
        }
        let output = sim(&[path.to_str().unwrap(), "--json"]);
        assert!(output.status.success(), "{path:?}: {}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["schema_version"], 1);
        assert!(report["about"].as_str().is_some_and(|about| !about.is_empty()), "{path:?}");
        for key in ["items", "wall_s", "ideal_s", "efficiency", "bound"] {
            assert!(report[key].is_number(), "{path:?} has no {key}");
        }
        for key in ["id", "items", "chunks", "busy_s", "retries", "speculative", "state"] {
            assert!(!report["devices"][0][key].is_null(), "{path:?}: a device has no {key}");
        }
        assert!(report["efficiency"].as_f64() >= report["bound"].as_f64(), "{path:?}: {report}");
        seen += 1;
    }
    assert!(seen >= 7, "{seen} scenarios");
}

fn is_training(path: &std::path::Path) -> bool {
    path.file_name().unwrap().to_str().unwrap().starts_with("train-")
}

#[test]
fn every_shipped_training_scenario_loses_no_sample_and_stays_near_the_ideal() {
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(scenarios).unwrap() {
        let path = entry.unwrap().path();
        if !is_training(&path) {
            continue;
        }
        let output = sim(&[path.to_str().unwrap(), "--json"]);
        assert!(output.status.success(), "{path:?}: {}", String::from_utf8_lossy(&output.stderr));
        let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(done["schema_version"], 1);
        let devices = done["devices"].as_array().unwrap();
        let samples: u64 = devices.iter().map(|device| device["samples"].as_u64().unwrap()).sum();
        assert_eq!(samples % 10_000, 0, "{path:?}: {done}");
        assert!(done["efficiency"].as_f64().unwrap() > 0.85, "{path:?}: {done}");
        let text = String::from_utf8(sim(&[path.to_str().unwrap()]).stdout).unwrap();
        assert!(text.contains("shares:") && text.contains("efficiency"), "{text}");
        seen += 1;
    }
    assert!(seen >= 3, "{seen} scenarios");
    let output = sim(&["train-death.toml", "--trace", "t.json"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn people_get_a_table_and_what_the_scenario_is_about() {
    let output = sim(&["unlike.toml"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("Three unlike devices"), "{text}");
    assert!(text.contains("efficiency") && text.contains("middle"), "{text}");
    assert!(output.stderr.is_empty());
}

#[test]
fn a_device_that_hung_is_told_from_those_that_failed() {
    let output = sim(&["one-survives.toml", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let hangs: Vec<bool> = report["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["hangs"].as_u64().unwrap() > 0)
        .collect();
    assert_eq!(hangs, [false, false, false, true], "gpu-3 hangs, the others die: {report}");
    let text = String::from_utf8(sim(&["one-survives.toml"]).stdout).unwrap();
    assert!(text.contains(" hang"), "{text}");
}

#[test]
fn a_trace_is_json_with_tracks_for_each_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    assert!(sim(&["one-survives.toml", "--trace", path.to_str().unwrap()]).status.success());
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let names = events.iter().filter(|event| event["ph"] == "M");
    let devices: std::collections::HashSet<&str> =
        names.map(|event| event["args"]["lane"].as_str().unwrap()).collect();
    assert_eq!(devices.len(), 4);
    assert!(events.iter().any(|event| event["cat"] == "failure"));
}

#[test]
fn what_cannot_be_used_is_said_with_the_exit_code_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.toml");
    std::fs::write(&path, "items = 'many'").unwrap();
    let output = sim(&[path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("items"));
    std::fs::write(&path, "items = 9\n[[device]]\nid='a'\nrate=nan\n").unwrap();
    let output = sim(&[path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("`a`: `rate` is NaN; allowed is 1e-6 to 1e15"), "{said}");
    assert_eq!(sim(&["nowhere.toml"]).status.code(), Some(1));
    std::fs::write(
        &path,
        "items = 9\n[[device]]\nid='a'\nrate=1.0\n[[event]]\nat_s=2.5\ndevice='a'\nwhat='die'\n",
    )
    .unwrap();
    let output = sim(&[path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no device is left"));
}

#[test]
fn a_dash_is_standard_input() {
    use std::{io::Write, process::Stdio};

    let text = "items = 9\n[[device]]\nid='a'\nrate=1.0\n";
    let mut child = Command::new(env!("CARGO_BIN_EXE_evener"))
        .args(["sim", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("9 of 9 items"));
}

#[test]
fn the_scenario_is_not_overwritten_by_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.toml");
    std::fs::write(&path, "items = 9\n[[device]]\nid='a'\nrate=1.0\n").unwrap();
    let before = std::fs::read(&path).unwrap();
    let link = folder.path().join("link.toml");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&path, &link).unwrap();
    #[cfg(not(unix))]
    std::fs::write(&link, "").unwrap();
    for trace in [&path, &link, &folder.path().join("./scenario.toml")] {
        let output = sim(&[path.to_str().unwrap(), "--trace", trace.to_str().unwrap()]);
        if cfg!(unix) || trace == &path {
            assert_eq!(output.status.code(), Some(2), "{trace:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("is an input"), "{trace:?}");
        }
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn real_time_takes_the_time_of_the_run_divided_by_the_speed() {
    let start = std::time::Instant::now();
    let output = sim(&["unlike.toml", "--json", "--real-time", "20"]);
    let took = start.elapsed().as_secs_f64();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let played: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let wall_s = played["wall_s"].as_f64().unwrap();
    assert!(took >= wall_s / 20.0 - 0.01, "{took} s for {wall_s} s");
    let at_once: serde_json::Value = serde_json::from_slice(&sim(&["unlike.toml", "--json"]).stdout).unwrap();
    assert_eq!(played, at_once, "the run is the same");
    for speed in ["0", "-1", "nan", "1e7", "fast"] {
        let argument = format!("--real-time={speed}");
        assert_eq!(sim(&["unlike.toml", &argument]).status.code(), Some(2), "{speed}");
    }
}

#[test]
fn a_scenario_can_be_seen_as_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    let output = sim(&["one-survives.toml", "--json", "--report", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let html = std::fs::read_to_string(&path).unwrap();
    let efficiency = format!("{:.3}", report["efficiency"].as_f64().unwrap());
    for part in ["one-survives.toml (simulated)", &efficiency, ">gpu-3<", "--report", "</html>"] {
        assert!(html.contains(part), "{part}: {html}");
    }
}
