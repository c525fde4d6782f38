//! Connections being made. NCCL retries with the same handle, in which the number of the attempt is kept.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rccl_transport::{
    Secret,
    channel::{Connecting, SendChannel, Transport as _},
    deadline::Deadline,
};

use super::{
    Connection, End,
    listener::{shared_memory, transport},
};
use crate::net::{
    Failure, Outcome,
    abi::NcclResult,
    device::Description,
    handle::{self, Bytes, Handle},
    log,
    settings::settings,
};

/// Attempts that may be under way at once; those that nobody asked for longest make room.
const MAX_DIALS: usize = 65_536;

/// Connections being made by this process.
#[derive(Debug, Default)]
pub(in crate::net) struct Dials {
    running: Mutex<HashMap<u64, Dial>>,
    numbers: AtomicU64,
}

/// One connection being made.
#[derive(Debug)]
struct Dial {
    device: &'static Description,
    /// The handle without the number of the attempt, to tell whether it is still the same.
    handle: Bytes,
    listener: Handle,
    secret: Secret,
    way: Way,
    /// An attempt that nobody asks for any more is dropped some time after this.
    deadline: Deadline,
}

#[derive(Debug)]
enum Way {
    Shm(Box<dyn Connecting>),
    Tcp(Box<dyn Connecting>),
}

impl Dials {
    /// Starts to connect to the listener of the handle, or goes on with it.
    ///
    /// # Errors
    /// Why it failed; the attempt is over then.
    pub(in crate::net) fn connect(
        &self,
        device: &'static Description,
        bytes: &mut Bytes,
    ) -> Outcome<Option<Arc<Connection>>> {
        let number = handle::state(bytes);
        handle::set_state(bytes, 0);
        // Taken out while it is polled, so that attempts of other communicators do not wait for it.
        let known = self.running.lock().remove(&number).filter(|dial| dial.handle == *bytes);
        let mut dial = match known {
            Some(dial) => dial,
            None => Dial::start(device, *bytes)?,
        };
        if let Some((name, end)) = dial.poll()? {
            log::info(&format!("connected {name}"));
            let helped = matches!(dial.way, Way::Tcp(_));
            return Ok(Some(Connection::new(name, End::Send(end), helped)));
        }
        let number = if number == 0 { self.numbers.fetch_add(1, Ordering::Relaxed) + 1 } else { number };
        handle::set_state(bytes, number);
        let mut running = self.running.lock();
        if running.len() >= MAX_DIALS {
            running.retain(|_, dial| !dial.deadline.is_over());
        }
        if running.len() >= MAX_DIALS {
            let text = format!("{MAX_DIALS} connections are being made already");
            return Err(Failure::new(NcclResult::INTERNAL, text));
        }
        running.insert(number, dial);
        Ok(None)
    }
}

impl Dial {
    fn start(device: &'static Description, bytes: Bytes) -> Outcome<Self> {
        let settings = settings()?;
        let listener = Handle::decode(&bytes)?;
        let secret = listener.secret(settings.secret.as_ref())?;
        let shm = listener.shm.as_ref();
        let way = match shm.and_then(|address| shared_memory(settings, &secret)?.connect(address).ok()) {
            Some(way) => Way::Shm(way),
            None => Self::over_tcp(device, &listener, &secret)?,
        };
        let deadline = Deadline::after(2 * settings.patience);
        Ok(Self { device, handle: bytes, listener, secret, way, deadline })
    }

    fn over_tcp(device: &'static Description, listener: &Handle, secret: &Secret) -> Outcome<Way> {
        let transport = transport(device, settings()?, secret.clone())?;
        Ok(Way::Tcp(transport.connect(&listener.tcp).map_err(Failure::from)?))
    }

    /// The channel and its name, once it stands.
    fn poll(&mut self) -> Outcome<Option<(String, Box<dyn SendChannel>)>> {
        let name = |what: &str| format!("to another rank over {what} on {:?}", self.device.name);
        if let Way::Shm(way) = &mut self.way {
            match way.poll() {
                Ok(end) => return Ok(end.map(|end| (name("shm"), end))),
                Err(error) => {
                    log::info(&format!("no shared memory with the other side, TCP instead: {error}"))
                }
            }
            self.way = Self::over_tcp(self.device, &self.listener, &self.secret)?;
        }
        match &mut self.way {
            Way::Tcp(way) => Ok(way.poll()?.map(|end| (name("tcp"), end))),
            Way::Shm(_) => Ok(None),
        }
    }
}
