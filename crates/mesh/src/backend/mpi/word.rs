//! A member's word that it takes no further part, and why.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

#[cfg(target_os = "linux")]
use super::host::Seats;
use super::{
    Shared, WORDS,
    header::{read_words, write_words},
    wire::{Ticket, Wire},
};
use crate::backend::{Failure, Farewell, Parting};

/// How much of a reason is passed on.
const MOST_TEXT: usize = 2000;
const MOST_BLAMED: usize = 1000;
/// How many bytes a word has at most, and before its text.
pub(super) const WORD_BYTES: usize = TEXT + MOST_TEXT + 4 * MOST_BLAMED;
const TEXT: usize = 64;

/// What was heard from a member.
#[derive(Debug, Clone)]
pub(super) struct Word {
    pub(super) member: usize,
    /// The first call that it does not take part in to the end.
    pub(super) call: u64,
    pub(super) parting: Parting,
}

/// Where words are heard, of all groups.
#[derive(Debug)]
pub(super) struct Ear {
    ticket: Ticket,
    /// By group.
    heard: HashMap<u64, Heard>,
}

/// What was heard of a group.
#[derive(Debug)]
enum Heard {
    Words(Vec<Word>),
    /// This rank has left it: so many words are yet to come, and are of no interest.
    Left(usize),
}

impl Ear {
    pub(super) fn new(wire: &mut Wire) -> Result<Self, Failure> {
        let ticket = wire.take();
        wire.receive(ticket, None, WORDS)?;
        Ok(Ear { ticket, heard: HashMap::new() })
    }

    /// Hears what there is to hear.
    pub(super) fn listen(&mut self, wire: &mut Wire) -> Result<(), Failure> {
        while wire.is_done(self.ticket)? {
            let (identity, word) = Word::read(wire.buffer(self.ticket));
            // Also of groups that this rank has yet to join.
            match self.heard.entry(identity).or_insert_with(|| Heard::Words(Vec::new())) {
                Heard::Words(words) => words.push(word),
                Heard::Left(0 | 1) => drop(self.heard.remove(&identity)),
                Heard::Left(count) => *count -= 1,
            }
            wire.receive(self.ticket, None, WORDS)?;
        }
        Ok(())
    }

    /// What was heard of a group.
    pub(super) fn of(&self, identity: u64) -> &[Word] {
        match self.heard.get(&identity) {
            Some(Heard::Words(words)) => words,
            _ => &[],
        }
    }

    /// Listens no more to what is said in a group of so many others, each of which says one word.
    pub(super) fn forget(&mut self, identity: u64, others: usize) {
        let left = others.saturating_sub(self.of(identity).len());
        self.heard.remove(&identity);
        if left > 0 {
            self.heard.insert(identity, Heard::Left(left));
        }
    }

    pub(super) fn close(&mut self, wire: &mut Wire) {
        wire.abandon(self.ticket);
    }
}

impl Word {
    /// Reads a word, and of which group it is.
    pub(super) fn read(buffer: &[u8]) -> (u64, Word) {
        let [identity, member, call, kind, text, blame] = read_words(buffer);
        let (text, blame) = ((text as usize).min(MOST_TEXT), (blame as usize).min(MOST_BLAMED));
        let data = &buffer[TEXT..];
        let why = String::from_utf8_lossy(&data[..text]).into_owned();
        let blame = data[text..][..blame * 4].chunks_exact(4);
        let blame = blame.map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]]) as usize).collect();
        let parting = match kind {
            0 => Parting::Left,
            1 => Parting::Panicked,
            _ => Parting::Failed { why, blame },
        };
        (identity, Word { member: member as usize, call, parting })
    }
}

/// Says a member's word, once.
#[derive(Debug)]
pub(super) struct Speaker {
    pub(super) shared: Arc<Shared>,
    pub(super) ranks: Vec<usize>,
    pub(super) me: usize,
    pub(super) identity: u64,
    /// How many calls have ended well.
    pub(super) ended: Arc<AtomicU64>,
    pub(super) spoken: Mutex<Spoken>,
}

/// What a member has said, and where else than by messages it is to be read.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    word: Option<(Parting, Vec<u8>)>,
    /// Where the members meet, once they do.
    #[cfg(target_os = "linux")]
    seats: Option<Arc<Seats>>,
}

impl Spoken {
    /// Leaves what was said at the member's seat, once there are both.
    fn leave(&self, me: usize) {
        #[cfg(target_os = "linux")]
        if let (Some((why, word)), Some(seats)) = (&self.word, &self.seats) {
            seats.part(me, why, word);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = me;
    }
}

impl Speaker {
    fn spoken(&self) -> MutexGuard<'_, Spoken> {
        // Each part of it is set once, and whole.
        self.spoken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the others look at this member's seat for its word, which may have been said already.
    #[cfg(target_os = "linux")]
    pub(super) fn sit(&self, seats: Arc<Seats>) {
        let mut spoken = self.spoken();
        spoken.seats = Some(seats);
        spoken.leave(self.me);
    }
}

impl Farewell for Speaker {
    fn say(&self, why: &Parting) {
        let mut spoken = self.spoken();
        if spoken.word.is_some() {
            return;
        }
        let (kind, text, blame) = match why {
            Parting::Left => (0u64, "", &[][..]),
            Parting::Panicked => (1, "", &[][..]),
            Parting::Failed { why, blame } => (2, why.as_str(), blame.as_slice()),
        };
        let text = &text.as_bytes()[..text.len().min(MOST_TEXT)];
        let blame = &blame[..blame.len().min(MOST_BLAMED)];
        let call = self.ended.load(SeqCst) + 1;
        let words = [self.identity, self.me as u64, call, kind, text.len() as u64, blame.len() as u64];
        let mut word = Vec::with_capacity(WORD_BYTES);
        word.resize(TEXT, 0);
        write_words(words, &mut word);
        word.extend_from_slice(text);
        word.extend(blame.iter().flat_map(|rank| (*rank as u32).to_le_bytes()));
        spoken.word = Some((why.clone(), word.clone()));
        spoken.leave(self.me);
        drop(spoken);
        let mut line = self.shared.line();
        let wire = &mut line.wire;
        let mut under_way: Vec<Ticket> = Vec::new();
        for (_, rank) in self.ranks.iter().enumerate().filter(|(member, _)| *member != self.me) {
            let ticket = wire.take();
            wire.buffer(ticket)[..word.len()].copy_from_slice(&word);
            // Whoever cannot be told finds out by its timeout.
            match wire.send(ticket, word.len(), *rank, WORDS) {
                Ok(()) => under_way.push(ticket),
                Err(_) => wire.give_back(ticket),
            }
        }
        // Small messages are gone at once; what is not is left to MPI.
        settle(wire, under_way);
    }
}

fn settle(wire: &mut Wire, mut tickets: Vec<Ticket>) {
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
