use std::fmt;

use crate::{Error, Result};

/// A member's number within its group, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A group of ranks as one of its members sees it: how many there are, and which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Group {
    size: u32,
    rank: Rank,
}

impl Group {
    /// The most ranks a group may have: plans grow with the number of ranks, and station tables with its square.
    pub const MAX_SIZE: u32 = 1024;

    /// The group of `size` ranks as `rank` sees it.
    ///
    /// # Errors
    /// [`Error::Group`] if `size` is 0 or above [`Group::MAX_SIZE`], or `rank` is not below `size`.
    pub const fn new(size: u32, rank: u32) -> Result<Self> {
        if size == 0 || size > Self::MAX_SIZE || rank >= size {
            return Err(Error::Group { size, rank });
        }
        Ok(Self { size, rank: Rank(rank) })
    }

    /// The number of ranks.
    #[must_use]
    pub const fn size(self) -> u32 {
        self.size
    }

    /// This member.
    #[must_use]
    pub const fn rank(self) -> Rank {
        self.rank
    }

    /// Every rank, ascending.
    pub fn ranks(self) -> impl DoubleEndedIterator<Item = Rank> + Clone {
        (0..self.size).map(Rank)
    }

    /// Every rank but this one, starting with the next one and wrapping around, so that the members of a group do not
    /// all turn to the same peer first.
    pub fn peers(self) -> impl Iterator<Item = Rank> + Clone {
        (1..self.size).map(move |distance| self.after(distance))
    }

    /// The rank `distance` places after this one, wrapping around.
    #[must_use]
    pub const fn after(self, distance: u32) -> Rank {
        Rank(((self.rank.0 as u64 + distance as u64) % self.size as u64) as u32)
    }

    /// The rank `distance` places before this one, wrapping around.
    #[must_use]
    pub const fn before(self, distance: u32) -> Rank {
        self.after(self.size - distance % self.size)
    }

    /// Checks that `rank` is a member; `what` names the argument in the error.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`] if it is not.
    pub const fn member(self, what: &'static str, rank: u32) -> Result<Rank> {
        if rank >= self.size {
            return Err(Error::NoSuchRank { what, rank, size: self.size });
        }
        Ok(Rank(rank))
    }
}
