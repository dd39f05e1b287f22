//! Where processes meet: a seat for each in memory that all of them have, with how far it has come.
//!
//! The protocol is that of [`local::standing`](crate::backend::local), as among threads: **either every member sees all
//! of them reach a step, or none does**. Here members may also be killed at any point. One that has not arrived never will, and is given up in time; what it
//! was writing is read by nobody. One that has arrived has written all that it was to write.
//!
//! # Pages
//! Every member has two pages, which it alone writes. What it writes for a step goes to the page of the step's parity,
//! before it arrives there. The others read that page after they have seen all arrive at the step, and before they
//! arrive at the next; the member writes to it again only after it has seen all arrive at the next. So a page that is
//! read is never being written.

use std::{
    cell::UnsafeCell,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use super::{
    super::word::{WORD_BYTES, Word},
    segment::Segment,
};
use crate::backend::{
    Parting,
    local::standing::{Closed, Standing, Standings},
};

/// What a member can give the others at once, at most and at least. More than a core keeps to itself: what has left its
/// cache for the one that all share gets to another core several times as fast.
const MOST_DATA: usize = 1 << 20;
const LEAST_DATA: usize = 64 << 10;
/// What all members can give together, as far as each can give the least.
const ALL_DATA: usize = 8 << 20;
/// Every member of a group of this size can give every other a cache line at once.
pub(super) const MOST_MEMBERS: usize = LEAST_DATA / 64;

/// What members say at the first step of a call: their signature and their weight.
pub(super) type Says = [u64; 3];

/// One member's, on cache lines that nobody else writes to, except to close it.
#[repr(C, align(128))]
struct Seat {
    standing: Standing,
    /// By the parity of the step.
    says: [[AtomicU64; 3]; 2],
    /// The group of whose segment it is, written by whoever makes it.
    identity: AtomicU64,
    /// Its member's last word. Written once, before the member closes the seat for it.
    word: UnsafeCell<[u8; WORD_BYTES]>,
}

/// A group's seats and pages.
#[derive(Debug)]
pub(in super::super) struct Seats {
    segment: Segment,
    members: usize,
    /// What a member can give at once. A page is that, and as much for results.
    pub(super) data: usize,
}

/// How many bytes a group of so many members needs.
pub(super) fn bytes(members: usize) -> usize {
    first_page(members) + members * 2 * 2 * data_bytes(members)
}

fn data_bytes(members: usize) -> usize {
    (ALL_DATA / members / 4096 * 4096).clamp(LEAST_DATA, MOST_DATA)
}

fn first_page(members: usize) -> usize {
    (members * size_of::<Seat>()).next_multiple_of(4096)
}

impl Seats {
    /// Those of a new segment, of [`bytes`] bytes.
    pub(super) fn new(segment: Segment, members: usize, identity: u64) -> Self {
        let seats = Seats { segment, members, data: data_bytes(members) };
        (0..members).for_each(|member| seats.seat(member).identity.store(identity, Relaxed));
        seats
    }

    /// Those of a segment that another member has made; nothing where it is another group's.
    pub(super) fn of(segment: Segment, members: usize, identity: u64) -> Option<Self> {
        let seats = Seats { segment, members, data: data_bytes(members) };
        (0..members).all(|member| seats.seat(member).identity.load(SeqCst) == identity).then_some(seats)
    }

    #[inline]
    fn seat(&self, member: usize) -> &Seat {
        debug_assert!(member < self.members, "no such member");
        // SAFETY: seats lie one after another from the beginning, aligned since that is a page. Any bytes are a seat,
        // all of it can be changed through a shared reference, and it is there as long as the segment.
        unsafe { &*self.segment.at(member * size_of::<Seat>()).cast::<Seat>() }
    }

    /// A member's page for a step: bytes to give, and as many for results.
    #[inline]
    pub(super) fn page(&self, member: usize, step: u64) -> *mut u8 {
        let page = member * 2 + (step & 1) as usize;
        self.segment.at(first_page(self.members) + page * 2 * self.data)
    }

    /// Writes what a member says at a step, before it arrives there.
    #[inline]
    pub(super) fn say(&self, member: usize, step: u64, says: Says) {
        for (place, word) in self.seat(member).says[(step & 1) as usize].iter().zip(says) {
            // Arriving, which comes next, publishes it.
            place.store(word, Relaxed);
        }
    }

    /// What a member said at a step at which it has arrived.
    #[inline]
    pub(super) fn said(&self, member: usize, step: u64) -> Says {
        let places = &self.seat(member).says[(step & 1) as usize];
        std::array::from_fn(|index| places[index].load(Relaxed))
    }

    /// Closes a member's own seat, with its word. A member does so once.
    pub(in super::super) fn part(&self, member: usize, why: &Parting, word: &[u8]) {
        let why = match why {
            Parting::Left => Closed::Left,
            Parting::Panicked => Closed::Panicked,
            Parting::Failed { .. } => Closed::Failed,
        };
        let place = self.seat(member).word.get().cast::<u8>();
        // SAFETY: it has room, and nobody reads it before the seat is closed for it, below, nor is it written again.
        unsafe { std::ptr::copy_nonoverlapping(word.as_ptr(), place, word.len().min(WORD_BYTES)) };
        self.of(member).close(why);
    }

    /// Why a member whose seat is closed takes no further part; nothing where it was given up.
    pub(super) fn parting(&self, member: usize, why: Closed) -> Option<Parting> {
        match why {
            Closed::TimedOut => None,
            Closed::Left => Some(Parting::Left),
            Closed::Panicked => Some(Parting::Panicked),
            Closed::Failed => {
                // SAFETY: only the member itself closes its seat for this, after it has written its word for good.
                let word = unsafe { &*self.seat(member).word.get() };
                Some(Word::read(word).1.parting)
            }
        }
    }
}

impl Standings for Seats {
    #[inline]
    fn len(&self) -> usize {
        self.members
    }

    #[inline]
    fn of(&self, member: usize) -> &Standing {
        &self.seat(member).standing
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::backend::local::standing::Look;

    fn seats(members: usize) -> Seats {
        let (segment, _) = Segment::make(bytes(members)).unwrap();
        Seats::new(segment, members, 77)
    }

    #[test]
    fn a_seat_closed_below_a_step_never_reaches_it_and_one_that_was_there_counts() {
        let seats = seats(3);
        seats.arrive(0, 1).unwrap();
        seats.arrive(1, 1).unwrap();
        seats.part(1, &Parting::Left, &[]);
        assert_eq!(seats.look(1, &mut 0), Look::Waiting);
        assert_eq!(seats.never(1), None);
        assert_eq!(seats.give_up(1), [2]);
        assert_eq!(seats.arrive(2, 1), Err(Closed::TimedOut));
        assert_eq!(seats.look(1, &mut 0), Look::Never(2, Closed::TimedOut));
        assert_eq!(seats.never(2), Some((1, Closed::Left)));
        assert_eq!(seats.arrive(1, 2), Err(Closed::Left));
    }

    #[test]
    fn nobody_is_given_up_who_came_in_the_meantime() {
        let seats = seats(2);
        seats.arrive(0, 1).unwrap();
        seats.arrive(1, 1).unwrap();
        assert!(seats.give_up(1).is_empty());
        assert_eq!(seats.look(1, &mut 0), Look::All);
    }

    #[test]
    fn no_two_pages_and_no_page_and_seat_overlap() {
        let seats = seats(5);
        let mut starts: Vec<_> = (0..5)
            .flat_map(|member| [seats.page(member, 0) as usize, seats.page(member, 1) as usize])
            .collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 2 * data_bytes(5)));
        let start = seats.segment.at(0) as usize;
        assert!(starts[0] >= start + 5 * size_of::<Seat>());
        assert!(starts[9] + 2 * data_bytes(5) <= start + bytes(5));
    }

    #[test]
    fn a_segment_of_another_group_is_refused() {
        use std::os::fd::AsRawFd;
        let (segment, file) = Segment::make(bytes(2)).unwrap();
        let made = Seats::new(segment, 2, 77);
        let open = || Segment::open(std::process::id(), file.as_raw_fd() as u32, bytes(2)).unwrap();
        assert!(Seats::of(open(), 2, 78).is_none());
        let other = Seats::of(open(), 2, 77).unwrap();
        made.arrive(0, 1).unwrap();
        made.say(1, 1, [1, 2, 3]);
        made.arrive(1, 1).unwrap();
        assert_eq!((other.look(1, &mut 0), other.said(1, 1)), (Look::All, [1, 2, 3]));
    }
}
