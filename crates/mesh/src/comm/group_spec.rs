//! Who is in a group: its name, its ranks in order, its timeout, and how long it is valid.

use std::time::Duration;

use super::generation::Generation;

/// Who is in a group. Every member makes the group from an equal description.
///
/// ```
/// use std::time::Duration;
/// use evener_mesh::comm::GroupSpec;
///
/// let members = GroupSpec::new("tp_0", [2, 3]).timeout(Duration::from_secs(5));
/// assert_eq!(members.ranks(), [2, 3]);
/// ```
#[derive(Debug, Clone)]
pub struct GroupSpec {
    pub(super) name: String,
    pub(super) ranks: Vec<usize>,
    pub(super) timeout: Option<Duration>,
    /// The group is valid until any of these ends.
    pub(super) generations: Vec<Generation>,
}

impl GroupSpec {
    /// A group of this name with these ranks of the world, in this order.
    pub fn new(name: impl Into<String>, ranks: impl Into<Vec<usize>>) -> Self {
        GroupSpec { name: name.into(), ranks: ranks.into(), timeout: None, generations: Vec::new() }
    }

    /// How long a call waits for the others. Otherwise the group has the timeout of the one it is made from.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Makes the group valid only until this term ends, or one that it was given before.
    pub fn generation(self, generation: &Generation) -> Self {
        self.all_generations(std::slice::from_ref(generation))
    }

    pub(crate) fn all_generations(mut self, generations: &[Generation]) -> Self {
        for generation in generations {
            if !self.generations.iter().any(|it| it.is(generation)) {
                self.generations.push(generation.clone());
            }
        }
        self
    }

    /// What the back end calls the group, so that those of one name before and after a reshape are two.
    pub(super) fn key(&self) -> String {
        let generations = self.generations.iter().map(|generation| format!("#{}", generation.number()));
        std::iter::once(self.name.clone()).chain(generations).collect()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its ranks, in order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }
}
