//! Launches that were recorded once and are queued again as one operation: CUDA's graphs.

use std::{
    ffi::c_int,
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstream, CUstreamCaptureMode};

use super::{
    context::ContextGuard,
    driver::GraphFunctions,
    errors,
    open::{OpenDevice, RawStream},
    program::CudaBoundKernel,
};
use crate::{
    backend::{Graph, RecordedLaunch},
    error::Result,
};

/// A graph that can be launched.
#[derive(Debug)]
struct RawGraph(CUgraphExec);

// SAFETY: a graph may be used from any thread in whose context it is, one at a time, which the lock around it sees to.
unsafe impl Send for RawGraph {}

#[derive(Debug)]
pub(super) struct CudaGraph {
    pub(super) open: Arc<OpenDevice>,
    functions: &'static GraphFunctions,
    graph: Mutex<RawGraph>,
    /// The kernels with their buffers, kept for as long as the graph.
    _launches: Vec<RecordedLaunch>,
}

impl Graph for CudaGraph {}

impl CudaGraph {
    /// Records launches. Nothing where the driver has no graphs.
    pub(super) fn record(open: &Arc<OpenDevice>, launches: &[RecordedLaunch]) -> Result<Option<Self>> {
        let guard = open.context.enter("recording launches")?;
        let Some(functions) = &guard.driver.graphs else { return Ok(None) };
        let stream = open.take_stream(&guard)?;
        let graph = capture(open, &guard, functions, &stream, launches);
        open.return_stream(stream);
        let graph = graph?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is alive and of this context; the pointer is to a live pointer. The graph is destroyed once.
        let code = unsafe {
            let code = (functions.instantiate)(&mut exec, graph, 0);
            (functions.destroy)(graph);
            code
        };
        guard.check(code)?;
        let (graph, _launches) = (Mutex::new(RawGraph(exec)), launches.to_vec());
        Ok(Some(CudaGraph { open: open.clone(), functions, graph, _launches }))
    }

    /// Queues all of the launches.
    pub(super) fn launch(&self, guard: &ContextGuard<'_>, stream: CUstream) -> Result<()> {
        let graph = self.graph.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: graph and stream are alive and of the context that is current; the lock keeps other threads from the
        // graph. The caller keeps `self`, and so kernels and buffers, until the launches have ended.
        guard.check(unsafe { (self.functions.launch)(graph.0, stream) })
    }
}

impl Drop for CudaGraph {
    // After a loss the driver has nothing of it any more.
    fn drop(&mut self) {
        let graph = self.graph.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Ok(guard) = self.open.context.enter("closing a graph") {
            // SAFETY: of this context, and never used again. The streams keep a graph until its launches have ended.
            let _ = guard.check(unsafe { (self.functions.exec_destroy)(graph.0) });
        }
    }
}

/// Has a stream record the launches instead of running them.
fn capture(
    open: &Arc<OpenDevice>,
    guard: &ContextGuard<'_>,
    functions: &GraphFunctions,
    stream: &RawStream,
    launches: &[RecordedLaunch],
) -> Result<CUgraph> {
    // Other calls of this process go on meanwhile as if nothing were recorded.
    const MODE: c_int = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_int;
    // SAFETY: the stream is alive, of this context, and nobody else's.
    guard.check(unsafe { (functions.begin_capture)(stream.0, MODE) })?;
    let queue = |recorded: &RecordedLaunch| {
        let bound = (&*recorded.bound as &dyn std::any::Any).downcast_ref::<CudaBoundKernel>();
        match bound.filter(|bound| bound.open.context.is_same_context(&open.context)) {
            Some(bound) => bound.launch(guard, stream.0, recorded.groups, &recorded.params),
            None => errors::wrong_device(&open.context.id, "recording launches", "kernel"),
        }
    };
    let queued = launches.iter().try_for_each(queue);
    let mut graph = std::ptr::null_mut();
    // SAFETY: as above; the pointer is to a live pointer. The recording ends whether or not all was recorded.
    let code = unsafe { (functions.end_capture)(stream.0, &mut graph) };
    if queued.is_err() && !graph.is_null() {
        // SAFETY: of this context, and never used again.
        unsafe { (functions.destroy)(graph) };
    }
    queued.and_then(|()| guard.check(code))?;
    Ok(graph)
}
