//! `evener report`, as users run it.

#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs,
    io::Write,
    process::{Output, Stdio},
};

use common::{evener, stderr, stdout};
use serde_json::Value;
use tempfile::TempDir;

/// The trace of a simulated run in which a fast device slows down at half-time.
fn trace(folder: &TempDir, strategy: &str) -> String {
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/unlike.toml");
    let path = folder.path().join(format!("{strategy}.json"));
    let path = path.to_str().unwrap().to_owned();
    let output =
        evener().args(["sim", scenario, "-q", "--strategy", strategy, "--trace", &path]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    path
}

fn report(arguments: &[&str]) -> Output {
    evener().arg("report").args(arguments).output().unwrap()
}

#[test]
fn a_good_run_needs_no_change_and_a_bad_one_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let output = report(&[&trace(&folder, "adaptive")]);
    let text = stdout(&output);
    for part in ["Where the time of all lanes went:", "computing results that were used", "What to change:"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("at the end for other devices"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");

    let output = report(&[&trace(&folder, "equal")]);
    let text = stdout(&output);
    assert!(text.contains("at the end for other devices") && text.contains("--strategy adaptive"), "{text}");
    assert!(text.contains("TAIL"), "{text}");
    // Every column of times that is shown is explained, and no other.
    let headings = text.lines().find(|line| line.starts_with("DEVICE")).unwrap();
    for column in ["BUSY", "COPY", "WASTED", "START", "GAPS", "TAIL"] {
        let is_explained = text.lines().any(|line| line.starts_with(&format!("  {column} ")));
        assert_eq!(is_explained, headings.contains(column), "{column}: {text}");
    }
    assert_eq!(stderr(&output), "");
}

/// At the end of this run, idle devices run speculative copies of a straggler's items, and both deliver some of them.
#[test]
fn each_item_is_counted_once_and_items_that_were_computed_twice_by_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json").to_str().unwrap().to_owned();
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/thousand.toml");
    let simulated = evener().args(["sim", scenario, "--json", "--trace", &path]).output().unwrap();
    let json: Value = serde_json::from_slice(&report(&[&path, "--json"]).stdout).unwrap();
    let simulated: Value = serde_json::from_slice(&simulated.stdout).unwrap();
    assert_eq!(json["items"], simulated["items"]);
    let sum = |key: &str| {
        json["devices"].as_array().unwrap().iter().map(|it| it[key].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(json["items"], sum("items"));
    let duplicates = json["duplicates"].as_u64().unwrap();
    assert!(duplicates > 1, "{json}");
    assert_eq!(duplicates, sum("duplicates"));
    let text = report(&[&path]);
    let line = format!("{duplicates} items were computed twice by speculative copies");
    assert!(stdout(&text).replace(',', "").lines().any(|it| it == line), "{line}: {}", stdout(&text));
}

#[test]
fn programs_get_the_same_as_people() {
    let folder = tempfile::tempdir().unwrap();
    let path = trace(&folder, "equal");
    let output = report(&[&path, "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema_version"], 1);
    for key in ["trace", "wall_s", "items", "chunks", "lanes"] {
        assert!(!json[key].is_null(), "{key}");
    }
    for key in ["busy", "copy", "wasted", "start", "gaps", "tail"] {
        assert!(json["total"][key].is_number() && json["devices"][0][key].is_number(), "{key}");
    }
    let text = report(&[&path]);
    for finding in json["findings"].as_array().unwrap() {
        for key in ["cause", "advice"] {
            assert!(stdout(&text).contains(finding[key].as_str().unwrap()), "{finding}");
        }
    }
    let quiet = report(&[&path, "-q"]);
    assert!(stdout(&quiet).trim().parse::<f64>().is_ok_and(|busy| (0.0..1.0).contains(&busy)));
}

#[test]
fn traces_come_from_real_runs_and_through_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let path = path.to_str().unwrap();
    let built =
        evener().args(["merkle", "--leaves", "100000", "-q", "--devices", "cpu", "--trace", path]).output();
    assert!(built.unwrap().status.success());
    let from_file = report(&[path]);
    assert!(from_file.status.success(), "{}", stderr(&from_file));
    assert!(stdout(&from_file).contains("\ncpu "), "{}", stdout(&from_file));
    let mut child =
        evener().args(["report", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(path).unwrap()).unwrap();
    let piped = child.wait_with_output().unwrap();
    let rest = |output: &Output| stdout(output).split_once(':').unwrap().1.to_owned();
    assert_eq!(rest(&piped), rest(&from_file));
}

#[test]
fn the_lanes_of_a_run_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let (path, picture) = (trace(&folder, "adaptive"), folder.path().join("lanes.svg"));
    let output = report(&[&path, "--svg", picture.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("class=\"work\""), "{svg}");
    let json: Value = serde_json::from_slice(&report(&[&path, "--json"]).stdout).unwrap();
    for device in json["devices"].as_array().unwrap() {
        assert!(svg.contains(&format!(">{}<", device["id"].as_str().unwrap())), "{svg}");
    }
    let page = folder.path().join("report.html");
    let output = report(&[&path, "--html", page.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("Efficiency (guaranteed"), "{html}");
    assert_eq!(report(&[&path, "--svg", &path]).status.code(), Some(2), "the trace would be lost");
    assert!(fs::read_to_string(&path).unwrap().contains("traceEvents"));
}

#[test]
fn other_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    for text in ["", "items = 9", "{\"a\": \"\u{1b}[31m\"}"] {
        fs::write(&path, text).unwrap();
        let output = report(&[path.to_str().unwrap()]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""), "{text}");
        assert!(stderr(&output).contains("other: is not a trace"), "{}", stderr(&output));
        assert!(!stderr(&output).contains('\u{1b}'));
    }
    assert!(stderr(&report(&["nowhere"])).contains("nowhere: cannot be read"));
}
