//! The C ABI of rccl.
