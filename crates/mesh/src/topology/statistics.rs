//! What a mesh, or a group of it, is in numbers.

use std::collections::{BTreeMap, HashSet};

use evener_device::DeviceKind;
use serde::Serialize;

use super::member::Member;

/// What devices have together. What is not known of one is left out, never made up, and counted.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ResourceTotals {
    /// How many devices there are.
    pub devices: usize,
    /// Their memory, in bytes; what partitions of one device share counts once.
    pub memory_bytes: u64,
    /// Devices whose memory is not known.
    pub memory_unknown: usize,
    /// Their compute units.
    pub compute_units: u64,
    /// Devices whose compute units are not known.
    pub compute_units_unknown: usize,
    /// Their measured rates, in work a second.
    pub rate_per_s: f64,
    /// Devices that were not measured.
    pub rate_unknown: usize,
}

impl ResourceTotals {
    pub(super) fn of<'a>(members: impl IntoIterator<Item = &'a Member>) -> Self {
        let mut seen = HashSet::new();
        members.into_iter().fold(ResourceTotals::default(), |all, member| ResourceTotals {
            devices: all.devices + 1,
            memory_bytes: match member.memory_bytes {
                Some(bytes) if seen.insert(member.memory_key()) => all.memory_bytes.saturating_add(bytes),
                _ => all.memory_bytes,
            },
            memory_unknown: all.memory_unknown + usize::from(member.memory_bytes.is_none()),
            compute_units: all.compute_units + u64::from(member.compute_units.unwrap_or(0)),
            compute_units_unknown: all.compute_units_unknown + usize::from(member.compute_units.is_none()),
            rate_per_s: all.rate_per_s + member.rate_per_s.unwrap_or(0.0),
            rate_unknown: all.rate_unknown + usize::from(member.rate_per_s.is_none()),
        })
    }
}

/// A mesh in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeshStatistics {
    /// What all devices have together.
    pub totals: ResourceTotals,
    /// How many devices there are of each kind.
    pub kinds: BTreeMap<DeviceKind, usize>,
    /// The axes, outermost first.
    pub axes: Vec<AxisStatistics>,
    /// How many groups there are: `world`, those of the axes and the custom ones.
    pub groups: usize,
    /// How many of them are custom.
    pub custom_groups: usize,
    /// How often the mesh was reshaped.
    pub reshapes: u64,
}

/// An axis in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AxisStatistics {
    /// Its name.
    pub name: String,
    /// How many ranks each of its groups has.
    pub size: usize,
    /// How many groups it has.
    pub groups: usize,
}
