//! `evener merkle`, as its users run it.

#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use common::{rfc6962, stderr, stdout};
use serde_json::Value;
use tempfile::TempDir;

/// The command, in a folder.
fn evener(folder: &Path) -> Command {
    let mut command = common::evener();
    command.current_dir(folder);
    command
}

fn merkle(folder: &TempDir, arguments: &[&str]) -> Output {
    evener(folder.path()).arg("merkle").args(arguments).output().unwrap()
}

fn json(folder: &TempDir, arguments: &[&str]) -> Value {
    let output = merkle(folder, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stderr(&output), "");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn root(folder: &TempDir, arguments: &[&str]) -> String {
    let output = merkle(folder, &[arguments, &["-q"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output).trim().to_owned()
}

/// Asserts that a command is refused: its exit code, an empty standard output, and words of its message.
fn refused(folder: &TempDir, arguments: &[&str], code: i32, words: &[&str]) {
    let output = merkle(folder, arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stdout(&output), "", "{arguments:?}");
    assert!(stderr(&output).starts_with("error: "), "{arguments:?}: {}", stderr(&output));
    for word in words {
        assert!(stderr(&output).contains(word), "{arguments:?}: no `{word}` in {}", stderr(&output));
    }
}

fn names(folder: &TempDir) -> Vec<String> {
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<String> =
        fs::read_dir(folder.path()).unwrap().map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}

/// Bytes that are not all alike.
fn bytes(count: usize) -> Vec<u8> {
    (0..count as u32).map(|n| (n.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect()
}

#[test]
fn a_file_has_the_root_that_the_definition_gives() {
    let folder = tempfile::tempdir().unwrap();
    for (leaves, size) in
        [(0, 32), (1, 32), (2, 32), (3, 5), (1023, 32), (1025, 32), (70_000, 32), (9, 100_000)]
    {
        let all = bytes(leaves * size);
        fs::write(folder.path().join("leaves"), &all).unwrap();
        let expected = rfc6962(&all.chunks(size).collect::<Vec<_>>());
        let size = size.to_string();
        assert_eq!(root(&folder, &["leaves", "--leaf-size", &size]), expected, "{leaves} leaves of {size}");
        let tree = root(&folder, &["leaves", "--leaf-size", &size, "--tree", "tree"]);
        assert_eq!(tree, expected, "{leaves} leaves of {size}, the whole tree");
    }
}

#[test]
fn however_leaves_come_the_root_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let all = bytes(32 * 10_001);
    fs::write(folder.path().join("all"), &all).unwrap();
    fs::write(folder.path().join("first"), &all[..32 * 777]).unwrap();
    fs::write(folder.path().join("none"), b"").unwrap();
    fs::write(folder.path().join("rest"), &all[32 * 777..]).unwrap();
    for scheme in [
        &[][..],
        &["--rule", "bitcoin"],
        &["--rule", "rs-merkle", "--hash", "keccak256"],
        &["--hash", "blake3"],
    ] {
        let expected = root(&folder, &[&["all"], scheme].concat());
        assert_eq!(root(&folder, &[&["first", "none", "rest"], scheme].concat()), expected, "{scheme:?}");
        let parts = ["first", "rest", "--tree", "tree"];
        assert_eq!(root(&folder, &[&parts, scheme].concat()), expected, "{scheme:?}");
        let mut child = evener(folder.path())
            .args(["merkle", "--stdin", "-q"])
            .args(scheme)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&all).unwrap();
        assert_eq!(stdout(&child.wait_with_output().unwrap()).trim(), expected, "{scheme:?}");
    }
}

#[test]
fn lines_and_whole_files_are_leaves() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "one\ntwo\r\n\nthree").unwrap();
    fs::write(folder.path().join("b"), "four\n").unwrap();
    let lines: [&[u8]; 5] = [b"one", b"two", b"", b"three", b"four"];
    assert_eq!(root(&folder, &["--lines", "a", "b"]), rfc6962(&lines));
    let files: [&[u8]; 2] = [b"one\ntwo\r\n\nthree", b"four\n"];
    assert_eq!(root(&folder, &["--files", "a", "b"]), rfc6962(&files));
    assert_ne!(root(&folder, &["--files", "b", "a"]), rfc6962(&files), "the order counts");
}

#[test]
fn test_data_is_what_the_help_says() {
    let folder = tempfile::tempdir().unwrap();
    let leaves: Vec<Vec<u8>> = (0..3000u128).map(|n| [n.to_le_bytes(), [0; 16]].concat()).collect();
    let leaves: Vec<&[u8]> = leaves.iter().map(Vec::as_slice).collect();
    assert_eq!(root(&folder, &["--leaves", "3000"]), rfc6962(&leaves));
}

#[test]
fn programs_get_every_key_of_a_run_and_of_none() {
    let folder = tempfile::tempdir().unwrap();
    for leaves in ["1000000", "3"] {
        let run = json(&folder, &["--leaves", leaves, "--strategy", "equal"]);
        for key in ["items", "wall_s", "ideal_s", "total_s", "bytes", "leaves"] {
            assert!(run[key].is_number(), "{leaves}: no {key}");
        }
        // Where nothing was run, nothing was shared.
        for key in ["efficiency", "bound"] {
            let is_there = run.get(key).is_some_and(|it| it.is_number() || (leaves == "3" && it.is_null()));
            assert!(is_there, "{leaves}: {key} is {:?}", run.get(key));
        }
        assert_eq!(run["schema_version"], 1);
        assert_eq!((&run["hash"], &run["rule"]), (&"sha256".into(), &"rfc6962".into()));
        assert!(run["devices"].is_array(), "{leaves}");
        assert_eq!(run["leaves"], leaves.parse::<u64>().unwrap());
    }
    let run = json(&folder, &["--leaves", "1000000", "--devices", "cpu"]);
    for key in ["id", "items", "chunks", "busy_s", "retries", "speculative", "state"] {
        assert!(!run["devices"][0][key].is_null(), "a device has no {key}");
    }
    let done: u64 = run["devices"].as_array().unwrap().iter().map(|it| it["items"].as_u64().unwrap()).sum();
    assert_eq!(run["items"], done);
    let each = run["leaves_per_item"].as_u64().unwrap();
    assert!((1_000_000 - each..=1_000_000).contains(&(done * each)), "{done} blocks of {each} leaves");
    let few = json(&folder, &["--leaves", "3", "--devices", "cpu"]);
    assert_eq!((&few["items"], &few["left_out"][0]["id"]), (&0.into(), &"cpu".into()));
}

#[test]
fn people_get_the_root_and_who_did_what() {
    let folder = tempfile::tempdir().unwrap();
    let output = merkle(&folder, &["--leaves", "200000", "--devices", "cpu"]);
    let text = stdout(&output);
    assert!(text.starts_with("root     "), "{text}");
    for part in ["200,000 (6,400,000 bytes), sha256 rfc6962", "efficiency", "an item is a block of", "\ncpu "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(stderr(&output), "");
    assert!(!text.contains('\u{1b}'), "no colours where there is no terminal");
}

#[test]
fn a_trace_has_a_row_a_core_also_of_a_stream() {
    let folder = tempfile::tempdir().unwrap();
    let all = bytes(32 * 100_000);
    fs::write(folder.path().join("a"), &all).unwrap();
    for arguments in [&["a"][..], &["a", "a"]] {
        assert!(merkle(&folder, &[arguments, &["--trace", "trace.json"]].concat()).status.success());
        let trace: Value =
            serde_json::from_slice(&fs::read(folder.path().join("trace.json")).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert!(events.iter().any(|event| event["ph"] == "M"), "{arguments:?}");
        assert!(events.iter().any(|event| event["cat"] == "work"), "{arguments:?}");
    }
}

#[test]
fn leaves_that_do_not_come_out_even_are_refused_with_what_would_fit() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("odd"), bytes(100)).unwrap();
    fs::write(folder.path().join("even"), bytes(64)).unwrap();
    let words = [
        "odd: 100 bytes are 3 leaves of 32 bytes and 4 more bytes",
        "96 or 128 bytes would fit",
        "--leaf-size 25",
    ];
    refused(&folder, &["odd"], 2, &words);
    refused(&folder, &["even", "odd"], 2, &words);
    refused(&folder, &["odd", "even"], 2, &words);
    let mut child = evener(folder.path())
        .args(["merkle", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&bytes(100)).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
    assert!(stderr(&output).contains("standard input: 100 bytes are 3 leaves"), "{}", stderr(&output));
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("there"), bytes(64)).unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    for more in [&[][..], &["--lines"], &["--files"], &["--tree", "tree"]] {
        refused(&folder, &[&["nowhere"], more].concat(), 1, &["nowhere: cannot be opened"]);
        refused(&folder, &[&["there", "nowhere"], more].concat(), 1, &["nowhere: cannot be opened"]);
        refused(&folder, &[&["folder"], more].concat(), 1, &["folder: "]);
    }
    assert_eq!(names(&folder), ["folder", "there"]);
}

/// Writes to a file without end until its process is done.
fn while_it_changes(folder: &TempDir, arguments: &[&str], mut change: impl FnMut()) -> Output {
    let mut child = evener(folder.path())
        .arg("merkle")
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while child.try_wait().unwrap().is_none() {
        change();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.wait_with_output().unwrap()
}

#[cfg(unix)]
#[test]
fn a_file_that_changes_has_no_root() {
    use std::os::unix::fs::FileExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("busy");
    let file = fs::File::create(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    let mut number = 0u64;
    for arguments in [
        &["busy"][..],
        &["busy", "busy"],
        &["--lines", "busy"],
        &["--files", "busy"],
        &["busy", "--tree", "tree"],
    ] {
        let output = while_it_changes(&folder, arguments, || {
            number += 1;
            file.write_all_at(&number.to_le_bytes(), 1 << 20).unwrap();
        });
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{arguments:?}");
        assert!(stderr(&output).contains("busy: changed while it was read"), "{}", stderr(&output));
    }
    assert_eq!(names(&folder), ["busy"], "no tree is left behind");
}

#[cfg(unix)]
#[test]
fn a_file_that_is_cut_short_while_it_is_read_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shrinks");
    for arguments in [&["shrinks"][..], &["shrinks", "shrinks"], &["shrinks", "--tree", "tree"]] {
        let file = fs::File::create(&path).unwrap();
        let mut bytes: u64 = 256 << 20;
        file.set_len(bytes).unwrap();
        let output = while_it_changes(&folder, arguments, || {
            bytes = bytes.saturating_sub(32 << 10);
            file.set_len(bytes).unwrap();
        });
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{arguments:?}");
        let told = stderr(&output);
        assert!(told.contains("shrinks: was cut short") || told.contains("shrinks: changed"), "{told}");
    }
    assert_eq!(names(&folder), ["shrinks"], "no tree is left behind");
}

#[test]
fn proofs_hold_and_say_against_whose_root() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("names"), "Ada\nBlaise\nCharles\nDonald\nEdsger\n").unwrap();
    let root = root(&folder, &["--lines", "names"]);
    // Proofs have standard output for themselves; the report is on standard error.
    let output = merkle(&folder, &["--lines", "names", "--prove", "0,4"]);
    let proofs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (proofs.len(), &proofs[1]["index"], &proofs[1]["root"]),
        (2, &4.into(), &root.as_str().into())
    );
    assert!(stderr(&output).contains(&root));
    // To a file, and for programs.
    assert!(merkle(&folder, &["--lines", "names", "--prove", "0,4", "--out", "proofs"]).status.success());
    assert_eq!(
        serde_json::from_slice::<Vec<Value>>(&fs::read(folder.path().join("proofs")).unwrap()).unwrap(),
        proofs
    );
    assert_eq!(json(&folder, &["--lines", "names", "--prove", "0,4"])["proofs"], Value::from(proofs.clone()));

    let output = merkle(&folder, &["verify", "proofs"]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("verified against the roots in the files only"), "{}", stdout(&output));
    let output = merkle(&folder, &["verify", "proofs", "--root", &root]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("verified against the root of --root"), "{}", stdout(&output));

    fs::write(folder.path().join("one"), serde_json::to_vec(&proofs[1]).unwrap()).unwrap();
    fs::write(folder.path().join("leaf"), "Edsger").unwrap();
    let found = json(&folder, &["verify", "one", "--root", &root, "--leaf", "leaf"]);
    assert_eq!(found["schema_version"], 1);
    let proof = &found["proofs"][0];
    assert_eq!((&proof["is_valid"], &proof["root_from"]), (&true.into(), &"given".into()));
    fs::write(folder.path().join("leaf"), "Eratosthenes").unwrap();
    let output = merkle(&folder, &["verify", "one", "--root", &root, "--leaf", "leaf"]);
    assert_eq!(output.status.code(), Some(3));
    refused(
        &folder,
        &["verify", "proofs", "--leaf", "leaf"],
        2,
        &["--leaf is one leaf, and there are 2 proofs"],
    );
}

#[test]
fn an_invalid_proof_is_told() {
    let folder = tempfile::tempdir().unwrap();
    assert!(merkle(&folder, &["--leaves", "1000", "--prove", "7", "--out", "proof"]).status.success());
    let text = fs::read_to_string(folder.path().join("proof")).unwrap();
    let proofs: Value = serde_json::from_str(&text).unwrap();
    let root = proofs[0]["root"].as_str().unwrap().to_owned();
    let flip = |digits: &str, bit: u8| {
        let first = u8::from_str_radix(&digits[..1], 16).unwrap() ^ bit;
        let flipped = text.replace(digits, &format!("{first:x}{}", &digits[1..]));
        assert_ne!(flipped, text);
        fs::write(folder.path().join("flipped"), flipped).unwrap();
        for more in [&[][..], &["--root", &root]] {
            let output = merkle(&folder, &[&["verify", "flipped", "-q"], more].concat());
            // A root of the file's own does not matter where another is given.
            let code = if digits == root && !more.is_empty() { 0 } else { 3 };
            assert_eq!(output.status.code(), Some(code), "{digits}: {}", stderr(&output));
        }
    };
    flip(&root, 1);
    flip(proofs[0]["leaf"].as_str().unwrap(), 8);
    for node in proofs[0]["path"].as_array().unwrap() {
        flip(node.as_str().unwrap(), 2);
    }
    fs::write(folder.path().join("flipped"), text.replace("\"index\": 7", "\"index\": 6")).unwrap();
    let output = merkle(&folder, &["verify", "flipped", "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["proofs"][0]["error"].as_str().unwrap().contains("the proof is invalid"), "{found}");
    assert_eq!(stderr(&output), "error: 1 of 1 proofs are invalid\n");
    // Also to a reader that has closed its pipe.
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = evener(folder.path());
    let output = command.args(["merkle", "verify", "flipped"]).stdout(closed).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));

    let other = "00".repeat(32);
    assert_eq!(merkle(&folder, &["verify", "proof", "--root", &other]).status.code(), Some(3));
    fs::write(folder.path().join("cut"), &text[..text.len() / 2]).unwrap();
    refused(&folder, &["verify", "cut"], 1, &["cut: is neither a proof"]);
    fs::write(folder.path().join("cut"), "[]").unwrap();
    refused(&folder, &["verify", "cut"], 2, &["nothing to verify"]);
    refused(&folder, &["verify", "nowhere"], 1, &["nowhere: cannot be opened"]);
}

#[test]
fn a_stored_tree_proves_without_the_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let root = root(&folder, &["--leaves", "5000", "--tree", "tree"]);
    let output = merkle(&folder, &["prove", "tree", "0", "4999"]);
    fs::write(folder.path().join("proofs"), &output.stdout).unwrap();
    assert!(merkle(&folder, &["verify", "proofs", "--root", &root]).status.success());
    refused(&folder, &["prove", "tree", "5000"], 2, &["leaf 5000 of a tree of 5000 leaves"]);
    let whole = fs::read(folder.path().join("tree")).unwrap();
    fs::write(folder.path().join("tree"), &whole[..whole.len() - 1]).unwrap();
    refused(&folder, &["prove", "tree", "0"], 1, &["tree: is cut short"]);
}

#[test]
fn numbers_that_are_none_are_refused_with_what_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    let count = "a number of leaves is a whole number from 0 to";
    refused(&folder, &["--leaves", "-1"], 2, &["'-1' for '--leaves <N>'", count]);
    refused(&folder, &["--leaves", "many"], 2, &["'many' for '--leaves <N>'", count]);
    let index = "an index is a whole number, counted from 0";
    refused(&folder, &["--leaves", "5", "--prove", "abc"], 2, &["'abc' for '--prove <INDEX>'", index]);
    refused(&folder, &["--leaves", "5", "--prove", "-1"], 2, &["'-1' for '--prove <INDEX>'", index]);
    refused(&folder, &["prove", "some.tree", "abc"], 2, &["'abc' for '<INDEX>", index]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    refused(
        &folder,
        &["--leaves", "10", "--prove", "10"],
        2,
        &["leaf 10 of a tree of 10 leaves", "less than 10"],
    );
    refused(&folder, &["--leaves", "10", "--hash", "blake3", "--rule", "bitcoin"], 2, &["use sha256"]);
    refused(&folder, &["--leaves", "0", "--rule", "bitcoin"], 2, &["no leaves"]);
    refused(&folder, &["--leaves", "10", "--devices", "nonsense"], 2, &["no device for `nonsense`"]);
    refused(&folder, &["--leaves", "10", "--expect", &"00".repeat(32)], 3, &[", not 0000"]);
    for arguments in [
        &["--leaves", "10", "--leaf-size", "0"][..],
        &["--leaves", "10", "--hash", "md5"],
        &["--leaves", "10", "--strategy", "fastest"],
        &["--leaves", "10", "--stdin"],
        &["--leaves", "10", "--out", "proofs"],
        &["--lines", "--leaf-size", "32", "file"],
        &["-q", "-v", "--leaves", "10"],
    ] {
        refused(&folder, arguments, 2, &[]);
    }
    refused(
        &folder,
        &["--leaves", "10", "--tree", "no/such/folder"],
        1,
        &["no/such/folder: cannot be written"],
    );
    assert!(names(&folder).is_empty(), "{:?}", names(&folder));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tree"), "an older one").unwrap();
    // No file may have more than a few thousand bytes here.
    let limited = |arguments: &str| {
        let script = format!("ulimit -f 8; exec \"$0\" merkle --leaves 1000000 {arguments}");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_evener")).current_dir(folder.path());
        command
            .env_remove("EVENER_DEVICES")
            .env("EVENER_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"))
            .output()
            .unwrap()
    };
    for arguments in ["--tree tree", "--tree new", "--prove $(seq -s, 0 99) --out new", "--trace new"] {
        let output = limited(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", stderr(&output));
        assert!(stdout(&output).starts_with("root     "), "{arguments}: {}", stdout(&output));
        assert!(stderr(&output).contains("cannot be written"), "{arguments}: {}", stderr(&output));
    }
    let output = merkle(&folder, &["--leaves", "5000", "--tree", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/dev/full: cannot be written: No space left"), "{}", stderr(&output));
    assert_eq!(names(&folder), ["tree"]);
    assert_eq!(fs::read(folder.path().join("tree")).unwrap(), b"an older one");
    assert!(!Path::new("/dev/full").metadata().unwrap().is_file());
}

#[test]
fn help_shows_examples() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["--help"][..], &["verify", "--help"], &["prove", "--help"]] {
        let output = merkle(&folder, arguments);
        for text in ["Examples:", "evener merkle"] {
            assert!(stdout(&output).contains(text), "{}", stdout(&output));
        }
    }
}
