use std::{
    net::TcpStream,
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use rccl_core::Rank;
use rustix::event::epoll;

use super::{
    PEER_BITS, Work, Working,
    frame::{Cause, Frame},
    link::Link,
};
use crate::{Error, call::Call, state::State};

/// One communicator in the engine.
#[derive(Debug)]
pub(crate) struct Member {
    state: Arc<State>,
    /// By rank; none to itself and to ranks that are gone.
    links: Vec<Option<Link>>,
    work: Weak<dyn Work>,
    heartbeat_at: Instant,
}

/// Signs of life in one heartbeat timeout, so that a few may be late.
const HEARTBEATS: u32 = 4;

impl Member {
    pub(crate) fn new(state: Arc<State>, links: Vec<Option<TcpStream>>, work: Weak<dyn Work>) -> Self {
        let links = links.into_iter().map(|stream| stream.map(Link::new)).collect();
        Self { state, links, work, heartbeat_at: Instant::now() }
    }

    /// Lets the engine's poller watch the links.
    pub(crate) fn watch(&mut self, poller: &OwnedFd, id: u64) {
        for peer in 0..self.links.len() {
            let Some(link) = &self.links[peer] else { continue };
            let data = epoll::EventData::new_u64(id << PEER_BITS | peer as u64);
            if let Err(errno) = epoll::add(poller, link.descriptor(), data, epoll::EventFlags::IN) {
                let error = rccl_transport::Error::io("epoll_ctl of a control link", errno);
                self.fail(error.into());
            }
        }
    }

    pub(crate) fn work(&self) -> Working {
        self.work.upgrade().map_or(Working::Idle, |work| work.advance())
    }

    pub(crate) const fn next_heartbeat(&self) -> Instant {
        self.heartbeat_at
    }

    /// Sends signs of life and looks for missing ones, if it is time.
    pub(crate) fn keep_alive(&mut self, now: Instant) {
        if now < self.heartbeat_at {
            return;
        }
        let timeout = self.state.heartbeat;
        // If this process was stopped itself, it must not blame the others for the time.
        let stopped = now.duration_since(self.heartbeat_at) > timeout / 2;
        self.heartbeat_at = now + timeout / HEARTBEATS;
        let mut silent = None;
        for (rank, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            if stopped {
                link.heard = now;
            }
            if !link.left && now.duration_since(link.heard) > timeout {
                silent.get_or_insert(rank as u32);
            }
            // A broken link is noticed, with its cause, when it is read.
            let _ = link.send(&Frame::Heartbeat);
        }
        if let Some(rank) = silent {
            self.fail(Error::Unresponsive { rank, after: timeout });
        }
    }

    /// Reads what a peer has sent.
    pub(crate) fn hear(&mut self, poller: &OwnedFd, id: u64, peer: usize) {
        let Some(link) = &mut self.links[peer] else { return };
        let mut frames = Vec::new();
        let flushed = link.flush();
        let broken = link.receive(&mut frames).and(flushed).err();
        self.write_interest(poller, id, peer);
        for frame in frames {
            self.take(peer as u32, frame);
        }
        if let Some(cause) = broken
            && let Some(link) = self.links[peer].take()
        {
            let _ = epoll::delete(poller, link.descriptor());
            if !link.left {
                self.fail(Error::PeerLost { rank: peer as u32, cause });
            }
        }
    }

    /// Asks the poller to say when a full link can be written again.
    fn write_interest(&self, poller: &OwnedFd, id: u64, peer: usize) {
        let Some(link) = &self.links[peer] else { return };
        let write = if link.is_full() { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(id << PEER_BITS | peer as u64);
        let _ = epoll::modify(poller, link.descriptor(), data, epoll::EventFlags::IN | write);
    }

    fn take(&mut self, peer: u32, frame: Frame) {
        match frame {
            Frame::Heartbeat => {}
            Frame::Goodbye => self.state.leave(Rank(peer)),
            Frame::Failed(cause) => {
                self.state.fail(cause.into_error());
            }
            Frame::Call { number, label } => {
                if let Some(ours) = self.state.call(number)
                    && ours != label
                {
                    let calls = [Call::describe(&ours), Call::describe(&label)];
                    self.fail(Error::Mismatch { ranks: [self.state.rank.0, peer], calls });
                }
            }
        }
    }

    /// Poisons the communicator and tells the peers, unless it was poisoned before.
    fn fail(&mut self, error: Error) {
        if self.state.fail(error.clone()) {
            self.tell_failure(&error);
        }
    }

    pub(crate) fn tell_failure(&mut self, error: &Error) {
        let cause = Cause::new(error, self.state.rank.0);
        self.broadcast(&Frame::Failed(cause));
    }

    /// Tells all peers in which collective this rank is.
    pub(crate) fn announce(&mut self) {
        if let Some((number, label)) = self.state.last_call() {
            self.broadcast(&Frame::Call { number, label });
        }
    }

    /// Tells all peers that this rank leaves in good order.
    pub(crate) fn say_goodbye(&mut self) {
        // What has arrived is read first: closing with unread bytes would reset the connection.
        for link in self.links.iter_mut().flatten() {
            let _ = link.receive(&mut Vec::new());
        }
        // Who only publishes, as a broadcast's root, need not have noticed that others called something else; they learn it now.
        self.announce();
        self.broadcast(&Frame::Goodbye);
    }

    fn broadcast(&mut self, frame: &Frame) {
        for link in self.links.iter_mut().flatten() {
            // A broken link is noticed, with its cause, when it is read.
            let _ = link.send(frame);
        }
    }
}

/// How long after a peer's goodbye a rank still waits for what the peer may have sent before it.
pub(crate) const GRACE_AFTER_GOODBYE: Duration = Duration::from_secs(1);
