//! Hosts: named workers whose devices join an inventory.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use evener_device::{
    Absent, Error, Inventory, Result, is_device_name,
    remote::{Connector, Pipes, RemoteHost},
};

use crate::launch::{Launched, Launcher, Program, Ssh};

/// How long a host has to answer, unless [`Host::timeout`] says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A machine, or a process, that workers are started on.
#[derive(Debug, Clone)]
pub struct Host {
    name: String,
    launcher: Arc<dyn Launcher>,
    timeout: Duration,
}

/// Why a host cannot be used as it was named.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {detail}")]
pub struct HostError {
    /// The host as it was named, or the file that describes hosts.
    pub name: String,
    /// What is wrong with it.
    pub detail: String,
}

impl HostError {
    pub(crate) fn new(name: &str, detail: impl Into<String>) -> Self {
        let name = if name.is_empty() { "a host without a name" } else { name };
        HostError { name: name.into(), detail: detail.into() }
    }
}

impl Host {
    /// A host whose workers this launcher starts. The name, which its devices' ids begin with, is of letters, digits,
    /// `.`, `-` and `_`.
    pub fn new(name: impl Into<String>, launcher: impl Launcher + 'static) -> Result<Self, HostError> {
        let name = name.into();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if name.is_empty() || name.starts_with('-') || !name.chars().all(is_plain) {
            let detail = "a name has letters, digits, `.`, `-` and `_`, and does not begin with `-`";
            return Err(HostError::new(&name, detail));
        }
        if is_device_name(&name) {
            let detail = "is what devices are called in --devices: give the machine another name in hosts.toml, and its \
                          address there";
            return Err(HostError::new(&name, detail));
        }
        Ok(Host { name, launcher: Arc::new(launcher), timeout: TIMEOUT })
    }

    /// A host that `ssh` reaches: `gpu-box`, `alice@lab3`, `lab3:2222`. Its name is what is left without user and port.
    pub fn ssh(target: &str) -> Result<Self, HostError> {
        let ssh = Ssh::new(target)?;
        Host::new(ssh.host_name().to_owned(), ssh)
    }

    /// Sets how long the host has to answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The name that its devices' ids begin with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Copies a program there, and returns its path. Fails with a reason for the user.
    pub fn install(&self, program: &Program) -> Result<String, HostError> {
        self.launcher.install(program, self.timeout).map_err(|detail| HostError::new(&self.name, detail))
    }

    /// Starts the host's command there, whatever it is, and returns its pipes. The command need not have answered yet. Fails
    /// with a reason for the user; [`is_to_come`](Host::is_to_come) then says whether another try is worth it.
    pub fn launch(&self) -> Result<Launched, HostError> {
        self.launcher.launch(self.timeout).map_err(|detail| HostError::new(&self.name, detail))
    }

    /// How long the host has to answer.
    pub fn answer_timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether a worker was asked for that is still to come: a node that SLURM has not allocated yet.
    pub fn is_to_come(&self) -> bool {
        self.launcher.is_to_come()
    }

    /// When its worker will be taken away, if that is known: at a batch system's time limit.
    pub fn available_until(&self) -> Option<Instant> {
        self.launcher.available_until()
    }

    /// Starts a worker there, and asks for its devices. Fails with [`Error::Lost`] if it does not answer in time.
    pub fn connect(&self) -> Result<RemoteHost> {
        let connector = self.connector();
        let connect = || RemoteHost::connect(&self.name, connector.clone(), self.timeout);
        let error = match connect() {
            Err(error @ Error::Lost { .. }) => error,
            outcome => return outcome,
        };
        match self.launcher.mend(&error.to_string(), self.timeout) {
            Ok(true) => connect(),
            Ok(false) => Err(error),
            Err(detail) => Err(self.lost(detail)),
        }
    }
}

impl Host {
    fn connector(&self) -> Arc<LaunchConnector> {
        Arc::new(LaunchConnector { launcher: self.launcher.clone(), timeout: self.timeout })
    }

    fn lost(&self, detail: String) -> Error {
        Error::Lost { device: self.name.as_str().into(), operation: "connecting".into(), detail }
    }
}

/// Connects by launching a worker.
#[derive(Debug)]
struct LaunchConnector {
    launcher: Arc<dyn Launcher>,
    timeout: Duration,
}

impl Connector for LaunchConnector {
    fn connect(&self) -> Result<Pipes, String> {
        self.launcher.launch(self.timeout).map(Pipes::from)
    }

    fn is_there(&self) -> bool {
        self.launcher.is_there()
    }

    fn available_until(&self) -> Option<Instant> {
        self.launcher.available_until()
    }
}

/// Connects to all hosts at once. Each has its own timeout, so the slowest decides how long this takes.
pub fn connect_all(hosts: &[Host]) -> Vec<Result<RemoteHost>> {
    thread::scope(|scope| {
        let connect = |host| thread::Builder::new().spawn_scoped(scope, move || Host::connect(host));
        let connecting: Vec<_> = hosts.iter().map(connect).collect();
        hosts
            .iter()
            .zip(connecting)
            .map(|(host, thread)| match thread.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(host.lost("the thread that connects panicked".into())),
                Err(why) => Err(host.lost(format!("no thread to connect with: {why}"))),
            })
            .collect()
    })
}

/// Connects to all hosts at once, as [`connect_all`] does. Hosts whose workers are still to come, such as nodes that SLURM
/// has not allocated yet, are [awaited](RemoteHost::awaited): their devices join a run when they come. They are expected to
/// have the devices of a host of the same request that is there.
pub fn connect_or_await(hosts: &[Host]) -> Vec<Result<RemoteHost>> {
    let mut outcomes = connect_all(hosts);
    for index in 0..hosts.len() {
        let host = &hosts[index];
        let (Err(error), true) = (&outcomes[index], host.launcher.is_to_come()) else { continue };
        let Some(expected) = host.launcher.expected_devices() else { continue };
        let is_alike = |(other, outcome): (&Host, &Result<RemoteHost>)| {
            let own = other.launcher.expected_devices().is_some_and(|it| it.is_same_request(expected));
            let there = outcome.as_ref().ok().filter(|it| own && it.awaited_reason().is_none());
            there.map(|it| it.descriptions().to_vec())
        };
        let alike = hosts.iter().zip(&outcomes).find_map(is_alike);
        let devices = alike.unwrap_or_else(|| expected.devices().to_vec());
        let reason = match error {
            Error::Lost { detail, .. } => detail.clone(),
            other => other.to_string(),
        };
        outcomes[index] =
            Ok(RemoteHost::awaited(&host.name, host.connector(), host.timeout, devices, reason));
    }
    outcomes
}

/// Adds hosts to an inventory.
pub trait WithHosts {
    /// Connects to all hosts at once and adds their devices. A host that cannot be reached is an [`Absent`] entry. Nodes that
    /// SLURM has not allocated yet are awaited, as [`connect_or_await`] describes.
    #[must_use]
    fn with_hosts(self, hosts: &[Host]) -> Self;
}

impl WithHosts for Inventory {
    fn with_hosts(mut self, hosts: &[Host]) -> Self {
        for (index, (host, outcome)) in hosts.iter().zip(connect_or_await(hosts)).enumerate() {
            let absent = |reason: String| Absent { back_end: host.name.clone(), reason };
            match outcome {
                // Their devices would have the same ids.
                _ if hosts[..index].iter().any(|other| other.name == host.name) => {
                    self.add_absent(absent("another host has the same name".into()));
                }
                Ok(connected) => self.add_host(&connected),
                Err(Error::Lost { detail, .. }) => self.add_absent(absent(detail)),
                Err(why) => self.add_absent(absent(why.to_string())),
            }
        }
        self
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_host_is_named_without_user_and_port() {
        let names = ["gpu-box", "alice@lab3", "lab3:2222", "alice@lab3.example.org:22"];
        let named = names.map(|name| Host::ssh(name).unwrap().name().to_owned());
        assert_eq!(named, ["gpu-box", "lab3", "lab3", "lab3.example.org"]);
    }

    #[test]
    fn names_that_a_shell_or_a_selection_would_misread_are_refused() {
        for name in [
            "",
            "-oProxyCommand=x",
            "a b",
            "a/b",
            "a,b",
            "alice@",
            "a:b",
            "a:99999",
            "a;b",
            "a[1]",
            "cpu",
            "GPU",
        ] {
            assert!(Host::ssh(name).is_err(), "{name}");
        }
    }
}
