//! Collectives on device buffers, through the host: between devices of any make, as each is.

mod ends;
mod pieces;
#[cfg(test)]
mod test;

use evener_device::{Buffer, Device, Stream};

pub(super) use self::ends::{Asked, Ends};
use self::pieces::{Down, Up, piece_len};
use super::{
    call::{Call, Collective, Signature},
    core::{Core, Turn},
    element::Element,
    error::{CommError, Result},
    group::Group,
    request::Request,
};
use crate::backend::Failure;

/// Buffers may lie on any device, also of another make on every rank. Pieces go down to the host through memory that the
/// device can copy to, travel and are reduced there, and go up again; while one does, the next come down and the last
/// goes up.
///
/// Whatever is queued in the stream comes first; when the call returns, the result is in the buffer. A device that fails
/// is an error on every rank. Blocks whose bytes are no multiple of what a device can copy go down, or up, as a whole.
///
/// Where there is an input and an output, they may be the same memory only in this way: the output of an `all_gather` or
/// a `gather` has this rank's input in its place, the input of a `reduce_scatter` or a `scatter` has the output in its
/// place, and that of an `all_to_all` is the output.
impl Group {
    /// Does what is asked for: what all other collectives on buffers are short for. There is no input, or no output, where
    /// the request has none on this rank.
    ///
    /// ```
    /// use evener_device::Device;
    /// use evener_mesh::comm::Comm;
    ///
    /// let ranks = Comm::local(2).into_iter().map(|comm| {
    ///     std::thread::spawn(move || {
    ///         let device = Device::cpu();
    ///         let mut stream = device.stream()?;
    ///         let (shard, all) = (device.buffer_from(&[comm.rank() as u32; 3])?, device.buffer::<u32>(6)?);
    ///         comm.world().all_gather_buffer(&device, &mut stream, &shard, &all)?;
    ///         assert_eq!(stream.download(&all)?.wait()?, [0, 0, 0, 1, 1, 1]);
    ///         Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     rank.join().unwrap().unwrap();
    /// }
    /// ```
    pub fn call_buffers<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        request: Request,
        input: Option<&Buffer<T>>,
        output: Option<&Buffer<T>>,
    ) -> Result<()> {
        self.core().settle();
        self.core().call_buffers(device, stream, Asked { request, input, output, lengths: None }).map(drop)
    }
}

impl Core {
    /// As [`Group::call_buffers`], without waiting for what was started.
    pub(super) fn call_buffers<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        asked: Asked<'_, T>,
    ) -> Result<Vec<usize>> {
        let mut turn = self.turn();
        turn.begin()?;
        let ends = turn.ends(&asked)?;
        turn.together(&ends, |turn| turn.flow(device, stream, &ends))?;
        Ok(ends.given)
    }

    /// An error of this rank's device, of which the others are told.
    #[cold]
    pub(super) fn device_failed(&self, error: evener_device::Error) -> CommError {
        let (group, rank) = (self.name.to_string(), self.rank);
        self.fail(CommError::Device { group, rank, error: Box::new(error) })
    }
}

impl Turn<'_> {
    /// Moves buffers once all who take part have said that they call the same. It succeeds on all of them or on none: a
    /// rank with fewer pieces would be done before the others find out.
    pub(super) fn together<T: Element>(
        &mut self,
        ends: &Ends<'_, T>,
        moves: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let Some(peer) = ends.request.peer() else {
            self.agree(&ends.signature)?;
            moves(self)?;
            // The last piece has gone up everywhere, or somebody says that it has not.
            return self.call::<u8>(Request::Barrier, &[], &mut []);
        };
        let (to, from) = (Request::Send(peer), Request::Recv(peer));
        if ends.request == to {
            // Says what is about to be sent, and hears that it is wanted; and then that it is there.
            self.call(to, &ends.signature.pack(), &mut [])?;
            self.call(from, &[], &mut [0u8])?;
            moves(self)?;
            return self.call(from, &[], &mut [0u8]);
        }
        let mut offered = [0u64; 2];
        self.call(from, &[], &mut offered)?;
        if offered != (Signature { collective: Collective::Send, ..ends.signature }).pack() {
            let mut called = vec![None; self.core.size()];
            (called[peer], called[self.core.member.unwrap_or(0)]) =
                (Signature::unpack(offered), Some(ends.signature));
            return Err(self.core.failed(Failure::Disagree(called), &ends.signature));
        }
        self.call(to, &[1u8], &mut [])?;
        moves(self)?;
        self.call(to, &[1u8], &mut [])
    }

    /// Fails on every rank unless all call the same.
    fn agree(&mut self, signature: &Signature) -> Result<()> {
        let mine = signature.pack();
        let called = self.tell(signature.collective, &mine)?;
        let called = called.as_chunks::<2>().0;
        if called.iter().all(|it| *it == mine) {
            return Ok(());
        }
        let called = called.iter().map(|it| Signature::unpack(*it)).collect();
        Err(self.core.failed(Failure::Disagree(called), signature))
    }

    /// Calls with every piece of the buffers: pieces come down, and the result goes up.
    fn flow<T: Element>(&mut self, device: &Device, stream: &mut Stream, ends: &Ends<'_, T>) -> Result<()> {
        let core = self.core;
        let failed = |error| core.device_failed(error);
        let (timeout, each) = (core.timeout, piece_len::<T>(ends.blocks));
        let mut up = match &ends.output {
            Some((buffer, blocks)) => Some(Up::new(device, stream, buffer, (blocks, each)).map_err(failed)?),
            None => None,
        };
        let mut down = match &ends.input {
            Some((buffer, blocks)) => {
                Some(Down::new(device, stream, buffer, (blocks, each), timeout).map_err(failed)?)
            }
            None => None,
        };
        let (mut given, mut taken, count) = (Vec::new(), Vec::new(), ends.signature.count as usize);
        for start in (0..count).step_by(each) {
            // What of a block is in this piece.
            let len = |block: &usize| each.min(block.saturating_sub(start));
            if let Some(down) = &mut down {
                down.next(start, &mut given, timeout).map_err(failed)?;
            }
            let total = ends.output.iter().flat_map(|(_, blocks)| blocks).map(len).sum();
            taken.resize(total, T::zeroed());
            if ends.request.is_in_place() && down.is_some() {
                std::mem::swap(&mut given, &mut taken);
            }
            let lengths: Vec<_> = ends.lengths.iter().map(|block| len(block) * size_of::<T>()).collect();
            let input = if ends.request.is_in_place() { &[] } else { &given[..] };
            let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(&mut taken));
            let signature = Signature { count: len(&count) as u64, ..ends.signature };
            let weight = ends.request.weight();
            self.run(Call { signature, weight, input, output, lengths: &lengths }, ends.request.peer())?;
            if let Some(up) = &mut up {
                up.put(start, &taken, timeout).map_err(failed)?;
            }
        }
        up.map_or(Ok(()), |up| up.finish(timeout)).map_err(failed)
    }
}
