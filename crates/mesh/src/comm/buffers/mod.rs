//! Collectives on device buffers of any kind of device, staged through the host.

mod checked;
mod pieces;
#[cfg(test)]
mod test;

use evener_device::{Buffer, Device, Stream};

pub(super) use self::checked::{BlockLengths, BufferArgs, CheckedBuffers};
use self::pieces::{Download, Upload, piece_len};
use super::{
    call::{Call, CollectiveKind, Signature},
    collective::Collective,
    communicator::Communicator,
    element::Element,
    error::{CommError, Result},
    inner::{CallGuard, Inner},
};
use crate::backend::TransportFailure;

/// Each rank's buffers may be on any kind of device. Pieces are downloaded to staging buffers, exchanged and reduced on
/// the host, and uploaded; the three steps overlap.
///
/// The call runs after the work that is already queued in the stream; when it returns, the result is in the buffer. A
/// device failure is an error on every rank. Blocks that do not start at the device's copy alignment are copied as a
/// whole.
///
/// The input and the output may overlap only as follows: the output of an `all_gather` or a `gather` contains this
/// rank's input at its block, the input of a `reduce_scatter` or a `scatter` contains the output at this rank's block,
/// and the input of an `all_to_all` is the output.
impl Communicator {
    /// Runs a collective on device buffers; the methods named after collectives are short for it. `input` or `output`
    /// is `None` if the collective has none on this rank.
    ///
    /// ```
    /// use evener_device::Device;
    /// use evener_mesh::comm::World;
    ///
    /// let ranks = World::local(2).into_iter().map(|world| {
    ///     std::thread::spawn(move || {
    ///         let device = Device::cpu();
    ///         let mut stream = device.stream()?;
    ///         let (shard, all) = (device.buffer_from(&[world.rank() as u32; 3])?, device.buffer::<u32>(6)?);
    ///         world.communicator().all_gather_buffer(&device, &mut stream, &shard, &all)?;
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
        collective: Collective,
        input: Option<&Buffer<T>>,
        output: Option<&Buffer<T>>,
    ) -> Result<()> {
        self.inner().wait_for_started();
        self.inner()
            .call_buffers(
                device,
                stream,
                BufferArgs { collective, input, output, lengths: BlockLengths::Even },
            )
            .map(drop)
    }
}

impl Inner {
    /// Runs [`Communicator::call_buffers`] without waiting for started calls.
    pub(super) fn call_buffers<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        args: BufferArgs<'_, T>,
    ) -> Result<Vec<usize>> {
        let mut guard = self.lock_calls();
        guard.check_usable()?;
        let checked = guard.check_buffers(&args)?;
        guard.run_agreed(&checked, |guard| guard.transfer_pieces(device, stream, &checked))?;
        Ok(checked.counts)
    }

    /// Poisons the group with an error of this rank's device.
    #[cold]
    pub(super) fn device_failed(&self, error: evener_device::Error) -> CommError {
        let (group, rank) = (self.name.to_string(), self.rank);
        self.fail(CommError::Device { group, rank, error: Box::new(error) })
    }
}

impl CallGuard<'_> {
    /// Runs `transfer` once all ranks agree on the call. It succeeds on all ranks or on none: a rank with fewer pieces
    /// would otherwise end before the others find a failure.
    pub(super) fn run_agreed<T: Element>(
        &mut self,
        checked: &CheckedBuffers<'_, T>,
        transfer: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let Some(peer) = checked.collective.peer() else {
            self.agree(&checked.signature)?;
            transfer(self)?;
            // Succeeds only if the last piece was uploaded on every rank.
            return self.call::<u8>(Collective::Barrier, &[], &mut []);
        };
        let (to, from) = (Collective::Send(peer), Collective::Recv(peer));
        if checked.collective == to {
            // Sends the signature, waits until the receiver accepts it, and after the transfer until it has the data.
            self.call(to, &checked.signature.pack(), &mut [])?;
            self.call(from, &[], &mut [0u8])?;
            transfer(self)?;
            return self.call(from, &[], &mut [0u8]);
        }
        let mut offered = [0u64; 2];
        self.call(from, &[], &mut offered)?;
        if offered != (Signature { kind: CollectiveKind::Send, ..checked.signature }).pack() {
            let mut called = vec![None; self.inner.size()];
            (called[peer], called[self.inner.member.unwrap_or(0)]) =
                (Signature::unpack(offered), Some(checked.signature));
            return Err(self.inner.failed(TransportFailure::Mismatch(called), &checked.signature));
        }
        self.call(to, &[1u8], &mut [])?;
        transfer(self)?;
        self.call(to, &[1u8], &mut [])
    }

    /// Fails on every rank unless all signatures are equal.
    fn agree(&mut self, signature: &Signature) -> Result<()> {
        let mine = signature.pack();
        let called = self.all_gather_words(signature.kind, &mine)?;
        let called = called.as_chunks::<2>().0;
        if called.iter().all(|it| *it == mine) {
            return Ok(());
        }
        let called = called.iter().map(|it| Signature::unpack(*it)).collect();
        Err(self.inner.failed(TransportFailure::Mismatch(called), signature))
    }

    /// Runs the collective piece by piece: downloads the input and uploads the output.
    fn transfer_pieces<T: Element>(
        &mut self,
        device: &Device,
        stream: &mut Stream,
        checked: &CheckedBuffers<'_, T>,
    ) -> Result<()> {
        let inner = self.inner;
        let failed = |error| inner.device_failed(error);
        let (timeout, each) = (inner.timeout, piece_len::<T>(checked.blocks));
        let mut upload = match &checked.output {
            Some((buffer, blocks)) => {
                Some(Upload::new(device, stream, buffer, (blocks, each)).map_err(failed)?)
            }
            None => None,
        };
        let mut download = match &checked.input {
            Some((buffer, blocks)) => {
                Some(Download::new(device, stream, buffer, (blocks, each), timeout).map_err(failed)?)
            }
            None => None,
        };
        let (mut sent, mut received, count) = (Vec::new(), Vec::new(), checked.signature.count as usize);
        for start in (0..count).step_by(each) {
            // Elements of a block in this piece.
            let len = |block: &usize| each.min(block.saturating_sub(start));
            if let Some(download) = &mut download {
                download.next(start, &mut sent, timeout).map_err(failed)?;
            }
            let total = checked.output.iter().flat_map(|(_, blocks)| blocks).map(len).sum();
            received.resize(total, T::zeroed());
            if checked.collective.is_in_place() && download.is_some() {
                std::mem::swap(&mut sent, &mut received);
            }
            let lengths: Vec<_> = checked.lengths.iter().map(|block| len(block) * size_of::<T>()).collect();
            let input = if checked.collective.is_in_place() { &[] } else { &sent[..] };
            let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(&mut received));
            let signature = Signature { count: len(&count) as u64, ..checked.signature };
            let (weight, peer) = (checked.collective.weight(), checked.collective.peer());
            self.run(Call { signature, weight, input, output, lengths: &lengths }, peer)?;
            if let Some(upload) = &mut upload {
                upload.put(start, &received, timeout).map_err(failed)?;
            }
        }
        upload.map_or(Ok(()), |upload| upload.finish(timeout)).map_err(failed)
    }
}
