//! The shelf: blocks of memory that were returned and wait to be used again.
//!
//! Drivers take long to hand out memory (a pinned megabyte costs a millisecond), so blocks are kept by
//! size class. A class is a power of two below a mebibyte and an eighth of one above, so at most half,
//! respectively an eighth, of a block is idle.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::MemoryUse;

/// The size of the block that serves a request of this many bytes.
pub(crate) fn class_bytes(bytes: u64) -> u64 {
    const SMALLEST: u64 = 256;
    const FINE_FROM: u64 = 1 << 20;
    let bytes = bytes.max(SMALLEST);
    if bytes <= FINE_FROM {
        return bytes.next_power_of_two();
    }
    let step = (1u64 << (63 - bytes.leading_zeros())) / 8;
    bytes.div_ceil(step).saturating_mul(step)
}

/// Blocks by size class, and the count of what is out.
#[derive(Debug)]
pub(crate) struct Shelf<B> {
    blocks: Mutex<BTreeMap<u64, Vec<B>>>,
    in_use: AtomicU64,
    peak: AtomicU64,
    shelved: AtomicU64,
}

impl<B> Default for Shelf<B> {
    fn default() -> Self {
        Shelf {
            blocks: Mutex::default(),
            in_use: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            shelved: AtomicU64::new(0),
        }
    }
}

impl<B> Shelf<B> {
    /// A block of this class, if one is here. Counts it as in use.
    pub(crate) fn take(&self, class: u64) -> Option<B> {
        let block = self.lock().get_mut(&class)?.pop()?;
        self.shelved.fetch_sub(class, Relaxed);
        self.count(class);
        Some(block)
    }

    /// Counts a block of this class as in use that did not come from the shelf.
    pub(crate) fn count(&self, class: u64) {
        let now = self.in_use.fetch_add(class, Relaxed) + class;
        self.peak.fetch_max(now, Relaxed);
    }

    /// Counts a block of this class as no longer in use, without keeping it.
    pub(crate) fn discount(&self, class: u64) {
        self.in_use.fetch_sub(class, Relaxed);
    }

    /// Keeps a block that is no longer in use.
    pub(crate) fn put(&self, class: u64, block: B) {
        self.discount(class);
        self.shelved.fetch_add(class, Relaxed);
        self.lock().entry(class).or_default().push(block);
    }

    /// Takes everything off the shelf, for the caller to drop.
    pub(crate) fn clear(&self) -> Vec<B> {
        let taken = std::mem::take(&mut *self.lock());
        taken
            .into_iter()
            .flat_map(|(class, blocks)| {
                self.shelved.fetch_sub(class * blocks.len() as u64, Relaxed);
                blocks
            })
            .collect()
    }

    /// What is out and what is here.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        MemoryUse {
            in_use_bytes: self.in_use.load(Relaxed),
            peak_bytes: self.peak.load(Relaxed),
            shelved_bytes: self.shelved.load(Relaxed),
        }
    }

    // A panic while the lock was held cannot leave the map half-changed in a way that matters.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<B>>> {
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
        let shelf = Shelf::default();
        shelf.count(256);
        shelf.count(512);
        shelf.put(256, "block");
        assert_eq!(shelf.memory_use(), MemoryUse { in_use_bytes: 512, peak_bytes: 768, shelved_bytes: 256 });
        assert_eq!(shelf.take(512), None);
        assert_eq!(shelf.take(256), Some("block"));
        assert_eq!(shelf.memory_use(), MemoryUse { in_use_bytes: 768, peak_bytes: 768, shelved_bytes: 0 });
        shelf.put(256, "block");
        assert_eq!(shelf.clear(), ["block"]);
        assert_eq!(shelf.memory_use().shelved_bytes, 0);
    }
}
