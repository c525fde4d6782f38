//! What carries messages between hosts: RDMA where both ends have it, else TCP.

use std::sync::Arc;

use rccl_core::Rank;
use rccl_transport::{
    Region, Secret,
    channel::{Registration, Transport},
    tcp, verbs,
};

use crate::{Error, Options, Result, TransportChoice};

/// A rank's transports to other hosts, and which of them it uses to whom.
#[derive(Debug)]
pub(super) struct Network {
    tcp: tcp::Transport,
    rdma: Option<verbs::Transport>,
    /// By rank: whether it has RDMA.
    has_rdma: Vec<bool>,
}

impl Network {
    /// The transports that the options allow and this machine has.
    ///
    /// # Errors
    /// Those of the interfaces; why there is no RDMA, where it was asked for.
    pub(super) fn new(options: &Options, secret: &Secret) -> Result<Self> {
        let addresses = options.interfaces.addresses()?;
        let tcp_options = tcp::Options::new(addresses.clone()).with_sockets(options.tcp_sockets as usize);
        let tcp = tcp::Transport::new(tcp_options, secret.clone())?;
        let rdma = match (options.transport, &options.rdma) {
            (TransportChoice::Verbs, None) => {
                return Err(Error::Argument {
                    what: "Options::transport",
                    reason: "it is verbs, but Options::rdma is None (NCCL_IB_DISABLE is set)".to_owned(),
                });
            }
            (TransportChoice::Verbs, Some(rdma)) => Some(Self::rdma(rdma, &addresses, secret)?),
            (TransportChoice::Auto, Some(rdma)) => match Self::rdma(rdma, &addresses, secret) {
                Ok(rdma) => Some(rdma),
                Err(error) => {
                    tracing::debug!("TCP is used between hosts: {error}");
                    None
                }
            },
            _ => None,
        };
        Ok(Self { tcp, rdma, has_rdma: Vec::new() })
    }

    fn rdma(
        options: &verbs::Options,
        addresses: &[std::net::SocketAddr],
        secret: &Secret,
    ) -> rccl_transport::Result<verbs::Transport> {
        let mut options = options.clone();
        options.addresses = addresses.to_vec();
        verbs::Transport::new(options, secret.clone())
    }

    /// What the other ranks are told.
    pub(super) fn offer(&self) -> [u8; 1] {
        [u8::from(self.rdma.is_some())]
    }

    /// Takes note of what each rank was told to have.
    pub(super) fn agree(&mut self, told: &[Vec<u8>]) {
        self.has_rdma = told.iter().map(|bytes| bytes.first() == Some(&1)).collect();
    }

    /// Whether any two ranks would use RDMA. All ranks come to the same answer.
    pub(super) fn uses_rdma(&self) -> bool {
        self.has_rdma.iter().filter(|&&has| has).count() > 1
    }

    /// Leaves everything to TCP from now on.
    pub(super) fn give_up_rdma(&mut self) {
        self.has_rdma.clear();
        self.rdma = None;
    }

    /// What carries messages to and from a rank; both ends come to the same answer.
    pub(super) fn to(&self, rank: Rank) -> &dyn Transport {
        match &self.rdma {
            Some(rdma) if self.has_rdma.get(rank.index()) == Some(&true) => rdma,
            _ => &self.tcp,
        }
    }

    /// Makes memory known to the transports that need that.
    ///
    /// # Errors
    /// Those of [`Transport::register`].
    pub(super) fn register(&self, region: &Arc<Region>) -> Result<Option<Arc<Registration>>> {
        let used = self.rdma.as_ref().filter(|_| self.uses_rdma());
        Ok(used.map(|rdma| rdma.register(region)).transpose()?.map(Arc::new))
    }
}
