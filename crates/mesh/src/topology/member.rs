//! The devices of a mesh, real or planned.

use evener_device::{Description, Device, DeviceId, DeviceKind, Rates, ScoreTable, load_rates};
use serde::Serialize;

/// One device of a mesh, as layout and placement see it. It comes from a real device or its description, or describes a
/// planned one. `None` means unknown.
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
    /// Its id on its machine.
    pub id: DeviceId,
    /// Its machine; `None` for this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The kind of hardware.
    pub kind: DeviceKind,
    /// The device that it is a partition of. Partitions of one device share its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part_of: Option<DeviceId>,
    /// Its total memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Its compute units.
    pub compute_units: Option<u32>,
    /// Its measured rate, in work per second. The unit of work is free, but must be the same for all members, and that
    /// of the layers' costs.
    pub rate_per_s: Option<f64>,
    /// Its static score, used if not all members were measured.
    pub score: Option<f64>,
    /// Bytes per second to and from its host's memory, in the slower direction.
    pub host_bytes_per_s: Option<f64>,
    #[serde(skip)]
    device: Option<Device>,
}

/// Generates methods that set the fields of a member.
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
    /// Sets the rate, in work per second.
    with_rate rate_per_s: f64;
    /// Sets the score.
    with_score score: f64;
    /// Sets the memory.
    with_memory_bytes memory_bytes: u64;
    /// Sets the number of compute units.
    with_compute_units compute_units: u32;
    /// Sets the bandwidth to its host's memory.
    with_host_bytes_per_s host_bytes_per_s: f64;
}

impl Member {
    /// Describes a device of which only the id and the kind are known.
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

    /// Describes a device, with its stored rates if it was measured.
    pub fn of(device: &Device) -> Self {
        let member = Member::from(device);
        match load_rates(device) {
            Some(rates) => member.with_rates(&rates),
            None => member,
        }
    }

    /// Sets the rate and the bandwidth from measured rates. The rate is that of multiply-adds, as for work on tensors;
    /// for other work see [`with_rate`](Member::with_rate).
    pub fn with_rates(mut self, rates: &Rates) -> Self {
        self.rate_per_s = Some(rates.f32_multiply_adds_per_s);
        self.host_bytes_per_s = Some(rates.upload_bytes_per_s.min(rates.download_bytes_per_s));
        self
    }

    /// Sets the machine.
    pub fn on_machine(mut self, machine: impl Into<String>) -> Self {
        self.machine = Some(machine.into());
        self
    }

    /// Makes it a partition of a device.
    pub fn part_of(mut self, device: impl Into<String>) -> Self {
        self.part_of = Some(DeviceId::from(device.into()));
        self
    }

    /// Returns the device, if it is a real one.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Identifies its memory: members with equal keys share it.
    pub(crate) fn memory_key(&self) -> (Option<&str>, &str) {
        // A partition of a partition shares the memory of the whole device, whose id its own starts with.
        let whole = self.part_of.as_ref().unwrap_or(&self.id).as_str();
        let whole = if self.part_of.is_some() { whole.split('/').next().unwrap_or(whole) } else { whole };
        (self.machine.as_deref(), whole)
    }

    pub(crate) fn is_same(&self, other: &Member) -> bool {
        self.id == other.id && self.machine == other.machine
    }
}

/// Compares what is known of the devices, real or planned.
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

/// Writes the id, after the machine if there is one: `rack-3/h200-0`.
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

/// Describes a device without any rate: see [`Member::of`].
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
