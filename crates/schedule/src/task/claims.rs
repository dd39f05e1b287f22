//! Which items of a chunk its worker has begun, so that other lanes can steal the rest.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::ops::Range;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Request: end the chunk after the items that are begun, because another lane is idle or has to be watched.
const YIELD: u8 = 1;
/// Request: stop, because the run has ended and needs no more results.
const OVER: u8 = 2;

/// A chunk's items, shared between its worker, which claims items from the front before it begins them, and other lanes,
/// which steal from the end. Items are counted from the chunk's first.
///
/// One word holds both the number of items claimed and the chunk's end, and every change of either is one
/// compare-and-exchange of the whole word. So an item is either claimed by the worker or stolen, never both.
///
/// The worker writes it every few items, so it is aligned to two cache lines, which x86-64 processors fetch together. Its
/// layout is fixed, and all bits zero is a value, so it can be in memory that processes share.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Claims {
    /// The end in the high half, the number of items claimed in the low half.
    word: AtomicU64,
    /// Requests to the worker, as bits.
    requests: AtomicU8,
}

/// Maximum number of items in a chunk that can be divided.
pub const MAX_DIVISIBLE_ITEMS: u64 = u32::MAX as u64;

fn pack(claimed: u32, end: u32) -> u64 {
    (u64::from(end) << 32) | u64::from(claimed)
}

fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Default for Claims {
    fn default() -> Self {
        Claims { word: AtomicU64::new(0), requests: AtomicU8::new(0) }
    }
}

impl Claims {
    /// Begins a chunk of `items` items. The worker calls this before any other lane knows of the chunk.
    pub fn begin(&self, items: u64) {
        let end = u32::try_from(items).unwrap_or(u32::MAX);
        self.requests.fetch_and(OVER, Ordering::Relaxed);
        self.word.store(pack(0, end), Ordering::SeqCst);
    }

    /// Ends the chunk, and forgets all requests. Called while the worker has no chunk.
    pub fn reset(&self) {
        self.word.store(0, Ordering::SeqCst);
        self.requests.store(0, Ordering::SeqCst);
    }

    /// Claims the worker's next items, at most `max`. Returns `None` at the chunk's end.
    ///
    /// A worker that is asked to yield ends its chunk at the next multiple of `unit` items, but after at least one item.
    pub fn claim(&self, max: u32, unit: u32) -> Option<Range<u32>> {
        let mut word = self.word.load(Ordering::SeqCst);
        loop {
            let (claimed, mut end) = unpack(word);
            let requests = self.requests.load(Ordering::Relaxed);
            if requests & OVER != 0 {
                return None;
            }
            if requests & YIELD != 0 && claimed > 0 {
                end = end.min(claimed.next_multiple_of(unit.max(1)));
            }
            let until = claimed.saturating_add(max.max(1)).min(end);
            match self.word.compare_exchange(word, pack(until, end), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return (claimed < until).then_some(claimed..until),
                Err(now) => word = now,
            }
        }
    }

    /// Gives back the claimed items from `from` on, which the worker has not begun.
    pub fn unclaim(&self, from: u32) {
        let mut word = self.word.load(Ordering::SeqCst);
        loop {
            let (claimed, end) = unpack(word);
            let new = pack(from.min(claimed), end);
            match self.word.compare_exchange(word, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Steals a fraction of the unclaimed items from the end, at most `max`, beginning at a multiple of `unit`. If there
    /// are none, asks the worker to give back the items that it has claimed and not begun.
    pub fn steal(&self, fraction: f64, max: u64, unit: u32) -> Option<Range<u32>> {
        let unit = unit.max(1);
        let mut word = self.word.load(Ordering::SeqCst);
        loop {
            let (claimed, end) = unpack(word);
            // The worker keeps at least one item, so that its chunk is never empty.
            let free = claimed.max(1).next_multiple_of(unit)..end;
            if free.is_empty() {
                self.ask_to_yield();
                return None;
            }
            let count = (f64::from(free.end - free.start) * fraction).ceil().min(max as f64) as u32;
            let start = free.end - count.clamp(1, free.end - free.start);
            // Whole units, at least one: `free` begins with one.
            let start = start.next_multiple_of(unit).min((end - 1) / unit * unit);
            match self.word.compare_exchange(word, pack(claimed, start), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(start..end),
                Err(now) => word = now,
            }
        }
    }

    /// Number of items that the worker has claimed.
    pub fn claimed(&self) -> u32 {
        unpack(self.word.load(Ordering::SeqCst)).0
    }

    /// Number of items that can be stolen: the unclaimed ones, except the chunk's first, which the worker keeps.
    pub fn unclaimed(&self) -> u64 {
        let (claimed, end) = unpack(self.word.load(Ordering::Relaxed));
        u64::from(end.saturating_sub(claimed.max(1)))
    }

    /// The chunk's end.
    pub fn end(&self) -> u32 {
        unpack(self.word.load(Ordering::SeqCst)).1
    }

    /// Asks the worker to end its chunk after the items that it has begun.
    pub fn ask_to_yield(&self) {
        self.requests.fetch_or(YIELD, Ordering::Relaxed);
    }

    /// Asks the worker to stop, because the run has ended.
    pub fn end_run(&self) {
        self.requests.fetch_or(OVER, Ordering::Relaxed);
    }

    /// Whether the worker is asked for anything: one load, cheap enough before every item.
    #[inline]
    pub fn is_interrupted(&self) -> bool {
        self.requests.load(Ordering::Relaxed) != 0
    }

    /// Whether the worker is asked to stop.
    pub fn is_over(&self) -> bool {
        self.requests.load(Ordering::Relaxed) & OVER != 0
    }
}

#[cfg(all(test, loom))]
mod with_loom {
    use std::sync::Mutex;

    use loom::sync::Arc;

    use super::*;

    #[test]
    fn every_item_is_claimed_or_stolen_and_never_both() {
        loom::model(|| {
            let claims = Arc::new(Claims::default());
            claims.begin(4);
            let seen = Arc::new(Mutex::new(Vec::new()));
            let thief = {
                let (claims, seen) = (claims.clone(), seen.clone());
                loom::thread::spawn(move || {
                    if let Some(stolen) = claims.steal(0.5, 4, 1) {
                        seen.lock().unwrap().extend(stolen);
                    }
                })
            };
            while let Some(block) = claims.claim(2, 1) {
                let begun = block.start + 1;
                seen.lock().unwrap().push(block.start);
                // It begins one item of a block, and gives back the others.
                claims.unclaim(begun);
                if claims.claimed() == begun && claims.is_interrupted() {
                    continue;
                }
            }
            thief.join().unwrap();
            // What the worker gave up by yielding is given back to the run.
            let mut seen = seen.lock().unwrap().clone();
            let end = claims.end();
            seen.sort_unstable();
            let mut expected: Vec<u32> = (0..end).collect();
            expected.extend(seen.iter().filter(|item| **item >= end));
            assert_eq!(seen, expected);
            let mut unique = seen.clone();
            unique.dedup();
            assert_eq!(unique, seen);
        });
    }

    #[test]
    fn two_thieves_and_a_worker_that_yields_account_for_every_item() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let claims = Arc::new(Claims::default());
            claims.begin(4);
            let spawn = |part: f64| {
                let claims = claims.clone();
                loom::thread::spawn(move || claims.steal(part, 9, 1))
            };
            let (first, second) = (spawn(0.5), spawn(0.9));
            let mut done = 0;
            while let Some(block) = claims.claim(2, 1) {
                assert_eq!(block.start, done);
                done += 1;
                for item in block.start + 1..block.end {
                    if claims.is_interrupted() {
                        claims.unclaim(item);
                        break;
                    }
                    done += 1;
                }
            }
            let (first, second) = (first.join().unwrap(), second.join().unwrap());
            let end = claims.end();
            assert_eq!((done, claims.claimed()), (end, end));
            assert!(claims.steal(1.0, 9, 1).is_none());
            // The worker has everything up to the end, and the thieves have different items from there on.
            let mut taken: Vec<u32> = first.into_iter().chain(second).flatten().collect();
            taken.sort_unstable();
            assert!(taken.windows(2).all(|pair| pair[0] < pair[1]) && taken.iter().all(|item| *item >= end));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod test {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    };

    use super::*;

    #[test]
    fn claims_come_from_the_front_and_thefts_from_the_end() {
        let claims = Claims::default();
        claims.begin(10);
        assert_eq!(claims.claim(3, 1), Some(0..3));
        assert_eq!(claims.steal(0.5, 100, 1), Some(6..10));
        assert_eq!(claims.steal(1.0, 2, 1), Some(4..6), "at most two");
        claims.unclaim(1);
        assert_eq!(claims.claim(100, 1), Some(1..4));
        assert_eq!(claims.claim(100, 1), None);
        assert_eq!((claims.claimed(), claims.end()), (4, 4));
        assert_eq!(claims.steal(0.5, 1, 1), None);
        assert!(claims.is_interrupted(), "it is asked to give back what it has not begun");
    }

    #[test]
    fn a_worker_that_is_asked_to_yield_ends_its_chunk_after_at_least_one_item() {
        let claims = Claims::default();
        claims.begin(100);
        claims.ask_to_yield();
        assert_eq!(claims.claim(4, 1), Some(0..4));
        claims.unclaim(2);
        assert_eq!(claims.claim(4, 1), None);
        assert_eq!(claims.end(), 2);
        claims.begin(100);
        claims.claim(4, 10);
        claims.ask_to_yield();
        assert_eq!(claims.claim(50, 10), Some(4..10), "units are not cut");
        assert_eq!(claims.claim(50, 10), None);
    }

    #[test]
    fn units_are_not_cut_by_thefts() {
        let claims = Claims::default();
        claims.begin(25);
        claims.claim(3, 10);
        assert_eq!(claims.steal(0.5, 100, 10), Some(20..25));
        assert_eq!(claims.steal(0.5, 100, 10), Some(10..20));
        assert_eq!(claims.steal(0.5, 100, 10), None, "the first unit would have to be cut");
        claims.begin(1);
        assert_eq!(claims.steal(1.0, 9, 1), None, "the worker keeps one");
    }

    #[test]
    fn every_item_is_done_once_however_many_steal() {
        for round in 0..if cfg!(miri) { 2 } else { 50 } {
            const ITEMS: u32 = 2_000;
            let claims = Arc::new(Claims::default());
            claims.begin(u64::from(ITEMS));
            let done: Arc<Vec<AtomicU32>> = Arc::new((0..ITEMS).map(|_| AtomicU32::new(0)).collect());
            let thieves: Vec<_> = (0..3)
                .map(|_| {
                    let (claims, done) = (claims.clone(), done.clone());
                    std::thread::spawn(move || {
                        while let Some(stolen) = claims.steal(0.3, 50, 1) {
                            stolen.for_each(|item| {
                                done[item as usize].fetch_add(1, SeqCst);
                            });
                        }
                    })
                })
                .collect();
            let mut size = 1 + round % 3;
            while let Some(block) = claims.claim(size, 1) {
                for item in block.clone() {
                    if item > block.start && claims.is_interrupted() {
                        claims.unclaim(item);
                        break;
                    }
                    done[item as usize].fetch_add(1, SeqCst);
                }
                size = (size * 2).min(64);
            }
            thieves.into_iter().for_each(|thief| thief.join().unwrap());
            let end = claims.end();
            let counts: Vec<u32> = done.iter().map(|count| count.load(SeqCst)).collect();
            assert!(counts.iter().all(|&count| count <= 1));
            assert!(counts[..end as usize].iter().all(|&count| count == 1));
        }
    }
}
