//! Output to the terminal and to files.

#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use common::{stderr, stdout};
use tempfile::TempDir;

fn evener(folder: &TempDir, arguments: &[&str]) -> Output {
    common::evener().current_dir(folder.path()).args(arguments).output().unwrap()
}

/// A root on standard output.
fn root(output: &Output) -> Option<&str> {
    stdout(output).split_whitespace().find(|word| word.len() == 64)
}

/// Titles, colours, a bell, a control sequence of one byte more than ASCII has, and text that runs backwards.
const NASTY: [char; 7] = ['\u{1b}', '\u{7}', '\r', '\u{7f}', '\u{9b}', '\u{202e}', '\u{2066}'];

/// Fails where a terminal would act on what was written.
fn assert_plain(output: &Output, about: &str) {
    for (name, text) in [("standard output", stdout(output)), ("standard error", stderr(output))] {
        let acted_on = text.chars().find(|char| NASTY.contains(char));
        assert_eq!(acted_on, None, "{about}: {name}: {text:?}");
    }
}

#[test]
fn escape_sequences_in_a_proof_are_shown_and_not_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    assert!(evener(&folder, &["merkle", "--leaves", "9", "--prove", "7", "--out", "proof"]).status.success());
    let proof = fs::read_to_string(folder.path().join("proof")).unwrap();
    let title = "\\u001b]0;owned\\u0007\\u009b31m\\u202eback\\nerror: none";
    fs::write(folder.path().join("forged"), proof.replace("sha256", title)).unwrap();
    let output = evener(&folder, &["merkle", "verify", "forged"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_plain(&output, "a proof's hash");
    assert!(
        stderr(&output).contains(r"\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}back\nerror: none"),
        "{}",
        stderr(&output)
    );
}

#[cfg(unix)]
#[test]
fn escape_sequences_in_names_of_files_are_shown_and_not_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let name = "a\u{1b}[31mb\u{202e}c";
    fs::write(folder.path().join(name), "one\ntwo\n").unwrap();
    for arguments in [
        &["merkle", name, "--leaf-size", "3"][..],
        &["merkle", "--lines", name, "--tree", "tree\u{1b}[0m"],
        &["merkle", "--lines", name, "--tree", "nowhere\u{1b}[0m/tree"],
        &["merkle", "verify", name],
        &["sim", name],
        &["merkle", "-\u{1b}[31m"],
        &["merkle", "-v", name, "--leaf-size", "8"],
    ] {
        assert_plain(&evener(&folder, arguments), &format!("{arguments:?}"));
    }
    // Colours are the command's own, where they are asked for.
    let mut command = common::evener();
    command.args(["merkle", "--\u{1b}]0;owned\u{7}"]).env("CLICOLOR_FORCE", "1");
    let output = command.output().unwrap();
    assert!(
        !stderr(&output).contains("\u{1b}]") && !stderr(&output).contains('\u{7}'),
        "{:?}",
        stderr(&output)
    );
    // For programs the name is whole, and still no terminal acts on it.
    let proof = evener(&folder, &["merkle", "--lines", name, "--prove", "1"]);
    let other = "b\u{9b}\u{202e}";
    fs::write(folder.path().join(other), &proof.stdout).unwrap();
    let output = evener(&folder, &["merkle", "verify", other, "--json"]);
    assert_plain(&output, "verify --json");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["proofs"][0]["file"], other);
}

#[test]
fn escape_sequences_in_names_of_devices_are_shown_and_not_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let devices = "about = \"\\u001b[2J\\u202e\"\n[[device]]\nid = \"a\\u001b[31m\"\nmemory_bytes = 12_000_000_000\n\
                   compute_units = 30\nrate_per_s = 6e12\nhost_bytes_per_s = 12e9\n";
    fs::write(folder.path().join("mesh.toml"), devices).unwrap();
    let scenario = "about = \"\\u001b[2J\"\nitems = 10\n[[device]]\nid = \"a\\u202e\"\nrate = 10.0\n";
    fs::write(folder.path().join("sim.toml"), scenario).unwrap();
    for arguments in [
        &["mesh", "plan", "mesh.toml"][..],
        &["mesh", "plan", "mesh.toml", "--json"],
        &["sim", "sim.toml"],
        &["sim", "sim.toml", "--json"],
    ] {
        let output = evener(&folder, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        assert_plain(&output, &format!("{arguments:?}"));
    }
}

#[cfg(unix)]
#[test]
fn new_files_follow_the_umask_and_others_keep_their_mode() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let outputs = ["proof", "tree", "trace"];
    let build = |umask: &str| {
        let script = format!(
            "umask {umask}; exec \"$0\" merkle --leaves 100000 -q --prove 7 --out proof --tree tree --trace trace"
        );
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_evener")).current_dir(folder.path());
        command.env_remove("EVENER_DEVICES").env("EVENER_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    };
    let mode = |name: &str| folder.path().join(name).metadata().unwrap().permissions().mode() & 0o7777;
    for (umask, expected) in [("022", 0o644), ("027", 0o640), ("077", 0o600)] {
        outputs.iter().for_each(|name| drop(fs::remove_file(folder.path().join(name))));
        build(umask);
        outputs.iter().for_each(|name| assert_eq!(mode(name), expected, "{name}, umask {umask}"));
    }
    for kept in [0o644, 0o664, 0o600] {
        for name in outputs {
            fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(kept)).unwrap();
        }
        build("077");
        outputs.iter().for_each(|name| assert_eq!(mode(name), kept, "{name}"));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), outputs.len(), "nothing is left beside them");
}

/// Leaves that never come: a command that does not look at its outputs first waits for them.
#[cfg(unix)]
#[test]
fn outputs_that_cannot_be_written_are_refused_before_any_leaf_is_read() {
    use std::process::Stdio;

    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/unlike.toml");
    for (path, why) in [("folder", "directory"), ("nowhere/file", "no folder"), ("file/below", "no folder")] {
        for option in ["--out", "--tree", "--trace"] {
            let mut command = common::evener();
            command.current_dir(folder.path()).args(["merkle", "--stdin", "--prove", "0", option, path]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let leaves = child.stdin.take();
            let begin = std::time::Instant::now();
            while child.try_wait().unwrap().is_none() {
                if begin.elapsed().as_secs() > 20 {
                    child.kill().unwrap();
                    panic!("{option} {path:?}: leaves are waited for");
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            drop(leaves);
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{option} {path:?}: {}", stderr(&output));
            assert!(stderr(&output).contains(why), "{option} {path:?}: {}", stderr(&output));
        }
        let output = evener(&folder, &["sim", scenario, "--trace", path]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""), "{}", stderr(&output));
    }
    let same =
        evener(&folder, &["merkle", "--leaves", "9", "--prove", "0", "--out", "same", "--tree", "./same"]);
    assert_eq!(same.status.code(), Some(2), "{}", stderr(&same));
    assert!(stderr(&same).contains("same"), "{}", stderr(&same));
}

#[cfg(target_os = "linux")]
#[test]
fn the_root_is_told_though_files_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let expected = evener(&folder, &["merkle", "--leaves", "5000"]);
    let expected = root(&expected).unwrap();
    for option in ["--tree", "--trace", "--out"] {
        for quiet in [&[][..], &["-q"], &["--json"]] {
            let arguments =
                [&["merkle", "--leaves", "5000", "--prove", "3", option, "/dev/full"], quiet].concat();
            let output = evener(&folder, &arguments);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            assert!(
                stderr(&output).contains("/dev/full: cannot be written"),
                "{arguments:?}: {}",
                stderr(&output)
            );
            // Proofs have standard output for themselves; the root is in them.
            assert!(stdout(&output).contains(expected), "{arguments:?}: {}", stdout(&output));
        }
    }
    // What can be written is, whatever becomes of the others; and each of these is told.
    let output = evener(
        &folder,
        &[
            "merkle",
            "--leaves",
            "5000",
            "--tree",
            "/dev/full",
            "--trace",
            "/dev/full",
            "--prove",
            "3",
            "--out",
            "proof",
        ],
    );
    assert_eq!(stderr(&output).matches("/dev/full: cannot be written").count(), 2, "{}", stderr(&output));
    assert!(!stdout(&output).contains("tree     "), "{}", stdout(&output));
    assert!(evener(&folder, &["merkle", "verify", "proof", "--root", expected]).status.success());
    assert!(!Path::new("/dev/full").metadata().unwrap().is_file());
}

#[test]
fn an_output_never_overwrites_an_input() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("leaves"), [7; 64]).unwrap();
    for option in ["--tree", "--trace", "--out"] {
        let output = evener(&folder, &["merkle", "leaves", "--prove", "0", option, "./leaves"]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{option}");
        assert!(stderr(&output).contains("is an input"), "{option}: {}", stderr(&output));
    }
    assert_eq!(fs::read(folder.path().join("leaves")).unwrap(), [7; 64]);
    assert!(evener(&folder, &["merkle", "leaves", "--tree", "tree"]).status.success());
    let tree = fs::read(folder.path().join("tree")).unwrap();
    let output = evener(&folder, &["merkle", "prove", "tree", "0", "--out", "tree"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert_eq!(fs::read(folder.path().join("tree")).unwrap(), tree);
}
