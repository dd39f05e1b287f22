//! The trace of a run, made of the bars that the state keeps.

use std::time::Duration;

use evener_schedule::{Activity, Span, Trace};
use serde_json::{Value, json};

use crate::state::{BarKind, RunView};

/// The last chunks of a run as a JSON document that Perfetto and `chrome://tracing` open.
///
/// It has what a live view keeps, and `otherData` says so: the last chunks of each lane only, and no copies.
pub fn trace_of(run: &RunView) -> Value {
    let mut trace = Trace { task: run.summary.task.clone(), ..Trace::default() };
    let (mut kept, mut is_cut) = (0usize, false);
    for device in &run.devices {
        for (index, lane) in device.lanes.iter().enumerate() {
            let number = trace.lanes.len();
            trace.lanes.push(if device.lanes.len() == 1 {
                device.id.clone()
            } else {
                format!("{} core {index}", device.id)
            });
            kept += lane.bars.len();
            is_cut |= lane.bars.len() >= run.max_bars;
            for bar in &lane.bars {
                let activity = activity(bar.kind);
                let is_accepted = matches!(activity, Activity::Work | Activity::Speculative);
                trace.spans.push(Span {
                    lane: number,
                    activity,
                    items: bar.first..bar.first.saturating_add(bar.items),
                    // Of a chunk that another lane has done in part, all items count here.
                    accepted: if is_accepted { bar.items } else { 0 },
                    duplicates: 0,
                    from: seconds(bar.from_s),
                    until: seconds(bar.until_s),
                    upload: Duration::ZERO,
                    download: Duration::ZERO,
                });
            }
        }
    }
    let chunks: u64 = run.devices.iter().map(|device| device.totals.chunks).sum();
    let mut json = trace.to_json();
    let summary = &run.summary;
    let missing = if is_cut {
        format!("the beginning: a live view keeps the last {} chunks of each lane", run.max_bars)
    } else {
        "no chunks, unless the view was attached in the middle of the run".into()
    };
    json["otherData"] = json!({
        "task": summary.task,
        "run": summary.id,
        "began_unix_s": summary.began_unix_s,
        "has_ended": summary.ended.is_some(),
        "chunks_in_this_trace": kept,
        "chunks_of_the_run": chunks,
        "missing": format!("{missing}; copies, duplicates and the parts of a chunk that several lanes did (a whole trace is written by --trace)"),
    });
    json
}

fn activity(kind: BarKind) -> Activity {
    match kind {
        BarKind::Work | BarKind::Steal | BarKind::Canary => Activity::Work,
        BarKind::Speculative => Activity::Speculative,
        BarKind::Dropped => Activity::Dropped,
        BarKind::Failure => Activity::Failure,
        BarKind::Preparation => Activity::Preparation,
    }
}

/// A time from a program, which may be any number.
fn seconds(time: f64) -> Duration {
    Duration::try_from_secs_f64(time).unwrap_or_default()
}
