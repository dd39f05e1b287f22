//! The description of a group: its name, ranks, timeout and generations.

use std::time::Duration;

use super::generation::Generation;

/// Describes a group to create. Every member creates the group from an equal description.
///
/// ```
/// use std::time::Duration;
/// use evener_mesh::comm::GroupSpec;
///
/// let spec = GroupSpec::new("tp_0", [2, 3]).timeout(Duration::from_secs(5));
/// assert_eq!(spec.ranks(), [2, 3]);
/// ```
#[derive(Debug, Clone)]
pub struct GroupSpec {
    pub(super) name: String,
    pub(super) ranks: Vec<usize>,
    pub(super) timeout: Option<Duration>,
    /// The group is valid until any of these generations ends.
    pub(super) generations: Vec<Generation>,
}

impl GroupSpec {
    /// Describes a group of these world ranks, in this order.
    pub fn new(name: impl Into<String>, ranks: impl Into<Vec<usize>>) -> Self {
        GroupSpec { name: name.into(), ranks: ranks.into(), timeout: None, generations: Vec::new() }
    }

    /// Sets how long a call waits for the other ranks. The default is the timeout of the world or the parent.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Makes the group valid only until this generation ends, or one that was set before.
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

    /// Returns the back end's name of the group, which differs before and after a reshape. No two groups of different
    /// names or generations have the same: the first `#` ends the numbers of the generations.
    pub(super) fn key(&self) -> String {
        let generations = self.generations.iter().map(|generation| format!("{},", generation.number()));
        format!("{}#{}", generations.collect::<String>(), self.name)
    }

    /// Returns the group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the group's world ranks, in order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn groups_of_different_names_or_generations_have_different_keys() {
        let key = |name: &str, generations: &[u64]| {
            let generations: Vec<_> = generations.iter().map(|number| Generation::new(*number)).collect();
            GroupSpec::new(name, [0]).all_generations(&generations).key()
        };
        let keys = [
            key("tp_0", &[]),
            key("tp_0", &[1]),
            key("tp_0#1", &[]),
            key("1#tp_0", &[]),
            key("1,#tp_0", &[]),
            key("#tp_0", &[1]),
            key("tp_0", &[1, 2]),
            key("tp_0", &[12]),
            key("2,#tp_0", &[1]),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{keys:?}");
        }
    }
}
