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
    pub(crate) inner: Option<std::sync::Arc<dyn backend::Graph>>,
}

/// Records the launches of a [`Graph`].
#[derive(Debug)]
pub struct GraphRecorder<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) launches: Vec<RecordedLaunch>,
}

impl GraphRecorder<'_> {
    /// Records a launch, with the arguments of [`Stream::launch`]. The parameters are copied now.
    pub fn launch<P: Pod>(
        &mut self,
        bound: &BoundKernel,
        groups: impl Into<Extent>,
        params: &P,
    ) -> Result<()> {
        let (Extent(groups), params) = (groups.into(), bytemuck::bytes_of(params));
        if self.stream.check_launch(bound, groups, params.len())? {
            self.launches.push(RecordedLaunch { bound: bound.inner.clone(), groups, params: params.into() });
        }
        Ok(())
    }
}
