//! Saves a tree to a file.

use std::path::Path;

use anyhow::{Context, Result};
use evener_merkle::MerkleTree;

use crate::output::{display_path, is_special, open_special, resolve_links};

/// Saves a tree. No temporary file remains if saving fails or is interrupted.
pub(super) fn save(tree: &MerkleTree, path: &Path) -> Result<()> {
    if is_special(path) {
        let written = open_special(path).and_then(|special| tree.write_to(special));
        return written.with_context(|| format!("{}: cannot be written", display_path(path)));
    }
    defer_signals(|| tree.save(resolve_links(path)))?;
    Ok(())
}

/// Completes `work` before SIGHUP, SIGINT or SIGTERM ends the process.
#[cfg(unix)]
fn defer_signals<R>(work: impl FnOnce() -> R) -> R {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use signal_hook::{
        consts::{SIGHUP, SIGINT, SIGTERM},
        flag,
        low_level::emulate_default_handler,
    };

    let received = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        if let Err(error) = flag::register_usize(signal, received.clone(), signal as usize) {
            tracing::debug!(signal, %error, "cannot defer a signal: it ends the process at once");
        }
    }
    let result = work();
    match received.load(SeqCst) as i32 {
        0 => {}
        // Ends the process.
        signal => drop(emulate_default_handler(signal)),
    }
    result
}

#[cfg(not(unix))]
fn defer_signals<R>(work: impl FnOnce() -> R) -> R {
    work()
}
