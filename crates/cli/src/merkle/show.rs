//! A root, and who did what for it, for people and for programs.

use std::{path::Path, time::Duration};

use evener_merkle::TreeSummary;
use evener_schedule::{LeftOut, Report};
use serde::Serialize;

use super::proofs::RootedProof;
use crate::{
    escape,
    output::{count, rate, shown, time},
};

/// Why there was no run.
const TOO_FEW: &str = "too few leaves to use a device";

/// What a build came to.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    #[serde(flatten)]
    pub(super) summary: TreeSummary,
    /// How many bytes of leaves there were.
    pub(super) bytes: u64,
    /// How long all of it took, with reading.
    pub(super) total_s: f64,
    pub(super) leaves_per_s: f64,
    /// Whether devices were asked.
    #[serde(skip)]
    had_run: bool,
    /// Leaves of a block, which is an item of the run; nothing where there was no run, or blocks were of several sizes.
    pub(super) leaves_per_item: Option<u64>,
    #[serde(flatten)]
    pub(super) report: Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tree: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) proofs: Option<Vec<RootedProof>>,
}

impl Outcome {
    pub(super) fn new(
        summary: TreeSummary,
        bytes: u64,
        took: Duration,
        report: Option<Report>,
        leaves_per_item: Option<u64>,
        idle: &[String],
    ) -> Outcome {
        let total_s = took.as_secs_f64();
        Outcome {
            summary,
            bytes,
            total_s,
            leaves_per_s: summary.leaves as f64 / total_s.max(1e-9),
            had_run: report.is_some(),
            leaves_per_item,
            report: report.unwrap_or_else(|| without_run(total_s, idle)),
            tree: None,
            proofs: None,
        }
    }

    pub(super) fn text(&self, proofs_to: Option<&Path>) -> String {
        let TreeSummary { scheme, leaves, root } = self.summary;
        let root = root.map_or("none".into(), |root| root.to_string());
        let mut lines = vec![
            format!("root     {root}"),
            format!("leaves   {} ({} bytes), {scheme}", count(leaves), count(self.bytes)),
            format!("took     {}, {} leaves/s", time(self.total_s), rate(self.leaves_per_s).trim()),
        ];
        lines.extend(self.tree.as_ref().map(|tree| format!("tree     {}", escape::name(tree))));
        lines.extend(proofs_to.map(|path| format!("proofs   {}", shown(path))));
        if self.had_run {
            lines.push(format!("\n{}", self.report));
            let each = self.leaves_per_item.map_or("several".into(), count);
            lines.push(format!("an item is a block of {each} leaves"));
        } else {
            lines.push(format!("\n{TOO_FEW}: hashed on the processor's cores"));
        }
        lines.join("\n") + "\n"
    }
}

/// The report of what needed no run.
fn without_run(took_s: f64, idle: &[String]) -> Report {
    let left_out = idle.iter().map(|id| LeftOut { id: id.clone(), reason: TOO_FEW.into() }).collect();
    Report {
        task: None,
        strategy: None,
        items: 0,
        done: 0,
        wall_s: took_s,
        ideal_s: took_s,
        efficiency: None,
        bound: None,
        speedup: None,
        calibrated: None,
        predicted_s: None,
        devices: Vec::new(),
        left_out,
    }
}
