//! What SLURM's controller knows of jobs, by `squeue`, `scontrol` and `scancel`.

use std::{
    io::Read,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::launch::spawn::spawn;

/// How long a question to the controller may take. SLURM's programs try again for about ten seconds themselves.
const PATIENCE: Duration = Duration::from_secs(15);

/// The allocation that this program runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Allocation {
    pub(super) job: String,
    /// The names of its nodes.
    nodes: Vec<String>,
    /// The node that this program runs on, if it is one of them.
    own: Option<String>,
}

impl Allocation {
    /// Reads the environment that SLURM gives to the programs of a job.
    pub(super) fn from_environment() -> Result<Option<Self>, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(job) = variable("SLURM_JOB_ID") else { return Ok(None) };
        let list = variable("SLURM_JOB_NODELIST")
            .ok_or("SLURM_JOB_ID is set, and SLURM_JOB_NODELIST is not: unset the first to ask for nodes")?;
        let names = ask("scontrol", &["show", "hostnames", &list])?;
        let nodes = names.split_whitespace().map(str::to_owned).collect();
        Ok(Some(Allocation { job, nodes, own: variable("SLURMD_NODENAME") }))
    }

    /// The nodes for so many workers, or for as many as there are. This program's own node needs none: its devices are
    /// those of this machine.
    pub(super) fn places(&self, asked: Option<u32>) -> Result<Vec<String>, String> {
        let has = self.nodes.len();
        let asked = asked.map_or(has, |asked| asked as usize);
        if asked > has {
            let nodes = if has == 1 { "1 node" } else { &format!("{has} nodes") };
            return Err(format!(
                "nodes={asked} were asked for, and the allocation (job {}) has {nodes}",
                self.job
            ));
        }
        let is_own = |node: &&String| self.own.as_ref() == Some(*node);
        let is_own_used = self.nodes.iter().any(|node| is_own(&node));
        let others = self.nodes.iter().filter(|node| !is_own(node)).cloned();
        Ok(others.take(asked - usize::from(is_own_used && asked == has)).collect())
    }
}

/// What the controller says of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JobStatus {
    pub(super) name: String,
    pub(super) id: String,
    /// Such as `RUNNING`.
    pub(super) state: String,
    /// Why it is pending, or has failed.
    pub(super) reason: String,
    /// The time until its limit; `None` if it has none, or does not run.
    pub(super) left: Option<Duration>,
}

impl JobStatus {
    fn parse(line: &str) -> Option<JobStatus> {
        let mut parts = line.trim().split('|');
        let mut part = || parts.next().map(|part| part.trim().to_owned());
        let (name, id, state, reason, left) = (part()?, part()?, part()?, part()?, part()?);
        Some(JobStatus { name, id, state, reason, left: duration(&left) })
    }

    /// Whether the request can never be met, so that the job would wait for ever.
    pub(super) fn is_impossible(&self) -> bool {
        const NEVER: [&str; 8] = [
            "PartitionNodeLimit",
            "PartitionTimeLimit",
            "PartitionConfig",
            "BadConstraints",
            "InvalidAccount",
            "InvalidQOS",
            "AccountNotAllowed",
            "QOSNotAllowed",
        ];
        self.state == "PENDING" && NEVER.contains(&self.reason.as_str())
    }
}

/// Which jobs to ask for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Jobs<'a> {
    /// By names, separated by commas.
    Named(&'a str),
    /// By number.
    Numbered(&'a str),
}

/// Asks for the status of jobs, also of those that have ended. Jobs that the controller has forgotten are left out.
pub(super) fn status(jobs: Jobs<'_>) -> Result<Vec<JobStatus>, String> {
    let by = match jobs {
        Jobs::Named(names) => format!("--name={names}"),
        Jobs::Numbered(number) => format!("--jobs={number}"),
    };
    match ask("squeue", &["--noheader", "--states=all", &by, "--format=%j|%i|%T|%r|%L"]) {
        Ok(lines) => Ok(lines.lines().filter_map(JobStatus::parse).collect()),
        // It was forgotten.
        Err(why) if why.contains("Invalid job id") => Ok(Vec::new()),
        Err(why) => Err(why),
    }
}

/// Cancels jobs. They may have ended already.
pub(super) fn cancel(jobs: Jobs<'_>) {
    let by = match jobs {
        Jobs::Named(names) => format!("--name={names}"),
        Jobs::Numbered(number) => number.to_owned(),
    };
    if let Err(why) = ask("scancel", &["--quiet", &by]) {
        tracing::warn!("a SLURM job could not be cancelled: {why}");
    }
}

/// Runs a program of SLURM's, and returns what it prints.
fn ask(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(command).map_err(|why| super::explain::not_started(program, &why))?;
    let printed = read_meanwhile(child.stdout.take());
    let said = read_meanwhile(child.stderr.take());
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
            _ => {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("`{program}` did not answer within {PATIENCE:?}"));
            }
        }
    };
    match status.success() {
        true => printed(),
        false => {
            let said = said()?;
            Err(said.lines().last().unwrap_or("it failed without a word").trim().to_owned())
        }
    }
}

/// Reads a pipe on a thread, because a program waits that has printed more than its pipe holds: some kilobytes, where a user
/// has many large pipes. Returns a function that waits for the text.
fn read_meanwhile(pipe: Option<impl Read + Send + 'static>) -> impl FnOnce() -> Result<String, String> {
    let read = move || {
        let mut text = Vec::new();
        // What came before an error is still of use.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    };
    let reading = thread::Builder::new().name("evener-slurm-read".into()).spawn(read);
    move || match reading.map(thread::JoinHandle::join) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(_)) => Err("the thread that reads panicked".into()),
        Err(why) => Err(format!("a thread cannot be started: {why}")),
    }
}

/// Parses a duration as SLURM prints it: `days-hours:minutes:seconds`, of which the first parts may be missing. `None` if
/// there is no limit.
fn duration(text: &str) -> Option<Duration> {
    // A job that is past its limit, and about to be ended.
    if text == "INVALID" || text.starts_with('-') {
        return Some(Duration::ZERO);
    }
    let (days, rest) = text.split_once('-').unwrap_or(("0", text));
    let parts: Vec<u64> = rest.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    if parts.is_empty() || parts.len() > 3 {
        return None;
    }
    let seconds = parts.iter().fold(0u64, |sum, part| sum.saturating_mul(60).saturating_add(*part));
    // With days, the first part is hours, even if minutes and seconds are missing.
    let seconds = if text.contains('-') && parts.len() < 3 {
        seconds * 60u64.pow(3 - parts.len() as u32)
    } else {
        seconds
    };
    Some(Duration::from_secs(days.parse::<u64>().ok()?.saturating_mul(86_400).saturating_add(seconds)))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn durations_are_as_slurm_prints_them() {
        let texts = ["0:05", "10:00", "1:00:00", "2-03:04:05", "UNLIMITED", "INVALID", "NOT_SET", ""];
        let seconds = texts.map(|text| duration(text).map(|it| it.as_secs()));
        assert_eq!(seconds, [Some(5), Some(600), Some(3600), Some(183_845), None, Some(0), None, None]);
    }

    #[test]
    fn a_program_may_print_more_than_a_pipe_holds() {
        let print = |to: &str| format!("head -c 300000 /dev/zero | tr '\\0' x >&{to}");
        let printed = ask("sh", &["-c", &format!("{}; {}", print("2"), print("1"))]).unwrap();
        assert_eq!(printed.len(), 300_000);
        assert_eq!(ask("sh", &["-c", "echo first >&2; echo last >&2; exit 1"]), Err("last".into()));
    }

    #[test]
    fn a_status_is_read_from_its_line() {
        let status = JobStatus::parse("evener-1f|12|PENDING|PartitionTimeLimit|1:00\n").unwrap();
        assert!(status.is_impossible());
        assert_eq!((status.name.as_str(), status.id.as_str()), ("evener-1f", "12"));
        assert!(!JobStatus::parse("evener-1f|12|PENDING|Resources|1:00").unwrap().is_impossible());
        assert_eq!(JobStatus::parse("slurm_load_jobs error"), None);
    }

    #[test]
    fn an_allocation_leaves_out_the_node_that_this_program_is_on() {
        let nodes = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let mut it = Allocation { job: "7".into(), nodes: nodes(&["n1", "n2", "n3"]), own: None };
        assert_eq!(it.places(None).unwrap(), nodes(&["n1", "n2", "n3"]));
        assert_eq!(it.places(Some(2)).unwrap(), nodes(&["n1", "n2"]));
        it.own = Some("n2".into());
        assert_eq!(it.places(None).unwrap(), nodes(&["n1", "n3"]));
        assert_eq!(it.places(Some(3)).unwrap(), nodes(&["n1", "n3"]));
        assert_eq!(it.places(Some(2)).unwrap(), nodes(&["n1", "n3"]));
        let error = it.places(Some(4)).unwrap_err();
        assert_eq!(error, "nodes=4 were asked for, and the allocation (job 7) has 3 nodes");
    }
}
