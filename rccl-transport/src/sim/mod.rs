//! A simulated fabric: channels in virtual time, the same for the same seed.
//!
//! Nothing happens but in [`Fabric::step`]. Messages of one channel arrive in order; those of different channels overtake
//! each other at random. The memory of a message is read when it arrives, not when it is posted, and written in pieces,
//! so that memory used again too early, or read too early, shows.
//!
//! ```
//! use rccl_transport::{Region, channel::{Part, Transport as _}, sim};
//!
//! let fabric = sim::Fabric::new(1, sim::Settings::default());
//! let mut listener = fabric.transport(0).listen()?;
//! let mut connecting = fabric.transport(1).connect(&listener.address())?;
//! while fabric.step() {}
//! let mut receiver = listener.poll_accept()?.expect("everything has happened");
//! let mut sender = connecting.poll()?.expect("everything has happened");
//!
//! let room = Region::zeroed(8);
//! receiver.post(&[Part { slice: room.slice(0..8), tag: 0 }])?;
//! sender.post(&Region::from_vec(vec![1; 8]).slice(0..8), 0)?;
//! assert_eq!(receiver.poll()?, None);
//! while fabric.step() {}
//! assert_eq!(receiver.poll()?.expect("everything has happened").lengths[..], [8]);
//!
//! fabric.cut(sim::Link::between(0, 1));
//! assert!(sender.poll()?.is_some(), "what is complete stays so");
//! assert!(sender.poll().is_err());
//! # Ok::<(), rccl_transport::Error>(())
//! ```

mod ends;
mod pipe;
mod world;

use std::sync::Arc;

use parking_lot::Mutex;

use self::world::World;
use crate::{
    Error, Region, Result,
    channel::{self, Address, Caps, Connecting, Listener, MAX_GROUP, Registration, RegistrationGuard},
};

/// How a fabric behaves. Times are in ticks of its clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The least time a message, a connection or an acknowledgement takes.
    pub delay: u64,
    /// The most that chance adds to it.
    pub jitter: u64,
    /// How many of 1,000 events of a channel are held up by a stall, and with them all later ones of that channel.
    pub stalls_per_mille: u32,
    /// The longest stall.
    pub stall: u64,
    /// The most pieces a message is written in.
    pub pieces: u32,
    /// Messages that may be outstanding on one channel.
    pub depth: usize,
    /// Whether posting memory that is not registered is an error.
    pub needs_registration: bool,
    /// Links that are cut, and when.
    pub cuts: Vec<(u64, Link)>,
}

impl Default for Settings {
    /// Jittery, with a stall now and then, and 8 messages a channel; no cuts, no registration.
    fn default() -> Self {
        Self {
            delay: 10,
            jitter: 100,
            stalls_per_mille: 20,
            stall: 2000,
            pieces: 3,
            depth: 8,
            needs_registration: false,
            cuts: Vec::new(),
        }
    }
}

/// The link between two nodes, both ways. All channels between them run over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    low: u32,
    high: u32,
}

impl Link {
    /// The link between two nodes, in whichever order.
    #[must_use]
    pub const fn between(a: u32, b: u32) -> Self {
        if a < b { Self { low: a, high: b } } else { Self { low: b, high: a } }
    }
}

/// A simulated fabric. Clones are the same fabric.
///
/// What happens depends on the seed, the settings and the order of calls alone, so drive it from one thread.
#[derive(Debug, Clone)]
pub struct Fabric {
    world: Arc<Mutex<World>>,
    caps: Caps,
}

impl Fabric {
    /// A fabric on which nothing has happened yet.
    #[must_use]
    pub fn new(seed: u64, settings: Settings) -> Self {
        let caps = Caps {
            name: "sim",
            device: format!("fabric of seed {seed}"),
            speed_mbps: 0,
            depth: settings.depth,
            max_group: MAX_GROUP.min(settings.depth),
            max_message_bytes: 1 << 40,
            needs_registration: settings.needs_registration,
        };
        Self { world: Arc::new(Mutex::new(World::new(seed, settings))), caps }
    }

    /// The transport of a node, by its number.
    #[must_use]
    pub fn transport(&self, node: u32) -> Transport {
        Transport { node, fabric: self.clone() }
    }

    /// Lets the next event happen, and the clock advance to it; `false` if there is none.
    pub fn step(&self) -> bool {
        self.world.lock().step()
    }

    /// The time in ticks, from 0.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.world.lock().now()
    }

    /// Cuts a link now and for good: every channel over it fails at both ends.
    pub fn cut(&self, link: Link) {
        self.world.lock().cut(link);
    }

    /// A digest of everything that has happened so far and when. Equal runs have equal traces.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.world.lock().trace()
    }
}

/// A node's access to a fabric.
#[derive(Debug, Clone)]
pub struct Transport {
    node: u32,
    fabric: Fabric,
}

const MARK: [u8; 2] = *b"S1";

impl channel::Transport for Transport {
    fn caps(&self) -> &Caps {
        &self.fabric.caps
    }

    fn listen(&self) -> Result<Box<dyn Listener>> {
        let world = &self.fabric.world;
        let id = world.lock().listen(self.node);
        let address = Address([&MARK[..], &id.to_le_bytes()].concat());
        Ok(Box::new(ends::SimListener { id, address, world: Arc::clone(world) }))
    }

    fn connect(&self, address: &Address) -> Result<Box<dyn Connecting>> {
        let id = address.0.strip_prefix(&MARK).and_then(|rest| rest.try_into().ok()).map(u64::from_le_bytes);
        let id = id.ok_or_else(|| Error::Invalid {
            what: "address".into(),
            value: format!("{:02x?}", address.0),
            reason: "it is not that of a listener on a simulated fabric".into(),
        })?;
        let world = &self.fabric.world;
        let pipe = world.lock().connect(self.node, id);
        Ok(Box::new(ends::SimConnecting { pipe: Some(pipe), world: Arc::clone(world) }))
    }

    fn register(&self, region: &Arc<Region>) -> Result<Registration> {
        let guard = Registered { region: Arc::clone(region), world: Arc::clone(&self.fabric.world) };
        self.fabric.world.lock().register(region);
        Ok(Registration::new(Box::new(guard)))
    }
}

/// A region that may be posted.
#[derive(Debug)]
struct Registered {
    region: Arc<Region>,
    world: Arc<Mutex<World>>,
}

impl RegistrationGuard for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        self.world.lock().deregister(&self.region);
    }
}

#[cfg(test)]
mod tests;
