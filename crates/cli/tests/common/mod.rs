//! The command as the tests run it, away from the user's own settings.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::process::{Command, Output};

/// The command.
pub(crate) fn evener() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evener"));
    command.env_remove("EVENER_DEVICES").env_remove("EVENER_SCORE_TABLE");
    command.env("EVENER_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    command
}

pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}
