//! What a tcp transport can be told.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::address;
use crate::{Error, Result};

/// The environment variable that says how many sockets a tcp channel has.
pub const SOCKETS_VARIABLE: &str = "RCCL_TCP_SOCKETS";

/// Sockets of a channel unless told otherwise.
pub const DEFAULT_SOCKETS: usize = 2;

/// The most sockets of a channel.
pub const MAX_SOCKETS: usize = 16;

/// Where a tcp transport listens and how many sockets its channels have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The addresses to listen on, the preferred ones first. Who connects takes the first that answers.
    pub addresses: Vec<IpAddr>,
    /// The interface they belong to, for people; empty if unknown.
    pub interface: String,
    /// Sockets of each channel made by connecting, 1 to [`MAX_SOCKETS`]. The listening side follows.
    pub sockets: usize,
}

impl Options {
    /// Listens on these addresses.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let addresses = addresses.into_iter().collect();
        Self { addresses, interface: String::new(), sockets: DEFAULT_SOCKETS }
    }

    /// Listens on 127.0.0.1.
    #[must_use]
    pub fn loopback() -> Self {
        Self::new([IpAddr::V4(Ipv4Addr::LOCALHOST)])
    }

    /// Listens on ::1.
    #[must_use]
    pub fn loopback_v6() -> Self {
        Self::new([IpAddr::V6(Ipv6Addr::LOCALHOST)])
    }

    /// Listens on the addresses of an interface, IPv4 before IPv6. Link-local addresses are left out: they mean nothing
    /// to another host.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such interface or it has no address; [`Error::Io`] from the operating system.
    pub fn on_interface(name: &str) -> Result<Self> {
        let interfaces = if_addrs::get_if_addrs().map_err(|error| Error::io("getifaddrs", error))?;
        let mut addresses: Vec<_> =
            interfaces.iter().filter(|at| at.name == name && !at.is_link_local()).map(|at| at.ip()).collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        if addresses.is_empty() {
            let mut names: Vec<_> = interfaces.into_iter().map(|at| at.name).collect();
            names.sort();
            names.dedup();
            return Err(Error::Invalid {
                what: "network interface".into(),
                value: name.into(),
                reason: format!("it has no address to listen on; there are {}", names.join(", ")),
            });
        }
        Ok(Self { interface: name.into(), ..Self::new(addresses) })
    }

    /// Gives each channel this many sockets.
    #[must_use]
    pub const fn with_sockets(mut self, sockets: usize) -> Self {
        self.sockets = sockets;
        self
    }

    /// Gives each channel as many sockets as `RCCL_TCP_SOCKETS` says, if it is set.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no number from 1 to [`MAX_SOCKETS`].
    pub fn with_sockets_from_env(self) -> Result<Self> {
        match std::env::var_os(SOCKETS_VARIABLE) {
            None => Ok(self),
            Some(text) => Ok(Self { sockets: parse_sockets(&text.to_string_lossy())?, ..self }),
        }
    }

    /// # Errors
    /// [`Error::Invalid`] if a transport cannot be made of it.
    pub(super) fn check(&self) -> Result<()> {
        if !(1..=MAX_SOCKETS).contains(&self.sockets) {
            return Err(wrong_sockets("sockets of a tcp channel", &self.sockets.to_string()));
        }
        let candidates: Vec<_> = self.addresses.iter().map(|&ip| SocketAddr::new(ip, 0)).collect();
        let reason = if candidates.is_empty() {
            "there must be at least one"
        } else if address::encode([0; 8], &candidates).is_none() {
            "there are too many to pass on; 15 IPv4 or 5 IPv6 addresses fit"
        } else {
            return Ok(());
        };
        Err(Error::Invalid {
            what: "addresses to listen on".into(),
            value: format!("{:?}", self.addresses),
            reason: reason.into(),
        })
    }

    /// The device, for people.
    pub(super) fn device(&self) -> String {
        if self.interface.is_empty() {
            self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        } else {
            self.interface.clone()
        }
    }

    /// The interface's nominal speed in Mbit/s, 0 where the kernel does not know.
    pub(super) fn speed_mbps(&self) -> u32 {
        let path = format!("/sys/class/net/{}/speed", self.interface);
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

fn parse_sockets(text: &str) -> Result<usize> {
    let sockets = text.trim().parse().ok().filter(|sockets| (1..=MAX_SOCKETS).contains(sockets));
    sockets.ok_or_else(|| wrong_sockets(SOCKETS_VARIABLE, text))
}

fn wrong_sockets(what: &str, value: &str) -> Error {
    let reason = format!("a tcp channel has 1 to {MAX_SOCKETS} sockets");
    Error::Invalid { what: what.into(), value: value.into(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_named() {
        assert_eq!(parse_sockets(" 4 ").unwrap(), 4);
        for text in ["", "0", "17", "-1", "two"] {
            let said = parse_sockets(text).unwrap_err().to_string();
            assert_eq!(said, format!("RCCL_TCP_SOCKETS is `{text}`: a tcp channel has 1 to 16 sockets"));
        }
        let said = |options: Options| options.check().unwrap_err().to_string();
        assert!(said(Options::new([])).contains("at least one"));
        assert!(said(Options::new([IpAddr::V6(Ipv6Addr::LOCALHOST); 6])).contains("too many"));
        assert!(said(Options::loopback().with_sockets(0)).contains("1 to 16"));
        let said = Options::on_interface("nothing0").unwrap_err().to_string();
        assert!(said.contains("nothing0") && said.contains("there are"), "{said}");
    }

    #[test]
    fn an_interface_gives_its_addresses() {
        let options = Options::on_interface("lo").unwrap();
        assert!(options.addresses.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!((options.device(), options.speed_mbps()), ("lo".into(), 0));
    }
}
