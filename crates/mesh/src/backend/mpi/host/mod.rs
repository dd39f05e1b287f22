//! Groups whose members are processes of one host, and use shared memory.
//!
//! At a group's first call its members exchange their hosts by messages. If all are on one host, the others open the
//! memory that the first member has created; once all have, the group's collectives need no messages (`call`). Sends,
//! receives and leave notices still do; a notice is also written to the member's slot. If a member cannot open the
//! memory, the group uses messages.

mod barrier;
mod call;
mod segment;
mod slots;

use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, TryLockError},
    time::Duration,
};

use barrier::{CallDeadline, HostBarrier};
use call::SharedMemoryCall;
use segment::Segment;
pub(super) use slots::SharedSlots;

use super::{
    Shared,
    call::PIECE_TAG,
    endpoint::Group,
    hash,
    header::{read_words, write_words},
    notice::NoticeSender,
    session::Session,
};
use crate::{backend::TransportFailure, comm::Call};

/// If set and not empty, groups use messages also on one host.
const MESSAGES_VARIABLE: &str = "EVENER_MPI_MESSAGES";

/// Words of a processor set, one bit per processor.
const PROCESSORS: usize = 16;

/// A member's host, process and file of the shared memory, each 0 if there is none, and the processors that it may use.
type HostInfo = [u64; 3 + PROCESSORS];

/// Connects the members by shared memory. Returns `None` if they are not all on one host.
pub(super) fn connect(
    session: &mut Session<'_>,
    notice_sender: &NoticeSender,
) -> Result<Option<SharedMemoryMember>, TransportFailure> {
    let Group { ref ranks, me, identity, .. } = *session.group;
    let (members, host) = (ranks.len(), host());
    // Its file stays open to the end of this function: then the others have opened it.
    let mut made = None;
    if me == 0 && host != 0 && members <= slots::MAX_MEMBERS {
        made = make(members, identity);
    }
    let file = made.as_ref().map_or(0, |(_, file)| file.as_raw_fd() as u64 + 1);
    let host_infos = exchange_words(session, host_info(host, file))?;
    let [_, process, file, ..] = host_infos[0];
    if host == 0 || file == 0 || host_infos.iter().any(|other| other[0] != host) {
        tracing::debug!("a group of {members} uses messages");
        return Ok(None);
    }
    let slots = match made {
        Some((slots, _)) => Some(slots),
        None => open(process, file - 1, members, identity),
    };
    let slots = slots.map(Arc::new);
    if let Some(slots) = &slots {
        // Before the others learn that it is open: from then on they look there for this member's notice.
        notice_sender.set_slots(slots.clone());
    }
    let opened = exchange_words(session, [u64::from(slots.is_some())])?;
    let all = opened.iter().all(|[opened]| *opened == 1);
    tracing::debug!("a group of {members} on one host uses {}", if all { "memory" } else { "messages" });
    let Some(slots) = slots.filter(|_| all) else { return Ok(None) };
    let barrier = HostBarrier::new(slots, me, members > processors(&host_infos));
    Ok(Some(SharedMemoryMember { barrier }))
}

/// A member of a group that uses shared memory.
#[derive(Debug)]
pub(super) struct SharedMemoryMember {
    barrier: HostBarrier,
}

impl SharedMemoryMember {
    pub(super) fn run(
        &mut self,
        shared: &Shared,
        call: &mut Call<'_>,
        timeout: Duration,
    ) -> Result<(), TransportFailure> {
        // Polls MPI, so that notices and messages of other groups make progress.
        let meanwhile = || match shared.connection.try_lock() {
            Ok(mut connection) => drop(connection.receive_notices()),
            Err(TryLockError::Poisoned(connection)) => drop(connection.into_inner().receive_notices()),
            Err(TryLockError::WouldBlock) => {}
        };
        SharedMemoryCall::new(&mut self.barrier, CallDeadline::new(timeout, &meanwhile), call).run(call)
    }
}

fn make(members: usize, identity: u64) -> Option<(SharedSlots, OwnedFd)> {
    match Segment::make(slots::bytes(members)) {
        Ok((segment, file)) => Some((SharedSlots::new(segment, members, identity), file)),
        Err(why) => {
            tracing::warn!("cannot create shared memory: {why}");
            None
        }
    }
}

fn open(process: u64, file: u64, members: usize, identity: u64) -> Option<SharedSlots> {
    match Segment::open(process as u32, file as u32, slots::bytes(members)) {
        Ok(segment) => SharedSlots::of(segment, members, identity),
        Err(why) => {
            tracing::warn!("cannot open the shared memory of process {process}: {why}");
            None
        }
    }
}

/// Exchanges words with every other member. Returns them by member.
fn exchange_words<const N: usize>(
    session: &mut Session<'_>,
    mine: [u64; N],
) -> Result<Vec<[u64; N]>, TransportFailure> {
    let mut bytes = vec![0; 8 * N];
    write_words(mine, &mut bytes);
    let messages = session.send_to_all(session.group.tag + PIECE_TAG, |_| &bytes)?;
    session.wait_all(&messages)?;
    let mut words = Vec::with_capacity(messages.len());
    for message in messages {
        words.push(message.map_or(mine, |message| read_words(session.data_of(message))));
        message.into_iter().for_each(|message| session.release(message));
    }
    session.finish()?;
    Ok(words)
}

/// Returns a number for this host and process namespace, or 0 if memory must not be shared.
fn host() -> u64 {
    if std::env::var_os(MESSAGES_VARIABLE).is_some_and(|value| !value.is_empty()) {
        return 0;
    }
    // Process ids are the same only in one namespace: containers on one machine count as different hosts.
    let kernel = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = std::fs::read_link("/proc/self/ns/pid");
    match (kernel, namespace) {
        (Ok(kernel), Ok(namespace)) => hash(format!("{kernel}{}", namespace.display()).bytes()),
        _ => 0,
    }
}

fn host_info(host: u64, file: u64) -> HostInfo {
    let mut words = [0; 3 + PROCESSORS];
    words[..3].copy_from_slice(&[host, u64::from(std::process::id()), file]);
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        let usable = (0..PROCESSORS * 64).filter(|index| set.is_set(*index));
        usable.for_each(|index| words[3 + index / 64] |= 1 << (index % 64));
    }
    words
}

/// Returns the number of processors that the members may use together.
fn processors(host_infos: &[HostInfo]) -> usize {
    let any = |word: usize| host_infos.iter().fold(0, |any, host_info| any | host_info[3 + word]);
    (0..PROCESSORS).map(|word| any(word).count_ones() as usize).sum()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn members_bound_to_one_core_have_one_together() {
        let (mut one, mut other) = ([0; 3 + PROCESSORS], [0; 3 + PROCESSORS]);
        (one[3], other[3]) = (0b01, 0b01);
        assert_eq!(processors(&[one, other]), 1);
        (other[3], other[18]) = (0b10, 1 << 63);
        assert_eq!(processors(&[one, other]), 3);
    }
}
