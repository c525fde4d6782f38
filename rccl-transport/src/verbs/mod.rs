//! Channels over RDMA: RoCE and InfiniBand, by libibverbs, which is loaded at run time and may be absent.
//!
//! A receive is offered to the sender: where its memory is, and under which key. The sender writes a message there, with a
//! number that completes the receive, so nothing is copied and the receiver's processor has no part in it. A sender without
//! an offer waits; a receiver has posted what its offers need before it makes them. So no one is ever "not ready", however
//! slow the receiver.
//!
//! A channel has one or more reliable queue pairs, over which longer messages are spread, and a tcp connection beside them.
//! Over that the two sides authenticate, find a pair of addresses (GIDs) that reach each other, and later say why they
//! end. It also tells when the other process is gone, which idle queue pairs never do.
//!
//! Regions must be registered ([`crate::channel::Transport::register`]) before they are posted.

mod connect;
mod control;
mod device;
mod exchange;
mod explain;
mod gid;
mod hca;
mod info;
mod link;
mod listen;
mod offer;
mod options;
mod pairs;
mod recv;
mod send;
pub mod sys;

use std::sync::Arc;

pub use self::{
    gid::{Gid, GidKind},
    info::{Device, LinkLayer, Port, counters, devices},
    options::{MAX_QUEUE_PAIRS, Options},
};
use crate::{
    Region, Result, Secret,
    channel::{self, Address, Caps, Connecting, Listener, MAX_GROUP, Registration},
    tcp::address,
};

/// Messages that may be outstanding on one channel: what NCCL may have outstanding, 32 groups of 8.
const DEPTH: usize = 32 * MAX_GROUP;

/// Makes channels over one port of one RDMA device.
#[derive(Debug)]
pub struct Transport {
    options: Options,
    secret: Secret,
    device: Arc<device::Opened>,
    caps: Caps,
}

impl Transport {
    /// A transport over the first active port that the options allow, between those who know `secret`.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] without library, device or active port, with the reason; [`crate::Error::Invalid`] if
    /// the options make no sense.
    pub fn new(options: Options, secret: Secret) -> Result<Self> {
        options.check()?;
        let (found, port) = options.choose(&devices()?)?;
        let device = device::Opened::new(&found.name, port.number)?;
        link::always_ready()?;
        let caps = Caps {
            name: "verbs",
            device: found.name,
            speed_mbps: port.speed_mbps,
            depth: DEPTH,
            max_group: MAX_GROUP,
            max_message_bytes: 1 << 40,
            needs_registration: true,
        };
        Ok(Self { options, secret, device, caps })
    }

    /// The port underneath.
    #[must_use]
    pub fn port(&self) -> u8 {
        self.device.port
    }
}

impl channel::Transport for Transport {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn listen(&self) -> Result<Box<dyn Listener>> {
        Ok(Box::new(listen::Listening::new(&self.device, &self.options, &self.secret)?))
    }

    fn connect(&self, address: &Address) -> Result<Box<dyn Connecting>> {
        let (id, candidates) = address::decode(address::VERBS, address)?;
        Ok(Box::new(connect::Dialing::new(&self.device, &self.options, id, &candidates, &self.secret)?))
    }

    /// # Errors
    /// Besides those of the trait, [`crate::Error::Unavailable`] with the limit on locked memory and how to raise it.
    fn register(&self, region: &Arc<Region>) -> Result<Registration> {
        self.device.register(region)
    }
}

/// The tcp addresses under which a verbs listener can be reached, for people and for tests.
///
/// # Errors
/// [`crate::Error::Invalid`] if the address is not that of a verbs listener.
pub fn candidates(address: &Address) -> Result<Vec<std::net::SocketAddr>> {
    address::decode(address::VERBS, address).map(|(_, candidates)| candidates)
}
