//! The time of a whole `evener prove`, in a process of its own.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use evener_device::Device;

use super::{
    Bench,
    section::{Row, Section},
    snarkrs::Files,
    timing::{median_of, timed},
};
use crate::escape;

/// Later starts that are measured.
const LATER_STARTS: usize = 3;

/// Folders in which Evener and the drivers keep compiled kernels.
const CACHE_VARIABLES: [&str; 5] = [
    "EVENER_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "__GL_SHADER_DISK_CACHE_PATH",
    "MESA_SHADER_CACHE_DIR",
    "XDG_CACHE_HOME",
];

impl Bench<'_> {
    /// Measures the command that reads a key and a witness, proves, verifies and writes the proof: first with empty caches,
    /// as on a new machine, then again.
    pub(super) fn start(&mut self, log: u32, files: &Files) -> Result<()> {
        let title = format!("`evener prove` of 2^{log} constraints, the whole process");
        let mut section = Section::new("start", Some(log), title);
        for device in &self.devices {
            let mut row = Row::of(device);
            if device.describe().part_of.is_some() {
                row.not_measured = Some("a partition exists in one process only".into());
                section.rows.push(row);
                continue;
            }
            let measured = self.start_on(device, files);
            section.add(device, measured.map(|row| vec![row]));
        }
        section.notes.push("FIRST is with empty caches, as on a new machine".into());
        if !self.arguments.emitter.is_empty() {
            section.notes.push("with the fastest field arithmetic, not with that of --emitter".into());
        }
        self.add(section)
    }

    fn start_on(&self, device: &Device, files: &Files) -> Result<Row> {
        self.progress.step(format!("first start on {}", device.id()));
        let caches = tempfile::tempdir().context("no temporary folder")?;
        let first = prove(device, files, caches.path())?;
        self.progress.step(format!("later start on {}", device.id()));
        let mut row =
            Row::of(device).median(median_of(LATER_STARTS, || prove(device, files, caches.path()))?);
        row.first_s = Some(first.as_secs_f64());
        Ok(row)
    }
}

/// Returns the time of one process.
fn prove(device: &Device, files: &Files, caches: &Path) -> Result<Duration> {
    let mut command = Command::new(std::env::current_exe().context("the own executable is not known")?);
    command.args(["prove", "--quiet", "--devices", device.id().as_str()]);
    command.arg("--zkey").arg(files.zkey()).arg("--wtns").arg(files.wtns());
    command.arg("--out").arg(files.folder()).stdin(Stdio::null());
    for variable in CACHE_VARIABLES {
        command.env(variable, caches);
    }
    let (output, took) = timed(|| command.output());
    let output = output.context("`evener prove` cannot be started")?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("`evener prove` failed: {}", escape::single_line(message.trim()));
    }
    Ok(took)
}
