//! Graphs: launches that are recorded once and queued many times.

use bytemuck::Pod;

use crate::{
    backend::{self, RecordedLaunch},
    error::{Error, Result},
    kernel::{BoundKernel, Extent},
    stream::Stream,
};

/// Recorded launches, which [`Stream::replay`] queues any number of times. [`Stream::record_graph`] makes it.
///
/// On a CUDA device a replay is one call to the driver for all launches; other devices queue them one by one.
#[derive(Debug)]
pub struct Graph {
    pub(crate) launches: Vec<RecordedLaunch>,
    /// The back end's form of the launches, if it has one.
    pub(crate) inner: Option<std::sync::Arc<dyn backend::GraphBackend>>,
}

/// Records the launches of a [`Graph`].
#[derive(Debug)]
pub struct GraphRecorder<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) launches: Vec<RecordedLaunch>,
}

impl GraphRecorder<'_> {
    /// Records a launch, with the arguments of [`Stream::launch`]. The parameters are copied now. Fails if the kernel was
    /// compiled for another device.
    pub fn launch<P: Pod>(
        &mut self,
        bound: &BoundKernel,
        groups: impl Into<Extent>,
        params: &P,
    ) -> Result<()> {
        let (Extent(groups), params) = (groups.into(), bytemuck::bytes_of(params));
        if bound.device != *self.stream.device() {
            let detail = format!("kernel `{}` was compiled for {}", bound.kernel.name, bound.device);
            return Err(Error::unsupported(self.stream.device(), "recording a launch", detail));
        }
        if self.stream.check_launch(bound, groups, params.len())? {
            self.launches.push(RecordedLaunch { bound: bound.inner.clone(), groups, params: params.into() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use crate::{Device, Kernel};

    #[test]
    fn a_kernel_of_another_device_is_not_recorded() {
        let (device, other) = (Device::cpu(), Device::cpu().split(&[1]).unwrap().remove(0));
        let kernel = Kernel::new("nothing").rust(|_| Ok(()));
        let bound = other.compile(&kernel).unwrap().bind(&[]).unwrap();
        let mut stream = device.stream().unwrap();
        let error = stream.record_graph(|recorder| recorder.launch(&bound, 1, &())).unwrap_err();
        assert!(error.to_string().contains("compiled for cpu/a"), "{error}");
        assert!(other.stream().unwrap().record_graph(|recorder| recorder.launch(&bound, 1, &())).is_ok());
    }
}
