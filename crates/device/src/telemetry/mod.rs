//! The current state of a device, from the hardware's counters.

#[cfg(feature = "cuda")]
pub(crate) mod nvml;
mod processor;
mod sysfs;

use std::{path::Path, time::Duration};

use serde::Serialize;
use sysinfo::MINIMUM_CPU_UPDATE_INTERVAL;

use crate::{
    describe::{Description, DeviceKind},
    device::Device,
};

/// The current state of a device. `None` means that nothing on this machine measures the value; values are never
/// estimated.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Telemetry {
    /// Utilization by all programs, from 0 to 1. `None` for a partition: the counters are of the whole device.
    pub utilization: Option<f64>,
    /// Free memory in bytes. Partitions of a device share it.
    pub memory_free_bytes: Option<u64>,
    /// The temperature.
    pub temperature_celsius: Option<f64>,
    /// The power draw.
    pub power_watts: Option<f64>,
}

impl Telemetry {
    /// The least time between two reads that have a utilization each: 0.2 s on Linux. Shorter than this, the system's
    /// counters are too coarse.
    pub const UTILIZATION_WINDOW: Duration = MINIMUM_CPU_UPDATE_INTERVAL;

    /// Begins to count the utilization of a device, for a later [`read`](Self::read). A [`Device`] in use by a pool has begun.
    pub fn begin(device: &Description) {
        match device.kind {
            DeviceKind::Cpu => drop(processor::utilization()),
            DeviceKind::Software => {}
            DeviceKind::Discrete | DeviceKind::Integrated | DeviceKind::Virtual => {
                sysfs::begin(Path::new("/sys"), device)
            }
        }
    }

    /// Reads the hardware's counters for a device, without opening it or waiting.
    ///
    /// The utilization of a processor or an Intel GPU, and an Intel GPU's power draw, follow from the change of a counter
    /// since the last read in this process: they are `None` until [`UTILIZATION_WINDOW`](Self::UTILIZATION_WINDOW) after
    /// the first read ([`begin`](Self::begin)).
    pub fn read(device: &Description) -> Telemetry {
        let mut telemetry = match device.kind {
            DeviceKind::Cpu => processor::read(),
            // It computes on the processor, in the processor's memory, and has no counters of its own.
            DeviceKind::Software => {
                let max = device.memory_bytes.unwrap_or(u64::MAX);
                let free = processor::memory_free().map(|free| free.min(max));
                Telemetry { memory_free_bytes: free, ..Telemetry::default() }
            }
            DeviceKind::Discrete | DeviceKind::Integrated | DeviceKind::Virtual => gpu(device),
        };
        if device.part_of.is_some() {
            telemetry.utilization = None;
        }
        telemetry
    }
}

fn gpu(device: &Description) -> Telemetry {
    #[cfg(feature = "cuda")]
    if let Some(known) = nvml::read(device) {
        return known;
    }
    sysfs::read(Path::new("/sys"), device)
}

impl Device {
    /// Reads its current state, as [`Telemetry::read`] does.
    pub fn telemetry(&self) -> Telemetry {
        Telemetry::read(self.describe())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::{describe::Api, fake};

    #[test]
    fn software_has_no_counters_of_its_own() {
        let software = Description { kind: DeviceKind::Software, ..fake::description("vulkan:0") };
        let telemetry = Telemetry::read(&software);
        assert_eq!(telemetry.utilization, None);
        assert_eq!(telemetry.temperature_celsius, None);
    }

    #[test]
    fn an_unknown_card_has_no_telemetry() {
        let card =
            Description { pci: Some("ffff:ff:1f.7".into()), api: Api::Cuda, ..fake::description("cuda:0") };
        assert_eq!(Telemetry::read(&card), Telemetry::default());
    }

    #[test]
    fn a_partition_does_not_report_the_utilization_of_the_whole_device() {
        let cpu = Device::cpu();
        let half = Description { part_of: Some(cpu.id().clone()), ..cpu.describe().clone() };
        let telemetry = Telemetry::read(&half);
        assert_eq!(telemetry.utilization, None);
        assert!(telemetry.memory_free_bytes.is_some());
    }
}
