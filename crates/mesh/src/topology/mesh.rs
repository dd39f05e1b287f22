//! The mesh: a rank for each device, axes over the ranks, and groups of ranks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::Serialize;

use super::{
    axes::{Axes, Axis, Shape},
    error::LayoutError,
    member::Member,
    rank_set::{MeshGroup, RankSet, WORLD},
    statistics::{AxisStatistics, MeshStatistics, ResourceTotals},
};
use crate::comm::Generation;

/// Devices arranged by named axes, each with a rank. [The module](super) describes the groups and their names.
///
/// ```
/// use evener_device::DeviceKind;
/// use evener_mesh::topology::{LayoutError, Member, Mesh, Parallelism};
///
/// let devices = ["a", "b", "c", "d"].map(|id| Member::new(id, DeviceKind::Discrete));
/// let mut mesh = Mesh::new(devices).axes(Parallelism::TensorParallel { degree: 4 })?;
/// let all = mesh.group("tp_0")?;
/// assert_eq!(all.ranks()?, [0, 1, 2, 3]);
///
/// mesh.reshape([("dp", 2), ("tp", 2)])?;
/// assert!(matches!(all.ranks(), Err(LayoutError::Stale { .. })));
/// assert_eq!(mesh.group("dp_tp1")?.ranks()?, [1, 3]);
///
/// let refused = mesh.reshape([("dp", 3)]).unwrap_err();
/// assert_eq!(
///     refused.to_string(),
///     "dp 3 arranges 3 of 4 ranks: rank 3 would be left over; dp 4 would fit"
/// );
/// # Ok::<(), LayoutError>(())
/// ```
#[derive(Debug)]
pub struct Mesh {
    pub(super) members: Arc<[Member]>,
    axes: Axes,
    groups: MeshGroups,
    /// The number of the current generation, which rank sets compare with their own.
    current_generation: Arc<AtomicU64>,
    /// The current generation, which the groups' communicators belong to.
    pub(super) generation: Generation,
}

/// Devices without axes: see [`Mesh::new`].
#[derive(Debug, Clone)]
pub struct MeshBuilder {
    members: Vec<Member>,
}

/// The ranks before and after a rank along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Neighbours {
    /// The rank before; `None` for the first.
    pub previous: Option<usize>,
    /// The rank after; `None` for the last.
    pub next: Option<usize>,
    /// The rank before on a ring: for the first, the last. On an axis of size 1, the rank itself.
    pub ring_previous: usize,
    /// The rank after on a ring: for the last, the first. On an axis of size 1, the rank itself.
    pub ring_next: usize,
}

/// A rank's stage in its pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// The index of the stage, from 0.
    pub index: usize,
    /// Number of stages.
    pub stages: usize,
    /// The rank that its input comes from; `None` for the first stage.
    pub predecessor: Option<usize>,
    /// The rank that its output goes to; `None` for the last stage.
    pub successor: Option<usize>,
}

impl Stage {
    /// Returns whether this is the first stage.
    pub fn is_first(&self) -> bool {
        self.predecessor.is_none()
    }

    /// Returns whether this is the last stage.
    pub fn is_last(&self) -> bool {
        self.successor.is_none()
    }
}

impl MeshBuilder {
    /// Arranges the devices by axes, innermost last, or by a [`Parallelism`](super::Parallelism). Fails if there is no
    /// device, if one is there twice, or if the sizes do not fit the number of devices.
    pub fn axes(self, shape: impl Into<Shape>) -> Result<Mesh, LayoutError> {
        let members = self.members;
        if members.is_empty() {
            return Err(LayoutError::NoDevices);
        }
        let mut seen = HashMap::new();
        for (second, member) in members.iter().enumerate() {
            if let Some(first) = seen.insert((&member.machine, &member.id), second) {
                return Err(LayoutError::DuplicateDevice { device: member.to_string(), first, second });
            }
        }
        let axes = Axes::new(shape.into(), members.len())?;
        let groups = MeshGroups::of(&axes, members.len());
        Ok(Mesh {
            members: members.into(),
            axes,
            groups,
            current_generation: Arc::default(),
            generation: Generation::new(0),
        })
    }
}

impl Mesh {
    /// Takes the devices in the order of their ranks, to be arranged by [`MeshBuilder::axes`].
    // A mesh needs axes, which the builder takes.
    #[allow(clippy::new_ret_no_self)]
    pub fn new<M: Into<Member>>(members: impl IntoIterator<Item = M>) -> MeshBuilder {
        MeshBuilder { members: members.into_iter().map(Into::into).collect() }
    }

    /// Arranges the same devices by another shape, as in a new mesh: custom groups are gone, and older rank sets and
    /// their [communicators](Mesh::connect) fail. If the shape does not fit, nothing changes.
    ///
    /// Every rank reshapes its mesh. Ranks that wait in a group for one that has reshaped get an error at once.
    pub fn reshape(&mut self, shape: impl Into<Shape>) -> Result<(), LayoutError> {
        let axes = Axes::new(shape.into(), self.world_size())?;
        self.arrange(self.members.clone(), axes);
        Ok(())
    }

    /// Replaces the devices and the axes, which fit, and starts the next generation.
    pub(super) fn arrange(&mut self, members: Arc<[Member]>, axes: Axes) {
        self.groups = MeshGroups::of(&axes, members.len());
        (self.members, self.axes) = (members, axes);
        let now = self.current_generation.fetch_add(1, Ordering::AcqRel) + 1;
        std::mem::replace(&mut self.generation, Generation::new(now)).end();
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.members.len()
    }

    /// Returns the devices, in the order of their ranks.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns a rank's device.
    pub fn member(&self, rank: usize) -> Result<&Member, LayoutError> {
        self.members.get(rank).ok_or(LayoutError::UnknownRank { rank, world: self.world_size() })
    }

    /// Returns the axes, outermost first.
    pub fn axes(&self) -> &[Axis] {
        self.axes.as_slice()
    }

    /// Returns a rank's coordinates, in the order of [`axes`](Mesh::axes).
    pub fn coordinates(&self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        self.member(rank)?;
        Ok((0..self.axes().len()).map(|axis| self.axes.coordinate(rank, axis)).collect())
    }

    /// Returns a rank's coordinate along an axis.
    pub fn coordinate(&self, rank: usize, axis: &str) -> Result<usize, LayoutError> {
        self.member(rank)?;
        Ok(self.axes.coordinate(rank, self.axes.index(axis)?))
    }

    /// Returns the rank at these coordinates, in the order of [`axes`](Mesh::axes).
    pub fn rank_at(&self, coordinates: &[usize]) -> Result<usize, LayoutError> {
        self.axes.rank(coordinates).ok_or_else(|| LayoutError::UnknownCoordinates {
            coordinates: coordinates.to_vec(),
            axes: self.axes().to_vec(),
        })
    }

    /// The ranks before and after a rank along an axis.
    pub fn neighbours(&self, rank: usize, axis: &str) -> Result<Neighbours, LayoutError> {
        let at = self.coordinate(rank, axis)?;
        let axis = self.axes.index(axis)?;
        let (size, stride) = (self.axes()[axis].size, self.axes.stride(axis));
        let first = rank - at * stride;
        let rank_of = |coordinate: usize| first + coordinate * stride;
        Ok(Neighbours {
            previous: (at > 0).then(|| rank - stride),
            next: (at + 1 < size).then(|| rank + stride),
            ring_previous: rank_of((at + size - 1) % size),
            ring_next: rank_of((at + 1) % size),
        })
    }

    /// Returns a rank's stage in its pipeline. Fails if the mesh has no axis `pp`.
    pub fn stage(&self, rank: usize) -> Result<Stage, LayoutError> {
        let Neighbours { previous, next, .. } = self.neighbours(rank, "pp")?;
        let stages = self.axes()[self.axes.index("pp")?].size;
        Ok(Stage { index: self.coordinate(rank, "pp")?, stages, predecessor: previous, successor: next })
    }

    /// Returns the group with this name.
    pub fn group(&self, name: &str) -> Result<RankSet, LayoutError> {
        match self.groups.by_name.get(name) {
            Some(&index) => Ok(self.handle(&self.groups.list[index])),
            None => Err(LayoutError::UnknownGroup {
                name: name.into(),
                groups: self.groups.list.iter().map(|group| group.name.clone()).collect(),
            }),
        }
    }

    /// Returns a rank's group along an axis.
    pub fn group_of(&self, rank: usize, axis: &str) -> Result<RankSet, LayoutError> {
        let at = self.coordinate(rank, axis)?;
        let axis = self.axes.index(axis)?;
        let first = rank - at * self.axes.stride(axis);
        Ok(self.handle(&self.groups.list[self.groups.of_axes[axis][&first]]))
    }

    /// Returns all groups: `world`, those of the axes, outermost first, and the custom ones in the order of their
    /// creation.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = RankSet> + '_ {
        self.groups.list.iter().map(|info| self.handle(info))
    }

    /// Returns the groups of an axis, in the order of their first ranks.
    pub fn groups_of_axis(&self, axis: &str) -> Result<Vec<RankSet>, LayoutError> {
        let groups = &self.groups.of_axes[self.axes.index(axis)?];
        Ok(groups.values().map(|&index| self.handle(&self.groups.list[index])).collect())
    }

    /// Adds a custom group. Its group ranks are in the order of `ranks`. Fails if the name is taken, an axis's or
    /// invalid, or if there are no ranks, unknown ones, or one twice.
    pub fn add_group(
        &mut self,
        name: impl Into<String>,
        ranks: impl IntoIterator<Item = usize>,
    ) -> Result<RankSet, LayoutError> {
        let (name, ranks) = (name.into(), ranks.into_iter().collect::<Vec<_>>());
        let world = self.world_size();
        if name == WORLD {
            return Err(LayoutError::ReservedName);
        }
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(LayoutError::InvalidGroupName { name });
        }
        if self.axes.index(&name).is_ok() {
            return Err(LayoutError::GroupNamedAsAxis { name });
        }
        if let Some(&taken) = self.groups.by_name.get(&name) {
            return Err(LayoutError::DuplicateGroup { name, ranks: self.groups.list[taken].ranks.clone() });
        }
        if ranks.is_empty() {
            return Err(LayoutError::EmptyGroup { name, world });
        }
        let mut seen = vec![false; world];
        for &rank in &ranks {
            match seen.get_mut(rank) {
                None => return Err(LayoutError::GroupOutOfRange { name, rank, world }),
                Some(true) => return Err(LayoutError::DuplicateRank { name, rank }),
                Some(seen) => *seen = true,
            }
        }
        let index = self.groups.add(name, None, ranks);
        Ok(self.handle(&self.groups.list[index]))
    }

    /// Returns the sums over all devices.
    pub fn totals(&self) -> ResourceTotals {
        ResourceTotals::of(&*self.members)
    }

    /// Returns statistics of the mesh.
    pub fn statistics(&self) -> MeshStatistics {
        let mut kinds = BTreeMap::new();
        for member in &*self.members {
            *kinds.entry(member.kind).or_insert(0) += 1;
        }
        let axes = self.axes().iter().zip(&self.groups.of_axes).map(|(axis, groups)| AxisStatistics {
            name: axis.name.clone(),
            size: axis.size,
            groups: groups.len(),
        });
        let axes: Vec<_> = axes.collect();
        let groups = self.groups.list.len();
        let custom_groups = groups - 1 - axes.iter().map(|axis| axis.groups).sum::<usize>();
        let reshapes = self.current_generation.load(Ordering::Acquire);
        MeshStatistics { totals: self.totals(), kinds, axes, groups, custom_groups, reshapes }
    }

    fn handle(&self, info: &Arc<MeshGroup>) -> RankSet {
        RankSet {
            info: info.clone(),
            members: self.members.clone(),
            generation: self.generation.clone(),
            current_generation: self.current_generation.clone(),
        }
    }
}

/// The groups of one generation of a mesh.
#[derive(Debug)]
struct MeshGroups {
    list: Vec<Arc<MeshGroup>>,
    by_name: HashMap<String, usize>,
    /// For each axis, the indices of its groups in the list, by their first rank.
    of_axes: Vec<BTreeMap<usize, usize>>,
}

impl MeshGroups {
    fn of(axes: &Axes, world: usize) -> Self {
        let mut groups = MeshGroups { list: Vec::new(), by_name: HashMap::new(), of_axes: Vec::new() };
        groups.add(WORLD.into(), None, (0..world).collect());
        for (index, axis) in axes.as_slice().iter().enumerate() {
            let mut of_axis = BTreeMap::new();
            for (name, ranks) in axes.groups(index) {
                let first = ranks[0];
                of_axis.insert(first, groups.add(name, Some(axis.name.clone()), ranks));
            }
            groups.of_axes.push(of_axis);
        }
        groups
    }

    fn add(&mut self, name: String, axis: Option<String>, ranks: Vec<usize>) -> usize {
        let index = self.list.len();
        self.by_name.insert(name.clone(), index);
        self.list.push(Arc::new(MeshGroup { name, axis, ranks }));
        index
    }
}
