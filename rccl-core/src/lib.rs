//! What rccl decides, apart from how bytes move.
//!
//! The core knows data types, reduction numerics, how lengths are divided, the plans of the collectives, and how to
//! prove and price a plan. It does no I/O, has no clock, starts no thread, reads no environment and contains no unsafe
//! code, so everything in it can be tested exhaustively on any machine.
//!
//! ```
//! use rccl_core::{Algorithm, Collective, Group, Request, planner};
//!
//! let request = Request::all_reduce(1_000_000, rccl_core::DataType::Float, rccl_core::ReduceOp::Sum);
//! let plan = planner::plan(Group::new(4, 0).unwrap(), &request, Algorithm::Relay, 65_536).unwrap();
//! assert_eq!(plan.request.collective, Collective::AllReduce);
//! ```
#![forbid(unsafe_code)]

pub mod check;
pub mod cost;
pub mod dtype;
mod error;
mod group;
pub mod op;
pub mod oracle;
pub mod plan;
pub mod planner;
mod progress;
mod render;
pub mod split;

pub use dtype::{DataType, Element};
pub use error::{Error, Result};
pub use group::{Group, Rank};
pub use op::{ReduceOp, Scalar};
pub use plan::{Algorithm, Collective, Plan, Request};
pub use progress::Progress;
