//! One side of a connection: a channel, the requests outstanding on it, and the memory they use.
//!
//! Two locks. `queue` is short: posts are put there in NCCL's order. `channel` is held while bytes move: whoever gets it
//! first posts what is queued and then polls, so posts stay in order whoever moves them, and nobody ever waits for bytes.
//! Only closing and deregistering wait for the channel, whose holder makes system calls that do not block and then looks
//! up again.

mod dial;
mod fork;
mod listener;
mod memory;
mod request;

use std::{
    collections::VecDeque,
    ffi::c_int,
    os::fd::RawFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rccl_transport::{
    Slice,
    channel::{Completion, Part, RecvChannel, SendChannel, Ticket},
};

pub(super) use self::{
    dial::Dials,
    fork::generation,
    listener::Listener,
    memory::Memory,
    request::{Request, Tested},
};
use super::{Failure, Outcome, abi::NcclResult, helpers, log};

/// Requests that may be outstanding on one connection: 32 groups of 8, as NCCL may have.
const REQUESTS: usize = 256;

/// Messages from which on helpers are woken: waking costs as much as copying this.
const BULK_BYTES: usize = 256 << 10;

/// Completions taken in one go, so that holding the channel is bounded.
const MAX_COMPLETIONS: usize = 64;

/// One side of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// Who is at the other end and over what, for people.
    name: String,
    generation: u64,
    requests: Box<[Request]>,
    queue: Mutex<Queue>,
    channel: Mutex<Channel>,
    failure: OnceLock<Failure>,
    /// Bytes of long messages that are not done.
    bulk_bytes: AtomicU64,
    /// Whether helpers move long messages too.
    helped: bool,
    sends: bool,
}

/// Posts that the channel has not been given.
#[derive(Debug, Default)]
struct Queue {
    posts: VecDeque<Post>,
    /// The request that comes next; they are used in a circle.
    next: usize,
}

#[derive(Debug)]
struct Post {
    request: usize,
    bytes: usize,
    what: What,
}

#[derive(Debug)]
enum What {
    Send(Slice, u64),
    Receive(Vec<Part>),
}

#[derive(Debug)]
struct Channel {
    end: End,
    /// Requests whose posts the channel has, in its order.
    flying: VecDeque<Flying>,
}

#[derive(Debug)]
struct Flying {
    ticket: Ticket,
    request: usize,
    bytes: usize,
}

/// The side of a channel that a connection has.
#[derive(Debug)]
pub(super) enum End {
    /// It sends.
    Send(Box<dyn SendChannel>),
    /// It receives.
    Receive(Box<dyn RecvChannel>),
    /// It is closed or has failed: no memory is touched any more.
    Closed,
}

impl Connection {
    /// A connection over `end`. `name` says over what and to whom; helpers join in where it is `helped`.
    pub(super) fn new(name: String, end: End, helped: bool) -> Arc<Self> {
        let helped = helped && helpers::wanted();
        let sends = matches!(end, End::Send(_));
        let connection = Arc::new_cyclic(|this| Self {
            name,
            generation: generation(),
            requests: (0..REQUESTS).map(|_| Request::new(this.as_ptr())).collect(),
            queue: Mutex::default(),
            channel: Mutex::new(Channel { end, flying: VecDeque::with_capacity(REQUESTS) }),
            failure: OnceLock::new(),
            bulk_bytes: AtomicU64::new(0),
            helped,
            sends,
        });
        if helped {
            helpers::join(&connection);
        }
        connection
    }

    /// Sends `slice`; `None` if too much is outstanding.
    ///
    /// # Errors
    /// Once the connection has failed: what it failed of.
    pub(super) fn send(&self, slice: Slice, tag: c_int) -> Outcome<Option<&Request>> {
        let bytes = slice.len();
        self.submit(bytes, What::Send(slice, u64::from(tag.cast_unsigned())))
    }

    /// Receives into `parts`; `None` if too much is outstanding.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(super) fn receive(&self, parts: Vec<Part>) -> Outcome<Option<&Request>> {
        let bytes = parts.iter().map(|part| part.slice.len()).sum();
        self.submit(bytes, What::Receive(parts))
    }

    fn submit(&self, bytes: usize, what: What) -> Outcome<Option<&Request>> {
        self.check()?;
        let mut queue = self.queue.lock();
        let index = queue.next;
        let request = &self.requests[index];
        if !request.begin(if let What::Receive(parts) = &what { parts.len() } else { 1 }) {
            return Ok(None);
        }
        queue.next = (index + 1) % REQUESTS;
        queue.posts.push_back(Post { request: index, bytes, what });
        drop(queue);
        if self.helped && bytes >= BULK_BYTES {
            self.bulk_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            if self.sends {
                helpers::wake();
                return Ok(Some(request));
            }
        }
        self.progress();
        Ok(Some(request))
    }

    /// How it stands with a request of this connection. What is done counts also where the connection has failed since.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(super) fn test(&self, request: &Request) -> Outcome<Option<Tested>> {
        if let Some(tested) = request.take() {
            return Ok(Some(tested));
        }
        // Long messages are left to the helpers, so that this thread has its time for what arrives.
        if !(self.sends && self.has_bulk() && helpers::are_running()) {
            self.progress();
        }
        match request.take() {
            Some(tested) => Ok(Some(tested)),
            None => self.check().map(|()| None),
        }
    }

    /// Moves what can be moved, unless somebody is at it; whether anything was completed or begun.
    pub(super) fn progress(&self) -> bool {
        self.channel.try_lock().is_some_and(|mut channel| self.advance(&mut channel))
    }

    fn advance(&self, channel: &mut Channel) -> bool {
        match self.post_queued(channel).and_then(|posted| Ok(self.poll(channel)? || posted)) {
            Ok(moved) => moved,
            Err(failure) => {
                self.fail(channel, failure);
                true
            }
        }
    }

    fn post_queued(&self, channel: &mut Channel) -> Outcome<bool> {
        let mut moved = false;
        loop {
            // Only who holds the channel takes posts out, so they stay in order though this lock is given up.
            let Some(Post { request, bytes, what }) = self.queue.lock().posts.pop_front() else {
                return Ok(moved);
            };
            let ticket = match (&mut channel.end, &what) {
                (End::Send(end), What::Send(slice, tag)) => end.post(slice, *tag)?,
                (End::Receive(end), What::Receive(parts)) => end.post(parts)?,
                (End::Closed, _) => return Ok(moved),
                _ => return Err(Failure::new(NcclResult::INTERNAL, "a post of the other direction")),
            };
            let Some(ticket) = ticket else {
                self.queue.lock().posts.push_front(Post { request, bytes, what });
                return Ok(moved);
            };
            channel.flying.push_back(Flying { ticket, request, bytes });
            moved = true;
        }
    }

    fn poll(&self, channel: &mut Channel) -> Outcome<bool> {
        for count in 0..MAX_COMPLETIONS {
            if channel.flying.is_empty() {
                return Ok(count > 0);
            }
            let done = match &mut channel.end {
                End::Send(end) => end.poll()?,
                End::Receive(end) => end.poll()?,
                End::Closed => None,
            };
            let Some(Completion { ticket, lengths }) = done else { return Ok(count > 0) };
            let Some(flying) = channel.flying.pop_front().filter(|flying| flying.ticket == ticket) else {
                return Err(Failure::new(NcclResult::INTERNAL, "a completion out of order"));
            };
            self.requests[flying.request].complete(&lengths);
            self.finish_bulk(flying.bytes);
        }
        Ok(true)
    }

    fn finish_bulk(&self, bytes: usize) {
        if self.helped && bytes >= BULK_BYTES {
            self.bulk_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Whether long messages are under way.
    pub(super) fn has_bulk(&self) -> bool {
        self.bulk_bytes.load(Ordering::Relaxed) > 0
    }

    /// What to wait for before more can be moved; `None` while somebody else is at it.
    pub(super) fn descriptors(&self) -> Option<Vec<RawFd>> {
        let channel = self.channel.try_lock()?;
        Some(match &channel.end {
            End::Send(end) => end.descriptors(),
            // Who polls a receive looks often enough.
            End::Receive(_) | End::Closed => Vec::new(),
        })
    }

    /// Ends the connection; nobody touches any memory for it afterwards. Requests that are done stay so.
    fn fail(&self, channel: &mut Channel, failure: Failure) {
        channel.end = End::Closed;
        channel.flying.clear();
        self.queue.lock().posts.clear();
        self.bulk_bytes.store(0, Ordering::Relaxed);
        let text = format!("{} ({})", failure.text, self.name);
        // Only the first cause is of interest.
        _ = self.failure.set(Failure { text, ..failure });
    }

    fn check(&self) -> Outcome {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Makes sure that nobody touches the memory any more. A connection that still has requests on it ends: NCCL
    /// deregisters in the middle only when it aborts.
    pub(super) fn release(&self, memory: &Memory) {
        if !memory.is_used() {
            return;
        }
        let mut channel = self.channel.lock();
        self.advance(&mut channel);
        if memory.is_used() {
            let text = "memory was deregistered with requests outstanding on it";
            self.fail(&mut channel, Failure::new(NcclResult::INVALID_USAGE, text));
        }
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        let mut channel = self.channel.lock();
        self.fail(&mut channel, Failure::new(NcclResult::INVALID_USAGE, "the connection has been closed"));
    }

    /// Whether this process made the connection, rather than one that it was forked from.
    pub(super) fn is_ours(&self) -> bool {
        self.generation == generation()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        log::info(&format!("closed the connection {}", self.name));
    }
}
