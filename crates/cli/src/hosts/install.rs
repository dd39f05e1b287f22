//! `evener hosts install`: copies this program to other machines.

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    machines::{known_hosts, this_program, usage},
    output::write_out,
    progress::ProgressLine,
    verbosity::Verbosity,
};

/// Copy this program to other machines
///
/// Copies it by ssh into the user's cache folder there (~/.cache/evener/programs), which nobody else may read, under the hash
/// of its contents, and starts it once to check that it runs and that the hash is right. Commands of this very program then
/// use the copy, unless hosts.toml names another one.
///
/// The machines must be of the same kind as this one.
///
/// With -q, prints the path of each copy.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Copy to these hosts
    #[arg(value_name = "HOST", required = true)]
    hosts: Vec<String>,
}

const AFTER_HELP: &str = "\
Examples:
  evener hosts install gpu-box      copy this program to gpu-box
  evener devices --hosts gpu-box    use it";

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let program = this_program().context("this program cannot be copied")?;
    let hosts = known_hosts()?.list(&arguments.hosts.join(",")).map_err(usage)?;
    let progress = ProgressLine::new(verbosity.is_quiet());
    let mut failed = Vec::new();
    for host in hosts {
        progress.step(format!("copying {:.0} MB to {}", program.bytes() as f64 / 1e6, host.name()));
        let installed = host.install(&program).map_err(anyhow::Error::from);
        // A program of another kind of machine does not start.
        let installed = installed.and_then(|path| Ok((path, host.connect()?)));
        progress.finish();
        match installed {
            Ok((path, _)) if verbosity.is_quiet() => write_out(&format!("{path}\n"))?,
            Ok((path, connected)) => {
                let (name, count) = (host.name(), connected.devices().len());
                write_out(&format!("{name}: installed as {path}; it has {count} devices\n"))?;
            }
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    match failed.as_slice() {
        [] => Ok(()),
        failed => bail!("{}", failed.join("\n")),
    }
}
