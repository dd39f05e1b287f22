//! Graphs: launches that are recorded once and queued many times.

use bytemuck::Pod;

use crate::{
    backend::{self, RecordedLaunch},
    error::Result,
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
    /// Records a launch, with the arguments of [`Stream::launch`]. The parameters are copied now. Fails if the stream would
    /// refuse the launch, for example because the kernel belongs to another device.
    pub fn launch<P: Pod>(
        &mut self,
        bound: &BoundKernel,
        groups: impl Into<Extent>,
        params: &P,
    ) -> Result<()> {
        let (Extent(groups), params) = (groups.into(), bytemuck::bytes_of(params));
        if self.stream.check_recorded_launch(bound, groups, params.len())? {
            self.launches.push(RecordedLaunch { bound: bound.inner.clone(), groups, params: params.into() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use crate::{
        Device, Kernel, Result,
        backend::BoundKernelBackend,
        kernel::{BoundKernel, Extent},
    };

    /// A kernel of a back end that no device here has.
    #[derive(Debug)]
    struct ForeignKernel;

    impl BoundKernelBackend for ForeignKernel {
        fn with_workgroup(&self, _: &Kernel) -> Result<Arc<dyn BoundKernelBackend>> {
            Ok(Arc::new(ForeignKernel))
        }
    }

    fn bound(device: &Device) -> BoundKernel {
        let kernel = Kernel::new("nothing").rust(|_| Ok(()));
        device.compile(&kernel).unwrap().bind(&[]).unwrap()
    }

    /// Launches a kernel, and records the same launch.
    fn launch_and_record(device: &Device, bound: &BoundKernel, groups: impl Into<Extent>) -> [Result<()>; 2] {
        let mut stream = device.stream().unwrap();
        let groups = groups.into();
        [
            stream.launch(bound, groups, &()).and_then(|()| stream.wait()),
            stream.record_graph(|recorder| recorder.launch(bound, groups, &())).and_then(|graph| {
                stream.replay(&graph)?;
                stream.wait()
            }),
        ]
    }

    #[test]
    fn a_kernel_of_another_device_is_not_recorded() {
        let device = Device::cpu();
        let foreign = BoundKernel { inner: Arc::new(ForeignKernel), ..bound(&device) };
        for refused in launch_and_record(&device, &foreign, 1) {
            let error = refused.unwrap_err().to_string();
            assert_eq!(error, "cpu: launching a kernel failed: the kernel belongs to another device");
        }
        assert!(launch_and_record(&device, &foreign, 0).iter().all(Result::is_ok), "nothing is launched");
    }

    #[test]
    fn a_kernel_of_the_whole_device_is_recorded_on_a_partition_and_the_other_way_round() {
        let (whole, part) = (Device::cpu(), Device::cpu().split(&[1]).unwrap().remove(0));
        for (device, kernel) in [(&whole, &whole), (&part, &whole), (&whole, &part), (&part, &part)] {
            for accepted in launch_and_record(device, &bound(kernel), 1) {
                accepted.unwrap();
            }
        }
    }
}
