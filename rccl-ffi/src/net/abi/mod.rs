//! The tables that NCCL looks up, one file a version, over one implementation ([`super::plugin`]).
//!
//! Layouts were written down from the public headers of NCCL 2.12 to 2.32 and are asserted below each type, so that a
//! mistake does not compile. What a version's functions do differently is said in its file; functions whose shape did
//! not change are in [`shared`].

use std::ffi::{c_char, c_int, c_ulong, c_void};

pub mod shared;
pub mod v10;
pub mod v11;
pub mod v12;
pub mod v5;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

use crate::{boundary::OnPanic, net::device::Description};

/// Bytes of the handle that a listener gives and a connecting side gets.
pub const HANDLE_BYTES: usize = 128;

/// Memory of the host may be registered.
pub const PTR_HOST: c_int = 1;

/// What an entry of a table returns: `ncclResult_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct NcclResult(pub c_int);

impl NcclResult {
    /// The call did what it says.
    pub const SUCCESS: Self = Self(0);
    /// A call into the operating system failed.
    pub const SYSTEM: Self = Self(2);
    /// A bug, here or in NCCL.
    pub const INTERNAL: Self = Self(3);
    /// An argument makes no sense.
    pub const INVALID_ARGUMENT: Self = Self(4);
    /// The way the library is used, or a setting, makes no sense.
    pub const INVALID_USAGE: Self = Self(5);
    /// The other side is gone or does not answer.
    pub const REMOTE: Self = Self(6);
}

impl OnPanic for NcclResult {
    fn on_panic() -> Self {
        Self::INTERNAL
    }
}

/// NCCL's logger: level, subsystems, file, line, format, arguments.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// NCCL's profiler callback: event, what happens to it, the handle given to the operation, plugin, data.
pub type Profiler =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> NcclResult;

/// What a communicator asks of the network: `ncclNetCommConfig_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CommConfig {
    /// The class that the network shall put the traffic in, -1 if none is asked for.
    pub traffic_class: c_int,
}

/// What one direction of a communicator will do: `ncclNetCommAttr_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CommAttributes {
    /// The most peers talked to at once.
    pub max_concurrent_peers: i32,
    /// The fewest peers talked to at once.
    pub min_concurrent_peers: i32,
    /// The most connections to one peer.
    pub max_flows_per_peer: i32,
    /// The fewest connections to one peer.
    pub min_flows_per_peer: i32,
}

/// What a communicator will do: `ncclNetAttr_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Attributes {
    /// Of what it sends.
    pub send: CommAttributes,
    /// Of what it receives.
    pub recv: CommAttributes,
    /// Collectives, a bit each.
    pub op: u32,
    /// Algorithms, a bit each.
    pub algo: u32,
    /// Protocols, a bit each.
    pub proto: u32,
}

/// Devices that one virtual device is made of, until version 11.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct FourDevices {
    /// How many of `devs` count.
    pub ndevs: c_int,
    /// Numbers of devices.
    pub devs: [c_int; 4],
}

/// Devices that one virtual device is made of, from version 12 on.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct EightDevices {
    /// How many of `devs` count.
    pub ndevs: c_int,
    /// Numbers of devices.
    pub devs: [c_int; 8],
}

/// A list of device numbers as a version has it.
pub trait DeviceList {
    /// The numbers that count; `None` if there are more than fit.
    fn numbers(&self) -> Option<&[c_int]>;

    /// As many of `numbers` as fit.
    fn of(numbers: &[c_int]) -> Self;
}

macro_rules! device_list {
    ($name:ident, $room:literal) => {
        impl DeviceList for $name {
            fn numbers(&self) -> Option<&[c_int]> {
                self.devs.get(..usize::try_from(self.ndevs).ok()?)
            }

            fn of(numbers: &[c_int]) -> Self {
                let mut devs = [0; $room];
                let count = numbers.len().min($room);
                devs[..count].copy_from_slice(&numbers[..count]);
                Self { ndevs: count as c_int, devs }
            }
        }
        const _: () = assert!(size_of::<$name>() == 4 + 4 * $room);
    };
}

device_list!(FourDevices, 4);
device_list!(EightDevices, 8);

/// The properties of a device in the form of one version.
pub trait Properties: for<'a> From<&'a Description> {}

macro_rules! count_properties {
    ($($version:ident)*) => { $(impl Properties for $version::Properties {})* };
}

count_properties!(v5 v7 v8 v9 v11 v12);

/// Asserts where fields lie.
macro_rules! assert_layout {
    ($type:ty: $size:literal; $($field:ident $offset:literal)*) => {
        const _: () = assert!(size_of::<$type>() == $size);
        $(const _: () = assert!(std::mem::offset_of!($type, $field) == $offset);)*
    };
}
pub(crate) use assert_layout;

assert_layout!(CommConfig: 4; traffic_class 0);
assert_layout!(Attributes: 44; send 0 recv 16 op 32 algo 36 proto 40);
