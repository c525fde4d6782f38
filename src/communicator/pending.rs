//! Asynchronous calls: with owned buffers, or with borrowed ones inside a scope.

use std::{marker::PhantomData, sync::Arc};

use parking_lot::{Condvar, Mutex};
use rccl_core::{Element, ReduceOp, Request};

use super::{
    Communicator,
    typed::{Checked, check},
};
use crate::{Error, Result};

/// A queued call.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
    state: Arc<JobState>,
}

// SAFETY: the pointers are to buffers that whoever queued the job promised to leave alone until it has ended.
unsafe impl Send for Job {}

/// Whether a job has ended, and how.
#[derive(Debug, Default)]
pub(crate) struct JobState {
    result: Mutex<Option<Result<()>>>,
    ended: Condvar,
}

impl Job {
    pub(crate) fn new(request: Request, input: *const u8, output: *mut u8) -> (Self, Arc<JobState>) {
        let state = Arc::new(JobState::default());
        (Self { request, input, output, state: Arc::clone(&state) }, state)
    }

    /// Says that nobody touches the job's memory any more.
    pub(crate) fn end(self, result: Result<()>) {
        self.state.end(result);
    }
}

impl Drop for Job {
    /// A job that was lost on the way, by a panic of whoever drove it, has ended all the same: somebody may be waiting.
    fn drop(&mut self) {
        self.state.end(Err(Error::Abandoned));
    }
}

impl JobState {
    /// Sets the result, unless there is one already, and wakes who waits for it.
    fn end(&self, result: Result<()>) {
        self.result.lock().get_or_insert(result);
        self.ended.notify_all();
    }

    fn result(&self) -> Option<Result<()>> {
        self.result.lock().clone()
    }

    /// Waits until the job has ended, carrying it out if nobody else does.
    fn wait(&self, communicator: &Communicator) -> Result<()> {
        if let Some(result) = self.result() {
            return result;
        }
        if communicator.inner.state.is_forked() {
            return Err(Error::Forked);
        }
        // An error here is some job's error, and that job has ended with it.
        let _ = communicator.inner.finish_jobs(&mut communicator.inner.driver.lock());
        let mut result = self.result.lock();
        while result.is_none() {
            self.ended.wait(&mut result);
        }
        result.clone().unwrap_or(Err(Error::Forked))
    }
}

/// An asynchronous call that owns its buffers. Dropping it waits for the call, since the call uses the buffers.
#[derive(Debug)]
#[must_use = "the result comes out of `wait`"]
pub struct Pending<'a, T> {
    communicator: &'a Communicator,
    state: Arc<JobState>,
    buffers: Option<Box<Buffers<T>>>,
}

#[derive(Debug)]
struct Buffers<T> {
    input: Vec<T>,
    /// `None` in place: the input becomes the result.
    output: Option<Vec<T>>,
}

impl<T> Pending<'_, T> {
    /// Whether the call has ended, so that [`Pending::wait`] returns at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.result().is_some()
    }

    /// Waits for the call and gives the buffer with its result.
    ///
    /// # Errors
    /// See [`Communicator`].
    ///
    /// # Panics
    /// Never: the buffers are only taken here and on drop.
    pub fn wait(mut self) -> Result<Vec<T>> {
        self.state.wait(self.communicator)?;
        let buffers = self.buffers.take().expect("taken only here and on drop");
        Ok(buffers.output.unwrap_or(buffers.input))
    }
}

impl<T> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        // The call may still touch the buffers: they must outlive it.
        if self.buffers.is_some() {
            let _ = self.state.wait(self.communicator);
        }
    }
}

impl Communicator {
    /// Starts an all-reduce of `buffer` in place and returns at once. The engine carries it out meanwhile.
    ///
    /// ```
    /// # let group = rccl::Communicator::local(1, &rccl::Options::default())?;
    /// let pending = group[0].all_reduce_async(vec![1.0_f32, 2.0], rccl::ReduceOp::Sum)?;
    /// // ... other work ...
    /// assert_eq!(pending.wait()?, [1.0, 2.0]);
    /// # Ok::<(), rccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], for what can be known at once.
    pub fn all_reduce_async<T: Element>(&self, buffer: Vec<T>, op: ReduceOp) -> Result<Pending<'_, T>> {
        let request = Request::all_reduce(buffer.len() as u64, T::DATA_TYPE, op);
        self.start_owned(&request, buffer, None)
    }

    /// Starts an all-gather of `input` and returns at once; the result has the inputs of all ranks in rank order.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`], for what can be known at once.
    pub fn all_gather_async<T: Element>(&self, input: Vec<T>) -> Result<Pending<'_, T>> {
        let request = Request::all_gather(input.len() as u64, T::DATA_TYPE);
        let output = spare(&request, self, &input);
        self.start_owned(&request, input, Some(output))
    }

    /// Starts a broadcast from `root` in place and returns at once.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`], for what can be known at once.
    pub fn broadcast_async<T: Element>(&self, buffer: Vec<T>, root: u32) -> Result<Pending<'_, T>> {
        let request = Request::broadcast(buffer.len() as u64, T::DATA_TYPE, rccl_core::Rank(root));
        self.start_owned(&request, buffer, None)
    }

    fn start_owned<T: Element>(
        &self,
        request: &Request,
        input: Vec<T>,
        output: Option<Vec<T>>,
    ) -> Result<Pending<'_, T>> {
        let mut buffers = Box::new(Buffers { input, output });
        let in_place = buffers.input.as_mut_ptr().cast::<u8>();
        let out = buffers.output.as_mut().map_or(in_place, |output| output.as_mut_ptr().cast());
        // SAFETY: the buffers have the request's lengths, do not move while the box holds them, and `Pending` keeps the box
        // until the job has ended.
        let state = unsafe { self.start(request, in_place, out) }?;
        Ok(Pending { communicator: self, state, buffers: Some(buffers) })
    }

    /// Starts asynchronous calls on borrowed buffers. All of them have ended when this returns, whatever happens.
    ///
    /// ```
    /// # let group = rccl::Communicator::local(1, &rccl::Options::default())?;
    /// let (a, mut b, mut c) = ([1, 2, 3], [0; 3], [4, 5]);
    /// group[0].scope(|scope| {
    ///     scope.all_reduce(&a, &mut b, rccl::ReduceOp::Sum)?;
    ///     scope.all_reduce_in_place(&mut c, rccl::ReduceOp::Max)
    /// })?;
    /// assert_eq!((b, c), ([1, 2, 3], [4, 5]));
    /// # Ok::<(), rccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The closure's error, or else the first one of the calls.
    pub fn scope<'env, R>(&'env self, body: impl FnOnce(&Scope<'env>) -> Result<R>) -> Result<R> {
        let scope = Scope { communicator: self, started: Mutex::new(Vec::new()), env: PhantomData };
        let result = body(&scope);
        // On a panic of the body the same happens in `drop`.
        let ended = scope.wait_all();
        result.and_then(|value| ended.map(|()| value))
    }
}

/// Where asynchronous calls on borrowed buffers are started; see [`Communicator::scope`].
#[derive(Debug)]
pub struct Scope<'env> {
    communicator: &'env Communicator,
    started: Mutex<Vec<Arc<JobState>>>,
    /// Invariant: buffers must live as long as the environment that the scope was opened in.
    env: PhantomData<&'env mut &'env ()>,
}

impl<'env> Scope<'env> {
    /// Starts [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// As there, for what can be known at once.
    pub fn all_reduce<T: Element>(
        &self,
        input: &'env [T],
        output: &'env mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let request = Request::all_reduce(input.len() as u64, T::DATA_TYPE, op);
        self.start(check(self.communicator, &request, input, output)?)
    }

    /// Starts [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    /// As there, for what can be known at once.
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &'env mut [T], op: ReduceOp) -> Result<()> {
        let request = Request::all_reduce(buffer.len() as u64, T::DATA_TYPE, op);
        let memory = buffer.as_mut_ptr().cast::<u8>();
        self.start(Checked { request, input: memory, output: memory })
    }

    /// Starts [`Communicator::all_gather`].
    ///
    /// # Errors
    /// As there, for what can be known at once.
    pub fn all_gather<T: Element>(&self, input: &'env [T], output: &'env mut [T]) -> Result<()> {
        let request = Request::all_gather(input.len() as u64, T::DATA_TYPE);
        self.start(check(self.communicator, &request, input, output)?)
    }

    /// Starts [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// As there, for what can be known at once.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &'env [T],
        output: &'env mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let request = Request::reduce_scatter(output.len() as u64, T::DATA_TYPE, op);
        self.start(check(self.communicator, &request, input, output)?)
    }

    /// Starts [`Communicator::broadcast`].
    ///
    /// # Errors
    /// As there, for what can be known at once.
    pub fn broadcast<T: Element>(&self, input: &'env [T], output: &'env mut [T], root: u32) -> Result<()> {
        let request = Request::broadcast(output.len() as u64, T::DATA_TYPE, rccl_core::Rank(root));
        self.start(check(self.communicator, &request, input, output)?)
    }

    fn start(&self, call: Checked) -> Result<()> {
        // SAFETY: the buffers were checked against the request and are borrowed for `'env`, which outlives the scope; the
        // scope ends only when every job has.
        let state = unsafe { self.communicator.start(&call.request, call.input, call.output) }?;
        self.started.lock().push(state);
        Ok(())
    }

    fn wait_all(&self) -> Result<()> {
        let started = std::mem::take(&mut *self.started.lock());
        let mut result = Ok(());
        for state in started {
            result = result.and(state.wait(self.communicator));
        }
        result
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        let _ = self.wait_all();
    }
}

/// A result buffer of the request's length, filled with some element (every one is overwritten).
fn spare<T: Element>(request: &Request, communicator: &Communicator, like: &[T]) -> Vec<T> {
    let len = request.output_len(communicator.inner.group) as usize;
    like.first().map_or_else(Vec::new, |&element| vec![element; len])
}

#[cfg(test)]
mod tests {
    use rccl_core::DataType;

    use super::*;

    fn job() -> (Job, Arc<JobState>) {
        let request = Request::all_reduce(1, DataType::Float, ReduceOp::Sum);
        Job::new(request, std::ptr::null(), std::ptr::null_mut())
    }

    #[test]
    fn a_job_that_nobody_ends_has_ended_all_the_same() {
        let (job, state) = job();
        assert!(state.result().is_none());
        drop(job);
        assert!(matches!(state.result(), Some(Err(Error::Abandoned))));
    }

    #[test]
    fn the_first_result_counts() {
        let (job, state) = job();
        job.end(Ok(()));
        assert!(matches!(state.result(), Some(Ok(()))));
    }
}
