//! What a verbs transport can be told, by its user or by NCCL's variables.

use std::net::{Ipv4Addr, SocketAddr};

use super::{Device, Gid, GidKind, LinkLayer, Port, hca::Hca, sys::unavailable};
use crate::{
    Error, Result,
    interface::{Choice, FAMILY_VARIABLE},
    tcp::address,
};

/// The most queue pairs of a channel.
pub const MAX_QUEUE_PAIRS: usize = 8;

/// How often a packet is sent again before the connection is given up. 7 means "for ever" to some devices.
const MAX_RETRIES: u8 = 6;

/// Which port a verbs transport uses, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The tcp addresses to listen on for connections' beginnings, the preferred ones first.
    pub addresses: Vec<SocketAddr>,
    /// The GID to use, by its index; `None` tries all pairs that may work. Variable `NCCL_IB_GID_INDEX`.
    pub gid_index: Option<u8>,
    /// Whether IPv6 addresses are tried before IPv4 ones. Variable `NCCL_SOCKET_FAMILY`.
    pub v6_first: bool,
    /// The traffic class of packets. Variable `NCCL_IB_TC`.
    pub traffic_class: u8,
    /// The service level of packets, 0 to 15. Variable `NCCL_IB_SL`.
    pub service_level: u8,
    /// An unanswered packet is sent again after 4.096 us times 2 to this, 1 to 31 (devices wait up to four times as long).
    /// Variable `NCCL_IB_TIMEOUT`.
    pub timeout: u8,
    /// How often it is sent again, 0 to 6. Variable `NCCL_IB_RETRY_CNT`, of which 7 is taken as 6.
    pub retries: u8,
    /// Queue pairs of each channel made by connecting, 1 to [`MAX_QUEUE_PAIRS`]. Variable `NCCL_IB_QPS_PER_CONNECTION`.
    pub queue_pairs: usize,
    /// Which ports may be used. Variable `NCCL_IB_HCA`.
    hca: Hca,
}

impl Options {
    /// Any active port; connections begin at these addresses.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            addresses: addresses.into_iter().collect(),
            gid_index: None,
            v6_first: false,
            traffic_class: 0,
            service_level: 0,
            timeout: 16,
            retries: MAX_RETRIES,
            queue_pairs: 1,
            hca: Hca::default(),
        }
    }

    /// Connections begin on 127.0.0.1: both ends in this machine.
    #[must_use]
    pub fn loopback() -> Self {
        Self::new([(Ipv4Addr::LOCALHOST, 0).into()])
    }

    /// What the environment says; connections begin at the addresses that it allows (see [`Choice::from_env`]).
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the variable that makes no sense; [`Error::Unavailable`] if `NCCL_IB_DISABLE` forbids RDMA.
    pub fn from_env() -> Result<Self> {
        Self::new(Choice::from_env()?.addresses()?)
            .with_env()?
            .ok_or_else(|| unavailable("NCCL_IB_DISABLE is set; unset it, or set it to 0"))
    }

    /// Changed by the environment's `NCCL_IB_*` and `NCCL_SOCKET_FAMILY`; `None` if `NCCL_IB_DISABLE` forbids RDMA.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the variable that makes no sense.
    pub fn with_env(self) -> Result<Option<Self>> {
        self.with_lookup(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn with_lookup(mut self, lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let number = |name: &str, from: i64, to: i64| -> Result<Option<i64>> {
            let Some(text) = lookup(name).filter(|text| !text.is_empty()) else { return Ok(None) };
            match text.trim().parse() {
                Ok(value) if (from..=to).contains(&value) => Ok(Some(value)),
                _ => Err(Error::Invalid {
                    what: format!("environment variable {name}"),
                    value: text,
                    reason: format!("it must be a number from {from} to {to}"),
                }),
            }
        };
        if number("NCCL_IB_DISABLE", 0, i64::MAX)?.is_some_and(|value| value != 0) {
            return Ok(None);
        }
        if let Some(index) = number("NCCL_IB_GID_INDEX", -1, 255)? {
            self.gid_index = u8::try_from(index).ok();
        }
        for (name, field, to) in [
            ("NCCL_IB_TC", &mut self.traffic_class, 255),
            ("NCCL_IB_SL", &mut self.service_level, 15),
            ("NCCL_IB_TIMEOUT", &mut self.timeout, 31),
            ("NCCL_IB_RETRY_CNT", &mut self.retries, 7),
        ] {
            let from = i64::from(name == "NCCL_IB_TIMEOUT");
            if let Some(value) = number(name, from, to)? {
                *field = value as u8;
            }
        }
        self.retries = self.retries.min(MAX_RETRIES);
        if let Some(pairs) = number("NCCL_IB_QPS_PER_CONNECTION", 1, MAX_QUEUE_PAIRS as i64)? {
            self.queue_pairs = pairs as usize;
        }
        if let Some(text) = lookup(super::hca::VARIABLE) {
            self.hca = Hca::parse(&text)?;
        }
        self.v6_first |= lookup(FAMILY_VARIABLE).as_deref() == Some("AF_INET6");
        Ok(Some(self))
    }

    /// Uses exactly this port.
    #[must_use]
    pub fn on_port(mut self, device: &str, port: u8) -> Self {
        self.hca = Hca::only(device, port);
        self
    }

    /// Gives each channel this many queue pairs.
    #[must_use]
    pub const fn with_queue_pairs(mut self, queue_pairs: usize) -> Self {
        self.queue_pairs = queue_pairs;
        self
    }

    /// # Errors
    /// [`Error::Invalid`] if a transport cannot be made of it.
    pub(super) fn check(&self) -> Result<()> {
        let invalid = |what: &str, value: &dyn std::fmt::Debug, reason: String| {
            Err(Error::Invalid { what: what.into(), value: format!("{value:?}"), reason })
        };
        if !(1..=MAX_QUEUE_PAIRS).contains(&self.queue_pairs) {
            let reason = format!("a channel has 1 to {MAX_QUEUE_PAIRS}");
            return invalid("queue pairs of a verbs channel", &self.queue_pairs, reason);
        }
        if self.retries > MAX_RETRIES || !(1..=31).contains(&self.timeout) || self.service_level > 15 {
            let reason = format!("retries go to {MAX_RETRIES}, timeouts from 1 to 31, service levels to 15");
            let values = (self.retries, self.timeout, self.service_level);
            return invalid("retries, timeout, service level", &values, reason);
        }
        if self.addresses.is_empty() || address::encode(address::VERBS, [0; 8], &self.addresses).is_none() {
            let reason = "there must be at least one, and at most 15 IPv4 or 5 IPv6 addresses".to_owned();
            return invalid("addresses to listen on", &self.addresses, reason);
        }
        Ok(())
    }

    /// The GID of a port that is tried first, unless the other side has none of its family; `None` if none may be used.
    #[must_use]
    pub fn preferred_gid<'a>(&self, port: &'a Port) -> Option<&'a Gid> {
        let allowed = |gid: &&Gid| match self.gid_index {
            Some(index) => gid.index == index,
            None => port.link_layer == LinkLayer::Infiniband || gid.kind == GidKind::RoceV2,
        };
        port.gids.iter().filter(allowed).min_by_key(|gid| gid.class().order(self.v6_first))
    }

    /// The name of the device and the index of the GID that would be tried first, for programs to be told.
    ///
    /// # Errors
    /// As [`Options::choose`] and [`super::devices`].
    pub fn describe(&self) -> Result<(String, u8)> {
        let (device, port) = self.choose(&super::devices()?)?;
        Ok((device.name, self.preferred_gid(&port).map_or(0, |gid| gid.index)))
    }

    /// The first active port that may be used, and its device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with what there is instead.
    pub fn choose(&self, devices: &[Device]) -> Result<(Device, Port)> {
        let mut seen = Vec::new();
        for device in devices {
            for port in &device.ports {
                let usable = if !self.hca.allows(&device.name, port.number) {
                    "not what NCCL_IB_HCA allows"
                } else if !port.active {
                    port.state.as_str()
                } else if port.link_layer == LinkLayer::Ethernet && port.gids.is_empty() {
                    "without a GID: its interface has no address"
                } else {
                    return Ok((device.clone(), port.clone()));
                };
                seen.push(format!("{} port {} is {usable}", device.name, port.number));
            }
        }
        Err(unavailable(match seen.as_slice() {
            [] => "this machine has no RDMA device; `rdma link` lists them, and soft-RoCE makes one: \
                   `rdma link add rxe0 type rxe netdev eth0`"
                .to_owned(),
            seen => format!("no usable port: {}", seen.join(", ")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<Option<Options>> {
        Options::loopback().with_lookup(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn variables_keep_their_meaning_and_nonsense_is_refused_by_name() {
        assert_eq!(with("NCCL_IB_GID_INDEX", "3").unwrap().unwrap().gid_index, Some(3));
        assert_eq!(with("NCCL_IB_GID_INDEX", "-1").unwrap().unwrap().gid_index, None);
        assert_eq!(with("NCCL_IB_TC", "106").unwrap().unwrap().traffic_class, 106);
        assert_eq!(with("NCCL_IB_SL", "3").unwrap().unwrap().service_level, 3);
        assert_eq!(with("NCCL_IB_TIMEOUT", "20").unwrap().unwrap().timeout, 20);
        assert_eq!(with("NCCL_IB_RETRY_CNT", "7").unwrap().unwrap().retries, 6);
        assert_eq!(with("NCCL_IB_QPS_PER_CONNECTION", "4").unwrap().unwrap().queue_pairs, 4);
        assert!(with("NCCL_SOCKET_FAMILY", "AF_INET6").unwrap().unwrap().v6_first);
        assert_eq!(with("NCCL_IB_DISABLE", "1").unwrap(), None);
        for (name, value) in [
            ("NCCL_IB_GID_INDEX", "first"),
            ("NCCL_IB_TC", "256"),
            ("NCCL_IB_SL", "16"),
            ("NCCL_IB_TIMEOUT", "0"),
            ("NCCL_IB_RETRY_CNT", "8"),
            ("NCCL_IB_QPS_PER_CONNECTION", "0"),
            ("NCCL_IB_HCA", "rxe0:"),
        ] {
            let error = with(name, value).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn the_first_active_port_that_is_allowed_is_taken() {
        let port = |active| Port {
            number: 1,
            active,
            state: if active { "ACTIVE" } else { "DOWN" }.into(),
            link_layer: LinkLayer::Infiniband,
            lid: 1,
            speed_mbps: 0,
            mtu_bytes: 4096,
            gids: Vec::new(),
        };
        let device = |name: &str, active| Device {
            name: name.into(),
            pci_path: None,
            guid: 0,
            max_requests: 1024,
            ports: vec![port(active)],
        };
        let devices = [device("one", false), device("two", true), device("three", true)];
        let options = Options::loopback();
        assert_eq!(options.choose(&devices).unwrap().0.name, "two");
        assert_eq!(options.clone().on_port("three", 1).choose(&devices).unwrap().0.name, "three");
        let error = options.clone().on_port("one", 1).choose(&devices).unwrap_err().to_string();
        assert!(error.contains("one port 1 is DOWN") && error.contains("NCCL_IB_HCA"), "{error}");
        assert!(options.choose(&[]).unwrap_err().to_string().contains("rdma link add"));
    }
}
