//! Network interfaces: which there are, which may be used, and at which addresses this host might be reached.
//!
//! Nobody can know from one host alone which of its addresses another host can reach, so members exchange all of them, in
//! order of preference, and use the first pair that connects (see [`crate::connect`]). Real adapters come before virtual
//! ones (container bridges, tunnels), and the loopback interface comes last.

use std::{
    cmp::Reverse,
    ffi::OsString,
    fs,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    path::Path,
};

use crate::{Error, Result};

/// Names the interfaces to use or to avoid; goes before [`NCCL_IFNAME_VARIABLE`].
pub const IFNAME_VARIABLE: &str = "RCCL_SOCKET_IFNAME";
/// NCCL's variable of the same meaning.
pub const NCCL_IFNAME_VARIABLE: &str = "NCCL_SOCKET_IFNAME";
/// Names the address family to use: `AF_INET` or `AF_INET6`.
pub const FAMILY_VARIABLE: &str = "NCCL_SOCKET_FAMILY";

/// The most addresses a member tells others of itself.
pub const MAX_ADDRESSES: usize = 16;

/// The longest name Linux gives an interface, in bytes.
const MAX_NAME_BYTES: usize = 15;
/// How many interfaces may be stacked on each other (a bridge over a bond over an adapter).
const MAX_STACKED: usize = 4;

/// What lies under an interface, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// An adapter, or a bond, bridge or VLAN on top of one.
    Real,
    /// Software alone: a container's bridge or cable, a tunnel.
    Virtual,
    /// This host alone.
    Loopback,
}

/// A network interface that is up and has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// What lies under it.
    pub kind: Kind,
    /// Its nominal speed in Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
    /// Where its adapter sits, from the root complex down (`pci0000:00/0000:00:01.0`), if it is a PCI device.
    pub pci_path: Option<String>,
    /// Its addresses, all with port 0; those of link-local IPv6 carry the interface's scope.
    pub addresses: Vec<SocketAddr>,
}

/// The interfaces that are up and have an address, in no particular order.
///
/// # Errors
/// [`Error::Io`] if the operating system does not list them.
pub fn interfaces() -> Result<Vec<Interface>> {
    let listed = if_addrs::get_if_addrs().map_err(|error| Error::io("getifaddrs", error))?;
    let sysfs = Path::new("/sys/class/net");
    let mut found: Vec<Interface> = Vec::new();
    for entry in listed.iter().filter(|entry| entry.is_oper_up()) {
        let address = match entry.ip() {
            IpAddr::V6(ip) if is_link_local(&IpAddr::V6(ip)) => {
                SocketAddr::V6(SocketAddrV6::new(ip, 0, 0, entry.index.unwrap_or(0)))
            }
            ip => SocketAddr::new(ip, 0),
        };
        if let Some(known) = found.iter_mut().find(|known| known.name == entry.name) {
            known.addresses.push(address);
            continue;
        }
        let kind = if entry.is_loopback() { Kind::Loopback } else { kind(sysfs, &entry.name, 0) };
        found.push(Interface {
            name: entry.name.clone(),
            kind,
            speed_mbps: speed_mbps(sysfs, &entry.name),
            pci_path: pci_path(sysfs, &entry.name),
            addresses: vec![address],
        });
    }
    Ok(found)
}

/// An interface is real if a device backs it or an interface that it lies on.
fn kind(sysfs: &Path, name: &str, depth: usize) -> Kind {
    let directory = sysfs.join(name);
    if directory.join("device").exists() {
        return Kind::Real;
    }
    let below = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut below =
        below.filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("lower_")?.to_owned()));
    let real = depth < MAX_STACKED && below.any(|lower| kind(sysfs, &lower, depth + 1) == Kind::Real);
    if real { Kind::Real } else { Kind::Virtual }
}

/// The kernel says -1, or nothing at all, where it does not know.
fn speed_mbps(sysfs: &Path, name: &str) -> u32 {
    let text = fs::read_to_string(sysfs.join(name).join("speed")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn pci_path(sysfs: &Path, name: &str) -> Option<String> {
    let device = fs::canonicalize(sysfs.join(name).join("device")).ok()?;
    let parts: Vec<&str> = device.iter().filter_map(|part| part.to_str()).collect();
    let first = parts.iter().position(|part| part.starts_with("pci"))?;
    // Functions are named domain:bus:device.function; what hangs below the last one (virtio0, net) is not PCI's.
    let last = parts.iter().rposition(|part| part.matches(':').count() == 2 && part.contains('.'))?;
    (first < last).then(|| parts[first..=last].join("/"))
}

fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Which interfaces and addresses may be used.
///
/// ```
/// use rccl_transport::interface::Choice;
///
/// // Anything that RCCL_SOCKET_IFNAME, NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY allow:
/// let addresses = Choice::from_env()?.addresses()?;
/// assert!(Choice::loopback().addresses()?.iter().all(|address| address.ip().is_loopback()));
/// # Ok::<(), rccl_transport::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    names: Option<Names>,
    family: Option<Family>,
    loopback_only: bool,
}

/// The interfaces a variable names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Names {
    variable: &'static str,
    text: String,
    avoid: bool,
    exact: bool,
    names: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Choice {
    /// Every interface and family.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// The loopback interface alone: what may be used where there is no secret.
    #[must_use]
    pub const fn loopback() -> Self {
        Self { names: None, family: None, loopback_only: true }
    }

    /// What the environment allows. `RCCL_SOCKET_IFNAME`, or else `NCCL_SOCKET_IFNAME`, lists beginnings of names
    /// (`eth,ib`), with `=` before it whole names (`=eth0,eth1`), and with `^` before either those to avoid
    /// (`^docker,lo`). `NCCL_SOCKET_FAMILY` is `AF_INET` or `AF_INET6`.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming a variable whose value makes no sense.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|variable| std::env::var_os(variable))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let text = |variable| lookup(variable).map(|value: OsString| value.to_string_lossy().into_owned());
        let names = [IFNAME_VARIABLE, NCCL_IFNAME_VARIABLE]
            .into_iter()
            .find_map(|variable| Some((variable, text(variable)?)))
            .map(|(variable, text)| Names::parse(variable, text))
            .transpose()?;
        let family = text(FAMILY_VARIABLE).map(|text| Family::parse(&text)).transpose()?;
        Ok(Self { names, family, loopback_only: false })
    }

    /// The addresses this host might be reached at, in order of preference, all with port 0; at most [`MAX_ADDRESSES`].
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the variable that leaves none; [`Error::Unavailable`] if there is none anyway;
    /// [`Error::Io`] as [`interfaces`].
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        self.among(&interfaces()?)
    }

    /// The interfaces that may be used, with only the addresses that may be, the preferred ones first: those of adapters,
    /// or where there are none those of the next best kind. The loopback interface counts only where it is named or all
    /// there is.
    ///
    /// # Errors
    /// As [`Choice::addresses`].
    pub fn interfaces(&self) -> Result<Vec<Interface>> {
        self.best_among(&interfaces()?)
    }

    fn best_among(&self, interfaces: &[Interface]) -> Result<Vec<Interface>> {
        let mut usable: Vec<Interface> = interfaces.iter().filter(|it| self.allows(it)).cloned().collect();
        for interface in &mut usable {
            interface.addresses.retain(|address| self.allows_family(address));
            interface.addresses.sort_by_key(|address| (is_link_local(&address.ip()), *address));
        }
        usable.retain(|interface| !interface.addresses.is_empty());
        usable.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        let Some(best) = usable.first().map(|it| it.kind) else { return Err(self.nothing_left(interfaces)) };
        // Who names interfaces to use means each of them.
        if self.names.as_ref().is_none_or(|names| names.avoid) {
            usable.retain(|interface| interface.kind == best);
        }
        Ok(usable)
    }

    fn among(&self, interfaces: &[Interface]) -> Result<Vec<SocketAddr>> {
        let mut chosen = Vec::new();
        for interface in interfaces.iter().filter(|interface| self.allows(interface)) {
            for address in interface.addresses.iter().filter(|address| self.allows_family(address)) {
                chosen.push((
                    interface.kind,
                    is_link_local(&address.ip()),
                    Reverse(interface.speed_mbps),
                    &interface.name,
                    *address,
                ));
            }
        }
        chosen.sort();
        if chosen.is_empty() {
            return Err(self.nothing_left(interfaces));
        }
        Ok(chosen.into_iter().map(|(.., address)| address).take(MAX_ADDRESSES).collect())
    }

    fn allows(&self, interface: &Interface) -> bool {
        let named = self.names.as_ref().is_none_or(|names| names.allow(&interface.name));
        named && (interface.kind == Kind::Loopback || !self.loopback_only)
    }

    fn allows_family(&self, address: &SocketAddr) -> bool {
        match self.family {
            None => true,
            Some(Family::V4) => address.is_ipv4(),
            Some(Family::V6) => address.is_ipv6(),
        }
    }

    fn nothing_left(&self, interfaces: &[Interface]) -> Error {
        let mut there =
            interfaces.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>().join(", ");
        if there.is_empty() {
            there = "none".into();
        }
        let reason = format!("it leaves no address to use; the interfaces that are up are: {there}");
        match (&self.names, self.family) {
            (Some(names), _) if !interfaces.iter().any(|interface| names.allow(&interface.name)) => {
                Error::Invalid { what: names.variable.into(), value: names.text.clone(), reason }
            }
            (_, Some(family)) => {
                Error::Invalid { what: FAMILY_VARIABLE.into(), value: family.name().into(), reason }
            }
            _ => Error::Unavailable {
                what: "the network".into(),
                reason: format!("no interface that may be used is up and has an address (up: {there})"),
            },
        }
    }
}

impl Names {
    fn parse(variable: &'static str, text: String) -> Result<Self> {
        let (avoid, rest) = text.strip_prefix('^').map_or((false, &*text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names: Vec<String> = rest.split(',').map(str::to_owned).collect();
        let nonsense = |name: &String| {
            let strange = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '^' | '=');
            name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(strange)
        };
        if let Some(name) = names.iter().find(|name| nonsense(name)) {
            return Err(Error::Invalid {
                what: variable.into(),
                reason: format!(
                    "`{name}` is no interface's name; write names separated by commas, as in `eth,ib` (beginnings), \
                     `=eth0` (whole names) or `^docker` (all but these)"
                ),
                value: text,
            });
        }
        Ok(Self { variable, avoid, exact, names, text })
    }

    fn allow(&self, interface: &str) -> bool {
        let listed =
            |name: &String| if self.exact { interface == name } else { interface.starts_with(&**name) };
        self.names.iter().any(listed) != self.avoid
    }
}

impl Family {
    fn parse(text: &str) -> Result<Self> {
        [Self::V4, Self::V6].into_iter().find(|family| family.name() == text).ok_or_else(|| Error::Invalid {
            what: FAMILY_VARIABLE.into(),
            value: text.into(),
            reason: "it is AF_INET or AF_INET6".into(),
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::V4 => "AF_INET",
            Self::V6 => "AF_INET6",
        }
    }
}

/// Addresses of another host as this host can try them: a link-local address once for every interface of this host that
/// has one, since only this host knows its own scopes.
///
/// # Errors
/// [`Error::Io`] as [`interfaces`].
pub fn with_scopes(addresses: &[SocketAddr]) -> Result<Vec<SocketAddr>> {
    if !addresses.iter().any(|address| is_link_local(&address.ip())) {
        return Ok(addresses.to_vec());
    }
    let here = interfaces()?;
    let scopes = here.iter().filter_map(|interface| {
        interface.addresses.iter().find_map(|address| match address {
            SocketAddr::V6(own) if own.scope_id() != 0 => Some(own.scope_id()),
            _ => None,
        })
    });
    let scopes: Vec<u32> = scopes.collect();
    Ok(addresses.iter().flat_map(|address| scoped(address, &scopes)).collect())
}

fn scoped(address: &SocketAddr, scopes: &[u32]) -> Vec<SocketAddr> {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() == 0 && v6.ip().is_unicast_link_local() => {
            scopes.iter().map(|&scope| SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()).collect()
        }
        _ => vec![*address],
    }
}

#[cfg(test)]
mod tests;
