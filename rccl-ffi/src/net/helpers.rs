//! Threads that move long messages beside the thread that polls.
//!
//! NCCL's progress thread polls all connections of a communicator. Alone it would copy every byte that is sent and every
//! byte that is received. So long messages over sockets are sent by helpers, which also receive while they are awake, and the
//! polling thread has its time for what arrives. Short messages never wait for a helper: who posts them sends them. Over
//! shared memory nobody helps: there one copy is made, and a helper gained nothing where it was measured. A helper
//! with nothing to do sleeps in poll(2) until it is woken or a socket that is
//! full has room again, and is gone some time after the last connection.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::{
    connection::{Connection, generation},
    log,
    settings::settings,
};

/// How long a helper looks for work before it sleeps: about what being woken costs.
const SPIN: Duration = Duration::from_micros(50);

/// How long a helper sleeps at most before it looks again.
const SLEEP: Duration = Duration::from_millis(500);

/// Sleeps without any connection after which a helper is gone.
const IDLE_SLEEPS: u32 = 4;

/// Bytes of a helper's stack; it calls nothing deep.
const STACK_BYTES: usize = 256 << 10;

/// How many helpers run.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The helpers of one process.
#[derive(Debug)]
struct Helpers {
    generation: u64,
    connections: Mutex<Vec<Weak<Connection>>>,
    /// Counts changes of `connections`.
    changes: AtomicU64,
    helpers: Vec<Helper>,
}

#[derive(Debug)]
struct Helper {
    running: AtomicBool,
    sleeping: AtomicBool,
    bell: OwnedFd,
}

/// Whether there are to be helpers.
pub(super) fn wanted() -> bool {
    settings().is_ok_and(|settings| settings.threads > 0)
}

/// Whether any helper runs. Where threads cannot be had, who polls does everything.
pub(super) fn are_running() -> bool {
    RUNNING.load(Ordering::Relaxed) > 0
}

/// Lets the helpers look after a connection for as long as it lives.
pub(super) fn join(connection: &Arc<Connection>) {
    let Some(helpers) = Helpers::of_process() else { return };
    let mut connections = helpers.connections.lock();
    connections.retain(|it| it.strong_count() > 0);
    connections.push(Arc::downgrade(connection));
    helpers.changes.fetch_add(1, Ordering::Release);
    for index in 0..helpers.helpers.len() {
        helpers.start(index);
    }
}

/// Says that there is something to do.
pub(super) fn wake() {
    let Some(helpers) = Helpers::of_process() else { return };
    // One is enough: it takes what nobody else has taken. If all are awake, they will look once more before they sleep.
    std::sync::atomic::fence(Ordering::SeqCst);
    let sleeping = |helper: &&Helper| helper.sleeping.load(Ordering::Relaxed);
    if let Some(helper) = helpers.helpers.iter().find(sleeping) {
        helper.ring();
    }
}

impl Helper {
    fn new() -> Option<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags).ok()?;
        Some(Self { running: AtomicBool::new(false), sleeping: AtomicBool::new(false), bell })
    }

    fn ring(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
        // A counter that is full rings too.
        _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Sleeps until rung, until one of `descriptors` can be written, or for [`SLEEP`].
    fn sleep(&self, descriptors: &[std::os::fd::RawFd]) {
        let mut list = vec![PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        list.extend(descriptors.iter().map(|&fd| {
            // SAFETY: at worst the connection has been closed meanwhile and the number means another file or none, which
            // poll(2) answers by waking up early.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            PollFd::from_borrowed_fd(fd, PollFlags::OUT)
        }));
        let time = Timespec::try_from(SLEEP).expect("short");
        // Interrupted or not, the caller looks at everything again.
        _ = rustix::event::poll(&mut list, Some(&time));
        _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }
}

impl Helpers {
    /// The helpers of this process; after a fork the child has its own.
    fn of_process() -> Option<&'static Self> {
        static CURRENT: AtomicPtr<Helpers> = AtomicPtr::new(std::ptr::null_mut());
        static MAKING: OnceLock<Mutex<()>> = OnceLock::new();
        let current = || {
            // SAFETY: only leaked boxes are stored here, so whatever is there lives for ever.
            let helpers: Option<&'static Self> = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
            helpers.filter(|helpers| helpers.generation == generation())
        };
        if let Some(helpers) = current() {
            return Some(helpers);
        }
        let _one_at_a_time = MAKING.get_or_init(Mutex::default).lock();
        if let Some(helpers) = current() {
            return Some(helpers);
        }
        let count = settings().ok()?.threads;
        let helpers = (0..count).map(|_| Helper::new()).collect::<Option<Vec<_>>>()?;
        let made = Self {
            generation: generation(),
            connections: Mutex::default(),
            changes: AtomicU64::new(0),
            helpers,
        };
        CURRENT.store(Box::leak(Box::new(made)), Ordering::Release);
        current()
    }

    fn start(&'static self, index: usize) {
        let helper = &self.helpers[index];
        if helper.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let thread = std::thread::Builder::new().name("rccl-net".into()).stack_size(STACK_BYTES);
        RUNNING.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = without_signals(|| thread.spawn(move || self.run(helper))) {
            RUNNING.fetch_sub(1, Ordering::Relaxed);
            helper.running.store(false, Ordering::Release);
            log::warn(&format!("no thread to help with long messages ({error}); they are slower without"));
        }
    }

    fn run(&self, helper: &Helper) {
        let (mut seen, mut connections, mut idle) = (0, Vec::new(), 0);
        let mut since = Instant::now();
        loop {
            let changes = self.changes.load(Ordering::Acquire);
            if changes != seen {
                connections = self.connections.lock().clone();
                seen = changes;
            }
            if serve(&connections) {
                (since, idle) = (Instant::now(), 0);
                continue;
            }
            if since.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            helper.sleeping.store(true, Ordering::Relaxed);
            std::sync::atomic::fence(Ordering::SeqCst);
            // What was posted before the flag was up rang no bell.
            if !serve(&connections) {
                helper.sleep(&blocked(&connections));
            }
            helper.sleeping.store(false, Ordering::Relaxed);
            let alone = connections.iter().all(|it| it.strong_count() == 0);
            idle = if alone { idle + 1 } else { 0 };
            if idle > IDLE_SLEEPS && self.leave(helper, seen) {
                return;
            }
            since = Instant::now();
        }
    }

    /// Ends the calling helper, unless a connection has joined since.
    fn leave(&self, helper: &Helper, seen: u64) -> bool {
        let _unchanged = self.connections.lock();
        let leaves = self.changes.load(Ordering::Acquire) == seen;
        if leaves {
            RUNNING.fetch_sub(1, Ordering::Relaxed);
            helper.running.store(false, Ordering::Release);
        }
        leaves
    }
}

/// Moves what can be moved of long messages; whether anything was.
fn serve(connections: &[Weak<Connection>]) -> bool {
    let mut moved = false;
    for connection in connections.iter().filter_map(Weak::upgrade) {
        moved |= connection.has_bulk() && connection.progress();
    }
    moved
}

/// The sockets that long messages wait for.
fn blocked(connections: &[Weak<Connection>]) -> Vec<std::os::fd::RawFd> {
    let waiting = connections.iter().filter_map(Weak::upgrade).filter(|it| it.has_bulk());
    waiting.filter_map(|it| it.descriptors()).flatten().collect()
}

/// Starts a thread that takes none of the process's signals: those are for threads that expect them.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: all zeroes are a valid set, which the next call fills.
    let [mut all, mut before]: [libc::sigset_t; 2] = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is a set of ours.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both are sets of ours.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let started = start();
    // SAFETY: `before` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started
}
