//! `evener man`: prints the manual.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use clap_mangen::Man;

use crate::{
    output::{display_path, write_raw},
    topics::{EXIT_CODES, VARIABLES},
};

/// Print the manual page
///
/// Writes the manual page of the command to standard output, or the pages of all commands to a folder.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Write a page for every command to this folder
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  evener man | man -l -                        read it now
  evener man --folder ~/.local/share/man/man1  install pages: man evener-demo";

/// Runs the command.
pub(crate) fn run(arguments: Arguments, command: clap::Command) -> Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    match arguments.folder {
        None => Ok(write_raw(&page(&command, true)?)?),
        Some(folder) => {
            let cannot = || format!("{}: cannot be written", display_path(&folder));
            std::fs::create_dir_all(&folder).with_context(cannot)?;
            write_pages(&command, true, &folder).with_context(cannot)
        }
    }
}

/// Writes the pages of a command and of all commands below it.
fn write_pages(command: &clap::Command, is_root: bool, folder: &Path) -> Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_pages(command, false, folder)?;
    }
    std::fs::write(folder.join(Man::new(command.clone()).get_filename()), page(command, is_root)?)?;
    Ok(())
}

/// Returns a page. The page of the root command has the exit codes and environment variables of all commands.
fn page(command: &clap::Command, is_root: bool) -> Result<String> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    let mut page = String::from_utf8(page)?;
    if is_root {
        page += &definitions("EXIT STATUS", &EXIT_CODES);
        page += &definitions("ENVIRONMENT", &VARIABLES);
    } else {
        page += ".SH \"SEE ALSO\"\n\\fBevener\\fR(1), for exit status and environment variables\n";
    }
    Ok(page)
}

/// Returns a section of terms and their meanings.
fn definitions(title: &str, terms: &[(&str, &str)]) -> String {
    let escape = |text: &str| text.replace('\\', "\\e").replace('-', "\\-");
    let entry =
        |(term, meaning): &(&str, &str)| format!(".TP\n\\fB{}\\fR\n{}\n", escape(term), escape(meaning));
    format!(".SH \"{title}\"\n{}", terms.iter().map(entry).collect::<String>())
}
