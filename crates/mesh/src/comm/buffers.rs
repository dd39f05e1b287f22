//! Collectives on device buffers, through the host: between devices of any make, as each is.

use std::collections::VecDeque;

use evener_device::{Buffer, Device, Direction, HostBuffer, Stream, Transfer};

use super::{
    core::Core,
    element::{Element, FloatElement},
    error::{CommError, Result},
    group::Group,
    operation::Operation,
};

/// Pieces are this large: long enough for the bus's full rate, short enough to overlap.
const PIECE_BYTES: usize = 4 << 20;
/// So many pieces are on their way down before they are needed, and so many up afterwards.
const PIECES_IN_FLIGHT: usize = 2;

/// Buffers may lie on any device, also of another make on every rank. Pieces go down to the host through memory that the
/// device can copy to, are reduced there, and go up again; while one is reduced, the next come down and the last goes up.
///
/// Whatever is queued in the stream comes first; when the call returns, the result is in the buffer. A device that fails
/// is an error on every rank.
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
        self.in_pieces(device, stream, buffer, |core, piece| core.all_reduce(piece, operation))
    }

    /// As [`weighted_all_reduce`](Group::weighted_all_reduce), of buffers.
    pub fn weighted_all_reduce_buffer<T: FloatElement>(
        &self,
        device: &Device,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        weight: f64,
    ) -> Result<()> {
        self.in_pieces(device, stream, buffer, |core, piece| core.weighted_all_reduce(piece, weight))
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
        self.in_pieces(device, stream, buffer, |core, piece| core.reduce(piece, operation, root))
    }

    /// As [`broadcast`](Group::broadcast), of buffers.
    pub fn broadcast_buffer<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        root: usize,
    ) -> Result<()> {
        self.in_pieces(device, stream, buffer, |core, piece| core.broadcast(piece, root))
    }

    fn in_pieces<T: Element>(
        &self,
        device: &Device,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        call: impl Fn(&Core, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        self.core.settle();
        // All or none: a rank with fewer pieces would be done before the others find out.
        self.core.agree_on_length(buffer.len())?;
        let mut pieces =
            Pieces::new(device, stream, buffer).map_err(|error| self.core.device_failed(error))?;
        while let Some(mut piece) =
            pieces.next(self.timeout()).map_err(|error| self.core.device_failed(error))?
        {
            call(&self.core, &mut piece.elements)?;
            pieces.put_back(piece, self.timeout()).map_err(|error| self.core.device_failed(error))?;
        }
        pieces.finish(self.timeout()).map_err(|error| self.core.device_failed(error))?;
        // The last piece has gone up everywhere, or somebody says that it has not.
        self.core.barrier()
    }
}

/// A buffer's pieces, coming down and going up.
struct Pieces<'a, T> {
    device: &'a Device,
    buffer: &'a Buffer<T>,
    down: &'a mut Stream,
    up: Stream,
    /// Where the next to come down begins.
    next: usize,
    /// Where the first on its way begins, and what is on its way.
    first: usize,
    coming: VecDeque<Transfer<T>>,
    going: VecDeque<Transfer<T>>,
    downloads: Vec<HostBuffer<T>>,
    uploads: Vec<HostBuffer<T>>,
    /// Elements of a piece.
    each: usize,
    /// The elements of a piece that has gone, for the next.
    spare: Vec<T>,
}

struct Piece<T> {
    start: usize,
    elements: Vec<T>,
}

type DeviceResult<T> = evener_device::Result<T>;

impl<'a, T: Element> Pieces<'a, T> {
    fn new(device: &'a Device, down: &'a mut Stream, buffer: &'a Buffer<T>) -> DeviceResult<Self> {
        let up = device.stream()?;
        Ok(Pieces {
            device,
            buffer,
            down,
            up,
            next: 0,
            first: 0,
            coming: VecDeque::new(),
            going: VecDeque::new(),
            downloads: Vec::new(),
            uploads: Vec::new(),
            each: PIECE_BYTES / size_of::<T>(),
            spare: Vec::new(),
        })
    }

    /// The next piece, with those after it on their way.
    fn next(&mut self, timeout: std::time::Duration) -> DeviceResult<Option<Piece<T>>> {
        while self.next < self.buffer.len() && self.coming.len() <= PIECES_IN_FLIGHT {
            let end = (self.next + self.each).min(self.buffer.len());
            let part = self.buffer.slice(self.next..end)?;
            let room = self.each.min(self.buffer.len());
            let host = match self.downloads.pop() {
                Some(host) => host,
                None => self.device.host_buffer(room, Direction::Download)?,
            };
            self.coming.push_back(self.down.download_host(&part, host)?);
            self.next = end;
        }
        let Some(transfer) = self.coming.pop_front() else { return Ok(None) };
        let host = transfer.wait_timeout(timeout)?;
        let start = self.first;
        let len = self.each.min(self.buffer.len() - start);
        self.first += len;
        let mut elements = std::mem::take(&mut self.spare);
        elements.clear();
        elements.extend_from_slice(&host.as_slice()[..len]);
        self.downloads.push(host);
        Ok(Some(Piece { start, elements }))
    }

    /// Sends a piece up again.
    fn put_back(&mut self, piece: Piece<T>, timeout: std::time::Duration) -> DeviceResult<()> {
        while self.going.len() >= PIECES_IN_FLIGHT
            && let Some(oldest) = self.going.pop_front()
        {
            self.uploads.push(oldest.wait_timeout(timeout)?);
        }
        let len = piece.elements.len();
        let mut host = match self.uploads.pop() {
            Some(host) => host,
            None => self.device.host_buffer(self.each.min(self.buffer.len()), Direction::Upload)?,
        };
        host.as_mut_slice()[..len].copy_from_slice(&piece.elements);
        let part = self.buffer.slice(piece.start..piece.start + len)?;
        self.going.push_back(self.up.upload_first(host, len, &part)?);
        self.spare = piece.elements;
        Ok(())
    }

    fn finish(mut self, timeout: std::time::Duration) -> DeviceResult<()> {
        while let Some(oldest) = self.going.pop_front() {
            oldest.wait_timeout(timeout)?;
        }
        Ok(())
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

#[cfg(test)]
mod test {
    use evener_device::{
        Api, Inventory,
        testing::{Failure, Fault, Faults},
    };

    use super::*;
    use crate::comm::Comm;

    /// Each rank has a device of its own; all reduce a long vector.
    fn reduce_on(devices: Vec<Device>) {
        let (ranks, len) = (devices.len(), 3 * PIECE_BYTES / 4 + 17);
        let threads: Vec<_> = Comm::local(ranks)
            .into_iter()
            .zip(devices)
            .map(|(comm, device)| {
                std::thread::spawn(move || {
                    let mut stream = device.stream().unwrap();
                    let group = comm.world();
                    let mine: Vec<f32> = (0..len).map(|index| (comm.rank() + index % 7) as f32).collect();
                    let buffer = device.buffer_from(&mine).unwrap();
                    group.all_reduce_buffer(&device, &mut stream, &buffer, Operation::Sum).unwrap();
                    let sum = stream.download(&buffer).unwrap().wait().unwrap();
                    let expected =
                        |index: usize| (0..ranks).map(|rank| (rank + index % 7) as f32).sum::<f32>();
                    assert!(sum.iter().enumerate().all(|(index, value)| *value == expected(index)));
                    let weight = if comm.rank() == 0 { 25.0 } else { 0.0 };
                    group.weighted_all_reduce_buffer(&device, &mut stream, &buffer, weight).unwrap();
                    let bytes = device.buffer_from(&[comm.rank() as u8; 1001]).unwrap();
                    group.broadcast_buffer(&device, &mut stream, &bytes, ranks - 1).unwrap();
                    assert_eq!(stream.download(&bytes).unwrap().wait().unwrap(), [ranks as u8 - 1; 1001]);
                    group.reduce_buffer(&device, &mut stream, &bytes, Operation::Sum, 0).unwrap();
                    let expected =
                        if comm.rank() == 0 { (ranks * (ranks - 1)) as u8 } else { ranks as u8 - 1 };
                    assert_eq!(stream.download(&bytes).unwrap().wait().unwrap(), [expected; 1001]);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn buffers_are_reduced_in_pieces() {
        reduce_on(vec![Device::cpu(), Device::cpu()]);
    }

    #[test]
    #[ignore = "needs a Vulkan device"]
    fn with_vulkan_unlike_devices_reduce_together() {
        let inventory = Inventory::discover_all_apis();
        let vulkan =
            inventory.devices().iter().find(|it| it.describe().api == Api::Vulkan).expect("no Vulkan device");
        reduce_on(vec![Device::cpu(), vulkan.clone(), Device::cpu()]);
    }

    #[test]
    #[ignore = "needs a CUDA card"]
    fn with_card_unlike_devices_reduce_together() {
        let inventory = Inventory::discover_all_apis();
        let card =
            inventory.devices().iter().find(|it| it.describe().api == Api::Cuda).expect("no CUDA device");
        reduce_on(vec![card.clone(), Device::cpu()]);
    }

    #[test]
    fn a_device_that_fails_is_an_error_on_every_rank() {
        // More than it takes; the last ones succeed.
        let mut succeeded = 0;
        for operation in 1..=40 {
            let threads: Vec<_> = Comm::local(2)
                .into_iter()
                .map(|comm| {
                    std::thread::spawn(move || {
                        let (device, faults) = Faults::wrap(&Device::cpu());
                        let buffer = device.buffer::<f32>(3 * PIECE_BYTES / 4).unwrap();
                        let mut stream = device.stream().unwrap();
                        if comm.rank() == 1 {
                            faults.at(faults.operations() + operation, Fault::Fail(Failure::Lost));
                        }
                        comm.world().all_reduce_buffer(&device, &mut stream, &buffer, Operation::Sum)
                    })
                })
                .collect();
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            if results.iter().all(Result::is_ok) {
                succeeded += 1;
                continue;
            }
            assert_eq!(succeeded, 0, "operation {operation} failed after one that was not needed");
            for result in results {
                let error = result.unwrap_err();
                assert_eq!(error.ranks(), [1], "operation {operation}: {error}");
            }
        }
        assert!((1..40).contains(&succeeded), "{succeeded}");
    }

    #[test]
    fn buffers_of_different_lengths_fail_on_every_rank() {
        let threads: Vec<_> = Comm::local(2)
            .into_iter()
            .map(|comm| {
                std::thread::spawn(move || {
                    let device = Device::cpu();
                    let buffer = device.buffer::<f32>(10 + comm.rank()).unwrap();
                    let mut stream = device.stream().unwrap();
                    comm.world().all_reduce_buffer(&device, &mut stream, &buffer, Operation::Sum).unwrap_err()
                })
            })
            .collect();
        for thread in threads {
            let error = thread.join().unwrap();
            assert!(matches!(error, CommError::Disagree { .. }), "{error}");
        }
    }
}
