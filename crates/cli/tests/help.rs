//! Completions, the manual, help topics, colors and verbosity.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Output;

const COMMANDS: [&str; 12] = [
    "bench", "demo", "devices", "explain", "merkle", "mesh", "prove", "report", "serve", "sim", "top",
    "verify",
];

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
    for part in [".TH evener 1", ".SH \"EXIT STATUS\"", ".SH \"ENVIRONMENT\"", "EVENER_DEVICES"] {
        assert!(stdout(&page).contains(part), "{part}: {}", stdout(&page));
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(run(&["man", "--folder", folder.path().to_str().unwrap()]).status.success());
    for name in COMMANDS.map(|command| format!("evener-{command}.1")) {
        let page = std::fs::read_to_string(folder.path().join(&name)).unwrap();
        assert!(page.contains("SEE ALSO"), "{name}");
    }
    for name in ["evener-merkle-verify.1", "evener-bench-zk.1"] {
        assert!(folder.path().join(name).exists(), "{name}");
    }
    assert!(!folder.path().join("evener-exit-codes.1").exists(), "topics are sections of evener.1");
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
    assert!(told.contains("run started") && told.contains("run ended"), "{told}");
    assert!(!told.contains('\u{1b}'), "no colours where there is no terminal");
    assert!(said(&["-vvv"]).1.contains("chunk started"));
}

#[test]
fn quiet_is_the_result_alone() {
    let output = run(&["-q", "merkle", "--leaves", "100000"]);
    assert_eq!(stdout(&output).trim().len(), 64);
    let output = run(&["sim", "scenarios/unlike.toml", "-q"]);
    assert!(stdout(&output).trim().parse::<f64>().is_ok_and(|efficiency| efficiency > 0.9));
    let output = run(&["devices", "-q", "--devices", "cpu"]);
    assert_eq!((stdout(&output), common::stderr(&output)), ("cpu\n", ""));
    let sizes = ["--tp", "2", "--pp", "2"];
    let output = run(&[&["mesh", "plan", "meshes/mixed-cards.toml", "-q"], &sizes[..]].concat());
    assert_eq!(stdout(&output), "dp=2,pp=2,tp=2\n");
    let output = run(&["mesh", "bench", "-q", "--ranks", "2", "--sizes", "1KiB..2KiB"]);
    let bytes: Vec<&str> = stdout(&output).lines().filter_map(|line| Some(line.split_once(' ')?.0)).collect();
    assert_eq!(bytes, ["1024", "2048"], "{}", stdout(&output));
}

#[test]
fn the_help_of_a_command_says_what_quiet_prints() {
    for arguments in [
        &["bench", "zk"][..],
        &["demo"],
        &["devices"],
        &["hosts", "check"],
        &["hosts", "install"],
        &["merkle"],
        &["mesh", "plan"],
        &["mesh", "bench"],
        &["prove"],
        &["report"],
        &["serve"],
        &["sim"],
        &["top"],
        &["verify"],
    ] {
        let output = run(&[&["help"], arguments].concat());
        assert!(stdout(&output).contains("With -q, prints"), "{arguments:?}: {}", stdout(&output));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_is_an_error() {
    for arguments in [&["--help"][..], &["--version"], &["help", "devices"], &["devices", "-h"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = common::evener().args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            common::stderr(&output).contains("No space left"),
            "{arguments:?}: {}",
            common::stderr(&output)
        );
    }
}

#[test]
fn the_score_table_in_the_help_is_one_that_the_command_reads() {
    let help = run(&["help", "devices"]);
    let text = stdout(&help);
    let from = text.find("{ \"weights\"").unwrap();
    let until = from + text[from..].find("} }").unwrap() + 3;
    let table: serde_json::Value = serde_json::from_str(&text[from..until]).unwrap();
    let keys: Vec<&String> = table["size"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["max", "per_gib", "units_per_point"], "the names of today");
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
    assert!(few.contains("(cpu, ") && !few.contains("cpu through cpu"), "{few}");
    let one = said(&["merkle", "-v", "--leaves", "1", "--leaf-size", "1", "--devices", "cpu"]);
    assert!(one.contains("1 leaf of 1 byte, 1 byte\n"), "{one}");
    for arguments in
        [&["devices", "-v"][..], &["mesh", "plan", "-v"], &["sim", "-v", "scenarios/unlike.toml"]]
    {
        assert!(said(arguments).contains("INFO"), "{arguments:?}");
    }
}

#[test]
fn exit_codes_and_environment_variables_are_topics() {
    for (arguments, parts) in [
        (["help", "exit-codes"], ["Exit codes:", "\n  3  A proof is invalid"]),
        (["help", "environment"], ["Environment variables:", "\n  EVENER_CACHE_DIR\n"]),
    ] {
        let output = run(&arguments);
        for part in parts {
            assert!(stdout(&output).contains(part), "{part}: {}", stdout(&output));
        }
        assert!(!stdout(&output).contains("Usage:"), "{}", stdout(&output));
        assert!(stdout(&output).lines().all(|line| line.chars().count() <= 80), "{}", stdout(&output));
        let same = run(&arguments[1..]);
        assert_eq!(stdout(&same).trim(), stdout(&output).trim());
    }
    let help = run(&["--help"]);
    assert!(
        stdout(&help).contains("evener help exit-codes") && stdout(&help).contains("evener help environment")
    );
}

/// The names of variables in strings of the library crates and of the command, except those of tests and benchmarks.
fn variables(folder: &std::path::Path, found: &mut std::collections::BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "test" && name != "fake_driver" {
            variables(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs")
            && !["test.rs", "fuzz.rs", "live.rs"].contains(&name)
        {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let names = code.split('"').filter(|it| it.strip_prefix("EVENER_").is_some());
            let is_name = |it: &&str| it.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
            found.extend(names.filter(is_name).map(str::to_owned));
        }
    }
}

#[test]
fn every_environment_variable_of_the_sources_is_listed() {
    let mut found = std::collections::BTreeSet::new();
    for name in ["device", "schedule", "mesh", "merkle", "zk", "cluster", "cli"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        variables(&folder, &mut found);
    }
    assert!(found.contains("EVENER_DEVICES") && found.len() >= 6, "{found:?}");
    let output = run(&["help", "environment"]);
    for name in found {
        assert!(stdout(&output).contains(&format!("  {name}\n")), "{name}: {}", stdout(&output));
    }
}

#[test]
fn help_texts_begin_with_a_verb_and_fit_80_columns() {
    let help = |command: &[&str]| run(&[command, &["--help"]].concat());
    let root = help(&[]);
    let verbs = [
        "Build", "List", "Compute", "Plan", "Explain", "Simulate", "Print", "Arrange", "Measure", "Create",
        "Verify", "Prove", "Check", "Copy", "Serve",
    ];
    for command in [
        &["bench"][..],
        &["bench", "zk"],
        &["demo"],
        &["devices"],
        &["hosts"],
        &["hosts", "check"],
        &["hosts", "install"],
        &["merkle"],
        &["merkle", "prove"],
        &["merkle", "verify"],
        &["mesh"],
        &["mesh", "bench"],
        &["mesh", "plan"],
        &["prove"],
        &["report"],
        &["serve"],
        &["sim"],
        &["verify"],
        &["completions"],
        &["man"],
    ] {
        let output = help(command);
        let first = stdout(&output).split_whitespace().next().unwrap();
        assert!(verbs.contains(&first), "{command:?}: {first}");
        let long = stdout(&output).lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{command:?}");
        // Exit codes are listed once, in their topic.
        assert!(
            stdout(&output).ends_with("  evener help exit-codes, evener help environment\n"),
            "{command:?}"
        );
        assert!(!stdout(&output).contains("exit code "), "{command:?}");
        if let [name] = command {
            let line = stdout(&root).lines().find(|line| line.starts_with(&format!("  {name} "))).unwrap();
            assert!(verbs.contains(&line.split_whitespace().nth(1).unwrap()), "{line}");
        }
    }
    assert_eq!(stdout(&root).lines().find(|line| line.chars().count() > 80), None);
}

#[test]
fn possible_values_are_listed() {
    for (command, values) in [
        (
            &["merkle", "--help"][..],
            &["sha256", "keccak256", "blake3", "rfc6962", "bitcoin", "rs-merkle", "short", "pad"][..],
        ),
        (&["sim", "--help"], &["equal", "proportional", "dynamic", "adaptive"]),
        (&["mesh", "bench", "--help"], &["all_reduce", "all_to_all", "barrier", "sum", "average"]),
        (&["demo", "--help"], &["auto", "always", "never"]),
        (&["bench", "zk", "--help"], &["field", "msm", "ntt", "groth16", "start", "cpu", "wgpu", "cuda"]),
    ] {
        let output = run(command);
        let text = stdout(&output);
        for value in values {
            let is_listed = [",", "]", ":", "\n"].iter().any(|end| text.contains(&format!(" {value}{end}")));
            assert!(is_listed, "{command:?}: {value}: {text}");
        }
    }
    let output = run(&["merkle", "--leaves", "9", "--hash", "md5"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        common::stderr(&output).contains("[possible values: sha256, keccak256, blake3]"),
        "{}",
        common::stderr(&output)
    );
}

#[test]
fn colors_follow_the_option_and_the_variables() {
    let is_colored = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = common::evener();
        command
            .args(arguments)
            .env_remove("NO_COLOR")
            .env_remove("CLICOLOR_FORCE")
            .envs(variables.iter().copied());
        let output = command.output().unwrap();
        common::stdout(&output).contains('\u{1b}') || common::stderr(&output).contains('\u{1b}')
    };
    let devices = ["devices", "--devices", "cpu"];
    let with = |choice: &'static str| [&devices[..], &["--color", choice]].concat();
    assert!(!is_colored(&devices, &[]) && !is_colored(&with("auto"), &[]), "a pipe is no terminal");
    assert!(is_colored(&with("always"), &[]) && is_colored(&with("always"), &[("NO_COLOR", "1")]));
    assert!(is_colored(&devices, &[("CLICOLOR_FORCE", "1")]));
    assert!(!is_colored(&devices, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    assert!(!is_colored(&with("never"), &[("CLICOLOR_FORCE", "1")]));
    // The log, and the messages of the command line.
    assert!(is_colored(&["-v", "devices", "--devices", "cpu", "--json", "--color=always"], &[]));
    assert!(is_colored(&["--color", "always", "--help"], &[]) && !is_colored(&["--help"], &[]));
    assert!(is_colored(&["--color=always", "devices", "--nonsense"], &[]));
    assert!(!is_colored(&["--color=never", "devices", "--nonsense"], &[("CLICOLOR_FORCE", "1")]));
    assert_eq!(run(&["--color", "sometimes", "devices"]).status.code(), Some(2));
}
