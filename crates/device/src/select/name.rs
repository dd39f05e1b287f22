//! The meaning of the name in a term.

use crate::{
    describe::{Api, Description, DeviceKind},
    device::Device,
    discover::plain_uuid,
};

/// Minimum number of digits of a UUID; fewer could be part of a name.
const UUID_DIGITS: usize = 8;

/// The meaning of a name in a selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TermKind {
    /// The device with this id.
    Id(String),
    /// The devices of this API.
    Api(Api),
    /// A group of devices.
    Group(DeviceGroup),
    /// The device at this PCI address.
    Pci(PciAddress),
    /// The device whose UUID begins with these digits.
    Uuid(String),
    /// The devices whose names contain this, in lower case.
    Name(String),
}

/// How many devices a name can mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Breadth {
    /// One device.
    One,
    /// All devices of an API.
    Api,
    /// Any number of devices.
    Many,
}

/// A group of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceGroup {
    All,
    Gpu,
    Software,
}

/// A PCI address: domain, bus, device, function.
type PciAddress = [u32; 4];

impl TermKind {
    /// Returns the meaning of a name among these devices.
    pub(super) fn of<'a>(name: &str, mut devices: impl Iterator<Item = &'a Device> + Clone) -> Self {
        if devices.clone().any(|device| device.id().as_str().eq_ignore_ascii_case(name)) {
            return TermKind::Id(name.to_owned());
        }
        let lower = name.to_lowercase();
        if let Some(keyword) = keyword(&lower) {
            return keyword;
        }
        if let Some(address) = address(&lower) {
            return TermKind::Pci(address);
        }
        if let Some(digits) = uuid_digits(&lower) {
            let meaning = TermKind::Uuid(digits);
            if devices.any(|device| meaning.matches(device.describe())) {
                return meaning;
            }
        }
        TermKind::Name(lower)
    }

    pub(super) fn breadth(&self) -> Breadth {
        match self {
            TermKind::Id(_) | TermKind::Pci(_) | TermKind::Uuid(_) => Breadth::One,
            TermKind::Api(_) => Breadth::Api,
            TermKind::Group(_) | TermKind::Name(_) => Breadth::Many,
        }
    }

    pub(super) fn matches(&self, device: &Description) -> bool {
        match self {
            TermKind::Id(id) => device.id.as_str().eq_ignore_ascii_case(id),
            TermKind::Api(api) => device.api == *api,
            TermKind::Group(DeviceGroup::All) => true,
            TermKind::Group(DeviceGroup::Gpu) => {
                matches!(device.kind, DeviceKind::Discrete | DeviceKind::Integrated | DeviceKind::Virtual)
            }
            TermKind::Group(DeviceGroup::Software) => device.kind == DeviceKind::Software,
            TermKind::Pci(asked) => device.pci.as_deref().and_then(address).as_ref() == Some(asked),
            TermKind::Uuid(digits) => {
                device.uuid.as_deref().is_some_and(|uuid| plain_uuid(uuid).starts_with(digits))
            }
            TermKind::Name(part) => device.name.to_lowercase().contains(part),
        }
    }
}

/// Whether a selection takes a name for an API, a group or an id, such as `cuda:0` and its partition `cuda:0/a`. A machine
/// of such a name could not be told from a device.
pub fn is_device(name: &str) -> bool {
    let name = name.split('/').next().unwrap_or(name).to_lowercase();
    match name.split_once(':') {
        Some((api, number)) => keyword(api).is_some() && number.parse::<u32>().is_ok(),
        None => keyword(&name).is_some(),
    }
}

fn keyword(name: &str) -> Option<TermKind> {
    Some(match name {
        "cuda" => TermKind::Api(Api::Cuda),
        "vulkan" => TermKind::Api(Api::Vulkan),
        "metal" => TermKind::Api(Api::Metal),
        "dx12" => TermKind::Api(Api::Dx12),
        "gl" => TermKind::Api(Api::Gl),
        "cpu" => TermKind::Api(Api::Cpu),
        "gpu" => TermKind::Group(DeviceGroup::Gpu),
        "software" => TermKind::Group(DeviceGroup::Software),
        "all" => TermKind::Group(DeviceGroup::All),
        _ => return None,
    })
}

/// Parses `0000:01:00.0` or `01:00.0`; the domain may have any number of leading zeros.
fn address(text: &str) -> Option<PciAddress> {
    let hexadecimal = |text: &str, max: usize| {
        let is_number = (1..=max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let (rest, function) = text.split_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    Some([hexadecimal(domain, 8)?, hexadecimal(bus, 2)?, hexadecimal(device, 2)?, hexadecimal(function, 1)?])
}

/// Returns the digits of a UUID or of the beginning of one.
fn uuid_digits(text: &str) -> Option<String> {
    let text = text.strip_prefix("gpu-").or_else(|| text.strip_prefix("mig-")).unwrap_or(text);
    let is_uuid = text.chars().all(|letter| letter.is_ascii_hexdigit() || letter == '-');
    let digits = plain_uuid(text);
    (is_uuid && digits.len() >= UUID_DIGITS).then_some(digits)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_domain() {
        for text in ["0000:0a:00.1", "00000000:0A:00.1", "0a:00.1", "a:0.1"] {
            assert_eq!(address(text), Some([0, 10, 0, 1]), "{text}");
        }
        assert_eq!(address("10000:01:00.0"), Some([0x10000, 1, 0, 0]));
        for text in ["", "01:00", "cuda:0", "x1:00.0", "01:00.", "1:2:3:4.5", "+1:00.0"] {
            assert_eq!(address(text), None, "{text}");
        }
    }

    #[test]
    fn few_digits_are_not_a_uuid() {
        assert_eq!(uuid_digits("gpu-0123-4567").as_deref(), Some("01234567"));
        assert_eq!(uuid_digits("0123456"), None);
        assert_eq!(uuid_digits("gpu-0123456g"), None);
    }
}
