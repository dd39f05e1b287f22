//! The options of every command that runs something.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use evener_schedule::Strategy;

use crate::output::{check_folder, special};

/// How something is run, and what is told of it.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// Use only these devices, as for `evener devices` [env: EVENER_DEVICES]
    ///
    /// A list such as cuda:0,cpu or gpu or -cpu or cuda:0[40,92],cpu[8,8]: `evener help devices` says all of it.
    /// Without it, everything but software devices is used.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) devices: Option<String>,

    /// How work is shared out: equal, proportional (by score, or by speed where that was measured), dynamic (the same,
    /// and by how busy the devices are) or adaptive (devices pull chunks whose sizes follow their measured speed)
    #[arg(long, value_name = "STRATEGY", default_value_t)]
    pub(crate) strategy: Strategy,

    /// Write an object, for programs
    #[arg(long)]
    pub(crate) json: bool,

    /// Write what every device did, when, for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// Fails, before anything is computed, where one of these files could not be written.
pub(crate) fn check_outputs<'a>(paths: impl IntoIterator<Item = Option<&'a Path>>) -> Result<()> {
    paths.into_iter().flatten().filter(|path| special(path).is_none()).try_for_each(check_folder)
}
