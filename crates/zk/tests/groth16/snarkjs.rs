//! Round trips with snarkjs, for a circuit of circomlib. `scripts/test all` installs snarkjs, circom and circomlib, and names
//! their folder in `EVENER_TEST_SNARKJS`. `EVENER_TEST_SNARKJS_SIZES=16:4,20:2` proves batches of 4 and 2 witnesses of 2^16 and
//! 2^20 constraints for arkworks' keys instead of small ones.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use ark_bn254::Fr;
use evener_zk::{
    format::{public_from_json, public_to_json},
    groth16::{Proof, Proved, Prover, ProvingKey, R1cs, Squares, VerifyingKey, Witness},
};
use serde_json::Value;

use crate::pool;

const CIRCUIT: &str = r#"
pragma circom 2.1.0;
include "circomlib/circuits/poseidon.circom";

/// Knowledge of two numbers with a public Poseidon hash, bound to a public tag.
template Preimage() {
    signal input left;
    signal input right;
    signal input tag;
    signal output hash;
    hash <== Poseidon(2)([left, right]);
    signal square <== tag * tag;
}

component main {public [tag]} = Preimage();
"#;

/// The folder with snarkjs, circom and circomlib, and a folder for a test's files within it: circom reads nothing outside.
struct Tools {
    root: PathBuf,
    folder: tempfile::TempDir,
}

impl Tools {
    fn find() -> Tools {
        let root = std::env::var("EVENER_TEST_SNARKJS")
            .expect("EVENER_TEST_SNARKJS names a folder with node_modules");
        let folder = tempfile::tempdir_in(&root).unwrap();
        Tools { root: root.into(), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a script of a package in a folder.
    fn node(&self, script: &Path, folder: &Path, arguments: &[&str]) -> Output {
        Command::new("node").arg(script).args(arguments).current_dir(folder).output().unwrap()
    }

    fn run(&self, script: &Path, folder: &Path, arguments: &[&str]) {
        let output = self.node(script, folder, arguments);
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{arguments:?}: {}", said.join("\n"));
    }

    fn snarkjs_script(&self) -> PathBuf {
        self.root.join("node_modules/snarkjs/build/cli.cjs")
    }

    fn snarkjs(&self, arguments: &str) {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        self.run(&self.snarkjs_script(), self.folder.path(), &arguments);
    }

    /// Compiles the circuit, and makes a key of 2^8 with a contribution to each phase.
    fn make_key(&self) {
        std::fs::write(self.path("preimage.circom"), CIRCUIT).unwrap();
        let name = self.folder.path().file_name().unwrap().to_str().unwrap();
        let source = format!("{name}/preimage.circom");
        let circom = [&source, "--r1cs", "--wasm", "--O2", "-l", "node_modules", "-o", name];
        self.run(&self.root.join("node_modules/circom2/cli.js"), &self.root, &circom);
        self.snarkjs("powersoftau new bn128 8 new.ptau");
        self.snarkjs("powersoftau contribute new.ptau one.ptau --name=one -e=test");
        self.snarkjs("powersoftau prepare phase2 one.ptau final.ptau");
        self.snarkjs("groth16 setup preimage.r1cs final.ptau unsafe.zkey");
        self.snarkjs("zkey contribute unsafe.zkey preimage.zkey --name=one -e=test");
        self.snarkjs("zkey export verificationkey preimage.zkey verification_key.json");
    }

    /// Computes a witness with circom's own program.
    fn witness(&self, number: u64) -> PathBuf {
        let input =
            format!(r#"{{"left": "{number}", "right": "{}", "tag": "{}"}}"#, number * number, number + 1);
        std::fs::write(self.path("input.json"), input).unwrap();
        let name = format!("{number}.wtns");
        let program = self.path("preimage_js/generate_witness.js");
        self.run(&program, self.folder.path(), &["preimage_js/preimage.wasm", "input.json", &name]);
        self.path(&name)
    }

    /// Returns whether snarkjs says that a proof is valid.
    fn verifies(&self, key: &str, public: &Value, proof: &Value) -> bool {
        std::fs::write(self.path("checked_public.json"), public.to_string()).unwrap();
        std::fs::write(self.path("checked_proof.json"), proof.to_string()).unwrap();
        let arguments = ["groth16", "verify", key, "checked_public.json", "checked_proof.json"];
        let output = self.node(&self.snarkjs_script(), self.folder.path(), &arguments);
        let is_valid = String::from_utf8_lossy(&output.stdout).contains("OK!");
        assert_eq!(is_valid, output.status.success());
        is_valid
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

/// Returns whether the files, as they are, verify here.
fn verifies(key: &VerifyingKey, public: &Value, proof: &Value) -> bool {
    let public = public_from_json("public.json", public.to_string().as_bytes());
    let proof = Proof::from_json("proof.json", proof.to_string().as_bytes());
    matches!((public, proof), (Ok(public), Ok(proof)) if key.verify(&proof, &public).is_ok())
}

/// Ten changes of public inputs and proof.
fn mutations(public: &Value, proof: &Value, other: &Proved) -> Vec<(&'static str, Value, Value)> {
    type Change<'a> = &'a dyn Fn(&mut Value, &mut Value);
    let changed = |change: Change<'_>| {
        let (mut public, mut proof) = (public.clone(), proof.clone());
        change(&mut public, &mut proof);
        (public, proof)
    };
    let negated = |point: &Value| {
        let y: ark_bn254::Fq = point[1].as_str().unwrap().parse().unwrap();
        Value::from((-y).to_string())
    };
    let plus_modulus = |value: &Value| {
        use ark_ff::{BigInteger, PrimeField};
        let value: Fr = value.as_str().unwrap().parse().unwrap();
        let mut sum = value.into_bigint();
        assert!(!sum.add_with_carry(&Fr::MODULUS));
        Value::from(sum.to_string())
    };
    let other = other.proof.to_json();
    let all: [(&'static str, Change<'_>); 10] = [
        ("the output is another", &|public, _| public[0] = "1".into()),
        ("the input is another", &|public, _| public[1] = "1".into()),
        ("the public inputs are swapped", &|public, _| {
            let swapped = vec![public[1].clone(), public[0].clone()];
            *public = swapped.into();
        }),
        ("a public input is not reduced", &|public, _| public[1] = plus_modulus(&public[1])),
        ("A is negated", &|_, proof| proof["pi_a"][1] = negated(&proof["pi_a"])),
        ("C is negated", &|_, proof| proof["pi_c"][1] = negated(&proof["pi_c"])),
        ("A is not on the curve", &|_, proof| proof["pi_a"][0] = "1".into()),
        ("A and C are swapped", &|_, proof| {
            let (a, c) = (proof["pi_a"].clone(), proof["pi_c"].clone());
            (proof["pi_a"], proof["pi_c"]) = (c, a);
        }),
        ("B is that of another proof", &|_, proof| proof["pi_b"] = other["pi_b"].clone()),
        ("C is that of another proof", &|_, proof| proof["pi_c"] = other["pi_c"].clone()),
    ];
    all.map(|(name, change)| {
        let (public, proof) = changed(change);
        (name, public, proof)
    })
    .into()
}

#[test]
#[ignore = "needs snarkjs"]
fn with_snarkjs_proofs_of_a_circomlib_circuit_are_valid_there_and_its_own_here() {
    let tools = Tools::find();
    tools.make_key();
    let paths = [tools.witness(3), tools.witness(4)];

    // A key without a contribution is refused.
    assert!(matches!(ProvingKey::read(tools.path("unsafe.zkey")), Err(evener_zk::Error::UnsafeKey { .. })));
    let key = ProvingKey::read(tools.path("preimage.zkey")).unwrap();
    let key = key.with_r1cs(&R1cs::read(tools.path("preimage.r1cs")).unwrap()).unwrap();
    let theirs =
        VerifyingKey::from_json("verification_key.json", &tools.read("verification_key.json"), false)
            .unwrap();
    assert_eq!(**key.verifying_key(), theirs);

    let prover = Prover::load(&pool(), key);
    let batch = prover.prove_batch(paths.iter().map(|path| Witness::read(path).unwrap()).collect()).unwrap();
    let proved: Vec<Proved> = batch.into_results().into_iter().map(Result::unwrap).collect();
    for Proved { proof, public } in &proved {
        assert!(tools.verifies("verification_key.json", &public_to_json(public), &proof.to_json()));
    }

    let (public, proof) = (public_to_json(&proved[0].public), proved[0].proof.to_json());
    assert!(verifies(&theirs, &public, &proof));
    for (name, public, proof) in mutations(&public, &proof, &proved[1]) {
        assert!(!tools.verifies("verification_key.json", &public, &proof), "snarkjs: {name}");
        assert!(!verifies(&theirs, &public, &proof), "here: {name}");
    }

    // The proof that snarkjs makes.
    tools.snarkjs("groth16 prove preimage.zkey 3.wtns their_proof.json their_public.json");
    let parse = |name: &str| serde_json::from_slice(&tools.read(name)).unwrap();
    assert_eq!(public, parse("their_public.json"));
    assert!(verifies(&theirs, &public, &parse("their_proof.json")));
}

#[test]
#[ignore = "needs snarkjs"]
fn with_snarkjs_proofs_for_an_arkworks_key_are_valid_there() {
    let tools = Tools::find();
    let sizes = std::env::var("EVENER_TEST_SNARKJS_SIZES").unwrap_or("10:3".into());
    for size in sizes.split(',') {
        let (log, count) =
            size.split_once(':').expect("EVENER_TEST_SNARKJS_SIZES is a list such as 16:4,20:2");
        let (log, count): (u32, u64) = (log.parse().unwrap(), count.parse().unwrap());
        let circuit = Squares::filling(log);
        let start = std::time::Instant::now();
        let key = ProvingKey::set_up(&circuit.r1cs().unwrap()).unwrap();
        println!("2^{log}: arkworks' set-up took {:?}", start.elapsed());
        std::fs::write(tools.path("ark.json"), key.verifying_key().to_json().to_string()).unwrap();
        let prover = Prover::load(&pool(), key);
        let witnesses = (0..count).map(|first| circuit.witness(Fr::from(first)).unwrap()).collect();
        let start = std::time::Instant::now();
        let results = prover.prove_batch(witnesses).unwrap().into_results();
        println!("2^{log}: {count} proofs took {:?}", start.elapsed());
        for result in results {
            let Proved { proof, public } = result.unwrap();
            assert!(tools.verifies("ark.json", &public_to_json(&public), &proof.to_json()));
            let wrong = public_to_json(&[public[0] + Fr::from(1)]);
            assert!(!tools.verifies("ark.json", &wrong, &proof.to_json()));
        }
    }
}
