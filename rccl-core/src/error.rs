use crate::{Algorithm, Collective, DataType, Rank};

/// What the core can refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A group needs at least one rank, at most [`crate::Group::MAX_SIZE`], and a rank below its size.
    #[error("rank {rank} of a group of {size}: the size must be 1 to {max} and the rank below it", max = crate::Group::MAX_SIZE)]
    Group {
        /// The number of ranks that was asked for.
        size: u32,
        /// The rank that was asked for.
        rank: u32,
    },
    /// A root, source or destination names a rank outside the group.
    #[error("{what} is rank {rank}, but the group has ranks 0 to {last}", last = size - 1)]
    NoSuchRank {
        /// The argument at fault: "root", "destination" or "source".
        what: &'static str,
        /// The rank that was named.
        rank: u32,
        /// The number of ranks in the group.
        size: u32,
    },
    /// A request lacks something that its collective needs.
    #[error("{collective} needs {what}, and the request has none")]
    Incomplete {
        /// The collective that was asked for.
        collective: Collective,
        /// What is missing: "an operator" or "a root".
        what: &'static str,
    },
    /// The algorithm does not implement the collective.
    #[error("{collective} has no algorithm {algorithm}; it has {}", .collective.algorithms_text())]
    Algorithm {
        /// The collective that was asked for.
        collective: Collective,
        /// The algorithm that does not implement it.
        algorithm: Algorithm,
    },
    /// The total number of bytes of a buffer does not fit in 64 bits.
    #[error("{count} elements of {data_type} on each of {size} ranks exceed 2^63 bytes; use a smaller count")]
    TooLong {
        /// Elements per rank.
        count: u64,
        /// Their type.
        data_type: DataType,
        /// Ranks in the group.
        size: u32,
    },
    /// A name could not be parsed.
    #[error("`{name}` is no {what}; expected one of {expected}")]
    Name {
        /// What was being parsed: "data type", "operator", "collective", "algorithm".
        what: &'static str,
        /// The text that was given.
        name: String,
        /// The names that would have been accepted.
        expected: String,
    },
    /// A segment must hold at least one element.
    #[error("a segment of 0 elements moves nothing; use at least 1")]
    EmptySegment,
    /// A rank that sends to itself must receive the same elements from itself.
    #[error(
        "rank {rank} must send to itself what it receives from itself, but sends {sent} elements and receives {received}; \
         name it as both destination and source, with equal counts"
    )]
    SelfSend {
        /// The rank.
        rank: Rank,
        /// Elements it sends to itself.
        sent: u64,
        /// Elements it receives from itself.
        received: u64,
    },
    /// A reduce operator that the data type cannot carry out.
    #[error("operator {op} is not defined for {data_type}: {reason}")]
    Operator {
        /// The operator's name.
        op: &'static str,
        /// The data type.
        data_type: DataType,
        /// Why not.
        reason: &'static str,
    },
}

/// The core's result.
pub type Result<T> = std::result::Result<T, Error>;
