//! What a tcp transport can be told.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use super::address;
use crate::{
    Error, Result,
    interface::{Choice, Interface, interfaces},
};

/// The environment variable that says how many sockets a tcp channel has.
pub const SOCKETS_VARIABLE: &str = "RCCL_TCP_SOCKETS";

/// Sockets of a channel unless told otherwise.
pub const DEFAULT_SOCKETS: usize = 2;

/// How long connecting may take in all, unless told otherwise.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);

/// The most sockets of a channel.
pub const MAX_SOCKETS: usize = 16;

/// Where a tcp transport listens and how many sockets its channels have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The addresses to listen on, the preferred ones first; port 0 takes a free one. Who connects races them.
    pub addresses: Vec<SocketAddr>,
    /// The interface they belong to, for people; empty if they belong to several.
    pub interface: String,
    /// Nominal speed in Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
    /// Sockets of each channel made by connecting, 1 to [`MAX_SOCKETS`]. The listening side follows.
    pub sockets: usize,
    /// Interfaces that the sockets of a channel made by connecting are spread over: the first so many of the listener's
    /// addresses are each on another one. A socket whose address cannot be reached goes where the first one went.
    pub rails: usize,
    /// How long connecting may take in all. Who accepts late keeps who connects waiting.
    pub patience: Duration,
}

impl Options {
    /// Listens on these addresses.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let addresses = addresses.into_iter().collect();
        Self {
            addresses,
            interface: String::new(),
            speed_mbps: 0,
            sockets: DEFAULT_SOCKETS,
            rails: 1,
            patience: CONNECT_PATIENCE,
        }
    }

    /// Listens on 127.0.0.1.
    #[must_use]
    pub fn loopback() -> Self {
        Self::new([(Ipv4Addr::LOCALHOST, 0).into()])
    }

    /// Listens on ::1.
    #[must_use]
    pub fn loopback_v6() -> Self {
        Self::new([(Ipv6Addr::LOCALHOST, 0).into()])
    }

    /// Listens on the addresses of one interface.
    #[must_use]
    pub fn on_interface(interface: &Interface) -> Self {
        let addresses = interface.addresses.iter().copied();
        Self { interface: interface.name.clone(), speed_mbps: interface.speed_mbps, ..Self::new(addresses) }
    }

    /// Listens on every address that the environment allows (see [`Choice::from_env`]), as many as can be passed on, with
    /// as many sockets a channel as `RCCL_TCP_SOCKETS` says.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the variable that makes no sense; [`Error::Io`] from the operating system.
    pub fn from_env() -> Result<Self> {
        let mut options = Self::new(Choice::from_env()?.addresses()?).with_sockets_from_env()?;
        while options.addresses.len() > 1
            && address::encode(address::TCP, [0; 8], &options.addresses).is_none()
        {
            options.addresses.pop();
        }
        let holds = |interface: &&Interface| interface.addresses.contains(&options.addresses[0]);
        if let Some(first) = interfaces()?.iter().find(holds) {
            options.speed_mbps = first.speed_mbps;
        }
        Ok(options)
    }

    /// Gives each channel this many sockets.
    #[must_use]
    pub const fn with_sockets(mut self, sockets: usize) -> Self {
        self.sockets = sockets;
        self
    }

    /// Spreads the sockets of each channel over this many of the listener's addresses.
    #[must_use]
    pub const fn with_rails(mut self, rails: usize) -> Self {
        self.rails = rails;
        self
    }

    /// Gives connecting this long in all.
    #[must_use]
    pub const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
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
        let reason = if self.addresses.is_empty() {
            "there must be at least one"
        } else if address::encode(address::TCP, [0; 8], &self.addresses).is_none() {
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
        if !self.interface.is_empty() {
            return self.interface.clone();
        }
        let addresses: Vec<_> = self.addresses.iter().map(|address| address.ip().to_string()).collect();
        addresses.join(", ")
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
        assert!(said(Options::new([(Ipv6Addr::LOCALHOST, 0).into(); 6])).contains("too many"));
        assert!(said(Options::loopback().with_sockets(0)).contains("1 to 16"));
    }

    #[test]
    fn an_interface_gives_its_addresses() {
        let all = interfaces().unwrap();
        let loopback = all.iter().find(|interface| interface.name == "lo").unwrap();
        let options = Options::on_interface(loopback);
        assert!(options.addresses.contains(&(Ipv4Addr::LOCALHOST, 0).into()));
        assert_eq!(options.device(), "lo");
        assert_eq!(Options::loopback().device(), "127.0.0.1");
    }

    #[test]
    fn the_environment_gives_addresses_that_can_be_passed_on() {
        Options::from_env().unwrap().check().unwrap();
    }
}
