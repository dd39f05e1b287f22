//! What every message says before its data.

use super::wire::HEADER_BYTES;

/// What every message says before its data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Header {
    /// Which group it is of.
    pub(super) identity: u64,
    /// Which call of the group, or of the two that exchange.
    pub(super) call: u64,
    /// What is called.
    pub(super) signature: [u64; 2],
    /// The sender's weight.
    pub(super) weight: f64,
}

impl Header {
    #[inline]
    pub(super) fn write(&self, buffer: &mut [u8]) {
        let words = [self.identity, self.call, self.signature[0], self.signature[1], self.weight.to_bits()];
        for (place, word) in buffer[..HEADER_BYTES].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    #[inline]
    pub(super) fn read(buffer: &[u8]) -> Self {
        let word = |index: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&buffer[index * 8..][..8]);
            u64::from_le_bytes(bytes)
        };
        Header {
            identity: word(0),
            call: word(1),
            signature: [word(2), word(3)],
            weight: f64::from_bits(word(4)),
        }
    }
}
