//! A barrier of processes of one host, with pages of shared memory.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    super::stores::{copy_nontemporal, fence},
    slots::{Announcement, SharedSlots},
};
use crate::backend::{
    TransportFailure,
    local::arrival::{Arrivals, Closed, StepState},
    wait::{sleep_time, spin},
};

/// One member of a barrier of processes, and the step that it has reached.
#[derive(Debug)]
pub(super) struct HostBarrier {
    pub(super) slots: Arc<SharedSlots>,
    pub(super) me: usize,
    /// The last step that all members have reached.
    pub(super) step: u64,
    /// There are more members than cores: waiting threads yield at once.
    oversubscribed: bool,
}

/// The timeout of a call, over all its steps.
pub(super) struct CallDeadline<'a> {
    timeout: Duration,
    /// When waiting started, set once it takes long.
    since: Option<Instant>,
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

    /// Clamps a range to the page.
    #[inline]
    fn within_page(&self, at: usize, bytes: usize) -> (usize, usize) {
        let page = 2 * self.slots.data;
        debug_assert!(at + bytes <= page, "past the end of a page");
        (at.min(page), bytes.min(page - at.min(page)))
    }

    /// Writes to this member's page for the next step, past the caches if `nontemporal`.
    #[inline]
    pub(super) fn write(&mut self, at: usize, bytes: &[u8], nontemporal: bool) {
        let area = self.write_area(at, bytes.len());
        let bytes = &bytes[..area.len()];
        if nontemporal {
            copy_nontemporal(area, bytes);
            fence();
        } else {
            area.copy_from_slice(bytes);
        }
    }

    /// Returns a range of this member's page for the next step.
    #[inline]
    pub(super) fn write_area(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        let (at, bytes) = self.within_page(at, bytes);
        let page = self.slots.page(self.me, self.step + 1);
        // SAFETY: `within_page` clamps the range to the page, which only this member writes. No member reads it: all
        // have arrived at the last step, so they are done with the step before, which used this page. They read it
        // again once this member arrives at the next step, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(page.add(at), bytes) }
    }

    /// Returns a range of a member's page of the last step.
    #[inline]
    pub(super) fn read_area(&self, member: usize, at: usize, bytes: usize) -> &[u8] {
        let (at, bytes) = self.within_page(at, bytes);
        let page = self.slots.page(member, self.step);
        // SAFETY: `within_page` clamps the range to the page, which its member writes again only once all have arrived
        // at the next step; this member's arrival needs `&mut self`.
        unsafe { std::slice::from_raw_parts(page.add(at), bytes) }
    }

    /// Announces a call, arrives at the next step, and waits for all members.
    #[inline]
    pub(super) fn announce_and_wait(
        &mut self,
        announced: Announcement,
        deadline: &mut CallDeadline<'_>,
    ) -> Result<(), TransportFailure> {
        // Last, because the other members poll this cache line.
        self.slots.announce(self.me, self.step + 1, announced);
        self.arrive_and_wait(deadline)
    }

    /// Arrives at the next step and waits for all members: all of them succeed, or all that are left fail.
    #[inline]
    pub(super) fn arrive_and_wait(
        &mut self,
        deadline: &mut CallDeadline<'_>,
    ) -> Result<(), TransportFailure> {
        let step = self.step + 1;
        if let Err(why) = self.slots.arrive(self.me, step) {
            return Err(match self.slots.reason(self.me, why) {
                None => TransportFailure::TooLate,
                Some(reason) => TransportFailure::MemberLeft(self.me, reason),
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
                return (!missing.is_empty()).then_some(Err(TransportFailure::TimedOut(missing)));
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

    #[cold]
    fn never_arrives(&self, member: usize, why: Closed) -> TransportFailure {
        match self.slots.reason(member, why) {
            None => TransportFailure::TimedOut(vec![member]),
            Some(reason) => TransportFailure::MemberLeft(member, reason),
        }
    }
}
