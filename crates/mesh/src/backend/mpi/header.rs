//! The header of every message.

/// The header of every message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Header {
    /// The low 32 bits of the group's identity, and 31 bits of the call's number.
    pub(super) identity: u32,
    pub(super) call: u32,
    /// Whether the sender accepts messages without a header.
    pub(super) takes_bare: bool,
    pub(super) signature: [u64; 2],
    pub(super) weight: f64,
}

/// The bits of a call's number in a header; the next bit is `takes_bare`.
const CALL_BITS: u32 = 31;

impl Header {
    #[inline]
    pub(super) fn new(
        (identity, call): (u64, u64),
        takes_bare: bool,
        (signature, weight): ([u64; 2], f64),
    ) -> Self {
        let call = call as u32 & (u32::MAX >> 1);
        Header { identity: identity as u32, call, takes_bare, signature, weight }
    }

    #[inline]
    pub(super) fn write(&self, buffer: &mut [u8]) {
        let Header { identity, call, takes_bare, signature: [what, count], weight } = *self;
        let call = call | u32::from(takes_bare) << CALL_BITS;
        write_words([u64::from(identity) | u64::from(call) << 32, what, count, weight.to_bits()], buffer);
    }

    #[inline]
    pub(super) fn read(buffer: &[u8]) -> Self {
        let [which, what, count, weight] = read_words(buffer);
        let (identity, call) = (which as u32, (which >> 32) as u32 & (u32::MAX >> 1));
        let takes_bare = which >> (32 + CALL_BITS) != 0;
        Header { identity, call, takes_bare, signature: [what, count], weight: f64::from_bits(weight) }
    }
}

#[inline]
pub(super) fn write_words<const N: usize>(words: [u64; N], buffer: &mut [u8]) {
    for (slot, word) in buffer.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *slot = word.to_le_bytes();
    }
}

#[inline]
pub(super) fn read_words<const N: usize>(buffer: &[u8]) -> [u64; N] {
    let slots = buffer.as_chunks::<8>().0;
    std::array::from_fn(|index| u64::from_le_bytes(slots[index]))
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_survive_writing_and_differ_if_any_field_does(
            (identity, call) in any::<(u64, u64)>(),
            takes_bare: bool,
            signature: [u64; 2],
            weight in 0.0..1e300,
            changed in 0..192usize,
        ) {
            let header = Header::new((identity, call), takes_bare, (signature, weight));
            let mut bytes = [0; 32];
            header.write(&mut bytes);
            prop_assert_eq!(Header::read(&bytes), header);
            prop_assert_eq!((header.identity, header.call), (identity as u32, call as u32 & 0x7FFF_FFFF));
            // Any other bit of the identity, the call, the flag or the signature is another header.
            bytes[changed / 8] ^= 1 << (changed % 8);
            prop_assert_ne!(Header::read(&bytes), header);
        }
    }
}
