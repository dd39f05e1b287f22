//! Workers on machines that `ssh` reaches.

use std::{
    borrow::Cow,
    io::{self, Read},
    path::PathBuf,
    process::Command,
    thread,
    time::Duration,
};

use evener_device::remote::WorkerHandle;

use super::{
    Launched, Launcher, Program,
    ssh_error::{Names, explain},
    start,
};
use crate::{host::HostError, worker::DAMAGED};

/// Starts workers on a machine that the user's own `ssh` reaches. Its configuration applies: keys, agents, jump hosts and
/// shared connections. `ssh` never asks for anything: a key that needs a passphrase and a host with an unknown key fail.
#[derive(Debug, Clone)]
pub struct Ssh {
    /// What the user calls the machine.
    name: String,
    /// The program of workers, if the user has named it in a file.
    named_program: Option<String>,
    /// User and host, as `ssh` takes them.
    destination: String,
    port: Option<u16>,
    program: PathBuf,
    options: Vec<String>,
    /// Lines that the shell there runs first.
    setup: Vec<String>,
    command: String,
    /// The program that is started there if it was sent.
    sent: Option<Program>,
    /// Whether the program is sent where it is missing, and the command is never used.
    sends: bool,
}

impl Ssh {
    /// A machine: `gpu-box`, `alice@lab3` or `lab3:2222`. The command there is `evener worker`.
    pub fn new(target: &str) -> Result<Self, HostError> {
        let refuse = |detail: &str| Err(HostError::new(target, detail));
        if let Some(address) = ipv6_address(target) {
            let advice = "for an IPv6 address, give the machine a name: in ~/.ssh/config with `HostName";
            return refuse(&format!(
                "{advice} {address}`, or in hosts.toml with ssh = [\"-oHostName={address}\"]"
            ));
        }
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
            name: target.into(),
            named_program: None,
            destination: destination.into(),
            port,
            program: "ssh".into(),
            options: Vec::new(),
            setup: Vec::new(),
            command: "exec evener worker".into(),
            sent: None,
            sends: false,
        })
    }

    /// Sets what the user calls the machine, for messages.
    pub(crate) fn called(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the path of the `evener` there, as the user's file has it, and the command that starts it.
    pub(crate) fn named_program(mut self, path: &str, command: String) -> Self {
        self.named_program = Some(path.into());
        self.command(command)
    }

    /// Sets the command that the machine's shell runs, whose standard input and output become the worker's pipes.
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = command.into();
        self
    }

    /// Adds a line that the machine's shell runs before the command, such as `module load cuda`.
    pub fn setup(mut self, line: impl Into<String>) -> Self {
        self.setup.push(line.into());
        self
    }

    /// Prefers a copy of this program, if it was sent to the machine, to the command.
    pub fn prefer(mut self, program: Program) -> Self {
        self.sent = Some(program);
        self
    }

    /// Starts workers of this program, and sends it to the machine if it is not there yet.
    pub fn send(mut self, program: Program) -> Self {
        self.sent = Some(program);
        self.sends = true;
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

    /// Copies a program to the machine, and returns its path there. Fails with a reason for the user, at the latest when
    /// nothing could be sent for `timeout`.
    fn copy_program(&self, program: &Program, timeout: Duration) -> Result<String, String> {
        let mut file = program.open().map_err(|why| format!("this program cannot be read: {why}"))?;
        let started = start(self.ssh(timeout, &program.receive()), self.explain())?;
        let (mut from, mut to, worker) = (started.from_worker, started.to_worker, started.worker);
        let watched = Watch::start(worker.clone(), timeout)?;
        let copied = watched.copy(&mut file, &mut to);
        drop(to);
        let mut answer = String::new();
        let read = from.read_to_string(&mut answer);
        let is_late = watched.ended_it();
        let ending = worker.ending();
        worker.end();
        match (copied.and(read), ending.code) {
            (Ok(_), Some(0)) => Ok(answer.trim().lines().last().unwrap_or_default().to_owned()),
            _ if is_late => Err(format!("no answer within {timeout:?}")),
            (outcome, _) => Err((self.explain())(&ending).unwrap_or_else(|| match outcome {
                Err(why) => format!("the program could not be sent: {why}"),
                Ok(_) => "the program could not be stored there".into(),
            })),
        }
    }

    /// The host, without user and port.
    pub(crate) fn host_name(&self) -> &str {
        self.destination.rsplit('@').next().unwrap_or(&self.destination)
    }

    /// `ssh` with a command for the machine.
    fn ssh(&self, timeout: Duration, command: &str) -> Command {
        let mut ssh = Command::new(&self.program);
        ssh.args(self.arguments(timeout, command));
        ssh
    }

    fn arguments(&self, timeout: Duration, command: &str) -> Vec<String> {
        let seconds = timeout.as_secs().max(1);
        let mut arguments: Vec<String> = OPTIONS.map(String::from).into();
        arguments.push(format!("-oConnectTimeout={seconds}"));
        if let Some(port) = self.port {
            arguments.extend(["-p".into(), port.to_string()]);
        }
        arguments.extend(self.options.iter().cloned());
        arguments.extend(["--".into(), self.destination.clone(), command.to_owned()]);
        arguments
    }

    /// The command that starts a worker.
    fn worker_command(&self) -> String {
        let start = match &self.sent {
            Some(program) if self.sends => program.start_or(&format!("echo \"{MISSING}\" >&2; exit 127")),
            Some(program) => program.start_or(&self.command),
            None => self.command.clone(),
        };
        self.setup.iter().map(|line| format!("{line}\n")).chain([start]).collect()
    }

    fn explain(&self) -> super::Explain {
        let port = self.port.map(|port| format!("-p {port} ")).unwrap_or_default();
        let options: String = self.options.iter().map(|option| format!("{} ", shell_word(option))).collect();
        let host = self.host_name();
        // An installed copy is not used where the file names another program.
        let if_missing = match &self.named_program {
            Some(path) => format!(
                "hosts.toml says that evener = {path:?} there: correct the path, or remove the line and run `evener hosts \
                 install {}`",
                self.name
            ),
            None => format!("run `evener hosts install {}`, or give its path in hosts.toml", self.name),
        };
        let names = Names {
            login: format!("ssh {options}{port}{}", self.destination),
            if_missing,
            // As the file of known hosts has it.
            host: self.port.map_or(host.to_owned(), |port| format!("'[{host}]:{port}'")),
        };
        Box::new(move |ending| explain(&names, ending))
    }
}

/// Returns the IPv6 address of a target, with or without user, brackets and port.
fn ipv6_address(target: &str) -> Option<std::net::Ipv6Addr> {
    let host = target.rsplit('@').next().unwrap_or(target);
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(address, _)| address);
    bracketed.unwrap_or(host).parse().ok()
}

/// Returns a word as a shell takes it, for a command that the user can run.
fn shell_word(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:@,+%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")).into(),
    }
}

/// Arguments of `ssh` in front of the user's own, which count first: pipes and nothing else.
const OPTIONS: [&str; 8] = [
    "-T",
    "-x",
    // Fails instead of asking.
    "-oBatchMode=yes",
    // A connection that the user shares is used. But this `ssh` is killed with its worker, and must not be the one that
    // others share.
    "-oControlMaster=no",
    // What the user's configuration has for people who log in.
    "-oClearAllForwardings=yes",
    "-oForwardAgent=no",
    "-oPermitLocalCommand=no",
    "-oRemoteCommand=none",
];

/// What the shell says where a program was not sent yet.
const MISSING: &str = "this program is not on that machine";

impl Launcher for Ssh {
    fn launch(&self, timeout: Duration) -> Result<Launched, String> {
        Ok(start(self.ssh(timeout, &self.worker_command()), self.explain())?.into())
    }

    fn mend(&self, failure: &str, timeout: Duration) -> Result<bool, String> {
        match &self.sent {
            Some(program) if self.sends && [MISSING, DAMAGED].iter().any(|it| failure.contains(it)) => {
                self.copy_program(program, timeout).map(|_| true)
            }
            _ => Ok(false),
        }
    }

    fn install(&self, program: &Program, timeout: Duration) -> Result<String, String> {
        self.copy_program(program, timeout)
    }
}

/// Ends a program through which nothing goes for a time.
struct Watch {
    progress: std::sync::mpsc::Sender<()>,
    watching: thread::JoinHandle<bool>,
}

impl Watch {
    fn start(worker: std::sync::Arc<impl WorkerHandle + 'static>, timeout: Duration) -> Result<Self, String> {
        let (progress, made) = std::sync::mpsc::channel();
        let watch = move || loop {
            match made.recv_timeout(timeout) {
                Ok(()) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return false,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    worker.end();
                    return true;
                }
            }
        };
        let watching = thread::Builder::new().name("evener-ssh-watch".into()).spawn(watch);
        let watching = watching.map_err(|why| format!("a thread cannot be started: {why}"))?;
        Ok(Watch { progress, watching })
    }

    fn copy(&self, from: &mut impl Read, to: &mut impl io::Write) -> io::Result<usize> {
        let (mut piece, mut copied) = (vec![0; 1 << 20], 0);
        loop {
            match from.read(&mut piece)? {
                0 => return to.flush().map(|()| copied),
                bytes => {
                    to.write_all(&piece[..bytes])?;
                    copied += bytes;
                    // The thread that watches has ended if it was too late.
                    let _ = self.progress.send(());
                }
            }
        }
    }

    /// Stops to watch. Returns whether the program was ended.
    fn ended_it(self) -> bool {
        drop(self.progress);
        self.watching.join().unwrap_or(false)
    }
}

#[cfg(test)]
mod test {
    use super::{super::Ending, *};

    fn explained(ssh: &Ssh, line: &str, code: i32) -> String {
        let ending = Ending { lines: vec![line.into()], code: Some(code), ..Ending::default() };
        (ssh.explain())(&ending).unwrap()
    }

    #[test]
    fn advice_is_a_command_that_means_this_machine() {
        let ssh = Ssh::new("alice@lab3:2222").unwrap().option("-oProxyCommand=nc -X 5 %h %p");
        let missing = "bash: line 1: evener: command not found";
        let text = explained(&ssh, missing, 127);
        assert!(text.contains("run `evener hosts install alice@lab3:2222`"), "{text}");
        let text = explained(&ssh.clone().called("gpu-box"), missing, 127);
        assert!(text.contains("run `evener hosts install gpu-box`"), "{text}");
        let text = explained(&ssh, "Host key verification failed.", 255);
        assert!(text.contains("run `ssh '-oProxyCommand=nc -X 5 %h %p' -p 2222 alice@lab3` once"), "{text}");
        let text = explained(&ssh, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", 255);
        assert!(text.contains("`ssh-keygen -R '[lab3]:2222'`"), "{text}");
    }

    #[test]
    fn a_wrong_path_in_the_file_is_to_be_corrected_there() {
        let ssh = Ssh::new("lab3").unwrap().named_program("/opt/evener", "exec '/opt/evener' worker".into());
        let text = explained(&ssh, "bash: line 1: /opt/evener: No such file or directory", 127);
        assert!(
            text.contains(r#"hosts.toml says that evener = "/opt/evener" there: correct the path"#),
            "{text}"
        );
    }

    #[test]
    fn an_ipv6_address_gets_advice_that_works() {
        for target in ["::1", "alice@fe80::2", "[2001:db8::7]:2222"] {
            let refused = Ssh::new(target).unwrap_err().to_string();
            assert!(refused.contains("-oHostName="), "{target}: {refused}");
        }
        assert!(!Ssh::new("a:b").unwrap_err().to_string().contains("IPv6"));
    }

    #[test]
    fn ssh_asks_for_nothing_and_keeps_the_users_configuration() {
        let ssh = Ssh::new("alice@lab3:2222").unwrap().option("-Jgate").setup("module load cuda");
        assert_eq!(
            ssh.arguments(Duration::from_secs(7), &ssh.worker_command()),
            [
                "-T",
                "-x",
                "-oBatchMode=yes",
                "-oControlMaster=no",
                "-oClearAllForwardings=yes",
                "-oForwardAgent=no",
                "-oPermitLocalCommand=no",
                "-oRemoteCommand=none",
                "-oConnectTimeout=7",
                "-p",
                "2222",
                "-Jgate",
                "--",
                "alice@lab3",
                "module load cuda\nexec evener worker"
            ]
        );
    }
}
