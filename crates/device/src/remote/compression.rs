//! Decides which pieces of copies are compressed, from what was measured on this connection.
//!
//! Compressing pays where the link is slower than the processor and the data is redundant. Neither is known beforehand, so
//! single pieces are compressed on trial, and a sender that compresses sends some pieces as they are from time to time.
//! Both kinds of trials are rare enough to cost little on data that does not compress, and on a link that has become fast.

use std::time::Duration;

/// How the next piece is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Raw,
    Compressed,
}

/// Weight of the newest measurement in the averages.
const WEIGHT: f64 = 0.25;

/// Compressing must take at most this part of the time of sending raw bytes: less is not worth the processor's time.
const WORTH: f64 = 0.9;

/// A pipe that takes bytes at this rate or faster is not measured any further: no compression is faster.
const FAST_SECONDS_PER_BYTE: f64 = 1.0 / 4e9;

/// Raw pieces after a trial that did not pay: this many at first, twice as many after each further one.
/// And as many as take this many times as long as the trial's compression.
const FIRST_PAUSE: u32 = 4;
const LONGEST_PAUSE: u32 = 256;
const PAUSE_OVER_TRIAL: f64 = 20.0;

/// A sender that compresses measures the link again with this many raw pieces in a row. The first of them may wait for
/// bytes that were written before, so only the last one counts.
const PROBE_PIECES: u32 = 4;

/// Time between two such probes, over the time that one of them takes. A buffer in front of the link may take the pieces of
/// a probe at once, as a fast link would: then raw pieces fill the buffer in vain, and the time until the next probe is
/// this many times longer.
const PROBE_INTERVAL: f64 = 20.0;
const LONGER_INTERVAL: f64 = 4.0;
const LONGEST_INTERVAL_SECONDS: f64 = 60.0;

/// The state of one direction of a connection: a state machine that is told what was measured.
#[derive(Debug)]
pub(super) struct Compression {
    /// Time that the pipe takes for a raw byte. `None` until a piece was written.
    raw_seconds: Option<f64>,
    /// Time to compress a raw byte and to write what it becomes.
    compressed_seconds: f64,
    mode: Mode,
    /// Raw pieces after the next trial that does not pay.
    pause: u32,
    /// How often a probe found a link too fast for compressing.
    ended_by_probe: i32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// Sends this many more raw pieces, for this many more seconds, before a trial.
    Raw { left: u32, seconds_left: f64 },
    /// Compresses until a probe is due in this many seconds.
    Compressing { seconds_left: f64 },
    /// Sends this many more raw pieces to measure the link.
    Probing { left: u32 },
}

impl Default for Compression {
    fn default() -> Self {
        Compression {
            raw_seconds: None,
            compressed_seconds: 0.0,
            mode: Mode::Raw { left: 1, seconds_left: 0.0 },
            pause: FIRST_PAUSE,
            ended_by_probe: 0,
        }
    }
}

impl Compression {
    /// Returns how to send the next piece.
    pub(super) fn next(&self) -> Encoding {
        let is_fast = self.raw_seconds.is_none_or(|seconds| seconds <= FAST_SECONDS_PER_BYTE);
        match self.mode {
            Mode::Raw { left: 0, seconds_left: ..=0.0 } if !is_fast => Encoding::Compressed,
            Mode::Compressing { .. } => Encoding::Compressed,
            Mode::Raw { .. } | Mode::Probing { .. } => Encoding::Raw,
        }
    }

    /// Reports that a raw piece was written, and how long the pipe took for it.
    pub(super) fn sent_raw(&mut self, bytes: usize, write: Duration) {
        let seconds = write.as_secs_f64() / bytes.max(1) as f64;
        match &mut self.mode {
            Mode::Raw { left, seconds_left } => {
                *left = left.saturating_sub(1);
                *seconds_left -= write.as_secs_f64();
                self.raw_seconds = Some(average(self.raw_seconds, seconds));
            }
            Mode::Probing { left: 0 | 1 } => {
                self.raw_seconds = Some(seconds);
                let pays = self.compressed_seconds < seconds;
                self.ended_by_probe += i32::from(!pays);
                self.compress_if(pays, bytes);
            }
            Mode::Probing { left } => *left -= 1,
            Mode::Compressing { .. } => {}
        }
    }

    /// Reports that a piece was compressed, to how many bytes, and how long compressing and writing them took.
    pub(super) fn sent_compressed(
        &mut self,
        bytes: usize,
        compressed: usize,
        compress: Duration,
        write: Duration,
    ) {
        let per_byte = |seconds: f64| seconds / bytes.max(1) as f64;
        let raw = self.raw_seconds.unwrap_or_default();
        let taken = compress + write;
        match self.mode {
            Mode::Compressing { seconds_left } => {
                let seconds = per_byte(taken.as_secs_f64());
                self.compressed_seconds = average(Some(self.compressed_seconds), seconds);
                let seconds_left = seconds_left - taken.as_secs_f64();
                if self.compressed_seconds >= raw {
                    self.compress_if(false, bytes);
                } else if seconds_left > 0.0 {
                    self.mode = Mode::Compressing { seconds_left };
                } else {
                    self.mode = Mode::Probing { left: PROBE_PIECES };
                }
            }
            // A trial. At best, the link carries one piece while the next is compressed.
            Mode::Raw { .. } | Mode::Probing { .. } => {
                let link = raw * per_byte(compressed as f64);
                self.compressed_seconds = per_byte(compress.as_secs_f64()).max(link);
                self.compress_if(self.compressed_seconds < WORTH * raw, bytes);
                if let Mode::Raw { seconds_left, .. } = &mut self.mode {
                    *seconds_left = PAUSE_OVER_TRIAL * compress.as_secs_f64();
                }
            }
        }
    }

    fn compress_if(&mut self, pays: bool, piece: usize) {
        if pays {
            self.pause = FIRST_PAUSE;
            let probe = f64::from(PROBE_PIECES) * piece as f64 * self.raw_seconds.unwrap_or_default();
            let interval = PROBE_INTERVAL * probe * LONGER_INTERVAL.powi(self.ended_by_probe);
            self.mode = Mode::Compressing { seconds_left: interval.min(LONGEST_INTERVAL_SECONDS) };
        } else {
            self.mode = Mode::Raw { left: self.pause, seconds_left: 0.0 };
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
    }
}

fn average(before: Option<f64>, newest: f64) -> f64 {
    before.map_or(newest, |before| before + WEIGHT * (newest - before))
}

#[cfg(test)]
mod test {
    use super::*;

    const PIECE: f64 = 262_144.0;

    /// A sender, its processor, and a link with a buffer in front of it.
    #[derive(Debug, Clone, Copy)]
    struct Setup {
        link_seconds_per_byte: f64,
        buffer: f64,
        compress_seconds_per_byte: f64,
        ratio: f64,
    }

    /// Sends pieces, compressed if `choose` says so. Returns the time until the link has carried all, and how many pieces
    /// were compressed.
    fn send(setup: Setup, pieces: u32, mut choose: impl FnMut(Option<Sent>) -> Encoding) -> (f64, u32) {
        let (mut now, mut queued, mut compressed) = (0.0f64, 0.0f64, 0);
        let mut last = None;
        for _ in 0..pieces {
            let encoding = choose(last);
            let (work, bytes) = match encoding {
                Encoding::Raw => (0.0, PIECE),
                Encoding::Compressed => (setup.compress_seconds_per_byte * PIECE, setup.ratio * PIECE),
            };
            compressed += u32::from(encoding == Encoding::Compressed);
            now += work;
            queued = (queued - work / setup.link_seconds_per_byte).max(0.0);
            // Copying into the pipe, at 5 GB/s, and then waiting for room.
            let copy = bytes / 5e9;
            queued = (queued + bytes - copy / setup.link_seconds_per_byte).max(0.0);
            let wait = ((queued - setup.buffer) * setup.link_seconds_per_byte).max(0.0);
            queued = queued.min(setup.buffer);
            now += copy + wait;
            last = Some(Sent { encoding, bytes, work, write: copy + wait });
        }
        (now + queued * setup.link_seconds_per_byte, compressed)
    }

    #[derive(Debug, Clone, Copy)]
    struct Sent {
        encoding: Encoding,
        bytes: f64,
        work: f64,
        write: f64,
    }

    fn decide(setup: Setup, pieces: u32) -> (f64, u32) {
        let mut compression = Compression::default();
        send(setup, pieces, |last| {
            match last {
                Some(Sent { encoding: Encoding::Raw, bytes, write, .. }) => {
                    compression.sent_raw(bytes as usize, Duration::from_secs_f64(write));
                }
                Some(Sent { bytes, work, write, .. }) => compression.sent_compressed(
                    PIECE as usize,
                    bytes as usize,
                    Duration::from_secs_f64(work),
                    Duration::from_secs_f64(write),
                ),
                None => {}
            }
            compression.next()
        })
    }

    #[test]
    fn redundant_data_on_a_slow_link_is_compressed() {
        let setup = Setup {
            link_seconds_per_byte: 1.0 / 100e6,
            buffer: 2e6,
            compress_seconds_per_byte: 1.0 / 600e6,
            ratio: 0.1,
        };
        let (time, compressed) = decide(setup, 4_000);
        let (raw, _) = send(setup, 4_000, |_| Encoding::Raw);
        assert!(compressed > 3_500, "{compressed}");
        assert!(time < 0.35 * raw, "{time} s against {raw} s");
    }

    #[test]
    fn data_that_does_not_compress_is_tried_rarely() {
        let setup = Setup {
            link_seconds_per_byte: 1.0 / 100e6,
            buffer: 2e6,
            compress_seconds_per_byte: 1.0 / 300e6,
            ratio: 1.0,
        };
        let (_, compressed) = decide(setup, 4_000);
        assert!(compressed < 40, "{compressed}");
    }

    #[test]
    fn nothing_is_compressed_for_a_pipe_of_this_machine() {
        let setup = Setup {
            link_seconds_per_byte: 1.0 / 8e9,
            buffer: 65_536.0,
            compress_seconds_per_byte: 1.0 / 600e6,
            ratio: 0.01,
        };
        let (_, compressed) = decide(setup, 4_000);
        assert!(compressed < 40, "{compressed}");
    }

    /// On random links, buffers and data, deciding never takes much longer than the better of compressing always and never.
    #[test]
    fn deciding_costs_little_over_the_better_of_always_and_never() {
        let mut state = 7u64;
        let mut random = |from: f64, to: f64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            from * (to / from).powf((state >> 11) as f64 / (1u64 << 53) as f64)
        };
        for round in 0..5_000 {
            let setup = Setup {
                link_seconds_per_byte: 1.0 / random(1e6, 10e9),
                buffer: random(4_096.0, 16e6),
                compress_seconds_per_byte: 1.0 / random(50e6, 3e9),
                ratio: random(0.005, 1.0),
            };
            let pieces = 2_000;
            let (time, _) = decide(setup, pieces);
            let (never, _) = send(setup, pieces, |_| Encoding::Raw);
            let (always, _) = send(setup, pieces, |_| Encoding::Compressed);
            let best = never.min(always);
            // The first piece is raw; and each time that the sender takes the buffer for the link, it fills the buffer with
            // raw pieces.
            let fill = setup.buffer * setup.link_seconds_per_byte;
            let raw_piece = PIECE * setup.link_seconds_per_byte;
            let limit = 1.25 * best + 3.0 * fill + 2.0 * raw_piece + 0.02;
            assert!(time < limit, "round {round}: {time} s against {best} s for {setup:?}");
        }
    }
}
