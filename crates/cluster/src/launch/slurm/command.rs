//! The command line of `srun`.

use std::process::Command;

use super::Slurm;
use crate::worker::JOB_VARIABLE;

/// Words that a worker's shell says first, before the nonce.
pub(super) const HELLO: &str = "evener-node";

/// What a worker's shell says before the worker greets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) job: String,
    pub(super) step: String,
    /// The node's name.
    pub(super) node: String,
}

impl Hello {
    /// Reads a line, if it is the first one of the worker that has this nonce.
    pub(super) fn parse(line: &str, nonce: &str) -> Option<Hello> {
        let mut words = line.split_whitespace();
        if words.next() != Some(HELLO) || words.next() != Some(nonce) {
            return None;
        }
        let mut word = || words.next().map(str::to_owned);
        Some(Hello { job: word()?, step: word()?, node: word()? })
    }
}

impl Slurm {
    /// The command that asks for a node and starts a worker there; on a node of this program's own allocation, if one is
    /// given.
    pub(super) fn srun(&self, nonce: &str, place: Option<&str>) -> Command {
        let mut srun = Command::new("srun");
        srun.args(self.arguments(nonce, place));
        srun
    }

    fn arguments(&self, nonce: &str, place: Option<&str>) -> Vec<String> {
        let mut arguments: Vec<String> =
            ["--nodes=1", "--ntasks=1", "--unbuffered", "--mpi=none", "--kill-on-bad-exit"]
                .map(Into::into)
                .into();
        arguments.push(format!("--job-name={}", job_name(nonce)));
        match place {
            Some(node) => {
                arguments.extend([format!("--nodelist={node}"), "--overlap".into()]);
                arguments.extend(self.cores.map(|cores| format!("--cpus-per-task={cores}")));
            }
            None => {
                let words = [
                    ("partition", &self.partition),
                    ("account", &self.account),
                    ("qos", &self.qos),
                    ("time", &self.time),
                ];
                let words =
                    words.into_iter().filter_map(|(key, word)| Some(format!("--{key}={}", word.as_ref()?)));
                arguments.extend(words);
                arguments.extend(self.cores.map(|cores| format!("--cpus-per-task={cores}")));
                arguments.extend(self.memory_mib.map(|memory| format!("--mem={memory}M")));
                arguments.extend(self.is_exclusive.then(|| "--exclusive".to_owned()));
                arguments.extend(self.gpus.map(|gpus| format!("--gres=gpu:{gpus}")));
            }
        }
        arguments.extend(self.options.iter().cloned());
        arguments.extend(["sh".into(), "-c".into(), self.script(nonce, place), "sh".into()]);
        arguments.extend(self.command.iter().cloned());
        arguments
    }

    /// The script that a shell on the node runs, with the worker's command as its arguments.
    fn script(&self, nonce: &str, place: Option<&str>) -> String {
        let setup: String = self.setup.iter().map(|line| format!("{line}\n")).collect();
        // The worker ends a job that is its own.
        let own =
            if place.is_none() { format!("export {JOB_VARIABLE}=$SLURM_JOB_ID\n") } else { String::new() };
        format!(
            "{own}echo \"{HELLO} {nonce} $SLURM_JOB_ID $SLURM_STEP_ID ${{SLURMD_NODENAME:-$(hostname)}}\"\n{setup}exec \"$@\""
        )
    }
}

/// The name of the job that has this nonce, by which its state is found.
pub(super) fn job_name(nonce: &str) -> String {
    format!("evener-{nonce}")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_request_becomes_the_arguments_of_srun() {
        let request = Slurm::parse("gpus=2,partition=gpu,time=1:00:00,cores=16,memory=64GB").unwrap();
        let request = request.option("--constraint=a100").command(["/opt/evener", "worker"]);
        let arguments = request.arguments("1f", None);
        for argument in [
            "--gres=gpu:2",
            "--partition=gpu",
            "--time=1:00:00",
            "--cpus-per-task=16",
            "--mem=65536M",
            "--constraint=a100",
            "--job-name=evener-1f",
            "--unbuffered",
        ] {
            assert!(arguments.iter().any(|it| it == argument), "{argument}: {arguments:?}");
        }
        assert_eq!(arguments[arguments.len() - 3..], ["sh", "/opt/evener", "worker"]);
    }

    #[test]
    fn a_worker_of_another_job_is_not_taken_for_this_one() {
        let hello = Hello::parse("evener-node 1f 12 0 n3", "1f").unwrap();
        assert_eq!(hello, Hello { job: "12".into(), step: "0".into(), node: "n3".into() });
        for line in ["evener-node 2e 12 0 n3", "Welcome 1f 12 0 n3", "evener-node 1f 12", ""] {
            assert_eq!(Hello::parse(line, "1f"), None, "{line}");
        }
    }
}
