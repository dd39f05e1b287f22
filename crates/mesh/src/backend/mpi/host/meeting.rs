//! A member's way from meeting to meeting, and how it waits for the others.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    super::stream::stream,
    seats::{Says, Seats},
};
use crate::backend::{
    Failure,
    local::standing::{Closed, Look, Standings},
    wait::{nap, spin},
};

/// A member's place among those who meet, and how far it has come.
#[derive(Debug)]
pub(super) struct Meeting {
    pub(super) seats: Arc<Seats>,
    pub(super) me: usize,
    /// The last step that all have reached.
    pub(super) step: u64,
    /// There are more members than cores: whoever waits gives its core away.
    crowded: bool,
}

/// How long a call waits, in all.
pub(super) struct Patience<'a> {
    timeout: Duration,
    /// When it began to, which is not asked before it takes long.
    since: Option<Instant>,
    /// What to do meanwhile.
    meanwhile: &'a dyn Fn(),
}

impl<'a> Patience<'a> {
    pub(super) fn new(timeout: Duration, meanwhile: &'a dyn Fn()) -> Self {
        Patience { timeout, since: None, meanwhile }
    }
}

impl Meeting {
    pub(super) fn new(seats: Arc<Seats>, me: usize, crowded: bool) -> Self {
        Meeting { seats, me, step: 0, crowded }
    }

    /// A part of a page, cut where the page ends.
    #[inline]
    fn within_page(&self, at: usize, bytes: usize) -> (usize, usize) {
        let page = 2 * self.seats.data;
        debug_assert!(at + bytes <= page, "past the end of a page");
        (at.min(page), bytes.min(page - at.min(page)))
    }

    /// Writes to this member's page for the next meeting, as far as there is room; where `far`, past the caches.
    #[inline]
    pub(super) fn give(&mut self, at: usize, bytes: &[u8], far: bool) {
        let room = self.room(at, bytes.len());
        let bytes = &bytes[..room.len()];
        if far { stream(room, bytes) } else { room.copy_from_slice(bytes) }
    }

    /// A part of this member's page for the next meeting, to write to.
    #[inline]
    pub(super) fn room(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        let (at, bytes) = self.within_page(at, bytes);
        let page = self.seats.page(self.me, self.step + 1);
        // SAFETY: within the page, which only this member writes; and nobody reads it, as all have arrived at the last
        // step and so are done with what was in it at the step before. They read it again once this member has arrived
        // at the next, which it cannot while this is borrowed.
        unsafe { std::slice::from_raw_parts_mut(page.add(at), bytes) }
    }

    /// A part of what a member wrote to its page for the last meeting.
    #[inline]
    pub(super) fn given(&self, member: usize, at: usize, bytes: usize) -> &[u8] {
        let (at, bytes) = self.within_page(at, bytes);
        let page = self.seats.page(member, self.step);
        // SAFETY: within the page, which its member writes again only once all have arrived at the next step. This one
        // cannot while this is borrowed.
        unsafe { std::slice::from_raw_parts(page.add(at), bytes) }
    }

    /// Meets the others, with something to say.
    #[inline]
    pub(super) fn meet_and_say(&mut self, says: Says, patience: &mut Patience<'_>) -> Result<(), Failure> {
        // Last: the others keep looking at this line, and take it away again and again.
        self.seats.say(self.me, self.step + 1, says);
        self.meet(patience)
    }

    /// Meets the others: all of them come to this, or all of those that are still there fail.
    #[inline]
    pub(super) fn meet(&mut self, patience: &mut Patience<'_>) -> Result<(), Failure> {
        let step = self.step + 1;
        if let Err(why) = self.seats.arrive(self.me, step) {
            return Err(match self.seats.parting(self.me, why) {
                None => Failure::TooLate,
                Some(parting) => Failure::Parted(self.me, parting),
            });
        }
        let mut there = 0;
        let seats = &*self.seats;
        let look = || match seats.look(step, &mut there) {
            Look::All => Some(Ok(())),
            Look::Never(member, why) => Some(Err(self.never(member, why))),
            Look::Waiting => None,
        };
        let met = spin(self.crowded, look, |waited| {
            if let Some((member, why)) = seats.never(step) {
                return Some(Err(self.never(member, why)));
            }
            let since = patience.since.get_or_insert_with(Instant::now);
            let left = patience.timeout.saturating_sub(since.elapsed());
            if left.is_zero() {
                let missing = seats.give_up(step);
                return (!missing.is_empty()).then_some(Err(Failure::TimedOut(missing)));
            }
            if let Some(nap) = nap(waited) {
                (patience.meanwhile)();
                thread::sleep(nap.min(left));
            }
            None
        });
        if met.is_ok() {
            self.step = step;
        }
        met
    }

    /// What it means that a member will never come.
    #[cold]
    fn never(&self, member: usize, why: Closed) -> Failure {
        match self.seats.parting(member, why) {
            None => Failure::TimedOut(vec![member]),
            Some(parting) => Failure::Parted(member, parting),
        }
    }
}
