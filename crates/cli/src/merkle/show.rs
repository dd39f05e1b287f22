//! A root, and who did what for it, for people and for programs.

use std::{path::Path, time::Duration};

use evener_merkle::Summary;
use evener_schedule::{LeftOut, Report};
use serde::Serialize;

use super::proofs::RootedProof;
use crate::output::{count, rate, time};

/// What a build came to.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    #[serde(flatten)]
    pub(super) summary: Summary,
    /// How many bytes of leaves there were.
    pub(super) bytes: u64,
    /// How long all of it took, with reading.
    pub(super) total_s: f64,
    pub(super) leaves_per_s: f64,
    /// Leaves of a block, which is an item of the run; nothing where there was no run.
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
        summary: Summary,
        bytes: u64,
        took: Duration,
        report: Option<Report>,
        idle: &[String],
    ) -> Outcome {
        let total_s = took.as_secs_f64();
        Outcome {
            summary,
            bytes,
            total_s,
            leaves_per_s: summary.leaves as f64 / total_s.max(1e-9),
            leaves_per_item: report.as_ref().and_then(|report| leaves_per_item(summary.leaves, report.items)),
            report: report.unwrap_or_else(|| without_run(total_s, idle)),
            tree: None,
            proofs: None,
        }
    }

    pub(super) fn text(&self, proofs_to: Option<&Path>) -> String {
        let Summary { scheme, leaves, root } = self.summary;
        let root = root.map_or("none".into(), |root| root.to_string());
        let mut lines = vec![
            format!("root     {root}"),
            format!("leaves   {} ({} bytes), {scheme}", count(leaves), count(self.bytes)),
            format!("took     {}, {} leaves/s", time(self.total_s), rate(self.leaves_per_s).trim()),
        ];
        lines.extend(self.tree.as_ref().map(|tree| format!("tree     {tree}")));
        lines.extend(proofs_to.map(|path| format!("proofs   {}", path.display())));
        match self.leaves_per_item {
            Some(each) => {
                lines.push(format!("\n{}", self.report));
                lines.push(format!("an item is a block of {} leaves", count(each)));
            }
            None => {
                lines.push("\nno device was asked: these leaves are hashed sooner than one is awake".into())
            }
        }
        lines.join("\n") + "\n"
    }
}

/// Blocks are powers of two of leaves, and what is no whole block is no item.
fn leaves_per_item(leaves: u64, items: u64) -> Option<u64> {
    (0..u64::BITS).find(|height| leaves >> height == items).map(|height| 1 << height)
}

/// The report of what needed no run.
fn without_run(took_s: f64, idle: &[String]) -> Report {
    let reason = "so few leaves are hashed sooner than a device is awake";
    let left_out = idle.iter().map(|id| LeftOut { id: id.clone(), reason: reason.into() }).collect();
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_size_of_a_block_is_told_by_how_many_there_are() {
        assert_eq!(leaves_per_item(1_000_000, 976), Some(1024));
        assert_eq!(leaves_per_item(4096, 4), Some(1024));
        assert_eq!(leaves_per_item(100, 100), Some(1));
    }
}
