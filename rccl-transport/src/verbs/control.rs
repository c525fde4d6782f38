//! Registered memory of a channel's own, in equal rooms: what offers are sent from and received into.

use std::sync::Arc;

use super::{
    device::{Keys, Opened},
    sys::Registered,
};
use crate::{Error, Result, Slice, sys::mapping};

/// Rooms of registered memory.
#[derive(Debug)]
pub(super) struct Rooms {
    memory: Registered,
    rooms: Vec<Slice>,
}

impl Rooms {
    /// `count` rooms of `room_bytes` bytes.
    ///
    /// # Errors
    /// As [`Opened::register`].
    pub(super) fn new(device: &Arc<Opened>, count: usize, room_bytes: usize) -> Result<Self> {
        let region = mapping::anonymous(count * room_bytes, "a verbs channel's offers")?;
        let memory = Registered::new(&device.context, &region)
            .map_err(|error| device.explain_memory(region.len(), error))?;
        let rooms = (0..count).map(|room| region.slice(room * room_bytes..(room + 1) * room_bytes)).collect();
        Ok(Self { memory, rooms })
    }

    pub(super) fn room(&self, room: usize) -> &Slice {
        &self.rooms[room]
    }

    /// All of the memory from its start on, for the packet that tries a path out.
    pub(super) fn first(&self, bytes: usize) -> Result<Slice> {
        let region = self.memory.region();
        if bytes > region.len() {
            return Err(Error::Invalid {
                what: "an MTU".into(),
                value: bytes.to_string(),
                reason: "no device has one above 4096".into(),
            });
        }
        Ok(region.slice(0..bytes))
    }

    pub(super) fn keys(&self) -> Keys {
        Keys { local: self.memory.local_key(), remote: self.memory.remote_key() }
    }
}
