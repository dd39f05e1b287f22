//! The header of every message.

/// The header of every message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Header {
    /// The low bits of the group's identity and of the call's number.
    pub(super) identity: u32,
    pub(super) call: u32,
    pub(super) signature: [u64; 2],
    pub(super) weight: f64,
}

impl Header {
    #[inline]
    pub(super) fn write(&self, buffer: &mut [u8]) {
        let Header { identity, call, signature: [what, count], weight } = *self;
        write_words([u64::from(identity) | u64::from(call) << 32, what, count, weight.to_bits()], buffer);
    }

    #[inline]
    pub(super) fn read(buffer: &[u8]) -> Self {
        let [which, what, count, weight] = read_words(buffer);
        let (identity, call) = (which as u32, (which >> 32) as u32);
        Header { identity, call, signature: [what, count], weight: f64::from_bits(weight) }
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
