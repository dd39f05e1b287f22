//! Copying with non-temporal stores, past the caches.

/// Copies to memory that another core reads next, without leaving it in this core's cache: if cores share no cache,
/// dirty lines get to another core several times as slowly as memory does.
#[cfg(target_arch = "x86_64")]
pub(super) fn copy_nontemporal(into: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    let (to, rest) = into.as_chunks_mut::<16>();
    let (from, from_rest) = from.as_chunks::<16>();
    if !to.as_ptr().cast::<__m128i>().is_aligned() {
        to.copy_from_slice(from);
    } else {
        for (to, from) in to.iter_mut().zip(from) {
            // SAFETY: both are 16 bytes, and `to` is aligned, because the first chunk is.
            unsafe { _mm_stream_si128(to.as_mut_ptr().cast(), _mm_loadu_si128(from.as_ptr().cast())) };
        }
        // SAFETY: SSE is part of x86-64. The fence orders the stores before everything that follows.
        unsafe { _mm_sfence() };
    }
    rest.copy_from_slice(from_rest);
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn copy_nontemporal(into: &mut [u8], from: &[u8]) {
    into.copy_from_slice(from);
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn any_length_is_copied_from_and_to_any_alignment() {
        let from: Vec<u8> = (0..1000u32).map(|it| (it * 7) as u8).collect();
        for (start, end) in [(0, 0), (0, 1000), (1, 1000), (3, 20), (16, 144), (5, 6)] {
            for shift in 0..17 {
                let mut into = vec![1; 1100];
                copy_nontemporal(&mut into[shift..][..end - start], &from[start..end]);
                assert_eq!(into[shift..][..end - start], from[start..end]);
                assert!(into[..shift].iter().chain(&into[shift + end - start..]).all(|it| *it == 1));
            }
        }
    }
}
