//! The chunks in flight: which items each of them still has to deliver, and which chunks are copies of parts of others.
//!
//! Other lanes run *speculative copies* of parts of a straggling chunk. So the chunks in flight form a forest: a chunk's
//! children are the copies of parts of it, and children may have copies in turn. The *unaccepted* items of a chunk are those
//! whose results were not accepted from any lane yet. Three invariants hold after every call:
//! - the unaccepted items of different roots are disjoint, and those of all roots together are all items in flight;
//! - the unaccepted items of a child are among those of its parent;
//! - the unaccepted items of siblings are disjoint.
//!
//! A chunk without unaccepted items is *superseded*: other lanes have delivered all of its items. It is kept apart from the
//! forest until its lane is done with it.

use std::{ops::Range, time::Duration};

use smallvec::{SmallVec, smallvec};

use super::{LaneIndex, Time};

/// Disjoint ranges of items, in order. Most chunks have one.
pub(super) type Ranges = SmallVec<[Range<u64>; 1]>;

/// A chunk in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempt {
    pub(super) lane: LaneIndex,
    /// The items that its lane works on. The end moves down when another lane steals from it.
    pub(super) items: Range<u64>,
    /// Its items whose results were not accepted from any lane yet.
    pub(super) unaccepted: Ranges,
    /// The cost of its items.
    pub(super) cost: f64,
    /// When it was handed out.
    pub(super) began: Time,
    /// The first item that was not begun at the driver's last report, if there was one.
    pub(super) first_not_begun: Option<u64>,
    /// When that changed last, by the driver's reports, and seconds for each item that was begun shortly before.
    pub(super) advanced: Time,
    pub(super) recent_each: f64,
    /// Since when its items have been in flight without interruption, in this chunk or in those they were taken from.
    pub(super) since: Time,
    pub(super) speculative: bool,
    /// Whether it shows if its lane works again.
    pub(super) canary: bool,
    /// Whether it may have no speculative copies.
    pub(super) exclusive: bool,
    /// Whether its lane may still have items that it has not begun and that others can steal.
    pub(super) divisible: bool,
    /// The time that other lanes took for those of its items that they delivered.
    pub(super) others_took: Duration,
    /// Since when all of its items are accepted.
    pub(super) superseded: Option<Time>,
    parent: Option<u64>,
    children: Vec<u64>,
}

impl Attempt {
    pub(super) fn new(lane: LaneIndex, items: Range<u64>, cost: f64, began: Time) -> Self {
        let unaccepted = smallvec![items.clone()];
        Attempt { lane, unaccepted, items, cost, began, advanced: began, since: began, ..Attempt::default() }
    }
}

/// All chunks in flight. A chunk's number contains its slot, and is never used twice.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    slots: Vec<Option<(u64, Attempt)>>,
    free: Vec<usize>,
    next: u64,
}

/// The low bits of a chunk's number are its slot.
const SLOT_BITS: u32 = 24;

fn slot_of(chunk: u64) -> usize {
    (chunk & ((1 << SLOT_BITS) - 1)) as usize
}

impl Attempts {
    /// Adds a chunk, which is a speculative copy of a part of its parent if there is one. Returns its number.
    pub(super) fn insert(&mut self, mut attempt: Attempt, parent: Option<u64>) -> u64 {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let chunk = (self.next << SLOT_BITS) | slot as u64;
        self.next += 1;
        if let Some(parent) = parent.and_then(|parent| self.get_mut(parent)) {
            parent.children.push(chunk);
        }
        attempt.parent = parent;
        match self.slots.get_mut(slot) {
            Some(free) => *free = Some((chunk, attempt)),
            None => self.slots.push(Some((chunk, attempt))),
        }
        chunk
    }

    pub(super) fn get(&self, chunk: u64) -> Option<&Attempt> {
        let (number, attempt) = self.slots.get(slot_of(chunk))?.as_ref()?;
        (*number == chunk).then_some(attempt)
    }

    pub(super) fn get_mut(&mut self, chunk: u64) -> Option<&mut Attempt> {
        let (number, attempt) = self.slots.get_mut(slot_of(chunk))?.as_mut()?;
        (*number == chunk).then_some(attempt)
    }

    /// Every chunk in flight, with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Attempt)> {
        self.slots.iter().flatten().map(|(chunk, attempt)| (*chunk, attempt))
    }

    /// Mutable access to every chunk in flight.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Attempt> {
        self.slots.iter_mut().flatten().map(|(_, attempt)| attempt)
    }

    fn take(&mut self, chunk: u64) -> Option<Attempt> {
        self.get(chunk)?;
        let (_, attempt) = self.slots[slot_of(chunk)].take()?;
        self.free.push(slot_of(chunk));
        Some(attempt)
    }

    /// Removes a chunk whose unaccepted items are accepted. Its ancestors need not deliver them any more, and its descendants are
    /// superseded.
    pub(super) fn accept(&mut self, chunk: u64, now: Time, took: Duration) -> Option<Attempt> {
        let attempt = self.take(chunk)?;
        let mut descendants = attempt.children.clone();
        while let Some(child) = descendants.pop() {
            if let Some(it) = self.get_mut(child) {
                descendants.append(&mut it.children);
                it.unaccepted.clear();
                it.others_took += took;
                it.superseded = Some(now);
                it.parent = None;
            }
        }
        if let Some(parent) = attempt.parent {
            self.detach(parent, chunk);
        }
        let mut above = attempt.parent;
        while let Some(parent) = above.and_then(|parent| self.get_mut(parent)) {
            above = parent.parent;
            parent.unaccepted = subtract(&parent.unaccepted, &attempt.unaccepted);
            parent.others_took += took;
            if parent.unaccepted.is_empty() {
                parent.superseded = Some(now);
            }
        }
        self.detach_superseded(attempt.parent);
        Some(attempt)
    }

    /// Takes those of a chain of ancestors that are superseded out of the forest.
    fn detach_superseded(&mut self, first: Option<u64>) {
        let mut above = first;
        while let Some(chunk) = above {
            let Some(it) = self.get_mut(chunk) else { return };
            above = it.parent;
            if it.superseded.is_some() {
                // A child's unaccepted items are among its parent's, so no child has any.
                it.children.clear();
                it.parent = None;
                if let Some(parent) = above {
                    self.detach(parent, chunk);
                }
            }
        }
    }

    fn detach(&mut self, parent: u64, child: u64) {
        if let Some(parent) = self.get_mut(parent) {
            parent.children.retain(|it| *it != child);
        }
    }

    /// Removes a chunk that delivers nothing. Returns it, and the items that are in no chunk any more. Its copies take its
    /// place.
    pub(super) fn remove(&mut self, chunk: u64) -> Option<(Attempt, Ranges)> {
        let attempt = self.take(chunk)?;
        let mut orphaned = attempt.unaccepted.clone();
        for &child in &attempt.children {
            if let Some(it) = self.get_mut(child) {
                it.parent = attempt.parent;
                orphaned = subtract(&orphaned, &it.unaccepted);
            }
        }
        let Some(parent) = attempt.parent else { return Some((attempt, orphaned)) };
        self.detach(parent, chunk);
        if let Some(it) = self.get_mut(parent) {
            it.children.extend(&attempt.children);
        }
        Some((attempt, Ranges::new()))
    }

    /// The unaccepted items of a chunk that no copy of it has in flight.
    pub(super) fn uncovered(&self, attempt: &Attempt) -> Ranges {
        let mut rest = attempt.unaccepted.clone();
        for child in attempt.children.iter().filter_map(|&child| self.get(child)) {
            rest = subtract(&rest, &child.unaccepted);
        }
        rest
    }

    /// Removes the items from `at` on, which its lane has not begun, from a chunk. Returns since when they are in flight, and
    /// the parent of the chunk that they become.
    pub(super) fn cut(&mut self, chunk: u64, at: u64) -> Option<(Time, Option<u64>)> {
        let attempt = self.get_mut(chunk)?;
        let gone = at..attempt.items.end;
        attempt.unaccepted = subtract(&attempt.unaccepted, std::slice::from_ref(&gone));
        attempt.items.end = at;
        // The first item is begun.
        attempt.divisible &= attempt.items.end - attempt.items.start > 1;
        Some((attempt.since, attempt.parent))
    }

    /// Ends a chunk before the item `at`, which its lane has not begun. Returns the items that are in no chunk any more.
    ///
    /// A copy that has some of them becomes independent. If it also has items that this chunk has begun, the chunk delivers
    /// nothing from the copy's first item on, since the two would not be nested otherwise.
    pub(super) fn shrink(&mut self, chunk: u64, at: u64, now: Time) -> Ranges {
        let Some(attempt) = self.get(chunk).filter(|it| it.items.contains(&at)) else { return Ranges::new() };
        let first = |child: &u64| {
            Some((
                *child,
                self.get(*child)?.unaccepted.first()?.start,
                self.get(*child)?.unaccepted.last()?.end,
            ))
        };
        let copies: Vec<_> = attempt.children.iter().filter_map(first).collect();
        let end = copies.iter().filter(|it| it.2 > at).map(|it| it.1).fold(at, u64::min);
        let parent = attempt.parent;
        let mut orphaned = subtract(&attempt.unaccepted, std::slice::from_ref(&(0..end)));
        let (leaving, staying): (Vec<_>, Vec<_>) = copies.into_iter().partition(|it| it.1 >= end);
        for (child, ..) in &leaving {
            if let Some(it) = self.get_mut(*child) {
                it.parent = parent;
                orphaned = subtract(&orphaned, &it.unaccepted);
            }
        }
        if let Some(it) = self.get_mut(chunk) {
            it.items.end = at;
            it.divisible = false;
            it.unaccepted = subtract(&it.unaccepted, std::slice::from_ref(&(end..u64::MAX)));
            it.children = staying.into_iter().map(|it| it.0).collect();
            if it.unaccepted.is_empty() {
                it.superseded = Some(now);
                it.parent = None;
                it.children.clear();
            }
        }
        let is_superseded = self.get(chunk).is_some_and(|it| it.superseded.is_some());
        if let Some(parent) = parent {
            if is_superseded {
                self.detach(parent, chunk);
            }
            if let Some(it) = self.get_mut(parent) {
                it.children.extend(leaving.iter().map(|it| it.0));
            }
            return Ranges::new();
        }
        orphaned
    }
}

/// The number of items in ranges.
pub(super) fn len_of(ranges: &Ranges) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// The items of ranges that are not in others. Both are in order, and disjoint.
fn subtract(from: &Ranges, gone: &[Range<u64>]) -> Ranges {
    if gone.is_empty() {
        return from.clone();
    }
    let mut left = Ranges::new();
    for range in from {
        let mut start = range.start;
        for hole in gone.iter().filter(|hole| hole.start < range.end && hole.end > range.start) {
            if hole.start > start {
                left.push(start..hole.start);
            }
            start = start.max(hole.end);
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]
mod test {
    use super::*;

    impl Attempts {
        /// Asserts the three invariants.
        pub(in crate::run) fn assert_sound(&self) {
            let overlap = |a: &Ranges, b: &Ranges| subtract(a, b) != *a;
            let roots: Vec<_> = self.iter().filter(|(_, it)| it.parent.is_none()).collect();
            for (index, (chunk, root)) in roots.iter().enumerate() {
                for (other, it) in &roots[index + 1..] {
                    assert!(!overlap(&root.unaccepted, &it.unaccepted), "roots {chunk} and {other} overlap");
                }
            }
            for (chunk, attempt) in self.iter() {
                assert_eq!(
                    attempt.unaccepted.is_empty(),
                    attempt.superseded.is_some(),
                    "{chunk}: {attempt:?}"
                );
                let mut left = attempt.unaccepted.clone();
                for child in &attempt.children {
                    let it = self.get(*child).unwrap();
                    assert_eq!(it.parent, Some(chunk));
                    let rest = subtract(&left, &it.unaccepted);
                    assert_eq!(
                        len_of(&left) - len_of(&it.unaccepted),
                        len_of(&rest),
                        "{child} is not within {chunk}"
                    );
                    left = rest;
                }
            }
        }
    }

    fn attempt(lane: usize, items: Range<u64>) -> Attempt {
        Attempt::new(lane, items, 1.0, Time::ZERO)
    }

    fn accept(attempts: &mut Attempts, chunk: u64) -> Attempt {
        let accepted = attempts.accept(chunk, Time::from_secs(1), Duration::from_millis(1)).unwrap();
        attempts.assert_sound();
        accepted
    }

    #[test]
    fn subtracting_removes_exactly_the_given_items() {
        let of = |ranges: &[Range<u64>]| ranges.iter().cloned().collect::<Ranges>();
        assert_eq!(subtract(&of(&[0..10]), &[2..4, 6..8]), of(&[0..2, 4..6, 8..10]));
        assert_eq!(subtract(&of(&[0..4, 6..10]), &[3..7]), of(&[0..3, 7..10]));
        assert_eq!(subtract(&of(&[0..4]), &[0..4]), of(&[]));
        assert_eq!(subtract(&of(&[0..4]), &[4..9]), of(&[0..4]));
    }

    #[test]
    fn a_copy_of_a_part_leaves_the_rest_to_the_first() {
        let mut attempts = Attempts::default();
        let first = attempts.insert(attempt(0, 0..10), None);
        let far = attempts.insert(attempt(1, 5..10), Some(first));
        assert_eq!(attempts.uncovered(attempts.get(first).unwrap()).as_slice(), [0..5]);
        assert_eq!(accept(&mut attempts, far).unaccepted.as_slice(), [5..10]);
        assert_eq!(accept(&mut attempts, first).unaccepted.as_slice(), [0..5]);
        assert_eq!(attempts.iter().count(), 0);
    }

    #[test]
    fn copies_are_superseded_by_the_first_chunk_and_it_by_all_of_them() {
        let mut attempts = Attempts::default();
        let first = attempts.insert(attempt(0, 0..10), None);
        let far = attempts.insert(attempt(1, 5..10), Some(first));
        let farther = attempts.insert(attempt(2, 8..10), Some(far));
        accept(&mut attempts, farther);
        assert_eq!(attempts.get(first).unwrap().unaccepted.as_slice(), [0..8]);
        let near = attempts.insert(attempt(2, 0..5), Some(first));
        accept(&mut attempts, near);
        accept(&mut attempts, far);
        assert!(attempts.get(first).unwrap().superseded.is_some());
        let second = attempts.insert(attempt(1, 10..20), None);
        let late = attempts.insert(attempt(2, 15..20), Some(second));
        accept(&mut attempts, second);
        assert!(attempts.get(late).unwrap().superseded.is_some());
    }

    #[test]
    fn a_failed_chunk_gives_back_only_items_that_no_other_chunk_has() {
        let mut attempts = Attempts::default();
        let first = attempts.insert(attempt(0, 0..10), None);
        let far = attempts.insert(attempt(1, 5..10), Some(first));
        let farther = attempts.insert(attempt(2, 8..10), Some(far));
        assert_eq!(attempts.remove(far).unwrap().1.len(), 0, "the first still has them");
        attempts.assert_sound();
        assert_eq!(attempts.remove(first).unwrap().1.as_slice(), [0..8]);
        attempts.assert_sound();
        assert_eq!(attempts.remove(farther).unwrap().1.as_slice(), [8..10]);
        assert!(attempts.remove(first).is_none());
    }

    #[test]
    fn a_chunk_that_ends_early_gives_back_only_items_that_no_copy_has() {
        let mut attempts = Attempts::default();
        let first = attempts.insert(attempt(0, 0..10), None);
        let far = attempts.insert(attempt(1, 6..8), Some(first));
        assert_eq!(attempts.shrink(first, 5, Time::ZERO).as_slice(), [5..6, 8..10]);
        attempts.assert_sound();
        assert_eq!(accept(&mut attempts, far).unaccepted.as_slice(), [6..8]);
        assert_eq!(accept(&mut attempts, first).unaccepted.as_slice(), [0..5]);
        let second = attempts.insert(attempt(0, 10..20), None);
        let near = attempts.insert(attempt(1, 13..18), Some(second));
        assert_eq!(attempts.shrink(second, 15, Time::ZERO).as_slice(), [18..20]);
        attempts.assert_sound();
        assert_eq!(accept(&mut attempts, second).unaccepted.as_slice(), [10..13], "the rest is the copy's");
        assert_eq!(accept(&mut attempts, near).unaccepted.as_slice(), [13..18]);
    }

    #[test]
    fn stolen_items_leave_their_first_chunk() {
        let mut attempts = Attempts::default();
        let first = attempts.insert(attempt(0, 0..10), None);
        let copy = attempts.insert(attempt(1, 4..10), Some(first));
        let (since, parent) = attempts.cut(copy, 7).unwrap();
        assert_eq!((since, parent), (Time::ZERO, Some(first)));
        attempts.insert(attempt(2, 7..10), parent);
        attempts.assert_sound();
        assert_eq!(attempts.get(copy).unwrap().unaccepted.as_slice(), [4..7]);
        assert_eq!(accept(&mut attempts, first).unaccepted.as_slice(), [0..10]);
        assert!(attempts.iter().all(|(_, it)| it.superseded.is_some()));
    }
}
