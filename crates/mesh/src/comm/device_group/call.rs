//! Calls: from card to card where that can be, otherwise through the host.

use evener_device::{Buffer, Device, Event, Stream};

use super::{
    super::{
        buffers::Asked, core::Core, element::Element, error::Result, pending::Pending, request::Request,
    },
    DeviceGroup, Way,
};

/// Input and output do not overlap. Through NCCL, reductions go in an order of its own.
impl DeviceGroup {
    /// Does what is asked for: what all other collectives here are short for. There is no input, or no output, where the
    /// request has none on this rank. Whatever is queued in the stream comes first; when the call returns, the result is
    /// in the buffer.
    pub fn call<T: Element>(
        &self,
        stream: &mut Stream,
        request: Request,
        input: Option<&Buffer<T>>,
        output: Option<&Buffer<T>>,
    ) -> Result<()> {
        self.call_any(stream, Asked { request, input, output, lengths: None }).map(drop)
    }

    pub(in crate::comm) fn call_any<T: Element>(
        &self,
        stream: &mut Stream,
        asked: Asked<'_, T>,
    ) -> Result<Vec<usize>> {
        self.group.core().settle();
        self.way.call(self.group.core(), stream, asked)
    }

    /// Starts a [`call`](DeviceGroup::call) that comes after whatever is queued in the stream so far. Copies go through
    /// streams of its own: what is queued in this one afterwards runs meanwhile, and must not use the buffers until the
    /// call has ended. Calls run in the order in which they were started, after one another.
    ///
    /// ```
    /// use evener_device::Device;
    /// use evener_mesh::comm::{Comm, Operation, Request};
    ///
    /// let comm = Comm::local(1).remove(0);
    /// let device = Device::cpu();
    /// let group = comm.world().with_device(&device)?;
    /// let (mut stream, gradient) = (device.stream()?, device.buffer_from(&[1.0f32, 2.0])?);
    /// let pending = group.start(&mut stream, Request::AllReduce(Operation::Sum), None, Some(&gradient));
    /// // … kernels of the layer before, in the same stream …
    /// pending.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start<T: Element>(
        &self,
        stream: &mut Stream,
        request: Request,
        input: Option<&Buffer<T>>,
        output: Option<&Buffer<T>>,
    ) -> Pending<()> {
        self.start_any(stream, Asked { request, input, output, lengths: None }, drop)
    }

    /// Starts a call of which the caller gets what `made` makes of how much each rank gave.
    pub(in crate::comm) fn start_any<T: Element, R: Send + 'static>(
        &self,
        stream: &mut Stream,
        Asked { request, input, output, lengths }: Asked<'_, T>,
        made: fn(Vec<usize>) -> R,
    ) -> Pending<R> {
        let (way, input, output) = (self.way.clone(), input.cloned(), output.cloned());
        let lengths = lengths.map(|it| it.map(<[usize]>::to_vec));
        // An event that could not be had is an error in the call's own turn.
        let event = stream.record_event();
        self.group.later(move |core| {
            let mut stream = event
                .and_then(|event| stream_after(&way.device, &event))
                .map_err(|error| core.device_failed(error))?;
            let lengths = lengths.as_ref().map(Option::as_deref);
            let asked = Asked { request, input: input.as_ref(), output: output.as_ref(), lengths };
            way.call(core, &mut stream, asked).map(made)
        })
    }
}

/// A stream for what comes after an event.
fn stream_after(device: &Device, event: &Event) -> evener_device::Result<Stream> {
    let mut stream = device.stream()?;
    stream.wait_event(event)?;
    Ok(stream)
}

impl Way {
    fn call<T: Element>(&self, core: &Core, stream: &mut Stream, asked: Asked<'_, T>) -> Result<Vec<usize>> {
        #[cfg(unix)]
        if let Some(direct) = &self.direct
            && !matches!(asked.request, Request::WeightedAllReduce(_) | Request::Barrier)
        {
            return super::direct::call(direct, core, stream, asked);
        }
        core.call_buffers(&self.device, stream, asked)
    }
}
