//! `evener verify`: verifies Groth16 proofs.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use evener_zk::{
    Error,
    format::public_from_json,
    groth16::{Proof, VerifyingKey},
};
use serde::Serialize;

use crate::{
    Mismatch, UsageError, escape,
    output::{display_path, format_counted, write_json, write_out},
    verbosity::Verbosity,
};

/// Verify Groth16 proofs of snarkjs or of `evener prove`
///
/// Public inputs are read from the file beside the proof whose name has `public` instead of `proof`: NAME.public.json for
/// NAME.proof.json, and public.json for proof.json. --public names another file.
///
/// A proof that is invalid counts for more than a file that cannot be read or has no proof or public inputs: `evener help
/// exit-codes` tells them apart.
///
/// With -q, prints nothing: the status says whether all proofs are valid.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Read proofs from these files
    #[arg(value_name = "PROOF", required = true)]
    proofs: Vec<PathBuf>,

    /// Verify with the verification key in this file, as snarkjs exports it
    #[arg(long, value_name = "FILE")]
    vkey: PathBuf,

    /// Read the public inputs of the proof from this file
    #[arg(long, value_name = "FILE")]
    public: Option<PathBuf>,

    /// Accept a key without a phase-2 contribution, for which anyone can forge proofs
    #[arg(long)]
    allow_unsafe_key: bool,

    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  evener verify --vkey verification_key.json proof.json
                                      with the public inputs in public.json
  evener verify --vkey verification_key.json proofs/*.proof.json
                                      verify many proofs
  evener verify --vkey verification_key.json p.json --public inputs.json
                                      name the file of the public inputs";

/// The JSON output.
#[derive(Debug, Serialize)]
struct Groth16Verification<'a> {
    proofs: &'a [VerifiedGroth16Proof],
}

/// The verification of one proof.
#[derive(Debug, Serialize)]
struct VerifiedGroth16Proof {
    file: String,
    public_file: String,
    public: Vec<String>,
    is_valid: bool,
    /// Whether the files could be read, and have the form of a proof and of public inputs.
    is_readable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    if arguments.public.is_some() && arguments.proofs.len() > 1 {
        let count = arguments.proofs.len();
        let message = format!("--public is for one proof, and there are {count}: verify them one by one");
        return Err(UsageError(message).into());
    }
    let key = read(&arguments.vkey)?;
    let key =
        VerifyingKey::from_json(&arguments.vkey.display().to_string(), &key, arguments.allow_unsafe_key);
    let key = match key {
        Err(error @ Error::UnsafeKey { .. }) => {
            bail!("{error}; --allow-unsafe-key accepts it");
        }
        key => key?,
    };
    let mut verified = Vec::new();
    for path in &arguments.proofs {
        let public = match &arguments.public {
            Some(public) => public.clone(),
            None => public_beside(path)?,
        };
        verified.push(verify(&key, path, &public));
    }
    let printed = match arguments.json {
        true => write_json(&Groth16Verification { proofs: &verified }),
        false if verbosity.is_quiet() => Ok(()),
        false => write_out(&text(&verified)).map_err(Into::into),
    };
    // A closed standard output is no error, so it must not take the place of one.
    check(&verified).and(printed)
}

/// Fails if a proof is invalid or cannot be read.
fn check(verified: &[VerifiedGroth16Proof]) -> Result<()> {
    let unreadable = verified.iter().filter(|proof| !proof.is_readable).count();
    let invalid = verified.iter().filter(|proof| !proof.is_valid).count() - unreadable;
    let all = format_counted(verified.len() as u64, "proof", "proofs");
    match (invalid, unreadable) {
        (0, 0) => Ok(()),
        (0, unreadable) => bail!("{unreadable} of {all} cannot be read"),
        (invalid, 0) => Err(Mismatch(format!("{invalid} of {all} invalid")).into()),
        (invalid, unreadable) => {
            Err(Mismatch(format!("{invalid} of {all} invalid, and {unreadable} cannot be read")).into())
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("{}: cannot be read", display_path(path)))
}

/// Returns the file of the public inputs of a proof.
fn public_beside(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().and_then(OsStr::to_str);
    let beside = match name.and_then(|name| Some((name, name.rfind("proof")?))) {
        Some((name, at)) => {
            Some(path.with_file_name(format!("{}public{}", &name[..at], &name[at + "proof".len()..])))
        }
        // A name that is not UTF-8 cannot be searched, but may end as `evener prove` names proofs.
        None => {
            let is_proof = |stem: &OsStr| Path::new(stem).extension() == Some("proof".as_ref());
            let is_named =
                path.extension() == Some("json".as_ref()) && path.file_stem().is_some_and(is_proof);
            is_named.then(|| path.with_extension("").with_extension("public.json"))
        }
    };
    beside.ok_or_else(|| {
        let shown = display_path(path);
        let message =
            format!("{shown}: its name has no `proof` to replace by `public`: name the inputs with --public");
        UsageError(message).into()
    })
}

/// Verifies a proof.
fn verify(key: &VerifyingKey, path: &Path, public_path: &Path) -> VerifiedGroth16Proof {
    let name = |path: &Path| path.display().to_string();
    let contents = |path: &Path| {
        let fail = |error| Error::File { file: name(path), doing: "cannot be read", error: Arc::new(error) };
        std::fs::read(path).map_err(fail)
    };
    let public = contents(public_path).and_then(|json| public_from_json(&name(public_path), &json));
    let proof = contents(path).and_then(|json| Proof::from_json(&name(path), &json));
    let inputs = public.as_ref().map(|public| public.iter().map(ToString::to_string).collect());
    let inputs = inputs.unwrap_or_default();
    let result = proof.and_then(|proof| key.verify(&proof, &public?));
    VerifiedGroth16Proof {
        file: name(path),
        public_file: name(public_path),
        public: inputs,
        is_valid: result.is_ok(),
        is_readable: !matches!(result, Err(Error::File { .. } | Error::Format { .. })),
        error: result.err().map(|error| error.to_string()),
    }
}

fn text(proofs: &[VerifiedGroth16Proof]) -> String {
    let line = |proof: &VerifiedGroth16Proof| {
        let file = escape::single_line(&proof.file).into_owned();
        match &proof.error {
            None if proof.public.len() == 1 => format!("{file}: valid, with 1 public input\n"),
            None => format!("{file}: valid, with {} public inputs\n", proof.public.len()),
            Some(error) => {
                // An error of the proof's own file begins with its name.
                let error = error.strip_prefix(&format!("{}: ", proof.file)).unwrap_or(error);
                let what = if proof.is_readable { "INVALID" } else { "UNREADABLE" };
                format!("{file}: {what}: {}\n", escape::single_line(error))
            }
        }
    };
    proofs.iter().map(line).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn public_inputs_are_beside_the_proof() {
        let beside = |path: &str| public_beside(path.as_ref()).unwrap();
        assert_eq!(beside("proof.json"), Path::new("public.json"));
        assert_eq!(beside("proofs/a.proof.json"), Path::new("proofs/a.public.json"));
        assert_eq!(beside("proofs/proof_of_proof.json"), Path::new("proofs/proof_of_public.json"));
        assert!(public_beside("proofs/a.json".as_ref()).is_err());
    }
}
