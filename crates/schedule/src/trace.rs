//! A run as a picture: one row a lane, in the JSON format that Chrome and Perfetto show.

use std::{ops::Range, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};

/// What a span of a lane's time was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// A chunk whose results were accepted.
    Work,
    /// A chunk that a slower lane would have finished later, accepted.
    Rescue,
    /// A chunk whose results were dropped, because somebody else was faster.
    Dropped,
    /// A chunk that failed, hung or was lost with its device.
    Failure,
    /// The part of a chunk's time that went into copies between host and device.
    Copy,
}

/// One span of a lane's time.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Which lane.
    pub lane: usize,
    /// What it did.
    pub activity: Activity,
    /// On which items.
    pub items: Range<u64>,
    /// From when, since the run began.
    pub from: Duration,
    /// Until when.
    pub until: Duration,
}

/// What all lanes did, over a whole run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// The lanes' names.
    pub lanes: Vec<String>,
    /// What they did.
    pub spans: Vec<Span>,
}

impl Trace {
    /// The trace as a JSON document that Perfetto and `chrome://tracing` open.
    pub fn to_json(&self) -> Value {
        let names = self.lanes.iter().enumerate().map(|(lane, name)| {
            json!({ "ph": "M", "pid": 1, "tid": lane, "name": "thread_name", "args": { "name": name } })
        });
        let spans = self.spans.iter().map(|span| {
            json!({
                "ph": "X",
                "pid": 1,
                "tid": span.lane,
                "name": format!("{}..{}", span.items.start, span.items.end),
                "cat": span.activity,
                "ts": microseconds(span.from),
                "dur": microseconds(span.until.saturating_sub(span.from)),
                "args": { "activity": span.activity, "items": span.items.end - span.items.start },
            })
        });
        json!({ "displayTimeUnit": "ms", "traceEvents": names.chain(spans).collect::<Vec<_>>() })
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_lane_is_a_named_row_and_a_chunk_a_span_in_microseconds() {
        let trace = Trace {
            lanes: vec!["cuda:0".into()],
            spans: vec![Span {
                lane: 0,
                activity: Activity::Rescue,
                items: 10..30,
                from: Duration::from_millis(1),
                until: Duration::from_millis(3),
            }],
        };
        let json = trace.to_json();
        assert_eq!(json["traceEvents"][0]["args"]["name"], "cuda:0");
        let span = &json["traceEvents"][1];
        assert_eq!((&span["ts"], &span["dur"]), (&json!(1000.0), &json!(2000.0)));
        assert_eq!((&span["cat"], &span["name"]), (&json!("rescue"), &json!("10..30")));
    }
}
