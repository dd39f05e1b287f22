//! Input files, of which `-` is standard input.

use std::{
    io::{self, Read},
    path::Path,
};

use anyhow::{Context, Result};

use crate::output::display_path;

/// Returns whether a path means standard input. A file of that name is `./-`.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns an input's name for messages.
pub(crate) fn display_input(path: &Path) -> String {
    if is_stdin(path) { "standard input".into() } else { display_path(path) }
}

/// Reads a text file or standard input.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = match is_stdin(path) {
        true => io::stdin().lock().read_to_string(&mut text).map(drop),
        false => std::fs::read_to_string(path).map(|contents| text = contents),
    };
    read.with_context(|| format!("{}: cannot be read", display_input(path)))?;
    Ok(text)
}
