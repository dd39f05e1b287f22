//! The shelf: blocks of memory that were returned and wait to be used again.
//!
//! Drivers take long to hand out memory (a pinned megabyte costs a millisecond), so blocks are kept by size class. A class
//! is a power of two below a mebibyte, an eighth of one above, and a multiple of two mebibytes above 256, so that at most
//! half, an eighth and next to nothing of a block is idle. A large request is also served by a shelved block that is up to
//! an eighth larger.
//!
//! A shelf has a cap. [`Shelf::excess`] gives the blocks above it, the longest unused first, for the caller to free: some
//! drivers wait for all work before they free memory, so only the back end knows a good moment for that.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::MemoryUsage;

/// The smallest block. All blocks have a multiple of it.
const SMALLEST: u64 = 256;

/// Classes above this are an eighth of a power of two apart.
const FINE_FROM: u64 = 1 << 20;

/// Requests above this are rounded up to a multiple of `GRANULE` only.
const EXACT_FROM: u64 = 256 << 20;

/// What drivers hand out large memory in.
const GRANULE: u64 = 2 << 20;

/// The size of the block that serves a request of this many bytes.
pub(crate) fn class_bytes(bytes: u64) -> u64 {
    let bytes = bytes.max(SMALLEST);
    if bytes <= FINE_FROM {
        return bytes.next_power_of_two();
    }
    let step = if bytes > EXACT_FROM { GRANULE } else { (1u64 << (63 - bytes.leading_zeros())) / 8 };
    bytes.div_ceil(step).saturating_mul(step)
}

/// The size of the smallest block that serves a request of this many bytes, for where there is no room for its class.
pub(crate) fn exact_bytes(bytes: u64) -> u64 {
    bytes.max(SMALLEST).checked_next_multiple_of(SMALLEST).unwrap_or(u64::MAX)
}

/// Blocks by size, and the count of what is out.
#[derive(Debug)]
pub(crate) struct Shelf<B> {
    blocks: Mutex<Blocks<B>>,
    /// Maximum bytes to keep.
    cap: u64,
    in_use: AtomicU64,
    peak: AtomicU64,
    shelved: AtomicU64,
}

#[derive(Debug)]
struct Blocks<B> {
    /// The blocks of each size, with the number of their return, the longest unused first. No list is empty.
    by_size: BTreeMap<u64, Vec<(u64, B)>>,
    /// How many blocks were ever returned.
    returned: u64,
}

impl<B> Shelf<B> {
    /// An empty shelf that keeps so many bytes.
    pub(crate) fn new(cap: u64) -> Self {
        Shelf {
            blocks: Mutex::new(Blocks { by_size: BTreeMap::new(), returned: 0 }),
            cap,
            in_use: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            shelved: AtomicU64::new(0),
        }
    }

    /// A block for this class and its size, if one is here. Counts it as in use.
    pub(crate) fn take(&self, class: u64) -> Option<(u64, B)> {
        let largest = if class > EXACT_FROM { class.saturating_add(class / 8) } else { class };
        let (size, block) = {
            let mut blocks = self.lock();
            let (&size, list) = blocks.by_size.range_mut(class..=largest).next()?;
            let (_, block) = list.pop()?;
            if list.is_empty() {
                blocks.by_size.remove(&size);
            }
            (size, block)
        };
        self.shelved.fetch_sub(size, Relaxed);
        self.count(size);
        Some((size, block))
    }

    /// Counts a block of this size as in use that did not come from the shelf.
    pub(crate) fn count(&self, size: u64) {
        let now = self.in_use.fetch_add(size, Relaxed) + size;
        self.peak.fetch_max(now, Relaxed);
    }

    /// Counts a block of this size as no longer in use, without keeping it.
    pub(crate) fn discount(&self, size: u64) {
        self.in_use.fetch_sub(size, Relaxed);
    }

    /// Keeps a block that is no longer in use.
    pub(crate) fn put(&self, size: u64, block: B) {
        self.discount(size);
        self.shelved.fetch_add(size, Relaxed);
        let mut blocks = self.lock();
        let number = blocks.returned;
        blocks.returned += 1;
        blocks.by_size.entry(size).or_default().push((number, block));
    }

    /// Takes the blocks off the shelf that are more than its cap, the longest unused first, for the caller to free.
    pub(crate) fn excess(&self) -> Vec<B> {
        let mut excess = Vec::new();
        if self.shelved.load(Relaxed) <= self.cap {
            return excess;
        }
        let mut blocks = self.lock();
        while self.shelved.load(Relaxed) > self.cap {
            let oldest = |(_, list): &(&u64, &Vec<(u64, B)>)| list.first().map(|(number, _)| *number);
            let Some((&size, _)) = blocks.by_size.iter().min_by_key(oldest) else { break };
            let Some(list) = blocks.by_size.get_mut(&size) else { break };
            excess.push(list.remove(0).1);
            if list.is_empty() {
                blocks.by_size.remove(&size);
            }
            self.shelved.fetch_sub(size, Relaxed);
        }
        excess
    }

    /// Takes everything off the shelf, for the caller to free.
    pub(crate) fn clear(&self) -> Vec<B> {
        let taken = std::mem::take(&mut self.lock().by_size);
        taken
            .into_iter()
            .flat_map(|(size, blocks)| {
                self.shelved.fetch_sub(size * blocks.len() as u64, Relaxed);
                blocks.into_iter().map(|(_, block)| block)
            })
            .collect()
    }

    /// What is out and what is here.
    pub(crate) fn memory_use(&self) -> MemoryUsage {
        MemoryUsage {
            in_use_bytes: self.in_use.load(Relaxed),
            peak_bytes: self.peak.load(Relaxed),
            shelved_bytes: self.shelved.load(Relaxed),
            ..MemoryUsage::default()
        }
    }

    // A panic while the lock was held cannot leave the map half-changed in a way that matters.
    fn lock(&self) -> MutexGuard<'_, Blocks<B>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_block_is_never_smaller_than_asked_and_wastes_at_most_an_eighth_above_a_mebibyte() {
        for bytes in (0..60).flat_map(|p| [(1u64 << p) - 1, 1 << p, (1 << p) + 1, (1 << p) * 3 / 2 + 7]) {
            let class = class_bytes(bytes);
            assert!(class >= bytes, "{bytes} got {class}");
            assert_eq!(class_bytes(class), class, "classes are fixed points");
            if bytes > 1 << 20 {
                assert!((class - bytes) as f64 <= bytes as f64 / 8.0, "{bytes} got {class}");
            }
        }
    }

    #[test]
    fn a_returned_block_is_used_again_and_counted_once() {
        let shelf = Shelf::new(u64::MAX);
        let counted = || {
            let MemoryUsage { in_use_bytes, peak_bytes, shelved_bytes, .. } = shelf.memory_use();
            (in_use_bytes, peak_bytes, shelved_bytes)
        };
        shelf.count(256);
        shelf.count(512);
        shelf.put(256, "block");
        assert_eq!(counted(), (512, 768, 256));
        assert_eq!(shelf.take(512), None);
        assert_eq!(shelf.take(256), Some((256, "block")));
        assert_eq!(counted(), (768, 768, 0));
        shelf.put(256, "block");
        assert_eq!(shelf.clear(), ["block"]);
        assert_eq!(shelf.memory_use().shelved_bytes, 0);
    }

    #[test]
    fn large_requests_get_no_more_than_they_asked_for() {
        const GIB: u64 = 1 << 30;
        assert_eq!(class_bytes(129 * GIB), 129 * GIB);
        assert_eq!(class_bytes(129 * GIB + 1), 129 * GIB + (2 << 20));
        assert_eq!(class_bytes(u64::MAX), u64::MAX, "and nothing overflows");
        assert_eq!(exact_bytes(u64::MAX), u64::MAX);
        assert_eq!((exact_bytes(0), exact_bytes(257), exact_bytes(9 * GIB)), (256, 512, 9 * GIB));
    }

    #[test]
    fn a_large_request_is_served_by_a_block_that_is_a_little_larger() {
        const GIB: u64 = 1 << 30;
        let shelf = Shelf::new(u64::MAX);
        shelf.count(9 * GIB);
        shelf.put(9 * GIB, "block");
        assert_eq!(shelf.take(7 * GIB), None, "too much would be idle");
        assert_eq!(shelf.take(9 * GIB + (2 << 20)), None, "too small");
        assert_eq!(shelf.take(8 * GIB), Some((9 * GIB, "block")));
        assert_eq!(shelf.memory_use().in_use_bytes, 9 * GIB, "counted as what it is");
    }

    #[test]
    fn a_shelf_gives_up_what_is_above_its_cap_longest_unused_first() {
        let shelf = Shelf::new(1000);
        for (size, block) in [(256, "first"), (512, "second"), (256, "third"), (256, "fourth")] {
            shelf.count(size);
            shelf.put(size, block);
        }
        assert_eq!(shelf.take(256), Some((256, "fourth")), "the latest is used again first");
        shelf.put(256, "fourth");
        assert_eq!(shelf.excess(), ["first", "second"]);
        assert_eq!(shelf.memory_use().shelved_bytes, 512);
        assert_eq!(shelf.excess(), [""; 0]);
        assert_eq!(shelf.clear(), ["third", "fourth"]);
    }
}
