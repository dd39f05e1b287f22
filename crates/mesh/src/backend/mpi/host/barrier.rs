//! A member's way from meeting to meeting, and how it waits for the others.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    super::nontemporal::copy_nontemporal,
    slots::{Announcement, SharedSlots},
};
use crate::backend::{
    Failure,
    local::arrival::{Arrivals, Closed, StepState},
    wait::{sleep_time, spin},
};

/// A member's place among those who meet, and how far it has come.
#[derive(Debug)]
pub(super) struct HostBarrier {
    pub(super) slots: Arc<SharedSlots>,
    pub(super) me: usize,
    /// The last step that all have reached.
    pub(super) step: u64,
    /// There are more members than cores: whoever waits gives its core away.
    oversubscribed: bool,
}

/// How long a call waits, in all.
pub(super) struct CallDeadline<'a> {
    timeout: Duration,
    /// When it began to, which is not asked before it takes long.
    since: Option<Instant>,
    /// What to do meanwhile.
    meanwhile: &'a dyn Fn(),
}

impl<'a> CallDeadline<'a> {
    pub(super) fn new(timeout: Duration, meanwhile: &'a dyn Fn()) -> Self {
        CallDeadline { timeout, since: None, meanwhile }
    }
}

impl HostBarrier {
    pub(super) fn new(slots: Arc<SharedSlots>, me: usize, oversubscribed: bool) -> Self {
        HostBarrier { slots, me, step: 0, oversubscribed }
    }

    /// A part of a page, cut where the page ends.
    #[inline]
    fn within_page(&self, at: usize, bytes: usize) -> (usize, usize) {
        let page = 2 * self.slots.data;
        debug_assert!(at + bytes <= page, "past the end of a page");
        (at.min(page), bytes.min(page - at.min(page)))
    }

    /// Writes to this member's page for the next meeting, as far as there is room; where `far`, past the caches.
    #[inline]
    pub(super) fn write(&mut self, at: usize, bytes: &[u8], nontemporal: bool) {
        let room = self.write_area(at, bytes.len());
        let bytes = &bytes[..room.len()];
        if nontemporal { copy_nontemporal(room, bytes) } else { room.copy_from_slice(bytes) }
    }

    /// A part of this member's page for the next meeting, to write to.
    #[inline]
    pub(super) fn write_area(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        let (at, bytes) = self.within_page(at, bytes);
        let page = self.slots.page(self.me, self.step + 1);
        // SAFETY: within the page, which only this member writes; and nobody reads it, as all have arrived at the last
        // step and so are done with what was in it at the step before. They read it again once this member has arrived
        // at the next, which it cannot while this is borrowed.
        unsafe { std::slice::from_raw_parts_mut(page.add(at), bytes) }
    }

    /// A part of what a member wrote to its page for the last meeting.
    #[inline]
    pub(super) fn read_area(&self, member: usize, at: usize, bytes: usize) -> &[u8] {
        let (at, bytes) = self.within_page(at, bytes);
        let page = self.slots.page(member, self.step);
        // SAFETY: within the page, which its member writes again only once all have arrived at the next step. This one
        // cannot while this is borrowed.
        unsafe { std::slice::from_raw_parts(page.add(at), bytes) }
    }

    /// Meets the others, with something to say.
    #[inline]
    pub(super) fn announce_and_wait(
        &mut self,
        announced: Announcement,
        deadline: &mut CallDeadline<'_>,
    ) -> Result<(), Failure> {
        // Last: the others keep looking at this line, and take it away again and again.
        self.slots.announce(self.me, self.step + 1, announced);
        self.arrive_and_wait(deadline)
    }

    /// Meets the others: all of them come to this, or all of those that are still there fail.
    #[inline]
    pub(super) fn arrive_and_wait(&mut self, deadline: &mut CallDeadline<'_>) -> Result<(), Failure> {
        let step = self.step + 1;
        if let Err(why) = self.slots.arrive(self.me, step) {
            return Err(match self.slots.reason(self.me, why) {
                None => Failure::TooLate,
                Some(reason) => Failure::MemberLeft(self.me, reason),
            });
        }
        let mut arrived = 0;
        let slots = &*self.slots;
        let poll = || match slots.step_state(step, &mut arrived) {
            StepState::AllArrived => Some(Ok(())),
            StepState::NeverArrives(member, why) => Some(Err(self.never_arrives(member, why))),
            StepState::Waiting => None,
        };
        let result = spin(self.oversubscribed, poll, |waited| {
            if let Some((member, why)) = slots.never_arriving(step) {
                return Some(Err(self.never_arrives(member, why)));
            }
            let since = deadline.since.get_or_insert_with(Instant::now);
            let left = deadline.timeout.saturating_sub(since.elapsed());
            if left.is_zero() {
                let missing = slots.give_up(step);
                return (!missing.is_empty()).then_some(Err(Failure::TimedOut(missing)));
            }
            if let Some(sleep_time) = sleep_time(waited) {
                (deadline.meanwhile)();
                thread::sleep(sleep_time.min(left));
            }
            None
        });
        if result.is_ok() {
            self.step = step;
        }
        result
    }

    /// What it means that a member will never come.
    #[cold]
    fn never_arrives(&self, member: usize, why: Closed) -> Failure {
        match self.slots.reason(member, why) {
            None => Failure::TimedOut(vec![member]),
            Some(reason) => Failure::MemberLeft(member, reason),
        }
    }
}
