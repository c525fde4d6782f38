//! The `rccl` command.

fn main() {}
