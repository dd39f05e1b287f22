//! Hosts: named workers whose devices join an inventory.

use std::{sync::Arc, thread, time::Duration};

use evener_device::{
    Absent, Error, Inventory, Result,
    remote::{Connector, Pipes, RemoteHost},
};

use crate::launch::{Launcher, Ssh};

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
#[error("host `{name}`: {detail}")]
pub struct HostError {
    /// The host as it was named.
    pub name: String,
    /// What is wrong with the name.
    pub detail: String,
}

impl HostError {
    pub(crate) fn new(name: &str, detail: impl Into<String>) -> Self {
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

    /// Starts a worker there, and asks for its devices. Fails with [`Error::Lost`] if it does not answer in time.
    pub fn connect(&self) -> Result<RemoteHost> {
        let connector = LaunchConnector { launcher: self.launcher.clone(), timeout: self.timeout };
        RemoteHost::connect(&self.name, Arc::new(connector), self.timeout)
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
}

/// Connects to all hosts at once. Each has its own timeout, so the slowest decides how long this takes.
pub fn connect_all(hosts: &[Host]) -> Vec<Result<RemoteHost>> {
    thread::scope(|scope| {
        let connect = |host| thread::Builder::new().spawn_scoped(scope, move || Host::connect(host));
        let connecting: Vec<_> = hosts.iter().map(connect).collect();
        let failed = |host: &Host, detail: String| Error::Lost {
            device: host.name.as_str().into(),
            operation: "connecting".into(),
            detail,
        };
        hosts
            .iter()
            .zip(connecting)
            .map(|(host, thread)| match thread.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(failed(host, "the thread that connects panicked".into())),
                Err(why) => Err(failed(host, format!("no thread to connect with: {why}"))),
            })
            .collect()
    })
}

/// Adds hosts to an inventory.
pub trait WithHosts {
    /// Connects to all hosts at once and adds their devices. A host that cannot be reached is an [`Absent`] entry.
    #[must_use]
    fn with_hosts(self, hosts: &[Host]) -> Self;
}

impl WithHosts for Inventory {
    fn with_hosts(mut self, hosts: &[Host]) -> Self {
        for (index, (host, outcome)) in hosts.iter().zip(connect_all(hosts)).enumerate() {
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
        for name in ["", "-oProxyCommand=x", "a b", "a/b", "a,b", "alice@", "a:b", "a:99999", "a;b", "a[1]"] {
            assert!(Host::ssh(name).is_err(), "{name}");
        }
    }
}
