//! The other library's side of a comparison.

mod nccl;
mod outside;

use super::{
    measure::{Batch, Spec},
    message::Job,
    options::{PeerName, Transport},
    settings::Settings,
};
use crate::error::Result;
use outside::Outside;

/// A running group of another library's workers. Dropping it ends them.
pub(super) enum Peer {
    /// Programs in other languages.
    Outside(Outside),
    /// NCCL, in workers of ours.
    Nccl(nccl::Group),
}

/// What to ask in each round.
pub(super) enum Ask {
    Outside(outside::Ask),
    Nccl(Job),
}

impl PeerName {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Gloo => "gloo",
            Self::Openmpi => "openmpi",
            Self::Nccl => "nccl",
        }
    }
}

impl Peer {
    /// Starts the peer's workers on the same number of ranks and, where it has a choice, on the same transport.
    ///
    /// # Errors
    /// [`crate::error::Error::Processes`] if it is not installed, does not start, or does not say hello in time.
    pub(super) fn start(name: PeerName, settings: &Settings, transport: Transport) -> Result<Self> {
        Ok(match name {
            PeerName::Nccl => Self::Nccl(nccl::Group::start(settings)?),
            PeerName::Gloo | PeerName::Openmpi => Self::Outside(Outside::start(name, settings, transport)?),
        })
    }

    /// The library's version, as its workers say.
    pub(super) fn version(&self) -> &str {
        match self {
            Self::Outside(peer) => &peer.version,
            Self::Nccl(peer) => &peer.version,
        }
    }

    /// The variables that choose how it works, `K=V K=V`.
    pub(super) fn env(&self) -> &str {
        match self {
            Self::Outside(peer) => &peer.env,
            Self::Nccl(peer) => &peer.env,
        }
    }

    /// What else is worth knowing, for the head of the table.
    pub(super) fn note(&self) -> Option<&str> {
        match self {
            Self::Outside(_) => None,
            Self::Nccl(peer) => Some(&peer.note),
        }
    }

    /// What to ask in each round: as many operations as fill a batch. `None` if the peer cannot do this, which is said once.
    ///
    /// # Errors
    /// [`crate::error::Error::Processes`] if a worker does not answer.
    pub(super) fn prepare(
        &mut self,
        settings: &Settings,
        spec: &Spec,
        in_place: bool,
    ) -> Result<Option<Ask>> {
        match self {
            Self::Outside(peer) => Ok(peer.prepare(settings, spec, in_place)?.map(Ask::Outside)),
            Self::Nccl(peer) => Ok(Some(Ask::Nccl(peer.prepare(settings, spec, in_place)?))),
        }
    }

    /// One round, with results checked on fresh data from `seeds`.
    ///
    /// # Errors
    /// [`crate::error::Error::Processes`] if a worker does not answer, or its results are wrong: its time means nothing then.
    pub(super) fn measure(&mut self, ask: &mut Ask, spec: &Spec, seeds: &[u64]) -> Result<Batch> {
        match (self, ask) {
            (Self::Outside(peer), Ask::Outside(ask)) => peer.measure(ask, spec),
            (Self::Nccl(peer), Ask::Nccl(job)) => {
                job.checks = seeds.to_vec();
                peer.measure(job, spec)
            }
            _ => unreachable!("a peer is asked what it prepared"),
        }
    }
}
