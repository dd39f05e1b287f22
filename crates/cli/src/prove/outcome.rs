//! The text and JSON output of `evener prove`.

use std::{path::Path, time::Duration};

use evener_schedule::Report;
use evener_zk::groth16::{Batch, ProvingKey};
use serde::Serialize;

use super::{
    OutputFiles,
    results::{WitnessResult, WitnessResults},
};
use crate::{
    escape,
    output::{format_count, format_counted, format_rate, format_time},
};

/// The result of proving.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    constraints: usize,
    wires: usize,
    public_inputs: usize,
    /// Number of elements of the domain, a power of two.
    domain: usize,
    /// The time to read the key and the constraints.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) key_s: f64,
    /// The time of the set-up of a key for a measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) set_up_s: Option<f64>,
    /// The time of a proof before the measured ones, which copies the key to a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first_proof_s: Option<f64>,
    /// The time of reading witnesses, proving and verifying.
    total_s: f64,
    proofs_per_s: f64,
    proofs: Vec<ProofOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verification_key: Option<String>,
    /// Whether all devices made each proof together. An item of the report is then a piece of a proof.
    is_shared: bool,
    #[serde(flatten)]
    report: Option<Report>,
}

/// The result of one witness.
#[derive(Debug, Serialize)]
struct ProofOutcome {
    #[serde(skip_serializing_if = "Option::is_none")]
    witness: Option<String>,
    /// Whether this run made the proof.
    is_proved: bool,
    /// Whether the proof of an earlier run was kept.
    #[serde(skip_serializing_if = "is_false")]
    is_kept: bool,
    /// The files that were written, or kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    public: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Outcome {
    /// Collects the results of the witnesses. There is no batch if the run ended early.
    pub(super) fn new(
        key: &ProvingKey,
        batch: Option<&Batch>,
        results: &WitnessResults<'_>,
        took: Duration,
    ) -> Outcome {
        let total_s = took.as_secs_f64();
        Outcome {
            constraints: key.constraints(),
            wires: key.wires(),
            public_inputs: key.public(),
            domain: key.domain(),
            key_s: 0.0,
            set_up_s: None,
            first_proof_s: None,
            total_s,
            proofs_per_s: results.proved() as f64 / total_s.max(1e-9),
            proofs: results
                .iter()
                .map(|(witness, files, result)| ProofOutcome::new(witness, files, result))
                .collect(),
            verification_key: None,
            is_shared: batch.is_some_and(Batch::is_shared),
            report: batch.and_then(Batch::report).cloned(),
        }
    }

    /// Returns the names of the proofs, one per line.
    pub(super) fn files_text(&self) -> String {
        let written = self.proofs.iter().filter(|proof| proof.is_proved);
        let names = written.filter_map(|proof| proof.proof.as_ref());
        names.map(|name| format!("{}\n", escape::single_line(name))).collect()
    }

    pub(super) fn text(&self) -> String {
        let count = |number: usize| format_count(number as u64);
        let mut lines = vec![
            format!("proofs   {}", self.counts_text()),
            format!(
                "circuit  {}, {}, {} public",
                format_counted(self.constraints as u64, "constraint", "constraints"),
                format_counted(self.wires as u64, "wire", "wires"),
                count(self.public_inputs)
            ),
        ];
        if self.proofs_per_s > 0.0 {
            let (took, rate) = (format_time(self.total_s), format_rate(self.proofs_per_s));
            lines.push(format!("took     {took}, {rate} proofs/s"));
        }
        if self.key_s > 0.0 {
            lines.push(format!("key      read in {}", format_time(self.key_s)));
        }
        if let (Some(set_up), Some(first)) = (self.set_up_s, self.first_proof_s) {
            let (set_up, first) = (format_time(set_up), format_time(first));
            lines.push(format!("set-up   {set_up}; the first proof, not counted, took {first}"));
        }
        let proofs = self.proofs.iter().filter(|proof| proof.is_proved);
        let proofs = proofs.filter_map(|proof| proof.proof.as_ref());
        for file in self.verification_key.iter().chain(proofs) {
            lines.push(format!("wrote    {}", escape::single_line(file)));
        }
        if let Some(report) = &self.report {
            lines.push(format!("\n{report}"));
            let item = if self.is_shared { "a piece of a proof" } else { "a proof" };
            lines.push(format!("an item is {item}"));
        }
        lines.join("\n") + "\n"
    }

    /// Returns how many proofs were made, kept, failed and not reached: `2 of 5, verified; 1 kept, 1 failed, 1 not reached`.
    fn counts_text(&self) -> String {
        let number =
            |is: fn(&ProofOutcome) -> bool| self.proofs.iter().filter(|proof| is(proof)).count() as u64;
        let (all, proved) = (self.proofs.len() as u64, number(|proof| proof.is_proved));
        let others = [
            ("kept", number(|proof| proof.is_kept)),
            ("failed", number(|proof| proof.error.is_some())),
            ("not reached", number(|proof| !proof.is_proved && !proof.is_kept && proof.error.is_none())),
        ];
        let others: Vec<String> = others
            .iter()
            .filter(|(_, number)| *number > 0)
            .map(|(what, number)| format!("{} {what}", format_count(*number)))
            .collect();
        let verified = match proved {
            0 => "",
            _ if proved == all => ", all verified",
            _ => ", verified",
        };
        let separator = if others.is_empty() { "" } else { "; " };
        format!("{} of {}{verified}{separator}{}", format_count(proved), format_count(all), others.join(", "))
    }
}

impl ProofOutcome {
    fn new(witness: Option<&Path>, files: Option<&OutputFiles>, result: &WitnessResult) -> ProofOutcome {
        let (is_proved, is_kept) =
            (matches!(result, WitnessResult::Proved), matches!(result, WitnessResult::Kept));
        let files = files.filter(|_| is_proved || is_kept);
        ProofOutcome {
            witness: witness.map(|path| path.display().to_string()),
            is_proved,
            is_kept,
            proof: files.map(|files| files.proof.display().to_string()),
            public: files.map(|files| files.public.display().to_string()),
            error: match result {
                WitnessResult::Failed(error) => Some(format!("{error:#}")),
                _ => None,
            },
        }
    }
}
