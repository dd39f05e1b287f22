//! The options of every command that runs something.

use std::{
    collections::HashSet,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use evener_device::{Device, Inventory, Kind};
use evener_schedule::{Report, Strategy};

use crate::{
    Usage, escape,
    output::{is_special, shown, target},
};

/// How something is run, and what is told of it.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// Use only these devices, as for `evener devices` [env: EVENER_DEVICES]
    ///
    /// A list such as cuda:0,cpu or gpu or -cpu or cuda:0[40,92],cpu[8,8]: `evener help devices` says all of it.
    /// Without it, everything but software devices is used.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) devices: Option<String>,

    /// How work is shared out: equal, proportional (by score, or by speed where that was measured), dynamic (the same,
    /// and by how busy the devices are) or adaptive (devices pull chunks whose sizes follow their measured speed)
    #[arg(long, value_name = "STRATEGY", default_value_t)]
    pub(crate) strategy: Strategy,

    /// Write an object, for programs
    #[arg(long)]
    pub(crate) json: bool,

    /// Write what every device did, when, for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// Fails, before anything is computed, where one of these files could not be written, or two of them are one.
pub(crate) fn check_outputs<'a>(paths: impl IntoIterator<Item = Option<&'a Path>>) -> Result<()> {
    let mut targets = HashSet::new();
    for path in paths.into_iter().flatten().filter(|path| !is_special(path)) {
        check_output(path).with_context(|| format!("{}: cannot be written", shown(path)))?;
        if !targets.insert(place(path)) {
            let why = format!("{}: is named for two outputs, of which one would be lost", shown(path));
            return Err(Usage(why).into());
        }
    }
    Ok(())
}

fn check_output(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!("it is a directory: name a file in it");
    }
    let file = target(path);
    let folder = folder_of(&file);
    if !folder.is_dir() {
        bail!("there is no folder {}: make it first", shown(folder));
    }
    if file.exists() {
        // Neither its contents nor its time of change become others by that.
        File::options().append(true).open(&file)?;
    }
    // A file is written beside its place first. This one has no name, and nothing of it stays.
    let beside = tempfile::tempfile_in(folder).map(drop);
    beside.or_else(|error| match error.kind() {
        // There is room for a name and an owner, at least; how much there is otherwise is known when all is written.
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Ok(()),
        _ => Err(error).with_context(|| format!("no file can be made in the folder {}", shown(folder))),
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where a file is or will be, the same for all names of it.
fn place(path: &Path) -> PathBuf {
    let file = target(path);
    let folder = folder_of(&file).canonicalize();
    match (folder, file.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => file,
    }
}

/// The devices to use: those that a list selects, or that the environment does, or all but software devices. At `-v`, says
/// what there is.
pub(crate) fn choose_devices(selection: Option<&str>) -> Result<Vec<Device>> {
    let inventory = Inventory::discover();
    let devices = inventory.select_or_default(selection)?;
    tell_devices(&inventory, &devices);
    Ok(devices)
}

/// Says what devices there are, which of them are used, and why others are not.
pub(crate) fn tell_devices(inventory: &Inventory, used: &[Device]) {
    let is_used = |device: &Device| used.iter().any(|it| it.id() == device.id());
    let is_split =
        |device: &Device| used.iter().any(|it| it.describe().part_of.as_ref() == Some(device.id()));
    for device in inventory.devices() {
        let use_of_it = match device.describe().kind {
            _ if is_used(device) => "used",
            _ if is_split(device) => "used in parts",
            Kind::Software => "not used: the processor's own cores compute it (--devices can name it)",
            _ => "not used: not among the devices asked for",
        };
        tracing::info!("{}: {use_of_it}", described(device));
    }
    used.iter().filter(|device| device.describe().part_of.is_some()).for_each(|part| {
        tracing::info!("{}: used, a part of another device", described(part));
    });
    for absent in inventory.absent() {
        tracing::info!("{}", escape::name(&absent.to_string()));
    }
}

fn described(device: &Device) -> String {
    let it = device.describe();
    let units = it.compute_units.map_or(String::new(), |units| format!(", {units} compute units"));
    let gib = |bytes: u64| format!(", {:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let memory = it.memory_bytes.map_or(String::new(), gib);
    format!("{}: {} ({} by {}{units}{memory})", it.id, escape::name(&it.name), it.kind, it.api)
}

/// Says what a run did with its devices, and why it left some out.
pub(crate) fn tell_run(report: &Report) {
    for device in &report.devices {
        let (id, items, busy) = (&device.id, device.items, device.busy_s);
        tracing::info!(
            "{id}: did {items} of {} items, busy for {busy:.3} s of {:.3} s",
            report.items,
            report.wall_s
        );
    }
    for left_out in &report.left_out {
        tracing::info!("{}: not used: {}", left_out.id, escape::name(&left_out.reason));
    }
}
