use serde::{Serialize, Serializer};

use super::Collective;
use crate::{DataType, Error, Group, Rank, ReduceOp, Result};

/// What a caller asks a collective to do. Counts are in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Request {
    /// Which collective.
    pub collective: Collective,
    /// Elements: of each buffer for all-reduce and broadcast; of one rank's chunk (the smaller of the two buffers) for
    /// all-gather and reduce-scatter; of what is sent for send-recv.
    pub count: u64,
    /// The type of the elements.
    pub data_type: DataType,
    /// How contributions are combined, where the collective reduces.
    #[serde(serialize_with = "op_name")]
    pub op: Option<ReduceOp>,
    /// The rank whose input everybody gets, for broadcast.
    pub root: Option<Rank>,
    /// Where a send-recv sends to, if it sends.
    pub to: Option<Rank>,
    /// Where a send-recv receives from, if it receives.
    pub from: Option<Rank>,
    /// Elements that a send-recv receives.
    pub receive_count: u64,
}

fn op_name<S: Serializer>(op: &Option<ReduceOp>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(op.map_or("none", ReduceOp::name))
}

impl Request {
    const fn new(collective: Collective, count: u64, data_type: DataType) -> Self {
        Self { collective, count, data_type, op: None, root: None, to: None, from: None, receive_count: 0 }
    }

    /// An all-reduce of `count` elements.
    #[must_use]
    pub const fn all_reduce(count: u64, data_type: DataType, op: ReduceOp) -> Self {
        Self { op: Some(op), ..Self::new(Collective::AllReduce, count, data_type) }
    }

    /// An all-gather of `count` elements from each rank.
    #[must_use]
    pub const fn all_gather(count: u64, data_type: DataType) -> Self {
        Self::new(Collective::AllGather, count, data_type)
    }

    /// A reduce-scatter that leaves `count` elements on each rank.
    #[must_use]
    pub const fn reduce_scatter(count: u64, data_type: DataType, op: ReduceOp) -> Self {
        Self { op: Some(op), ..Self::new(Collective::ReduceScatter, count, data_type) }
    }

    /// A broadcast of `count` elements from `root`.
    #[must_use]
    pub const fn broadcast(count: u64, data_type: DataType, root: Rank) -> Self {
        Self { root: Some(root), ..Self::new(Collective::Broadcast, count, data_type) }
    }

    /// A send of `count` elements to one rank beside a receive of `receive_count` elements from one rank; either may be
    /// left out.
    #[must_use]
    pub const fn send_recv(
        count: u64,
        to: Option<Rank>,
        receive_count: u64,
        from: Option<Rank>,
        data_type: DataType,
    ) -> Self {
        Self { to, from, receive_count, ..Self::new(Collective::SendRecv, count, data_type) }
    }

    /// Elements of the input buffer of a member of `group`.
    #[must_use]
    pub fn input_len(&self, group: Group) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::AllGather => self.count,
            Collective::Broadcast => self.count,
            Collective::ReduceScatter => self.count * u64::from(group.size()),
            Collective::SendRecv => self.to.map_or(0, |_| self.count),
        }
    }

    /// Elements of the output buffer of a member of `group`.
    #[must_use]
    pub fn output_len(&self, group: Group) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::Broadcast | Collective::ReduceScatter => self.count,
            Collective::AllGather => self.count * u64::from(group.size()),
            Collective::SendRecv => self.from.map_or(0, |_| self.receive_count),
        }
    }

    /// Where the input lies relative to the output when the call is in place, as NCCL defines it: the element of the
    /// larger buffer at which the smaller one starts. `None` where in place makes no sense (send-recv).
    #[must_use]
    pub fn in_place_offset(&self, group: Group) -> Option<u64> {
        match self.collective {
            Collective::AllReduce | Collective::Broadcast => Some(0),
            Collective::AllGather | Collective::ReduceScatter => Some(self.count * u64::from(group.rank().0)),
            Collective::SendRecv => None,
        }
    }

    /// Checks everything about the request that can be checked on one rank.
    ///
    /// # Errors
    /// [`Error::Incomplete`] for a reduction without operator or a broadcast without root; [`Error::NoSuchRank`] for a root, source or destination outside the group; [`Error::TooLong`] where a buffer would
    /// exceed 2^63 bytes; [`Error::Operator`] where the operator does not suit the type.
    pub fn check(&self, group: Group) -> Result<()> {
        let incomplete = |what| Err(Error::Incomplete { collective: self.collective, what });
        if self.collective.reduces() && self.op.is_none() {
            return incomplete("an operator");
        }
        if self.collective == Collective::Broadcast && self.root.is_none() {
            return incomplete("a root");
        }
        for (what, rank) in [("root", self.root), ("destination", self.to), ("source", self.from)] {
            if let Some(rank) = rank {
                group.member(what, rank.0)?;
            }
        }
        let longest = u128::from(self.count.max(self.receive_count)) * u128::from(group.size());
        if longest * self.data_type.size_bytes() as u128 > 1 << 63 {
            return Err(Error::TooLong { count: self.count, data_type: self.data_type, size: group.size() });
        }
        self.op.map_or(Ok(()), |op| op.check(self.data_type))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner;

    #[test]
    fn a_request_without_what_it_needs_is_refused() {
        let group = Group::new(2, 0).unwrap();
        let reduce = Request { op: None, ..Request::all_reduce(8, DataType::Float, ReduceOp::Sum) };
        let broadcast = Request { root: None, ..Request::broadcast(8, DataType::Float, Rank(0)) };
        for (request, what) in [(reduce, "an operator"), (broadcast, "a root")] {
            let error = planner::plan(group, &request, crate::Algorithm::Oneshot, 4).unwrap_err();
            assert_eq!(error, Error::Incomplete { collective: request.collective, what });
        }
    }
}
