//! `--view`: the view of this command's runs in the terminal, below what the command writes.

use std::{
    io::{self, IsTerminal},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Result;
use evener_view::top::{Inline, Look};

use crate::{color, verbosity::Verbosity};

/// The view in the terminal, if there is one. Whatever else writes to the terminal goes above it.
static INLINE: Mutex<Option<Arc<Inline>>> = Mutex::new(None);

fn inline() -> MutexGuard<'static, Option<Arc<Inline>>> {
    INLINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The view in the terminal, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct InlineView(());

impl InlineView {
    /// Begins the view, unless standard error cannot show one: then the user is told.
    pub(crate) fn begin(verbosity: Verbosity) -> Result<Option<InlineView>> {
        let stderr = io::stderr();
        let why = match std::env::var_os("TERM") {
            _ if verbosity.is_quiet() => return Ok(None),
            _ if !stderr.is_terminal() => "standard error is not a terminal",
            Some(terminal) if terminal == "dumb" => "the terminal cannot move its cursor (TERM is dumb)",
            _ => {
                *inline() = Some(Arc::new(Inline::begin(look(&stderr))?));
                return Ok(Some(InlineView(())));
            }
        };
        tracing::warn!("--view shows nothing: {why}");
        Ok(None)
    }
}

impl Drop for InlineView {
    fn drop(&mut self) {
        // The lock is not held while the view ends: its thread may write a line of the log.
        let view = inline().take();
        drop(view);
    }
}

/// Writes to the terminal above the view.
pub(crate) fn above_view<R>(write: impl FnOnce() -> R) -> R {
    let view = inline().clone();
    match view {
        Some(view) => view.pause(write),
        None => write(),
    }
}

/// What the terminal of a stream can show.
pub(crate) fn look(stream: &impl IsTerminal) -> Look {
    let unicode = Look::has_unicode(|name| std::env::var_os(name));
    Look { unicode, colors: color::is_enabled(stream) }
}
