//! All-reduce on CUDA streams, between the devices of one host, through host memory that all of them map.
//!
//! No device needs to reach another. The driver is loaded at run time: without one, [`Communicator::cuda`] says so.
//!
//! ```no_run
//! use rccl::{Communicator, DataType, ReduceOp, cuda::CudaOptions};
//!
//! # fn on_each_rank(communicator: &Communicator, device: u32, buffer: u64, stream: *mut std::ffi::c_void) -> rccl::Result<()> {
//! let cuda = communicator.cuda(device, &CudaOptions::default())?;
//! println!("{}", cuda.describe());
//! // SAFETY: `buffer` has 1024 floats of that device, and stays until the stream is done.
//! unsafe { cuda.all_reduce(buffer, buffer, 1024, DataType::Float, ReduceOp::Sum, stream) }?;
//! # Ok(())
//! # }
//! ```

mod agree;
mod alarm;
mod buffers;
mod create;
mod options;
mod order;
mod quiet;
mod seats;
mod shapes;
#[cfg(feature = "cudarc")]
mod slices;

use std::{
    ffi::c_void,
    fmt,
    mem::ManuallyDrop,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rccl_core::{DataType, ReduceOp};
use rccl_transport::cuda::{
    BesideCaptures, Capture, Stream,
    relay::{Call, Relay},
    sys::CUstream,
};

#[cfg(doc)]
use crate::Communicator;
use crate::{Error, Result, communicator::Inner};

pub(crate) use alarm::Alarm;
use alarm::Releaser;
pub use options::{CudaOptions, CudaProtocol};
use order::Order;
use shapes::Shapes;

/// How long dropping waits for work in progress before it aborts it, and again before it gives its memory up.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

/// What a [`CudaCommunicator`] holds.
#[derive(Debug, Clone)]
pub struct CudaDescription {
    /// The device's name and PCI address.
    pub device: String,
    /// The compiled kernels in use.
    pub kernels: &'static str,
    /// Ranks whose work shares this rank's device, this one included.
    pub sharing: u32,
    /// Bytes of locked host memory, shared by all ranks.
    pub host_bytes: usize,
    /// Bytes of this rank's device memory.
    pub device_bytes: usize,
    /// Calls of at most this many bytes use `ll`.
    pub ll_bytes: u64,
    /// Calls of at least this many bytes use `bulk`; those between use `stripe`, in two hops (`relay`) from 3 ranks on.
    pub bulk_bytes: u64,
}

impl fmt::Display for CudaDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}, shared by {}, {} KiB of host memory, {} KiB of device memory, ll up to {} bytes",
            self.device,
            self.kernels,
            self.sharing,
            self.host_bytes >> 10,
            self.device_bytes >> 10,
            self.ll_bytes
        )?;
        if self.bulk_bytes == u64::MAX { Ok(()) } else { write!(f, ", bulk from {} bytes", self.bulk_bytes) }
    }
}

/// A rank's device in a group, made by [`Communicator::cuda`].
///
/// All ranks make the same calls in the same order. Calls, from any thread, on any streams of the device and from replayed
/// graphs, are carried out one after another. It keeps its communicator's connections alive; when that fails, on whatever
/// rank, device work that waits for a peer ends (its output is undefined then) and every later call returns the first cause.
///
/// Streams may be under capture into a graph; the graph may then be replayed, on all ranks alike, mixed with other calls. One
/// capture of a communicator's calls must end before the next begins.
///
/// Drop it on every rank after the last call and the last replay are done, and drop graphs with its calls before it. Dropping
/// waits a bounded time for work in progress, then aborts. Its memory goes back at once if no other communicator of this
/// process has work in progress, else a little later.
#[derive(Debug)]
pub struct CudaCommunicator {
    side: ManuallyDrop<Arc<Side>>,
    inner: ManuallyDrop<Arc<Inner>>,
}

/// In the order in which they are dropped.
#[derive(Debug)]
struct Side {
    /// Ends with its thread; waits are released until then.
    releaser: Releaser,
    relay: Relay,
    order: Mutex<Order>,
    shapes: Shapes,
    description: CudaDescription,
}

impl CudaCommunicator {
    fn new(side: Side, inner: Arc<Inner>) -> Self {
        let side = Arc::new(side);
        quiet::live(&side);
        Self { side: ManuallyDrop::new(side), inner: ManuallyDrop::new(inner) }
    }

    /// What it uses.
    #[must_use]
    pub fn describe(&self) -> &CudaDescription {
        &self.side.description
    }

    /// The cause for which the communicator was poisoned, if it was. Never blocks. Tells after waiting for a stream whether
    /// its outputs are valid.
    #[must_use]
    pub fn async_error(&self) -> Option<Error> {
        self.inner.check().err()
    }

    /// Ends the communicator on all ranks, as [`crate::Communicator::abort`]: device work that waits ends soon. From any
    /// thread, at any time.
    pub fn abort(&self) {
        if !self.inner.state.is_forked() {
            self.inner.seat().fail(Error::Aborted { rank: self.side.relay.rank() });
        }
    }

    /// Enqueues an all-reduce on `stream` (null is the legacy default stream) and returns: `output` is complete, and `input`
    /// may be changed, when the stream is done with it. Addresses are of this rank's device; `output` may be `input` itself.
    /// `count` elements of float, half or bfloat16; [`ReduceOp::Sum`] or [`ReduceOp::Avg`]. Sums are made in float, in rank
    /// order, and rounded once: all ranks get the same bits.
    ///
    /// Nothing is allocated on the device, and the calling thread's context stays as it is. Some 1,000 operations of calls
    /// in protocol `bulk` that wait for peers fill a stream; then this blocks until peers or an abort let it go on. A thread
    /// that drives several ranks enqueues each call on all of them before the next.
    ///
    /// # Errors
    /// [`Error::Argument`] for a type, an operator, an address or a stream that cannot be used (nothing has happened then);
    /// the cause, if the communicator has failed; of a stream under capture, what the driver says where it cannot be
    /// captured: that graph must not be used then, and nothing else has happened.
    ///
    /// # Safety
    /// The buffers must have `count` elements, and nobody else may use them until the stream is done with the call. `stream`
    /// must be a live stream. `self` must live until all calls, replays included, are done.
    pub unsafe fn all_reduce(
        &self,
        input: u64,
        output: u64,
        count: u64,
        data_type: DataType,
        op: ReduceOp,
        stream: *mut c_void,
    ) -> Result<()> {
        let side = &**self.side;
        self.inner.check()?;
        let context = side.relay.context();
        let _guard = context.enter()?;
        // SAFETY: the caller vouches for the stream; that it belongs to the context is checked next.
        let stream = unsafe { Stream::borrow(context, CUstream(stream)) };
        buffers::check_stream(&stream)?;
        let average = buffers::check(context, input, output, count, data_type, op)?;
        if count == 0 || (side.relay.ranks() == 1 && input == output) {
            return Ok(());
        }
        let call = Call { data_type, count, input, output, average };
        let _enqueuing = quiet::enqueuing();
        let mut order = side.order.lock();
        // Whoever waited for the lock may have waited for a call that failed.
        self.inner.check()?;
        let capture = Capture::of(&stream)?;
        let enqueued = side.enqueue(&mut order, &stream, capture.as_ref(), &call);
        if let (Err(error), None) = (&enqueued, &capture) {
            // A part of the call may be enqueued, which no peer can complete.
            self.inner.seat().fail(error.clone());
        }
        enqueued
    }
}

impl Side {
    fn enqueue(
        &self,
        order: &mut Order,
        stream: &Stream,
        capture: Option<&Capture>,
        call: &Call,
    ) -> Result<()> {
        let protocol = self.shapes.choose(call);
        if capture.is_some() && !self.shapes.may_be_captured(&protocol) {
            let reason =
                "calls in protocol bulk cannot be captured where ranks of one process share a device";
            return Err(Error::Argument { what: "all_reduce: stream", reason: reason.to_owned() });
        }
        order.begin(stream, capture)?;
        if self.relay.ranks() == 1 {
            let bytes = call.count as usize * call.data_type.size_bytes();
            // SAFETY: the caller of `all_reduce` vouches for the buffers.
            unsafe { stream.copy(call.output, call.input, bytes) }?;
        } else {
            // SAFETY: the caller of `all_reduce` vouches for the buffers, events order calls, and ranks agreed on shapes.
            unsafe { self.relay.enqueue(stream, call, protocol) }?;
        }
        Ok(order.end(stream)?)
    }

    /// Whether the device is done with everything that was enqueued or launched in graphs.
    fn is_idle(&self) -> bool {
        let _beside = BesideCaptures::enter(self.relay.context());
        // A device that fails runs nothing any more.
        self.order.lock().is_done().unwrap_or(true) && self.relay.is_idle().unwrap_or(true)
    }

    fn wait_idle(&self, patience: Duration) -> bool {
        let give_up = Instant::now() + patience;
        while !self.is_idle() {
            if Instant::now() > give_up {
                return false;
            }
            thread::sleep(Duration::from_micros(100));
        }
        true
    }
}

impl Drop for CudaCommunicator {
    fn drop(&mut self) {
        if self.inner.state.is_forked() {
            // The device, the threads and the memory belong to the parent.
            return;
        }
        let ended = self.side.wait_idle(DROP_PATIENCE) || {
            self.abort();
            self.side.wait_idle(DROP_PATIENCE)
        };
        // SAFETY: taken once, here, and `self` is not used any more.
        let side = unsafe { ManuallyDrop::take(&mut self.side) };
        // SAFETY: as above.
        drop(unsafe { ManuallyDrop::take(&mut self.inner) });
        if ended {
            quiet::retire(side);
        } else {
            tracing::error!("device work of a dropped CudaCommunicator does not end; its memory is given up");
            quiet::forget(&side);
            std::mem::forget(side);
        }
    }
}
