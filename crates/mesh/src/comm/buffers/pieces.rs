//! Downloads and uploads of a buffer, piece by piece.
//!
//! A buffer has blocks, and a piece is the same range of each block, cut at the block's end.

use std::{collections::VecDeque, ops::Range, time::Duration};

use evener_device::{Buffer, Device, Direction, HostBuffer, Result, Stream, Transfer};

use super::super::element::Element;

/// Bytes of a piece: enough for the bus's full rate, small enough to overlap.
pub(super) const PIECE_BYTES: usize = 4 << 20;
/// Pieces downloaded ahead, and pieces being uploaded.
const PIECES_IN_FLIGHT: usize = 2;
/// Ranges start at multiples of this many elements, which any device can copy from.
const STEP: usize = 64;

/// Returns the elements of each block in a piece of `blocks` blocks.
pub(super) fn piece_len<T>(blocks: usize) -> usize {
    (PIECE_BYTES / size_of::<T>() / blocks.max(1) / STEP * STEP).max(STEP)
}

/// The blocks of a buffer, and the elements of each in a piece.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    blocks: Vec<Range<usize>>,
    each: usize,
}

impl Layout {
    /// Returns the layout of blocks of these lengths, and whether the device can copy each by itself.
    fn of<T>(lengths: &[usize], each: usize, device: &Device) -> Result<(Self, bool)> {
        let mut end = 0;
        let block = |len: &usize| {
            end += len;
            end - len..end
        };
        let blocks: Vec<_> = lengths.iter().map(block).collect();
        let alignment = device.capabilities()?.copy_alignment;
        let aligned = blocks.iter().all(|it| ((it.start * size_of::<T>()) as u64).is_multiple_of(alignment));
        Ok((Layout { blocks, each }, aligned))
    }

    fn joined<T>(&self) -> Self {
        let whole = 0..self.blocks.last().map_or(0, |it| it.end);
        Layout { blocks: std::iter::once(whole).collect(), each: piece_len::<T>(1) }
    }

    fn longest(&self) -> usize {
        self.blocks.iter().map(Range::len).max().unwrap_or(0)
    }

    /// Returns the ranges of a piece in the buffer, empty past the end of a block.
    fn ranges(&self, start: usize) -> impl Iterator<Item = Range<usize>> {
        let at = move |block: &Range<usize>, offset: usize| (block.start + offset).min(block.end);
        self.blocks.iter().map(move |block| at(block, start)..at(block, start + self.each))
    }
}

/// The download of a buffer to the host, piece by piece.
pub(super) enum BufferDownload<'a, T> {
    Pieces(PieceDownload<'a, T>),
    /// Blocks that the device cannot copy one by one: all elements, downloaded at once.
    Whole(Layout, Vec<T>),
}

impl<'a, T: Element> BufferDownload<'a, T> {
    pub(super) fn new(
        device: &'a Device,
        stream: &'a mut Stream,
        buffer: &'a Buffer<T>,
        (lengths, each): (&[usize], usize),
        timeout: Duration,
    ) -> Result<Self> {
        let (layout, aligned) = Layout::of::<T>(lengths, each, device)?;
        let mut pieces = PieceDownload {
            device,
            stream,
            buffer,
            layout: if aligned { layout.clone() } else { layout.joined::<T>() },
            next: 0,
            in_flight: VecDeque::new(),
            spare: Vec::new(),
        };
        if aligned {
            return Ok(BufferDownload::Pieces(pieces));
        }
        let mut all = Vec::with_capacity(buffer.len());
        while pieces.take(&mut all, timeout)? {}
        Ok(BufferDownload::Whole(layout, all))
    }

    /// Replaces `piece` by the piece at `start`.
    pub(super) fn next(&mut self, start: usize, piece: &mut Vec<T>, timeout: Duration) -> Result<()> {
        piece.clear();
        match self {
            BufferDownload::Pieces(pieces) => pieces.take(piece, timeout).map(drop),
            BufferDownload::Whole(layout, all) => {
                layout.ranges(start).for_each(|range| piece.extend_from_slice(&all[range]));
                Ok(())
            }
        }
    }
}

pub(super) struct PieceDownload<'a, T> {
    device: &'a Device,
    stream: &'a mut Stream,
    buffer: &'a Buffer<T>,
    layout: Layout,
    next: usize,
    /// Downloads in flight: for each piece, the length and the transfer of each range.
    in_flight: VecDeque<Vec<(usize, Transfer<T>)>>,
    spare: Vec<HostBuffer<T>>,
}

impl<T: Element> PieceDownload<'_, T> {
    /// Appends the next piece, while the following ones are downloaded. Returns whether there was one.
    fn take(&mut self, piece: &mut Vec<T>, timeout: Duration) -> Result<bool> {
        let longest = self.layout.longest();
        while self.next < longest && self.in_flight.len() <= PIECES_IN_FLIGHT {
            let mut ranges = Vec::with_capacity(self.layout.blocks.len());
            for range in self.layout.ranges(self.next).filter(|range| !range.is_empty()) {
                let host = match self.spare.pop() {
                    Some(host) => host,
                    None => self.device.host_buffer(self.layout.each.min(longest), Direction::Download)?,
                };
                let len = range.len();
                ranges.push((len, self.stream.download_host(&self.buffer.slice(range)?, host)?));
            }
            self.in_flight.push_back(ranges);
            self.next += self.layout.each;
        }
        let Some(ranges) = self.in_flight.pop_front() else { return Ok(false) };
        for (len, transfer) in ranges {
            let host = transfer.wait_timeout(timeout)?;
            piece.extend_from_slice(&host.as_slice()[..len]);
            self.spare.push(host);
        }
        Ok(true)
    }
}

/// The upload of a buffer from the host, piece by piece.
pub(super) struct BufferUpload<'a, T> {
    device: &'a Device,
    buffer: &'a Buffer<T>,
    stream: Stream,
    layout: Layout,
    in_flight: VecDeque<Transfer<T>>,
    spare: Vec<HostBuffer<T>>,
    /// Collects blocks that the device cannot copy one by one.
    whole: Option<Vec<T>>,
}

impl<'a, T: Element> BufferUpload<'a, T> {
    /// Uploads wait for the work that is already queued in `after`.
    pub(super) fn new(
        device: &'a Device,
        after: &mut Stream,
        buffer: &'a Buffer<T>,
        (lengths, each): (&[usize], usize),
    ) -> Result<Self> {
        let (layout, aligned) = Layout::of::<T>(lengths, each, device)?;
        let mut stream = device.stream()?;
        stream.wait_event(&after.record_event()?)?;
        let whole = (!aligned).then(|| vec![T::zeroed(); buffer.len()]);
        let (in_flight, spare) = (VecDeque::new(), Vec::new());
        Ok(BufferUpload { device, buffer, stream, layout, in_flight, spare, whole })
    }

    pub(super) fn put(&mut self, start: usize, piece: &[T], timeout: Duration) -> Result<()> {
        let (mut rest, ranges) = (piece, self.layout.ranges(start).collect::<Vec<_>>());
        for range in ranges {
            let part = rest.split_off(..range.len()).unwrap_or_default();
            match &mut self.whole {
                Some(whole) => whole[range].copy_from_slice(part),
                None if part.is_empty() => {}
                None => self.put_range(range, part, timeout)?,
            }
        }
        Ok(())
    }

    fn put_range(&mut self, range: Range<usize>, part: &[T], timeout: Duration) -> Result<()> {
        while self.in_flight.len() >= PIECES_IN_FLIGHT * self.layout.blocks.len()
            && let Some(oldest) = self.in_flight.pop_front()
        {
            self.spare.push(oldest.wait_timeout(timeout)?);
        }
        let mut host = match self.spare.pop() {
            Some(host) => host,
            None => {
                let most = self.layout.each.min(self.layout.longest());
                self.device.host_buffer(most, Direction::Upload)?
            }
        };
        host.as_mut_slice()[..part.len()].copy_from_slice(part);
        self.in_flight.push_back(self.stream.upload_host_prefix(
            host,
            part.len(),
            &self.buffer.slice(range)?,
        )?);
        Ok(())
    }

    pub(super) fn finish(mut self, timeout: Duration) -> Result<()> {
        if let Some(whole) = self.whole.take() {
            self.layout = self.layout.joined::<T>();
            for start in (0..whole.len()).step_by(self.layout.each) {
                self.put(start, &whole[start..whole.len().min(start + self.layout.each)], timeout)?;
            }
        }
        self.in_flight.into_iter().try_for_each(|transfer| transfer.wait_timeout(timeout).map(drop))
    }
}
