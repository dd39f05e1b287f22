//! Workers on machines that `ssh` reaches.

use std::{path::PathBuf, process::Command, time::Duration};

use super::{Launched, Launcher, start};
use crate::host::HostError;

/// Starts workers on a machine that the user's own `ssh` reaches. Its configuration applies: keys, agents, jump hosts and
/// shared connections. `ssh` never asks for anything: a key that needs a passphrase and a host with an unknown key fail.
#[derive(Debug, Clone)]
pub struct Ssh {
    /// User and host, as `ssh` takes them.
    destination: String,
    port: Option<u16>,
    program: PathBuf,
    options: Vec<String>,
    command: String,
}

impl Ssh {
    /// A machine: `gpu-box`, `alice@lab3` or `lab3:2222`. The command there is `evener worker`.
    pub fn new(target: &str) -> Result<Self, HostError> {
        let refuse = |detail: &str| Err(HostError::new(target, detail));
        let (destination, port) = match target.split_once(':') {
            Some((destination, port)) => match port.parse() {
                Ok(port) => (destination, Some(port)),
                Err(_) => return refuse("what follows the colon is not a port"),
            },
            None => (target, None),
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_@".contains(c);
        let (user, host) = destination.split_once('@').unwrap_or(("user", destination));
        if user.is_empty() || host.is_empty() || host.contains('@') || destination.starts_with('-') {
            return refuse("write it as `host`, `user@host` or `user@host:port`");
        }
        if !destination.chars().all(is_plain) {
            return refuse("a host's name has letters, digits, `.`, `-` and `_`");
        }
        Ok(Ssh {
            destination: destination.into(),
            port,
            program: "ssh".into(),
            options: Vec::new(),
            command: "exec evener worker".into(),
        })
    }

    /// Sets the command that the machine's shell runs, whose standard input and output become the worker's pipes.
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = command.into();
        self
    }

    /// Adds an argument of `ssh`, such as `-J` or `-oUser=alice`.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Sets the `ssh` program.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    /// The host, without user and port.
    pub(crate) fn host_name(&self) -> &str {
        self.destination.rsplit('@').next().unwrap_or(&self.destination)
    }

    fn arguments(&self, timeout: Duration) -> Vec<String> {
        let seconds = timeout.as_secs().max(1);
        let mut arguments =
            vec!["-T".into(), "-oBatchMode=yes".into(), format!("-oConnectTimeout={seconds}")];
        if let Some(port) = self.port {
            arguments.extend(["-p".into(), port.to_string()]);
        }
        arguments.extend(self.options.iter().cloned());
        arguments.extend(["--".into(), self.destination.clone(), self.command.clone()]);
        arguments
    }

    /// Says what to do about an error of `ssh` or of the shell there.
    fn explain(destination: &str, line: &str) -> String {
        let advice = if line.contains("Host key verification failed") {
            format!(
                "the host's key is not known, or has changed: run `ssh {destination}` once, compare the fingerprint with \
                 that of the machine, and accept it"
            )
        } else if line.contains("Permission denied") {
            format!(
                "log in without a password first, with `ssh {destination}`: add a key there, or to your agent"
            )
        } else if line.contains("not found") || line.contains("No such file") {
            "install `evener` there, or give the command that starts it".into()
        } else {
            return line.to_owned();
        };
        format!("{line}: {advice}")
    }
}

impl Launcher for Ssh {
    fn launch(&self, timeout: Duration) -> Result<Launched, String> {
        let mut command = Command::new(&self.program);
        command.args(self.arguments(timeout));
        let destination = self.destination.clone();
        start(command, Box::new(move |line| Ssh::explain(&destination, line)))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn ssh_asks_for_nothing_and_keeps_the_users_configuration() {
        let ssh = Ssh::new("alice@lab3:2222").unwrap().option("-Jgate");
        assert_eq!(
            ssh.arguments(Duration::from_secs(7)),
            [
                "-T",
                "-oBatchMode=yes",
                "-oConnectTimeout=7",
                "-p",
                "2222",
                "-Jgate",
                "--",
                "alice@lab3",
                "exec evener worker"
            ]
        );
    }

    #[test]
    fn an_unknown_key_comes_with_the_way_to_add_it() {
        let text = Ssh::explain("lab3", "Host key verification failed.");
        assert!(text.contains("run `ssh lab3` once"), "{text}");
    }
}
