//! Frames: how messages and their bytes are laid out in a pipe.
//!
//! Both directions begin with a [`PREAMBLE`], a version of 4 bytes and a [`BYTE_ORDER`], so that noise in front of it (what
//! a login shell prints), other versions and machines with another byte order are told apart from this protocol. Frames
//! follow, all numbers in little-endian order:
//!
//! | bytes | field |
//! | --- | --- |
//! | 4 | number of the frame in its direction, from 0; it wraps around |
//! | 4 | length of the message, at most [`MAX_MESSAGE`] |
//! | 4 | length of the payload, at most [`MAX_PAYLOAD`] |
//! | 4 | length of the payload after compression; the same length if it is not compressed |
//! | 4 | CRC-32 of the message |
//! | 4 | CRC-32 of the payload, as it is sent |
//! | 4 | CRC-32 of the 24 bytes before |
//! | … | the message, encoded by `postcard` |
//! | … | the payload: bytes of a copy, raw or as an LZ4 block |
//!
//! The header has a checksum of its own, so that a corrupted length is found before anything is allocated or waited for,
//! and the message is checked before its payload is written anywhere.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    time::Instant,
};

use serde::{Serialize, de::DeserializeOwned};

use super::compression::{Compression, Encoding};

/// The version of the protocol. Both sides must have the same. A test fails if messages change and this does not.
pub const VERSION: u32 = 3;

/// The first bytes in each direction.
pub(super) const PREAMBLE: [u8; 16] = *b"\0evener-worker\r\n";

/// A number as the machine has it in memory. Buffers are copied as they are, so both machines must have the same byte order.
const BYTE_ORDER: [u8; 4] = 0x0102_0304_u32.to_ne_bytes();

/// Maximum number of bytes in front of the preamble, which a shell may have printed.
const MAX_NOISE: usize = 64 << 10;

/// Maximum length of a message: the largest are the sources of kernels.
pub(super) const MAX_MESSAGE: usize = 32 << 20;

/// Maximum length of a payload. Larger copies are cut into pieces of this many bytes, so that a small frame waits for at
/// most one piece of each copy.
pub(super) const MAX_PAYLOAD: usize = 256 << 10;

const HEADER: usize = 28;

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The pipe is broken, or ends within a frame.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What was read is not what the other side must have sent.
    #[error("{0}")]
    Malformed(String),
}

pub(super) fn malformed(text: impl Into<String>) -> FrameError {
    FrameError::Malformed(text.into())
}

/// Encodes a message.
pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let encoded =
        postcard::to_allocvec(message).map_err(|why| malformed(format!("cannot be encoded: {why}")))?;
    match encoded.len() {
        ..=MAX_MESSAGE => Ok(encoded),
        len => Err(malformed(format!("a message has {len} bytes, and at most {MAX_MESSAGE} are possible"))),
    }
}

/// Writes frames with their numbers.
#[derive(Debug)]
pub(super) struct FrameWriter<W> {
    output: W,
    number: u32,
    /// Frames that are written together.
    batch: Vec<u8>,
    compression: Compression,
    /// The last piece that was compressed.
    compressed: Vec<u8>,
}

/// Frames of together at most about this many bytes are written with one call.
const BATCH: usize = 64 << 10;

impl<W: Write> FrameWriter<W> {
    pub(super) fn new(output: W) -> Self {
        let (batch, compressed) = (Vec::with_capacity(2 * BATCH), Vec::new());
        FrameWriter { output, number: 0, batch, compression: Compression::default(), compressed }
    }

    pub(super) fn preamble(&mut self) -> io::Result<()> {
        self.output.write_all(&[&PREAMBLE[..], &VERSION.to_le_bytes(), &BYTE_ORDER].concat())?;
        self.output.flush()
    }

    /// Adds a frame. It is written at the latest by [`flush`](FrameWriter::flush).
    pub(super) fn write(&mut self, message: &[u8], payload: &[u8]) -> io::Result<()> {
        self.write_encoded(message, payload, payload.len())
    }

    /// Adds a frame with a piece of a copy, compressed if that is faster.
    pub(super) fn write_piece(&mut self, message: &[u8], piece: &[u8]) -> io::Result<()> {
        // Small pieces are written together with others, which says nothing about the link.
        if piece.len() < BATCH {
            return self.write(message, piece);
        }
        self.write_batch()?;
        let start = Instant::now();
        let compressed = match self.compression.next() {
            Encoding::Raw => None,
            Encoding::Compressed => {
                let mut compressed = std::mem::take(&mut self.compressed);
                compressed.resize(lz4_flex::block::get_maximum_output_size(piece.len()), 0);
                // There is room for any piece.
                let bytes = lz4_flex::block::compress_into(piece, &mut compressed).unwrap_or(usize::MAX);
                Some((compressed, bytes))
            }
        };
        let compress = start.elapsed();
        let outcome = match &compressed {
            Some((compressed, bytes)) if *bytes < piece.len() => {
                self.write_encoded(message, &compressed[..*bytes], piece.len())
            }
            _ => self.write(message, piece),
        };
        let write = start.elapsed() - compress;
        match compressed {
            Some((compressed, bytes)) => {
                self.compressed = compressed;
                self.compression.sent_compressed(piece.len(), bytes.min(piece.len()), compress, write);
            }
            None => self.compression.sent_raw(piece.len(), write),
        }
        outcome
    }

    /// Adds a frame whose payload has this length when it is not compressed.
    fn write_encoded(&mut self, message: &[u8], payload: &[u8], raw: usize) -> io::Result<()> {
        let numbers = [
            self.number,
            message.len() as u32,
            raw as u32,
            payload.len() as u32,
            crc32fast::hash(message),
            crc32fast::hash(payload),
        ];
        let start = self.batch.len();
        numbers.iter().for_each(|number| self.batch.extend(number.to_le_bytes()));
        let checksum = crc32fast::hash(&self.batch[start..]);
        self.batch.extend(checksum.to_le_bytes());
        self.batch.extend(message);
        self.number = self.number.wrapping_add(1);
        if payload.len() < BATCH / 4 {
            self.batch.extend(payload);
        } else {
            self.write_batch()?;
            self.output.write_all(payload)?;
        }
        if self.batch.len() >= BATCH { self.write_batch() } else { Ok(()) }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.write_batch()?;
        self.output.flush()
    }

    #[cfg(test)]
    pub(super) fn into_inner(self) -> W {
        self.output
    }

    fn write_batch(&mut self) -> io::Result<()> {
        self.output.write_all(&self.batch)?;
        self.batch.clear();
        self.batch.shrink_to(2 * BATCH);
        Ok(())
    }
}

#[cfg(test)]
impl FrameWriter<Vec<u8>> {
    /// The number of bytes that were written.
    pub(super) fn written(&self) -> usize {
        self.output.len()
    }
}

/// A frame whose payload has not been read yet.
#[derive(Debug)]
pub(super) struct Frame<M> {
    pub(super) message: M,
    /// The length of the message in bytes.
    pub(super) message_bytes: usize,
    /// The length of the payload in bytes.
    pub(super) payload_bytes: usize,
}

/// Reads frames, and checks their numbers, lengths and checksums.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    input: BufReader<R>,
    number: u32,
    message: Vec<u8>,
    /// A payload that was not read yet.
    payload: Option<PendingPayload>,
    /// The last payload that was compressed.
    compressed: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct PendingPayload {
    bytes: usize,
    /// Its length in the pipe.
    sent_bytes: usize,
    checksum: u32,
}

impl<R: Read> FrameReader<R> {
    pub(super) fn new(input: R) -> Self {
        FrameReader {
            input: BufReader::with_capacity(BATCH, input),
            number: 0,
            message: Vec::new(),
            payload: None,
            compressed: Vec::new(),
        }
    }

    /// Reads the preamble, which nothing may be in front of, and the version after it. Fails if the version is this one, and
    /// the byte order is not.
    pub(super) fn exact_preamble(&mut self) -> Result<u32, FrameError> {
        let mut preamble = [0; PREAMBLE.len()];
        self.input.read_exact(&mut preamble)?;
        if preamble != PREAMBLE {
            return Err(malformed("what came first is not a client's greeting"));
        }
        self.version()
    }

    /// Reads up to the end of the preamble, and the version after it. Fails with what was printed instead of it, and if the
    /// version is this one and the byte order is not.
    pub(super) fn preamble(&mut self) -> Result<u32, FrameError> {
        let mut noise = Vec::new();
        while !noise.ends_with(&PREAMBLE) {
            let last = PREAMBLE[PREAMBLE.len() - 1];
            let mut part = (&mut self.input).take((MAX_NOISE - noise.len()) as u64);
            if part.read_until(last, &mut noise)? == 0 {
                if noise.is_empty() {
                    return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
                }
                let text = String::from_utf8_lossy(&noise);
                let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("nothing");
                let line: String = line.chars().take(200).collect();
                return Err(malformed(format!("instead of a worker's greeting there came: {line}")));
            }
        }
        self.version()
    }

    fn version(&mut self) -> Result<u32, FrameError> {
        let (mut version, mut byte_order) = ([0; 4], [0; 4]);
        self.input.read_exact(&mut version)?;
        let version = u32::from_le_bytes(version);
        // Other versions may have another greeting.
        if version == VERSION {
            self.input.read_exact(&mut byte_order)?;
            if byte_order != BYTE_ORDER {
                let text =
                    "the other machine has another byte order: its devices cannot be used from this one";
                return Err(malformed(text));
            }
        }
        Ok(version)
    }

    /// Reads the next message. Returns `None` if the pipe ends before it. The payload has to be read next; one that was
    /// not is skipped.
    pub(super) fn next<M: DeserializeOwned>(&mut self) -> Result<Option<Frame<M>>, FrameError> {
        self.skip_payload()?;
        if self.is_at_end()? {
            return Ok(None);
        }
        let mut header = [0; HEADER];
        self.input.read_exact(&mut header)?;
        let mut fields = header.chunks_exact(4).map(|field| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(field);
            u32::from_le_bytes(bytes)
        });
        let mut field = || fields.next().unwrap_or_default();
        let (number, message, payload, sent) =
            (field(), field() as usize, field() as usize, field() as usize);
        let (message_checksum, payload_checksum, header_checksum) = (field(), field(), field());
        let expected = self.number;
        if header_checksum != crc32fast::hash(&header[..HEADER - 4]) {
            return Err(malformed(format!("the header of frame {expected} is corrupted")));
        }
        if number != expected {
            return Err(malformed(format!("frame {number} came instead of frame {expected}")));
        }
        if message > MAX_MESSAGE || payload > MAX_PAYLOAD {
            return Err(malformed(format!("frame {number} is too long: {message} and {payload} bytes")));
        }
        if sent > payload || (sent == 0 && payload > 0) {
            return Err(malformed(format!("frame {number} has {sent} bytes for a payload of {payload}")));
        }
        self.number = expected.wrapping_add(1);
        self.message.clear();
        self.message.shrink_to(BATCH);
        // Grows as bytes arrive.
        let read = (&mut self.input).take(message as u64).read_to_end(&mut self.message)?;
        if read < message {
            return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
        }
        if crc32fast::hash(&self.message) != message_checksum {
            return Err(malformed(format!("the message of frame {number} is corrupted")));
        }
        let decoded = postcard::from_bytes(&self.message)
            .map_err(|why| malformed(format!("the message of frame {number} is malformed: {why}")))?;
        let pending = PendingPayload { bytes: payload, sent_bytes: sent, checksum: payload_checksum };
        self.payload = (payload > 0).then_some(pending);
        Ok(Some(Frame { message: decoded, message_bytes: message, payload_bytes: payload }))
    }

    fn is_at_end(&mut self) -> io::Result<bool> {
        loop {
            match self.input.fill_buf() {
                Ok(bytes) => return Ok(bytes.is_empty()),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Reads the payload, which has the length of `into`. If the payload is corrupted, so are the bytes in `into`: the
    /// caller ends the connection and gives them to nobody.
    pub(super) fn payload(&mut self, into: &mut [u8]) -> Result<(), FrameError> {
        let PendingPayload { bytes, sent_bytes, checksum } = match self.payload.take() {
            Some(pending) => pending,
            None => PendingPayload { bytes: 0, sent_bytes: 0, checksum: crc32fast::hash(&[]) },
        };
        if bytes != into.len() {
            return Err(malformed(format!("a payload of {bytes} bytes for {}", into.len())));
        }
        let corrupted =
            |number: u32| malformed(format!("the payload of frame {} is corrupted", number.wrapping_sub(1)));
        if sent_bytes == bytes {
            self.input.read_exact(into)?;
            return if crc32fast::hash(into) == checksum { Ok(()) } else { Err(corrupted(self.number)) };
        }
        self.compressed.resize(sent_bytes, 0);
        self.input.read_exact(&mut self.compressed)?;
        let is_right = crc32fast::hash(&self.compressed) == checksum
            && lz4_flex::block::decompress_into(&self.compressed, into).is_ok_and(|written| written == bytes);
        if is_right { Ok(()) } else { Err(corrupted(self.number)) }
    }

    fn skip_payload(&mut self) -> Result<(), FrameError> {
        match self.payload {
            Some(PendingPayload { bytes, .. }) => self.payload(&mut vec![0; bytes]),
            None => Ok(()),
        }
    }
}
