//! Who is here, and who takes part.

use evener_device::{Absent, Device, DeviceId, Inventory, Kind, Result, selection_from_environment};
use serde::Serialize;

use crate::options::tell_devices;

/// Who is here, and who takes part.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) found: Vec<Found>,
    pub(super) absent: Vec<String>,
    /// Those that take part.
    pub(super) devices: Vec<Device>,
    /// Whether the processor was split because there is nothing else.
    pub(super) was_split: bool,
    pub(super) memory_free_bytes: Option<u64>,
}

/// A device that is here.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    pub(super) id: DeviceId,
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) compute_units: Option<u32>,
    /// Whether it, or its parts, take part.
    pub(super) is_used: bool,
}

impl Cast {
    /// Looks around. Nobody who asked for certain devices gets others.
    pub(super) fn find(selection: Option<&str>) -> Result<Cast> {
        let inventory = Inventory::discover();
        let mut devices = inventory.select_or_default(selection)?;
        let is_asked_for = selection.is_some() || selection_from_environment().is_some();
        let split = if is_asked_for { None } else { split(&devices) };
        let was_split = split.is_some();
        if let Some(selection) = split {
            devices = inventory.select(&selection)?;
        }
        tell_devices(&inventory, &devices);
        let is_used = |device: &Device| {
            devices
                .iter()
                .any(|used| used.id() == device.id() || used.describe().part_of.as_ref() == Some(device.id()))
        };
        let found = inventory.devices().iter().map(|device| Found {
            id: device.id().clone(),
            name: device.describe().name.clone(),
            kind: device.describe().kind,
            compute_units: device.describe().compute_units,
            is_used: is_used(device),
        });
        Ok(Cast {
            found: found.collect(),
            absent: inventory.absent().iter().map(Absent::to_string).collect(),
            memory_free_bytes: Device::cpu().telemetry().memory_free_bytes,
            was_split,
            devices,
        })
    }
}

/// Where there is nothing but a processor of several cores: a quarter of it, and the rest.
fn split(devices: &[Device]) -> Option<String> {
    let [only] = devices else { return None };
    let cores = only.describe().compute_units.filter(|&cores| cores > 1)?;
    let small = (cores / 4).max(1);
    (only.describe().kind == Kind::Cpu).then(|| format!("{}[{small},{}]", only.id(), cores - small))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_processor_alone_is_split_unless_it_was_asked_for() {
        let cores = Device::cpu().describe().compute_units.unwrap();
        match split(&[Device::cpu()]) {
            Some(selection) => assert!(cores > 1 && selection.starts_with("cpu["), "{selection}"),
            None => assert_eq!(cores, 1),
        }
        assert_eq!(split(&[Device::cpu(), Device::cpu()]), None);
        let cast = Cast::find(Some("cpu")).unwrap();
        assert_eq!((cast.devices.len(), cast.was_split), (1, false));
        assert!(cast.found.iter().any(|found| found.id.as_str() == "cpu" && found.is_used));
    }
}
