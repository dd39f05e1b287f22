//! The updates of one page, as server-sent events.
//!
//! An update is computed when the connection asks for it, which it does when it has sent what it had. So nothing is queued
//! for a page that reads slowly: its next update has all that has changed since the last one.

use std::{
    collections::BTreeMap,
    fmt::Write,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use hyper::body::Bytes;
use serde::Serialize;
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior, interval},
};

use super::{
    counters::Counters,
    limits::{KEEP_ALIVE, UPDATE_EVERY},
    source::{Source, host_name},
};
use crate::state::{Delta, Update};

/// The updates of one page.
#[derive(Debug)]
pub(super) struct Events {
    source: Source,
    counters: Counters,
    /// The versions that the page has, by process id.
    versions: BTreeMap<u32, u64>,
    /// When the reading was made that the page has.
    reading: Option<Instant>,
    next: Interval,
    has_begun: bool,
    last_sent: Instant,
    /// True once the server closes.
    closing: watch::Receiver<bool>,
}

#[derive(Serialize)]
struct Hello<'a> {
    version: &'a str,
    host: Option<String>,
}

#[derive(Serialize)]
struct DeltaOf<'a> {
    pid: u32,
    delta: &'a Delta,
}

#[derive(Serialize)]
struct Gone {
    pid: u32,
}

impl Events {
    pub(super) fn new(source: Source, counters: Counters, closing: watch::Receiver<bool>) -> Events {
        let mut next = interval(UPDATE_EVERY);
        next.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Events {
            source,
            counters,
            versions: BTreeMap::new(),
            reading: None,
            next,
            has_begun: false,
            last_sent: Instant::now(),
            closing,
        }
    }

    /// The next events, at most ten times a second.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if Pin::new(&mut self.next).poll_tick(context).is_pending() {
                return Poll::Pending;
            }
            if *self.closing.borrow() {
                return Poll::Ready(None);
            }
            let mut text = String::new();
            self.write(&mut text);
            if !text.is_empty() {
                self.last_sent = Instant::now();
                return Poll::Ready(Some(text.into()));
            }
        }
    }

    /// Writes all that is new to the page.
    fn write(&mut self, text: &mut String) {
        if !self.has_begun {
            self.has_begun = true;
            // Milliseconds after which a page connects again.
            text.push_str("retry: 2000\n\n");
            event(text, "hello", &Hello { version: env!("CARGO_PKG_VERSION"), host: host_name() });
        }
        let pids = self.source.pids();
        let gone: Vec<u32> = self.versions.keys().copied().filter(|pid| !pids.contains(pid)).collect();
        for pid in gone {
            self.versions.remove(&pid);
            event(text, "gone", &Gone { pid });
        }
        for pid in pids {
            self.write_program(text, pid);
        }
        let reading = self.counters.last();
        if reading.is_newer_than(&mut self.reading) {
            event(text, "hardware", reading.devices.as_ref());
        }
        if text.is_empty() && self.last_sent.elapsed() >= KEEP_ALIVE {
            text.push_str(":\n\n");
        }
    }

    fn write_program(&mut self, text: &mut String, pid: u32) {
        // A connection to another process gives one small update at a time.
        const AT_ONCE: usize = 8;
        for _ in 0..AT_ONCE {
            let Some(update) = self.source.update_since(pid, self.versions.get(&pid).copied()) else {
                return;
            };
            self.versions.insert(pid, update.version());
            match &update {
                Update::Snapshot(program) => event(text, "snapshot", program),
                Update::Delta(delta) => event(text, "delta", &DeltaOf { pid, delta }),
            }
        }
    }
}

/// Writes an event. JSON has no line breaks, so that it is one line of data.
fn event(text: &mut String, name: &str, data: &impl Serialize) {
    match serde_json::to_string(data) {
        Ok(json) => {
            // Writing to a string does not fail.
            let _ = write!(text, "event: {name}\ndata: {json}\n\n");
        }
        Err(error) => tracing::warn!(%error, name, "an event is not sent"),
    }
}
