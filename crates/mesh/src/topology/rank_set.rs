//! A handle on a named subset of a mesh's ranks.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{error::LayoutError, member::Member, statistics::ResourceTotals};
use crate::comm::Generation;

/// The name of the group of all ranks.
pub(super) const WORLD: &str = "world";

/// What a group is, for as long as its mesh keeps its shape.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GroupInfo {
    pub(super) name: String,
    /// The axis that it belongs to; nothing for `world` and custom groups.
    pub(super) axis: Option<String>,
    /// The mesh's ranks, in the order of the group's own.
    pub(super) ranks: Vec<usize>,
}

/// A handle on a named subset of a mesh's ranks. Clones are cheap.
///
/// GroupSpec have a number within the group, their *group rank*, in the order of [`ranks`](RankSet::ranks). Once the mesh is
/// reshaped, every call but [`name`](RankSet::name) fails with [`LayoutError::Stale`]: whoever kept the handle would
/// otherwise talk to the wrong devices.
#[derive(Clone)]
pub struct RankSet {
    pub(super) info: Arc<GroupInfo>,
    pub(super) members: Arc<[Member]>,
    /// The arrangement that this belongs to: it ends when the mesh gets another.
    pub(super) generation: Generation,
    /// The arrangement that the mesh has now.
    pub(super) current_generation: Arc<AtomicU64>,
}

impl RankSet {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Fails where the mesh was reshaped after this handle was made.
    pub fn check(&self) -> Result<(), LayoutError> {
        // What the handle reads was complete before it was made, and is never changed: the number alone counts.
        let (generation, current) =
            (self.generation.number(), self.current_generation.load(Ordering::Acquire));
        if current == generation {
            return Ok(());
        }
        Err(LayoutError::Stale { group: self.info.name.clone(), generation, current })
    }

    /// The axis that it belongs to; nothing for `world` and for custom groups.
    pub fn axis(&self) -> Result<Option<&str>, LayoutError> {
        self.check()?;
        Ok(self.info.axis.as_deref())
    }

    /// The mesh's ranks in it, in the order of their group ranks.
    pub fn ranks(&self) -> Result<&[usize], LayoutError> {
        self.check()?;
        Ok(&self.info.ranks)
    }

    /// How many members it has: at least one.
    pub fn size(&self) -> Result<usize, LayoutError> {
        Ok(self.ranks()?.len())
    }

    /// Whether a rank of the mesh is in it.
    pub fn contains(&self, rank: usize) -> Result<bool, LayoutError> {
        Ok(self.ranks()?.contains(&rank))
    }

    /// The group rank of a rank of the mesh. Fails where it is not in the group.
    pub fn group_rank(&self, rank: usize) -> Result<usize, LayoutError> {
        let found = self.ranks()?.iter().position(|&member| member == rank);
        found.ok_or_else(|| self.not_in_group(format!("rank {rank}")))
    }

    /// The mesh's rank of a member by its group rank. Fails where the group has fewer members.
    pub fn rank(&self, group_rank: usize) -> Result<usize, LayoutError> {
        let found = self.ranks()?.get(group_rank).copied();
        found.ok_or_else(|| self.not_in_group(format!("group rank {group_rank}")))
    }

    /// Its devices, in the order of their group ranks.
    pub fn members(&self) -> Result<impl ExactSizeIterator<Item = &Member>, LayoutError> {
        Ok(self.ranks()?.iter().map(|&rank| &self.members[rank]))
    }

    /// What its devices have together.
    pub fn totals(&self) -> Result<ResourceTotals, LayoutError> {
        Ok(ResourceTotals::of(self.members()?))
    }

    fn not_in_group(&self, asked: String) -> LayoutError {
        let GroupInfo { name, ranks, .. } = &*self.info;
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
