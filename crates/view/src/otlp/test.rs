use std::{
    collections::HashSet,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use evener_schedule::{
    Report, Settings, Strategy,
    decide::Time,
    events::{EventStream, RunEvents},
    sim::{Scenario, simulate_followed},
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value::Value,
    trace::v1::{Span, status::StatusCode},
};
use prost::Message;

use super::*;

/// A collector on loopback that keeps the spans that it gets.
struct Collector {
    endpoint: String,
    spans: Arc<Mutex<Vec<Span>>>,
    services: Arc<Mutex<HashSet<String>>>,
}

impl Collector {
    fn begin() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let (spans, services) = (Arc::default(), Arc::default());
        let collector = Collector { endpoint, spans, services };
        let (spans, services) = (collector.spans.clone(), collector.services.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (spans, services) = (Arc::clone(&spans), Arc::clone(&services));
                thread::spawn(move || serve(stream.unwrap(), &spans, &services));
            }
        });
        collector
    }
}

/// Answers the requests of a connection.
fn serve(mut stream: TcpStream, spans: &Mutex<Vec<Span>>, services: &Mutex<HashSet<String>>) {
    let mut data = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = data.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            let mut part = [0; 4096];
            match stream.read(&mut part) {
                Ok(0) | Err(_) => return,
                Ok(count) => data.extend_from_slice(&part[..count]),
            }
        };
        let text = String::from_utf8_lossy(&data[..head]).to_ascii_lowercase();
        assert!(text.starts_with("post /v1/traces "), "{text}");
        assert!(text.contains("content-type: application/x-protobuf"), "{text}");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let length: usize = length.trim().parse().unwrap();
        while data.len() < head + length {
            let mut part = [0; 65536];
            let count = stream.read(&mut part).unwrap();
            data.extend_from_slice(&part[..count]);
        }
        let request = ExportTraceServiceRequest::decode(&data[head..head + length]).unwrap();
        data.drain(..head + length);
        for of_resource in request.resource_spans {
            for attribute in of_resource.resource.unwrap().attributes {
                if attribute.key == "service.name" {
                    services.lock().unwrap().insert(text_of(attribute.value.unwrap().value));
                }
            }
            spans.lock().unwrap().extend(of_resource.scope_spans.into_iter().flat_map(|it| it.spans));
        }
        stream
            .write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n",
            )
            .unwrap();
    }
}

fn text_of(value: Option<Value>) -> String {
    match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|it| it.key == key);
    text_of(found.unwrap_or_else(|| panic!("{key}: {span:?}")).value.clone().unwrap().value)
}

/// Simulates a run whose first device dies and comes back, as fast as a reader can follow.
fn run(stream: &'static EventStream, items: u64) -> Report {
    let toml = format!(
        "items = {items}\n[[device]]\nid = 'gpu'\ncount = 3\nrate = 100_000.0\nlaunch_s = 1e-4\n\
         [[event]]\nat_s = 0.2\ndevice = 'gpu-0'\nwhat = 'die'\n[[event]]\nat_s = 0.3\ndevice = 'gpu-0'\nwhat = 'return'\n"
    );
    let scenario = Scenario::from_toml(&toml).unwrap();
    let events = RunEvents::to(stream, 7, 1, items);
    let mut pace = |until: Time| until;
    simulate_followed(&scenario, Strategy::Adaptive, Settings::default(), events, &mut pace).report
}

fn stream() -> &'static EventStream {
    Box::leak(Box::new(EventStream::new()))
}

#[test]
fn a_collector_gets_the_run_and_its_chunks_as_the_report_has_them() {
    let (collector, stream) = (Collector::begin(), stream());
    let otlp = Otlp::of(stream, Some(&collector.endpoint)).unwrap();
    let report = run(stream, 300_000);
    let exported = otlp.finish();
    let spans = collector.spans.lock().unwrap();
    assert_eq!((exported.sent, exported.dropped, exported.lost_events), (spans.len() as u64, 0, 0));

    let parents: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id.is_empty()).collect();
    let [parent] = parents[..] else { panic!("{parents:?}") };
    assert_eq!((parent.name.as_str(), attribute(parent, "evener.items")), ("run items", "300000".into()));
    assert_eq!(attribute(parent, "evener.efficiency"), report.efficiency.unwrap().to_string());
    assert_eq!(attribute(parent, "evener.efficiency.bound"), report.bound.unwrap().to_string());
    assert_eq!(parent.status.as_ref().unwrap().code(), StatusCode::Ok);
    let length = Duration::from_nanos(parent.end_time_unix_nano - parent.start_time_unix_nano);
    assert!((length.as_secs_f64() - report.wall_s).abs() < 1e-6, "{length:?}");

    let chunks: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id == parent.span_id).collect();
    assert_eq!(chunks.len() + 1, spans.len());
    for device in &report.devices {
        let of_device = || chunks.iter().filter(|span| attribute(span, "evener.device") == device.id);
        let count = |outcome: &str| {
            of_device().filter(|it| attribute(it, "evener.outcome") == outcome).count() as u64
        };
        let items: u64 =
            of_device().map(|span| attribute(span, "evener.items.accepted").parse::<u64>().unwrap()).sum();
        assert_eq!(items, device.items, "{}", device.id);
        assert!(count("accepted") + count("dropped") >= device.chunks, "{}", device.id);
        assert_eq!(count("failed") > 0, device.retries > 0, "{}", device.id);
    }
    assert!(report.devices[0].retries > 0, "the scenario has a failure");
    for span in &chunks {
        let is_failed = attribute(span, "evener.outcome") == "failed";
        let is_error = span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error);
        assert_eq!(is_failed, is_error, "{span:?}");
        assert!(["work", "speculative", "canary"].contains(&attribute(span, "evener.purpose").as_str()));
        assert!(span.start_time_unix_nano >= parent.start_time_unix_nano);
        assert!(span.end_time_unix_nano <= parent.end_time_unix_nano);
        assert_eq!(span.trace_id, parent.trace_id);
    }
    let ids: HashSet<&Vec<u8>> = spans.iter().map(|span| &span.span_id).collect();
    assert_eq!(ids.len(), spans.len(), "each span has an id of its own");
    assert_eq!(collector.services.lock().unwrap().len(), 1);
}

#[test]
fn a_collector_that_never_answers_costs_spans_and_no_time_of_the_run() {
    // It accepts connections, and reads and writes nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let stream = stream();
    let otlp = Otlp::of(stream, Some(&endpoint)).unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(run(stream, 300_000)).unwrap());
    let report = receiver.recv_timeout(Duration::from_secs(60)).expect("the run waits for nobody");
    let start = Instant::now();
    let exported = otlp.finish();
    assert!(start.elapsed() < LAST_CHANCE + Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(exported.sent, 0);
    let chunks: u64 = report.devices.iter().map(|device| device.chunks).sum();
    assert!(
        exported.dropped + exported.lost_events > chunks,
        "each span that is missing is counted: {exported:?}"
    );
    drop(listener);
}

#[test]
fn nobody_at_the_endpoint_is_no_error_of_the_run() {
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let stream = stream();
    let otlp = Otlp::of(stream, Some(&format!("http://{free}/v1/traces"))).unwrap();
    run(stream, 10_000);
    let exported = otlp.finish();
    assert!(exported.sent == 0 && exported.dropped > 0, "{exported:?}");
}

#[test]
fn the_queue_is_bounded() {
    let (sender, _receiver) = mpsc::sync_channel(MAX_BATCHES);
    let shared = Shared::default();
    let stream = stream();
    let mut reader = stream.attach();
    run(stream, 300_000);
    let (mut events, mut made) = (Vec::new(), Vec::new());
    while reader.read(BATCH, &mut events) {}
    Spans::new(1).fold_all(&mut events, SystemTime::now(), &mut made);
    let count = MAX_BATCHES + 5;
    (0..count).for_each(|_| send(&sender, made[..1].to_vec(), &shared));
    assert_eq!(shared.made.load(Acquire), count as u64);
    assert_eq!(shared.dropped.load(Acquire), 5);
}
