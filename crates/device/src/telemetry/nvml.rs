//! NVML, NVIDIA's management library. It reports on every card that NVIDIA's driver runs, whichever API uses the card,
//! and creates no context on it.

use std::sync::OnceLock;

use nvml_wrapper::{Nvml, enum_wrappers::device::TemperatureSensor};

use super::Telemetry;
use crate::{describe::Description, discover::plain_uuid};

/// Returns the library, loaded once; `None` if it is not installed or finds no driver.
fn library() -> Option<&'static Nvml> {
    static LIBRARY: OnceLock<Option<Nvml>> = OnceLock::new();
    LIBRARY.get_or_init(|| Nvml::init().ok()).as_ref()
}

/// Returns the version of NVIDIA's driver.
pub(crate) fn driver_version() -> Option<String> {
    library()?.sys_driver_version().ok()
}

/// Reads a device's state; `None` if the library does not know the device.
pub(super) fn read(device: &Description) -> Option<Telemetry> {
    if device.uuid.is_none() && device.pci.is_none() {
        return None;
    }
    let library = library()?;
    let by_uuid =
        device.uuid.as_deref().and_then(full_uuid).and_then(|uuid| library.device_by_uuid(uuid).ok());
    let by_address = || library.device_by_pci_bus_id(device.pci.as_deref()?).ok();
    let card = by_uuid.or_else(by_address)?;
    Some(Telemetry {
        utilization: card.utilization_rates().ok().map(|rates| f64::from(rates.gpu.min(100)) / 100.0),
        memory_free_bytes: card.memory_info().ok().map(|memory| memory.free),
        temperature_celsius: card.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
        power_watts: card.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1000.0),
    })
}

/// Formats a UUID for the library: `GPU-` and five groups of digits.
fn full_uuid(uuid: &str) -> Option<String> {
    if uuid.starts_with("MIG-") {
        return Some(uuid.to_owned());
    }
    let digits = plain_uuid(uuid);
    let groups = [digits.get(..8)?, digits.get(8..12)?, digits.get(12..16)?, digits.get(16..20)?];
    let last = digits.get(20..).filter(|last| last.len() == 12)?;
    Some(format!("GPU-{}-{last}", groups.join("-")))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_the_library_writes_it() {
        let full = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(full_uuid("00112233445566778899AABBCCDDEEFF").as_deref(), Some(full));
        assert_eq!(full_uuid(full).as_deref(), Some(full));
        assert_eq!(full_uuid("0011"), None);
    }
}

#[cfg(test)]
mod with_card {
    use super::*;
    use crate::fake;

    /// A card must be found under every UUID and address that a description may have.
    #[test]
    #[ignore = "needs a CUDA device"]
    fn a_card_is_found_by_address_and_by_uuid() {
        let card = library().unwrap().device_by_index(0).unwrap();
        let (uuid, long_address) = (card.uuid().unwrap(), card.pci_info().unwrap().bus_id.to_lowercase());
        let short_address = long_address.trim_start_matches("0000").to_owned();
        let nothing = fake::description("any:0");
        for device in [
            Description { uuid: Some(uuid.clone()), ..nothing.clone() },
            Description { uuid: Some(plain_uuid(&uuid)), ..nothing.clone() },
            Description { pci: Some(long_address), ..nothing.clone() },
            Description { pci: Some(format!("0000{short_address}")), ..nothing.clone() },
        ] {
            let telemetry = read(&device).unwrap_or_else(|| panic!("{device:?}"));
            assert!(telemetry.utilization.is_some_and(|busy| (0.0..=1.0).contains(&busy)), "{telemetry:?}");
            assert!(telemetry.memory_free_bytes.is_some_and(|bytes| bytes > 0), "{telemetry:?}");
            assert!(telemetry.temperature_celsius.is_some(), "{telemetry:?}");
        }
        assert!(read(&Description { pci: Some("ffff:ff:1f.7".into()), ..nothing }).is_none());
    }
}
