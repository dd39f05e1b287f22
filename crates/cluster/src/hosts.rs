//! Hosts by name: lists such as `gpu-box,alice@lab3:2222`, and the file `hosts.toml`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use directories::ProjectDirs;
use serde::Deserialize;

use crate::{
    host::{Host, HostError},
    launch::{Program, Slurm, Ssh},
};

/// The environment variable with the hosts for programs that are given none.
pub const HOSTS_VARIABLE: &str = "EVENER_HOSTS";

/// The name of the file that describes hosts.
pub const FILE_NAME: &str = "hosts.toml";

/// Returns the list of hosts in `EVENER_HOSTS`, if it is set and not blank.
pub fn hosts_from_environment() -> Option<String> {
    let list = std::env::var_os(HOSTS_VARIABLE)?.to_string_lossy().into_owned();
    Some(list).filter(|list| !list.trim().is_empty())
}

/// What is known about hosts: how `ssh` reaches them, and where `evener` is there.
///
/// The file `hosts.toml` has a table for each host. All keys may be left out, and a host that is in no file is reached by
/// its name:
///
/// ```toml
/// [gpu-box]
/// address = "alice@gpu-box.example.org:2222" # as for `ssh`; the name if left out
/// ssh = ["-J", "gate"]                       # further arguments of `ssh`
/// evener = "/opt/evener/bin/evener"          # the program there
/// setup = ["module load cuda"]               # lines that the shell there runs first
/// timeout = 20                               # seconds that the host has to answer
/// ```
///
/// A table with the key `slurm` is a request for nodes of a SLURM cluster, whose hosts are `big-1`, `big-2` and so on:
///
/// ```toml
/// [big]
/// slurm = { nodes = 4, gpus = 2, partition = "gpu", time = "1:00:00", cores = 16, memory = "64GB" }
/// srun = ["--constraint=a100"]               # further arguments of `srun`
/// timeout = 60                               # seconds to wait for the first node
/// ```
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    entries: BTreeMap<String, Entry>,
    program: Option<Program>,
    sends: bool,
    /// A line for the shell there that is run instead of a worker of Evener's own.
    command: Option<String>,
}

/// A host's table in the file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Entry {
    address: Option<String>,
    ssh: Vec<String>,
    evener: Option<String>,
    setup: Vec<String>,
    timeout: Option<f64>,
    slurm: Option<BTreeMap<String, toml::Value>>,
    srun: Vec<String>,
}

impl Hosts {
    /// Reads `hosts.toml` in the user's configuration folder and in the working folder, as far as they exist. A host that
    /// both have is as the working folder's file says.
    ///
    /// Fails if a file cannot be read or is malformed, and if the file in the working folder is another user's or can be
    /// written by others: its options can run programs.
    pub fn load() -> Result<Self, HostError> {
        let mut hosts = Hosts::default();
        let user = ProjectDirs::from("", "", "evener").map(|folders| folders.config_dir().join(FILE_NAME));
        for path in user.into_iter().chain([PathBuf::from(FILE_NAME)]) {
            if path.exists() {
                hosts.entries.append(&mut Hosts::read(&path)?.entries);
            }
        }
        Ok(hosts)
    }

    /// Reads a file. Fails as [`load`](Hosts::load) does.
    pub fn read(path: &Path) -> Result<Self, HostError> {
        let shown = path.display().to_string();
        let refuse = |detail: String| HostError::new(&shown, detail);
        let unreadable = |why: io::Error| refuse(format!("cannot be read: {why}"));
        // What is checked and what is read is the same file, whatever its name stands for meanwhile.
        let mut file = File::open(path).map_err(unreadable)?;
        check_owner(&file).map_err(refuse)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(unreadable)?;
        Hosts::parse(&text).map_err(|why| refuse(why.to_string()))
    }

    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let entries: BTreeMap<String, Entry> =
            toml::from_str(text).map_err(|why| HostError::new("malformed", why.to_string().trim_end()))?;
        let hosts = Hosts { entries, ..Hosts::default() };
        for (name, entry) in &hosts.entries {
            match entry.slurm {
                Some(_) => hosts.request(name, entry).map(drop)?,
                None => hosts.host(name).map(drop)?,
            }
        }
        Ok(hosts)
    }

    /// Prefers a copy of this program, where it was installed, to the `evener` there. A host whose file names its
    /// `evener` uses that.
    #[must_use]
    pub fn prefer(self, program: Program) -> Self {
        Hosts { program: Some(program), sends: false, ..self }
    }

    /// Starts workers of this program, which is sent to hosts that do not have it yet.
    #[must_use]
    pub fn send(self, program: Program) -> Self {
        Hosts { program: Some(program), sends: true, ..self }
    }

    /// Runs a line of the shell there instead of a worker of Evener's own: its standard input and output are the pipes of
    /// [`Host::launch`]. The file's `evener` is not used then.
    #[must_use]
    pub fn running(self, command: impl Into<String>) -> Self {
        Hosts { command: Some(command.into()), ..self }
    }

    /// The names of the hosts in the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Whether a file describes this host, or has a SLURM request with such a node.
    pub fn knows(&self, name: &str) -> bool {
        self.entries.contains_key(name) || self.node(name).is_some()
    }

    /// The SLURM request of a node's name, such as `big-2`, and the node's number.
    fn node(&self, name: &str) -> Option<(&str, &Entry, usize)> {
        let (request, number) = name.rsplit_once('-')?;
        let number = number.parse().ok().filter(|number| *number > 0)?;
        let (request, entry) = self.entries.get_key_value(request)?;
        entry.slurm.is_some().then_some((request.as_str(), entry, number))
    }

    /// Returns a host: one of the files, or one that `ssh` reaches by this name, such as `alice@lab3:2222`. A node of a
    /// SLURM request of the files is `big-2`.
    pub fn host(&self, name: &str) -> Result<Host, HostError> {
        let unknown = Entry::default();
        let entry = self.entries.get(name);
        if let (None, Some((request, entry, number))) = (entry, self.node(name)) {
            let nodes = self.request(request, entry)?.hosts(request)?;
            let count = nodes.len();
            let missing = || HostError::new(name, format!("the request {request} has {count} nodes"));
            return nodes.into_iter().nth(number - 1).ok_or_else(missing);
        }
        let Entry { address, ssh: options, evener, setup, timeout, slurm, srun } = entry.unwrap_or(&unknown);
        if slurm.is_some() {
            let detail =
                format!("is a request for nodes of a SLURM cluster: name one of them, such as {name}-1");
            return Err(HostError::new(name, detail));
        }
        if !srun.is_empty() {
            return Err(HostError::new(name, "the key `srun` is for a table with the key `slurm`"));
        }
        let mut ssh = Ssh::new(address.as_deref().unwrap_or(name))?.called(name);
        for option in options {
            ssh = ssh.option(option);
        }
        for line in setup {
            ssh = ssh.setup(line);
        }
        if let Some(command) = &self.command {
            ssh = ssh.command(command);
        } else if let Some(program) = self.program.as_ref().filter(|_| self.sends || evener.is_none()) {
            ssh = if self.sends { ssh.send(program.clone()) } else { ssh.prefer(program.clone()) };
        }
        if let Some(evener) = evener.as_ref().filter(|_| self.command.is_none()) {
            ssh = ssh.named_program(evener, format!("exec {} worker", quoted(evener)));
        }
        let host_name = if entry.is_some() { name.to_owned() } else { ssh.host_name().to_owned() };
        let host = Host::new(host_name, ssh)?;
        match timeout.map(Duration::try_from_secs_f64) {
            None => Ok(host),
            Some(Ok(timeout)) if !timeout.is_zero() => Ok(host.timeout(timeout)),
            Some(_) => Err(HostError::new(name, "the timeout is a number of seconds above 0")),
        }
    }

    /// Returns the hosts of a list, separated by commas, each as [`host`](Hosts::host) does. A SLURM request, of the files or
    /// written as `slurm(nodes=4, gpus=2)`, stands for all of its nodes. Fails for a list that names a host twice: their
    /// devices would have the same ids.
    pub fn list(&self, list: &str) -> Result<Vec<Host>, HostError> {
        let mut hosts: Vec<Host> = Vec::new();
        for name in terms(list)? {
            for host in self.hosts(name)? {
                if hosts.iter().any(|other| other.name() == host.name()) {
                    return Err(HostError::new(host.name(), "is named twice"));
                }
                hosts.push(host);
            }
        }
        Ok(hosts)
    }

    /// Returns the hosts of one term of a list.
    fn hosts(&self, term: &str) -> Result<Vec<Host>, HostError> {
        if let Some(request) = term.strip_prefix("slurm(").and_then(|rest| rest.strip_suffix(')')) {
            let request = Slurm::parse(request).map_err(|detail| HostError::new("slurm", detail))?;
            return self.with_worker(request, None)?.hosts("slurm");
        }
        match self.entries.get(term) {
            Some(entry) if entry.slurm.is_some() => self.request(term, entry)?.hosts(term),
            _ => self.host(term).map(|host| vec![host]),
        }
    }

    /// The SLURM request of a table.
    fn request(&self, name: &str, entry: &Entry) -> Result<Slurm, HostError> {
        let refuse = |detail: String| HostError::new(name, detail);
        let Entry { address, ssh, evener, setup, timeout, slurm, srun } = entry;
        if address.is_some() || !ssh.is_empty() {
            return Err(refuse(
                "a request for nodes of a SLURM cluster has no `address` and no `ssh`".into(),
            ));
        }
        let mut request = Slurm::new();
        for (key, value) in slurm.iter().flatten() {
            let value = match value {
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            request.set(key, &value).map_err(refuse)?;
        }
        for option in srun {
            request = request.option(option);
        }
        for line in setup {
            request = request.setup(line);
        }
        if let Some(timeout) = timeout {
            request.set("wait", &timeout.to_string()).map_err(refuse)?;
        }
        request.check().map_err(refuse)?;
        self.with_worker(request, evener.as_deref())
    }

    /// Sets the program of the workers: the one that is named, or this very program, which the nodes share with this
    /// machine, or the `evener` that they have.
    fn with_worker(&self, request: Slurm, evener: Option<&str>) -> Result<Slurm, HostError> {
        if let Some(command) = &self.command {
            return Ok(request.command(["sh", "-c", command]));
        }
        match (evener, &self.program) {
            (Some(evener), _) => Ok(request.command([evener, "worker"])),
            (None, Some(program)) => {
                let command = program.command().map_err(|why| HostError::new("slurm", why.to_string()))?;
                Ok(request.command(command))
            }
            (None, None) => Ok(request),
        }
    }
}

/// Splits a list at its commas, without those in parentheses.
fn terms(list: &str) -> Result<Vec<&str>, HostError> {
    let (mut terms, mut depth, mut start) = (Vec::new(), 0u32, 0);
    for (index, character) in list.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => return Err(HostError::new(list, "has a `)` without a `(`")),
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(list[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(HostError::new(list, "has a `(` without a `)`"));
    }
    terms.push(list[start..].trim());
    Ok(terms)
}

/// Quotes a path for the shell there, which still expands a leading `~/`.
fn quoted(path: &str) -> String {
    let quote = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    match path.strip_prefix("~/") {
        Some(rest) => format!("~/{}", quote(rest)),
        None => quote(path),
    }
}

/// Fails if others could have written a file.
#[cfg(unix)]
fn check_owner(file: &File) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;

    let found = file.metadata().map_err(|why| format!("cannot be read: {why}"))?;
    if !found.is_file() {
        return Err("is not a file".into());
    }
    if found.uid() != 0 && found.uid() != rustix::process::getuid().as_raw() {
        return Err("belongs to another user: its options can run programs, so it is not used".into());
    }
    if found.mode() & 0o002 != 0 {
        return Err(
            "can be written by everybody, and its options can run programs: run `chmod o-w` on it".into()
        );
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_owner(_: &File) -> Result<(), String> {
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    const FILE: &str = r#"
        [gpu-box]
        address = "alice@gpu-box.example.org:2222"
        ssh = ["-J", "gate"]
        evener = "~/bin/my evener"
        setup = ["module load cuda"]
        timeout = 2.5

        [lab3]
    "#;

    #[test]
    fn a_host_is_as_its_file_says() {
        let hosts = Hosts::parse(FILE).unwrap();
        assert_eq!(hosts.names().collect::<Vec<_>>(), ["gpu-box", "lab3"]);
        let host = hosts.host("gpu-box").unwrap();
        assert_eq!(host.name(), "gpu-box");
        let text = format!("{host:?}");
        for part in [
            "alice@gpu-box.example.org",
            "2222",
            "gate",
            "exec ~/'bin/my evener' worker",
            "module load cuda",
            "2.5s",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_list_has_hosts_of_the_file_and_others() {
        let hosts = Hosts::parse(FILE).unwrap();
        let list = hosts.list("gpu-box, bob@lab4:22,lab3").unwrap();
        assert_eq!(list.iter().map(Host::name).collect::<Vec<_>>(), ["gpu-box", "lab4", "lab3"]);
        for (list, detail) in [
            ("lab3,bob@lab3", "named twice"),
            ("lab3,", "write it as"),
            ("", "write it as"),
            ("a b", "letters"),
            ("-oProxyCommand=x", "write it as"),
        ] {
            let error = hosts.list(list).unwrap_err().to_string();
            assert!(error.contains(detail), "{list}: {error}");
        }
    }

    #[test]
    fn a_slurm_request_stands_for_its_nodes() {
        let file = "[big]\nslurm = { nodes = 3, gpus = 2, memory = \"1GB\" }\nsrun = [\"-C\", \"a100\"]\ntimeout = 5\n";
        let hosts = Hosts::parse(file).unwrap();
        let names = |list: &str| {
            hosts.list(list).unwrap().iter().map(|host| host.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("big"), ["big-1", "big-2", "big-3"]);
        assert_eq!(names("big-2"), ["big-2"]);
        assert_eq!(names("lab3, slurm(nodes=2, gpus=1),lab4"), ["lab3", "slurm-1", "slurm-2", "lab4"]);
        assert_eq!(names("slurm()"), ["slurm-1"]);
        let text = format!("{:?}", hosts.host("big-1").unwrap());
        for part in ["a100", "1024", "35s"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(hosts.knows("big") && hosts.knows("big-3") && !hosts.knows("big-x") && !hosts.knows("lab3"));
        for (list, detail) in [
            ("big-4", "has 3 nodes"),
            ("big,big-1", "named twice"),
            ("slurm(),slurm()", "named twice"),
            ("slurm(nodes=x)", "number"),
            ("slurm(", "without a `)`"),
            ("slurm)", "without a `(`"),
        ] {
            let error = hosts.list(list).unwrap_err().to_string();
            assert!(error.contains(detail), "{list}: {error}");
        }
    }

    #[test]
    fn what_a_file_cannot_mean_is_refused() {
        for (text, detail) in [
            ("[lab3]\nadress = \"x\"", "adress"),
            ("[lab3]\ntimeout = 0", "above 0"),
            ("[lab3]\ntimeout = -1", "above 0"),
            ("[\"a b\"]", "letters"),
            ("[lab3]\naddress = \"x y\"", "letters"),
            ("lab3", "expected"),
            ("[big]\nslurm = { node = 1 }", "`node` is unknown"),
            ("[big]\nslurm = { nodes = 1 }\naddress = \"x\"", "no `address`"),
            ("[lab3]\nsrun = [\"-x\"]", "`srun` is for"),
        ] {
            let error = Hosts::parse(text).unwrap_err().to_string();
            assert!(error.contains(detail), "{text}: {error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_write_is_not_used() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        std::fs::write(&path, FILE).unwrap();
        assert_eq!(Hosts::read(&path).unwrap().names().count(), 2);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        let error = Hosts::read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod o-w"), "{error}");
    }
}
