//! A buffer's pieces, coming down to the host and going up to the device.
//!
//! A buffer has blocks of equal length, and a piece is the same range of each of them, one after another.

use std::{collections::VecDeque, ops::Range, time::Duration};

use evener_device::{Buffer, Device, Direction, HostBuffer, Result, Stream, Transfer};

use super::super::element::Element;

/// Pieces are this large: long enough for the bus's full rate, short enough to overlap.
pub(super) const PIECE_BYTES: usize = 4 << 20;
/// So many pieces are on their way down before they are needed, and so many up afterwards.
const PIECES_IN_FLIGHT: usize = 2;
/// Ranges begin at multiples of this, so that they begin where any device can copy from.
const STEP: usize = 64;

/// Elements that a piece has of each of so many blocks.
pub(super) fn piece_len<T>(blocks: usize) -> usize {
    (PIECE_BYTES / size_of::<T>() / blocks.max(1) / STEP * STEP).max(STEP)
}

/// How a buffer lies: blocks, elements of each, and how many of these are in a piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    blocks: usize,
    count: usize,
    each: usize,
}

impl Layout {
    fn of<T>([blocks, count, each]: [usize; 3], device: &Device) -> Result<(Self, bool)> {
        let aligned = ((count * size_of::<T>()) as u64).is_multiple_of(device.capabilities()?.copy_alignment);
        Ok((Layout { blocks, count, each }, blocks == 1 || aligned))
    }

    /// The same elements as one block.
    fn joined<T>(self) -> Self {
        Layout { blocks: 1, count: self.blocks * self.count, each: piece_len::<T>(1) }
    }

    fn len(&self, start: usize) -> usize {
        self.each.min(self.count - start)
    }

    /// Where a piece's ranges are in the buffer.
    fn ranges(self, start: usize) -> impl Iterator<Item = Range<usize>> {
        let len = self.len(start);
        (0..self.blocks).map(move |block| block * self.count + start..block * self.count + start + len)
    }
}

/// What comes down.
pub(super) enum Down<'a, T> {
    Pieces(Coming<'a, T>),
    /// Blocks that the device cannot copy by themselves are here all at once.
    Whole(Layout, Vec<T>),
}

impl<'a, T: Element> Down<'a, T> {
    pub(super) fn new(
        device: &'a Device,
        stream: &'a mut Stream,
        buffer: &'a Buffer<T>,
        layout: [usize; 3],
        timeout: Duration,
    ) -> Result<Self> {
        let (layout, apart) = Layout::of::<T>(layout, device)?;
        let mut coming = Coming {
            device,
            stream,
            buffer,
            layout: if apart { layout } else { layout.joined::<T>() },
            next: 0,
            under_way: VecDeque::new(),
            spare: Vec::new(),
        };
        if apart {
            return Ok(Down::Pieces(coming));
        }
        let mut all = Vec::with_capacity(buffer.len());
        while coming.take(&mut all, timeout)? {}
        Ok(Down::Whole(layout, all))
    }

    /// Puts the piece that begins here in the place of what is there.
    pub(super) fn next(&mut self, start: usize, piece: &mut Vec<T>, timeout: Duration) -> Result<()> {
        piece.clear();
        match self {
            Down::Pieces(coming) => coming.take(piece, timeout).map(drop),
            Down::Whole(layout, all) => {
                layout.ranges(start).for_each(|range| piece.extend_from_slice(&all[range]));
                Ok(())
            }
        }
    }
}

pub(super) struct Coming<'a, T> {
    device: &'a Device,
    stream: &'a mut Stream,
    buffer: &'a Buffer<T>,
    layout: Layout,
    /// Where the next piece to be asked for begins.
    next: usize,
    /// Pieces on their way: how long each of their ranges is, and these.
    under_way: VecDeque<(usize, Vec<Transfer<T>>)>,
    spare: Vec<HostBuffer<T>>,
}

impl<T: Element> Coming<'_, T> {
    /// Adds the next piece, with those after it on their way; says whether there was one.
    fn take(&mut self, piece: &mut Vec<T>, timeout: Duration) -> Result<bool> {
        while self.next < self.layout.count && self.under_way.len() <= PIECES_IN_FLIGHT {
            let mut ranges = Vec::with_capacity(self.layout.blocks);
            for range in self.layout.ranges(self.next) {
                let host = match self.spare.pop() {
                    Some(host) => host,
                    None => self.device.host_buffer(self.layout.len(0), Direction::Download)?,
                };
                ranges.push(self.stream.download_host(&self.buffer.slice(range)?, host)?);
            }
            let len = self.layout.len(self.next);
            self.under_way.push_back((len, ranges));
            self.next += len;
        }
        let Some((len, ranges)) = self.under_way.pop_front() else { return Ok(false) };
        for transfer in ranges {
            let host = transfer.wait_timeout(timeout)?;
            piece.extend_from_slice(&host.as_slice()[..len]);
            self.spare.push(host);
        }
        Ok(true)
    }
}

/// What goes up.
pub(super) struct Up<'a, T> {
    device: &'a Device,
    buffer: &'a Buffer<T>,
    stream: Stream,
    layout: Layout,
    under_way: VecDeque<Transfer<T>>,
    spare: Vec<HostBuffer<T>>,
    /// Blocks that the device cannot copy by themselves, until all are here.
    whole: Option<Vec<T>>,
}

impl<'a, T: Element> Up<'a, T> {
    /// What is queued in `after` comes before anything goes up.
    pub(super) fn new(
        device: &'a Device,
        after: &mut Stream,
        buffer: &'a Buffer<T>,
        layout: [usize; 3],
    ) -> Result<Self> {
        let (layout, apart) = Layout::of::<T>(layout, device)?;
        let mut stream = device.stream()?;
        stream.wait_for(&after.mark()?)?;
        let whole = (!apart).then(|| vec![T::zeroed(); buffer.len()]);
        let (under_way, spare) = (VecDeque::new(), Vec::new());
        Ok(Up { device, buffer, stream, layout, under_way, spare, whole })
    }

    /// Sends up the piece that begins here.
    pub(super) fn put(&mut self, start: usize, piece: &[T], timeout: Duration) -> Result<()> {
        let parts = self.layout.ranges(start).zip(piece.chunks_exact(self.layout.len(start)));
        if let Some(whole) = &mut self.whole {
            parts.for_each(|(range, part)| whole[range].copy_from_slice(part));
            return Ok(());
        }
        for (range, part) in parts {
            self.put_range(range, part, timeout)?;
        }
        Ok(())
    }

    fn put_range(&mut self, range: Range<usize>, part: &[T], timeout: Duration) -> Result<()> {
        while self.under_way.len() >= PIECES_IN_FLIGHT * self.layout.blocks
            && let Some(oldest) = self.under_way.pop_front()
        {
            self.spare.push(oldest.wait_timeout(timeout)?);
        }
        let mut host = match self.spare.pop() {
            Some(host) => host,
            None => self.device.host_buffer(self.layout.len(0), Direction::Upload)?,
        };
        host.as_mut_slice()[..part.len()].copy_from_slice(part);
        self.under_way.push_back(self.stream.upload_first(host, part.len(), &self.buffer.slice(range)?)?);
        Ok(())
    }

    /// Waits until everything is there.
    pub(super) fn finish(mut self, timeout: Duration) -> Result<()> {
        if let Some(whole) = self.whole.take() {
            self.layout = self.layout.joined::<T>();
            for start in (0..whole.len()).step_by(self.layout.each) {
                let range = start..start + self.layout.len(start);
                self.put_range(range.clone(), &whole[range], timeout)?;
            }
        }
        self.under_way.into_iter().try_for_each(|transfer| transfer.wait_timeout(timeout).map(drop))
    }
}
