//! What every message says before its data.

/// What every message says before its data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Header {
    /// The end of the identity of the group that it is of, and the end of the number of the call.
    pub(super) identity: u32,
    pub(super) call: u32,
    /// What is called.
    pub(super) signature: [u64; 2],
    /// The sender's weight.
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

/// Writes words to the beginning of a message.
#[inline]
pub(super) fn write_words<const N: usize>(words: [u64; N], buffer: &mut [u8]) {
    for (place, word) in buffer.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
}

/// The words at the beginning of a message.
#[inline]
pub(super) fn read_words<const N: usize>(buffer: &[u8]) -> [u64; N] {
    let places = buffer.as_chunks::<8>().0;
    std::array::from_fn(|index| u64::from_le_bytes(places[index]))
}
