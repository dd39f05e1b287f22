//! Options that several commands share, and checks of output files.

use std::{
    collections::HashSet,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use evener_device::{Device, DeviceKind, Inventory};
use evener_schedule::{Report, Strategy};

use crate::{
    UsageError, escape, input,
    machines::{HostsOption, LateNodes, Machines},
    output::{display_path, format_counted, is_special, resolve_links},
    views::ViewOptions,
};

/// The options of every command that runs something on devices.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// Use only these devices, as for `evener devices` [env: EVENER_DEVICES]
    ///
    /// A list such as cuda:0,cpu or gpu or -cpu or cuda:0[40,92],cpu[8,8]: see `evener help devices`. The default is all
    /// devices but software devices.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) devices: Option<String>,

    #[command(flatten)]
    pub(crate) hosts: HostsOption,

    /// Share work out by this strategy
    #[arg(long, value_name = "STRATEGY", default_value = "adaptive")]
    pub(crate) strategy: StrategyArg,

    /// Print a JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,

    /// Write a trace to this file, for `evener report`, ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) views: ViewOptions,
}

/// A [`Strategy`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StrategyArg {
    /// Give every device the same number of items
    Equal,
    /// Give every device items by its score, or by its measured rate
    Proportional,
    /// As proportional, reduced by how busy the device is at the start
    Dynamic,
    /// Let devices pull chunks whose sizes follow their measured rate
    Adaptive,
}

impl From<StrategyArg> for Strategy {
    fn from(strategy: StrategyArg) -> Strategy {
        match strategy {
            StrategyArg::Equal => Strategy::Equal,
            StrategyArg::Proportional => Strategy::Proportional,
            StrategyArg::Dynamic => Strategy::Dynamic,
            StrategyArg::Adaptive => Strategy::Adaptive,
        }
    }
}

/// Fails, before anything is computed, if an output file cannot be written, is an input, or is named twice.
pub(crate) fn check_outputs<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    outputs: impl IntoIterator<Item = Option<&'a Path>>,
) -> Result<()> {
    let inputs = inputs.into_iter().filter(|path| !input::is_stdin(path) && !is_special(path));
    let inputs: HashSet<PathBuf> = inputs.map(canonical_path).collect();
    let mut targets = HashSet::new();
    for path in outputs.into_iter().flatten().filter(|path| !is_special(path)) {
        check_output(path).with_context(|| format!("{}: cannot be written", display_path(path)))?;
        let target = canonical_path(path);
        if inputs.contains(&target) {
            let message = format!("{}: is an input, which the output would overwrite", display_path(path));
            return Err(UsageError(message).into());
        }
        if !targets.insert(target) {
            let message = format!("{}: is named for two outputs", display_path(path));
            return Err(UsageError(message).into());
        }
    }
    Ok(())
}

fn check_output(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!("it is a directory: name a file in it");
    }
    let file = resolve_links(path);
    let folder = folder_of(&file);
    if !folder.is_dir() {
        bail!("there is no folder {}: create it first", display_path(folder));
    }
    if file.exists() {
        // Opening for appending changes neither the contents nor the modification time.
        File::options().append(true).open(&file)?;
    }
    // Outputs are written to a temporary file in the same folder first. This one has no name and disappears at once.
    let temporary = tempfile::tempfile_in(folder).map(drop);
    temporary.or_else(|error| match error.kind() {
        // A full disk may have room again when the output is written.
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Ok(()),
        _ => Err(error)
            .with_context(|| format!("no file can be created in the folder {}", display_path(folder))),
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the same path for all names of a file, which need not exist.
fn canonical_path(path: &Path) -> PathBuf {
    let file = resolve_links(path);
    let folder = folder_of(&file).canonicalize();
    match (folder, file.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => file,
    }
}

/// Selects the devices of a list, or of the environment, or all but software devices. Logs all devices at `-v`.
pub(crate) fn select_devices(
    hosts: &HostsOption,
    selection: Option<&str>,
    late: LateNodes,
) -> Result<Vec<Device>> {
    let (inventory, devices) = Machines::select(hosts, selection, late)?;
    log_devices(&inventory, &devices);
    Ok(devices)
}

/// Whether a device runs kernels, in hardware or in software.
pub(crate) fn is_gpu(device: &Device) -> bool {
    device.describe().kind != DeviceKind::Cpu
}

/// Logs which devices are used, and why others are not.
pub(crate) fn log_devices(inventory: &Inventory, used: &[Device]) {
    let is_used = |device: &Device| used.iter().any(|it| it.id() == device.id());
    let is_split =
        |device: &Device| used.iter().any(|it| it.describe().part_of.as_ref() == Some(device.id()));
    for device in inventory.devices() {
        let state = match device.describe().kind {
            _ if is_used(device) => "used",
            _ if is_split(device) => "used in partitions",
            DeviceKind::Software => "not used: runs on the CPU's cores (--devices can name it)",
            _ => "not used: not selected",
        };
        tracing::info!("{}: {state}", describe(device));
    }
    used.iter().filter(|device| device.describe().part_of.is_some()).for_each(|partition| {
        tracing::info!("{}: used, a partition of another device", describe(partition));
    });
    for absent in inventory.absent() {
        tracing::info!("{}", escape::single_line(&absent.to_string()));
    }
}

fn describe(device: &Device) -> String {
    let it = device.describe();
    let units = it.compute_units.map_or(String::new(), |units| format!(", {units} compute units"));
    let gib = |bytes: u64| format!(", {:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let memory = it.memory_bytes.map_or(String::new(), gib);
    let api = if it.kind == DeviceKind::Cpu { String::new() } else { format!(" through {}", it.api) };
    format!("{}: {} ({}{api}{units}{memory})", it.id, escape::single_line(&it.name), it.kind)
}

/// Logs what each device did in a run, and why others were left out.
pub(crate) fn log_run(report: &Report) {
    for device in &report.devices {
        let (id, items, busy) = (&device.id, device.items, device.busy_s);
        tracing::info!(
            "{id}: did {items} of {}, busy for {busy:.3} s of {:.3} s",
            format_counted(report.items, "item", "items"),
            report.wall_s
        );
    }
    for left_out in &report.left_out {
        tracing::info!("{}: not used: {}", left_out.id, escape::single_line(&left_out.reason));
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_strategy_can_be_named_by_its_own_name() {
        assert_eq!(StrategyArg::value_variants().len(), Strategy::ALL.len());
        for &argument in StrategyArg::value_variants() {
            let name = argument.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(Strategy::from(argument).name(), name);
        }
        assert_eq!(Strategy::from(StrategyArg::Adaptive), Strategy::default());
    }
}
