//! CUDA graphs: launches that are recorded once and queued many times, each time with one call.

use std::{
    ffi::c_int,
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstream, CUstreamCaptureMode};

use super::{
    context::DriverGuard,
    driver::GraphFunctions,
    open::{OpenDevice, RawStream},
    program::CudaBoundKernel,
};
use crate::{
    backend::{GraphBackend, RecordedLaunch},
    error::Result,
};

/// The driver's handle of an executable graph.
#[derive(Debug)]
struct RawGraph(CUgraphExec);

// SAFETY: the driver allows a graph in any thread to which the graph's context is current, one thread at a time: the
// `Mutex` in `CudaGraph` ensures that.
unsafe impl Send for RawGraph {}

#[derive(Debug)]
pub(super) struct CudaGraph {
    pub(super) open: Arc<OpenDevice>,
    functions: &'static GraphFunctions,
    graph: Mutex<RawGraph>,
    /// The bound kernels, which keep functions and buffers alive for as long as the graph.
    _launches: Vec<RecordedLaunch>,
}

impl GraphBackend for CudaGraph {}

impl CudaGraph {
    /// Records launches. Returns `None` if the driver has no graphs.
    pub(super) fn record(open: &Arc<OpenDevice>, launches: &[RecordedLaunch]) -> Result<Option<Self>> {
        let guard = open.context.enter("recording a graph")?;
        let Some(functions) = &guard.driver.graphs else { return Ok(None) };
        let stream = open.take_stream(&guard)?;
        let graph = capture(open, &guard, functions, &stream, launches);
        open.return_stream(stream);
        let graph = graph?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: `capture` made the graph in this context; the pointer is to a live pointer. The graph is destroyed once.
        let code = unsafe {
            let code = (functions.instantiate)(&mut exec, graph, 0);
            (functions.destroy)(graph);
            code
        };
        guard.check(code)?;
        let (graph, _launches) = (Mutex::new(RawGraph(exec)), launches.to_vec());
        Ok(Some(CudaGraph { open: open.clone(), functions, graph, _launches }))
    }

    pub(super) fn launch(&self, guard: &DriverGuard<'_>, stream: CUstream) -> Result<()> {
        let graph = self.graph.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: graph and stream are alive and of the guard's context; the lock keeps other threads from the graph. The
        // caller keeps `self`, and with it kernels and buffers, until the launches have finished.
        guard.check(unsafe { (self.functions.launch)(graph.0, stream) })
    }
}

impl Drop for CudaGraph {
    // After a loss the driver has freed the graph itself.
    fn drop(&mut self) {
        let graph = self.graph.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Ok(guard) = self.open.context.enter("closing a graph") {
            // SAFETY: the graph is of this context and is not used again: streams keep it until its launches have finished.
            let _ = guard.check(unsafe { (self.functions.exec_destroy)(graph.0) });
        }
    }
}

/// Records the launches on a stream, without running them.
fn capture(
    open: &Arc<OpenDevice>,
    guard: &DriverGuard<'_>,
    functions: &GraphFunctions,
    stream: &RawStream,
    launches: &[RecordedLaunch],
) -> Result<CUgraph> {
    // Other threads' calls are unaffected by a capture in this mode.
    const MODE: c_int = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_int;
    // SAFETY: the stream is alive and of this context, and only the caller has it.
    guard.check(unsafe { (functions.begin_capture)(stream.0, MODE) })?;
    let queue = |recorded: &RecordedLaunch| {
        let bound = CudaBoundKernel::of(&recorded.bound, open)?;
        bound.launch(guard, stream.0, recorded.groups, &recorded.params)
    };
    let queued = launches.iter().try_for_each(queue);
    let mut graph = std::ptr::null_mut();
    // SAFETY: as for `begin_capture`; the pointer is to a live pointer. The capture ends even if a launch failed.
    let code = unsafe { (functions.end_capture)(stream.0, &mut graph) };
    if queued.is_err() && !graph.is_null() {
        // SAFETY: the graph is of this context and is not used again.
        unsafe { (functions.destroy)(graph) };
    }
    queued.and_then(|()| guard.check(code))?;
    Ok(graph)
}
