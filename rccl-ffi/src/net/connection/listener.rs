//! Listeners: one over TCP and, unless it is switched off, one over shared memory, for whoever connects.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use rccl_transport::{
    HostId, Secret,
    channel::{self, Transport as _},
    deadline::Deadline,
    shm, tcp,
};

use super::{Connection, End, generation};
use crate::net::{
    Failure, Outcome,
    abi::NcclResult,
    device::Description,
    handle::{Bytes, Handle, MAX_TCP_ADDRESS_BYTES},
    log,
    settings::{Settings, settings},
};

/// A listener of a device.
#[derive(Debug)]
pub(in crate::net) struct Listener {
    device: &'static Description,
    generation: u64,
    doors: Mutex<Doors>,
    /// Begins when NCCL first asks for a connection.
    deadline: OnceLock<Deadline>,
}

#[derive(Debug)]
struct Doors {
    tcp: Box<dyn channel::Listener>,
    shm: Option<Box<dyn channel::Listener>>,
    strangers: u64,
}

impl Listener {
    /// Listens on the device's addresses. The handle says where.
    ///
    /// # Errors
    /// Those of the operating system, or a setting that makes no sense.
    pub(in crate::net) fn new(device: &'static Description) -> Outcome<(Self, Bytes)> {
        let settings = settings()?;
        let mut handle = Handle {
            key: key()?,
            needs_secret: settings.secret.is_some(),
            tcp: channel::Address(Vec::new()),
            shm: None,
        };
        let secret = handle.secret(settings.secret.as_ref())?;
        let tcp = transport(device, settings, secret.clone())?.listen()?;
        handle.tcp = tcp.address();
        let shm = shared_memory(settings, &secret).and_then(|it| it.listen().ok());
        handle.shm = shm.as_ref().map(|it| it.address());
        let doors = Mutex::new(Doors { tcp, shm, strangers: 0 });
        let listener = Self { device, generation: generation(), doors, deadline: OnceLock::new() };
        Ok((listener, handle.encode()))
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    /// Those of the operating system; that nobody came in time.
    pub(in crate::net) fn accept(&self) -> Outcome<Option<Arc<Connection>>> {
        let patience = settings()?.patience;
        let deadline = self.deadline.get_or_init(|| Deadline::after(patience));
        let mut doors = self.doors.lock();
        let over = |what: &str| format!("from another rank over {what} on {:?}", self.device.name);
        if let Some(end) = doors.tcp.poll_accept()? {
            return Ok(Some(accepted(over("tcp"), end, true)));
        }
        if let Some(shm) = &mut doors.shm
            && let Some(end) = shm.poll_accept()?
        {
            return Ok(Some(accepted(over("shm"), end, false)));
        }
        let strangers = doors.tcp.strangers() + doors.shm.as_ref().map_or(0, |it| it.strangers());
        if strangers > doors.strangers {
            doors.strangers = strangers;
            log::info(&format!(
                "dropped a connection to {:?} that did not authenticate: not rccl, another version, or another \
                 secret ({strangers} so far)",
                self.device.name
            ));
        }
        if !deadline.is_over() {
            return Ok(None);
        }
        let text = format!(
            "no rank connected to {:?} within {patience:?} ({strangers} strangers were dropped): has every rank loaded \
             this version of the plugin, and can it reach this interface (NCCL_SOCKET_IFNAME)? RCCL_NET_TIMEOUT_S \
             changes the deadline",
            self.device.name
        );
        Err(Failure::new(NcclResult::REMOTE, text))
    }

    /// Whether this process made the listener, rather than one that it was forked from.
    pub(in crate::net) fn is_ours(&self) -> bool {
        self.generation == generation()
    }
}

fn accepted(name: String, end: Box<dyn channel::RecvChannel>, helped: bool) -> Arc<Connection> {
    log::info(&format!("accepted a connection {name}"));
    Connection::new(name, End::Receive(end), helped)
}

fn key() -> Outcome<[u8; 16]> {
    let random = Secret::random()?;
    Ok(*random.expose().first_chunk().expect("a secret is longer"))
}

/// The tcp transport of a device.
pub(super) fn transport(
    device: &Description,
    settings: &Settings,
    secret: Secret,
) -> Outcome<tcp::Transport> {
    let sockets = settings.sockets.max(device.interfaces.len()).min(tcp::MAX_SOCKETS);
    let options = tcp::Options::new(addresses(device)).with_sockets(sockets).with_patience(settings.patience);
    let options = options.with_rails(device.interfaces.len());
    Ok(tcp::Transport::new(options, secret)?)
}

/// The shm transport of this machine, where it is wanted and can be had.
pub(super) fn shared_memory(settings: &Settings, secret: &Secret) -> Option<shm::Transport> {
    let host = HostId::machine().ok().filter(|_| settings.shm)?;
    Some(shm::Transport::on_host(host, secret.clone()).with_patience(settings.patience))
}

/// As many of the device's addresses as fit a handle: the best one of each interface before the second best ones.
fn addresses(device: &Description) -> Vec<SocketAddr> {
    let most = device.interfaces.iter().map(|it| it.addresses.len()).max().unwrap_or(0);
    let ranked =
        (0..most).flat_map(|rank| device.interfaces.iter().filter_map(move |it| it.addresses.get(rank)));
    let mut room = MAX_TCP_ADDRESS_BYTES.saturating_sub(14);
    let bytes = |address: &SocketAddr| if address.is_ipv4() { 7 } else { 19 };
    let fits = |address: &&SocketAddr| match room.checked_sub(bytes(address)) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    };
    ranked.take_while(fits).copied().collect()
}
