//! `evener hosts check`: connects to hosts and says what is there, or what is wrong.

use anyhow::{Result, bail};
use clap::Args;
use evener_cluster::{connect_all, hosts_from_environment};
use evener_device::Absent;
use serde::Serialize;

use super::link::{HostLink, links_table};
use crate::{
    UsageError, escape,
    machines::{known_hosts, reason, usage},
    output::{write_json, write_out},
    verbosity::Verbosity,
};

/// Check that machines can be used
///
/// Connects to each of them, and prints the version of evener, the number of devices, the round trip and the bandwidth, or
/// what is wrong and how to mend it. Fails if a machine cannot be used.
///
/// With -q, prints the names of those that can be used.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Check these hosts [default: EVENER_HOSTS, or those of hosts.toml]
    #[arg(value_name = "HOST")]
    hosts: Vec<String>,

    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  evener hosts check                        check the hosts of hosts.toml
  evener hosts check gpu-box alice@lab3:22  check others";

#[derive(Serialize)]
struct Checked {
    hosts: Vec<HostLink>,
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    host: String,
    reason: String,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let known = known_hosts()?;
    let list = match (arguments.hosts.as_slice(), hosts_from_environment()) {
        ([], Some(list)) => list,
        ([], None) => known.names().collect::<Vec<_>>().join(","),
        (hosts, _) => hosts.join(","),
    };
    if list.is_empty() {
        let message = "no host is named: give some here, in EVENER_HOSTS or in hosts.toml";
        return Err(UsageError(message.into()).into());
    }
    let hosts = known.list(&list).map_err(usage)?;
    let mut checked = Checked { hosts: Vec::new(), failed: Vec::new() };
    for (host, outcome) in hosts.iter().zip(connect_all(&hosts)) {
        let failed = |reason: String| Failed { host: host.name().to_owned(), reason };
        match outcome {
            Ok(connected) => {
                let link = HostLink::measure(&connected);
                checked.failed.extend(link.error.clone().map(failed));
                checked.hosts.push(link);
            }
            Err(error) => checked.failed.push(failed(reason(error))),
        }
    }
    if arguments.json {
        write_json(&checked)?;
    } else if verbosity.is_quiet() {
        write_out(&checked.hosts.iter().map(|link| format!("{}\n", link.host())).collect::<String>())?;
    } else {
        write_out(&text(&checked))?;
    }
    match checked.failed.as_slice() {
        [] => Ok(()),
        // What was printed does not say why.
        failed if verbosity.is_quiet() && !arguments.json => bail!("{}", lines(failed)),
        failed => {
            let names: Vec<&str> = failed.iter().map(|failed| failed.host.as_str()).collect();
            bail!("cannot be used: {}", names.join(", "))
        }
    }
}

fn text(checked: &Checked) -> String {
    let table = (!checked.hosts.is_empty()).then(|| links_table(&checked.hosts));
    let failed = (!checked.failed.is_empty()).then(|| lines(&checked.failed));
    table.into_iter().chain(failed).collect::<Vec<_>>().join("\n\n") + "\n"
}

/// Returns a line for each host that cannot be used, with the reason.
fn lines(failed: &[Failed]) -> String {
    let line = |failed: &Failed| {
        let absent = Absent { back_end: failed.host.clone(), reason: failed.reason.clone() };
        escape::single_line(&absent.to_string()).into_owned()
    };
    failed.iter().map(line).collect::<Vec<_>>().join("\n")
}
