//! The operations through Evener.

use evener_device::{
    Api, BoundKernel, Buffer, Device, Direction, Features, HostBuffer, Kernel, Stream, copy_parallel,
};

use crate::{ADDEND, COPY_BYTES, CUDA_SOURCE, GROUPS, Params, Peer, Result, WGSL_SOURCE, WORKGROUP};

pub(crate) struct Evener {
    stream: Stream,
    nothing: BoundKernel,
    multiply: BoundKernel,
    target: Buffer<u8>,
    up: Option<HostBuffer<u8>>,
    down: Option<HostBuffer<u8>>,
    /// Written to host memory before an upload; empty if that is not part of the transfer.
    written: Vec<u8>,
}

/// Returns a kernel of the benchmark's sources.
///
/// # Safety
/// `int32_multiply` has a buffer with an element for each thread of a launch.
#[allow(unsafe_code)]
pub(crate) unsafe fn kernel(name: &'static str) -> Kernel {
    let kernel = Kernel::new(name).workgroup(WORKGROUP);
    // SAFETY: a thread writes its own element, which the caller promises; the loop has `iterations` iterations.
    unsafe { kernel.cuda(CUDA_SOURCE).wgsl_unchecked(Features::empty(), WGSL_SOURCE) }
}

impl Evener {
    #[allow(unsafe_code)]
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let out = device.buffer::<u32>((GROUPS * WORKGROUP) as usize)?;
        // SAFETY: `multiply` launches `GROUPS` workgroups; the other kernel does nothing.
        let (multiply, nothing) = unsafe { (kernel("int32_multiply"), kernel("nothing")) };
        let multiply = multiply.writes::<u32>().params::<Params>();
        Ok(Evener {
            stream: device.stream()?,
            nothing: device.compile(&nothing)?.bind(&[])?,
            multiply: device.compile(&multiply)?.bind(&[out.arg()])?,
            target: device.buffer(COPY_BYTES)?,
            up: Some(device.host_buffer(COPY_BYTES, Direction::Upload)?),
            down: Some(device.host_buffer(COPY_BYTES, Direction::Download)?),
            written: vec![0xA5; if device.describe().api == Api::Cuda { 0 } else { COPY_BYTES }],
        })
    }
}

impl Peer for Evener {
    fn name(&self) -> String {
        "Evener".into()
    }

    fn launch_and_wait(&mut self) -> Result<()> {
        self.stream.launch(&self.nothing, 1, &())?;
        Ok(self.stream.wait()?)
    }

    fn launch_many(&mut self, times: u32) -> Result<()> {
        for _ in 0..times {
            self.stream.launch(&self.nothing, 1, &())?;
        }
        Ok(self.stream.wait()?)
    }

    fn upload(&mut self) -> Result<()> {
        if let Some(mut host) = self.up.take() {
            copy_parallel(&self.written, &mut host.as_mut_slice()[..self.written.len()]);
            self.up = Some(self.stream.upload_host(host, &self.target)?.wait()?);
        }
        Ok(())
    }

    fn download(&mut self) -> Result<()> {
        if let Some(host) = self.down.take() {
            self.down = Some(self.stream.download_host(&self.target, host)?.wait()?);
        }
        Ok(())
    }

    fn multiply(&mut self, iterations: u32) -> Result<()> {
        self.stream.launch(&self.multiply, GROUPS, &Params { iterations, addend: ADDEND })?;
        Ok(self.stream.wait()?)
    }
}
