//! `evener prove` and `evener verify`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use common::{stderr, stdout};
use serde_json::Value;

/// A file that snarkjs made for a circuit of 8 constraints.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../zk/tests/data").join(name)
}

fn evener(folder: &Path, arguments: &[&str]) -> Output {
    common::evener().args(arguments).current_dir(folder).output().unwrap()
}

/// A folder with the key, the verification key and copies of the witness.
fn folder(witnesses: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["squares.zkey", "squares.r1cs", "verification_key.json"] {
        fs::copy(data(name), folder.path().join(name)).unwrap();
    }
    for name in witnesses {
        fs::copy(data("squares.wtns"), folder.path().join(name)).unwrap();
    }
    folder
}

const PROVE: [&str; 5] = ["prove", "--devices", "cpu", "--zkey", "squares.zkey"];

fn prove(folder: &Path, more: &[&str]) -> Output {
    evener(folder, &[&PROVE, more].concat())
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_proof_is_written_for_each_witness_and_verifies() {
    let folder = folder(&["a.wtns", "b.wtns"]);
    let output =
        prove(folder.path(), &["--wtns", "a.wtns", "b.wtns", "--out", "proofs/new", "--verify", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(
        (&said["schema_version"], &said["constraints"], &said["done"]),
        (&1.into(), &8.into(), &2.into())
    );
    assert_eq!(said["proofs"][1]["witness"], "b.wtns");
    assert_eq!(said["proofs"][1]["is_proved"], true);
    assert!(said["proofs_per_s"].as_f64().unwrap() > 0.0);
    let proofs = folder.path().join("proofs/new");
    assert_eq!(json(&proofs.join("a.public.json")), json(&data("public.json")));
    assert_ne!(
        json(&proofs.join("a.proof.json")),
        json(&proofs.join("b.proof.json")),
        "the randomness is new"
    );

    let verify =
        ["verify", "--vkey", "verification_key.json", "proofs/new/a.proof.json", "proofs/new/b.proof.json"];
    let output = evener(folder.path(), &verify);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).matches("valid, with 1 public input\n").count(), 2, "{}", stdout(&output));
}

#[test]
fn text_tells_the_rate_and_quiet_the_files_alone() {
    let folder = folder(&["a.wtns"]);
    let output =
        prove(folder.path(), &["--wtns", "a.wtns", "--trace", "trace.json", "--r1cs", "squares.r1cs"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for part in
        ["proofs   1 of 1, all verified", "8 constraints, 10 wires, 1 public", "proofs/s", "a.proof.json"]
    {
        assert!(stdout(&output).contains(part), "{part}: {}", stdout(&output));
    }
    assert!(stdout(&output).ends_with("an item is a proof\n"), "{}", stdout(&output));
    assert!(json(&folder.path().join("trace.json")).to_string().contains("groth16"));
    let output = prove(folder.path(), &["-q", "--wtns", "a.wtns"]);
    assert_eq!((stdout(&output), stderr(&output)), ("./a.proof.json\n", ""));
}

#[test]
fn fewer_witnesses_than_devices_are_proved_by_all_devices_together() {
    let folder = folder(&["a.wtns", "b.wtns"]);
    let prove = |devices, witnesses: &[&str]| {
        let options =
            ["prove", "--devices", devices, "--zkey", "squares.zkey", "--json", "--trace", "trace.json"];
        let output = evener(folder.path(), &[&options, &["--wtns"][..], witnesses].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_str::<Value>(stdout(&output)).unwrap()
    };
    // The partition of one core is a device of its own.
    for (devices, witnesses, is_shared) in [
        ("cpu[1,1]", &["a.wtns"][..], true),
        ("cpu[1,1]", &["a.wtns", "b.wtns"], false),
        ("cpu", &["a.wtns"], false),
    ] {
        let said = prove(devices, witnesses);
        assert_eq!(said["is_shared"], is_shared, "{devices}, {witnesses:?}");
        let proofs = said["proofs"].as_array().unwrap();
        assert!(proofs.iter().all(|proof| proof["is_proved"] == true) && proofs.len() == witnesses.len());
        let items = said["items"].as_u64().unwrap() as usize;
        assert!(if is_shared { items > witnesses.len() } else { items == witnesses.len() }, "{items}");
        let trace = json(&folder.path().join("trace.json")).to_string();
        assert_eq!(trace.contains("groth16 shared"), is_shared, "{trace}");
        let verify = ["verify", "--vkey", "verification_key.json", "a.proof.json"];
        assert!(evener(folder.path(), &verify).status.success());
    }
}

#[test]
fn a_proof_of_snarkjs_is_valid_and_a_changed_one_is_not() {
    let folder = folder(&[]);
    for name in ["proof.json", "public.json"] {
        fs::copy(data(name), folder.path().join(name)).unwrap();
    }
    let verify = |more: &[&str]| {
        evener(folder.path(), &[&["verify", "--vkey", "verification_key.json", "proof.json"], more].concat())
    };
    assert!(verify(&[]).status.success());
    fs::write(folder.path().join("other.json"), r#"["5"]"#).unwrap();
    let output = verify(&["--public", "other.json", "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let said: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(
        (&said["proofs"][0]["is_valid"], &said["proofs"][0]["public"][0]),
        (&false.into(), &"5".into())
    );
    // snarkjs does not look at the protocol, but another one is another format.
    let original = json(&folder.path().join("proof.json"));
    for (protocol, code) in [(None, 0), (Some("plonk"), 1)] {
        let mut proof = original.clone();
        proof.as_object_mut().unwrap().remove("protocol");
        if let Some(protocol) = protocol {
            proof["protocol"] = protocol.into();
        }
        fs::write(folder.path().join("proof.json"), proof.to_string()).unwrap();
        assert_eq!(verify(&[]).status.code(), Some(code), "{protocol:?}");
    }
    fs::write(folder.path().join("proof.json"), original.to_string()).unwrap();
    // Files that have no proof or no public inputs, or cannot be read, are no forgeries.
    for (name, contents, said) in [
        ("proof.json", "{", "proof.json: UNREADABLE: JSON: EOF"),
        ("proof.json", "{}", "proof.json: UNREADABLE: `pi_a`: is missing"),
        ("public.json", "{}", "proof.json: UNREADABLE: public.json: public inputs: is not a list"),
    ] {
        let kept = fs::read(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name), contents).unwrap();
        let output = verify(&[]);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(stdout(&output).contains(said), "{}", stdout(&output));
        fs::write(folder.path().join(name), kept).unwrap();
    }
    let output = verify(&["none.proof.json", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let said: Value = serde_json::from_str(stdout(&output)).unwrap();
    let keys = |index: usize| ["is_valid", "is_readable"].map(|key| said["proofs"][index][key] == true);
    assert_eq!([keys(0), keys(1)], [[true, true], [false, false]]);
    // A point that is in no group is invalid, with the reason.
    let mut proof = json(&folder.path().join("proof.json"));
    proof["pi_c"][0] = "1".into();
    fs::write(folder.path().join("proof.json"), proof.to_string()).unwrap();
    let output = verify(&["none.proof.json"]);
    assert_eq!(output.status.code(), Some(3), "an invalid proof counts more than an unreadable one");
    assert!(stderr(&output).contains("1 of 2 proofs invalid, and 1 cannot be read"), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("proof.json: INVALID: `pi_c`: is not on the curve"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_closed_standard_output_hides_no_failure() {
    let folder = folder(&["a.wtns"]);
    for name in ["proof.json", "public.json"] {
        fs::copy(data(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("other.json"), r#"["5"]"#).unwrap();
    let verify = ["verify", "--vkey", "verification_key.json", "proof.json"];
    for (arguments, code) in [
        (verify.to_vec(), 0),
        ([&verify[..], &["--public", "other.json"]].concat(), 3),
        ([&PROVE[..], &["--wtns", "a.wtns"]].concat(), 0),
        ([&PROVE[..], &["--wtns", "a.wtns", "none.wtns"]].concat(), 1),
    ] {
        for format in [&[][..], &["--json"]] {
            let (reader, closed) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = common::evener();
            command.args(&arguments).args(format).current_dir(folder.path()).stdout(closed);
            let output = command.output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
            assert_eq!(stderr(&output).is_empty(), code == 0, "{arguments:?}: {}", stderr(&output));
        }
    }
}

#[test]
fn a_witness_that_cannot_be_proved_does_not_prevent_the_others() {
    let folder = folder(&["a.wtns", "b.wtns", "c.wtns"]);
    let bad = folder.path().join("b.wtns");
    let mut bytes = fs::read(&bad).unwrap();
    let last = bytes.len() - 32;
    bytes[last] ^= 1;
    fs::write(&bad, bytes).unwrap();
    let names = ["--wtns", "a.wtns", "b.wtns", "c.wtns"];
    for (more, reason) in [
        (&["--r1cs", "squares.r1cs"][..], "b.wtns: the witness does not satisfy the circuit: constraint 6"),
        (&[], "b.wtns: the proof from this witness does not verify"),
    ] {
        let output = prove(folder.path(), &[&names, more].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).starts_with(&format!("error: {reason}")), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        assert!(stdout(&output).contains("proofs   2 of 3, verified; 1 failed\n"), "{}", stdout(&output));
        for name in ["a.proof.json", "c.public.json"] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        assert!(!folder.path().join("b.proof.json").exists());
    }
}

#[cfg(unix)]
#[test]
fn a_batch_that_a_signal_ends_keeps_its_finished_proofs_and_goes_on_later() {
    use std::{os::unix::process::ExitStatusExt, process::Stdio, time::Duration};

    let names: Vec<String> = (0..2000).map(|number| format!("{number}.wtns")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let folder = folder(&names);
    let path = folder.path();
    let is_there = |name: &str| path.join(name.replace("wtns", "proof.json")).exists();
    // SIGKILL leaves no time to write anything at the end.
    for (signal, number) in [("KILL", 9), ("TERM", 15), ("INT", 2)] {
        let mut command = common::evener();
        command.args(PROVE).args(["--skip-existing", "--wtns"]).args(&names).current_dir(path);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let before = names.iter().filter(|name| is_there(name)).count();
        while names.iter().filter(|name| is_there(name)).count() < before + 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let kill = std::process::Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(number), "{}", stderr(&output));
        let written = names.iter().filter(|name| is_there(name)).count();
        assert!((before + 2..2000).contains(&written), "{written}");
        if signal != "KILL" {
            let said = format!(
                "error: stopped by a signal, with {} of 2,000 proofs written (--skip-existing proves the others)\n",
                written - before
            );
            assert_eq!(stderr(&output), said);
            let counts = format!("proofs   {} of 2,000, verified; {before} kept, ", written - before);
            assert!(stdout(&output).contains(&counts), "{}", stdout(&output));
        }
    }
    // Every proof that is there is complete, and only the missing ones are made.
    let (there, missing): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_there(name));
    let some = [&there[..], &missing[..2]].concat();
    let output = prove(path, &[&["--json", "--skip-existing", "--wtns"], &some[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let said: Value = serde_json::from_str(stdout(&output)).unwrap();
    let count =
        |key: &str| said["proofs"].as_array().unwrap().iter().filter(|proof| proof[key] == true).count();
    // A process that is killed between the two files of a proof leaves one.
    assert!(there.len() - count("is_kept") <= 1);
    assert_eq!(count("is_kept") + count("is_proved"), some.len());
    assert_eq!(said["done"], count("is_proved"));
}

/// As under `nohup`, and in the background of a shell script.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    use std::{process::Stdio, time::Duration};

    let names: Vec<String> = (0..200).map(|number| format!("{number}.wtns")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let folder = folder(&names);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP INT; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_evener")]);
    command.args(PROVE).arg("--wtns").args(&names).current_dir(folder.path());
    command.env_remove("EVENER_DEVICES").env("EVENER_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !folder.path().join("1.proof.json").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    for signal in ["HUP", "INT"] {
        let kill = std::process::Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}: {}", output.status, stderr(&output));
    assert!(stdout(&output).contains("proofs   200 of 200, all verified\n"), "{}", stdout(&output));
}

#[test]
fn existing_proofs_are_kept_only_if_they_are_valid() {
    let folder = folder(&["a.wtns", "b.wtns", "c.wtns"]);
    let names = ["--wtns", "a.wtns", "b.wtns", "c.wtns"];
    assert!(prove(folder.path(), &names).status.success());
    let path = |name: &str| folder.path().join(name);
    let kept = fs::read(path("a.proof.json")).unwrap();
    fs::write(path("b.public.json"), r#"["5"]"#).unwrap();
    fs::remove_file(path("c.public.json")).unwrap();
    let output = prove(folder.path(), &[&names[..], &["--skip-existing"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("proofs   2 of 3, verified; 1 kept\n"), "{}", stdout(&output));
    assert!(!stdout(&output).contains("a.proof.json"), "{}", stdout(&output));
    assert_eq!(fs::read(path("a.proof.json")).unwrap(), kept);
    // Nothing is left to do.
    let output = prove(folder.path(), &[&names[..], &["--skip-existing"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("proofs   0 of 3; 3 kept\n"), "{}", stdout(&output));
}

/// A witness of the circuit of the files, with other public inputs.
fn write_other_witness(path: &Path) {
    use evener_zk::{ark_bn254::Fr, groth16::Squares};

    Squares::filling(4).witness(Fr::from(5)).unwrap().write_wtns(path).unwrap();
}

#[test]
fn a_proof_of_other_public_inputs_is_not_taken_for_that_of_a_changed_witness() {
    let folder = folder(&["a.wtns", "b.wtns", "c.wtns", "d.wtns"]);
    let path = |name: &str| folder.path().join(name);
    let skip = ["--skip-existing", "--wtns", "a.wtns", "b.wtns", "c.wtns", "d.wtns"];
    assert!(prove(folder.path(), &skip).status.success());
    let public = json(&path("a.public.json"));
    write_other_witness(&path("b.wtns"));
    fs::remove_file(path("c.wtns")).unwrap();
    fs::write(path("d.wtns"), "damaged").unwrap();
    let output = prove(folder.path(), &[&skip[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let said: Value = serde_json::from_str(stdout(&output)).unwrap();
    let is = |key: &str| [0, 1, 2, 3].map(|index| said["proofs"][index][key] == true);
    assert_eq!(is("is_kept"), [true, false, true, false], "{said}");
    assert_eq!(is("is_proved"), [false, true, false, false], "{said}");
    assert!(said["proofs"][3]["error"].as_str().unwrap().starts_with("d.wtns: file header"), "{said}");
    assert_eq!(json(&path("a.public.json")), public);
    assert_ne!(json(&path("b.public.json")), public);
    let verify = ["verify", "--vkey", "verification_key.json", "a.proof.json", "b.proof.json"];
    assert!(evener(folder.path(), &verify).status.success());
    // Standard input is another witness in each run.
    for witness in ["a.wtns", "b.wtns"] {
        let mut command = common::evener();
        command.args(PROVE).args(["--skip-existing", "--wtns", "-"]).current_dir(folder.path());
        let output = command.stdin(fs::File::open(path(witness)).unwrap()).output().unwrap();
        assert!(stdout(&output).contains("proofs   1 of 1, all verified\n"), "{}", stdout(&output));
    }
    assert_eq!(json(&path("stdin.public.json")), json(&path("b.public.json")));
}

#[test]
fn a_witness_that_cannot_be_read_fails_alone() {
    let folder = folder(&["a.wtns", "cut.wtns", "two.wtns", "c.wtns"]);
    let path = |name: &str| folder.path().join(name);
    let bytes = fs::read(path("a.wtns")).unwrap();
    fs::write(path("cut.wtns"), &bytes[..bytes.len() / 2]).unwrap();
    let mut two = bytes.clone();
    let first = bytes.len() - 32 * 10;
    two[first] = 2;
    fs::write(path("two.wtns"), two).unwrap();
    let names = ["--wtns", "none.wtns", "a.wtns", "cut.wtns", "two.wtns", "c.wtns"];
    let output = prove(folder.path(), &[&names[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said: Value = serde_json::from_str(stdout(&output)).unwrap();
    let errors: Vec<Option<&str>> =
        said["proofs"].as_array().unwrap().iter().map(|proof| proof["error"].as_str()).collect();
    for (error, expected) in errors.iter().zip([
        Some("none.wtns: cannot be opened"),
        None,
        Some("cut.wtns: section 2 (values): 320 bytes are announced"),
        Some("two.wtns: section 2 (values): its first value is not 1"),
        None,
    ]) {
        match (error, expected) {
            (None, None) => {}
            (Some(error), Some(expected)) => assert!(error.starts_with(expected), "{error}"),
            wrong => panic!("{wrong:?}"),
        }
    }
    assert_eq!(stderr(&output).matches("error: ").count(), 3, "{}", stderr(&output));
    // A file and a cause are named once.
    for part in ["none.wtns", "cut.wtns", "two.wtns", "os error"] {
        assert_eq!(stderr(&output).matches(part).count(), 1, "{}", stderr(&output));
    }
    let output = prove(folder.path(), &["--wtns", "none.wtns"]);
    assert!(stdout(&output).starts_with("proofs   0 of 1; 1 failed\n"), "{}", stdout(&output));
    assert!(!stdout(&output).contains("verified") && !stdout(&output).contains("proofs/s"));
    let there = ["none", "a", "cut", "two", "c"].map(|name| path(&format!("{name}.proof.json")).exists());
    assert_eq!(there, [false, true, false, false, true]);
}

#[test]
fn a_witness_that_fails_leaves_no_proof_of_an_earlier_run() {
    let folder = folder(&["a.wtns", "b.wtns"]);
    let names = ["--wtns", "a.wtns", "b.wtns"];
    assert!(prove(folder.path(), &names).status.success());
    fs::write(folder.path().join("a.wtns"), "damaged").unwrap();
    assert_eq!(prove(folder.path(), &names).status.code(), Some(1));
    let there = ["a.proof.json", "a.public.json", "b.proof.json", "b.public.json"]
        .map(|name| folder.path().join(name).exists());
    assert_eq!(there, [false, false, true, true]);
    // Nothing says that the proof of a witness that is gone is wrong, and it could not be made again.
    fs::remove_file(folder.path().join("b.wtns")).unwrap();
    assert_eq!(prove(folder.path(), &["--wtns", "b.wtns"]).status.code(), Some(1));
    let verify = ["verify", "--vkey", "verification_key.json", "b.proof.json"];
    assert!(evener(folder.path(), &verify).status.success());
}

/// Apple's file systems have no such names.
#[cfg(target_os = "linux")]
#[test]
fn names_that_are_not_utf_8_stay_as_they_are() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    let folder = folder(&[]);
    let name = |name: &'static [u8]| OsStr::from_bytes(name);
    let witnesses = [name(b"\xfe.wtns"), name(b"\xff.wtns")];
    for witness in witnesses {
        fs::copy(data("squares.wtns"), folder.path().join(witness)).unwrap();
    }
    let mut command = common::evener();
    let output =
        command.args(PROVE).arg("--wtns").args(witnesses).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let proofs = [name(b"\xfe.proof.json"), name(b"\xff.proof.json")];
    assert!(proofs.iter().all(|proof| folder.path().join(proof).exists()));
    let mut command = common::evener();
    command.args(["verify", "--vkey", "verification_key.json"]).args(proofs).current_dir(folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
}

#[cfg(unix)]
#[test]
fn witnesses_are_read_from_pipes() {
    use std::process::Stdio;

    let folder = folder(&["a.wtns"]);
    let wtns = fs::File::open(data("squares.wtns")).unwrap();
    let cat = |name: &str| {
        let mut cat = std::process::Command::new("cat");
        cat.arg(data(name)).stdout(Stdio::piped()).spawn().unwrap().stdout.unwrap()
    };
    for (input, path) in [
        (Stdio::from(wtns), "-"),
        (cat("squares.wtns").into(), "-"),
        (cat("squares.wtns").into(), "/dev/stdin"),
    ] {
        let mut command = common::evener();
        command.args(PROVE).args(["--wtns", "a.wtns", path]).current_dir(folder.path()).stdin(input);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("wrote    ./stdin.proof.json\n"), "{}", stdout(&output));
        let verify = ["verify", "--vkey", "verification_key.json", "stdin.proof.json"];
        assert!(evener(folder.path(), &verify).status.success());
        fs::remove_file(folder.path().join("stdin.proof.json")).unwrap();
    }
    // Something else fails alone, even if it has no end.
    let zero = fs::File::open("/dev/zero").unwrap();
    let mut command = common::evener();
    command.args(PROVE).args(["--wtns", "-", "a.wtns"]).current_dir(folder.path()).stdin(zero);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = "error: standard input: file header: the file begins with";
    assert!(stderr(&output).starts_with(said), "{}", stderr(&output));
    assert!(stdout(&output).contains("proofs   1 of 2, verified; 1 failed"), "{}", stdout(&output));
    // A key has to be a file.
    let mut command = common::evener();
    command.args(["prove", "--devices", "cpu", "--zkey", "/dev/stdin", "--wtns", "a.wtns"]);
    let output = command.current_dir(folder.path()).stdin(cat("squares.zkey")).output().unwrap();
    let said = "error: /dev/stdin: file header: a file is needed, and this is a pipe";
    assert!(stderr(&output).starts_with(said), "{}", stderr(&output));
}

#[test]
fn unusable_files_and_options_are_said() {
    let folder = folder(&["a.wtns"]);
    fs::create_dir(folder.path().join("other")).unwrap();
    fs::copy(folder.path().join("a.wtns"), folder.path().join("other/a.wtns")).unwrap();
    let zkey = fs::read(folder.path().join("squares.zkey")).unwrap();
    fs::write(folder.path().join("cut.zkey"), &zkey[..zkey.len() / 2]).unwrap();
    let prove =
        |arguments: &[&str]| evener(folder.path(), &[&["prove", "--devices", "cpu"], arguments].concat());
    for (arguments, code, reason) in [
        (
            &["--zkey", "a.wtns", "--wtns", "a.wtns"][..],
            1,
            "a.wtns: file header: the file begins with `wtns`",
        ),
        (&["--zkey", "cut.zkey", "--wtns", "a.wtns"], 1, "cut.zkey: section"),
        (&["--zkey", "squares.zkey", "--wtns", "squares.r1cs"], 1, "squares.r1cs: file header"),
        (&["--zkey", "squares.zkey", "--wtns", "none.wtns"], 1, "none.wtns: cannot be opened"),
        (&["--zkey", "squares.zkey", "--wtns", "a.wtns", "other/a.wtns"], 2, "would have the same name"),
        (&["--zkey", "squares.zkey"], 2, "--wtns"),
        (&["--wtns", "a.wtns"], 2, "--zkey"),
        (&["--zkey", "squares.zkey", "--wtns", "a.wtns", "--bench", "2^4"], 2, "--bench"),
        (&["--bench", "2^4", "--wtns", "a.wtns"], 2, "--wtns"),
        (&["--bench", "2^4", "--r1cs", "squares.r1cs"], 2, "--r1cs"),
        (&["--bench", "2^4", "--skip-existing"], 2, "--skip-existing"),
        (&["--bench", "2^4", "--allow-unsafe-key"], 2, "--allow-unsafe-key"),
        (&["--zkey", "squares.zkey", "--wtns", "a.wtns", "--proofs", "3"], 2, "--proofs"),
        (&["--bench", "1000"], 2, "not a power of two"),
    ] {
        let output = prove(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{arguments:?}: {}", stderr(&output));
    }
    // The constraints of another circuit are not the witness's fault.
    let mut r1cs = fs::read(folder.path().join("squares.r1cs")).unwrap();
    // The coefficient of wire 0 in B of constraint 0.
    assert_eq!(r1cs[0xb8], 7);
    r1cs[0xb8] = 8;
    fs::write(folder.path().join("other.r1cs"), r1cs).unwrap();
    let output = prove(&["--zkey", "squares.zkey", "--wtns", "a.wtns", "--r1cs", "other.r1cs"]);
    assert_eq!(output.status.code(), Some(1));
    let said = "other.r1cs: the constraints and the key are of different circuits: constraint 0, counted from 0, differs in B";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
    // Wrong devices are reported before the key is read.
    for circuit in [&["--zkey", "cut.zkey", "--wtns", "a.wtns"][..], &["--bench", "2^26"]] {
        let output = evener(folder.path(), &[&["prove", "--devices", "cpux"], circuit].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("cpux"), "{}", stderr(&output));
    }
    let output = evener(folder.path(), &["verify", "--vkey", "verification_key.json", "squares.zkey"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn a_key_without_a_contribution_needs_an_option() {
    let folder = folder(&["a.wtns"]);
    let path = folder.path().join("verification_key.json");
    let mut key = json(&path);
    key["vk_delta_2"] = key["vk_gamma_2"].clone();
    fs::write(&path, key.to_string()).unwrap();
    for name in ["proof.json", "public.json"] {
        fs::copy(data(name), folder.path().join(name)).unwrap();
    }
    let verify = ["verify", "--vkey", "verification_key.json", "proof.json"];
    let output = evener(folder.path(), &verify);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("gamma equals delta") && said.contains("--allow-unsafe-key accepts it"), "{said}");
    let output = evener(folder.path(), &[&verify[..], &["--allow-unsafe-key"]].concat());
    assert_eq!(output.status.code(), Some(3), "the key is another now: {}", stderr(&output));
}

/// `EVENER_TEST_SNARKJS` names a folder in which npm has installed snarkjs.
#[test]
#[ignore = "needs snarkjs"]
fn with_snarkjs_every_proof_of_a_measurement_is_valid_there() {
    let tools = std::env::var_os("EVENER_TEST_SNARKJS")
        .expect("EVENER_TEST_SNARKJS names a folder with node_modules");
    let script = Path::new(&tools).join("node_modules/snarkjs/build/cli.cjs");
    let folder = tempfile::tempdir().unwrap();
    let prove = ["prove", "--devices", "cpu", "--bench", "2^9", "--proofs", "3", "--out", "."];
    assert!(evener(folder.path(), &prove).status.success());
    let verify = |public: &str, proof: &str| {
        let mut node = std::process::Command::new("node");
        node.arg(&script).args(["groth16", "verify", "verification_key.json", public, proof]);
        node.current_dir(folder.path()).output().unwrap().status.success()
    };
    for number in 0..3 {
        assert!(verify(&format!("{number}.public.json"), &format!("{number}.proof.json")));
    }
    assert!(!verify("0.public.json", "1.proof.json"));
}

#[test]
fn a_measurement_needs_no_files_and_its_proofs_can_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let bench = ["prove", "--devices", "cpu", "--bench", "2^5", "--proofs", "3", "--json"];
    let output = evener(folder.path(), &bench);
    assert!(output.status.success(), "{}", stderr(&output));
    let said: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!((&said["constraints"], &said["domain"], &said["done"]), (&24.into(), &32.into(), &3.into()));
    assert!(said["set_up_s"].as_f64().unwrap() > 0.0 && said["first_proof_s"].as_f64().unwrap() > 0.0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

    let text = [&bench[..bench.len() - 1], &["--out", "kept"]].concat();
    let output = evener(folder.path(), &text);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("wrote    kept/verification_key.json\n"), "{}", stdout(&output));
    let verify = ["verify", "--vkey", "kept/verification_key.json", "kept/0.proof.json", "kept/2.proof.json"];
    let output = evener(folder.path(), &verify);
    assert!(output.status.success(), "{}", stderr(&output));
}
