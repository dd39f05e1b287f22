//! `evener man`: the manual.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::{EXIT_CODES, output::write_as_it_is};

/// The manual
///
/// Writes the manual page of the command to standard output, or the pages of all commands to a folder.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    /// Write a page for every command to this folder
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener man | man -l -                              read it now
  evener man --folder ~/.local/share/man/man1        install it; then: man evener-merkle

{EXIT_CODES}"
    )
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, command: clap::Command) -> Result<()> {
    match arguments.folder {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            write_as_it_is(&String::from_utf8(page)?)?;
        }
        Some(folder) => {
            let failed = || format!("{}: cannot be written", folder.display());
            std::fs::create_dir_all(&folder).with_context(failed)?;
            clap_mangen::generate_to(command, &folder).with_context(failed)?;
        }
    }
    Ok(())
}
