//! Executors: what carries a plan out. On the host a plan is run by the processor, by whichever thread waits for it.

mod host;
mod ports;
mod program;
#[cfg(test)]
mod tests;
mod way;

#[cfg(test)]
pub(crate) use host::Fault;
pub(crate) use host::{Advance, Run};
pub(crate) use ports::Ports;
pub(crate) use program::Program;
pub(crate) use way::{Way, Ways};
