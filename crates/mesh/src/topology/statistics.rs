//! Statistics of a mesh, and sums over its devices.

use std::collections::{BTreeMap, HashSet};

use evener_device::DeviceKind;
use serde::Serialize;

use super::member::Member;

/// Sums over devices. Devices with an unknown value are left out and counted.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ResourceTotals {
    /// Number of devices.
    pub devices: usize,
    /// Their memory in bytes; memory that partitions share counts once.
    pub memory_bytes: u64,
    /// Devices with unknown memory.
    pub memory_unknown: usize,
    /// Their compute units.
    pub compute_units: u64,
    /// Devices with unknown compute units.
    pub compute_units_unknown: usize,
    /// Their measured rates, in work per second.
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

/// Statistics of a mesh.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeshStatistics {
    /// The sums over all devices.
    pub totals: ResourceTotals,
    /// Number of devices of each kind.
    pub kinds: BTreeMap<DeviceKind, usize>,
    /// The axes, outermost first.
    pub axes: Vec<AxisStatistics>,
    /// Number of groups: `world`, those of the axes and the custom ones.
    pub groups: usize,
    /// Number of custom groups.
    pub custom_groups: usize,
    /// Number of reshapes.
    pub reshapes: u64,
}

/// Statistics of an axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AxisStatistics {
    /// Its name.
    pub name: String,
    /// Number of ranks of each of its groups.
    pub size: usize,
    /// Number of its groups.
    pub groups: usize,
}
