//! The devices of this machine and of the hosts that the user names.

use anyhow::{Result, bail};
use clap::Args;
use evener_cluster::{
    Host, HostError, Hosts, Program, connect_all, connect_or_await, hosts_from_environment,
};
use evener_device::{Absent, Device, Error, Inventory, remote::RemoteHost, selection_from_environment};

use crate::UsageError;

/// The option for hosts, which every command has that selects devices.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct HostsOption {
    /// Use the devices of these machines too, over ssh or SLURM [env: EVENER_HOSTS]
    ///
    /// A list such as gpu-box,alice@lab3:2222: names of hosts.toml, or what ssh takes. Their devices are gpu-box/cuda:0 and
    /// so on. A host that --devices names need not be in this list. slurm(nodes=4, gpus=2) asks SLURM for nodes, whose
    /// devices are slurm-1/cuda:0 and so on. See `evener help hosts`.
    #[arg(long, value_name = "LIST")]
    pub(crate) hosts: Option<String>,
}

/// What to do about nodes that SLURM has not allocated in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateNodes {
    /// They cannot be used.
    Refused,
    /// They join the run when they come.
    Awaited,
}

/// The devices of this machine and of hosts.
#[derive(Debug)]
pub(crate) struct Machines {
    pub(crate) inventory: Inventory,
    /// The hosts that answered.
    pub(crate) connected: Vec<RemoteHost>,
    /// The hosts that cannot be used although the user named them on the command line, and why.
    pub(crate) missing: Vec<Absent>,
    /// The hosts of the environment that cannot be used, and why.
    unused: Vec<Absent>,
}

impl Machines {
    /// Connects to the hosts of the option, or of the environment, and to those that a selection names. The devices of the
    /// latter are for terms that name them only. A host that cannot be reached is an absent entry of the inventory.
    pub(crate) fn find(
        mut inventory: Inventory,
        option: &HostsOption,
        selections: &[&str],
        late: LateNodes,
    ) -> Result<Machines> {
        let list = option.hosts.clone().or_else(hosts_from_environment);
        let from_environment = selection_from_environment();
        let selections = match (selections, &from_environment) {
            ([], Some(selection)) => &[selection.as_str()][..],
            (selections, _) => selections,
        };
        let (mut connected, mut missing, mut unused) = (Vec::new(), Vec::new(), Vec::new());
        if list.is_none() && !selections.iter().any(|selection| selection.contains('/')) {
            return Ok(Machines { inventory, connected, missing, unused });
        }
        let known = known_hosts()?;
        let mut hosts = list.as_deref().map_or(Ok(Vec::new()), |list| known.list(list)).map_err(usage)?;
        let listed = hosts.len();
        let is_listed = |name: &str| hosts.iter().any(|host| host.name() == name);
        let mut named: Vec<String> = Vec::new();
        for selection in selections {
            let is_host = |name: &str| is_listed(name) || known.knows(name);
            named.extend(inventory.hosts_in(selection, is_host)?);
        }
        let mut others: Vec<&String> = named.iter().filter(|name| !is_listed(name)).collect();
        others.sort();
        others.dedup();
        let others: Vec<Host> =
            others.into_iter().map(|name| known.host(name)).collect::<Result<_, _>>().map_err(usage)?;
        hosts.extend(others);
        let outcomes = match late {
            LateNodes::Refused => connect_all(&hosts),
            LateNodes::Awaited => connect_or_await(&hosts),
        };
        for (index, (host, outcome)) in hosts.iter().zip(outcomes).enumerate() {
            match outcome {
                Ok(host) => {
                    match index < listed {
                        true => inventory.add_host(&host),
                        false => inventory.add_named_host(&host),
                    }
                    connected.push(host);
                }
                Err(error) => {
                    let absent = Absent { back_end: host.name().to_owned(), reason: reason(error) };
                    let is_named = option.hosts.is_some() || named.iter().any(|name| name == host.name());
                    let list = if is_named { &mut missing } else { &mut unused };
                    list.push(absent.clone());
                    inventory.add_absent(absent);
                }
            }
        }
        Ok(Machines { inventory, connected, missing, unused })
    }

    /// The hosts of the environment that cannot be used, and why.
    pub(crate) fn unused(&self) -> &[Absent] {
        &self.unused
    }

    /// Fails if a host that the user named cannot be used. Warns of the others.
    pub(crate) fn all_there(self) -> Result<Inventory> {
        if !self.missing.is_empty() {
            bail!("{}", lines(&self.missing));
        }
        for Absent { back_end: host, reason } in &self.unused {
            tracing::warn!("{host} is not used: {reason}");
        }
        for host in &self.connected {
            if let Some(reason) = host.awaited_reason() {
                tracing::warn!("{} is not there yet, and joins when it comes: {reason}", host.name());
            }
        }
        Ok(self.inventory)
    }

    /// Selects devices, the default ones without a selection.
    pub(crate) fn select(
        option: &HostsOption,
        selection: Option<&str>,
        late: LateNodes,
    ) -> Result<(Inventory, Vec<Device>)> {
        let selections: Vec<&str> = selection.into_iter().collect();
        let inventory = Machines::find(Inventory::discover(), option, &selections, late)?.all_there()?;
        let devices = inventory.select_or_default(selection)?;
        Ok((inventory, devices))
    }
}

/// Reads the files that describe hosts. Workers are copies of this program where it was installed.
pub(crate) fn known_hosts() -> Result<Hosts> {
    let hosts = Hosts::load().map_err(usage)?;
    Ok(match this_program() {
        Ok(program) => hosts.prefer(program),
        Err(_) => hosts,
    })
}

/// This program, as `evener hosts install` copies it.
pub(crate) fn this_program() -> std::io::Result<Program> {
    Program::with_arguments("worker --program")
}

pub(crate) fn usage(error: HostError) -> UsageError {
    UsageError(error.to_string())
}

/// Returns why a host cannot be used, without its name.
pub(crate) fn reason(error: Error) -> String {
    match error {
        Error::Lost { detail, .. } => detail,
        error => error.to_string(),
    }
}

/// Returns a line for each host.
pub(crate) fn lines(absent: &[Absent]) -> String {
    absent.iter().map(Absent::to_string).collect::<Vec<_>>().join("\n")
}
