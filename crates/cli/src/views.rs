//! Live views of a run: the options of every command that runs something, and the views while they last.

use std::{
    io::{self, IsTerminal},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Result;
use clap::Args;
use evener_schedule::{Report, Trace};
use evener_view::top::{Inline, Look};

use crate::{color, verbosity::Verbosity};

/// The options for views, which every command has that runs something.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ViewOptions {
    /// Show in the terminal what each device does, while it runs
    ///
    /// The view is on standard error, and is removed when the report is printed. If standard error is not a terminal, there
    /// is none. `evener top` shows all programs.
    #[arg(long)]
    pub(crate) view: bool,
}

impl ViewOptions {
    /// The files that views write, for [`check_outputs`](crate::options::check_outputs).
    pub(crate) fn outputs(&self) -> impl Iterator<Item = Option<&Path>> {
        std::iter::empty()
    }

    /// Whether a view needs the run's trace at its end.
    pub(crate) fn needs_trace(&self) -> bool {
        false
    }
}

/// The views of a command, which end when this is dropped.
#[derive(Debug)]
#[must_use = "views last as long as this value"]
pub(crate) struct Views {
    has_inline: bool,
}

impl Views {
    /// Begins the views that the options ask for. Call it before the run.
    pub(crate) fn begin(options: &ViewOptions, verbosity: Verbosity) -> Result<Views> {
        let has_inline = options.view && Views::begin_inline(verbosity)?;
        Ok(Views { has_inline })
    }

    /// Begins the view in the terminal. Returns whether there is one.
    fn begin_inline(verbosity: Verbosity) -> Result<bool> {
        let stderr = io::stderr();
        let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        if verbosity.is_quiet() || !stderr.is_terminal() || is_dumb {
            tracing::warn!("--view shows nothing: standard error is not a terminal");
            return Ok(false);
        }
        let look = look(&stderr);
        *inline() = Some(Arc::new(Inline::begin(look)?));
        Ok(true)
    }

    /// Whether a view shows the progress, so that the command shows no progress bar.
    pub(crate) fn show_progress(&self) -> bool {
        self.has_inline
    }

    /// Ends the live views, and writes what the options ask for about a run that has ended. Call it after the run and before
    /// its report is printed. `run` is `None` if the command has no report, or no device took part.
    pub(crate) fn finish(self, _run: Option<(&Report, &Trace)>) -> Result<()> {
        Ok(())
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        if self.has_inline {
            // Not while the lock is held: the view's own thread may write a line of the log before it ends.
            let inline = inline().take();
            drop(inline);
        }
    }
}

/// The view in the terminal, if there is one. Whatever else writes to the terminal goes above it.
static INLINE: Mutex<Option<Arc<Inline>>> = Mutex::new(None);

fn inline() -> MutexGuard<'static, Option<Arc<Inline>>> {
    INLINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to the terminal above the view.
pub(crate) fn above_view<R>(write: impl FnOnce() -> R) -> R {
    let inline = inline().clone();
    match inline {
        Some(inline) => inline.pause(write),
        None => write(),
    }
}

/// What the terminal of a stream can show.
pub(crate) fn look(stream: &impl IsTerminal) -> Look {
    let unicode = Look::has_unicode(|name| std::env::var_os(name));
    Look { unicode, colors: color::is_enabled(stream) }
}

/// The socket through which `evener top` and `evener serve` find this program, while this lives.
#[cfg(unix)]
pub(crate) type Socket = evener_view::socket::Server;

/// Opens the socket if `EVENER_VIEW` asks for it. A socket that cannot be opened is no reason not to run.
#[cfg(unix)]
pub(crate) fn open_socket() -> Result<Option<Socket>> {
    use evener_view::socket::{SocketError, open_if_asked};

    match open_if_asked() {
        Err(error @ SocketError::Variable(_)) => Err(crate::UsageError(error.to_string()).into()),
        Err(error) => {
            tracing::warn!("`evener top` will not find this program: {error}");
            Ok(None)
        }
        Ok(server) => Ok(server),
    }
}

/// Programs are found through Unix sockets.
#[cfg(not(unix))]
pub(crate) fn open_socket() -> Result<Option<()>> {
    Ok(None)
}
