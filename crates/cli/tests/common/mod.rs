//! The command as the tests run it, away from the user's own settings.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::process::{Command, Output};

use sha2::{Digest, Sha256};

/// The command.
pub(crate) fn evener() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evener"));
    command.env_remove("EVENER_DEVICES").env_remove("EVENER_HOSTS").env_remove("EVENER_SCORE_TABLE");
    command.env("EVENER_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    command
}

pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The root of RFC 6962 by its own definition, in hexadecimal: the tree is cut at the largest power of two below its size.
pub(crate) fn rfc6962(leaves: &[&[u8]]) -> String {
    fn root(leaves: &[&[u8]]) -> [u8; 32] {
        match leaves {
            [] => Sha256::digest([]).into(),
            [leaf] => Sha256::new().chain_update([0]).chain_update(leaf).finalize().into(),
            _ => {
                let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
                let node = Sha256::new().chain_update([1]).chain_update(root(left)).chain_update(root(right));
                node.finalize().into()
            }
        }
    }
    root(leaves).iter().map(|byte| format!("{byte:02x}")).collect()
}
