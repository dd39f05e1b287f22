//! Membership: which ranks train, and since when.

use serde::{Deserialize, Serialize};

/// Where a rank stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It trains.
    Member,
    /// It has died, or has not answered within the timeout.
    Gone,
}

/// Something that happened to a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipEvent {
    /// Committed steps at that time.
    pub step: u64,
    /// The rank.
    pub rank: usize,
    /// What happened.
    pub what: MembershipChange,
}

/// What happened to a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipChange {
    /// It is gone, for this reason.
    Died(String),
    /// It is a member again.
    Returned,
}

/// Decides who is a member. All members run an equal copy.
///
/// A rank that dies is no member from the next cut on. A rank that returns becomes a member at a commit, when there is a
/// state that it can be given. Every change begins a new generation, whose number is part of the group's name, so that
/// groups before and after a change never match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Membership {
    standing: Vec<Standing>,
    generation: u64,
    step: u64,
    events: Vec<MembershipEvent>,
}

/// No member is left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no rank is left to train")]
pub struct NobodyLeft;

impl Membership {
    /// Creates a membership of all ranks.
    pub fn new(ranks: usize) -> Self {
        Membership { standing: vec![Standing::Member; ranks], generation: 0, step: 0, events: Vec::new() }
    }

    /// Returns the members, in rank order.
    pub fn members(&self) -> Vec<usize> {
        (0..self.standing.len()).filter(|&rank| self.is_member(rank)).collect()
    }

    /// Returns whether a rank is a member.
    pub fn is_member(&self, rank: usize) -> bool {
        self.standing.get(rank) == Some(&Standing::Member)
    }

    /// Returns for each rank whether it is a member.
    pub fn present(&self) -> Vec<bool> {
        self.standing.iter().map(|standing| *standing == Standing::Member).collect()
    }

    /// Returns the lowest member, which writes checkpoints and lets ranks return.
    pub fn leader(&self) -> Option<usize> {
        (0..self.standing.len()).find(|&rank| self.is_member(rank))
    }

    /// Returns the number of the current generation. It only grows.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of committed steps.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns everything that happened to ranks.
    pub fn events(&self) -> &[MembershipEvent] {
        &self.events
    }

    /// Takes note that ranks are gone, and begins a new generation. Ranks that are no members are ignored. Fails, and
    /// changes nothing, if no member would be left.
    pub fn died(&mut self, ranks: &[usize], why: &str) -> Result<(), NobodyLeft> {
        if self.members().iter().all(|member| ranks.contains(member)) {
            return Err(NobodyLeft);
        }
        for &rank in ranks {
            if self.is_member(rank) {
                self.standing[rank] = Standing::Gone;
                let what = MembershipChange::Died(why.to_owned());
                self.events.push(MembershipEvent { step: self.step, rank, what });
            }
        }
        self.generation += 1;
        Ok(())
    }

    /// Commits a number of steps.
    pub fn commit(&mut self, steps: u64) {
        self.step += steps;
    }

    /// Makes a rank a member again, and begins a new generation. Must be called right after a commit. Returns whether
    /// anything changed: not if the rank is unknown or a member.
    pub fn returned(&mut self, rank: usize) -> bool {
        if self.standing.get(rank) != Some(&Standing::Gone) {
            return false;
        }
        self.standing[rank] = Standing::Member;
        self.events.push(MembershipEvent { step: self.step, rank, what: MembershipChange::Returned });
        self.generation += 1;
        true
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_member_cannot_die() {
        let mut membership = Membership::new(3);
        membership.died(&[0, 2], "killed").unwrap();
        assert_eq!(membership.died(&[1], "killed"), Err(NobodyLeft));
        assert_eq!((membership.members(), membership.leader()), (vec![1], Some(1)));
    }

    #[test]
    fn a_member_cannot_return_and_an_unknown_rank_neither() {
        let mut membership = Membership::new(2);
        assert!(!membership.returned(0) && !membership.returned(9));
        assert_eq!(membership.generation(), 0);
    }

    proptest! {
        #[test]
        fn there_is_always_a_leader_and_generations_only_grow_with_changes(
            ranks in 1..9usize,
            events in prop::collection::vec((0..3u8, prop::collection::vec(0..9usize, 1..4)), 0..60),
        ) {
            let mut membership = Membership::new(ranks);
            for (what, who) in events {
                let before = membership.clone();
                match what {
                    0 => drop(membership.died(&who, "killed")),
                    1 => drop(membership.returned(who[0])),
                    _ => membership.commit(1),
                }
                let leader = membership.leader();
                prop_assert!(leader.is_some_and(|leader| membership.is_member(leader)));
                prop_assert!(membership.generation() >= before.generation());
                if membership.members() != before.members() {
                    prop_assert_eq!(membership.generation(), before.generation() + 1);
                }
                // Every change is an event, and the events lead to the standing.
                let mut standing = vec![true; ranks];
                for event in membership.events() {
                    prop_assert_ne!(standing[event.rank], event.what == MembershipChange::Returned);
                    standing[event.rank] = event.what == MembershipChange::Returned;
                }
                prop_assert_eq!(standing, membership.present());
            }
        }
    }
}
