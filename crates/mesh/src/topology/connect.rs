//! A mesh's groups as groups that can talk: where topology meets collectives.

use super::{axes::Axes, group::Group, mesh::Mesh};
use crate::comm::{self, CommError, Members};

impl Mesh {
    /// This rank's communicator of a group: of `tp`, `pp` or any other axis, its own group along it; of any other name,
    /// the group of that name, as `world`, `dp_pp0_tp1` or a custom one. It has the group's name, and the carrier's
    /// timeout.
    ///
    /// The carrier is what the mesh's ranks are on: the mesh's rank 0 is its first, and so on. Usually that is
    /// [`Comm::world`](comm::Comm::world). Every member connects, without waiting for the others; where one connects to
    /// a group more than once, or to several meshes, the others do so in the same order.
    ///
    /// Once the mesh is reshaped, everything that the communicator is asked fails with [`CommError::Stale`]. Fails where
    /// the mesh has no such group, where this rank is not in it, and where the carrier has more or fewer ranks than the
    /// mesh.
    ///
    /// ```
    /// use evener_device::DeviceKind;
    /// use evener_mesh::{Member, Mesh, comm::{Comm, CommError, Operation}};
    ///
    /// let ranks: Vec<_> = Comm::local(4)
    ///     .into_iter()
    ///     .map(|comm| {
    ///         std::thread::spawn(move || {
    ///             let devices = (0..4).map(|index| Member::new(format!("gpu-{index}"), DeviceKind::Discrete));
    ///             let mut mesh = Mesh::new(devices).axes([("dp", 2), ("tp", 2)])?;
    ///             let tp = mesh.connect(comm.world(), "tp")?;
    ///             let mut sum = [comm.rank() as u32];
    ///             tp.all_reduce(&mut sum, Operation::Sum)?;
    ///             comm.world().barrier()?;
    ///
    ///             mesh.reshape([("dp", 4)])?;
    ///             assert!(matches!(tp.barrier(), Err(CommError::Stale { .. })));
    ///             let dp = mesh.connect(comm.world(), "dp")?;
    ///             dp.all_reduce(&mut sum, Operation::Sum)?;
    ///             Ok::<_, CommError>((tp.name().to_owned(), sum))
    ///         })
    ///     })
    ///     .collect();
    /// let ended: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<_, _>>()?;
    /// assert_eq!(ended[0], ("tp_dp0".to_owned(), [1 + 1 + 5 + 5]));
    /// assert_eq!(ended[3].0, "tp_dp1");
    /// # Ok::<(), CommError>(())
    /// ```
    pub fn connect(&self, carrier: &comm::Group, group: &str) -> comm::Result<comm::Group> {
        let group = match self.axes().iter().any(|axis| axis.name == group) {
            true => self.group_of(self.rank_on(carrier)?, group)?,
            false => self.group(group)?,
        };
        group.connect(carrier)
    }

    /// Goes on without some ranks, which died, say: takes them out of the carrier and their devices out of the mesh, and
    /// arranges the others by this shape. Gives the new carrier; groups from before fail. Ranks are numbers in the world,
    /// as [`CommError::ranks`] gives them. In the mesh those that are left have new ranks, from 0 without a gap.
    ///
    /// Every rank that is left does so, with the same ranks left out. Where the shape does not fit, nothing changes.
    ///
    /// ```
    /// use evener_device::DeviceKind;
    /// use evener_mesh::{Member, Mesh, comm::{Comm, CommError, Operation}};
    ///
    /// let mut comms = Comm::local(3);
    /// drop(comms.remove(1));
    /// let ranks = comms.into_iter().map(|comm| {
    ///     std::thread::spawn(move || {
    ///         let devices = (0..3).map(|index| Member::new(format!("gpu-{index}"), DeviceKind::Discrete));
    ///         let mut mesh = Mesh::new(devices).axes([("dp", 3)])?;
    ///         let error = mesh.connect(comm.world(), "dp")?.barrier().unwrap_err();
    ///         assert_eq!(error.ranks(), [1]);
    ///
    ///         let carrier = mesh.rebuild(comm.world(), error.ranks(), [("dp", 2)])?;
    ///         let mut sum = [comm.rank() as u32];
    ///         mesh.connect(&carrier, "dp")?.all_reduce(&mut sum, Operation::Sum)?;
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
        carrier: &comm::Group,
        without: &[usize],
        shape: impl Into<super::Shape>,
    ) -> comm::Result<comm::Group> {
        self.check_carrier(carrier)?;
        let left = carrier.ranks().iter().zip(&*self.members).filter(|(rank, _)| !without.contains(rank));
        let (ranks, members): (Vec<_>, Vec<_>) = left.map(|(rank, member)| (*rank, member.clone())).unzip();
        if members.is_empty() {
            return Err(super::LayoutError::NoDevices.into());
        }
        let axes = Axes::new(shape.into(), members.len())?;
        // Where the carrier is a group of this mesh, its successor is not: it outlasts this arrangement.
        let rest =
            carrier.make(Members::new(carrier.name(), ranks).all_terms(&carrier.terms_but(&self.term)))?;
        self.arrange(members.into(), axes);
        Ok(rest)
    }

    /// The mesh's rank that this process, or thread, is.
    fn rank_on(&self, carrier: &comm::Group) -> comm::Result<usize> {
        self.check_carrier(carrier)?;
        carrier.rank().ok_or_else(|| carrier.stranger())
    }

    fn check_carrier(&self, carrier: &comm::Group) -> comm::Result<()> {
        check_size(self.world_size(), carrier)
    }
}

impl Group {
    /// This rank's communicator of the group: see [`Mesh::connect`].
    pub fn connect(&self, carrier: &comm::Group) -> comm::Result<comm::Group> {
        let Ok(ranks) = self.ranks() else {
            let (group, generation) = (self.name().to_owned(), self.term.generation());
            return Err(CommError::Stale { group, generation });
        };
        check_size(self.members.len(), carrier)?;
        let ranks: Vec<_> = ranks.iter().map(|rank| carrier.ranks()[*rank]).collect();
        let members = Members::new(self.name(), ranks).all_terms(carrier.terms()).term(&self.term);
        let group = carrier.make(members)?;
        if group.rank().is_none() { Err(group.stranger()) } else { Ok(group) }
    }
}

fn check_size(mesh: usize, carrier: &comm::Group) -> comm::Result<()> {
    if carrier.size() == mesh {
        return Ok(());
    }
    let (group, carries) = (carrier.name().to_owned(), carrier.size());
    let detail =
        format!("it has {carries} ranks, and the mesh that it is to carry {mesh}: they must be as many");
    Err(CommError::BadGroup { group, detail })
}
