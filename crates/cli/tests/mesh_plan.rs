//! `evener mesh plan`, as its users run it.

#![allow(clippy::unwrap_used)]

mod common;

use std::{collections::HashSet, process::Output};

use common::{evener, stderr, stdout};
use serde_json::Value;

/// The command, among the shipped files.
fn plan(arguments: &[&str]) -> Output {
    let meshes = concat!(env!("CARGO_MANIFEST_DIR"), "/../../meshes");
    evener().args(["mesh", "plan"]).args(arguments).current_dir(meshes).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = plan(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_shipped_mesh_can_be_planned() {
    let mut seen = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../meshes")).unwrap() {
        let path = entry.unwrap().path();
        let path = path.to_str().unwrap();
        let plan = json(&[path]);
        let (ranks, groups) = (plan["ranks"].as_array().unwrap(), plan["groups"].as_array().unwrap());
        let names: HashSet<&str> = groups.iter().map(|group| group["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), groups.len(), "{path}");
        for axis in ["dp", "pp", "tp"] {
            let mut members: Vec<u64> = groups
                .iter()
                .filter(|group| group["axis"] == axis)
                .flat_map(|group| group["ranks"].as_array().unwrap())
                .map(|rank| rank.as_u64().unwrap())
                .collect();
            members.sort_unstable();
            assert_eq!(members, (0..ranks.len() as u64).collect::<Vec<_>>(), "{path}: {axis}");
        }
        assert_eq!(plan["schema_version"], 1);
        assert!(plan["about"].as_str().is_some_and(|about| !about.is_empty()), "{path}");
        let prediction = &plan["prediction"];
        for key in ["balance", "efficiency"] {
            let value = prediction[key].as_f64().unwrap();
            assert!(value > 0.0 && value <= 1.0 + 1e-9, "{path}: {key} {value}");
        }
        assert_eq!(prediction["times_are_seconds"], true, "{path}");
        seen += 1;
    }
    assert!(seen >= 3, "{seen} meshes");
}

#[test]
fn a_placed_layout_is_better_than_the_listed_one() {
    let sizes = ["mixed-cards.toml", "--tp", "2", "--pp", "2", "--dp", "2"];
    let (placed, listed) = (json(&sizes), json(&[&sizes[..], &["--as-listed"]].concat()));
    let step = |plan: &Value| plan["prediction"]["step_s"].as_f64().unwrap();
    assert!(step(&placed) < 0.8 * step(&listed), "{} {}", step(&placed), step(&listed));
    assert_eq!(placed["prediction"]["search"], "exhaustive");
    assert_eq!(listed["prediction"]["search"], "as-listed");
    assert_eq!(listed["ranks"][1]["id"], "fast-a-0");
    for group in placed["groups"].as_array().unwrap().iter().filter(|group| group["axis"] == "tp") {
        let ranks = group["ranks"].as_array().unwrap();
        let rate = |index: usize| &placed["ranks"][ranks[index].as_u64().unwrap() as usize]["rate_per_s"];
        assert_eq!(rate(0), rate(1), "{group}");
    }
}

#[test]
fn people_get_the_layout_its_groups_and_its_balance() {
    let output = plan(&["mixed-cards.toml", "--tp", "2", "--pp", "2", "--dp", "2"]);
    let text = stdout(&output);
    assert!(text.starts_with("One machine with four fast cards"), "{text}");
    for part in [
        "8 devices as dp 2 × pp 2 × tp 2",
        "\nworld       0 1 2 3 4 5 6 7\n",
        "\ntp_dp0_pp1  2 3\n",
        "\npp_dp0_tp1  1 3\n",
        "\ndp_pp0_tp1  1 5\n",
        "predicted: balance 0.9",
        "a step of 32 micro-batches takes",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(stderr(&output), "");
}

#[test]
fn devices_of_this_machine_are_planned_for() {
    let plan = json(&["--devices", "cpu", "--layers", "4"]);
    assert_eq!(plan["ranks"][0]["id"], "cpu");
    assert_eq!(plan["prediction"]["stages"][0]["layers"]["end"], 4);
    assert_eq!(plan["prediction"]["times_are_seconds"], false);
    assert_eq!(plan["statistics"]["totals"]["devices"], 1);
}

#[test]
fn scores_count_where_nothing_was_measured_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let output = evener()
        .args(["mesh", "plan", "--devices", "cpu"])
        .env("EVENER_CACHE_DIR", folder.path())
        .output()
        .unwrap();
    assert!(
        stdout(&output).contains("compared by score, because not all devices are measured"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn layers_can_be_said_on_the_command_line() {
    let layers = |arguments: &[&str]| {
        let plan = json(&[&["mixed-cards.toml", "--tp", "4", "--pp", "2"], arguments].concat());
        let stages = plan["prediction"]["stages"].as_array().unwrap().clone();
        stages.iter().map(|stage| stage["layers"]["end"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let even = layers(&["--layers", "8"]);
    assert!(even == [2, 8] || even == [6, 8], "a stage of fast cards has three times as many: {even:?}");
    assert_eq!(layers(&["--costs", "9e9,1e9x9"])[1], 10);
    let crowded = layers(&["--layers", "12", "--layer-memory", "11GiB"]);
    assert!(
        crowded == [4, 12] || crowded == [8, 12],
        "fast cards have room for eight, not for nine: {crowded:?}"
    );
}

#[test]
fn any_axes_have_groups() {
    let plan = json(&["mixed-cards.toml", "--axes", "dp=2,ep=4"]);
    assert!(plan["prediction"].is_null());
    let names: Vec<&str> =
        plan["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["world", "dp_ep0", "dp_ep1", "dp_ep2", "dp_ep3", "ep_dp0", "ep_dp1"]);
}

#[test]
fn what_cannot_be_is_said_with_what_would_fit() {
    let refused = |arguments: &[&str], part: &str| {
        let output = plan(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
    };
    refused(&["mixed-cards.toml", "--tp", "3"], "ranks 3 to 7 would be left over");
    refused(&["mixed-cards.toml", "--tp", "2", "--pp", "2", "--dp", "3"], "dp 2 would fit");
    refused(&["mixed-cards.toml", "--tp", "0"], "1, 2, 4 or 8 would divide");
    refused(&["mixed-cards.toml", "--axes", "dp=2,dp=4"], "two axes are called `dp`");
    refused(&["mixed-cards.toml", "--pp", "8", "--layers", "3"], "3 stages or fewer would fit");
    refused(&["mixed-cards.toml", "--layer-memory", "90GB"], "do not fit the memory");
    refused(&["mixed-cards.toml", "--devices", "cpu"], "leave one out");
    refused(&["--devices", "nonsense"], "no device for `nonsense`");
    refused(&["--axes", "dp=2", "--tp", "2"], "cannot be used with");
    assert_eq!(plan(&["nowhere.toml"]).status.code(), Some(1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.toml");
    std::fs::write(&path, "[[device]]\nid = 'a'\nspeed = 3").unwrap();
    refused(&[path.to_str().unwrap()], "speed");
}

#[test]
fn help_shows_examples() {
    let output = plan(&["--help"]);
    for text in ["Examples:", "evener mesh plan"] {
        assert!(stdout(&output).contains(text), "{}", stdout(&output));
    }
}
