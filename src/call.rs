//! A call as it travels with every message: enough to tell two calls apart, and to say in words what the other side did.

use rccl_core::{Algorithm, Collective, DataType, Rank, ReduceOp, Request, Scalar};
use rccl_transport::station::{LABEL_BYTES, Label};

/// What all ranks of a call must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// Which collective.
    pub(crate) collective: Collective,
    /// By which algorithm.
    pub(crate) algorithm: Algorithm,
    /// Elements, as in [`Request::count`]; of the one message for send-recv.
    pub(crate) count: u64,
    /// Their type.
    pub(crate) data_type: DataType,
    /// The operator, if contributions are combined.
    pub(crate) op: Option<ReduceOp>,
    /// The root, if there is one.
    pub(crate) root: Option<Rank>,
}

/// Stands for "none" in an encoded field.
const NONE_8: u8 = u8::MAX;
const NONE_32: u32 = u32::MAX;

impl Call {
    /// The call that a request makes, but for send-recv, whose two sides differ.
    pub(crate) const fn new(request: &Request, algorithm: Algorithm) -> Self {
        let &Request { collective, count, data_type, op, root, .. } = request;
        Self { collective, algorithm, count, data_type, op, root }
    }

    /// The call as a label of messages.
    pub(crate) fn label(&self) -> Label {
        let text = self.encode();
        Label { signature: signature(&text), text }
    }

    fn encode(&self) -> [u8; LABEL_BYTES] {
        let mut bytes = [0; LABEL_BYTES];
        bytes[0] = self.collective as u8;
        bytes[1] = self.algorithm as u8;
        bytes[2] = self.data_type as u8;
        bytes[3] = self.op.map_or(NONE_8, ReduceOp::code);
        bytes[4..8].copy_from_slice(&self.root.map_or(NONE_32, |root| root.0).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.count.to_le_bytes());
        if let Some(ReduceOp::MulSum(scalar)) = self.op {
            bytes[16] = u8::from(matches!(scalar, Scalar::Integer(_)));
            bytes[24..32].copy_from_slice(&scalar.bits().to_le_bytes());
        }
        bytes
    }

    /// The call that a label's text stands for; `None` if it is no label of this version.
    pub(crate) fn decode(bytes: &[u8; LABEL_BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let root = (word(0) >> 32) as u32;
        let op = match bytes[3] {
            0 => Some(ReduceOp::Sum),
            1 => Some(ReduceOp::Prod),
            2 => Some(ReduceOp::Min),
            3 => Some(ReduceOp::Max),
            4 => Some(ReduceOp::Avg),
            5 if bytes[16] == 0 => Some(ReduceOp::MulSum(Scalar::Float(word(24)))),
            5 => Some(ReduceOp::MulSum(Scalar::Integer(word(24)))),
            NONE_8 => None,
            _ => return None,
        };
        Some(Self {
            collective: Collective::ALL.get(usize::from(bytes[0])).copied()?,
            algorithm: Algorithm::ALL.get(usize::from(bytes[1])).copied()?,
            data_type: DataType::from_code(bytes[2])?,
            op,
            root: (root != NONE_32).then_some(Rank(root)),
            count: word(8),
        })
    }

    /// What a label's text says, in words.
    pub(crate) fn describe(bytes: &[u8; LABEL_BYTES]) -> String {
        Self::decode(bytes).map_or_else(|| "something unknown".to_owned(), |call| call.to_string())
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { collective, algorithm, count, data_type, .. } = self;
        write!(f, "{collective} of {count} {data_type}")?;
        match self.op {
            Some(ReduceOp::MulSum(scalar)) => write!(f, ", mulsum by {}", scalar.as_f64())?,
            Some(op) => write!(f, ", {op}")?,
            None => {}
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        if *collective != Collective::SendRecv {
            write!(f, " ({algorithm})")?;
        }
        Ok(())
    }
}

/// FNV-1a over the encoded call, finished by a mixer so that every bit counts.
fn signature(bytes: &[u8; LABEL_BYTES]) -> u64 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Vec<Call> {
        let mut calls = Vec::new();
        let scalars = [Scalar::from(2.5), Scalar::from(-3i64)];
        let ops = [None, Some(ReduceOp::Sum), Some(ReduceOp::Avg)];
        for op in ops.into_iter().chain(scalars.map(|scalar| Some(ReduceOp::MulSum(scalar)))) {
            for (collective, algorithm) in [
                (Collective::AllReduce, Algorithm::Ring),
                (Collective::Broadcast, Algorithm::Oneshot),
                (Collective::SendRecv, Algorithm::Oneshot),
            ] {
                for root in [None, Some(Rank(0)), Some(Rank(7))] {
                    for count in [0, 1, u64::MAX] {
                        let data_type = DataType::Bfloat16;
                        calls.push(Call { collective, algorithm, count, data_type, op, root });
                    }
                }
            }
        }
        calls
    }

    #[test]
    fn calls_survive_the_journey() {
        for call in calls() {
            assert_eq!(Call::decode(&call.label().text), Some(call));
        }
    }

    #[test]
    fn different_calls_have_different_signatures() {
        let mut signatures: Vec<u64> = calls().iter().map(|call| call.label().signature).collect();
        let count = signatures.len();
        signatures.sort_unstable();
        signatures.dedup();
        assert_eq!(signatures.len(), count);
    }

    #[test]
    fn garbage_is_described_without_panic() {
        assert_eq!(Call::describe(&[0x77; LABEL_BYTES]), "something unknown");
    }
}
