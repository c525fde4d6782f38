//! A device in use: its registrations, and what has happened to its port.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Weak},
    time::Instant,
};

use parking_lot::{Mutex, RwLock};

use super::{
    explain,
    info::{self, Port},
    sys::{
        Context, Registered,
        abi::{IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_PORT_ACTIVE},
        unavailable,
    },
};
use crate::{
    Error, Region, Result, Slice,
    channel::{Registration, RegistrationGuard},
    fault::{Fault, Step},
};

/// An opened device, by way of one of its ports.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) name: String,
    pub(super) port: u8,
    pub(super) context: Arc<Context>,
    registry: RwLock<Registry>,
    health: Mutex<Health>,
}

/// Registrations by address, length and number.
type Registry = BTreeMap<(usize, usize, u64), Registered>;

#[derive(Debug, Default)]
struct Health {
    registrations: u64,
    down_since: Option<Instant>,
    fatal: bool,
}

/// The keys of registered memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys {
    pub(super) local: u32,
    pub(super) remote: u32,
}

impl Opened {
    /// Opens the device.
    ///
    /// # Errors
    /// As [`Context::open`].
    pub(super) fn new(name: &str, port: u8) -> Result<Arc<Self>> {
        let context = Context::open(name)?;
        let (registry, health) = Default::default();
        Ok(Arc::new(Self { name: name.to_owned(), port, context, registry, health }))
    }

    /// The port as it is now.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn port_now(&self) -> Result<Port> {
        info::port(&self.context, &self.name, self.port)
    }

    /// Makes a region known to the device until the result is dropped. Empty regions need nothing.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the limit on locked memory where that stands in the way.
    pub(super) fn register(self: &Arc<Self>, region: &Arc<Region>) -> Result<Registration> {
        if region.is_empty() {
            return Ok(Registration::nothing());
        }
        let registered = Registered::new(&self.context, region)
            .map_err(|error| self.explain_memory(region.len(), error))?;
        let number = {
            let mut health = self.health.lock();
            health.registrations += 1;
            health.registrations
        };
        let key = (address(region), region.len(), number);
        self.registry.write().insert(key, registered);
        Ok(Registration::new(Box::new(Guard { device: Arc::downgrade(self), key })))
    }

    pub(super) fn explain_memory(&self, bytes: usize, error: io::Error) -> Error {
        let call = format!("ibv_reg_mr of {bytes} bytes on {}", self.name);
        if !matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN)) {
            return Error::io(call, error);
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        let limit = limit.map_or("unlimited".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
        unavailable(format!(
            "{call}: {error}; registered memory is locked, and this process may lock {limit} (RLIMIT_MEMLOCK): raise it \
             with `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or --ulimit memlock=-1 for a container"
        ))
    }

    /// The keys of the registration that holds all of a slice; empty slices need none.
    pub(super) fn keys(&self, slice: &Slice) -> Step<Keys> {
        if slice.is_empty() {
            return Ok(Keys { local: 0, remote: 0 });
        }
        let start = slice.start().as_ptr().addr();
        let end = start + slice.len();
        let registry = self.registry.read();
        let holds = |&(&(from, len, _), _): &(&(usize, usize, u64), _)| end <= from + len;
        let found = registry.range(..=(start, usize::MAX, u64::MAX)).rev().find(holds);
        match found {
            Some((_, of)) => Ok(Keys { local: of.local_key(), remote: of.remote_key() }),
            None => Err(Fault::Lost(format!(
                "{} bytes were posted that are not registered with {}; register their region first, and keep it so",
                slice.len(),
                self.name
            ))),
        }
    }

    /// What has happened to the port that would explain a failure, if anything has.
    pub(super) fn trouble(&self) -> Option<String> {
        self.look();
        let health = self.health.lock();
        if health.fatal {
            return Some(format!("device {} has failed or was removed", self.name));
        }
        match self.context.port_attr(self.port) {
            Err(error) => Some(format!("device {} does not answer: {error}", self.name)),
            Ok(port) if port.state != IBV_PORT_ACTIVE => Some(self.down("down")),
            Ok(_) => health.down_since.map(|_| self.down("down until a moment ago")),
        }
    }

    fn down(&self, state: &str) -> String {
        format!("port {} of {} is {state}: see its cable and `ip link`", self.port, self.name)
    }

    /// For how long the port has been down, as far as the device told; `None` if it is up.
    pub(super) fn down_since(&self) -> Option<Instant> {
        self.look();
        self.health.lock().down_since
    }

    /// Takes what the device has told meanwhile.
    fn look(&self) {
        let mut health = self.health.lock();
        while let Some(event) = self.context.next_event() {
            tracing::debug!("{}: {}", self.name, explain::event(event.kind));
            let ours = event.port == u32::from(self.port);
            match event.kind {
                IBV_EVENT_PORT_ERR if ours => health.down_since = Some(Instant::now()),
                IBV_EVENT_PORT_ACTIVE if ours => health.down_since = None,
                IBV_EVENT_DEVICE_FATAL => health.fatal = true,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.name, self.port)
    }
}

fn address(region: &Region) -> usize {
    region.start().as_ptr().addr()
}

/// Ends a registration.
#[derive(Debug)]
struct Guard {
    device: Weak<Opened>,
    key: (usize, usize, u64),
}

impl RegistrationGuard for Guard {}

impl Drop for Guard {
    fn drop(&mut self) {
        // Without the device its registrations are gone as well.
        if let Some(device) = self.device.upgrade() {
            let ended = device.registry.write().remove(&self.key);
            drop(ended);
        }
    }
}
