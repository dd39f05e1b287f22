//! How much is said on standard error: `-q` and `-v`, for every command.

use std::io::{self, IsTerminal, Write};

use clap::{ArgAction, Args};
use tracing::level_filters::LevelFilter;

use crate::{escape, output::may_colour};

/// How much is said.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Verbosity {
    /// Only the result: no progress, no tables, no warnings
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,

    /// Say on standard error which devices there are, how work is shared out and what is left out; twice, every decision;
    /// three times, every chunk
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

impl Verbosity {
    /// Whether only results are wanted.
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

    /// Sends what the libraries say to standard error. Where that is closed, lines are lost: reporting the loss on
    /// standard error, as the subscriber otherwise does, would panic in the thread that logs.
    pub(crate) fn listen(self) {
        tracing_subscriber::fmt()
            .with_max_level(self.level())
            .with_writer(|| Lines)
            .log_internal_errors(false)
            .with_ansi(may_colour(io::stderr().is_terminal()))
            .with_target(false)
            .without_time()
            .init();
    }
}

/// Standard error, a line at a time. The subscriber writes its own colours, and writes out the escape sequences that are in
/// what it is told; but not all that a terminal acts on.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        io::stderr().lock().write_all(escape::log(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}
