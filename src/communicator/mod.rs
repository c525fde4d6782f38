//! The communicator: a group of ranks as one of its members holds it.

mod buffers;
mod create;
mod driver;
mod network;
mod pending;
mod typed;

use std::{
    collections::VecDeque,
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rccl_core::{Group, Request};

pub use self::{
    create::Description,
    pending::{Pending, Scope},
};
use self::{
    driver::{Driver, Wait},
    pending::Job,
};
use crate::{
    Error, Result,
    engine::{Seat, Work, Working},
    exec::{Advance, Run},
    state::State,
};

/// A group of ranks, as one of them holds it.
///
/// All ranks must make the same collective calls in the same order. Calls of one communicator are carried out one after
/// another, from whatever threads they come; different communicators do not wait for each other. A blocking call returns
/// when its output is complete and its input may be changed again.
///
/// The first error other than a wrong argument poisons the communicator on all ranks: every call in progress ends with the
/// cause, and so does every later one. Nothing waits longer than [`crate::Options::deadline`].
///
/// After `fork` the child must not use a communicator of its parent ([`Error::Forked`]); dropping it there is harmless.
#[derive(Debug)]
pub struct Communicator {
    inner: ManuallyDrop<Arc<Inner>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// Dropped first: peers hear a goodbye before their channels end.
    seat: std::sync::OnceLock<Seat>,
    group: Group,
    pub(crate) state: Arc<State>,
    /// Held by whoever carries out calls. Never waited for by [`Communicator::abort`] or [`Communicator::async_error`].
    driver: Mutex<Driver>,
    jobs: Mutex<VecDeque<Job>>,
    /// Jobs queued or running, so that a look costs one load where there are none.
    jobs_left: AtomicUsize,
    /// The job being carried out, with its clocks.
    running: Mutex<Option<(Job, Run, Wait)>>,
    description: Description,
    registered: AtomicUsize,
}

impl Communicator {
    pub(crate) const fn new(inner: Arc<Inner>) -> Self {
        Self { inner: ManuallyDrop::new(inner) }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.inner.group.rank().0
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.group.size()
    }

    /// How the ranks reach each other, and what that costs in memory.
    #[must_use]
    pub fn describe(&self) -> &Description {
        &self.inner.description
    }

    /// The erased entry under all blocking collectives: carries `request` out on untyped memory. Returns when it has
    /// completed.
    ///
    /// # Errors
    /// [`Error::Core`] for a request that makes no sense (nothing has happened then); else see [`Communicator`].
    ///
    /// # Safety
    /// `input` and `output` must be valid for as many elements as [`Request::input_len`] and [`Request::output_len`] say,
    /// and nobody else may touch them during the call. They must lie apart, or exactly as [`Request::in_place_offset`]
    /// says.
    pub unsafe fn run(&self, request: &Request, input: *const u8, output: *mut u8) -> Result<()> {
        let inner = &**self.inner;
        inner.check()?;
        buffers::check(inner.group, request, input, output)?;
        let mut driver = inner.driver.lock();
        let program = driver.program(request)?;
        inner.finish_jobs(&mut driver)?;
        // SAFETY: the caller's promise covers the whole call, and the run is done or recycled when it ends.
        let mut run = unsafe { driver.begin(&inner.state, &program, input, output) };
        let result = driver.carry_out(&mut run, &inner.state, inner.seat());
        driver.recycle(run);
        result.map_err(|error| inner.poison(error))
    }

    /// The erased entry under all asynchronous collectives: queues `request`. The engine carries it out, after everything
    /// that was called before; so does whoever waits for it.
    ///
    /// # Errors
    /// As [`Communicator::run`], for what can be known at once.
    ///
    /// # Safety
    /// As [`Communicator::run`], until the job has ended, which happens in bounded time also after an error.
    pub(crate) unsafe fn start(
        &self,
        request: &Request,
        input: *const u8,
        output: *mut u8,
    ) -> Result<Arc<pending::JobState>> {
        let inner = &**self.inner;
        inner.check()?;
        buffers::check(inner.group, request, input, output)?;
        let (job, state) = Job::new(*request, input, output);
        inner.jobs_left.fetch_add(1, Ordering::SeqCst);
        inner.jobs.lock().push_back(job);
        inner.seat().look();
        Ok(state)
    }

    /// The cause for which the communicator was poisoned, if it was. Never blocks.
    #[must_use]
    pub fn async_error(&self) -> Option<Error> {
        if self.inner.state.is_forked() {
            return Some(Error::Forked);
        }
        self.inner.state.cause()
    }

    /// Ends the communicator on all ranks: every call in progress, here and elsewhere, returns [`Error::Aborted`] soon, as
    /// does every later one. May be called from any thread at any time, and never blocks.
    pub fn abort(&self) {
        if !self.inner.state.is_forked() {
            self.inner.seat().fail(Error::Aborted { rank: self.rank() });
        }
    }

    /// Waits for all asynchronous calls, then leaves the group in good order, as dropping does.
    ///
    /// # Errors
    /// The cause, if the communicator is poisoned.
    pub fn finalize(self) -> Result<()> {
        self.inner.check()?;
        let mut driver = self.inner.driver.lock();
        self.inner.finish_jobs(&mut driver)
    }

    /// Announces memory that will be used as input or output. On host memory this only keeps count; transports and devices
    /// that must pin or map memory do so here.
    ///
    /// # Errors
    /// [`Error::Argument`] for a null pointer with a length.
    ///
    /// # Safety
    /// The memory must stay valid until the guard is dropped.
    pub unsafe fn register(&self, start: *const u8, len_bytes: usize) -> Result<Registered<'_>> {
        self.inner.check()?;
        if start.is_null() && len_bytes > 0 {
            let reason = format!("the memory of {len_bytes} bytes starts at null");
            return Err(Error::Argument { what: "register: start", reason });
        }
        self.inner.registered.fetch_add(1, Ordering::Relaxed);
        Ok(Registered { communicator: self })
    }

    /// Registrations that have not been dropped.
    #[must_use]
    pub fn registrations(&self) -> usize {
        self.inner.registered.load(Ordering::Relaxed)
    }
}

/// Memory announced with [`Communicator::register`]. Dropping it deregisters: afterwards nobody touches the memory on its
/// account.
#[derive(Debug)]
#[must_use = "dropping it deregisters the memory"]
pub struct Registered<'a> {
    communicator: &'a Communicator,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.communicator.inner.registered.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.inner.state.is_forked() {
            // Everything in there belongs to the parent: threads that do not exist here, connections, shared memory.
            return;
        }
        // Asynchronous calls that nobody waits for are still carried out; their errors, if any, have nobody to go to.
        let _ = self.inner.finish_jobs(&mut self.inner.driver.lock());
        // The engine may hold a reference for another moment; the process may end before that, and peers would see a death.
        self.inner.seat().leave();
        // SAFETY: taken once, here, and `self` is not used any more.
        drop(unsafe { ManuallyDrop::take(&mut self.inner) });
    }
}

/// How long a rank whose channel broke waits for the engine to hear the first cause.
const CAUSE_GRACE: Duration = Duration::from_millis(300);

impl Inner {
    /// Whether calls may be made.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.state.is_forked() {
            return Err(Error::Forked);
        }
        self.state.check()
    }

    pub(crate) fn seat(&self) -> &Seat {
        self.seat.get().expect("a communicator has its seat before anybody holds it")
    }

    /// Poisons the communicator unless it was poisoned before, and gives the first cause.
    fn poison(&self, error: Error) -> Error {
        if matches!(error, Error::PeerLost { .. }) && !self.seat().is_on_engine() {
            // A broken channel may be the consequence of a death elsewhere, which the engine is about to hear of.
            let give_up = Instant::now() + CAUSE_GRACE;
            while self.state.cause().is_none() && Instant::now() < give_up {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let error = match error {
            Error::PeerLost { rank, .. } if self.state.has_left(rccl_core::Rank(rank)) => {
                Error::PeerLeft { rank, waiting_for: "a call here still needs it".to_owned() }
            }
            error => error,
        };
        self.seat().fail(error.clone());
        self.state.cause().unwrap_or(error)
    }

    /// Carries out everything that is queued.
    fn finish_jobs(&self, driver: &mut Driver) -> Result<()> {
        if self.jobs_left.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let mut running = self.running.lock();
        while self.next_job(driver, &mut running) {
            let Some((job, mut run, wait)) = running.take() else { break };
            let result = driver.finish(&mut run, wait, &self.state, self.seat());
            self.end_job(driver, job, run, result);
        }
        self.state.check()
    }

    /// Makes the first queued job the running one, if none is. False if there is nothing to run.
    fn next_job(&self, driver: &mut Driver, running: &mut Option<(Job, Run, Wait)>) -> bool {
        while running.is_none() {
            let Some(job) = self.jobs.lock().pop_front() else { return false };
            let program = self.check().and_then(|()| driver.program(&job.request));
            match program {
                Ok(program) => {
                    // SAFETY: whoever queued the job promised to leave its memory alone until it has ended.
                    let run = unsafe { driver.begin(&self.state, &program, job.input, job.output) };
                    *running = Some((job, run, Wait::default()));
                }
                Err(error) => {
                    self.jobs_left.fetch_sub(1, Ordering::SeqCst);
                    job.end(Err(error));
                }
            }
        }
        true
    }

    fn end_job(&self, driver: &mut Driver, job: Job, run: Run, result: Result<()>) {
        driver.recycle(run);
        self.jobs_left.fetch_sub(1, Ordering::SeqCst);
        job.end(result.map_err(|error| self.poison(error)));
    }
}

impl Work for Inner {
    fn advance(&self) -> Working {
        if self.jobs_left.load(Ordering::SeqCst) == 0 {
            return Working::Idle;
        }
        // Whoever holds the driver carries the jobs out as well, before anything of its own.
        let Some(mut driver) = self.driver.try_lock() else { return Working::Waiting };
        let mut running = self.running.lock();
        if !self.next_job(&mut driver, &mut running) {
            return Working::Idle;
        }
        let Some((job, mut run, mut wait)) = running.take() else { return Working::Idle };
        match wait.with_grace(CAUSE_GRACE, |wait| driver.look(&mut run, wait, &self.state, self.seat())) {
            Ok(Advance::Done) => {
                self.end_job(&mut driver, job, run, Ok(()));
                Working::Moved
            }
            Ok(found) => {
                *running = Some((job, run, wait));
                if found == Advance::Moved { Working::Moved } else { Working::Waiting }
            }
            Err(error) => {
                self.end_job(&mut driver, job, run, Err(error));
                Working::Moved
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_communicator_has_left_even_if_the_engine_still_looks_at_its_work() {
        let mut group = Communicator::local(2, &crate::Options::default()).unwrap();
        let (peer, leaver) = (group.pop().unwrap(), group.pop().unwrap());
        // What the engine holds while it looks: were leaving up to the last holder, the process could end before it.
        let looking = Arc::clone(&*leaver.inner);
        drop(leaver);
        let give_up = Instant::now() + Duration::from_secs(10);
        while !peer.inner.state.has_left(rccl_core::Rank(0)) {
            assert!(Instant::now() < give_up, "no goodbye came");
            std::thread::yield_now();
        }
        drop(looking);
    }
}
