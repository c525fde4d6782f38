//! Graphs: a stream's work, captured once and launched again and again.

use std::marker::PhantomData;

use super::{
    Event, PrimaryContext, Stream,
    device::forget_failure,
    driver::driver_call,
    sys::{CUgraph, CUgraphExec, CUgraphNode},
};
use crate::{Error, Result};

const CAPTURE_THREAD_LOCAL: i32 = 1;
const CAPTURE_NONE: i32 = 0;
const CAPTURE_ACTIVE: i32 = 1;
const CAPTURE_RELAXED: i32 = 2;

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
    /// That of `enqueue`, or [`Error::Device`] where something cannot be captured. The stream can be used again either way.
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
    /// [`Error::Device`].
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

/// A stream's open capture, as it stands now.
#[derive(Debug)]
pub struct Capture {
    context: PrimaryContext,
    id: u64,
    graph: CUgraph,
    /// What the stream's next operation would wait for.
    tips: Vec<CUgraphNode>,
}

impl Capture {
    /// The capture that `stream` takes part in, if it does.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was invalidated; [`Error::Device`].
    pub fn of(stream: &Stream) -> Result<Option<Self>> {
        let context = stream.context();
        let _guard = context.enter()?;
        let (mut status, mut id, mut count) = (CAPTURE_NONE, 0, 0);
        let (mut graph, mut tips) = (CUgraph::NULL, std::ptr::null());
        // SAFETY: writes one value to each place.
        unsafe {
            driver_call!(
                context.driver(),
                cuStreamGetCaptureInfo_v2(
                    stream.raw(),
                    &mut status,
                    &mut id,
                    &mut graph,
                    &mut tips,
                    &mut count
                )
            )
        }?;
        match status {
            CAPTURE_NONE => return Ok(None),
            CAPTURE_ACTIVE => {}
            _ => {
                return Err(Error::Invalid {
                    what: "a stream's capture".to_owned(),
                    value: "invalidated".to_owned(),
                    reason: "an earlier operation broke it; end it and capture again".to_owned(),
                });
            }
        }
        let tips = match count {
            0 => Vec::new(),
            // SAFETY: the driver's array of `count` nodes, valid until the next operation on the stream.
            _ => unsafe { std::slice::from_raw_parts(tips, count) }.to_vec(),
        };
        Ok(Some(Self { context: context.clone(), id, graph, tips }))
    }

    /// What tells this capture from all others of the process.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Has every replay record `event` after what the stream has captured so far. The stream itself does not wait for it.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn record(&self, event: &Event) -> Result<RecordNode> {
        let mut node = CUgraphNode::NULL;
        let (tips, count) = (self.tips.as_ptr(), self.tips.len());
        // SAFETY: writes one handle, reads `count` nodes of the graph, which is being captured; the event is alive.
        unsafe {
            driver_call!(
                self.context.driver(),
                cuGraphAddEventRecordNode(&mut node, self.graph, tips, count, event.raw())
            )
        }?;
        Ok(RecordNode(node))
    }

    /// Has `record` wait for what the stream has captured so far, too: something else than at any earlier time.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn delay(&self, record: RecordNode) -> Result<()> {
        let later = vec![record.0; self.tips.len()];
        let (from, to, count) = (self.tips.as_ptr(), later.as_ptr(), later.len());
        // SAFETY: reads `count` nodes of the graph from either array.
        unsafe { driver_call!(self.context.driver(), cuGraphAddDependencies(self.graph, from, to, count)) }
    }
}

/// Where a graph under capture records an event.
#[derive(Debug, Clone, Copy)]
pub struct RecordNode(CUgraphNode);

/// While it lives, this thread's calls do not break captures that other threads have open in the global mode. For what is
/// done beside all streams under capture: creation, cleaning up.
#[derive(Debug)]
#[must_use = "the mode lasts as long as the guard"]
pub struct BesideCaptures<'a> {
    context: &'a PrimaryContext,
    before: i32,
    _this_thread: PhantomData<*mut ()>,
}

impl<'a> BesideCaptures<'a> {
    /// Changes this thread's mode until the guard is dropped.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn enter(context: &'a PrimaryContext) -> Result<Self> {
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: reads and writes one integer.
        unsafe { driver_call!(context.driver(), cuThreadExchangeStreamCaptureMode(&mut mode)) }?;
        Ok(Self { context, before: mode, _this_thread: PhantomData })
    }
}

impl Drop for BesideCaptures<'_> {
    fn drop(&mut self) {
        // SAFETY: reads and writes one integer.
        forget_failure(unsafe {
            driver_call!(self.context.driver(), cuThreadExchangeStreamCaptureMode(&mut self.before))
        });
    }
}
