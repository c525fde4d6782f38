//! The fabric's listeners, connections and channels, as their owners see them.

use std::{os::fd::RawFd, sync::Arc};

use parking_lot::Mutex;

use super::{pipe::Stage, world::World};
use crate::{
    Result, Slice,
    channel::{Address, Completion, Connecting, Listener, Part, RecvChannel, SendChannel, Ticket},
};

/// A listener of a node.
#[derive(Debug)]
pub(super) struct SimListener {
    pub(super) id: u64,
    pub(super) address: Address,
    pub(super) world: Arc<Mutex<World>>,
}

impl Listener for SimListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvChannel>>> {
        let pipe = self.world.lock().accept(self.id);
        Ok(pipe.map(|pipe| -> Box<dyn RecvChannel> {
            Box::new(SimReceiver { pipe, world: Arc::clone(&self.world) })
        }))
    }

    fn strangers(&self) -> u64 {
        0
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.world.lock().unlisten(self.id);
    }
}

/// A connection on its way; it has no pipe any more once it is over.
#[derive(Debug)]
pub(super) struct SimConnecting {
    pub(super) pipe: Option<u64>,
    pub(super) world: Arc<Mutex<World>>,
}

impl Connecting for SimConnecting {
    fn poll(&mut self) -> Result<Option<Box<dyn SendChannel>>> {
        let Some(id) = self.pipe else { return Ok(None) };
        {
            let mut world = self.world.lock();
            let pipe = world.pipe(id);
            World::error(pipe.sender.fault.as_ref(), pipe.to)?;
            if pipe.stage != Stage::Established {
                return Ok(None);
            }
        }
        self.pipe = None;
        Ok(Some(Box::new(SimSender { pipe: id, world: Arc::clone(&self.world) })))
    }
}

impl Drop for SimConnecting {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe {
            self.world.lock().drop_sender(pipe);
        }
    }
}

/// The sending end of a channel.
#[derive(Debug)]
struct SimSender {
    pipe: u64,
    world: Arc<Mutex<World>>,
}

impl SendChannel for SimSender {
    fn post(&mut self, slice: &Slice, tag: u64) -> Result<Option<Ticket>> {
        let mut world = self.world.lock();
        let pipe = world.pipe(self.pipe);
        World::error(pipe.sender.fault.as_ref(), pipe.to)?;
        world.check_slice(slice)?;
        let ticket = world.pipe(self.pipe).sender.posted.post(slice, tag);
        if ticket.is_some() {
            world.posted(self.pipe);
        }
        Ok(ticket)
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        let mut world = self.world.lock();
        let pipe = world.pipe(self.pipe);
        match pipe.sender.posted.complete() {
            Some(done) => Ok(Some(done)),
            None => World::error(pipe.sender.fault.as_ref(), pipe.to).map(|()| None),
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

impl Drop for SimSender {
    fn drop(&mut self) {
        self.world.lock().drop_sender(self.pipe);
    }
}

/// The receiving end of a channel.
#[derive(Debug)]
struct SimReceiver {
    pipe: u64,
    world: Arc<Mutex<World>>,
}

impl RecvChannel for SimReceiver {
    fn post(&mut self, parts: &[Part]) -> Result<Option<Ticket>> {
        let mut world = self.world.lock();
        let pipe = world.pipe(self.pipe);
        World::error(pipe.receiver.fault.as_ref(), pipe.from)?;
        parts.iter().try_for_each(|part| world.check_slice(&part.slice))?;
        let ticket = world.pipe(self.pipe).receiver.posted.post(parts)?;
        world.deliver(self.pipe);
        Ok(ticket)
    }

    fn flush(&mut self, _: &[Slice]) -> Result<Option<Ticket>> {
        let mut world = self.world.lock();
        let pipe = world.pipe(self.pipe);
        World::error(pipe.receiver.fault.as_ref(), pipe.from)?;
        Ok(pipe.receiver.posted.flush())
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        let mut world = self.world.lock();
        let pipe = world.pipe(self.pipe);
        match pipe.receiver.posted.complete() {
            Some(done) => Ok(Some(done)),
            None => World::error(pipe.receiver.fault.as_ref(), pipe.from).map(|()| None),
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

impl Drop for SimReceiver {
    fn drop(&mut self) {
        self.world.lock().drop_receiver(self.pipe);
    }
}
