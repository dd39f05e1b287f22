//! Requests as text, as users write them.

use std::time::Duration;

use super::Slurm;

impl Slurm {
    /// Parses a request such as `nodes=4, gpus=2, partition=gpu, time=1:00:00, cores=16, memory=64GB`. Fails with a reason
    /// for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut request = Slurm::new();
        for setting in text.split(',').map(str::trim).filter(|setting| !setting.is_empty()) {
            let (key, value) = setting.split_once('=').ok_or_else(|| {
                format!("`{setting}` is no setting of a SLURM request: write it as nodes=4, gpus=2")
            })?;
            request.set(key.trim(), value.trim())?;
        }
        request.check()?;
        Ok(request)
    }

    /// Sets what a key of a request means.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = |most: u32| match value.parse::<u32>() {
            Ok(number) if (1..=most).contains(&number) => Ok(Some(number)),
            _ => Err(format!("{key}={value}: it is a number from 1 to {most}")),
        };
        let word = || Some(value.to_owned());
        match key {
            "nodes" => self.nodes = number(MAX_NODES)?,
            "gpus" => self.gpus = number(1_000)?,
            "cores" => self.cores = number(100_000)?,
            "memory" => {
                self.memory_mib = Some(mebibytes(value).map_err(|why| format!("{key}={value}: {why}"))?)
            }
            "partition" => self.partition = word(),
            "account" => self.account = word(),
            "qos" => self.qos = word(),
            "time" => self.time = word(),
            "exclusive" => {
                self.is_exclusive = match value {
                    "yes" | "true" => true,
                    "no" | "false" => false,
                    _ => return Err(format!("{key}={value}: it is yes or no")),
                }
            }
            "wait" => {
                let wait = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                self.wait = wait.ok_or_else(|| format!("{key}={value}: it is a number of seconds"))?;
            }
            _ => {
                return Err(format!(
                    "`{key}` is unknown: a SLURM request has nodes, gpus, cores, memory, partition, time, account, qos, \
                     exclusive and wait"
                ));
            }
        }
        Ok(())
    }

    /// Fails if a word could be another argument of `srun`.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-+:@/,".contains(c);
        let words = [
            ("partition", &self.partition),
            ("account", &self.account),
            ("qos", &self.qos),
            ("time", &self.time),
        ];
        for (key, word) in words {
            let Some(word) = word else { continue };
            if word.is_empty() || !word.chars().all(is_plain) {
                return Err(format!("{key}={word}: it has letters, digits and . _ - + : @ / only"));
            }
            if key == "time" && !word.chars().all(|c| c.is_ascii_digit() || c == ':' || c == '-') {
                return Err(format!(
                    "time={word}: write it as minutes, hours:minutes:seconds or days-hours:minutes"
                ));
            }
        }
        match self.nodes {
            Some(nodes) if !(1..=MAX_NODES).contains(&nodes) => {
                Err(format!("nodes={nodes}: it is a number from 1 to {MAX_NODES}"))
            }
            _ if self.command.is_empty() => Err("the command of the worker is empty".into()),
            _ => Ok(()),
        }
    }
}

/// Each node has a connection and threads of its own.
const MAX_NODES: u32 = 1_000;

/// Parses an amount of memory, such as `64GB`, `64G`, `512MiB` or `1.5TB`. The units are powers of 1,024, as SLURM's.
fn mebibytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let mebibytes = match unit.trim_end_matches('B').trim_end_matches('I') {
        "M" => 1.0,
        "G" => 1024.0,
        "T" => 1024.0 * 1024.0,
        _ => return Err("write it with a unit: 500MB, 64GB or 1.5TB".into()),
    };
    match digits.trim().parse::<f64>() {
        Ok(number) if number > 0.0 && number * mebibytes < 1e12 => Ok((number * mebibytes).ceil() as u64),
        _ => Err("it is a number above 0 and a unit: 500MB, 64GB or 1.5TB".into()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_request_is_as_it_is_written() {
        let text =
            "nodes=4, gpus=2, partition=gpu,time=1:00:00, cores=16, memory=64GB, wait=2.5, exclusive=yes";
        let expected =
            Slurm::new().nodes(4).gpus(2).partition("gpu").time("1:00:00").cores(16).memory_mib(65_536);
        assert_eq!(Slurm::parse(text).unwrap(), expected.exclusive().wait(Duration::from_millis(2_500)));
        assert_eq!(Slurm::parse("").unwrap(), Slurm::new());
    }

    #[test]
    fn what_a_request_cannot_mean_is_refused() {
        for (text, detail) in [
            ("nodes", "no setting"),
            ("nodes=0", "from 1 to 1000"),
            ("nodes=-1", "from 1"),
            ("gpus=x", "number"),
            ("memory=64", "unit"),
            ("memory=-1GB", "above 0"),
            ("memory=1e99GB", "above 0"),
            ("node=4", "`node` is unknown"),
            ("partition=a b", "letters"),
            ("partition=", "letters"),
            ("time=soon", "minutes"),
            ("exclusive=maybe", "yes or no"),
            ("wait=-1", "seconds"),
        ] {
            let error = Slurm::parse(text).unwrap_err();
            assert!(error.contains(detail), "{text}: {error}");
        }
    }

    #[test]
    fn memory_has_slurms_units() {
        let amounts = ["64GB", "64G", "64GiB", "500M", "0.5TB", "1.5MB"].map(|text| mebibytes(text).unwrap());
        assert_eq!(amounts, [65_536, 65_536, 65_536, 500, 524_288, 2]);
    }
}
