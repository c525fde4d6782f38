//! How device work ends when the communicator fails.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::Duration,
};

use rccl_transport::{Error, Result, cuda::relay::Arena};

/// How often waits of streams are released after a failure.
const RELEASE_EVERY: Duration = Duration::from_micros(200);

/// Rung when the communicator fails.
#[derive(Debug)]
pub(crate) struct Alarm {
    arena: Arc<Arena>,
    releaser: Thread,
}

impl Alarm {
    /// Ends kernels that wait, and has the releaser end waits of streams. Never blocks.
    pub(crate) fn ring(&self) {
        self.arena.abort();
        self.releaser.unpark();
    }
}

/// A thread that sleeps until the alarm, and from then on fulfils what streams wait for: kernels see the abort word by
/// themselves, streams cannot.
#[derive(Debug)]
pub(super) struct Releaser {
    alarm: Arc<Alarm>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Releaser {
    pub(super) fn start(arena: &Arc<Arena>) -> Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let (end, words) = (Arc::clone(&ended), Arc::clone(arena));
        let release = move || {
            while !end.load(Ordering::Acquire) {
                if words.is_aborted() {
                    words.release_waits();
                    thread::sleep(RELEASE_EVERY);
                } else {
                    thread::park();
                }
            }
        };
        let thread = thread::Builder::new()
            .name("rccl-release".to_owned())
            .spawn(release)
            .map_err(|error| Error::io("starting a thread", error))?;
        let alarm = Arc::new(Alarm { arena: Arc::clone(arena), releaser: thread.thread().clone() });
        Ok(Self { alarm, ended, thread: Some(thread) })
    }

    pub(super) const fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }
}

impl Drop for Releaser {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It sleeps at most once more.
            let _ = thread.join();
        }
    }
}
