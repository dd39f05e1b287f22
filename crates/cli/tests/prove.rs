//! `evener prove` and `evener verify`.

#![allow(clippy::unwrap_used)]

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
    // What is no proof at all is invalid too, with the reason.
    let mut proof = json(&folder.path().join("proof.json"));
    proof["pi_c"][0] = "1".into();
    fs::write(folder.path().join("proof.json"), proof.to_string()).unwrap();
    let output = verify(&[]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stdout(&output).contains("INVALID: proof.json: `pi_c`: is not on the curve"),
        "{}",
        stdout(&output)
    );
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
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
        assert!(stdout(&output).contains("proofs   2 of 3"), "{}", stdout(&output));
        for name in ["a.proof.json", "c.public.json"] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        assert!(!folder.path().join("b.proof.json").exists());
    }
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
        (&["--bench", "1000"], 2, "not a power of two"),
    ] {
        let output = prove(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{arguments:?}: {}", stderr(&output));
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
