//! A handle on a named subset of a mesh's ranks.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{error::LayoutError, member::Member, statistics::Totals};
use crate::comm::Term;

/// The name of the group of all ranks.
pub(super) const WORLD: &str = "world";

/// What a group is, for as long as its mesh keeps its shape.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) name: String,
    /// The axis that it belongs to; nothing for `world` and custom groups.
    pub(super) axis: Option<String>,
    /// The mesh's ranks, in the order of the group's own.
    pub(super) ranks: Vec<usize>,
}

/// A handle on a named subset of a mesh's ranks. Clones are cheap.
///
/// Members have a number within the group, their *group rank*, in the order of [`ranks`](Group::ranks). Once the mesh is
/// reshaped, every call but [`name`](Group::name) fails with [`LayoutError::Stale`]: whoever kept the handle would
/// otherwise talk to the wrong devices.
#[derive(Clone)]
pub struct Group {
    pub(super) facts: Arc<Facts>,
    pub(super) members: Arc<[Member]>,
    /// The arrangement that this belongs to: it ends when the mesh gets another.
    pub(super) term: Term,
    /// The arrangement that the mesh has now.
    pub(super) now: Arc<AtomicU64>,
}

impl Group {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.facts.name
    }

    /// Fails where the mesh was reshaped after this handle was made.
    pub fn check(&self) -> Result<(), LayoutError> {
        // What the handle reads was complete before it was made, and is never changed: the number alone counts.
        let (made, now) = (self.term.generation(), self.now.load(Ordering::Acquire));
        if now == made {
            return Ok(());
        }
        Err(LayoutError::Stale { group: self.facts.name.clone(), made, now })
    }

    /// The axis that it belongs to; nothing for `world` and for custom groups.
    pub fn axis(&self) -> Result<Option<&str>, LayoutError> {
        self.check()?;
        Ok(self.facts.axis.as_deref())
    }

    /// The mesh's ranks in it, in the order of their group ranks.
    pub fn ranks(&self) -> Result<&[usize], LayoutError> {
        self.check()?;
        Ok(&self.facts.ranks)
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
    pub fn totals(&self) -> Result<Totals, LayoutError> {
        Ok(Totals::of(self.members()?))
    }

    fn not_in_group(&self, asked: String) -> LayoutError {
        let Facts { name, ranks, .. } = &*self.facts;
        LayoutError::NotInGroup { asked, group: name.clone(), ranks: ranks.clone() }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("facts", &self.facts).field("term", &self.term).finish_non_exhaustive()
    }
}
