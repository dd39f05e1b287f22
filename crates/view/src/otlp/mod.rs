//! OpenTelemetry: runs and chunks as spans, over OTLP/HTTP to a collector (feature `otlp`).
//!
//! A run is a span, and each chunk of it a child. `tracing` could carry them too, and would cost more and tell less: a span of
//! `tracing` begins and ends when the code says so, on a thread that waits for nobody but pays for every subscriber; the
//! events of the [scheduler](evener_schedule::events) have the begin and the end of each chunk already, and cost a run nothing
//! but the event. So the spans are made from the events, with their own times, on a thread of their own. What a program logs
//! through `tracing` is not touched.
//!
//! ```no_run
//! use evener_view::otlp::Otlp;
//!
//! // To the collector of OTEL_EXPORTER_OTLP_ENDPOINT, or to http://localhost:4318.
//! let otlp = Otlp::begin()?;
//! // ... runs ...
//! let exported = otlp.finish();
//! println!("{} spans sent, {} dropped", exported.sent, exported.dropped);
//! # Ok::<(), evener_view::otlp::OtlpError>(())
//! ```
//!
//! **Variables.** `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` (`http://`; there is no TLS: a
//! collector beside the program forwards to elsewhere), `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_EXPORTER_OTLP_TIMEOUT`,
//! `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, as OpenTelemetry specifies them.
//!
//! **Limits.** Spans wait in a queue of [`MAX_QUEUED`] spans. If it is full, because the collector is slow or dead, spans are
//! dropped, counted and said; a run never waits. Times of spans of one run are exact relative to each other; the time of day
//! at which a run began is exact to some tens of milliseconds.

mod client;
mod spans;
#[cfg(test)]
mod test;

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use evener_schedule::events::{EventReader, EventStream, stream};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter as _},
};

use self::spans::Spans;

/// Spans of one request.
const BATCH: usize = 512;
/// Requests that wait.
const MAX_BATCHES: usize = 32;
/// Maximum spans that wait for the collector.
pub const MAX_QUEUED: usize = BATCH * MAX_BATCHES;
/// Maximum reads of a batch before the next pause: about all that the stream keeps.
const MAX_READS: usize = 128;
/// Time between two requests for the status of all runs, after events were lost.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// Time between two reads of the events.
const READ_EVERY: Duration = Duration::from_millis(10);
/// Maximum time that a span waits for others, so that one request carries many.
const SEND_EVERY: Duration = Duration::from_millis(500);
/// How long [`Otlp::finish`] waits for the collector.
const LAST_CHANCE: Duration = Duration::from_secs(5);

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint, or another variable, cannot be used.
    #[error("OpenTelemetry: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    /// The system gives no thread.
    #[error("OpenTelemetry: no thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What was exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// Spans that the collector has accepted.
    pub sent: u64,
    /// Spans that were dropped: the queue was full, the collector refused them, or it did not answer in time.
    pub dropped: u64,
    /// Events that were lost because they came faster than they were read: their spans are missing.
    pub lost_events: u64,
}

/// Exports the runs of this process as spans while it lives.
#[derive(Debug)]
pub struct Otlp {
    shared: Arc<Shared>,
    threads: Option<[JoinHandle<()>; 2]>,
}

#[derive(Debug, Default)]
struct Shared {
    is_ending: AtomicBool,
    sent: AtomicU64,
    /// Spans that were made.
    made: AtomicU64,
    /// Spans that were dropped so far; those that are in the queue at the end count then.
    dropped: AtomicU64,
    lost_events: AtomicU64,
}

impl Otlp {
    /// Whether the environment names a collector, and does not switch OpenTelemetry off.
    pub fn is_asked_for() -> bool {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_off = std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
        (is_set("OTEL_EXPORTER_OTLP_ENDPOINT") || is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) && !is_off
    }

    /// Exports to the collector that the environment names, or to `http://localhost:4318`.
    pub fn begin() -> Result<Otlp, OtlpError> {
        Otlp::of(stream(), None)
    }

    /// Exports to a collector: its address with the path, as `http://localhost:4318/v1/traces`.
    pub fn to(endpoint: &str) -> Result<Otlp, OtlpError> {
        Otlp::of(stream(), Some(endpoint))
    }

    /// Exports the runs of a stream of events, for simulations and tests.
    pub fn of(stream: &'static EventStream, endpoint: Option<&str>) -> Result<Otlp, OtlpError> {
        let builder = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
        let mut builder = builder.with_http_client(client::Client::new());
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let mut exporter = builder.build()?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(crate::live::program_name());
        }
        exporter.set_resource(&resource.build());
        let shared = Arc::new(Shared::default());
        let (sender, receiver) = mpsc::sync_channel(MAX_BATCHES);
        // Attached here, so that a run that begins now is seen.
        let reader = stream.attach();
        let (for_reader, for_exporter) = (shared.clone(), shared.clone());
        let read = thread::Builder::new()
            .name("evener-otlp-read".into())
            .spawn(move || read(reader, &sender, &for_reader))?;
        let export = thread::Builder::new()
            .name("evener-otlp".into())
            .spawn(move || export(&exporter, &receiver, &for_exporter))?;
        Ok(Otlp { shared, threads: Some([read, export]) })
    }

    /// Ends the export: sends what is there, for some seconds at most, and says what was exported. Warns of spans that were
    /// dropped.
    pub fn finish(mut self) -> Exported {
        self.end()
    }

    fn end(&mut self) -> Exported {
        if let Some([read, export]) = self.threads.take() {
            self.shared.is_ending.store(true, Release);
            let deadline = Instant::now() + LAST_CHANCE;
            // The reader ends within one read. The other may wait for a collector that never answers: it is left behind.
            let _ = read.join();
            while !export.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
            let exported = self.shared.exported();
            if exported.dropped > 0 || exported.lost_events > 0 {
                let Exported { sent, dropped, lost_events } = exported;
                tracing::warn!(
                    "OpenTelemetry: {sent} spans sent, {dropped} dropped because the collector was too slow or failed, \
                     {lost_events} events lost"
                );
            }
        }
        self.shared.exported()
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// What was exported so far. What is still in the queue counts as dropped.
    fn exported(&self) -> Exported {
        let sent = self.sent.load(Acquire);
        let dropped = self.made.load(Acquire).saturating_sub(sent);
        Exported { sent, dropped, lost_events: self.lost_events.load(Acquire) }
    }
}

/// Makes spans from events, until the end.
fn read(mut reader: EventReader, sender: &SyncSender<Vec<SpanData>>, shared: &Shared) {
    let seed = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0);
    let (mut spans, mut events, mut made) = (Spans::new(seed), Vec::new(), Vec::new());
    let mut next_send = Instant::now() + SEND_EVERY;
    let (mut lost, mut asked) = (0, None::<Instant>);
    loop {
        // Looked at before the last read, so that nothing that was written before the end is missed.
        let is_ending = shared.is_ending.load(Acquire);
        let now = SystemTime::now();
        // An event that is missing at the first read is written, or lost, at the second.
        for _ in 0..2 {
            // Runs may write faster than this thread reads, which then goes on after a pause.
            for _ in 0..MAX_READS {
                let has_more = reader.read(BATCH, &mut events);
                spans.fold_all(&mut events, now, &mut made);
                send_full(sender, &mut made, shared);
                if !has_more {
                    break;
                }
            }
        }
        shared.lost_events.store(reader.lost(), Release);
        // A status costs the runs some time, so it is not asked for all the time.
        if reader.lost() != lost && asked.is_none_or(|asked| asked.elapsed() >= STATUS_EVERY) {
            lost = reader.lost();
            asked = Some(Instant::now());
            reader.ask_for_status();
        }
        send_full(sender, &mut made, shared);
        if is_ending {
            spans.end_all(now, &mut made);
            send_full(sender, &mut made, shared);
        }
        if is_ending || Instant::now() >= next_send {
            next_send = Instant::now() + SEND_EVERY;
            send(sender, std::mem::take(&mut made), shared);
        }
        if is_ending {
            return;
        }
        thread::sleep(READ_EVERY);
    }
}

/// Queues full batches.
fn send_full(sender: &SyncSender<Vec<SpanData>>, made: &mut Vec<SpanData>, shared: &Shared) {
    while made.len() >= BATCH {
        let rest = made.split_off(BATCH);
        send(sender, std::mem::replace(made, rest), shared);
    }
}

/// Queues a batch, or drops it if the queue is full.
fn send(sender: &SyncSender<Vec<SpanData>>, batch: Vec<SpanData>, shared: &Shared) {
    if batch.is_empty() {
        return;
    }
    shared.made.fetch_add(batch.len() as u64, Relaxed);
    if let Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) = sender.try_send(batch) {
        note_dropped(shared, batch.len(), "the collector is too slow");
    }
}

/// Sends batches until the queue is closed and empty.
fn export(exporter: &SpanExporter, receiver: &Receiver<Vec<SpanData>>, shared: &Shared) {
    loop {
        let batch = match receiver.recv_timeout(Duration::from_secs(1)) {
            Ok(batch) => batch,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let count = batch.len();
        // The client blocks, so the future is ready when it is polled first.
        match futures_executor::block_on(exporter.export(batch)) {
            Ok(()) => {
                shared.sent.fetch_add(count as u64, Release);
            }
            Err(error) => note_dropped(shared, count, &error.to_string()),
        }
    }
}

/// Counts spans that were dropped, and says so the first time.
fn note_dropped(shared: &Shared, count: usize, why: &str) {
    if shared.dropped.fetch_add(count as u64, Relaxed) == 0 {
        tracing::warn!("OpenTelemetry: spans are dropped: {why}");
    }
}
