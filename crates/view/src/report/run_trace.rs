//! What the lanes of a run did, from its trace: in memory, or from a file in the format of Chrome and Perfetto.

use std::collections::{BTreeMap, HashMap};

use evener_schedule::{Activity, Report, Trace};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Provenance;

/// Why a text is no trace of a run.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It is no JSON, or not of the format of Chrome and Perfetto.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It has no chunk of a run.
    #[error("it has no chunks")]
    NoChunks,
}

/// What a lane did in a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneActivity {
    /// A chunk whose results were used.
    Work,
    /// A speculative copy of a slower lane's chunk whose results were used.
    Speculative,
    /// A chunk that another lane finished first.
    Dropped,
    /// A chunk that failed.
    Failure,
    /// A copy between host and device, which is part of a chunk.
    Copy,
    /// Opening a device or compiling a kernel.
    Preparation,
    /// An activity that this version does not know.
    Unknown,
}

impl LaneActivity {
    fn from_name(name: &str) -> LaneActivity {
        match name.to_ascii_lowercase().as_str() {
            "work" => LaneActivity::Work,
            // Traces of earlier versions say `rescue`.
            "rescue" | "speculative" => LaneActivity::Speculative,
            "dropped" => LaneActivity::Dropped,
            "failure" => LaneActivity::Failure,
            "copy" | "upload" | "download" => LaneActivity::Copy,
            name if name.starts_with("prepar") || name.starts_with("start") => LaneActivity::Preparation,
            _ => LaneActivity::Unknown,
        }
    }

    /// Returns whether the span is a chunk whose results were used, all or some.
    pub fn is_used(self) -> bool {
        matches!(self, LaneActivity::Work | LaneActivity::Speculative)
    }

    /// Returns whether the span is a chunk.
    pub fn is_chunk(self) -> bool {
        matches!(
            self,
            LaneActivity::Work | LaneActivity::Speculative | LaneActivity::Dropped | LaneActivity::Failure
        )
    }
}

/// A span of a lane's time, in seconds since the start of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaneSpan {
    /// What the lane did.
    pub activity: LaneActivity,
    /// The number of items.
    pub items: u64,
    /// Items whose results were accepted.
    pub accepted: u64,
    /// Items that another lane computed as well, whose results were accepted first.
    pub duplicates: u64,
    /// The start.
    pub from_s: f64,
    /// The end.
    pub until_s: f64,
}

/// A row of a trace.
#[derive(Debug, Clone, Default)]
pub struct LaneTrace {
    /// The device's id.
    pub device: String,
    /// What the lane did.
    pub spans: Vec<LaneSpan>,
}

/// The lanes of a run.
#[derive(Debug, Clone, Default)]
pub struct RunTrace {
    /// The lanes.
    pub lanes: Vec<LaneTrace>,
    /// The run's report and its origin, if the file has them.
    pub origin: Option<Box<TraceOrigin>>,
}

/// What the file of a trace says besides what Chrome and Perfetto show: the run's report, and where the run was.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TraceOrigin {
    /// The run's report.
    pub report: Report,
    /// Where, when and by what the run was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

impl TraceOrigin {
    /// The trace as a JSON document that Perfetto and `chrome://tracing` open, with this added under `otherData.evener`.
    pub fn to_json(&self, trace: &Trace) -> Result<Value, serde_json::Error> {
        let mut json = trace.to_json();
        json["otherData"] = json!({ "evener": serde_json::to_value(self)? });
        Ok(json)
    }
}

impl From<&Trace> for RunTrace {
    fn from(trace: &Trace) -> RunTrace {
        let lane = |name: &String| LaneTrace { device: device_of(name), spans: Vec::new() };
        let mut lanes: Vec<LaneTrace> = trace.lanes.iter().map(lane).collect();
        for span in &trace.spans {
            let Some(lane) = lanes.get_mut(span.lane) else { continue };
            let (from, until) = (span.from, span.until.max(span.from));
            let of = |activity, from: std::time::Duration, until: std::time::Duration| LaneSpan {
                activity,
                items: span.items.end.saturating_sub(span.items.start),
                accepted: 0,
                duplicates: 0,
                from_s: from.as_secs_f64(),
                until_s: until.as_secs_f64(),
            };
            let activity = match span.activity {
                Activity::Work => LaneActivity::Work,
                Activity::Speculative => LaneActivity::Speculative,
                Activity::Dropped => LaneActivity::Dropped,
                Activity::Failure => LaneActivity::Failure,
                Activity::Preparation => LaneActivity::Preparation,
            };
            let (accepted, duplicates) = (span.accepted, span.duplicates);
            lane.spans.push(LaneSpan { accepted, duplicates, ..of(activity, from, until) });
            let upload_end = from.saturating_add(span.upload).min(until);
            let download_start = until.saturating_sub(span.download).max(upload_end);
            let copies = [(from, upload_end), (download_start, until)].into_iter();
            lane.spans.extend(
                copies
                    .filter(|(from, until)| until > from)
                    .map(|(from, until)| of(LaneActivity::Copy, from, until)),
            );
        }
        RunTrace { lanes, origin: None }
    }
}

/// An event of the file. Unknown keys are ignored.
#[derive(Debug, Deserialize)]
struct TraceEvent {
    ph: String,
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    tid: u64,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: Value,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: BTreeMap<String, Value>,
}

impl TraceEvent {
    fn argument(&self, name: &str) -> Option<&str> {
        self.args.get(name)?.as_str()
    }
}

impl RunTrace {
    /// A trace of these lanes.
    pub fn of(lanes: Vec<LaneTrace>) -> RunTrace {
        RunTrace { lanes, origin: None }
    }

    /// The lanes of each device, in the order in which the devices occur.
    pub(super) fn devices(&self) -> Vec<(&str, Vec<&LaneTrace>)> {
        let (mut devices, mut index): (Vec<(&str, Vec<&LaneTrace>)>, _) = (Vec::new(), HashMap::new());
        for lane in &self.lanes {
            let id = lane.device.as_str();
            let at = *index.entry(id).or_insert_with(|| {
                devices.push((id, Vec::new()));
                devices.len() - 1
            });
            devices[at].1.push(lane);
        }
        devices
    }

    /// Parses a file. Fails if it has no span with a known activity.
    pub fn parse(text: &str) -> Result<RunTrace, TraceError> {
        let mut file: Value = serde_json::from_str(text)?;
        // Another version of Evener may write another report: then there is none.
        let origin = file.get_mut("otherData").and_then(|data| data.get_mut("evener")).map(Value::take);
        let origin = origin.and_then(|origin| serde_json::from_value(origin).ok()).map(Box::new);
        // The format also allows the list of events alone.
        let events = file.get("traceEvents").unwrap_or(&file);
        let events: Vec<TraceEvent> = serde_json::from_value(events.clone())?;
        let mut lanes: BTreeMap<(u64, u64), LaneTrace> = BTreeMap::new();
        // A lane with several chunks in flight has several tracks, each of which names its lane.
        let mut first_track: BTreeMap<(u64, &str), u64> = BTreeMap::new();
        let mut lane_of_track: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for event in events.iter().filter(|event| event.ph == "M" && event.name == "thread_name") {
            let lane = event.argument("lane");
            let first = lane.map(|lane| *first_track.entry((event.pid, lane)).or_insert(event.tid));
            let first = first.unwrap_or(event.tid);
            lane_of_track.insert((event.pid, event.tid), first);
            let name = lane.or(event.argument("name")).unwrap_or_default();
            lanes.entry((event.pid, first)).or_default().device = device_of(name);
        }
        for event in events.iter().filter(|event| event.ph == "X") {
            let lane = lane_of_track.get(&(event.pid, event.tid)).unwrap_or(&event.tid);
            lanes.entry((event.pid, *lane)).or_default().spans.extend(span(event));
        }
        for ((_, tid), lane) in &mut lanes {
            if lane.device.is_empty() {
                lane.device = format!("lane {tid}");
            }
        }
        let lanes: Vec<LaneTrace> = lanes.into_values().collect();
        if !lanes.iter().flat_map(|lane| &lane.spans).any(|span| span.activity.is_chunk()) {
            return Err(TraceError::NoChunks);
        }
        Ok(RunTrace { lanes, origin })
    }
}

fn span(event: &TraceEvent) -> Option<LaneSpan> {
    let activity = event.argument("activity").or(event.cat.as_str()).unwrap_or_default();
    let is_valid = event.ts.is_finite() && event.dur.is_finite() && event.ts >= 0.0 && event.dur >= 0.0;
    let activity = LaneActivity::from_name(activity);
    let count = |name: &str| event.args.get(name).and_then(Value::as_u64);
    let items = count("items").unwrap_or(0);
    // Traces of earlier versions do not say how many items of a chunk were accepted.
    let accepted = count("accepted").unwrap_or(if activity.is_used() { items } else { 0 });
    is_valid.then(|| LaneSpan {
        activity,
        items,
        accepted,
        duplicates: count("duplicates").unwrap_or(0),
        from_s: event.ts / 1e6,
        until_s: (event.ts + event.dur) / 1e6,
    })
}

/// Returns the device of a lane: `cpu` for `cpu lane 3` or `cpu core 3`.
fn device_of(lane: &str) -> String {
    let mut words = lane.rsplitn(3, ' ');
    match (words.next(), words.next(), words.next()) {
        (Some(number), Some(_), Some(device)) if number.parse::<u64>().is_ok() => device.into(),
        _ => lane.into(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_trace_of_the_scheduler_is_read() {
        use std::time::Duration;

        use evener_schedule as schedule;

        let ms = Duration::from_millis;
        let span = |lane, activity, from, until| schedule::Span {
            lane,
            activity,
            items: 10..30,
            accepted: 15,
            duplicates: 5,
            from: ms(from),
            until: ms(until),
            upload: Duration::ZERO,
            download: Duration::ZERO,
        };
        let written = schedule::Trace {
            task: "square".into(),
            lanes: vec!["cuda:0".into(), "cpu lane 0".into(), "cpu lane 1".into()],
            spans: vec![
                span(0, schedule::Activity::Preparation, 0, 1),
                schedule::Span { upload: ms(1), ..span(0, schedule::Activity::Work, 1, 3) },
                span(0, schedule::Activity::Work, 2, 4),
                span(1, schedule::Activity::Speculative, 2, 4),
                span(2, schedule::Activity::Dropped, 0, 4),
                span(2, schedule::Activity::Failure, 4, 5),
            ],
        };
        let read = RunTrace::parse(&written.to_json().to_string()).unwrap();
        let in_memory = RunTrace::from(&written);
        for (read, in_memory) in read.lanes.iter().zip(&in_memory.lanes) {
            let by_time = |lane: &LaneTrace| {
                let mut spans = lane.spans.clone();
                spans.sort_by(|a, b| a.from_s.total_cmp(&b.from_s).then(b.until_s.total_cmp(&a.until_s)));
                spans
            };
            assert_eq!((&read.device, by_time(read)), (&in_memory.device, by_time(in_memory)));
        }
        let devices: Vec<&str> = read.lanes.iter().map(|lane| lane.device.as_str()).collect();
        assert_eq!(devices, ["cuda:0", "cpu", "cpu"]);
        let activities: Vec<LaneActivity> =
            read.lanes.iter().flat_map(|lane| &lane.spans).map(|span| span.activity).collect();
        let of_gpu = [LaneActivity::Preparation, LaneActivity::Work, LaneActivity::Copy, LaneActivity::Work];
        assert_eq!(activities[..4], of_gpu, "chunks that overlap are on two tracks of one lane");
        assert_eq!(
            activities[4..],
            [LaneActivity::Speculative, LaneActivity::Dropped, LaneActivity::Failure]
        );
        let first = read.lanes[0].spans[1];
        assert_eq!((first.items, first.from_s, first.until_s), (20, 0.001, 0.003));
        assert_eq!((first.accepted, first.duplicates), (15, 5));
    }

    #[test]
    fn unknown_keys_events_and_activities_are_tolerated() {
        let text = r#"{ "otherData": { "version": 9 }, "traceEvents": [
            { "ph": "M", "name": "process_name", "pid": 1, "args": { "name": "evener" } },
            { "ph": "C", "name": "memory", "pid": 1, "ts": 5, "args": { "bytes": 7 } },
            { "ph": "X", "pid": 1, "tid": 4, "name": "hash 0..8", "cat": "chunk", "ts": 1, "dur": 9, "id": "x",
              "args": { "activity": "work", "items": 8, "task": "hash" } },
            { "ph": "X", "pid": 1, "tid": 4, "name": "compile", "cat": "prepare", "ts": 0, "dur": 1 },
            { "ph": "X", "pid": 1, "tid": 4, "name": "nap", "cat": "sleep", "ts": 10, "dur": 1 }
        ] }"#;
        let trace = RunTrace::parse(text).unwrap();
        assert_eq!(trace.lanes.len(), 1);
        let lane = &trace.lanes[0];
        let activities: Vec<LaneActivity> = lane.spans.iter().map(|span| span.activity).collect();
        assert_eq!(activities, [LaneActivity::Work, LaneActivity::Preparation, LaneActivity::Unknown]);
        assert_eq!((lane.device.as_str(), lane.spans[0].items), ("lane 4", 8));
        assert_eq!(
            (lane.spans[0].accepted, lane.spans[0].duplicates),
            (8, 0),
            "a trace of an earlier version"
        );
    }

    #[test]
    fn other_files_are_refused() {
        for text in ["", "{}", "[]", "7", r#"{ "traceEvents": [] }"#, r#"[{ "ph": "X", "cat": "copy" }]"#] {
            assert!(RunTrace::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_device_is_its_lanes_name_without_their_number() {
        let names = ["cpu", "cpu lane 3", "cpu/a core 12", "my device", "cuda:0"].map(device_of);
        assert_eq!(names, ["cpu", "cpu", "cpu/a", "my device", "cuda:0"]);
    }
}
