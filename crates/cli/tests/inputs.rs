//! Sources of leaves, and how they are split into leaves.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::{
    fs,
    io::Write,
    process::{Command, Output, Stdio},
};

use common::{rfc6962, stderr, stdout};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

fn evener(folder: &TempDir, arguments: &[&str]) -> Output {
    common::evener().current_dir(folder.path()).args(arguments).output().unwrap()
}

/// The command with something on standard input, through a pipe.
fn with_stdin(folder: &TempDir, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = common::evener();
    command.current_dir(folder.path()).args(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that refuses its arguments does not read.
    child.stdin.take().unwrap().write_all(input).ok();
    child.wait_with_output().unwrap()
}

fn root_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    let word = stdout(output).split_whitespace().find(|word| word.len() == 64);
    word.unwrap_or_else(|| panic!("no root in {}", stdout(output))).to_owned()
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count as u32).map(|n| (n.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect()
}

#[test]
fn a_dash_is_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("first"), "one\n").unwrap();
    fs::write(folder.path().join("last"), "three\n").unwrap();
    let lines = |arguments: &[&str]| root_of(&with_stdin(&folder, arguments, b"two\n"));
    assert_eq!(lines(&["merkle", "--lines", "-"]), rfc6962(&[b"two"]));
    assert_eq!(lines(&["merkle", "--lines", "first", "-", "last"]), rfc6962(&[b"one", b"two", b"three"]));
    assert_eq!(lines(&["merkle", "--files", "first", "-"]), rfc6962(&[b"one\n", b"two\n"]));
    assert_eq!(lines(&["merkle", "--leaf-size", "2", "-"]), rfc6962(&[b"tw", b"o\n"]));
    // A file of that name has a longer one.
    fs::write(folder.path().join("-"), "dash\n").unwrap();
    assert_eq!(lines(&["merkle", "--lines", "./-"]), rfc6962(&[b"dash"]));
    let twice = with_stdin(&folder, &["merkle", "--lines", "-", "-"], b"two\n");
    assert_eq!(twice.status.code(), Some(2), "{}", stdout(&twice));
    let both = with_stdin(&folder, &["merkle", "verify", "-", "--leaf", "-"], b"[]");
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));
    assert!(stderr(&both).contains("name it once"), "{}", stderr(&both));

    assert!(evener(&folder, &["merkle", "--lines", "first", "last", "--tree", "tree"]).status.success());
    let proof = evener(&folder, &["merkle", "prove", "tree", "1"]);
    let verified = with_stdin(&folder, &["merkle", "verify", "-"], &proof.stdout);
    assert!(verified.status.success(), "{}", stderr(&verified));
    let again =
        with_stdin(&folder, &["merkle", "prove", "-", "1"], &fs::read(folder.path().join("tree")).unwrap());
    assert_eq!(stdout(&again), stdout(&proof), "{}", stderr(&again));
}

#[test]
fn indices_to_prove_leave_files_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("names"), "Ada\nBlaise\nCharles\n").unwrap();
    let indices = |arguments: &[&str]| -> Vec<u64> {
        let output = evener(&folder, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        let proofs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        proofs.iter().map(|proof| proof["index"].as_u64().unwrap()).collect()
    };
    assert_eq!(indices(&["merkle", "--lines", "--prove", "0", "names"]), [0]);
    assert_eq!(indices(&["merkle", "--lines", "--prove", "2,0", "names"]), [2, 0]);
    assert_eq!(indices(&["merkle", "--prove", "2", "--lines", "names", "--prove", "1"]), [2, 1]);
    // As it was written before: the way to write it now is told.
    let output = evener(&folder, &["merkle", "--lines", "names", "--prove", "0", "2"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--prove 0,2"), "{}", stderr(&output));
}

#[cfg(target_os = "linux")]
#[test]
fn a_tree_comes_through_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    assert!(evener(&folder, &["merkle", "--leaves", "5000", "--tree", "tree"]).status.success());
    let tree = fs::read(folder.path().join("tree")).unwrap();
    let expected = evener(&folder, &["merkle", "prove", "tree", "4999"]);
    let output = with_stdin(&folder, &["merkle", "prove", "/dev/stdin", "4999"], &tree);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), stdout(&expected));
    let cut = with_stdin(&folder, &["merkle", "prove", "/dev/stdin", "0"], &tree[..tree.len() - 1]);
    assert_eq!(cut.status.code(), Some(1));
    assert!(stderr(&cut).contains("/dev/stdin: is cut short"), "{}", stderr(&cut));
    // Leaves, and files that the system makes as they are read and that have no size.
    let piped = with_stdin(&folder, &["merkle", "/dev/stdin", "--leaf-size", "3"], b"onetwo");
    assert_eq!(root_of(&piped), rfc6962(&[b"one", b"two"]));
    root_of(&evener(&folder, &["merkle", "--lines", "/proc/version"]));
    root_of(&evener(&folder, &["merkle", "--leaf-size", "1", "/proc/version"]));
}

#[test]
fn leaves_that_do_not_fit_in_memory_are_an_error_and_no_crash() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["merkle", "--leaves", "1", "--leaf-size", "99999999999"][..],
        &["merkle", "--leaves", "3", "--leaf-size", "999999999999999"],
        &["merkle", "--stdin", "--leaf-size", "99999999999"],
    ] {
        let output = with_stdin(&folder, arguments, b"");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        for word in ["99,999,999,999 bytes", "memory"].iter().filter(|_| !arguments.contains(&"3")) {
            assert!(stderr(&output).contains(word), "{arguments:?}: {}", stderr(&output));
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_leaf_of_a_file_needs_no_memory_of_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let size = 1u64 << 30;
    fs::File::create(folder.path().join("sparse")).unwrap().set_len(size).unwrap();
    let script = "ulimit -v 900000; exec \"$0\" merkle -q --devices cpu sparse --leaf-size 1GiB";
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_evener")).current_dir(folder.path());
    let output = command.env("EVENER_CACHE_DIR", env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    let (mut hash, zeros) = (Sha256::new().chain_update([0]), vec![0; 1 << 20]);
    (0..size >> 20).for_each(|_| hash.update(&zeros));
    let expected: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(root_of(&output), expected);
}

#[test]
fn the_last_leaf_may_be_short_or_filled_up_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    // From one leaf that is no whole one to many blocks; and two files, of which none ends with a leaf.
    for count in [5, 32 * 3 + 4, 32 * 70_000 + 31] {
        let all = bytes(count);
        fs::write(folder.path().join("odd"), &all).unwrap();
        let refused = evener(&folder, &["merkle", "odd"]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(
            stderr(&refused).contains("--last short") && stderr(&refused).contains("--last pad"),
            "{}",
            stderr(&refused)
        );
        let short: Vec<&[u8]> = all.chunks(32).collect();
        let mut filled = all.clone();
        filled.resize(count.next_multiple_of(32), 0);
        let filled: Vec<&[u8]> = filled.chunks(32).collect();
        for (last, leaves) in [("short", short), ("pad", filled)] {
            let expected = rfc6962(&leaves);
            let found = |more: &[&str]| {
                let arguments = [&["merkle", "--last", last], more].concat();
                root_of(&with_stdin(&folder, &arguments, &all))
            };
            assert_eq!(found(&["odd"]), expected, "{count} bytes, {last}");
            assert_eq!(found(&["-"]), expected, "{count} bytes, {last}, stream");
            assert_eq!(found(&["odd", "--tree", "tree"]), expected, "{count} bytes, {last}, tree");
            assert_eq!(found(&["-", "--tree", "tree"]), expected, "{count} bytes, {last}, tree of a stream");
            let twice = rfc6962(&[&leaves[..], &leaves[..]].concat());
            assert_eq!(found(&["odd", "odd"]), twice, "{count} bytes twice, {last}");
            assert_eq!(found(&["odd", "-", "--tree", "tree"]), twice, "{count} bytes twice, {last}, tree");
            let proof = found(&["odd", "--prove", &(leaves.len() - 1).to_string(), "--out", "proof"]);
            assert!(evener(&folder, &["merkle", "verify", "proof", "--root", &proof]).status.success());
        }
    }
    fs::write(folder.path().join("even"), bytes(64)).unwrap();
    let plain = root_of(&evener(&folder, &["merkle", "even"]));
    for last in ["short", "pad"] {
        assert_eq!(root_of(&evener(&folder, &["merkle", "even", "--last", last])), plain, "{last}");
    }
    for more in ["--lines", "--files"] {
        assert_eq!(evener(&folder, &["merkle", "even", "--last", "pad", more]).status.code(), Some(2));
    }
}

#[test]
fn a_stream_of_many_leaves_tells_what_devices_did() {
    let folder = tempfile::tempdir().unwrap();
    // More than is made in memory, and not a whole number of pieces; the lengths of blocks differ at the end.
    let output = evener(&folder, &["merkle", "--leaves", "34000001", "--devices", "cpu"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(!text.contains("no device"), "{text}");
    for part in ["\ncpu ", "efficiency", "an item is a block of"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let lines: String = (0..400_000).map(|number| format!("{number}\n")).collect();
    let output =
        with_stdin(&folder, &["merkle", "--lines", "-", "--json", "--devices", "cpu"], lines.as_bytes());
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["leaves"], 400_000);
    assert!(run["items"].as_u64().unwrap() > 0 && run["leaves_per_item"].is_u64(), "{run}");
    assert_eq!(run["devices"][0]["id"], "cpu", "{run}");
}

/// The most memory that the command ever had, in bytes.
#[cfg(target_os = "linux")]
fn peak_memory(folder: &TempDir, arguments: &[&str]) -> u64 {
    let mut command = common::evener();
    command.current_dir(folder.path()).args(arguments).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB")?.trim().parse().ok());
        most = most.max(line.unwrap_or(0u64) << 10);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().success());
    most
}

#[cfg(target_os = "linux")]
#[test]
fn memory_for_lines_does_not_grow_with_their_number() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("empty"), vec![b'\n'; 24 << 20]).unwrap();
    let most = peak_memory(&folder, &["merkle", "--lines", "empty", "-q", "--devices", "cpu"]);
    assert!(most < 400 << 20, "{} MiB for 24 MiB of lines", most >> 20);
}
