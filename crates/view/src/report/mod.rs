//! Reports as pictures: a run as one self-contained HTML file, to attach to a bug report or a paper.
//!
//! ```
//! use evener_device::Device;
//! use evener_schedule::{Closure, Pool};
//! use evener_view::report::{Html, Provenance};
//!
//! let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build()?;
//! let square = Closure::new("square", |&number: &u64| number * number);
//! let run = pool.job(&square).trace().map(&[1, 2, 3])?;
//! let html = Html::of_run(run.report(), run.trace()).provenance(Provenance::of_process()).to_string();
//! assert!(html.contains("square") && html.contains("Efficiency"));
//! // std::fs::write("run.html", html)?;
//! # Ok::<(), evener_schedule::RunError>(())
//! ```
//!
//! The file has no script and loads nothing, follows the reader's light or dark colors, and prints. Its size is bounded,
//! whatever the number of chunks and devices: chunks that are too narrow share a bar, devices beyond some share a row, and the
//! file says so.

mod advice;
mod analysis;
mod charts;
mod html;
mod lanes;
mod markup;
pub mod numbers;
mod provenance;
mod run_trace;
#[cfg(test)]
mod test;

pub use self::{
    advice::{Finding, findings},
    analysis::{Analysis, DeviceTimes, Times},
    html::Html,
    lanes::lanes_svg,
    provenance::Provenance,
    run_trace::{LaneActivity, LaneSpan, LaneTrace, RunTrace, TraceError, TraceOrigin},
};
