//! The live view in a browser and for monitoring, over HTTP.
//!
//! | path | what it answers |
//! | --- | --- |
//! | `/` | the page: one file, which loads nothing from elsewhere |
//! | `/events` | server-sent events: `hello`, `snapshot`, `delta`, `gone`, `hardware` |
//! | `/metrics` | Prometheus' text format, or OpenMetrics for a client that asks for it |
//! | `/api/runs`, `/api/devices` | runs and devices as JSON |
//! | `/api/report?pid=P&run=R` | the report of a run that has ended, as JSON |
//! | `/api/trace?pid=P&run=R` | the last chunks of a run as a trace for Perfetto |
//! | `/healthz` | `ok` |
//!
//! ```
//! use evener_view::{Live, web::{Options, Server, Source}};
//!
//! let server = Server::open(&Options::new("127.0.0.1:0".parse()?), Source::Process(Live::of_process()?))?;
//! println!("see {}", server.url());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why hyper alone
//!
//! A run must never notice that somebody looks, or attacks. So the limits count: on connections, on the time that a request
//! may take to arrive and an answer to be taken, and on the size of headers. They are settings of hyper's connections, which
//! `axum::serve` does not pass on; what axum would add, a router, is a `match` over nine paths here. `tiny_http` has a thread
//! for each connection and no time limit for headers. hyper runs on one thread with a low priority.
//!
//! # Who may look
//!
//! The module `access` decides about each request before anything else looks at it. On a loopback address, every user of the machine
//! may look, unless a token is required ([`Options::token`]); any other address always requires one. A request must name a
//! host that this server is known by, so that a page of another site cannot read it under a name of its own (DNS rebinding).
//! There is nothing to change by a request: only `GET` and `HEAD` are accepted.

mod access;
mod answer;
mod body;
mod connection;
mod counters;
mod events;
mod limits;
mod metrics;
mod page;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod prometheus;
mod route;
mod server;
mod source;
#[cfg(test)]
mod test;
mod trace;

pub use self::{
    access::Token,
    server::{Options, ServeError, Server},
    source::Source,
    trace::trace_of,
};
