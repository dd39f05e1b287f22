//! How long messages are written: with plain stores, or with non-temporal stores, past the caches.

use std::time::Duration;

/// Plain stores that write fewer bytes per nanosecond are slow.
const SLOW_BYTES_PER_NANOSECOND: u128 = 5;
/// Messages that are written with non-temporal stores after a slow plain one. Each slow plain one in a row doubles the
/// number, up to the maximum.
const FIRST_RUN: u32 = 4;
const LONGEST_RUN: u32 = 256;

/// Chooses the stores for long messages, which the core of another rank on this host reads in place.
///
/// If both cores share a cache, the other core reads the message soonest from there: plain stores leave it there. If they
/// do not, plain stores wait until the other core has given up its copies of the old message, which takes ten times as
/// long as writing to memory. Where the ranks run decides, and may change at any time. So plain stores are timed: while
/// they are slow, most messages are written with non-temporal stores, and now and then one with plain stores again.
#[derive(Debug)]
pub(super) struct StoreChoice {
    /// Messages to write with non-temporal stores before the next with plain ones.
    nontemporal: u32,
    /// How many there will be if the next plain one is slow.
    next_run: u32,
}

impl Default for StoreChoice {
    fn default() -> Self {
        StoreChoice { nontemporal: 0, next_run: FIRST_RUN }
    }
}

impl StoreChoice {
    /// Returns whether the next message is written with non-temporal stores.
    pub(super) fn next_is_nontemporal(&mut self) -> bool {
        let is_nontemporal = self.nontemporal > 0;
        self.nontemporal = self.nontemporal.saturating_sub(1);
        is_nontemporal
    }

    /// Tells how long plain stores took.
    pub(super) fn record_plain(&mut self, bytes: usize, time: Duration) {
        if bytes as u128 >= SLOW_BYTES_PER_NANOSECOND * time.as_nanos() {
            self.next_run = FIRST_RUN;
        } else {
            self.nontemporal = self.next_run;
            self.next_run = (2 * self.next_run).min(LONGEST_RUN);
        }
    }
}

/// Copies to memory that another core reads next, past the caches. [`fence`] orders the copy before what follows.
#[cfg(target_arch = "x86_64")]
pub(super) fn copy_nontemporal(into: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    let (to, rest) = into.as_chunks_mut::<16>();
    let (from, from_rest) = from.as_chunks::<16>();
    if !to.as_ptr().cast::<__m128i>().is_aligned() {
        to.copy_from_slice(from);
    } else {
        for (to, from) in to.iter_mut().zip(from) {
            // SAFETY: both are 16 bytes, and `to` is aligned, because the first chunk is.
            unsafe { _mm_stream_si128(to.as_mut_ptr().cast(), _mm_loadu_si128(from.as_ptr().cast())) };
        }
    }
    rest.copy_from_slice(from_rest);
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn copy_nontemporal(into: &mut [u8], from: &[u8]) {
    into.copy_from_slice(from);
}

/// Orders non-temporal stores before all stores that follow.
pub(super) fn fence() {
    // SAFETY: SSE is part of x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    const FAST: Duration = Duration::from_nanos(1000);
    const SLOWER: Duration = Duration::from_nanos(1001);
    const BYTES: usize = 1000 * SLOW_BYTES_PER_NANOSECOND as usize;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn stores_are_nontemporal_only_after_slow_plain_ones_and_plain_again_before_long(
            slow in prop::collection::vec(any::<bool>(), 1..40),
        ) {
            let (mut choice, mut slow_in_a_row) = (StoreChoice::default(), 0);
            for is_slow in slow {
                let mut run = 0;
                while choice.next_is_nontemporal() {
                    run += 1;
                }
                let expected = match slow_in_a_row {
                    0 => 0,
                    count => (FIRST_RUN << (count - 1).min(20)).min(LONGEST_RUN),
                };
                prop_assert_eq!(run, expected);
                choice.record_plain(BYTES, if is_slow { SLOWER } else { FAST });
                slow_in_a_row = if is_slow { slow_in_a_row + 1 } else { 0 };
            }
        }
    }

    #[test]
    fn any_length_is_copied_from_and_to_any_alignment() {
        let from: Vec<u8> = (0..1000u32).map(|it| (it * 7) as u8).collect();
        for (start, end) in [(0, 0), (0, 1000), (1, 1000), (3, 20), (16, 144), (5, 6)] {
            for shift in 0..17 {
                let mut into = vec![1; 1100];
                copy_nontemporal(&mut into[shift..][..end - start], &from[start..end]);
                fence();
                assert_eq!(into[shift..][..end - start], from[start..end]);
                assert!(into[..shift].iter().chain(&into[shift + end - start..]).all(|it| *it == 1));
            }
        }
    }
}
