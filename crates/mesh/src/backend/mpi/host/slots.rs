//! The shared memory of a group of processes: a slot and two pages per member.
//!
//! The protocol is that of [`local::arrival`](crate::backend::local): **either every member sees all members reach a
//! step, or none does**. Processes may also be killed at any point. A member that has not arrived by then times out,
//! and no member reads what it was writing; a member that has arrived has written all its data.
//!
//! # Pages
//! Every member has two pages, which only it writes. Before it arrives at a step, it writes to the page of the step's
//! parity. The other members read that page after all have arrived at the step, and before they arrive at the next; the
//! member writes to it again only after all have arrived at the next. So no page is read and written at once.

use std::{
    cell::UnsafeCell,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use super::{
    super::notice::{LeaveNotice, NOTICE_BYTES},
    segment::Segment,
};
use crate::backend::{
    LeaveReason,
    local::arrival::{Arrival, Arrivals, Closed},
};

/// Maximum and minimum bytes that a member can publish per step: more than a core's own cache, because other cores read
/// data several times as fast from the shared cache.
const MAX_DATA_BYTES: usize = 1 << 20;
const MIN_DATA_BYTES: usize = 64 << 10;
/// Bytes that all members can publish together, unless the minimum requires more.
const GROUP_DATA_BYTES: usize = 8 << 20;
/// In groups up to this size every member can publish a cache line for every other.
pub(super) const MAX_MEMBERS: usize = MIN_DATA_BYTES / 64;

/// What members announce at the first step of a call: their signature and their weight.
pub(super) type Announcement = [u64; 3];

/// One member's slot, on cache lines that no other member writes to, except to close it.
#[repr(C, align(128))]
struct ProcessSlot {
    arrival: Arrival,
    /// By parity of the step.
    announced: [[AtomicU64; 3]; 2],
    /// The group's identity, written by the member that creates the segment.
    identity: AtomicU64,
    /// The member's leave notice, written once, before the member closes the slot.
    notice: UnsafeCell<[u8; NOTICE_BYTES]>,
}

/// The slots and pages of a group.
#[derive(Debug)]
pub(in super::super) struct SharedSlots {
    segment: Segment,
    members: usize,
    /// Bytes that a member can publish per step. A page has twice that: inputs and results.
    pub(super) data: usize,
}

pub(super) fn bytes(members: usize) -> usize {
    first_page(members) + members * 2 * 2 * data_bytes(members)
}

fn data_bytes(members: usize) -> usize {
    (GROUP_DATA_BYTES / members / 4096 * 4096).clamp(MIN_DATA_BYTES, MAX_DATA_BYTES)
}

fn first_page(members: usize) -> usize {
    (members * size_of::<ProcessSlot>()).next_multiple_of(4096)
}

impl SharedSlots {
    /// Initializes the slots of a new segment of [`bytes`] bytes.
    pub(super) fn new(segment: Segment, members: usize, identity: u64) -> Self {
        let slots = SharedSlots { segment, members, data: data_bytes(members) };
        (0..members).for_each(|member| slots.slot(member).identity.store(identity, Relaxed));
        slots
    }

    /// Returns the slots of a segment that another member has created, or `None` if it is another group's.
    pub(super) fn of(segment: Segment, members: usize, identity: u64) -> Option<Self> {
        let slots = SharedSlots { segment, members, data: data_bytes(members) };
        (0..members).all(|member| slots.slot(member).identity.load(SeqCst) == identity).then_some(slots)
    }

    #[inline]
    fn slot(&self, member: usize) -> &ProcessSlot {
        debug_assert!(member < self.members, "no such member");
        // SAFETY: slots lie one after another from the start of the segment, which is page-aligned. Any bytes are a
        // valid slot, all fields allow shared mutation, and the reference borrows the segment.
        unsafe { &*self.segment.at(member * size_of::<ProcessSlot>()).cast::<ProcessSlot>() }
    }

    /// Returns a member's page for a step: inputs, then results.
    #[inline]
    pub(super) fn page(&self, member: usize, step: u64) -> *mut u8 {
        let page = member * 2 + (step & 1) as usize;
        self.segment.at(first_page(self.members) + page * 2 * self.data)
    }

    /// Announces a member's call at a step, before it arrives there.
    #[inline]
    pub(super) fn announce(&self, member: usize, step: u64, announced: Announcement) {
        for (slot_word, word) in self.slot(member).announced[(step & 1) as usize].iter().zip(announced) {
            // The arrival that follows publishes it.
            slot_word.store(word, Relaxed);
        }
    }

    /// Returns the announcement of a member that has arrived at a step.
    #[inline]
    pub(super) fn announced(&self, member: usize, step: u64) -> Announcement {
        let words = &self.slot(member).announced[(step & 1) as usize];
        std::array::from_fn(|index| words[index].load(Relaxed))
    }

    /// Closes a member's own slot with its leave notice. A member calls this once.
    pub(in super::super) fn close_own(&self, member: usize, why: &LeaveReason, notice: &[u8]) {
        let why = match why {
            LeaveReason::Left => Closed::Left,
            LeaveReason::Panicked => Closed::Panicked,
            LeaveReason::Failed { .. } => Closed::Failed,
        };
        let slot_word = self.slot(member).notice.get().cast::<u8>();
        // SAFETY: the length is clamped to the field; no member reads it before the slot is closed, below, and it is
        // written once.
        unsafe { std::ptr::copy_nonoverlapping(notice.as_ptr(), slot_word, notice.len().min(NOTICE_BYTES)) };
        self.of(member).close(why);
    }

    /// Returns why a member left whose slot is closed, or `None` if it timed out.
    pub(super) fn reason(&self, member: usize, why: Closed) -> Option<LeaveReason> {
        match why {
            Closed::TimedOut => None,
            Closed::Left => Some(LeaveReason::Left),
            Closed::Panicked => Some(LeaveReason::Panicked),
            Closed::Failed => {
                // SAFETY: only the member itself closes its slot as failed, after it has written its notice for good.
                let notice = unsafe { &*self.slot(member).notice.get() };
                Some(LeaveNotice::read(notice).1.reason)
            }
        }
    }
}

impl Arrivals for SharedSlots {
    #[inline]
    fn len(&self) -> usize {
        self.members
    }

    #[inline]
    fn of(&self, member: usize) -> &Arrival {
        &self.slot(member).arrival
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::backend::local::arrival::StepState;

    fn slots(members: usize) -> SharedSlots {
        let (segment, _) = Segment::make(bytes(members)).unwrap();
        SharedSlots::new(segment, members, 77)
    }

    #[test]
    fn a_slot_closed_below_a_step_never_reaches_it_and_one_that_had_arrived_counts() {
        let slots = slots(3);
        slots.arrive(0, 1).unwrap();
        slots.arrive(1, 1).unwrap();
        slots.close_own(1, &LeaveReason::Left, &[]);
        assert_eq!(slots.step_state(1, &mut 0), StepState::Waiting);
        assert_eq!(slots.never_arriving(1), None);
        assert_eq!(slots.give_up(1), [2]);
        assert_eq!(slots.arrive(2, 1), Err(Closed::TimedOut));
        assert_eq!(slots.step_state(1, &mut 0), StepState::NeverArrives(2, Closed::TimedOut));
        assert_eq!(slots.never_arriving(2), Some((1, Closed::Left)));
        assert_eq!(slots.arrive(1, 2), Err(Closed::Left));
    }

    #[test]
    fn a_member_that_arrived_meanwhile_is_not_given_up() {
        let slots = slots(2);
        slots.arrive(0, 1).unwrap();
        slots.arrive(1, 1).unwrap();
        assert!(slots.give_up(1).is_empty());
        assert_eq!(slots.step_state(1, &mut 0), StepState::AllArrived);
    }

    #[test]
    fn pages_and_slots_do_not_overlap() {
        let slots = slots(5);
        let mut starts: Vec<_> = (0..5)
            .flat_map(|member| [slots.page(member, 0) as usize, slots.page(member, 1) as usize])
            .collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 2 * data_bytes(5)));
        let start = slots.segment.at(0) as usize;
        assert!(starts[0] >= start + 5 * size_of::<ProcessSlot>());
        assert!(starts[9] + 2 * data_bytes(5) <= start + bytes(5));
    }

    #[test]
    fn a_segment_of_another_group_is_refused() {
        use std::os::fd::AsRawFd;
        let (segment, file) = Segment::make(bytes(2)).unwrap();
        let made = SharedSlots::new(segment, 2, 77);
        let open = || Segment::open(std::process::id(), file.as_raw_fd() as u32, bytes(2)).unwrap();
        assert!(SharedSlots::of(open(), 2, 78).is_none());
        let other = SharedSlots::of(open(), 2, 77).unwrap();
        made.arrive(0, 1).unwrap();
        made.announce(1, 1, [1, 2, 3]);
        made.arrive(1, 1).unwrap();
        assert_eq!((other.step_state(1, &mut 0), other.announced(1, 1)), (StepState::AllArrived, [1, 2, 3]));
    }
}
