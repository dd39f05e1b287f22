//! One device of a mesh, at hand or made up.

use evener_device::{Description, Device, DeviceId, DeviceKind, Rates, ScoreTable, known_rates};
use serde::Serialize;

/// One device of a mesh: what layout and placement need to know of it. It comes from a real device or its
/// description, or is made up, to plan for machines that are not at hand. A `None` means that nobody has said.
///
/// ```
/// use evener_device::{Device, DeviceKind};
/// use evener_mesh::topology::Member;
///
/// let here = Member::from(&Device::cpu());
/// assert!(here.device().is_some());
/// let planned = Member::new("h200-0", DeviceKind::Discrete).on_machine("rack-3").with_rate(27.9e12);
/// assert_eq!(planned.to_string(), "rack-3/h200-0");
/// ```
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Member {
    /// Its id, as its machine names it.
    pub id: DeviceId,
    /// The machine that it is in; nothing for the one at hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// What sort of hardware it is.
    pub kind: DeviceKind,
    /// The device that this is a partition of. Partitions of one device share its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part_of: Option<DeviceId>,
    /// Its memory in all, in bytes.
    pub memory_bytes: Option<u64>,
    /// Its compute units.
    pub compute_units: Option<u32>,
    /// The work it was measured to do in a second. Which work is for the user to say: what counts is that it is the
    /// same for all members, and the unit of the layers' costs.
    pub rate_per_s: Option<f64>,
    /// Its static score, for where not all members were measured.
    pub score: Option<f64>,
    /// Bytes a second between it and its host's memory, in the slower direction.
    pub host_bytes_per_s: Option<f64>,
    #[serde(skip)]
    device: Option<Device>,
}

/// Writes methods that set what is known of a member.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident $field:ident: $type:ty;)*) => {
        impl Member {$(
            $(#[$doc])*
            pub fn $name(mut self, $field: $type) -> Self {
                self.$field = Some($field);
                self
            }
        )*}
    };
}

setters! {
    /// With this rate, in work a second.
    with_rate rate_per_s: f64;
    /// With this score.
    with_score score: f64;
    /// With so much memory.
    with_memory_bytes memory_bytes: u64;
    /// With so many compute units.
    with_compute_units compute_units: u32;
    /// With this bandwidth to its host's memory.
    with_host_bytes_per_s host_bytes_per_s: f64;
}

impl Member {
    /// A member of which only the name and the kind are known.
    pub fn new(id: impl Into<String>, kind: DeviceKind) -> Self {
        Member {
            id: DeviceId::from(id.into()),
            machine: None,
            kind,
            part_of: None,
            memory_bytes: None,
            compute_units: None,
            rate_per_s: None,
            score: None,
            host_bytes_per_s: None,
            device: None,
        }
    }

    /// A device with the rates that were kept when it was measured, where it was.
    pub fn of(device: &Device) -> Self {
        let member = Member::from(device);
        match known_rates(device) {
            Some(rates) => member.with_rates(&rates),
            None => member,
        }
    }

    /// With these measured rates: multiply-adds count, as work on tensors needs them. For other work, see
    /// [`with_rate`](Member::with_rate).
    pub fn with_rates(mut self, rates: &Rates) -> Self {
        self.rate_per_s = Some(rates.f32_multiply_adds_per_s);
        self.host_bytes_per_s = Some(rates.upload_bytes_per_s.min(rates.download_bytes_per_s));
        self
    }

    /// In this machine.
    pub fn on_machine(mut self, machine: impl Into<String>) -> Self {
        self.machine = Some(machine.into());
        self
    }

    /// As a partition of this device.
    pub fn part_of(mut self, device: impl Into<String>) -> Self {
        self.part_of = Some(DeviceId::from(device.into()));
        self
    }

    /// The device itself, where it is at hand.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// The memory that it has: whoever names the same has the same memory.
    pub(crate) fn memory_key(&self) -> (Option<&str>, &str) {
        // A partition of a partition is one of the whole, which its id begins with.
        let whole = self.part_of.as_ref().unwrap_or(&self.id).as_str();
        let whole = if self.part_of.is_some() { whole.split('/').next().unwrap_or(whole) } else { whole };
        (self.machine.as_deref(), whole)
    }

    /// Whether this is the same device as another, in the same machine.
    pub(crate) fn is_same(&self, other: &Member) -> bool {
        self.id == other.id && self.machine == other.machine
    }
}

/// GroupSpec are equal where what is known of them is, whether the devices are at hand or not.
impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
            && self.kind == other.kind
            && self.part_of == other.part_of
            && self.memory_bytes == other.memory_bytes
            && self.compute_units == other.compute_units
            && self.rate_per_s == other.rate_per_s
            && self.score == other.score
            && self.host_bytes_per_s == other.host_bytes_per_s
    }
}

/// The id, after the machine where one is given: `rack-3/h200-0`.
impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.machine {
            Some(machine) => f.pad(&format!("{machine}/{}", self.id)),
            None => f.pad(self.id.as_str()),
        }
    }
}

impl From<&Description> for Member {
    fn from(description: &Description) -> Self {
        Member {
            memory_bytes: description.memory_bytes,
            compute_units: description.compute_units,
            score: Some(ScoreTable::default().score(description).points),
            part_of: description.part_of.clone(),
            ..Member::new(description.id.as_str(), description.kind)
        }
    }
}

/// The device as it describes itself, without any rate: see [`Member::of`].
impl From<&Device> for Member {
    fn from(device: &Device) -> Self {
        Member { device: Some(device.clone()), ..Member::from(device.describe()) }
    }
}

impl From<Device> for Member {
    fn from(device: Device) -> Self {
        Member::from(&device)
    }
}

impl From<&Member> for Member {
    fn from(member: &Member) -> Self {
        member.clone()
    }
}
