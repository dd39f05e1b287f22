//! Meshes: devices arranged by named axes, with a rank each, and groups of ranks.
//!
//! A [`Mesh`] has one rank per device, from 0. Each axis (`dp`, `pp`, `tp`, or any name) gives every rank a coordinate;
//! the last axis is innermost, so its coordinate changes from one rank to the next.
//!
//! # Groups and their names
//! The groups of an axis are the sets of ranks that differ only in that axis's coordinate. So the groups of an axis
//! partition the ranks, and every rank is in exactly one group of every axis: on an axis of size 1, in a group of one.
//!
//! | group | name | example |
//! | --- | --- | --- |
//! | every rank | `world` | |
//! | of an axis | the axis, `_`, then every other axis with its coordinate, outermost first, joined by `_` | `tp_dp0_pp1`, `pp_dp0_tp1`, `dp_pp0_tp1` |
//! | of the only axis of a mesh | the axis and `_0` | `tp_0` |
//! | a custom group | the name that it was created with | `odd` |
//!
//! A name depends on axes and coordinates, never on sizes: with axes `dp`, `pp` and `tp`, the group `tp_dp0_pp0` exists
//! even if `dp` has size 1. [`Mesh::groups`] lists all groups, [`Mesh::group_of`] finds a rank's group by axis.
//!
//! ```
//! use evener_device::DeviceKind;
//! use evener_mesh::topology::{Member, Mesh};
//!
//! let devices = (0..16).map(|index| Member::new(format!("gpu-{index}"), DeviceKind::Discrete));
//! let mesh = Mesh::new(devices).axes([("dp", 2), ("pp", 2), ("tp", 4)])?;
//! assert_eq!(mesh.group("tp_dp0_pp1")?.ranks()?, [4, 5, 6, 7]);
//! assert_eq!(mesh.group("pp_dp0_tp1")?.ranks()?, [1, 5]);
//! assert_eq!(mesh.group_of(9, "dp")?.name(), "dp_pp0_tp1");
//! assert_eq!(mesh.stage(6)?.predecessor, Some(2));
//! # Ok::<(), evener_mesh::topology::LayoutError>(())
//! ```

mod axes;
mod connect;
mod error;
mod member;
mod mesh;
mod rank_set;
mod statistics;
#[cfg(test)]
mod test;

pub use self::{
    axes::{Axis, Parallelism, Shape},
    error::LayoutError,
    member::Member,
    mesh::{Mesh, MeshBuilder, Neighbours, Stage},
    rank_set::RankSet,
    statistics::{AxisStatistics, MeshStatistics, ResourceTotals},
};
