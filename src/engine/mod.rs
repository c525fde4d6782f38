//! The engine: one thread a process that watches the peers of all communicators and carries out asynchronous calls.
//!
//! It starts with the first communicator and ends with the last. Per communicator it holds a control link to every peer.
//! Over these go signs of life, goodbyes, causes of failure, and the calls of ranks that have been waiting for a while, so
//! that ranks which made different calls find out.

mod frame;
mod link;
mod member;

use std::{
    cell::RefCell,
    collections::HashMap,
    net::TcpStream,
    os::fd::OwnedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::{Mutex, MutexGuard};
use rustix::{
    buffer::spare_capacity,
    event::{EventfdFlags, epoll},
};

pub(crate) use self::member::GRACE_AFTER_GOODBYE;
use self::member::Member;
use crate::{Error, Result, state::State};

/// Asynchronous work of one communicator, as the engine sees it.
pub(crate) trait Work: Send + Sync + std::fmt::Debug {
    /// Carries out what can be carried out now, without waiting.
    fn advance(&self) -> Working;
}

/// What the engine found when it looked at a communicator's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Working {
    /// There is none.
    Idle,
    /// There is some, and it moved.
    Moved,
    /// There is some, and it waits for others.
    Waiting,
}

enum Command {
    Join {
        id: u64,
        member: Box<Member>,
    },
    /// Leave and answer when the goodbyes are sent.
    Leave {
        id: u64,
        done: Sender<()>,
    },
    /// Tell all peers why this rank failed.
    Fail {
        id: u64,
        error: Error,
    },
    /// Tell all peers what this rank is waiting in.
    Announce {
        id: u64,
    },
    /// There is new work.
    Look,
    Stop,
}

/// A communicator's place in the engine. Dropping it leaves in good order.
#[derive(Debug)]
pub(crate) struct Seat {
    id: u64,
    engine: Arc<Engine>,
    state: Arc<State>,
    left: AtomicBool,
}

/// The engine of this process.
#[derive(Debug)]
struct Engine {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
    generation: u64,
}

static ENGINE: Mutex<Slot> = Mutex::new(None);
type Slot = Option<(u64, Weak<Engine>)>;

thread_local! {
    /// The lock while this thread forks.
    static HELD: RefCell<Option<MutexGuard<'static, Slot>>> = const { RefCell::new(None) };
}

/// Keeps everybody from starting the engine until [`let_go`]: this thread is about to fork.
pub(crate) fn hold() {
    HELD.set(Some(ENGINE.lock()));
}

/// Undoes [`hold`], in the parent and in the child, which has a copy of the thread.
pub(crate) fn let_go() {
    HELD.take();
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The number of a communicator in no epoll event: the engine's own wake descriptor.
const WAKE: u64 = 0;

/// Peers of one communicator are numbered in the low bits of an epoll event's data.
const PEER_BITS: u32 = 16;

impl Seat {
    /// Takes a seat for a communicator with these links (by rank; none to itself).
    ///
    /// # Errors
    /// If the engine's thread or descriptors cannot be had.
    pub(crate) fn take(
        state: &Arc<State>,
        links: Vec<Option<TcpStream>>,
        work: Weak<dyn Work>,
    ) -> Result<Self> {
        let engine = Engine::running()?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let member = Box::new(Member::new(Arc::clone(state), links, work));
        engine.tell(Command::Join { id, member });
        Ok(Self { id, engine, state: Arc::clone(state), left: AtomicBool::new(false) })
    }

    /// Poisons the communicator and tells all peers why.
    pub(crate) fn fail(&self, error: Error) {
        if self.state.fail(error.clone()) {
            self.engine.tell(Command::Fail { id: self.id, error });
        }
    }

    /// Tells all peers what this rank is waiting in.
    pub(crate) fn announce(&self) {
        self.engine.tell(Command::Announce { id: self.id });
    }

    /// Makes the engine look for work.
    pub(crate) fn look(&self) {
        self.engine.tell(Command::Look);
    }

    /// Whether the caller is the engine's thread, which must not wait for itself.
    pub(crate) fn is_on_engine(&self) -> bool {
        self.engine.thread.lock().as_ref().is_some_and(|thread| thread.thread().id() == here())
    }

    /// Leaves in good order, unless that was done before: returns when the peers have been told.
    pub(crate) fn leave(&self) {
        if self.state.is_forked() || self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        let (done, wait) = bounded(1);
        let on_engine = self.is_on_engine();
        self.engine.tell(Command::Leave { id: self.id, done });
        if on_engine {
            // The engine held the last reference, while it looked for work; it obeys when it is done with that.
            return;
        }
        // The engine answers at once unless it is carrying out a step of somebody's work.
        let _ = wait.recv_timeout(Duration::from_secs(5));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Engine {
    /// The engine of this process, started if necessary.
    fn running() -> Result<Arc<Self>> {
        let generation = crate::fork::generation();
        let mut slot = ENGINE.lock();
        if let Some((made, engine)) = &*slot
            && *made == generation
            && let Some(engine) = engine.upgrade()
        {
            return Ok(engine);
        }
        let engine = Arc::new(Self::start(generation)?);
        *slot = Some((generation, Arc::downgrade(&engine)));
        Ok(engine)
    }

    fn start(generation: u64) -> Result<Self> {
        let failed = |call: &str, errno: rustix::io::Errno| rccl_transport::Error::io(call, errno);
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed("eventfd of the engine", errno))?;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| failed("epoll_create of the engine", errno))?;
        epoll::add(&poller, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)
            .map_err(|errno| failed("epoll_ctl of the engine", errno))?;
        let wake = Arc::new(wake);
        let (commands, inbox) = unbounded();
        let hall = Hall { poller, wake: Arc::clone(&wake), inbox, members: HashMap::new() };
        let thread = std::thread::Builder::new()
            .name("rccl-engine".to_owned())
            .spawn(move || hall.run())
            .map_err(|error| rccl_transport::Error::io("starting the engine thread", error))?;
        Ok(Self { commands, wake, thread: Mutex::new(Some(thread)), generation })
    }

    fn tell(&self, command: Command) {
        // Neither fails while the thread lives, and it lives as long as `self`.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.generation != crate::fork::generation() {
            // In a forked child the thread does not exist.
            std::mem::forget(self.thread.lock().take());
            return;
        }
        self.tell(Command::Stop);
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != here()
        {
            let _ = thread.join();
        }
    }
}

fn here() -> std::thread::ThreadId {
    std::thread::current().id()
}

/// What the engine's thread owns.
struct Hall {
    poller: OwnedFd,
    wake: Arc<OwnedFd>,
    inbox: Receiver<Command>,
    members: HashMap<u64, Box<Member>>,
}

/// How often the engine looks again at work that waits, without sleeping, before it begins to sleep in between.
const EAGER_LOOKS: u32 = 200;

/// The sleep between two looks at work that waits.
const WORK_NAP: Duration = Duration::from_micros(200);

impl Hall {
    fn run(mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut looks = 0;
        loop {
            let working = self.work();
            looks = if working == Working::Waiting { looks + 1 } else { 0 };
            let nap = match working {
                Working::Idle => self.until_next_heartbeat(),
                Working::Waiting if looks > EAGER_LOOKS => WORK_NAP,
                Working::Moved | Working::Waiting => Duration::ZERO,
            };
            if working == Working::Waiting && nap.is_zero() {
                std::thread::yield_now();
            }
            events.clear();
            let timeout = rustix::event::Timespec {
                tv_sec: nap.as_secs().cast_signed(),
                tv_nsec: nap.subsec_nanos().into(),
            };
            // An interrupted wait only means an early look.
            let _ = epoll::wait(&self.poller, spare_capacity(&mut events), Some(&timeout));
            for event in &events {
                self.handle(event.data.u64());
            }
            if !self.obey() {
                return;
            }
            let now = Instant::now();
            for member in self.members.values_mut() {
                member.keep_alive(now);
            }
        }
    }

    fn work(&self) -> Working {
        let mut all = Working::Idle;
        for member in self.members.values() {
            match member.work() {
                Working::Idle => {}
                Working::Moved => all = Working::Moved,
                Working::Waiting if all == Working::Idle => all = Working::Waiting,
                Working::Waiting => {}
            }
        }
        all
    }

    fn until_next_heartbeat(&self) -> Duration {
        let now = Instant::now();
        let next =
            self.members.values().map(|member| member.next_heartbeat().saturating_duration_since(now)).min();
        next.unwrap_or(Duration::from_secs(3600))
    }

    fn handle(&mut self, data: u64) {
        if data == WAKE {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
            return;
        }
        let (id, peer) = (data >> PEER_BITS, (data & ((1 << PEER_BITS) - 1)) as usize);
        if let Some(member) = self.members.get_mut(&id) {
            member.hear(&self.poller, id, peer);
        }
    }

    /// Carries out the commands that have come. False if the engine is to end.
    fn obey(&mut self) -> bool {
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Join { id, mut member } => {
                    member.watch(&self.poller, id);
                    self.members.insert(id, member);
                }
                Command::Leave { id, done } => {
                    if let Some(mut member) = self.members.remove(&id) {
                        member.say_goodbye();
                    }
                    let _ = done.send(());
                }
                Command::Fail { id, error } => {
                    if let Some(member) = self.members.get_mut(&id) {
                        member.tell_failure(&error);
                    }
                }
                Command::Announce { id } => {
                    if let Some(member) = self.members.get_mut(&id) {
                        member.announce();
                    }
                }
                Command::Look => {}
                Command::Stop => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    /// Whether a forked child can lock the engine within a second.
    fn child_can_start_an_engine() -> bool {
        // SAFETY: the child only tries a lock, and ends without running anything of the parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let free = ENGINE.try_lock_for(Duration::from_secs(1)).is_some();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!free)) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        waited == child && status == 0
    }

    #[test]
    fn a_fork_waits_for_whoever_starts_the_engine() {
        crate::fork::generation();
        let (held, is_held) = mpsc::channel();
        let holder = std::thread::spawn(move || {
            let guard = ENGINE.lock();
            held.send(()).unwrap();
            // Long enough for a fork that does not wait to happen now; one that waits passes however long it is.
            std::thread::sleep(Duration::from_millis(50));
            drop(guard);
        });
        is_held.recv().unwrap();
        assert!(child_can_start_an_engine());
        holder.join().unwrap();
    }
}
