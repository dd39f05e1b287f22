//! The text and JSON output of `evener merkle`.

use std::time::Duration;

use evener_merkle::TreeSummary;
use evener_schedule::{LeftOut, Report};
use serde::Serialize;

use super::proofs::RootedProof;
use crate::{
    escape,
    output::{format_count, format_counted, format_rate, format_time},
};

/// The reason for a build without a run.
const TOO_FEW: &str = "too few leaves to use a device";

/// The result of a build.
#[derive(Debug, Serialize)]
pub(super) struct BuildOutcome {
    #[serde(flatten)]
    pub(super) summary: TreeSummary,
    /// The number of bytes of all leaves.
    pub(super) bytes: u64,
    /// The time of the build, including reading.
    pub(super) total_s: f64,
    pub(super) leaves_per_s: f64,
    /// Whether the pool was used.
    #[serde(skip)]
    had_run: bool,
    /// The leaves of a block, which is an item of the run; `None` without a run, or if blocks have several sizes.
    pub(super) leaves_per_item: Option<u64>,
    #[serde(flatten)]
    pub(super) report: Report,
    /// The file that the tree was stored in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tree: Option<String>,
    /// The file that the proofs were written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) proofs_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) proofs: Option<Vec<RootedProof>>,
}

impl BuildOutcome {
    pub(super) fn new(
        summary: TreeSummary,
        bytes: u64,
        took: Duration,
        report: Option<Report>,
        leaves_per_item: Option<u64>,
        idle: &[String],
    ) -> BuildOutcome {
        let total_s = took.as_secs_f64();
        BuildOutcome {
            summary,
            bytes,
            total_s,
            leaves_per_s: summary.leaves as f64 / total_s.max(1e-9),
            had_run: report.is_some(),
            leaves_per_item,
            report: report.unwrap_or_else(|| without_run(total_s, idle)),
            tree: None,
            proofs_file: None,
            proofs: None,
        }
    }

    pub(super) fn text(&self) -> String {
        let TreeSummary { scheme, leaves, root } = self.summary;
        let root = root.map_or("none".into(), |root| root.to_string());
        let mut lines = vec![
            format!("root     {root}"),
            format!(
                "leaves   {} ({}), {scheme}",
                format_count(leaves),
                format_counted(self.bytes, "byte", "bytes")
            ),
            format!("took     {}, {} leaves/s", format_time(self.total_s), format_rate(self.leaves_per_s)),
        ];
        let file = |label: &str, name: &String| format!("{label} {}", escape::single_line(name));
        lines.extend(self.tree.as_ref().map(|name| file("tree    ", name)));
        lines.extend(self.proofs_file.as_ref().map(|name| file("proofs  ", name)));
        if self.had_run {
            lines.push(format!("\n{}", self.report));
            lines.push(match self.leaves_per_item {
                Some(leaves) => format!("an item is a block of {}", format_counted(leaves, "leaf", "leaves")),
                None => "an item is a block of leaves; blocks have several sizes".into(),
            });
        } else {
            lines.push(format!("\n{TOO_FEW}: hashed on the CPU's cores"));
        }
        lines.join("\n") + "\n"
    }
}

/// Returns the report of a build without a run.
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
