//! CUDA: a driver that may be absent, and kernels compiled ahead.
//!
//! [`Driver`] is loaded at run time; without one, [`Driver::open`] returns an error and everything else works. No operation
//! changes the calling thread's current context: whatever is made current for a call is taken back at its end.
//!
//! ```no_run
//! use rccl_transport::cuda::{Device, DeviceMemory, Driver, Stream};
//!
//! # fn main() -> rccl_transport::Result<()> {
//! let driver = Driver::open()?;
//! let context = Device::by_ordinal(&driver, 0)?.primary_context()?;
//! let (stream, memory) = (Stream::new(&context)?, DeviceMemory::new(&context, 1 << 20)?);
//! // SAFETY: the memory is alive until the stream is done.
//! unsafe { stream.fill(memory.start(), 0, memory.len()) }?;
//! stream.synchronize()
//! # }
//! ```

mod device;
mod driver;
mod graph;
pub mod kernels;
mod memory;
mod module;
pub mod relay;
mod stream;
pub mod sys;

pub use device::{Attribute, ContextGuard, Device, PeerAttribute, PrimaryContext};
pub use driver::{Driver, LIBRARY_VARIABLE};
pub use graph::{BesideCaptures, Capture, Graph, RecordNode};
pub use memory::{DeviceMemory, HostRegistration, PointerInfo, PointerKind};
pub use module::{Function, FunctionAttribute, Module, Shape};
pub use stream::{Event, Stream, Until, WordOperation};
