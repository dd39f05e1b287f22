//! Leave notices: a member's message that it leaves a group, and why.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

#[cfg(target_os = "linux")]
use super::host::SharedSlots;
use super::{
    NOTICE_TAG,
    buffers::MessageId,
    endpoint::Group,
    header::{read_words, write_words},
    messenger::Messenger,
    session::others,
};
use crate::backend::{LeaveNotifier, LeaveReason, TransportFailure};

/// Maximum bytes of an error text, and maximum number of blamed ranks.
const MAX_TEXT_BYTES: usize = 2000;
const MAX_BLAMED: usize = 1000;
/// Maximum bytes of a notice, and the offset of its text.
pub(super) const NOTICE_BYTES: usize = TEXT_OFFSET + MAX_TEXT_BYTES + 4 * MAX_BLAMED;
const TEXT_OFFSET: usize = 64;

/// A member's notice that it has left.
#[derive(Debug, Clone)]
pub(super) struct LeaveNotice {
    pub(super) member: usize,
    /// The first call that the member does not complete.
    pub(super) call: u64,
    pub(super) reason: LeaveReason,
}

/// Receives the notices of all groups.
#[derive(Debug)]
pub(super) struct NoticeReceiver {
    message: MessageId,
    groups: HashMap<u64, GroupNotices>,
}

#[derive(Debug)]
enum GroupNotices {
    Received(Vec<LeaveNotice>),
    /// This rank has left the group: this many notices are still to come, and are dropped.
    Left(usize),
}

impl NoticeReceiver {
    pub(super) fn new(messenger: &mut Messenger) -> Result<Self, TransportFailure> {
        let message = messenger.take();
        messenger.receive(message, None, NOTICE_TAG)?;
        Ok(NoticeReceiver { message, groups: HashMap::new() })
    }

    pub(super) fn receive_notices(&mut self, messenger: &mut Messenger) -> Result<(), TransportFailure> {
        while messenger.is_done(self.message)? {
            let (identity, notice) = LeaveNotice::read(messenger.buffer(self.message));
            // The group may be one that this rank has not joined yet.
            match self.groups.entry(identity).or_insert_with(|| GroupNotices::Received(Vec::new())) {
                GroupNotices::Received(notices) => notices.push(notice),
                GroupNotices::Left(0 | 1) => drop(self.groups.remove(&identity)),
                GroupNotices::Left(count) => *count -= 1,
            }
            messenger.receive(self.message, None, NOTICE_TAG)?;
        }
        Ok(())
    }

    pub(super) fn of(&self, identity: u64) -> &[LeaveNotice] {
        match self.groups.get(&identity) {
            Some(GroupNotices::Received(notices)) => notices,
            _ => &[],
        }
    }

    /// Drops the notices of a group with `others` other members, each of which sends one.
    pub(super) fn forget(&mut self, identity: u64, others: usize) {
        let left = others.saturating_sub(self.of(identity).len());
        self.groups.remove(&identity);
        if left > 0 {
            self.groups.insert(identity, GroupNotices::Left(left));
        }
    }

    pub(super) fn close(&mut self, messenger: &mut Messenger) {
        messenger.abandon(self.message);
    }
}

impl LeaveNotice {
    pub(super) fn read(buffer: &[u8]) -> (u64, LeaveNotice) {
        let [identity, member, call, kind, text, blame] = read_words(buffer);
        let (text, blame) = ((text as usize).min(MAX_TEXT_BYTES), (blame as usize).min(MAX_BLAMED));
        let data = &buffer[TEXT_OFFSET..];
        let why = String::from_utf8_lossy(&data[..text]).into_owned();
        let blame = data[text..][..blame * 4].chunks_exact(4);
        let blame = blame.map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]]) as usize).collect();
        let reason = match kind {
            0 => LeaveReason::Left,
            1 => LeaveReason::Panicked,
            _ => LeaveReason::Failed { why, blame },
        };
        (identity, LeaveNotice { member: member as usize, call, reason })
    }
}

/// Sends a member's notice, once.
#[derive(Debug)]
pub(super) struct NoticeSender {
    pub(super) group: Arc<Group>,
    pub(super) ended: Arc<AtomicU64>,
    pub(super) sent: Mutex<SentNotice>,
}

/// The notice that a member has sent, and the shared slots that it is also written to.
#[derive(Debug, Default)]
pub(super) struct SentNotice {
    notice: Option<(LeaveReason, Vec<u8>)>,
    /// Set if the group uses shared memory.
    #[cfg(target_os = "linux")]
    slots: Option<Arc<SharedSlots>>,
}

impl SentNotice {
    /// Writes the notice to the member's slot, once both exist.
    fn write_to_slot(&self, me: usize) {
        #[cfg(target_os = "linux")]
        if let (Some((why, notice)), Some(slots)) = (&self.notice, &self.slots) {
            slots.close_own(me, why, notice);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = me;
    }
}

impl NoticeSender {
    fn sent(&self) -> MutexGuard<'_, SentNotice> {
        // Ignores poisoning: each field is set once, and whole.
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the shared slots, where the other members look for the notice from now on. It may have been sent already.
    #[cfg(target_os = "linux")]
    pub(super) fn set_slots(&self, slots: Arc<SharedSlots>) {
        let mut sent = self.sent();
        sent.slots = Some(slots);
        sent.write_to_slot(self.group.me);
    }
}

impl LeaveNotifier for NoticeSender {
    fn notify(&self, why: &LeaveReason) {
        let mut sent = self.sent();
        if sent.notice.is_some() {
            return;
        }
        let (kind, text, blame) = match why {
            LeaveReason::Left => (0u64, "", &[][..]),
            LeaveReason::Panicked => (1, "", &[][..]),
            LeaveReason::Failed { why, blame } => (2, why.as_str(), blame.as_slice()),
        };
        let text = &text.as_bytes()[..text.len().min(MAX_TEXT_BYTES)];
        let blame = &blame[..blame.len().min(MAX_BLAMED)];
        let Group { ref ranks, me, identity, .. } = *self.group;
        let call = self.ended.load(SeqCst) + 1;
        let words = [identity, me as u64, call, kind, text.len() as u64, blame.len() as u64];
        let mut notice = Vec::with_capacity(NOTICE_BYTES);
        notice.resize(TEXT_OFFSET, 0);
        write_words(words, &mut notice);
        notice.extend_from_slice(text);
        notice.extend(blame.iter().flat_map(|rank| (*rank as u32).to_le_bytes()));
        sent.notice = Some((why.clone(), notice.clone()));
        sent.write_to_slot(self.group.me);
        drop(sent);
        let Some(mut connection) = self.group.shared.live_connection() else { return };
        let messenger = &mut connection.messenger;
        let mut in_flight: Vec<MessageId> = Vec::new();
        for rank in others(ranks.len(), me).map(|member| ranks[member]) {
            let message = messenger.take();
            messenger.buffer(message)[..notice.len()].copy_from_slice(&notice);
            // A member that cannot be notified times out.
            match messenger.send(message, notice.len(), rank, NOTICE_TAG) {
                Ok(()) => in_flight.push(message),
                Err(_) => messenger.give_back(message),
            }
        }
        // Small messages are sent at once; others are abandoned to MPI.
        finish_sends(messenger, in_flight);
    }
}

fn finish_sends(messenger: &mut Messenger, mut messages: Vec<MessageId>) {
    for _ in 0..1000 {
        messages.retain(|message| match messenger.is_done(*message) {
            Ok(true) => {
                messenger.give_back(*message);
                false
            }
            _ => true,
        });
        if messages.is_empty() {
            return;
        }
    }
    messages.into_iter().for_each(|message| messenger.abandon(message));
}
