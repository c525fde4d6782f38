use std::{fmt, str::FromStr};

use serde::Serialize;

use crate::{Error, Result};

/// The collectives. Names are the fixed ones; counts mean what they mean in NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Collective {
    /// Every rank ends with the reduction of all inputs.
    AllReduce = 0,
    /// Every rank ends with the inputs of all ranks, in rank order.
    AllGather = 1,
    /// Rank `r` ends with chunk `r` of the reduction of all inputs.
    ReduceScatter = 2,
    /// Every rank ends with the root's input.
    Broadcast = 3,
    /// A rank sends to one rank and receives from one (possibly another), or does only one of the two.
    SendRecv = 4,
}

impl Collective {
    /// Every collective, in the order of their codes.
    pub const ALL: [Self; 5] =
        [Self::AllReduce, Self::AllGather, Self::ReduceScatter, Self::Broadcast, Self::SendRecv];

    /// The fixed name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Broadcast => "broadcast",
            Self::SendRecv => "send-recv",
        }
    }

    /// Whether contributions are combined (rather than only moved).
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter)
    }

    /// The algorithms that implement it, the preferred one for small messages first.
    #[must_use]
    pub const fn algorithms(self) -> &'static [Algorithm] {
        match self {
            Self::AllReduce => &[Algorithm::Oneshot, Algorithm::Relay, Algorithm::Ring],
            Self::AllGather | Self::ReduceScatter | Self::Broadcast => &[Algorithm::Oneshot, Algorithm::Ring],
            Self::SendRecv => &[Algorithm::Oneshot],
        }
    }

    pub(crate) fn algorithms_text(self) -> String {
        self.algorithms().iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Collective {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|collective| collective.name() == name).ok_or_else(|| Error::Name {
            what: "collective",
            name: name.to_owned(),
            expected: Self::ALL.map(Self::name).join(" "),
        })
    }
}

/// How a collective is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Algorithm {
    /// One hop: everyone publishes what it has, everyone collects what it needs.
    Oneshot = 0,
    /// Two hops, the segmented relay: contributions go to the owner of a part, which reduces them and publishes the
    /// result once for all.
    Relay = 1,
    /// Neighbours only, as many hops as there are ranks (twice that for all-reduce).
    Ring = 2,
}

impl Algorithm {
    /// Every algorithm, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::Oneshot, Self::Relay, Self::Ring];

    /// The fixed name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Oneshot => "oneshot",
            Self::Relay => "relay",
            Self::Ring => "ring",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or_else(|| Error::Name {
            what: "algorithm",
            name: name.to_owned(),
            expected: Self::ALL.map(Self::name).join(" "),
        })
    }
}
