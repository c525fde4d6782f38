//! rccl: collective communication through the host relay, for machines whose GPUs cannot reach each other directly and for
//! small clusters of them. (Not AMD's ROCm library of the same name.)
//!
//! A [`Communicator`] joins a group of ranks, in one process or in many, on one host or on several. Its collectives work
//! on slices of any [`Element`] type:
//!
//! ```
//! use rccl::{Communicator, Options, ReduceOp};
//!
//! // Two ranks in this process; usually each rank is a process of its own and calls `Communicator::create`.
//! let group = Communicator::local(2, &Options::default())?;
//! std::thread::scope(|threads| {
//!     for communicator in &group {
//!         threads.spawn(move || {
//!             let input = [communicator.rank() as f32 + 1.0; 4];
//!             let mut output = [0.0; 4];
//!             communicator.all_reduce(&input, &mut output, ReduceOp::Sum).unwrap();
//!             assert_eq!(output, [3.0; 4]);
//!         });
//!     }
//! });
//! # Ok::<(), rccl::Error>(())
//! ```

mod call;
mod choice;
mod communicator;
pub mod cuda;
mod engine;
mod error;
mod exec;
mod fork;
mod options;
mod state;

pub use communicator::{Communicator, Description, Pending, Registered, Scope};
pub use error::{Error, Result};
pub use options::{Options, TransportChoice};
pub use rccl_core::{Algorithm, Collective, DataType, Element, Rank, ReduceOp, Request, Scalar};
pub use rccl_transport::{Root, RootOptions, UniqueId, interface::Choice as Interfaces};

/// The version of this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
