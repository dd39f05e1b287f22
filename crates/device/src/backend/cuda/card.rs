//! A card's properties, which the driver reports without opening the card.

use std::{
    ffi::{CStr, c_int},
    sync::Arc,
};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUuuid};

use super::{
    context::ContextSlot,
    driver::{Driver, SUCCESS},
    program::MAX_PARAMS,
};
use crate::{
    describe::{Api, Capabilities, Description, DeviceId, DeviceKind, Features},
    telemetry::nvml,
};

/// The properties of a card, shared by all openings of it.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) driver: &'static Driver,
    pub(super) slot: Arc<ContextSlot>,
    /// The driver's number of the card in this process.
    pub(super) ordinal: i32,
    pub(super) capabilities: Capabilities,
    /// The architecture that its kernels are compiled for: `sm_90`.
    pub(super) architecture: String,
}

/// Returns every card with its description, in the order of PCI addresses. Fails with one line for the user.
pub(super) fn all(driver: &'static Driver) -> Result<Vec<(Description, Arc<Card>)>, String> {
    let mut count = 0;
    // SAFETY: the pointer is to a live integer.
    let code = unsafe { (driver.device_get_count)(&mut count) };
    if code != SUCCESS {
        return Err(format!("driver found, but no device ({})", driver.text(code)));
    }
    let mut cards = (0..count).map(|ordinal| card(driver, ordinal)).collect::<Result<Vec<_>, _>>()?;
    if cards.is_empty() {
        return Err("driver found, but no device".into());
    }
    cards.sort_by(|(a, _), (b, _)| a.pci.cmp(&b.pci));
    for (index, (description, _)) in cards.iter_mut().enumerate() {
        description.id = DeviceId::from(format!("cuda:{index}"));
    }
    Ok(cards)
}

/// Returns the card of this number. Its id is set by the caller.
fn card(driver: &'static Driver, ordinal: c_int) -> Result<(Description, Arc<Card>), String> {
    let check = |code: c_int| match code {
        SUCCESS => Ok(()),
        code => Err(format!("the driver cannot describe device {ordinal} ({})", driver.text(code))),
    };
    let mut device: CUdevice = 0;
    // SAFETY: the pointer is to a live integer.
    check(unsafe { (driver.device_get)(&mut device, ordinal) })?;
    let mut name = [0u8; 256];
    // SAFETY: the driver writes at most `name.len()` bytes, the last of them zero.
    check(unsafe { (driver.device_get_name)(name.as_mut_ptr().cast(), name.len() as c_int, device) })?;
    let mut bytes = 0;
    // SAFETY: the pointer is to a live integer.
    check(unsafe { (driver.device_total_mem)(&mut bytes, device) })?;
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is to a live UUID.
    check(unsafe { (driver.device_get_uuid)(&mut uuid, device) })?;
    let attribute = |name: Attribute| {
        let mut value = 0;
        // SAFETY: the pointer is to a live integer.
        check(unsafe { (driver.device_get_attribute)(&mut value, name as u32, device) })?;
        Ok::<u32, String>(value.max(0) as u32)
    };
    let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    let description = Description {
        id: DeviceId::from("cuda"),
        name: CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().trim().to_owned(),
        kind: if integrated { DeviceKind::Integrated } else { DeviceKind::Discrete },
        api: Api::Cuda,
        memory_bytes: Some(bytes as u64),
        compute_units: Some(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?),
        pci: Some(pci_text(
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        )),
        uuid: Some(uuid_text(uuid.bytes.map(|byte| byte as u8))),
        driver: driver_text(driver),
        part_of: None,
        rounded_from: None,
        host: None,
    };
    let card = Card {
        driver,
        slot: ContextSlot::of(driver, device),
        ordinal,
        capabilities: capabilities(bytes as u64, attribute)?,
        architecture: format!(
            "sm_{}{}",
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?
        ),
    };
    Ok((description, Arc::new(card)))
}

fn capabilities(
    memory_bytes: u64,
    attribute: impl Fn(Attribute) -> Result<u32, String>,
) -> Result<Capabilities, String> {
    Ok(Capabilities {
        features: Features::INT64
            | Features::FLOAT64
            | Features::FLOAT16
            | Features::SUBGROUPS
            | Features::TIMESTAMPS,
        max_buffer_bytes: memory_bytes,
        max_binding_bytes: memory_bytes,
        max_bindings: 64,
        max_params_bytes: MAX_PARAMS as u32,
        max_workgroup: [
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
        ],
        max_workgroup_threads: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_groups: [
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        max_shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        subgroup_size: Some(attribute(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?),
        // The widest load of a thread needs this; blocks of memory are aligned to 256 bytes.
        binding_alignment: 16,
        copy_alignment: 1,
    })
}

/// Formats a PCI address: `0000:01:00.0`. A GPU is always function 0 of its slot.
fn pci_text(domain: u32, bus: u32, device: u32) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}

/// Formats a UUID: `GPU-01234567-89ab-cdef-0123-456789abcdef`.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// The driver's versions: `NVIDIA 580.65.06, CUDA 13.0`, or the second alone without NVML.
fn driver_text(driver: &Driver) -> String {
    match nvml::driver_version() {
        Some(version) => format!("NVIDIA {version}, {}", driver.version_text()),
        None => driver.version_text(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn addresses_and_uuids_read_as_other_tools_write_them() {
        assert_eq!(pci_text(0, 0x1b, 0), "0000:1b:00.0");
        assert_eq!(pci_text(0x10000, 1, 2), "10000:01:02.0");
        let bytes = std::array::from_fn(|index| index as u8 * 0x11);
        assert_eq!(uuid_text(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
