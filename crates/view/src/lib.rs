//! What is everybody doing now? The live view of Evener's runs and queues, for a terminal, a web page and a monitor.
//!
//! ```text
//!  schedule::events ── the ring that runs write to while a reader is attached
//!    │ read every 50 ms
//!  Live ── folds the events into a State, for all views of this process
//!    │ snapshot at first, then what has changed since
//!    ├── views in this process: a web page, metrics, `--view`
//!    └── socket::Server ── socket::Programs: views in another process, as `evener top`
//!  otlp ── runs and chunks as OpenTelemetry's spans (feature `otlp`)
//!  report ── a run that has ended, as one HTML file
//!  hardware ── utilization, memory, temperature and power of this machine's devices
//! ```
//!
//! # How a view is built on this
//!
//! **The data.** A view shows a [`Program`](state::Program): its [runs](state::RunView) of now and the last that have
//! ended, each with its [summary](state::RunSummary) (progress, rate, remaining time, efficiency and bound), its
//! [devices](state::DeviceView) ([state and counters](state::DeviceTotals), throughput of the last minute, and
//! [lanes](state::LaneView) with what they have in hand and their last chunks as [bars](state::Bar)), the devices that were
//! left out and why; the [past runs](state::PastRun) with their reports; and the [log](state::LogLine) of decisions in words.
//! All of these are `serde` types. Lists are bounded by the constants of [`state`], so a view that keeps a `Program` does
//! not grow.
//!
//! **Updates.** Every view keeps the version that it has seen, and asks for what has changed since, at its own pace:
//! [`Live::update_since`] and [`Live::wait_for_update`] for this process, and the same functions of
//! [`Connection`](socket::Connection) for another one. The answer is an [`Update`](state::Update): a snapshot at first and
//! when the view is too far behind, and else a [`Delta`](state::Delta). Nothing is queued for a slow view.
//! [`Program::apply`](state::Program::apply) applies an update; a web page does the same in its own language:
//!
//! 1. A snapshot replaces everything.
//! 2. A delta whose `from` is not the view's version is refused; the view then asks without a version.
//! 3. `new_runs` replace or add runs by `summary.id`. `runs` replace the summary, and for each device by index its `totals`;
//!    `throughput` and `bars` are appended, and cut at the front to [`HISTORY`](state::HISTORY) and the run's `max_bars`.
//! 4. Runs that are not in `shown`, and past runs that are not in `kept_past`, are removed. `log` is appended, and cut at the
//!    front to [`MAX_LOG`](state::MAX_LOG). `totals` replace those of the same task.
//!
//! ```
//! use std::time::Duration;
//! use evener_view::{Live, state::Update};
//!
//! // What a server of server-sent events does for each page:
//! let live = Live::of_process()?;
//! let mut version = None;
//! for _ in 0..2 {
//!     if let Some(update) = live.wait_for_update(version, Duration::from_millis(100)) {
//!         version = Some(update.version());
//!         let event = match update {
//!             Update::Snapshot(program) => format!("event: snapshot\ndata: {}\n\n", serde_json::to_string(&program)?),
//!             Update::Delta(delta) => format!("event: delta\ndata: {}\n\n", serde_json::to_string(&delta)?),
//!         };
//!         assert!(event.ends_with("\n\n")); // write it
//!     }
//!     // and pause for a tenth of a second
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Over HTTP.** The module `web`, with the Cargo feature of the same name, serves the page, its updates and the metrics.
//!
//! **Other programs.** [`socket::Programs::of_user`] and, once a second, [`refresh`](socket::Programs::refresh) give a
//! [`Connection`](socket::Connection) to each program of the user that was asked to be found: by `EVENER_VIEW=1`
//! ([`socket::open_if_asked`], which a program calls at its start), or by [`socket::Server::open`]. A thread keeps its
//! `Program` up to date; [`with_program`](socket::Connection::with_program) reads it without a copy.
//!
//! **Cancelling.** [`Live::cancel`] or [`Connection::cancel`](socket::Connection::cancel), with the run's `summary.id`.
//!
//! **Hardware.** [`Hardware::discover`](hardware::Hardware::discover) once, and [`read`](hardware::Hardware::read) once a
//! second. A value that the hardware does not tell is `None`: show a dash.
//!
//! **Simulations.** A driver of virtual devices gives its [`Recorder`](evener_schedule::decide::Recorder)
//! [`RunEvents`](evener_schedule::events::RunEvents) (`Recorder::with_events`), tells its status with
//! `RunEvents::status` whenever `needs_status` says so, calls `Recorder::began` for each chunk that it hands out, and writes
//! [`RunEnded`](evener_schedule::events::EventKind::RunEnded). [`Live::of`] views a stream that is not the process's own.

pub mod hardware;
mod live;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod report;
#[cfg(unix)]
pub mod socket;
pub mod state;
pub mod text;
#[cfg(feature = "top")]
pub mod top;
#[cfg(feature = "web")]
pub mod web;

pub use self::live::Live;
