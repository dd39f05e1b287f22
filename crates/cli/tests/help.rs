//! What helps to use the command: completions, the manual, and how much is said.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Output;

const COMMANDS: [&str; 5] = ["demo", "devices", "merkle", "mesh", "sim"];

fn run(arguments: &[&str]) -> Output {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    common::evener().args(arguments).current_dir(root).output().unwrap()
}

/// What it said, having succeeded.
fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{}", common::stderr(output));
    common::stdout(output)
}

#[test]
fn every_shell_is_offered_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        for command in COMMANDS {
            assert!(stdout(&output).contains(command), "{shell}: {command}");
        }
    }
    assert_eq!(run(&["completions", "cobol"]).status.code(), Some(2));
}

#[test]
fn the_manual_has_a_page_for_every_command() {
    let page = run(&["man"]);
    assert!(stdout(&page).contains(".TH evener 1"), "{}", stdout(&page));
    let folder = tempfile::tempdir().unwrap();
    assert!(run(&["man", "--folder", folder.path().to_str().unwrap()]).status.success());
    for name in COMMANDS.map(|command| format!("evener-{command}.1")) {
        let page = std::fs::read_to_string(folder.path().join(&name)).unwrap();
        assert!(page.contains("Exit codes:"), "{name}");
    }
    assert!(folder.path().join("evener-merkle-verify.1").exists());
}

#[test]
fn what_happens_is_said_on_standard_error_where_asked() {
    let said = |arguments: &[&str]| {
        let output = run(&[&["merkle", "--leaves", "100000", "--devices", "cpu"], arguments].concat());
        let root = stdout(&output).split_whitespace().find(|word| word.len() == 64).unwrap().to_owned();
        (root, String::from_utf8(output.stderr).unwrap())
    };
    let (root, plain) = said(&[]);
    assert_eq!(plain, "");
    let (again, told) = said(&["-vv"]);
    assert_eq!(root, again);
    assert!(told.contains("a run begins") && told.contains("a run has ended"), "{told}");
    assert!(!told.contains('\u{1b}'), "no colours where there is no terminal");
    assert!(said(&["-vvv"]).1.contains("a chunk begins"));
}

#[test]
fn quiet_is_the_result_alone() {
    let output = run(&["-q", "merkle", "--leaves", "100000"]);
    assert_eq!(stdout(&output).trim().len(), 64);
    let output = run(&["sim", "scenarios/unlike.toml", "-q"]);
    assert!(stdout(&output).trim().parse::<f64>().is_ok_and(|efficiency| efficiency > 0.9));
}

#[test]
fn one_v_tells_which_devices_there_are_and_what_became_of_them() {
    let said = |arguments: &[&str]| {
        let output = run(arguments);
        assert!(output.status.success(), "{}", common::stderr(&output));
        String::from_utf8(output.stderr).unwrap()
    };
    let told = said(&["merkle", "-v", "--leaves", "100000", "--devices", "cpu", "--strategy", "dynamic"]);
    for part in
        ["INFO", "cpu", "compute units", "strategy dynamic", "100,000 leaves of 32 bytes", "3,200,000 bytes"]
    {
        assert!(told.contains(part), "no `{part}` in {told}");
    }
    // Those that are not used are told with the reason.
    let few = said(&["merkle", "-v", "--leaves", "3", "--devices", "cpu"]);
    assert!(few.contains("cpu: not used: too few leaves"), "{few}");
    for arguments in
        [&["devices", "-v"][..], &["mesh", "plan", "-v"], &["sim", "-v", "scenarios/unlike.toml"]]
    {
        assert!(said(arguments).contains("INFO"), "{arguments:?}");
    }
}
