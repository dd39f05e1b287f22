//! Launches that were recorded once and are queued again as one operation: CUDA's graphs.

use std::{
    ffi::c_int,
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstream, CUstreamCaptureMode};

use super::{
    context::Entered,
    driver::GraphFunctions,
    errors,
    open::{Open, RawStream},
    program::CudaBound,
};
use crate::{
    backend::{Graph, Recorded},
    error::Result,
};

/// A graph that can be launched.
#[derive(Debug)]
struct RawGraph(CUgraphExec);

// SAFETY: a graph may be used from any thread in whose context it is, one at a time, which the lock around it sees to.
unsafe impl Send for RawGraph {}

#[derive(Debug)]
pub(super) struct CudaGraph {
    pub(super) open: Arc<Open>,
    functions: &'static GraphFunctions,
    graph: Mutex<RawGraph>,
    /// The kernels with their buffers, kept for as long as the graph.
    _launches: Vec<Recorded>,
}

impl Graph for CudaGraph {}

impl CudaGraph {
    /// Records launches. Nothing where the driver has no graphs.
    pub(super) fn record(open: &Arc<Open>, launches: &[Recorded]) -> Result<Option<Self>> {
        let entered = open.hold.enter("recording launches")?;
        let Some(functions) = &entered.driver.graphs else { return Ok(None) };
        let stream = open.take_stream(&entered)?;
        let graph = capture(open, &entered, functions, &stream, launches);
        open.return_stream(stream);
        let graph = graph?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is alive and of this context; the pointer is to a live pointer. The graph is destroyed once.
        let code = unsafe {
            let code = (functions.instantiate)(&mut exec, graph, 0);
            (functions.destroy)(graph);
            code
        };
        entered.check(code)?;
        let (graph, _launches) = (Mutex::new(RawGraph(exec)), launches.to_vec());
        Ok(Some(CudaGraph { open: open.clone(), functions, graph, _launches }))
    }

    /// Queues all of the launches.
    pub(super) fn launch(&self, entered: &Entered<'_>, stream: CUstream) -> Result<()> {
        let graph = self.graph.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: graph and stream are alive and of the context that is current; the lock keeps other threads from the
        // graph. The caller keeps `self`, and so kernels and buffers, until the launches have ended.
        entered.check(unsafe { (self.functions.launch)(graph.0, stream) })
    }
}

impl Drop for CudaGraph {
    // After a loss the driver has nothing of it any more.
    fn drop(&mut self) {
        let graph = self.graph.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Ok(entered) = self.open.hold.enter("closing a graph") {
            // SAFETY: of this context, and never used again. The streams keep a graph until its launches have ended.
            let _ = entered.check(unsafe { (self.functions.exec_destroy)(graph.0) });
        }
    }
}

/// Has a stream record the launches instead of running them.
fn capture(
    open: &Arc<Open>,
    entered: &Entered<'_>,
    functions: &GraphFunctions,
    stream: &RawStream,
    launches: &[Recorded],
) -> Result<CUgraph> {
    // Other calls of this process go on meanwhile as if nothing were recorded.
    const MODE: c_int = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_int;
    // SAFETY: the stream is alive, of this context, and nobody else's.
    entered.check(unsafe { (functions.begin_capture)(stream.0, MODE) })?;
    let queue = |recorded: &Recorded| {
        let bound = (&*recorded.bound as &dyn std::any::Any).downcast_ref::<CudaBound>();
        match bound.filter(|bound| bound.open.hold.shares_context(&open.hold)) {
            Some(bound) => bound.launch(entered, stream.0, recorded.groups, &recorded.params),
            None => errors::foreign(&open.hold.id, "recording launches", "kernel"),
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
    queued.and_then(|()| entered.check(code))?;
    Ok(graph)
}
