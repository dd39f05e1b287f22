//! Calls on device buffers: by NCCL if possible, otherwise through the host.

use evener_device::{Buffer, Device, Event, Stream};

use super::{
    super::{
        buffers::{BlockLengths, BufferArgs},
        collective::Collective,
        element::Element,
        error::Result,
        inner::Inner,
        pending::PendingCollective,
    },
    DeviceCommunicator, Route,
};

/// Input and output must not overlap. NCCL reduces in an order of its own.
impl DeviceCommunicator {
    /// Runs a collective; the methods named after collectives are short for it. `input` or `output` is `None` if the
    /// collective has none on this rank. The call runs after the work that is already queued in the stream; when it
    /// returns, the result is in the buffer.
    pub fn call<T: Element>(
        &self,
        stream: &mut Stream,
        collective: Collective,
        input: Option<&Buffer<T>>,
        output: Option<&Buffer<T>>,
    ) -> Result<()> {
        self.call_any(stream, BufferArgs { collective, input, output, lengths: BlockLengths::Even }).map(drop)
    }

    pub(in crate::comm) fn call_any<T: Element>(
        &self,
        stream: &mut Stream,
        args: BufferArgs<'_, T>,
    ) -> Result<Vec<usize>> {
        self.communicator.inner().wait_for_started();
        self.route.call(self.communicator.inner(), stream, args)
    }

    /// Starts a [`call`](DeviceCommunicator::call) that runs after the work already queued in the stream. It copies on
    /// streams of its own: work that is queued in this stream afterwards runs at the same time, and must not use the
    /// buffers until the call has ended. Started calls run in order, one at a time.
    ///
    /// ```
    /// use evener_device::Device;
    /// use evener_mesh::comm::{Collective, ReduceOp, World};
    ///
    /// let world = World::local(1).remove(0);
    /// let device = Device::cpu();
    /// let group = world.communicator().with_device(&device)?;
    /// let (mut stream, gradient) = (device.stream()?, device.buffer_from(&[1.0f32, 2.0])?);
    /// let pending = group.start(&mut stream, Collective::AllReduce(ReduceOp::Sum), None, Some(&gradient));
    /// // … kernels of the layer before, in the same stream …
    /// pending.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start<T: Element>(
        &self,
        stream: &mut Stream,
        collective: Collective,
        input: Option<&Buffer<T>>,
        output: Option<&Buffer<T>>,
    ) -> PendingCollective<()> {
        self.start_any(stream, BufferArgs { collective, input, output, lengths: BlockLengths::Even }, drop)
    }

    /// Starts a call whose result is `made` of the elements from each rank.
    pub(in crate::comm) fn start_any<T: Element, R: Send + 'static>(
        &self,
        stream: &mut Stream,
        BufferArgs { collective, input, output, lengths }: BufferArgs<'_, T>,
        made: fn(Vec<usize>) -> R,
    ) -> PendingCollective<R> {
        let (route, input, output) = (self.route.clone(), input.cloned(), output.cloned());
        let lengths = lengths.into_owned();
        // If the event could not be recorded, the call fails in its turn.
        let event = stream.record_event();
        self.communicator.start_call(move |inner| {
            let mut stream = event
                .and_then(|event| stream_after(&route.device, &event))
                .map_err(|error| inner.device_failed(error))?;
            let args = BufferArgs { collective, input: input.as_ref(), output: output.as_ref(), lengths };
            route.call(inner, &mut stream, args).map(made)
        })
    }
}

fn stream_after(device: &Device, event: &Event) -> evener_device::Result<Stream> {
    let mut stream = device.stream()?;
    stream.wait_event(event)?;
    Ok(stream)
}

impl Route {
    fn call<T: Element>(
        &self,
        inner: &Inner,
        stream: &mut Stream,
        args: BufferArgs<'_, T>,
    ) -> Result<Vec<usize>> {
        #[cfg(unix)]
        if let Some(direct) = &self.direct
            && !matches!(args.collective, Collective::WeightedAllReduce(_) | Collective::Barrier)
        {
            return super::direct::call(direct, inner, stream, args);
        }
        inner.call_buffers(&self.device, stream, args)
    }
}
