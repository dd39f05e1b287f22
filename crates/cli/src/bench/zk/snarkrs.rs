//! snarkrs, another prover, as a separate program that reads the same files.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use evener_zk::format::public_to_json;

use super::{Arguments, circuit::Circuit, section::Row, timing::median};
use crate::{UsageError, escape, output::display_path, progress::ProgressLine};

/// The longest message of snarkrs that is repeated, in characters.
const MAX_MESSAGE: usize = 160;

/// A back end of snarkrs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Backend {
    Cpu,
    Wgpu,
    Cuda,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::Wgpu => "wgpu",
            Backend::Cuda => "cuda",
        }
    }
}

/// The files of a circuit, named as snarkrs expects them. They are removed when dropped.
pub(super) struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    /// The folder of the circuit, within the folder of all circuits.
    const CIRCUIT: &str = "circuit";

    pub(super) fn write(circuit: &Circuit, progress: &ProgressLine) -> Result<Files> {
        let files = Files { folder: tempfile::tempdir().context("no temporary folder")? };
        std::fs::create_dir(files.folder.path().join(Files::CIRCUIT))?;
        let key = circuit.circom_key(progress)?;
        progress.step(format!("2^{}: writing files", circuit.log));
        key.write_zkey(files.zkey())?;
        let witness = circuit.witness(0)?;
        witness.write_wtns(files.wtns())?;
        let public = public_to_json(&witness.values()[1..=key.public()]);
        std::fs::write(files.path("public.json"), public.to_string())?;
        std::fs::write(files.path("vkey.json"), key.verifying_key().to_json().to_string())?;
        Ok(files)
    }

    pub(super) fn zkey(&self) -> PathBuf {
        self.path("circuit.zkey")
    }

    pub(super) fn wtns(&self) -> PathBuf {
        self.path("circuit.wtns")
    }

    /// A folder for what other programs write.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(Files::CIRCUIT).join(name)
    }
}

/// The executable, and its back ends that have not failed yet.
pub(super) struct Snarkrs {
    executable: PathBuf,
    timeout: Duration,
    backends: Vec<(Backend, Option<String>)>,
}

impl Snarkrs {
    /// Finds the executable that the command line names, or one in PATH; `None` if there is none.
    pub(super) fn find(arguments: &Arguments) -> Result<Option<Snarkrs>> {
        let executable = match &arguments.snarkrs {
            Some(path) if path.is_file() => Some(path.clone()),
            Some(path) => {
                let message = format!("--snarkrs {}: there is no such file", display_path(path));
                return Err(UsageError(message).into());
            }
            None => std::env::var_os("PATH").and_then(|path| {
                let named = |folder: PathBuf| folder.join("snarkrs");
                std::env::split_paths(&path).map(named).find(|path| path.is_file())
            }),
        };
        Ok(executable.map(|executable| Snarkrs {
            // A name without a folder would be looked for in PATH.
            executable: executable.canonicalize().unwrap_or(executable),
            timeout: Duration::from_secs(arguments.snarkrs_timeout),
            backends: arguments.snarkrs_backends.iter().map(|&backend| (backend, None)).collect(),
        }))
    }

    /// Measures warm proofs of each back end. One that fails or takes too long is not tried again.
    pub(super) fn measure(
        &mut self,
        files: &Files,
        log: u32,
        rounds: usize,
        progress: &ProgressLine,
    ) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for index in 0..self.backends.len() {
            let (backend, failed) = self.backends[index].clone();
            progress.step(format!("2^{log}: snarkrs {}", backend.name()));
            let mut row = Row::of_peer(&format!("snarkrs {}", backend.name()));
            if backend != Backend::Cpu {
                row.on = "its GPU".into();
            }
            let measured = match failed {
                Some(reason) => Err(format!("at a smaller size: {reason}")),
                None => self.run(files, backend, rounds).map_err(|error| format!("{error:#}")),
            };
            match measured {
                Ok((proof, prepare)) => {
                    row.median_s = Some(proof.as_secs_f64());
                    row.first_s = Some((prepare + proof).as_secs_f64());
                }
                Err(reason) => {
                    self.backends[index].1.get_or_insert_with(|| reason.clone());
                    row.not_measured = Some(reason);
                }
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// Returns the median time of a proof, and the time of everything before the first.
    fn run(&self, files: &Files, backend: Backend, rounds: usize) -> Result<(Duration, Duration)> {
        let (table, log) = (files.folder().join("snarkrs.csv"), files.folder().join("snarkrs.log"));
        let _ = std::fs::remove_file(&table);
        let output = File::create(&log)?;
        let mut child = Command::new(&self.executable)
            .args(["bench", "--mode", "warm", "--backend", backend.name(), "--reps", &rounds.to_string()])
            .arg("--artifacts")
            .arg(files.folder())
            .arg("--csv")
            .arg(&table)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("{}: cannot be started", display_path(&self.executable)))?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if start.elapsed() > self.timeout {
                child.kill()?;
                child.wait()?;
                bail!("no result in {} s", self.timeout.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        if !status.success() {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
            let last: String = last.trim().chars().take(MAX_MESSAGE).collect();
            bail!("it failed ({status}): {}", escape::single_line(&last));
        }
        parse(&std::fs::read_to_string(&table).context("it wrote no table")?)
    }
}

/// Reads the times from the table that snarkrs writes.
fn parse(table: &str) -> Result<(Duration, Duration)> {
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let column = |name: &str| {
        names.iter().position(|it| *it == name).with_context(|| format!("its table has no column `{name}`"))
    };
    let (time, prepare) = (column("ms")?, column("prepare_ms")?);
    let (mut times, mut prepares) = (Vec::new(), Vec::new());
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let duration = |column: usize| -> Result<Duration> {
            let text = *cells.get(column).context("its table has a short line")?;
            let milliseconds: f64 = text.parse().with_context(|| format!("`{text}` is no time"))?;
            Duration::try_from_secs_f64(milliseconds / 1e3).with_context(|| format!("`{text}` is no time"))
        };
        times.push(duration(time)?);
        prepares.push(duration(prepare)?);
    }
    if times.is_empty() {
        bail!("its table is empty");
    }
    Ok((median(times), median(prepares)))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_times_of_a_table_are_read_by_the_names_of_its_columns() {
        let table = "host,mode,rep,ms,prepare_ms,verified\nx,warm,1,30.5,1200,yes\nx,warm,2,10.5,1200,yes\nx,warm,3,20.5,1200,yes\n";
        let (proof, prepare) = parse(table).unwrap();
        assert_eq!((proof, prepare), (Duration::from_micros(20_500), Duration::from_millis(1200)));
        for wrong in [
            "",
            "ms,prepare_ms\n",
            "ms\n3\n",
            "ms,prepare_ms\n3\n",
            "ms,prepare_ms\n3,x\n",
            "ms,prepare_ms\n-1,0\n",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
