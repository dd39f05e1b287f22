//! Communicators for the groups of a mesh.

use super::{axes::Axes, mesh::Mesh, rank_set::RankSet};
use crate::comm::{self, CommError, GroupSpec};

impl Mesh {
    /// Returns this rank's communicator of a group. If `group` is an axis, for example `tp`, that is this rank's group
    /// along it; otherwise the group of that name: `world`, `dp_pp0_tp1` or a custom one. It has the group's name, and
    /// the parent's timeout.
    ///
    /// The parent communicator connects all ranks of the mesh, in order; usually it is
    /// [`World::communicator`](comm::World::communicator). Every member connects, without waiting for the others; if a
    /// rank connects to a group more than once, or to several meshes, the others do so in the same order.
    ///
    /// Once the mesh is reshaped, all calls of the communicator fail with [`CommError::Stale`]. Fails if the mesh has
    /// no such group, if this rank is not in it, or if the parent and the mesh have different numbers of ranks.
    ///
    /// ```
    /// use evener_device::DeviceKind;
    /// use evener_mesh::{Member, Mesh, comm::{CommError, ReduceOp, World}};
    ///
    /// let ranks: Vec<_> = World::local(4)
    ///     .into_iter()
    ///     .map(|world| {
    ///         std::thread::spawn(move || {
    ///             let devices = (0..4).map(|index| Member::new(format!("gpu-{index}"), DeviceKind::Discrete));
    ///             let mut mesh = Mesh::new(devices).axes([("dp", 2), ("tp", 2)])?;
    ///             let tp = mesh.connect(world.communicator(), "tp")?;
    ///             let mut sum = [world.rank() as u32];
    ///             tp.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///             world.communicator().barrier()?;
    ///
    ///             mesh.reshape([("dp", 4)])?;
    ///             assert!(matches!(tp.barrier(), Err(CommError::Stale { .. })));
    ///             let dp = mesh.connect(world.communicator(), "dp")?;
    ///             dp.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///             Ok::<_, CommError>((tp.name().to_owned(), sum))
    ///         })
    ///     })
    ///     .collect();
    /// let ended: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<_, _>>()?;
    /// assert_eq!(ended[0], ("tp_dp0".to_owned(), [1 + 1 + 5 + 5]));
    /// assert_eq!(ended[3].0, "tp_dp1");
    /// # Ok::<(), CommError>(())
    /// ```
    pub fn connect(&self, parent: &comm::Communicator, group: &str) -> comm::Result<comm::Communicator> {
        let group = match self.axes().iter().any(|axis| axis.name == group) {
            true => self.group_of(self.rank_in(parent)?, group)?,
            false => self.group(group)?,
        };
        group.connect(parent)
    }

    /// Removes ranks, for example dead ones, from the parent communicator and their devices from the mesh, and arranges
    /// the other devices by `shape`. Returns the new parent communicator; older groups fail. `without` has world ranks,
    /// as [`CommError::ranks`] returns them. The remaining devices get new mesh ranks, from 0 without a gap.
    ///
    /// Every remaining rank calls this with the same ranks left out. If the shape does not fit, nothing changes.
    ///
    /// ```
    /// use evener_device::DeviceKind;
    /// use evener_mesh::{Member, Mesh, comm::{CommError, ReduceOp, World}};
    ///
    /// let mut worlds = World::local(3);
    /// drop(worlds.remove(1));
    /// let ranks = worlds.into_iter().map(|world| {
    ///     std::thread::spawn(move || {
    ///         let devices = (0..3).map(|index| Member::new(format!("gpu-{index}"), DeviceKind::Discrete));
    ///         let mut mesh = Mesh::new(devices).axes([("dp", 3)])?;
    ///         let error = mesh.connect(world.communicator(), "dp")?.barrier().unwrap_err();
    ///         assert_eq!(error.ranks(), [1]);
    ///
    ///         let parent = mesh.rebuild(world.communicator(), error.ranks(), [("dp", 2)])?;
    ///         let mut sum = [world.rank() as u32];
    ///         mesh.connect(&parent, "dp")?.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///         Ok::<_, CommError>(sum)
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap()?, [2]);
    /// }
    /// # Ok::<(), CommError>(())
    /// ```
    pub fn rebuild(
        &mut self,
        parent: &comm::Communicator,
        without: &[usize],
        shape: impl Into<super::Shape>,
    ) -> comm::Result<comm::Communicator> {
        self.check_parent(parent)?;
        let left = parent.ranks().iter().zip(&*self.members).filter(|(rank, _)| !without.contains(rank));
        let (ranks, members): (Vec<_>, Vec<_>) = left.map(|(rank, member)| (*rank, member.clone())).unzip();
        if members.is_empty() {
            return Err(super::LayoutError::NoDevices.into());
        }
        let axes = Axes::new(shape.into(), members.len())?;
        // If the parent is a group of this mesh, the new one must outlive the mesh's current generation.
        let rest = parent.make(
            GroupSpec::new(parent.name(), ranks)
                .all_generations(&parent.generations_except(&self.generation)),
        )?;
        self.arrange(members.into(), axes);
        Ok(rest)
    }

    fn rank_in(&self, parent: &comm::Communicator) -> comm::Result<usize> {
        self.check_parent(parent)?;
        parent.rank().ok_or_else(|| parent.not_a_member())
    }

    fn check_parent(&self, parent: &comm::Communicator) -> comm::Result<()> {
        check_size(self.world_size(), parent)
    }
}

impl RankSet {
    /// Returns this rank's communicator of the group: see [`Mesh::connect`].
    pub fn connect(&self, parent: &comm::Communicator) -> comm::Result<comm::Communicator> {
        let Ok(ranks) = self.ranks() else {
            let (group, generation) = (self.name().to_owned(), self.generation.number());
            return Err(CommError::Stale { group, generation });
        };
        check_size(self.members.len(), parent)?;
        let ranks: Vec<_> = ranks.iter().map(|rank| parent.ranks()[*rank]).collect();
        let members = GroupSpec::new(self.name(), ranks)
            .all_generations(parent.generations())
            .generation(&self.generation);
        let group = parent.make(members)?;
        if group.rank().is_none() { Err(group.not_a_member()) } else { Ok(group) }
    }
}

fn check_size(mesh: usize, parent: &comm::Communicator) -> comm::Result<()> {
    if parent.size() == mesh {
        return Ok(());
    }
    let (group, ranks) = (parent.name().to_owned(), parent.size());
    let detail = format!(
        "it has {ranks} ranks, but the mesh has {mesh}: pass a communicator of all ranks of the mesh"
    );
    Err(CommError::InvalidGroup { group, detail })
}
