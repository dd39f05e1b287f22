//! The devices that are present, and those that take part in the demo.

use anyhow::Result;
use evener_device::{Absent, Device, DeviceId, DeviceKind, selection_from_environment};
use serde::Serialize;

use crate::{
    machines::{HostsOption, LateNodes, Machines},
    options::log_devices,
};

/// The devices that are present, and those that take part.
#[derive(Debug)]
pub(super) struct Participants {
    pub(super) found: Vec<FoundDevice>,
    /// Back ends that are not available, and why.
    pub(super) absent: Vec<String>,
    /// The devices that take part.
    pub(super) devices: Vec<Device>,
    /// Whether the CPU was split because it is the only device.
    pub(super) cpu_was_split: bool,
    pub(super) memory_free_bytes: Option<u64>,
}

/// A device that is present.
#[derive(Debug, Serialize)]
pub(super) struct FoundDevice {
    pub(super) id: DeviceId,
    pub(super) name: String,
    pub(super) kind: DeviceKind,
    pub(super) compute_units: Option<u32>,
    /// Whether the device, or its partitions, take part.
    pub(super) is_used: bool,
}

impl Participants {
    /// Selects the devices. Splits a CPU that is alone, unless the user has selected devices.
    pub(super) fn find(hosts: &HostsOption, selection: Option<&str>) -> Result<Participants> {
        let (inventory, mut devices) = Machines::select(hosts, selection, LateNodes::Refused)?;
        let is_selected = selection.is_some() || selection_from_environment().is_some();
        let split = if is_selected { None } else { split(&devices) };
        let cpu_was_split = split.is_some();
        if let Some(selection) = split {
            devices = inventory.select(&selection)?;
        }
        log_devices(&inventory, &devices);
        let is_used = |device: &Device| {
            devices
                .iter()
                .any(|used| used.id() == device.id() || used.describe().part_of.as_ref() == Some(device.id()))
        };
        let found = inventory.devices().iter().map(|device| FoundDevice {
            id: device.id().clone(),
            name: device.describe().name.clone(),
            kind: device.describe().kind,
            compute_units: device.describe().compute_units,
            is_used: is_used(device),
        });
        Ok(Participants {
            found: found.collect(),
            absent: inventory.absent().iter().map(Absent::to_string).collect(),
            memory_free_bytes: Device::cpu().telemetry().memory_free_bytes,
            cpu_was_split,
            devices,
        })
    }
}

/// Returns the selection that splits a CPU into a quarter and the rest, if it is the only device and has several cores.
fn split(devices: &[Device]) -> Option<String> {
    let [only] = devices else { return None };
    let cores = only.describe().compute_units.filter(|&cores| cores > 1)?;
    let small = (cores / 4).max(1);
    (only.describe().kind == DeviceKind::Cpu).then(|| format!("{}[{small},{}]", only.id(), cores - small))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_cpu_alone_is_split_unless_it_was_selected() {
        let cores = Device::cpu().describe().compute_units.unwrap();
        match split(&[Device::cpu()]) {
            Some(selection) => assert!(cores > 1 && selection.starts_with("cpu["), "{selection}"),
            None => assert_eq!(cores, 1),
        }
        assert_eq!(split(&[Device::cpu(), Device::cpu()]), None);
        let participants = Participants::find(&HostsOption::default(), Some("cpu")).unwrap();
        assert_eq!((participants.devices.len(), participants.cpu_was_split), (1, false));
        assert!(participants.found.iter().any(|found| found.id.as_str() == "cpu" && found.is_used));
    }
}
