//! `-q` and `-v`: how much a command writes to standard error.

use std::io::{self, Write};

use clap::{ArgAction, Args};
use tracing::level_filters::LevelFilter;

use crate::{color, escape, inline::above_view};

/// How much a command writes to standard error.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Verbosity {
    /// Print only the result: no progress, no tables, no warnings
    ///
    /// The help of each command says what its result is.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,

    /// Log devices and what they did to standard error; -vv adds every decision,
    /// -vvv every chunk
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

impl Verbosity {
    /// Returns whether to print only results.
    pub(crate) fn is_quiet(self) -> bool {
        self.quiet
    }

    fn level(self) -> LevelFilter {
        match (self.quiet, self.verbose) {
            (true, _) => LevelFilter::ERROR,
            (false, 0) => LevelFilter::WARN,
            (false, 1) => LevelFilter::INFO,
            (false, 2) => LevelFilter::DEBUG,
            (false, _) => LevelFilter::TRACE,
        }
    }

    /// Logs to standard error. If that is closed, lines are dropped: the subscriber's default, to report the loss on
    /// standard error, would panic in the thread that logs.
    pub(crate) fn init_logging(self) {
        tracing_subscriber::fmt()
            .with_max_level(self.level())
            .with_writer(|| EscapedStderr)
            .log_internal_errors(false)
            .with_ansi(color::is_enabled(&io::stderr()))
            .with_target(false)
            .without_time()
            .init();
    }
}

/// A writer to standard error that escapes control characters. The subscriber escapes only some of them.
struct EscapedStderr;

impl Write for EscapedStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        above_view(|| io::stderr().lock().write_all(escape::log_line(&text).as_bytes()))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}
