//! A run as a trace: one or more tracks per lane, in the JSON format that Chrome and Perfetto show.

use std::{ops::Range, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};

use crate::report::grouped;

/// What a lane did in a span of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// A chunk whose results were accepted.
    Work,
    /// A speculative copy of another lane's chunk whose results were accepted.
    Speculative,
    /// A chunk whose results were dropped, because other lanes delivered them first.
    Dropped,
    /// A chunk that failed, hung or was lost with its device.
    Failure,
    /// Preparing the device: opening it, and compiling the task's kernels.
    Preparation,
}

/// A span of a lane's time: a chunk from when it was handed out until it ended, or the preparation of the device.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The lane's index.
    pub lane: usize,
    /// What it did.
    pub activity: Activity,
    /// The chunk's items. A preparation has none.
    pub items: Range<u64>,
    /// The number of items whose results were accepted. Each item of a complete run is accepted in exactly one span.
    pub accepted: u64,
    /// The number of items that the lane computed as well as another lane, whose results were accepted first.
    pub duplicates: u64,
    /// The start, since the run began.
    pub from: Duration,
    /// The end, since the run began.
    pub until: Duration,
    /// The time of copies to the device, at the start of the span.
    pub upload: Duration,
    /// The time of copies from the device, at the end of the span.
    pub download: Duration,
}

/// What all lanes did in a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// The task's name, which begins the name of each slice.
    pub task: String,
    /// The lanes' names.
    pub lanes: Vec<String>,
    /// What they did.
    pub spans: Vec<Span>,
}

impl Trace {
    /// The trace as a JSON document that Perfetto and `chrome://tracing` open.
    ///
    /// A lane with several chunks in flight has several tracks, since slices of a track must not overlap. A chunk's copies
    /// are slices within its own slice.
    pub fn to_json(&self) -> Value {
        let mut spans_of: Vec<Vec<&Span>> = vec![Vec::new(); self.lanes.len()];
        for span in &self.spans {
            if let Some(spans) = spans_of.get_mut(span.lane) {
                spans.push(span);
            }
        }
        let (mut names, mut slices, mut track) = (Vec::new(), Vec::new(), 0);
        for (lane, spans) in self.lanes.iter().zip(spans_of) {
            let tracks = tracks(spans);
            let count = tracks.len();
            for (index, spans) in tracks.into_iter().enumerate() {
                let name = if count == 1 { lane.clone() } else { format!("{lane} worker {index}") };
                let args = json!({ "name": name, "lane": lane });
                names.push(json!({ "ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": args }));
                spans.into_iter().for_each(|span| self.push_slices(&mut slices, span, track));
                track += 1;
            }
        }
        names.append(&mut slices);
        json!({ "displayTimeUnit": "ms", "traceEvents": names })
    }

    /// Adds the slice of a span, and those of its copies.
    fn push_slices(&self, slices: &mut Vec<Value>, span: &Span, track: u64) {
        let (from, until) = (span.from, span.until.max(span.from));
        let upload_end = from.saturating_add(span.upload).min(until);
        let download_start = until.saturating_sub(span.download).max(upload_end);
        let count = span.items.end.saturating_sub(span.items.start);
        let items = format!("{} {}..{}", self.task, grouped(span.items.start), grouped(span.items.end));
        let name = match span.activity {
            Activity::Work => items,
            Activity::Speculative => format!("{items} (speculative copy)"),
            Activity::Dropped => format!("{items} (dropped)"),
            Activity::Failure => format!("{items} (failed)"),
            Activity::Preparation => format!("prepare {}", self.task),
        };
        let mut push = |name: &str, args: Value, from: Duration, until: Duration| {
            slices.push(json!({
                "ph": "X",
                "pid": 1,
                "tid": track,
                "name": name,
                "cat": args["activity"],
                "ts": microseconds(from),
                "dur": microseconds(until.saturating_sub(from)),
                "args": args,
            }));
        };
        let (accepted, duplicates) = (span.accepted, span.duplicates);
        let args = json!({
            "activity": span.activity, "items": count, "accepted": accepted, "duplicates": duplicates,
        });
        push(&name, args, from, until);
        if upload_end > from {
            push("upload", json!({ "activity": "upload", "items": count }), from, upload_end);
        }
        if download_start < until {
            push("download", json!({ "activity": "download", "items": count }), download_start, until);
        }
    }
}

/// Distributes a lane's spans to tracks on which they do not overlap: each to the first track that is free. There is at least
/// one track.
fn tracks(mut spans: Vec<&Span>) -> Vec<Vec<&Span>> {
    spans.sort_by_key(|span| (span.from, span.until));
    let mut tracks: Vec<Vec<&Span>> = vec![Vec::new()];
    for span in spans {
        let is_free = |track: &Vec<&Span>| track.last().is_none_or(|last| last.until <= span.from);
        match tracks.iter().position(is_free) {
            Some(free) => tracks[free].push(span),
            None => tracks.push(vec![span]),
        }
    }
    tracks
}

/// Microseconds with three decimals, which are exact nanoseconds again when they are read.
fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod test {
    use super::*;

    fn span(lane: usize, activity: Activity, from: u64, until: u64) -> Span {
        let [from, until] = [from, until].map(Duration::from_millis);
        let none = Duration::ZERO;
        let items = 1_000..2_000;
        Span {
            lane,
            activity,
            items,
            accepted: 900,
            duplicates: 100,
            from,
            until,
            upload: none,
            download: none,
        }
    }

    /// Name, track, start and duration of each slice.
    fn slices(trace: &Trace) -> Vec<(String, u64, f64, f64)> {
        let json = trace.to_json();
        let events = json["traceEvents"].as_array().unwrap();
        let slice = |event: &Value| {
            let name = event["name"].as_str().unwrap().to_owned();
            let tid = event["tid"].as_u64().unwrap();
            (name, tid, event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap())
        };
        events.iter().filter(|event| event["ph"] == "X").map(slice).collect()
    }

    #[test]
    fn slices_are_named_by_task_and_items_and_copies_lie_within_their_chunk() {
        let ms = Duration::from_millis;
        let chunk = Span { upload: ms(2), download: ms(1), ..span(0, Activity::Work, 1, 9) };
        let spans = vec![span(0, Activity::Preparation, 0, 1), chunk];
        let trace = Trace { task: "square".into(), lanes: vec!["cuda:0".into()], spans };
        assert_eq!(trace.to_json()["traceEvents"][0]["args"]["name"], "cuda:0");
        let expected = [
            ("prepare square", 0.0, 1_000.0),
            ("square 1,000..2,000", 1_000.0, 8_000.0),
            ("upload", 1_000.0, 2_000.0),
            ("download", 8_000.0, 1_000.0),
        ];
        assert_eq!(slices(&trace), expected.map(|(name, ts, dur)| (name.to_owned(), 0, ts, dur)));
    }

    #[test]
    fn a_slice_says_how_many_of_its_items_were_accepted() {
        let chunk = Span { upload: Duration::from_millis(1), ..span(0, Activity::Speculative, 0, 8) };
        let trace = Trace { task: "square".into(), lanes: vec!["a".into()], spans: vec![chunk] };
        let json = trace.to_json();
        let args = [1, 2].map(|index| json["traceEvents"][index]["args"].clone());
        let expected =
            json!({ "activity": "speculative", "items": 1_000, "accepted": 900, "duplicates": 100 });
        assert_eq!(args, [expected, json!({ "activity": "upload", "items": 1_000 })]);
    }

    #[test]
    fn chunks_that_overlap_are_on_tracks_of_their_own() {
        let spans =
            [(1, 4), (2, 6), (4, 8), (6, 7)].map(|(from, until)| span(0, Activity::Work, from, until));
        let lanes = vec!["cuda:0".into(), "cpu".into()];
        let trace = Trace { task: "square".into(), lanes, spans: spans.into() };
        let tracks: Vec<u64> = slices(&trace).into_iter().map(|slice| slice.1).collect();
        assert_eq!(tracks, [0, 0, 1, 1]);
        let json = trace.to_json();
        let names = [0, 1, 2].map(|index| json["traceEvents"][index]["args"]["name"].clone());
        assert_eq!(names, ["cuda:0 worker 0", "cuda:0 worker 1", "cpu"]);
    }

    #[test]
    fn copies_that_were_measured_longer_than_their_chunk_do_not_leave_it() {
        let ms = Duration::from_millis;
        let chunk = Span { upload: ms(7), download: ms(7), ..span(0, Activity::Speculative, 0, 8) };
        let trace = Trace { task: "square".into(), lanes: vec!["a".into()], spans: vec![chunk] };
        let times: Vec<(f64, f64)> = slices(&trace).into_iter().map(|slice| (slice.2, slice.3)).collect();
        assert_eq!(times, [(0.0, 8_000.0), (0.0, 7_000.0), (7_000.0, 1_000.0)]);
    }
}
