//! SSH servers on loopback, and slow links, which `scripts/cluster` starts.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use evener_cluster::{Host, Ssh, worker};
use evener_device::remote::RemoteHost;
use tempfile::TempDir;

use crate::Result;

/// SSH servers, which end when this is dropped.
pub(crate) struct Servers {
    folder: TempDir,
    /// The link that they are behind.
    _link: Option<FarLink>,
}

/// Two network namespaces with a slow link between them.
pub(crate) struct FarLink {
    folder: TempDir,
    /// What makes the delay.
    pub(crate) engine: String,
}

fn script(name: &str, arguments: &[&str]) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/cluster").join(name);
    let output = Command::new(path).args(arguments).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{} {}", text(&output.stdout), text(&output.stderr)).into()),
    }
}

fn path(folder: &TempDir) -> &str {
    folder.path().to_str().unwrap_or_default()
}

impl FarLink {
    /// Makes a link with these conditions, as `scripts/cluster/netns` names them. Fails where the machine allows none.
    pub(crate) fn start(conditions: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let engine = script("netns", &["start", path(&folder), conditions])?;
        Ok(FarLink { folder, engine })
    }
}

impl Drop for FarLink {
    fn drop(&mut self) {
        // What is left ends with the machine.
        let _ = script("netns", &["stop", path(&self.folder)]);
    }
}

impl Servers {
    /// Starts two servers, behind a link if there is one.
    pub(crate) fn start(link: Option<FarLink>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut arguments = vec!["start", path(&folder), "2"];
        arguments.extend(link.as_ref().map(|link| path(&link.folder)));
        script("sshd", &arguments)?;
        Ok(Servers { folder, _link: link })
    }

    /// A file for the hosts to read.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `ssh` to a host, with a command.
    pub(crate) fn ssh(&self, host: &str, command: &str) -> Result<Ssh> {
        let config = format!("-F{}", self.folder.path().join("ssh_config").display());
        Ok(Ssh::new(host)?.option(config).command(command))
    }

    /// Connects to a host, whose worker is this program. On Linux, it gets these cores.
    pub(crate) fn connect(&self, host: &str, cores: Option<&str>) -> Result<RemoteHost> {
        let pin = cores.map(|cores| format!("taskset -c {cores} ")).unwrap_or_default();
        let program = std::env::current_exe()?;
        let command = format!("exec {pin}'{}' {}", program.display(), worker::ARGUMENT);
        let host = Host::new(host, self.ssh(host, &command)?)?.timeout(Duration::from_secs(30));
        Ok(host.connect()?)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // What is left ends with the machine.
        let _ = script("sshd", &["stop", path(&self.folder)]);
    }
}
