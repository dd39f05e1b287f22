//! Utilization, memory, temperature and power of this machine's devices, where the hardware tells.

use evener_device::{DeviceId, DeviceKind, Inventory, Telemetry};
use serde::{Deserialize, Serialize};

/// The devices of this machine, whose counters can be read.
///
/// The counters are those of [`Telemetry`]: NVML, which is opened at run time, `/sys` for GPUs of AMD and Intel, and the
/// system's counters for the processor.
#[derive(Debug)]
pub struct Hardware {
    inventory: Inventory,
}

/// The counters of one device. `None` means that nothing on this machine measures the value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceHardware {
    /// Its id.
    pub id: DeviceId,
    /// Its name.
    pub name: String,
    /// What kind of device it is.
    pub kind: DeviceKind,
    /// Utilization by all programs, from 0 to 1.
    pub utilization: Option<f64>,
    /// Its memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Its free memory in bytes.
    pub memory_free_bytes: Option<u64>,
    /// The temperature.
    pub temperature_celsius: Option<f64>,
    /// The power draw.
    pub power_watts: Option<f64>,
}

impl Hardware {
    /// Finds the devices of this machine. Opens none of them.
    pub fn discover() -> Self {
        Hardware::of(Inventory::discover())
    }

    /// The devices of an inventory.
    pub fn of(inventory: Inventory) -> Self {
        inventory.devices().iter().for_each(|device| Telemetry::begin(device.describe()));
        Hardware { inventory }
    }

    /// Reads the counters. A processor has no utilization until
    /// [some time](Telemetry::UTILIZATION_WINDOW) after the devices were found.
    pub fn read(&self) -> Vec<DeviceHardware> {
        let read = |device: &evener_device::Device| {
            let (description, telemetry) = (device.describe(), device.telemetry());
            DeviceHardware {
                id: description.id.clone(),
                name: description.name.clone(),
                kind: description.kind,
                utilization: telemetry.utilization,
                memory_bytes: description.memory_bytes,
                memory_free_bytes: telemetry.memory_free_bytes,
                temperature_celsius: telemetry.temperature_celsius,
                power_watts: telemetry.power_watts,
            }
        };
        self.inventory.devices().iter().map(read).collect()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_processor_tells_its_utilization_and_memory() {
        let hardware = Hardware::discover();
        std::thread::sleep(Telemetry::UTILIZATION_WINDOW);
        let read = hardware.read();
        let cpu = read.iter().find(|device| device.kind == DeviceKind::Cpu).unwrap();
        assert!(cpu.utilization.is_some_and(|busy| (0.0..=1.0).contains(&busy)), "{cpu:?}");
        assert!(
            cpu.memory_free_bytes.is_some_and(|free| free > 0 && Some(free) <= cpu.memory_bytes),
            "{cpu:?}"
        );
    }
}
