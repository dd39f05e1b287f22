//! A member's word that it takes no further part, and why.

use std::{
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use super::{Shared, wire::{HEADER_BYTES, Ticket, Wire}};
use crate::backend::{Farewell, Parting};

/// How much of a reason is passed on.
const MOST_TEXT: usize = 2000;

/// What was heard from a member.
#[derive(Debug, Clone)]
pub(super) struct Word {
    pub(super) member: usize,
    /// The first call that it does not take part in to the end.
    pub(super) call: u64,
    pub(super) parting: Parting,
}

impl Word {
    /// Reads a word, where it is one of this group.
    pub(super) fn read(buffer: &[u8], identity: u64, members: usize) -> Option<Word> {
        let word = |index: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&buffer[index * 8..][..8]);
            u64::from_le_bytes(bytes)
        };
        let (member, len) = (word(1) as usize, (word(4) as usize).min(MOST_TEXT));
        if word(0) != identity || member >= members {
            return None;
        }
        let text = String::from_utf8_lossy(&buffer[HEADER_BYTES..][..len]).into_owned();
        let parting = match word(3) {
            0 => Parting::Left,
            1 => Parting::Panicked,
            _ => Parting::Failed(text),
        };
        Some(Word { member, call: word(2), parting })
    }
}

/// Sends a member's word, once.
#[derive(Debug)]
pub(super) struct Speaker {
    pub(super) shared: Arc<Shared>,
    pub(super) ranks: Vec<usize>,
    pub(super) me: usize,
    pub(super) tag: c_int,
    pub(super) identity: u64,
    /// How many calls have ended well.
    pub(super) ended: Arc<AtomicU64>,
    pub(super) said: AtomicBool,
}

impl Farewell for Speaker {
    fn say(&self, why: &Parting) {
        if self.said.swap(true, SeqCst) {
            return;
        }
        let (kind, text) = match why {
            Parting::Left => (0u64, ""),
            Parting::Panicked => (1, ""),
            Parting::Failed(text) => (2, text.as_str()),
        };
        if kind != 0 {
            self.shared.failed.store(true, SeqCst);
        }
        let mut text = text.as_bytes();
        text = &text[..text.len().min(MOST_TEXT)];
        let call = self.ended.load(SeqCst) + 1;
        let words = [self.identity, self.me as u64, call, kind, text.len() as u64];
        let mut wire = self.shared.wire();
        let mut under_way: Vec<Ticket> = Vec::new();
        for (member, rank) in self.ranks.iter().enumerate().filter(|(member, _)| *member != self.me) {
            let ticket = wire.take();
            let buffer = wire.buffer(ticket);
            for (place, word) in buffer.chunks_exact_mut(8).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            buffer[HEADER_BYTES..][..text.len()].copy_from_slice(text);
            let _ = member;
            // Whoever cannot be told finds out by its timeout.
            match wire.send(ticket, HEADER_BYTES + text.len(), *rank, self.tag) {
                Ok(()) => under_way.push(ticket),
                Err(_) => wire.give_back(ticket),
            }
        }
        // Small messages are gone at once; what is not is left to MPI.
        settle(&mut **wire, under_way);
    }
}

fn settle(wire: &mut dyn Wire, mut tickets: Vec<Ticket>) {
    for _ in 0..1000 {
        tickets.retain(|ticket| match wire.is_done(*ticket) {
            Ok(true) => {
                wire.give_back(*ticket);
                false
            }
            _ => true,
        });
        if tickets.is_empty() {
            return;
        }
    }
    tickets.into_iter().for_each(|ticket| wire.abandon(ticket));
}
