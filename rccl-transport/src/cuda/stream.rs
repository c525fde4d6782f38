//! Streams, events, and operations on streams.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    PrimaryContext,
    device::forget_failure,
    driver::driver_call,
    sys::{self, CUcontext, CUdeviceptr, CUevent, CUresult, CUstream, CUstreamBatchMemOpParams},
};
use crate::{Error, Result};

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const WAIT_EXTERNAL: u32 = 1;

/// A stream: work in order, on one device. Created here, or borrowed from the caller.
#[derive(Debug)]
pub struct Stream {
    context: PrimaryContext,
    raw: CUstream,
    owned: bool,
}

impl Stream {
    /// A new stream, independent of the legacy default stream, with the highest priority there is: what collectives launch
    /// is small, and others wait for it.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn new(context: &PrimaryContext) -> Result<Self> {
        let _guard = context.enter()?;
        let (mut least, mut greatest, mut raw) = (0, 0, CUstream::NULL);
        // SAFETY: writes two integers.
        unsafe { driver_call!(context.driver(), cuCtxGetStreamPriorityRange(&mut least, &mut greatest)) }?;
        // SAFETY: writes one handle; destroyed in `Drop`.
        unsafe {
            driver_call!(context.driver(), cuStreamCreateWithPriority(&mut raw, NON_BLOCKING, greatest))
        }?;
        Ok(Self { context: context.clone(), raw, owned: true })
    }

    /// A stream of the caller's, never destroyed here. Null is the legacy default stream.
    ///
    /// # Safety
    /// `raw` must be a stream of `context` and outlive the value.
    #[must_use]
    pub unsafe fn borrow(context: &PrimaryContext, raw: CUstream) -> Self {
        Self { context: context.clone(), raw, owned: false }
    }

    /// Its context.
    #[must_use]
    pub const fn context(&self) -> &PrimaryContext {
        &self.context
    }

    /// The driver's handle.
    #[must_use]
    pub const fn raw(&self) -> CUstream {
        self.raw
    }

    /// Whether all its work is done. Never blocks.
    ///
    /// # Errors
    /// [`Error::Device`]: also that of work that failed.
    pub fn is_idle(&self) -> Result<bool> {
        let _guard = self.context.enter()?;
        // SAFETY: the stream is alive.
        ready(unsafe { driver_call!(self.context.driver(), cuStreamQuery(self.raw)) })
    }

    /// Waits until all its work is done, in the driver, without a deadline. For work that is known to end.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn synchronize(&self) -> Result<()> {
        let _guard = self.context.enter()?;
        // SAFETY: the stream is alive.
        unsafe { driver_call!(self.context.driver(), cuStreamSynchronize(self.raw)) }
    }

    /// Waits until all its work is done, at most `timeout`, by asking again and again.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Device`].
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        let mut asked = 0u32;
        while !self.is_idle()? {
            if start.elapsed() >= timeout {
                return Err(Error::Timeout {
                    waiting_for: "the end of a stream's work".to_owned(),
                    after: timeout,
                });
            }
            // The first milliseconds belong to small collectives; later nobody notices a sleep.
            asked = asked.saturating_add(1);
            if asked < 10_000 { thread::yield_now() } else { thread::sleep(Duration::from_micros(100)) }
        }
        Ok(())
    }

    /// Work enqueued from now on starts after `event`.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        let _guard = self.context.enter()?;
        // SAFETY: stream and event are alive.
        unsafe { driver_call!(self.context.driver(), cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }

    /// As [`Stream::wait_event`], for a stream that is being captured and an event that is recorded outside of the capture:
    /// every replay waits for what the event marks then.
    ///
    /// # Errors
    /// [`Error::Device`]; also if the stream is not being captured.
    pub fn wait_outside_event(&self, event: &Event) -> Result<()> {
        let _guard = self.context.enter()?;
        // SAFETY: stream and event are alive.
        unsafe { driver_call!(self.context.driver(), cuStreamWaitEvent(self.raw, event.raw, WAIT_EXTERNAL)) }
    }

    /// Enqueues a copy. Addresses are of a device's memory or of registered host memory.
    ///
    /// # Errors
    /// [`Error::Device`].
    ///
    /// # Safety
    /// Both ranges must be valid and must not be used otherwise until the copy is done.
    pub unsafe fn copy(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Result<()> {
        let _guard = self.context.enter()?;
        // SAFETY: the caller vouches for both ranges.
        unsafe { driver_call!(self.context.driver(), cuMemcpyAsync(to, from, bytes, self.raw)) }
    }

    /// Enqueues setting `bytes` bytes to `value`.
    ///
    /// # Errors
    /// [`Error::Device`].
    ///
    /// # Safety
    /// As [`Stream::copy`].
    pub unsafe fn fill(&self, start: CUdeviceptr, value: u8, bytes: usize) -> Result<()> {
        let _guard = self.context.enter()?;
        // SAFETY: the caller vouches for the range.
        unsafe { driver_call!(self.context.driver(), cuMemsetD8Async(start, value, bytes, self.raw)) }
    }

    /// Enqueues a wait until the 32-bit word at `word` fulfils `until`. At most some 1,000 operations may stand behind an
    /// unfulfilled wait before the enqueuing thread blocks.
    ///
    /// # Errors
    /// [`Error::Device`].
    ///
    /// # Safety
    /// `word` must be an aligned word of registered host memory, or of the device, until then.
    pub unsafe fn wait_word(&self, word: CUdeviceptr, until: Until) -> Result<()> {
        let _guard = self.context.enter()?;
        let (value, flags) = until.raw();
        // SAFETY: the caller vouches for the word.
        unsafe { driver_call!(self.context.driver(), cuStreamWaitValue32_v2(self.raw, word, value, flags)) }
    }

    /// Enqueues a store of `value` into the 32-bit word at `word`, after everything before it is visible.
    ///
    /// # Errors
    /// [`Error::Device`].
    ///
    /// # Safety
    /// As [`Stream::wait_word`].
    pub unsafe fn write_word(&self, word: CUdeviceptr, value: u32) -> Result<()> {
        let _guard = self.context.enter()?;
        // SAFETY: the caller vouches for the word.
        unsafe { driver_call!(self.context.driver(), cuStreamWriteValue32_v2(self.raw, word, value, 0)) }
    }

    /// Enqueues waits and writes, in order, in one call; one by one where the driver cannot batch them.
    ///
    /// # Errors
    /// [`Error::Device`].
    ///
    /// # Safety
    /// As [`Stream::wait_word`], for every word.
    pub unsafe fn word_operations(&self, operations: &[WordOperation]) -> Result<()> {
        let _guard = self.context.enter()?;
        if !self.context.driver().has_batch_operations() {
            return operations.iter().try_for_each(|operation| match *operation {
                // SAFETY: the caller vouches for the word.
                WordOperation::Wait(word, until) => unsafe { self.wait_word(word, until) },
                // SAFETY: the caller vouches for the word.
                WordOperation::Write(word, value) => unsafe { self.write_word(word, value) },
            });
        }
        let mut batch: Vec<_> = operations.iter().map(WordOperation::raw).collect();
        let count = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        // SAFETY: `count` operations (the driver refuses more than 256); the caller vouches for their words.
        unsafe {
            driver_call!(self.context.driver(), cuStreamBatchMemOp_v2(self.raw, count, batch.as_mut_ptr(), 0))
        }
    }

    /// The context that the driver knows it by; default streams belong to whatever context is current.
    ///
    /// # Errors
    /// [`Error::Device`], for a handle that is no stream among others.
    pub fn owner(&self) -> Result<CUcontext> {
        let _guard = self.context.enter()?;
        let mut owner = CUcontext::NULL;
        // SAFETY: writes one handle.
        unsafe { driver_call!(self.context.driver(), cuStreamGetCtx(self.raw, &mut owner)) }?;
        Ok(owner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let destroyed = self.context.enter().and_then(|_guard| {
            // SAFETY: created by `new`, destroyed once. Its work goes on; the driver does not wait for it.
            unsafe { driver_call!(self.context.driver(), cuStreamDestroy_v2(self.raw)) }
        });
        forget_failure(destroyed);
    }
}

/// What a stream waits for at a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The word equals the value.
    Equal(u32),
    /// The word minus the value, as a signed number, is at least 0.
    AtLeast(u32),
}

impl Until {
    const fn raw(self) -> (u32, u32) {
        match self {
            Self::Equal(value) => (value, sys::WAIT_VALUE_EQ),
            Self::AtLeast(value) => (value, sys::WAIT_VALUE_GEQ),
        }
    }
}

/// One of the operations of [`Stream::word_operations`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordOperation {
    /// Wait at the word with this address.
    Wait(CUdeviceptr, Until),
    /// Store a value into the word with this address.
    Write(CUdeviceptr, u32),
}

impl WordOperation {
    const fn raw(&self) -> CUstreamBatchMemOpParams {
        match *self {
            Self::Wait(word, until) => {
                let (value, flags) = until.raw();
                CUstreamBatchMemOpParams::new(sys::OP_WAIT_VALUE_32, word, value, flags)
            }
            Self::Write(word, value) => CUstreamBatchMemOpParams::new(sys::OP_WRITE_VALUE_32, word, value, 0),
        }
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub struct Event {
    context: PrimaryContext,
    raw: CUevent,
}

impl Event {
    /// A new event, without a time stamp unless `timed`: those are slower.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn new(context: &PrimaryContext, timed: bool) -> Result<Self> {
        let _guard = context.enter()?;
        let mut raw = CUevent::NULL;
        let flags = if timed { 0 } else { DISABLE_TIMING };
        // SAFETY: writes one handle; destroyed in `Drop`.
        unsafe { driver_call!(context.driver(), cuEventCreate(&mut raw, flags)) }?;
        Ok(Self { context: context.clone(), raw })
    }

    /// The driver's handle.
    #[must_use]
    pub const fn raw(&self) -> CUevent {
        self.raw
    }

    /// Marks the end of what is enqueued on `stream` now.
    ///
    /// # Errors
    /// [`Error::Device`]: among others if the stream belongs to another context.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let _guard = self.context.enter()?;
        // SAFETY: event and stream are alive.
        unsafe { driver_call!(self.context.driver(), cuEventRecord(self.raw, stream.raw)) }
    }

    /// Whether everything before the mark is done (or nothing was ever marked). Never blocks.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn is_done(&self) -> Result<bool> {
        let _guard = self.context.enter()?;
        // SAFETY: the event is alive.
        ready(unsafe { driver_call!(self.context.driver(), cuEventQuery(self.raw)) })
    }

    /// Time between two timed events that are done.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Duration> {
        let _guard = self.context.enter()?;
        let mut milliseconds = 0f32;
        // SAFETY: writes one float; both events are alive.
        unsafe {
            driver_call!(self.context.driver(), cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw))
        }?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroyed = self.context.enter().and_then(|_guard| {
            // SAFETY: created by `new`, destroyed once.
            unsafe { driver_call!(self.context.driver(), cuEventDestroy_v2(self.raw)) }
        });
        forget_failure(destroyed);
    }
}

/// Tells "not yet" from failures.
fn ready(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Error::Device { code, .. }) if CUresult(code) == sys::NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}
