//! The progress line of commands with several steps.

use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::write_out;

/// A line on standard error that shows the current step at all times, if it is a terminal.
#[derive(Clone)]
pub(crate) struct ProgressLine {
    bar: ProgressBar,
    is_silent: bool,
}

impl ProgressLine {
    /// Creates the line. A silent one shows and prints nothing.
    pub(crate) fn new(is_silent: bool) -> ProgressLine {
        let bar = if is_silent { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        bar.enable_steady_tick(Duration::from_millis(100));
        ProgressLine { bar, is_silent }
    }

    /// Hides the line, for example because a view shows the progress. Text is still printed.
    pub(crate) fn hide(&self) {
        self.bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }

    /// Begins a step of unknown length.
    pub(crate) fn step(&self, name: impl Into<String>) {
        self.begin(name.into(), "{spinner} {msg} ({elapsed})");
    }

    /// Begins a step of a number of parts.
    pub(crate) fn step_of(&self, name: impl Into<String>, parts: u64) {
        self.bar.set_length(parts);
        self.bar.set_position(0);
        self.begin(name.into(), "{spinner} {msg} [{bar:24}] {percent} % ({elapsed})");
    }

    fn begin(&self, name: String, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        self.bar.set_message(name);
    }

    /// Sets the number of parts that are done, and of all parts.
    pub(crate) fn set(&self, done: u64, parts: u64) {
        self.bar.set_length(parts);
        self.bar.set_position(done);
    }

    /// Adds a part that is done.
    pub(crate) fn advance(&self) {
        self.bar.inc(1);
    }

    /// Prints text to standard output, above the line.
    pub(crate) fn print(&self, text: &str) -> Result<()> {
        if self.is_silent { Ok(()) } else { Ok(self.bar.suspend(|| write_out(text))?) }
    }

    /// Removes the line.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
