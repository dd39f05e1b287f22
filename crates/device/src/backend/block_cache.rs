//! A cache of free memory blocks, by size class.
//!
//! Allocating from a driver is slow (a mebibyte of pinned memory takes a millisecond), so freed blocks are kept for reuse.
//! Size classes are powers of two up to 1 MiB, eighths of a power of two up to 256 MiB, and multiples of 2 MiB above. A block
//! therefore wastes at most half, an eighth, and next to nothing of its bytes. A request above 256 MiB may also get a cached
//! block that is up to an eighth larger.
//!
//! A cache has a cap. [`BlockCache::take_excess`] returns the blocks above it, least recently used first, for the back end to
//! free: some drivers wait for all work before they free memory, so the back end chooses the moment.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::MemoryUsage;

/// Bytes of the smallest block. Every block is a multiple of it.
const MIN_BLOCK: u64 = 256;

/// Size classes above this many bytes are an eighth of a power of two apart.
const FINE_FROM: u64 = 1 << 20;

/// Requests above this many bytes are rounded up to a multiple of `GRANULE` only.
const EXACT_FROM: u64 = 256 << 20;

/// The granularity in which drivers allocate large blocks.
const GRANULE: u64 = 2 << 20;

/// Returns the size of the block for a request of this many bytes: its size class.
pub(crate) fn class_bytes(bytes: u64) -> u64 {
    let bytes = bytes.max(MIN_BLOCK);
    if bytes <= FINE_FROM {
        return bytes.next_power_of_two();
    }
    let step = if bytes > EXACT_FROM { GRANULE } else { (1u64 << (63 - bytes.leading_zeros())) / 8 };
    bytes.div_ceil(step).saturating_mul(step)
}

/// Returns the size of the smallest block for a request of this many bytes, for when memory is too short for its class.
pub(crate) fn exact_bytes(bytes: u64) -> u64 {
    bytes.max(MIN_BLOCK).checked_next_multiple_of(MIN_BLOCK).unwrap_or(u64::MAX)
}

/// Free blocks by size, and counts of the bytes in use and cached.
#[derive(Debug)]
pub(crate) struct BlockCache<B> {
    blocks: Mutex<CachedBlocks<B>>,
    /// Maximum bytes to keep.
    cap: u64,
    in_use: AtomicU64,
    peak: AtomicU64,
    cached: AtomicU64,
}

#[derive(Debug)]
struct CachedBlocks<B> {
    /// The blocks of each size, least recently returned first, each with its number in `returned`. No list is empty.
    by_size: BTreeMap<u64, Vec<(u64, B)>>,
    /// The number of blocks that were ever returned.
    returned: u64,
}

impl<B> BlockCache<B> {
    pub(crate) fn new(cap: u64) -> Self {
        BlockCache {
            blocks: Mutex::new(CachedBlocks { by_size: BTreeMap::new(), returned: 0 }),
            cap,
            in_use: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            cached: AtomicU64::new(0),
        }
    }

    /// Takes a block for this size class, and counts it as in use. Returns it with its size.
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
        self.cached.fetch_sub(size, Relaxed);
        self.add_in_use(size);
        Some((size, block))
    }

    /// Counts a newly allocated block of this size as in use.
    pub(crate) fn add_in_use(&self, size: u64) {
        let now = self.in_use.fetch_add(size, Relaxed) + size;
        self.peak.fetch_max(now, Relaxed);
    }

    /// Counts a block of this size, which is not cached, as no longer in use.
    pub(crate) fn remove_in_use(&self, size: u64) {
        self.in_use.fetch_sub(size, Relaxed);
    }

    /// Caches a block that is no longer in use.
    pub(crate) fn put(&self, size: u64, block: B) {
        self.remove_in_use(size);
        self.cached.fetch_add(size, Relaxed);
        let mut blocks = self.lock();
        let number = blocks.returned;
        blocks.returned += 1;
        blocks.by_size.entry(size).or_default().push((number, block));
    }

    /// Removes the blocks above the cap, least recently used first, for the caller to free.
    pub(crate) fn take_excess(&self) -> Vec<B> {
        let mut excess = Vec::new();
        if self.cached.load(Relaxed) <= self.cap {
            return excess;
        }
        let mut blocks = self.lock();
        while self.cached.load(Relaxed) > self.cap {
            let oldest = |(_, list): &(&u64, &Vec<(u64, B)>)| list.first().map(|(number, _)| *number);
            let Some((&size, _)) = blocks.by_size.iter().min_by_key(oldest) else { break };
            let Some(list) = blocks.by_size.get_mut(&size) else { break };
            excess.push(list.remove(0).1);
            if list.is_empty() {
                blocks.by_size.remove(&size);
            }
            self.cached.fetch_sub(size, Relaxed);
        }
        excess
    }

    pub(crate) fn clear(&self) -> Vec<B> {
        let taken = std::mem::take(&mut self.lock().by_size);
        taken
            .into_iter()
            .flat_map(|(size, blocks)| {
                self.cached.fetch_sub(size * blocks.len() as u64, Relaxed);
                blocks.into_iter().map(|(_, block)| block)
            })
            .collect()
    }

    pub(crate) fn usage(&self) -> MemoryUsage {
        MemoryUsage {
            in_use_bytes: self.in_use.load(Relaxed),
            peak_bytes: self.peak.load(Relaxed),
            cached_bytes: self.cached.load(Relaxed),
            ..MemoryUsage::default()
        }
    }

    // No code under this lock can panic between two changes that belong together.
    fn lock(&self) -> MutexGuard<'_, CachedBlocks<B>> {
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
        let cache = BlockCache::new(u64::MAX);
        let counted = || {
            let MemoryUsage { in_use_bytes, peak_bytes, cached_bytes, .. } = cache.usage();
            (in_use_bytes, peak_bytes, cached_bytes)
        };
        cache.add_in_use(256);
        cache.add_in_use(512);
        cache.put(256, "block");
        assert_eq!(counted(), (512, 768, 256));
        assert_eq!(cache.take(512), None);
        assert_eq!(cache.take(256), Some((256, "block")));
        assert_eq!(counted(), (768, 768, 0));
        cache.put(256, "block");
        assert_eq!(cache.clear(), ["block"]);
        assert_eq!(cache.usage().cached_bytes, 0);
    }

    #[test]
    fn large_requests_are_hardly_rounded_up() {
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
        let cache = BlockCache::new(u64::MAX);
        cache.add_in_use(9 * GIB);
        cache.put(9 * GIB, "block");
        assert_eq!(cache.take(7 * GIB), None, "too much would be wasted");
        assert_eq!(cache.take(9 * GIB + (2 << 20)), None, "too small");
        assert_eq!(cache.take(8 * GIB), Some((9 * GIB, "block")));
        assert_eq!(cache.usage().in_use_bytes, 9 * GIB, "counted with its own size");
    }

    #[test]
    fn blocks_above_the_cap_are_removed_least_recently_used_first() {
        let cache = BlockCache::new(1000);
        for (size, block) in [(256, "first"), (512, "second"), (256, "third"), (256, "fourth")] {
            cache.add_in_use(size);
            cache.put(size, block);
        }
        assert_eq!(cache.take(256), Some((256, "fourth")), "the most recent one is reused first");
        cache.put(256, "fourth");
        assert_eq!(cache.take_excess(), ["first", "second"]);
        assert_eq!(cache.usage().cached_bytes, 512);
        assert_eq!(cache.take_excess(), [""; 0]);
        assert_eq!(cache.clear(), ["third", "fourth"]);
    }
}
