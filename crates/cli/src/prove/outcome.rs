//! The text and JSON output of `evener prove`.

use std::{path::PathBuf, time::Duration};

use evener_schedule::Report;
use evener_zk::groth16::{Batch, ProvingKey};
use serde::Serialize;

use super::OutputFiles;
use crate::{
    escape,
    output::{format_count, format_rate, format_time},
};

/// The result of proving.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    constraints: usize,
    wires: usize,
    public_inputs: usize,
    /// Number of elements of the domain, a power of two.
    domain: usize,
    /// The time to read the key, the constraints and the witnesses.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) key_s: f64,
    /// The time of the set-up of a key for a measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) set_up_s: Option<f64>,
    /// The time of a proof before the measured ones, which copies the key to a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first_proof_s: Option<f64>,
    /// The time of proving and verifying.
    total_s: f64,
    proofs_per_s: f64,
    proofs: Vec<ProofOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verification_key: Option<String>,
    #[serde(flatten)]
    report: Option<Report>,
}

/// The result of one witness.
#[derive(Debug, Serialize)]
struct ProofOutcome {
    #[serde(skip_serializing_if = "Option::is_none")]
    witness: Option<String>,
    is_proved: bool,
    /// The files that were written.
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

impl Outcome {
    pub(super) fn new(key: &ProvingKey, batch: &Batch, took: Duration) -> Outcome {
        let proved = batch.results().iter().filter(|result| result.is_ok()).count();
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
            proofs_per_s: proved as f64 / total_s.max(1e-9),
            proofs: Vec::new(),
            verification_key: None,
            report: batch.report().cloned(),
        }
    }

    /// Adds the result of the next witness.
    pub(super) fn add(
        &mut self,
        witness: Option<&PathBuf>,
        files: Option<&OutputFiles>,
        error: Option<&anyhow::Error>,
    ) {
        let files = files.filter(|_| error.is_none());
        self.proofs.push(ProofOutcome {
            witness: witness.map(|path| path.display().to_string()),
            is_proved: error.is_none(),
            proof: files.map(|files| files.proof.display().to_string()),
            public: files.map(|files| files.public.display().to_string()),
            error: error.map(|error| format!("{error:#}")),
        });
    }

    /// Returns the names of the proofs, one per line.
    pub(super) fn files_text(&self) -> String {
        let names = self.proofs.iter().filter_map(|proof| proof.proof.as_ref());
        names.map(|name| format!("{}\n", escape::single_line(name))).collect()
    }

    pub(super) fn text(&self) -> String {
        let count = |number: usize| format_count(number as u64);
        let proved = self.proofs.iter().filter(|proof| proof.is_proved).count();
        let mut lines = vec![
            format!("proofs   {} of {}, all verified", count(proved), count(self.proofs.len())),
            format!(
                "circuit  {} constraints, {} wires, {} public",
                count(self.constraints),
                count(self.wires),
                count(self.public_inputs)
            ),
            format!("took     {}, {} proofs/s", format_time(self.total_s), format_rate(self.proofs_per_s)),
        ];
        if self.key_s > 0.0 {
            lines.push(format!("key      read in {}", format_time(self.key_s)));
        }
        if let (Some(set_up), Some(first)) = (self.set_up_s, self.first_proof_s) {
            let (set_up, first) = (format_time(set_up), format_time(first));
            lines.push(format!("set-up   {set_up}; the first proof, not counted, took {first}"));
        }
        let proofs = self.proofs.iter().filter_map(|proof| proof.proof.as_ref());
        for file in self.verification_key.iter().chain(proofs) {
            lines.push(format!("wrote    {}", escape::single_line(file)));
        }
        if let Some(report) = &self.report {
            lines.push(format!("\n{report}"));
            lines.push("an item is a proof".into());
        }
        lines.join("\n") + "\n"
    }
}
