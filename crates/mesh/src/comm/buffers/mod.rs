//! Collectives on device buffers, through the host: between devices of any make, as each is.

mod ends;
mod pieces;
#[cfg(test)]
mod test;

use evener_device::{Buffer, Device, Stream};

pub(super) use self::ends::Ends;
use self::pieces::{Down, Up, piece_len};
use super::{
    call::Collective,
    core::Core,
    element::{Element, ElementType, FloatElement},
    error::{CommError, Result},
    group::Group,
    operation::Operation,
};

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
    /// As [`all_reduce`](Group::all_reduce), of buffers.
    ///
    /// ```
    /// use evener_device::Device;
    /// use evener_mesh::comm::{Comm, Operation};
    ///
    /// let comm = Comm::local(1).remove(0);
    /// let device = Device::cpu();
    /// let mut stream = device.stream()?;
    /// let gradient = device.buffer_from(&[1.0f32, 2.0])?;
    /// comm.world().all_reduce_buffer(&device, &mut stream, &gradient, Operation::Average)?;
    /// assert_eq!(stream.download(&gradient)?.wait()?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_reduce_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        operation: Operation,
    ) -> Result<()> {
        let ends = self.core.whole(buffer);
        self.in_pieces(device, stream, ends, |core, given, taken| {
            std::mem::swap(given, taken);
            core.all_reduce(taken, operation)
        })
    }

    /// As [`weighted_all_reduce`](Group::weighted_all_reduce), of buffers.
    pub fn weighted_all_reduce_buffer<T: FloatElement>(
        &self,
        device: &Device,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        weight: f64,
    ) -> Result<()> {
        let ends = self.core.whole(buffer);
        self.in_pieces(device, stream, ends, |core, given, taken| {
            std::mem::swap(given, taken);
            core.weighted_all_reduce(taken, weight)
        })
    }

    /// As [`reduce`](Group::reduce), of buffers.
    pub fn reduce_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        operation: Operation,
        root: usize,
    ) -> Result<()> {
        let ends = self.core.ends(Collective::Reduce, Some(buffer), Some(buffer), Some(root))?;
        self.in_pieces(device, stream, ends, |core, given, taken| {
            std::mem::swap(given, taken);
            core.reduce(taken, operation, root)
        })
    }

    /// As [`broadcast`](Group::broadcast), of buffers.
    pub fn broadcast_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        root: usize,
    ) -> Result<()> {
        let ends = self.core.ends(Collective::Broadcast, Some(buffer), Some(buffer), Some(root))?;
        let gives = ends.input.is_some();
        self.in_pieces(device, stream, ends, |core, given, taken| {
            core.broadcast(if gives { given } else { taken }, root)
        })
    }

    /// As [`all_gather`](Group::all_gather), of buffers.
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
    pub fn all_gather_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        input: &Buffer<T>,
        output: &Buffer<T>,
    ) -> Result<()> {
        let ends = self.core.ends(Collective::AllGather, Some(input), Some(output), None)?;
        self.in_pieces(device, stream, ends, |core, given, taken| core.all_gather(given, taken))
    }

    /// As [`reduce_scatter`](Group::reduce_scatter), of buffers.
    pub fn reduce_scatter_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        input: &Buffer<T>,
        output: &Buffer<T>,
        operation: Operation,
    ) -> Result<()> {
        let ends = self.core.ends(Collective::ReduceScatter, Some(input), Some(output), None)?;
        self.in_pieces(device, stream, ends, |core, given, taken| {
            core.reduce_scatter(given, taken, operation)
        })
    }

    /// As [`gather`](Group::gather), of buffers: the root has an output, the others have none.
    pub fn gather_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        input: &Buffer<T>,
        output: Option<&Buffer<T>>,
        root: usize,
    ) -> Result<()> {
        let ends = self.core.ends(Collective::Gather, Some(input), output, Some(root))?;
        self.in_pieces(device, stream, ends, |core, given, taken| core.gather(given, taken, root))
    }

    /// As [`scatter`](Group::scatter), of buffers: the root has an input, the others have none.
    pub fn scatter_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        input: Option<&Buffer<T>>,
        output: &Buffer<T>,
        root: usize,
    ) -> Result<()> {
        let ends = self.core.ends(Collective::Scatter, input, Some(output), Some(root))?;
        self.in_pieces(device, stream, ends, |core, given, taken| core.scatter(given, taken, root))
    }

    /// As [`all_to_all`](Group::all_to_all), of buffers.
    pub fn all_to_all_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        input: &Buffer<T>,
        output: &Buffer<T>,
    ) -> Result<()> {
        let ends = self.core.ends(Collective::AllToAll, Some(input), Some(output), None)?;
        self.in_pieces(device, stream, ends, |core, given, taken| core.all_to_all(given, taken))
    }

    /// As [`send`](Group::send), of a buffer; returns when it is in the other's. That is on a device, by
    /// [`recv_buffer`](Group::recv_buffer).
    pub fn send_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        to: usize,
    ) -> Result<()> {
        self.core.settle();
        let ends = Ends { input: Some((buffer, 1)), output: None, count: buffer.len(), blocks: 1 };
        self.core.offer::<T>(buffer.len(), to)?;
        self.flow(device, stream, ends, |core, given, _| core.send(given, to))?;
        self.core.hear_of_arrival(to)
    }

    /// As [`recv`](Group::recv), into a buffer, of what [`send_buffer`](Group::send_buffer) sends.
    pub fn recv_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        from: usize,
    ) -> Result<()> {
        self.core.settle();
        let ends = Ends { input: None, output: Some((buffer, 1)), count: buffer.len(), blocks: 1 };
        self.core.accept::<T>(buffer.len(), from)?;
        self.flow(device, stream, ends, |core, _, taken| core.recv(taken, from))?;
        self.core.tell_of_arrival(from)
    }

    fn in_pieces<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        ends: Ends<'_, T>,
        call: impl Fn(&Core, &mut Vec<T>, &mut Vec<T>) -> Result<()>,
    ) -> Result<()> {
        // All or none: a rank with fewer pieces would be done before the others find out.
        self.core.agree_on_length(ends.count)?;
        self.flow(device, stream, ends, call)?;
        // The last piece has gone up everywhere, or somebody says that it has not.
        self.core.barrier()
    }

    /// Calls with every piece: what has come down, and what is to go up, which has room for it already.
    fn flow<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        ends: Ends<'_, T>,
        call: impl Fn(&Core, &mut Vec<T>, &mut Vec<T>) -> Result<()>,
    ) -> Result<()> {
        let failed = |error| self.core.device_failed(error);
        let (timeout, each) = (self.timeout(), piece_len::<T>(ends.blocks));
        let mut up = match ends.output {
            Some((buffer, blocks)) => {
                Some(Up::new(device, stream, buffer, [blocks, ends.count, each]).map_err(failed)?)
            }
            None => None,
        };
        let mut down = match ends.input {
            Some((buffer, blocks)) => {
                Some(Down::new(device, stream, buffer, [blocks, ends.count, each], timeout).map_err(failed)?)
            }
            None => None,
        };
        let (mut given, mut taken) = (Vec::new(), Vec::new());
        for start in (0..ends.count).step_by(each) {
            let len = each.min(ends.count - start);
            if let Some(down) = &mut down {
                down.next(start, &mut given, timeout).map_err(failed)?;
            }
            taken.resize(ends.output.map_or(0, |(_, blocks)| blocks * len), T::zeroed());
            call(&self.core, &mut given, &mut taken)?;
            if let Some(up) = &mut up {
                up.put(start, &taken, timeout).map_err(failed)?;
            }
        }
        up.map_or(Ok(()), |up| up.finish(timeout)).map_err(failed)
    }
}

impl Core {
    /// Fails on every rank unless all say the same.
    pub(super) fn agree(&self, says: &[u64]) -> Result<()> {
        let mut said = vec![0u64; says.len() * self.size()];
        self.all_gather(says, &mut said)?;
        if said.chunks_exact(says.len()).all(|it| it == says) {
            return Ok(());
        }
        let detail =
            format!("what each calls, its operation, root, type and length, in the order of ranks: {said:?}");
        Err(self.fail(CommError::Disagree { group: self.name.to_string(), ranks: Vec::new(), detail }))
    }

    /// Fails on every rank unless all have buffers of the same length.
    fn agree_on_length(&self, len: usize) -> Result<()> {
        let mut lengths = vec![0u64; self.size()];
        self.all_gather(&[len as u64], &mut lengths)?;
        if lengths.iter().all(|it| *it == lengths[0]) {
            return Ok(());
        }
        let detail =
            format!("buffers of {lengths:?} elements, in the order of ranks: they must be equally long");
        Err(self.fail(CommError::Disagree { group: self.name.to_string(), ranks: Vec::new(), detail }))
    }

    /// Says what is about to be sent, and hears that it is wanted.
    pub(super) fn offer<T: Element>(&self, len: usize, to: usize) -> Result<()> {
        self.send(&[T::TYPE as u64, len as u64], to)?;
        self.recv(&mut [0u8], to)
    }

    /// Hears what is about to be sent, and says that it is wanted; otherwise it is an error on both ranks.
    pub(super) fn accept<T: Element>(&self, len: usize, from: usize) -> Result<()> {
        let mut offered = [0u64; 2];
        self.recv(&mut offered, from)?;
        if offered == [T::TYPE as u64, len as u64] {
            return self.send(&[1u8], from);
        }
        let (sender, rank) = (self.members.ranks[from], self.world_rank());
        let [kind, offered] = offered;
        let kind = ElementType::from_number(kind as u8).map_or_else(|| "unknown".into(), |it| it.to_string());
        let detail =
            format!("rank {sender} sends {offered} {kind}, and rank {rank} receives {len} {}", T::TYPE);
        Err(self.fail(CommError::Disagree {
            group: self.name.to_string(),
            ranks: vec![sender, rank],
            detail,
        }))
    }

    /// Waits until all is in the other's buffer.
    pub(super) fn hear_of_arrival(&self, to: usize) -> Result<()> {
        self.recv(&mut [0u8], to)
    }

    pub(super) fn tell_of_arrival(&self, from: usize) -> Result<()> {
        self.send(&[1u8], from)
    }

    /// An error of this rank's device, of which the others are told.
    #[cold]
    pub(super) fn device_failed(&self, error: evener_device::Error) -> CommError {
        self.fail(CommError::Device {
            group: self.name.to_string(),
            rank: self.world_rank(),
            error: Box::new(error),
        })
    }
}
