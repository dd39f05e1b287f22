//! A tree into a file, whole or not at all.

use std::path::Path;

use anyhow::{Context, Result};
use evener_merkle::MerkleTree;

use crate::output::{is_special, open_special, shown, target};

/// Writes a tree. Where that fails, or somebody interrupts it, nothing half-written is left behind.
pub(super) fn store(tree: &MerkleTree, path: &Path) -> Result<()> {
    if is_special(path) {
        let written = open_special(path).and_then(|special| tree.write_to(special));
        return written.with_context(|| format!("{}: cannot be written", shown(path)));
    }
    uninterrupted(|| tree.save(target(path)))?;
    Ok(())
}

/// Lets what was begun be ended before a signal ends the process.
#[cfg(unix)]
fn uninterrupted<R>(work: impl FnOnce() -> R) -> R {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use signal_hook::{
        consts::{SIGHUP, SIGINT, SIGTERM},
        flag,
        low_level::emulate_default_handler,
    };

    let came = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // Where a signal cannot be had, it does what it always does.
        if let Err(error) = flag::register_usize(signal, came.clone(), signal as usize) {
            tracing::debug!(signal, %error, "a signal cannot be waited for");
        }
    }
    let result = work();
    match came.load(SeqCst) as i32 {
        0 => {}
        // It ends the process; if not, the work is done all the same.
        signal => drop(emulate_default_handler(signal)),
    }
    result
}

#[cfg(not(unix))]
fn uninterrupted<R>(work: impl FnOnce() -> R) -> R {
    work()
}
