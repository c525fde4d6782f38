//! rccl: collective communication through the host relay.
