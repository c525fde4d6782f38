//! Graphs: a stream's work, captured once and launched again and again.

use super::{
    PrimaryContext, Stream,
    device::forget_failure,
    driver::driver_call,
    sys::{CUgraph, CUgraphExec},
};
use crate::Result;

const CAPTURE_THREAD_LOCAL: i32 = 1;

/// Work that was captured and can be launched.
#[derive(Debug)]
pub struct Graph {
    context: PrimaryContext,
    raw: CUgraphExec,
}

impl Graph {
    /// Captures what `enqueue` enqueues on `stream` (and on streams that wait for its events) instead of running it.
    ///
    /// # Errors
    /// That of `enqueue`, or [`crate::Error::Device`] where something cannot be captured. The stream can be used again either way.
    pub fn capture(stream: &Stream, enqueue: impl FnOnce() -> Result<()>) -> Result<Self> {
        let context = stream.context();
        let driver = context.driver();
        let _guard = context.enter()?;
        // SAFETY: the stream is alive; the mode is a valid one.
        unsafe { driver_call!(driver, cuStreamBeginCapture_v2(stream.raw(), CAPTURE_THREAD_LOCAL)) }?;
        let enqueued = enqueue();
        let mut described = CUgraph::NULL;
        // SAFETY: writes one handle, destroyed below; ends the capture begun above whatever came between.
        let ended = unsafe { driver_call!(driver, cuStreamEndCapture(stream.raw(), &mut described)) };
        let instantiated = enqueued.and(ended).and_then(|()| {
            let mut raw = CUgraphExec::NULL;
            // SAFETY: writes one handle; the graph was just captured.
            unsafe { driver_call!(driver, cuGraphInstantiateWithFlags(&mut raw, described, 0)) }?;
            Ok(Self { context: context.clone(), raw })
        });
        if described != CUgraph::NULL {
            // SAFETY: created by the capture, destroyed once; the executable graph does not need it.
            forget_failure(unsafe { driver_call!(driver, cuGraphDestroy(described)) });
        }
        instantiated
    }

    /// Enqueues all its work on `stream`.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    ///
    /// # Safety
    /// All that the captured work uses must still be valid, and for as long as the work runs; so must `self`.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let _guard = self.context.enter()?;
        // SAFETY: graph and stream are alive; the caller vouches for the rest.
        unsafe { driver_call!(self.context.driver(), cuGraphLaunch(self.raw, stream.raw())) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let destroyed = self.context.enter().and_then(|_guard| {
            // SAFETY: instantiated by `capture`, destroyed once.
            unsafe { driver_call!(self.context.driver(), cuGraphExecDestroy(self.raw)) }
        });
        forget_failure(destroyed);
    }
}
