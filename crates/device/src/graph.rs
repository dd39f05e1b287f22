//! Graphs: launches that are recorded once and queued again as one operation.

use bytemuck::Pod;

use crate::{
    backend::{self, RecordedLaunch},
    error::Result,
    kernel::{BoundKernel, Extent},
    stream::Stream,
};

/// Launches that were recorded once and are queued again as one operation, by [`Stream::replay`].
///
/// On a CUDA device this is one call to the driver however many launches there are; elsewhere, they are queued one by one.
/// [`Stream::record_graph`] makes one.
#[derive(Debug)]
pub struct Graph {
    pub(crate) launches: Vec<RecordedLaunch>,
    /// What the back end made of them, if it makes something.
    pub(crate) inner: Option<std::sync::Arc<dyn backend::Graph>>,
}

/// Takes the launches of a [`Graph`].
#[derive(Debug)]
pub struct GraphRecorder<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) launches: Vec<RecordedLaunch>,
}

impl GraphRecorder<'_> {
    /// Records a launch, as [`Stream::launch`] would queue it. The parameters are those of now.
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
