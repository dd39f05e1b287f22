//! Rank sets: named groups of a mesh's ranks.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{error::LayoutError, member::Member, statistics::ResourceTotals};
use crate::comm::Generation;

pub(super) const WORLD: &str = "world";

/// A group of one generation of a mesh.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MeshGroup {
    pub(super) name: String,
    /// The axis that it belongs to; `None` for `world` and custom groups.
    pub(super) axis: Option<String>,
    /// The mesh ranks, in the order of their group ranks.
    pub(super) ranks: Vec<usize>,
}

/// A named group of a mesh's ranks. Clones are cheap.
///
/// Each member has a *group rank*, its index in [`ranks`](RankSet::ranks). Once the mesh is reshaped, every method but
/// [`name`](RankSet::name) fails with [`LayoutError::Stale`], because the ranks may be other devices by then.
#[derive(Clone)]
pub struct RankSet {
    pub(super) info: Arc<MeshGroup>,
    pub(super) members: Arc<[Member]>,
    /// The generation that this belongs to, which ends when the mesh is reshaped.
    pub(super) generation: Generation,
    pub(super) current_generation: Arc<AtomicU64>,
}

impl RankSet {
    /// Returns the group's name.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Fails if the mesh was reshaped after this was returned.
    pub fn check(&self) -> Result<(), LayoutError> {
        // The data is immutable and was complete before this was returned: only the number matters.
        let (generation, current) =
            (self.generation.number(), self.current_generation.load(Ordering::Acquire));
        if current == generation {
            return Ok(());
        }
        Err(LayoutError::Stale { group: self.info.name.clone(), generation, current })
    }

    /// Returns the axis that it belongs to; `None` for `world` and custom groups.
    pub fn axis(&self) -> Result<Option<&str>, LayoutError> {
        self.check()?;
        Ok(self.info.axis.as_deref())
    }

    /// Returns its mesh ranks, in the order of their group ranks.
    pub fn ranks(&self) -> Result<&[usize], LayoutError> {
        self.check()?;
        Ok(&self.info.ranks)
    }

    /// Returns the number of members, at least one.
    pub fn size(&self) -> Result<usize, LayoutError> {
        Ok(self.ranks()?.len())
    }

    /// Returns whether a mesh rank is in it.
    pub fn contains(&self, rank: usize) -> Result<bool, LayoutError> {
        Ok(self.ranks()?.contains(&rank))
    }

    /// Returns the group rank of a mesh rank. Fails if it is not in the group.
    pub fn group_rank(&self, rank: usize) -> Result<usize, LayoutError> {
        let found = self.ranks()?.iter().position(|&member| member == rank);
        found.ok_or_else(|| self.not_in_group(format!("rank {rank}")))
    }

    /// Returns the mesh rank of a group rank. Fails if the group has fewer members.
    pub fn rank(&self, group_rank: usize) -> Result<usize, LayoutError> {
        let found = self.ranks()?.get(group_rank).copied();
        found.ok_or_else(|| self.not_in_group(format!("group rank {group_rank}")))
    }

    /// Returns its devices, in the order of their group ranks.
    pub fn members(&self) -> Result<impl ExactSizeIterator<Item = &Member>, LayoutError> {
        Ok(self.ranks()?.iter().map(|&rank| &self.members[rank]))
    }

    /// Returns the sums over its devices.
    pub fn totals(&self) -> Result<ResourceTotals, LayoutError> {
        Ok(ResourceTotals::of(self.members()?))
    }

    fn not_in_group(&self, asked: String) -> LayoutError {
        let MeshGroup { name, ranks, .. } = &*self.info;
        LayoutError::NotInGroup { asked, group: name.clone(), ranks: ranks.clone() }
    }
}

impl fmt::Debug for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankSet")
            .field("info", &self.info)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}
