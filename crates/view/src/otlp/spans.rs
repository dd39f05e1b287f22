//! Makes spans from events: a state machine without a thread or a clock.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, SystemTime},
};

use evener_schedule::{
    decide::Purpose,
    events::{ChunkEvent, Event, EventKind, RunEnd, RunKind, RunStatus},
};
use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId, Value,
    trace::{SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_sdk::trace::SpanData;

/// Maximum runs that are followed. The oldest makes room: its chunks have no spans then.
const MAX_RUNS: usize = 1_024;

/// The runs that have not ended.
#[derive(Debug)]
pub(super) struct Spans {
    /// What makes the ids of this process differ from those of others.
    seed: u64,
    runs: BTreeMap<u64, RunSpan>,
    /// The last runs that have ended.
    ended: VecDeque<u64>,
    scope: InstrumentationScope,
}

#[derive(Debug)]
struct RunSpan {
    /// The time of day at which the run began.
    began: SystemTime,
    task: String,
    kind: RunKind,
    strategy: &'static str,
    items: Option<u64>,
    /// The device of each lane, and the lane's number in it.
    lanes: Vec<(String, i64)>,
    trace: TraceId,
    span: SpanId,
    last_errors: BTreeMap<String, String>,
    last_at: Duration,
}

impl Spans {
    pub(super) fn new(seed: u64) -> Self {
        let scope = InstrumentationScope::builder("evener").with_version(env!("CARGO_PKG_VERSION")).build();
        Spans { seed, runs: BTreeMap::new(), ended: VecDeque::new(), scope }
    }

    /// Takes over events that were read now, and adds the spans that have ended.
    pub(super) fn fold_all(&mut self, events: &mut Vec<Event>, now: SystemTime, made: &mut Vec<SpanData>) {
        for event in events.drain(..) {
            self.fold(&event, now, made);
        }
    }

    fn fold(&mut self, event: &Event, now: SystemTime, made: &mut Vec<SpanData>) {
        if let EventKind::Status(status) = &event.kind {
            return self.status(event, status, now);
        }
        let Some(run) = self.runs.get_mut(&event.run) else { return };
        run.last_at = run.last_at.max(event.at);
        match &event.kind {
            EventKind::ChunkEnded { chunk, accepted, took, .. } => {
                let outcome = if *accepted == 0 { "dropped" } else { "accepted" };
                made.push(run.chunk(self.seed, &self.scope, event, chunk, (outcome, *accepted), *took));
            }
            EventKind::ChunkLost { chunk, failed, took, .. } => {
                let outcome = if *failed { "failed" } else { "dropped" };
                made.push(run.chunk(self.seed, &self.scope, event, chunk, (outcome, 0), *took));
            }
            EventKind::Error { device, reason } => {
                run.last_errors.insert(device.to_string(), reason.to_string());
            }
            EventKind::Prepared { lane, took } => {
                let id = span_id(self.seed, event.run, u64::MAX - u64::from(*lane));
                let name = format!("prepare {}", run.task);
                let (end, attributes) = (run.began + event.at, run.lane(*lane));
                made.push(SpanData {
                    attributes,
                    ..run.span(&self.scope, id, name, (end.checked_sub(*took).unwrap_or(end), end))
                });
            }
            EventKind::RunEnded(end) => {
                if self.ended.len() >= MAX_RUNS {
                    self.ended.pop_front();
                }
                self.ended.push_back(event.run);
                if let Some(run) = self.runs.remove(&event.run) {
                    made.push(run.end(&self.scope, event.at, end));
                }
            }
            EventKind::Status(_)
            | EventKind::ChunkBegan(_)
            | EventKind::ChunkParts { .. }
            | EventKind::Lane { .. }
            | EventKind::Progress(_)
            | EventKind::Queue(_) => {}
        }
    }

    /// A run begins, or its devices are others than before.
    fn status(&mut self, event: &Event, status: &RunStatus, now: SystemTime) {
        let lanes = status.devices.iter().flat_map(|device| {
            (0..device.lanes.len()).map(|lane| (device.id.clone(), i64::try_from(lane).unwrap_or(i64::MAX)))
        });
        let lanes = lanes.collect();
        if let Some(run) = self.runs.get_mut(&event.run) {
            run.lanes = lanes;
            return;
        }
        // A status that was overtaken by the run's end.
        if self.ended.contains(&event.run) {
            return;
        }
        if self.runs.len() >= MAX_RUNS {
            self.runs.pop_first();
        }
        let [high, low] = [1, 2].map(|part| u128::from(mix(self.seed ^ mix(event.run) ^ mix(part))));
        let run = RunSpan {
            began: now.checked_sub(event.at).unwrap_or(now),
            task: status.task.clone(),
            kind: status.kind,
            strategy: status.strategy,
            items: status.items,
            lanes,
            trace: TraceId::from(((high << 64) | low) | 1),
            span: span_id(self.seed, event.run, 0),
            last_errors: BTreeMap::new(),
            last_at: event.at,
        };
        self.runs.insert(event.run, run);
    }

    /// Ends the spans of runs that have not ended: the program ends, or their end was lost.
    pub(super) fn end_all(&mut self, now: SystemTime, made: &mut Vec<SpanData>) {
        for (_, run) in std::mem::take(&mut self.runs) {
            let at = now.duration_since(run.began).unwrap_or(run.last_at);
            let error = match run.kind {
                RunKind::Queue => None,
                RunKind::Map | RunKind::Stream => Some("the end of the run was not seen".into()),
            };
            made.push(run.end(&self.scope, at, &RunEnd { error, report: None }));
        }
    }
}

impl RunSpan {
    /// A span of the run's trace, as its child.
    fn span(
        &self,
        scope: &InstrumentationScope,
        id: SpanId,
        name: String,
        (start_time, end_time): (SystemTime, SystemTime),
    ) -> SpanData {
        let context = SpanContext::new(self.trace, id, TraceFlags::SAMPLED, false, TraceState::default());
        SpanData {
            span_context: context,
            parent_span_id: self.span,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time,
            end_time,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: Status::Unset,
            instrumentation_scope: scope.clone(),
        }
    }

    /// The attributes of a lane.
    fn lane(&self, lane: u32) -> Vec<KeyValue> {
        let (device, number) = self.lanes.get(lane as usize).cloned().unwrap_or_default();
        vec![KeyValue::new("evener.device", device), KeyValue::new("evener.lane", number)]
    }

    fn chunk(
        &self,
        seed: u64,
        scope: &InstrumentationScope,
        event: &Event,
        chunk: &ChunkEvent,
        (outcome, accepted): (&'static str, u64),
        took: Duration,
    ) -> SpanData {
        // The copies of a queue's batch have the same number on several lanes.
        let id = span_id(seed, event.run, mix(chunk.chunk.wrapping_add(1)) ^ mix(u64::from(chunk.lane)));
        let end = self.began + event.at;
        let name = format!("chunk {}", self.task);
        let mut attributes = self.lane(chunk.lane);
        attributes.extend([
            KeyValue::new("evener.items.first", count(chunk.first)),
            KeyValue::new("evener.items", count(chunk.items)),
            KeyValue::new("evener.items.accepted", count(accepted)),
            KeyValue::new("evener.purpose", purpose(chunk.purpose)),
            KeyValue::new("evener.outcome", outcome),
        ]);
        let device = self.lanes.get(chunk.lane as usize).map(|(device, _)| device);
        let status = match outcome {
            "failed" => {
                let reason = device.and_then(|device| self.last_errors.get(device)).cloned();
                Status::error(reason.unwrap_or_else(|| "the chunk failed".into()))
            }
            _ => Status::Unset,
        };
        let times = (end.checked_sub(took).unwrap_or(end).max(self.began), end);
        SpanData { attributes, status, ..self.span(scope, id, name, times) }
    }

    /// The span of the run itself.
    fn end(self, scope: &InstrumentationScope, at: Duration, end: &RunEnd) -> SpanData {
        let (kind, prefix) = match self.kind {
            RunKind::Map => ("map", "run"),
            RunKind::Stream => ("stream", "run"),
            RunKind::Queue => ("queue", "queue"),
        };
        let report = end.report.as_ref();
        let items = report.map(|report| report.items).or(self.items);
        let number = |name: &'static str, value: Option<f64>| value.map(|value| KeyValue::new(name, value));
        let whole =
            |name: &'static str, value: Option<u64>| value.map(|value| KeyValue::new(name, count(value)));
        let devices: Vec<opentelemetry::StringValue> = {
            let mut devices: Vec<&str> = self.lanes.iter().map(|(device, _)| device.as_str()).collect();
            devices.dedup();
            devices.into_iter().take(64).map(|device| device.to_owned().into()).collect()
        };
        let attributes = [
            Some(KeyValue::new("evener.task", self.task.clone())),
            Some(KeyValue::new("evener.kind", kind)),
            Some(KeyValue::new("evener.strategy", self.strategy)),
            Some(KeyValue::new("evener.devices", Value::Array(devices.into()))),
            whole("evener.items", items),
            whole("evener.items.done", report.map(|report| report.done)),
            number("evener.efficiency", report.and_then(|report| report.efficiency)),
            number("evener.efficiency.bound", report.and_then(|report| report.bound)),
            number("evener.predicted_s", report.and_then(|report| report.predicted_s)),
        ];
        let status = end.error.as_ref().map_or(Status::Ok, |error| Status::error(error.clone()));
        let name = format!("{prefix} {}", self.task);
        let span = self.span(scope, self.span, name, (self.began, self.began + at));
        let attributes = attributes.into_iter().flatten().collect();
        SpanData { parent_span_id: SpanId::INVALID, attributes, status, ..span }
    }
}

fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Work => "work",
        Purpose::Speculative => "speculative",
        Purpose::Steal => "steal",
        Purpose::Canary => "canary",
    }
}

/// OpenTelemetry has signed integers only.
fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// An id of a span that no other span of the process has, as far as 64 bits go.
fn span_id(seed: u64, run: u64, part: u64) -> SpanId {
    // Zero is no id.
    SpanId::from(mix(seed ^ mix(run.wrapping_add(1)) ^ part.wrapping_mul(0x9E37_79B9_7F4A_7C15)).max(1))
}

/// Mixes bits, as SplitMix64 does.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
