//! Files that are damaged, cut or of another kind: an error that names the part, or a proof that verifies; never a panic.

use ark_ff::PrimeField;
use evener_zk::{
    Error,
    format::public_from_json,
    groth16::{Proof, ProvingKey, R1cs, VerifyingKey, Witness},
};
use proptest::prelude::*;

use crate::{PROOF, PUBLIC, R1CS, VKEY, WTNS, ZKEY, key, pool, prover, r1cs, witness};

/// A change of a file.
#[derive(Debug, Clone)]
enum Damage {
    Cut(prop::sample::Index),
    Flip(prop::sample::Index, u8),
    Word(prop::sample::Index, u32),
    Insert(prop::sample::Index, Vec<u8>),
}

impl Damage {
    fn apply(&self, file: &[u8]) -> Vec<u8> {
        let mut bytes = file.to_vec();
        match self {
            Damage::Cut(at) => bytes.truncate(at.index(file.len())),
            Damage::Flip(at, bits) => bytes[at.index(file.len())] ^= bits,
            Damage::Word(at, word) => {
                let at = at.index(file.len() - 4);
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            Damage::Insert(at, more) => {
                let at = at.index(file.len() + 1);
                bytes.splice(at..at, more.iter().copied());
            }
        }
        bytes
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    // Headers and lengths are at the beginning, where random positions are rare.
    let word = prop_oneof![Just(0), Just(1), Just(u32::MAX), Just(1 << 31), any::<u32>()];
    prop_oneof![
        at().prop_map(Damage::Cut),
        (at(), 1..=255u8).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        (at(), word).prop_map(|(at, word)| Damage::Word(at, word)),
        (at(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, more)| Damage::Insert(at, more)),
    ]
}

/// Fails unless an error is about this file and one of its parts.
fn names_a_part(error: &Error, file: &str) {
    match error {
        Error::Format { file: named, part, detail } | Error::InvalidValue { file: named, part, detail } => {
            assert_eq!(named, file);
            assert!(!part.is_empty() && !detail.is_empty(), "{error}");
        }
        Error::UnsafeKey { file: named } => assert_eq!(named, file),
        other => panic!("{other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_zkey_is_an_error_or_proves_what_verifies(damage in damage()) {
        match ProvingKey::from_zkey("key.zkey", &damage.apply(ZKEY)) {
            Err(error) => names_a_part(&error, "key.zkey"),
            Ok(key) => {
                let verifying = key.verifying_key().clone();
                match evener_zk::groth16::Prover::load(&pool(), key).prove(witness()) {
                    Ok(proved) => verifying.verify(&proved.proof, &proved.public).unwrap(),
                    Err(error) => assert!(
                        matches!(error, Error::Unprovable | Error::OtherCircuit { .. }), "{}", error
                    ),
                }
            }
        }
    }

    #[test]
    fn a_damaged_witness_is_an_error_or_is_not_provable(damage in damage()) {
        let damaged = damage.apply(WTNS);
        match Witness::from_wtns("witness.wtns", &damaged) {
            Err(error) => names_a_part(&error, "witness.wtns"),
            Ok(read) if read.values() == witness().values() => {}
            Ok(read) => {
                let key = key().with_r1cs(&r1cs()).unwrap();
                let error = prover(key).prove(read).unwrap_err();
                assert!(matches!(error, Error::Unsatisfied { .. } | Error::OtherCircuit { .. }), "{}", error);
            }
        }
    }

    #[test]
    fn damaged_constraints_are_an_error_or_other_constraints(damage in damage()) {
        match R1cs::from_r1cs("circuit.r1cs", &damage.apply(R1CS)) {
            Err(error) => names_a_part(&error, "circuit.r1cs"),
            Ok(read) if read == r1cs() => {}
            // C is not in the key, so changes there are seen by the witness.
            Ok(read) => match key().with_r1cs(&read) {
                Err(error) => assert!(matches!(error, Error::OtherConstraints { .. }), "{}", error),
                Ok(key) => assert!(matches!(prover(key).prove(witness()), Err(Error::Unsatisfied { .. }))),
            },
        }
    }

    #[test]
    fn damaged_json_is_an_error_or_does_not_verify(which in 0..3usize, damage in damage()) {
        let mut files = [VKEY.to_vec(), PROOF.to_vec(), PUBLIC.to_vec()];
        files[which] = damage.apply(&files[which]);
        let key = VerifyingKey::from_json("vkey.json", &files[0], false);
        let proof = Proof::from_json("proof.json", &files[1]);
        let public = public_from_json("public.json", &files[2]);
        for (error, file) in [
            (key.as_ref().err(), "vkey.json"),
            (proof.as_ref().err(), "proof.json"),
            (public.as_ref().err(), "public.json"),
        ] {
            if let Some(error) = error {
                names_a_part(error, file);
            }
        }
        let (Ok(key), Ok(proof), Ok(public)) = (key, proof, public) else { return Ok(()) };
        let is_same = key == crate::verifying_key()
            && proof == Proof::from_json("", PROOF).unwrap()
            && public == public_from_json("", PUBLIC).unwrap();
        assert_eq!(key.verify(&proof, &public).is_ok(), is_same);
    }
}

/// The first byte of a section's contents.
fn section(file: &[u8], number: u32) -> usize {
    let mut at = 12;
    loop {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        if word(at) == number {
            return at + 12;
        }
        at += 12 + word(at + 4) as usize;
    }
}

fn zkey_error(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = ZKEY.to_vec();
    change(&mut bytes);
    ProvingKey::from_zkey("k", &bytes).unwrap_err().to_string()
}

#[test]
fn errors_of_a_zkey_say_which_part_is_wrong_and_how() {
    let at = |number: u32| section(ZKEY, number);
    // Every bit of the points is checked, because no other bytes are on the curve.
    assert_eq!(
        zkey_error(|it| it[at(5) + 64 * 3] ^= 1),
        "k: section 5 (points A): point 3 is not on the curve"
    );
    assert_eq!(
        zkey_error(|it| it[at(7) + 128 * 2] ^= 1),
        "k: section 7 (points B2): point 2 is not on the curve"
    );
    let large = zkey_error(|it| it[at(9)..at(9) + 32].fill(0xff));
    assert_eq!(large, "k: section 9 (points H): point 0 has a coordinate that is not less than the modulus");
    assert_eq!(zkey_error(|it| it[0] = b'w'), "k: file header: the file begins with `wkey`, not with `zkey`");
    assert!(zkey_error(|it| *it = WTNS.to_vec()).starts_with("k: file header: the file begins with `wtns`"));
    assert!(zkey_error(|it| it[at(1)] = 2).starts_with("k: section 1 (protocol): protocol 2 (PLONK)"));
    let prime = zkey_error(|it| it[at(2) + 4] ^= 2);
    assert!(
        prime.starts_with("k: section 2 (Groth16 header): the base field is the integers modulo"),
        "{prime}"
    );
    assert_eq!(zkey_error(|it| it.push(0)), "k: end of the file: 1 bytes follow the last section");
    let cut = zkey_error(|it| it.truncate(at(9)));
    assert!(
        cut.starts_with("k: section 9 (points H): 1024 bytes are announced, and the file has 0"),
        "{cut}"
    );
    assert!(zkey_error(|it| it.clear()).starts_with("k: file header: the file has 0 bytes"));
    let coefficient = zkey_error(|it| it[at(4) + 4 + 8] = 10);
    assert_eq!(coefficient, "k: section 4 (coefficients): coefficient 0 is of signal 10, and there are 10");
    let domain = zkey_error(|it| it[at(2) + 80] = 15);
    assert!(domain.contains("a domain of 15 elements: it must be a power of two"), "{domain}");
}

/// A set-up allocates memory for each wire, so a file of two kilobytes must not announce billions of them.
#[test]
fn constraints_have_as_many_wires_as_the_file_has_labels() {
    let wires = section(R1CS, 1) + 4 + 32;
    for count in [9, 11, u32::MAX] {
        let mut bytes = R1CS.to_vec();
        bytes[wires..wires + 4].copy_from_slice(&count.to_le_bytes());
        let error = R1cs::from_r1cs("c", &bytes).unwrap_err().to_string();
        let labels = "c: section 3 (wire labels): has 80 bytes";
        assert_eq!(error, format!("{labels}, and {count} elements of 8 bytes are expected"));
    }
    // Without its last section, the file ends before the labels.
    let mut bytes = R1CS[..section(R1CS, 3) - 12].to_vec();
    bytes[8] = 2;
    let error = R1cs::from_r1cs("c", &bytes).unwrap_err().to_string();
    assert_eq!(error, "c: section 3 (wire labels): is missing");
}

/// A reader that looks at every section for each one would take hours.
#[test]
fn a_file_of_millions_of_empty_sections_is_refused_at_once() {
    let sections = 4_000_000u32;
    let mut bytes = ZKEY[..8].to_vec();
    bytes.extend(sections.to_le_bytes());
    for number in 100..100 + sections {
        bytes.extend(number.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
    }
    let error = crate::processors::within(std::time::Duration::from_secs(20), "many sections", move || {
        ProvingKey::from_zkey("k", &bytes).unwrap_err().to_string()
    });
    assert_eq!(error, "k: file header: 4000000 sections, and at most 256 are expected");
}

#[test]
fn a_verification_key_with_an_infinite_point_is_refused() {
    let json: serde_json::Value = serde_json::from_slice(VKEY).unwrap();
    let g2 = serde_json::json!([["0", "0"], ["1", "0"], ["0", "0"]]);
    let infinite = [
        ("vk_alpha_1", serde_json::json!(["0", "1", "0"])),
        ("vk_beta_2", g2.clone()),
        ("vk_gamma_2", g2.clone()),
        ("vk_delta_2", g2),
    ];
    for (name, point) in infinite {
        let mut changed = json.clone();
        changed[name] = point;
        let error = VerifyingKey::from_json("v", changed.to_string().as_bytes(), true).unwrap_err();
        assert_eq!(error.to_string(), format!("v: `{name}`: is the point at infinity"));
    }
}

#[test]
fn a_key_without_a_contribution_is_refused_unless_asked_for() {
    // The header has gamma 2, delta 1 and delta 2 behind the sizes, alpha 1, beta 1 and beta 2.
    let gamma = section(ZKEY, 2) + 2 * 36 + 12 + 64 + 64 + 128;
    let delta = gamma + 128 + 64;
    let mut bytes = ZKEY.to_vec();
    bytes.copy_within(gamma..gamma + 128, delta);
    let error = ProvingKey::from_zkey("k", &bytes).unwrap_err();
    assert!(matches!(&error, Error::UnsafeKey { file } if file == "k"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("unsafe.zkey");
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(ProvingKey::read(&path), Err(Error::UnsafeKey { .. })));
    assert_eq!(ProvingKey::read_unsafe(&path).unwrap().constraints(), 8);

    let mut json: serde_json::Value = serde_json::from_slice(VKEY).unwrap();
    json["vk_delta_2"] = json["vk_gamma_2"].clone();
    let json = serde_json::to_vec(&json).unwrap();
    assert!(matches!(VerifyingKey::from_json("v", &json, false), Err(Error::UnsafeKey { .. })));
    assert!(VerifyingKey::from_json("v", &json, true).is_ok());
}

#[test]
fn errors_of_other_files_say_which_part_is_wrong() {
    let witness = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = WTNS.to_vec();
        change(&mut bytes);
        Witness::from_wtns("w", &bytes).unwrap_err().to_string()
    };
    let values = section(WTNS, 2);
    let modulus: Vec<u8> = ark_bn254::Fr::MODULUS.0.iter().flat_map(|limb| limb.to_le_bytes()).collect();
    let large = witness(&|it| it[values + 64..values + 96].copy_from_slice(&modulus));
    assert_eq!(large, "w: section 2 (values): value 2 is not less than the modulus");
    let count = witness(&|it| it[section(WTNS, 1) + 36] = 11);
    assert_eq!(count, "w: section 2 (values): has 320 bytes, and 11 elements of 32 bytes are expected");
    let one = witness(&|it| it[values] = 2);
    assert!(one.contains("its first value is not 1"), "{one}");

    let mut json: serde_json::Value = serde_json::from_slice(PROOF).unwrap();
    json["pi_a"][0] = "5".into();
    let error = Proof::from_json("p", &serde_json::to_vec(&json).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "p: `pi_a`: is not on the curve");
    json["curve"] = "bls12381".into();
    let error = Proof::from_json("p", &serde_json::to_vec(&json).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "p: `curve`: is \"bls12381\", and \"bn128\" is expected");
    let missing = ProvingKey::read("/nonexistent/key.zkey").unwrap_err().to_string();
    assert!(missing.starts_with("/nonexistent/key.zkey: cannot be opened"), "{missing}");
}
